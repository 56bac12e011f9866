//! `rope_theta` and what stands beside it, as transformers 4 and 5 spell them.
//!
//! Version 4 writes `rope_theta` and `rope_scaling` (null, or an object with `rope_type`, earlier
//! `type`); version 5 writes `rope_parameters` with `rope_theta` and `rope_type`. Only the plain
//! rotation is supported: any scaling changes the angles.

use super::fields::Fields;
use crate::error::Result;

const WHY: &str = "assay does not guess it: known values are 1000000 (Qwen2, Qwen2.5, Qwen3), \
     10000 (Qwen2.5-Math, R1-Distill-Qwen-1.5B) and 5000000 (Qwen3-2507); take it from the \
     original config.json";

/// The largest base accepted; released models have 5e6 at most.
const MAX_THETA: f64 = 1e12;

/// Base of the rotary angles.
pub(super) fn theta(config: &Fields<'_>) -> Result<f64> {
    // (spelling, value) of every place that gives a base.
    let mut found: Vec<(String, f64)> = Vec::new();
    if let Some(theta) = config.real("rope_theta")? {
        found.push(("rope_theta".to_owned(), theta));
    }
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(object) = config.object(name)? else { continue };
        let within = format!("{name}.");
        let rope = Fields::new(config.path(), &within, object);
        check_plain(&rope)?;
        if let Some(theta) = rope.real("rope_theta")? {
            found.push((format!("{name}.rope_theta"), theta));
        }
        if let Some((field, _)) = rope.unseen().next() {
            return Err(rope.error(
                field,
                "is not known for the default rotation; only rope_theta, rope_type and a \
                 partial_rotary_factor of 1 are",
            ));
        }
    }
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

/// Refuses every rotation but the default one.
fn check_plain(rope: &Fields<'_>) -> Result<()> {
    for name in ["rope_type", "type"] {
        if let Some(kind) = rope.text(name)?.filter(|k| *k != "default") {
            return Err(rope.error(
                name,
                format!(
                    "is `{}`: RoPE scaling is not supported yet, only `default` is",
                    kind.escape_debug()
                ),
            ));
        }
    }
    if let Some(part) = rope.real("partial_rotary_factor")?.filter(|&p| p != 1.0) {
        return Err(rope.error(
            "partial_rotary_factor",
            format!("is {part}: Qwen2 and Qwen3 rotate the whole head, and only 1 is supported"),
        ));
    }
    Ok(())
}
