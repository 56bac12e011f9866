//! The rotary embedding's base and scaling, as transformers 4 and 5 spell them.
//!
//! Version 4 writes `rope_theta` and `rope_scaling` (null, or an object with `rope_type`, earlier
//! `type`); version 5 writes `rope_parameters` with everything. What is in both must agree.

use super::fields::Fields;
use crate::error::Result;
use crate::ops::rope::{Scaling, Yarn, mscale};

const WHY: &str = "assay does not guess it: known values are 1000000 (Qwen2, Qwen2.5, Qwen3), \
     10000 (Qwen2.5-Math, R1-Distill-Qwen-1.5B) and 5000000 (Qwen3-2507); take it from the \
     original config.json";

/// The largest base accepted; released models have 5e6 at most.
const MAX_THETA: f64 = 1e12;
/// The largest scaling factor accepted; released models have 4 at most.
const MAX_FACTOR: f64 = 1024.0;
/// The longest context accepted.
const MAX_POSITIONS: i64 = 1 << 30;

/// Base of the rotary angles, and their scaling for a context of `max_position`.
pub(super) fn read(config: &Fields<'_>, max_position: usize) -> Result<(f64, Scaling)> {
    // (spelling, value) of every place that gives one.
    let mut thetas: Vec<(String, f64)> = Vec::new();
    let mut scalings: Vec<(&str, Scaling)> = Vec::new();
    if let Some(theta) = config.real("rope_theta")? {
        thetas.push(("rope_theta".to_owned(), theta));
    }
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(object) = config.object(name)? else { continue };
        let within = format!("{name}.");
        let rope = Fields::new(config.path(), &within, object);
        if let Some(theta) = rope.real("rope_theta")? {
            thetas.push((format!("{name}.rope_theta"), theta));
        }
        scalings.push((name, scaling(&rope, max_position)?));
    }
    if let [(a, first), (b, second)] = scalings[..]
        && first != second
    {
        return Err(config.error(
            a,
            format!("asks for {first:?}, but `{b}` asks for {second:?}: one of the two is wrong"),
        ));
    }
    let scaling = scalings.first().map_or(Scaling::Default, |(_, s)| *s);
    Ok((theta(config, &thetas)?, scaling))
}

fn theta(config: &Fields<'_>, found: &[(String, f64)]) -> Result<f64> {
    let Some((first, theta)) = found.first() else {
        return config.need(
            "rope_theta",
            None,
            &format!("nor is `rope_parameters.rope_theta` there; {WHY}"),
        );
    };
    if let Some((other, value)) = found.iter().find(|(_, t)| t != theta) {
        return Err(config.error(
            first,
            format!(
                "is {theta}, but `{other}` is {value}: one of the two is wrong, and engines \
                 differ in which they read"
            ),
        ));
    }
    if !(*theta > 1.0 && *theta <= MAX_THETA) {
        return Err(config.error(
            first,
            format!("must be a number above 1 and at most {MAX_THETA:e}, but is {theta}"),
        ));
    }
    Ok(*theta)
}

/// The scaling that one object describes; every field of it is read or refused.
fn scaling(rope: &Fields<'_>, max_position: usize) -> Result<Scaling> {
    let kind = kind(rope)?;
    if let Some(part) = rope.real("partial_rotary_factor")?.filter(|&p| p != 1.0) {
        return Err(rope.error(
            "partial_rotary_factor",
            format!("is {part}: Qwen2 and Qwen3 rotate the whole head, and only 1 is supported"),
        ));
    }
    let scaling = match kind {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear { factor: factor(rope)? },
        "dynamic" => Scaling::Dynamic { factor: factor(rope)?, max_position },
        "yarn" => Scaling::Yarn(yarn(rope)?),
        other => {
            return Err(rope.error(
                "rope_type",
                format!(
                    "is `{}`: assay knows default, linear, dynamic and yarn",
                    other.escape_debug()
                ),
            ));
        }
    };
    match rope.unseen().next() {
        Some((field, _)) => Err(rope.error(
            field,
            format!("is not a field of rope type `{kind}` that assay knows, so it cannot tell whether it changes the angles"),
        )),
        None => Ok(scaling),
    }
}

/// `rope_type`, or `type` as older files spell it.
fn kind<'a>(rope: &Fields<'a>) -> Result<&'a str> {
    match (rope.text("rope_type")?, rope.text("type")?) {
        (Some(new), Some(old)) if new != old => {
            let (new, old) = (new.escape_debug(), old.escape_debug());
            Err(rope.error(
                "rope_type",
                format!("is `{new}`, but `type` is `{old}`: one of the two is wrong"),
            ))
        }
        (new, old) => Ok(new.or(old).unwrap_or("default")),
    }
}

fn within(rope: &Fields<'_>, name: &'static str, low: f64, high: f64) -> Result<Option<f64>> {
    match rope.real(name)? {
        Some(x) if !(x >= low && x <= high) => {
            Err(rope.error(name, format!("must be from {low} to {high}, but is {x}")))
        }
        x => Ok(x),
    }
}

fn factor(rope: &Fields<'_>) -> Result<f64> {
    let why = "assay does not guess it: it is the ratio of the extended context to the trained one \
         (Qwen's model cards give 4)";
    rope.need("factor", within(rope, "factor", 1.0, MAX_FACTOR)?, why)
}

fn yarn(rope: &Fields<'_>) -> Result<Yarn> {
    let factor = factor(rope)?;
    let name = "original_max_position_embeddings";
    let why = "engines differ in what they take instead; it is the trained context (32768 for \
         Qwen2.5 and Qwen3)";
    let original = rope.need(name, rope.integer(name, 1..=MAX_POSITIONS)?, why)?;
    let beta_fast = within(rope, "beta_fast", 1e-3, 1e6)?.unwrap_or(32.0);
    let beta_slow = within(rope, "beta_slow", 1e-3, 1e6)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(rope.error(
            "beta_fast",
            format!("is {beta_fast}, below beta_slow {beta_slow}: the ramp would be reversed"),
        ));
    }
    let given = within(rope, "attention_factor", 1e-3, 1e3)?;
    let scales = [within(rope, "mscale", 1e-3, 1e3)?, within(rope, "mscale_all_dim", 1e-3, 1e3)?];
    let attention_factor = match (given, scales) {
        (Some(factor), [None, None]) => factor,
        (Some(_), _) => {
            return Err(rope.error(
                "attention_factor",
                "is given beside mscale or mscale_all_dim, from which it would follow: engines \
                 differ in which they use",
            ));
        }
        (None, [None, None]) => mscale(factor, 1.0),
        (None, [Some(m), Some(all)]) => mscale(factor, m) / mscale(factor, all),
        (None, _) => {
            return Err(rope.error(
                "mscale",
                "and `mscale_all_dim` belong together, but one of them is missing: engines differ \
                 in what that means",
            ));
        }
    };
    Ok(Yarn {
        factor,
        original_max_position: original as usize, // 1..=2^30
        beta_fast,
        beta_slow,
        truncate: rope.flag("truncate")?.unwrap_or(true),
        attention_factor,
    })
}
