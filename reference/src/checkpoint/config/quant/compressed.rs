//! compressed-tensors' description: one group of linear layers in the `pack-quantized` format.

use regex::Regex;

use super::{Part, check_rest};
use crate::checkpoint::config::fields::Fields;
use crate::checkpoint::expected::Kind;
use crate::checkpoint::json::Object;
use crate::error::Result;
use crate::ops::ct_dequant::{self, CtDequant};
use crate::ops::linear::Linear;
use crate::ops::{packed, quant_gemm};

/// Packed integer weights as compressed-tensors stores them.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedTensors {
    /// Bits of a weight: 4 or 8.
    pub bits: u32,
    /// Inputs that share a scale; `None` (`strategy: channel`) is all of a layer's.
    pub group_size: Option<usize>,
    /// Whether there are no zero points.
    pub symmetric: bool,
    /// Whether inputs have groups of their own, `weight_g_idx` (`actorder: group`).
    pub g_idx: bool,
    /// Layers left as floats.
    pub ignored: Ignored,
}

/// Layers that are left out: compressed-tensors' `ignore` has names of modules, or `re:` and a regular expression that must match
/// from the start of the name.
#[derive(Clone, Debug, Default)]
pub struct Ignored {
    texts: Vec<String>,
    patterns: Vec<Regex>,
}

impl PartialEq for Ignored {
    fn eq(&self, other: &Ignored) -> bool {
        self.texts == other.texts
    }
}

impl Ignored {
    /// Whether a module is left out.
    pub fn contains(&self, path: &str) -> bool {
        self.texts.iter().any(|t| t == path) || self.patterns.iter().any(|p| p.is_match(path))
    }

    /// Adds a regular expression that must match from the start of a module's name.
    /// `given` is the field's own text of it.
    pub(super) fn add(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        given: &str,
        pattern: &str,
    ) -> Result<()> {
        let anchored = Regex::new(&format!("^(?:{pattern})")).map_err(|_| {
            let shown = given.escape_debug();
            fields.error(
                name,
                format!("has `{shown}`, which is no regular expression that assay reads"),
            )
        })?;
        self.patterns.push(anchored);
        self.texts.push(given.to_owned());
        Ok(())
    }

    /// The names and expressions as they were given.
    pub(super) fn shown(&self) -> String {
        self.texts.join(", ")
    }

    fn read(fields: &Fields<'_>) -> Result<Ignored> {
        const NAME: &str = "ignore";
        let mut ignored = Ignored::default();
        for text in fields.texts(NAME)?.unwrap_or_default() {
            let shown = text.escape_debug();
            if let Some(pattern) = text.strip_prefix("re:") {
                ignored.add(fields, NAME, text, pattern)?;
                continue;
            }
            if text == "Linear" || text.is_empty() {
                let what = format!("has `{shown}`, which leaves every layer out");
                return Err(fields.error(NAME, what));
            }
            ignored.texts.push(text.to_owned());
        }
        if !ignored.contains("lm_head") {
            let what = "does not name lm_head: a quantised lm_head is not supported";
            return Err(fields.error(NAME, what));
        }
        Ok(ignored)
    }
}

const HARMLESS: &[&str] = &["global_compression_ratio", "version"];

const REFUSED: &[(&str, &str)] = &[
    ("kv_cache_scheme", "a quantised key and value cache"),
    ("sparsity_config", "sparse weights"),
    ("transform_config", "transformed (rotated) weights"),
];

pub(super) fn parse(fields: &Fields<'_>) -> Result<CompressedTensors> {
    const FORMAT: &str = "pack-quantized";
    format(fields, FORMAT, true)?;
    if let Some(status) = fields.text("quantization_status")?.filter(|s| *s != "compressed") {
        let what = format!("is `{}`: only compressed weights are read", status.escape_debug());
        return Err(fields.error("quantization_status", what));
    }
    let groups = fields.need("config_groups", fields.object("config_groups")?, super::WHY)?;
    let (Some((name, group)), 1) = (groups.iter().next(), groups.len()) else {
        let what = format!("has {} groups: one for all linear layers is supported", groups.len());
        return Err(fields.error("config_groups", what));
    };
    let within = format!("quantization_config.config_groups.{}.", name.escape_debug());
    let Some(group) = group.as_object() else {
        return Err(fields.error("config_groups", "must hold an object for each group"));
    };
    let group = Fields::new(fields.path(), &within, group);
    if group.texts("targets")?.as_deref() != Some(&["Linear"]) {
        let what = "must be [\"Linear\"]: layers chosen in another way are not supported";
        return Err(group.error("targets", what));
    }
    format(&group, FORMAT, false)?;
    for name in ["input_activations", "output_activations"] {
        if group.value(name).is_some() {
            let what = "is set: quantised activations are not supported, only null is";
            return Err(group.error(name, what));
        }
    }
    let weights = group.need("weights", group.object("weights")?, super::WHY)?;
    let within = format!("{within}weights.");
    let mut scheme = weight_scheme(fields, &within, weights)?;
    scheme.ignored = Ignored::read(fields)?;
    check_rest(&group, "a config group", &[], &[])?;
    check_rest(fields, "compressed-tensors", HARMLESS, REFUSED)?;
    Ok(scheme)
}

/// `format`, here or in a group.
fn format(fields: &Fields<'_>, only: &str, needed: bool) -> Result<()> {
    match fields.text("format")? {
        Some(format) if format != only => {
            let format = format.escape_debug();
            Err(fields.error("format", format!("is `{format}`: only {only} is supported")))
        }
        None if needed => fields.need("format", None, &format!("expected `{only}`")),
        _ => Ok(()),
    }
}

/// `weights` of a group.
fn weight_scheme(fields: &Fields<'_>, within: &str, weights: &Object) -> Result<CompressedTensors> {
    let weights = Fields::new(fields.path(), within, weights);
    let bits = super::bits(&weights, "num_bits", &[4, 8], "compressed-tensors' packed format")?;
    match weights.text("type")? {
        Some("int") => {}
        other => {
            let other = other.unwrap_or("missing").escape_debug();
            return Err(weights.error("type", format!("is `{other}`: only int is supported")));
        }
    }
    let symmetric = weights.need("symmetric", weights.flag("symmetric")?, super::WHY)?;
    if weights.value("dynamic").is_some_and(|d| d.as_bool() != Some(false)) {
        return Err(weights.error("dynamic", "is set: weights have fixed scales"));
    }
    let size = weights.integer("group_size", -1..=1 << 20)?.filter(|s| *s != -1);
    let strategy = weights.need("strategy", weights.text("strategy")?, super::WHY)?;
    let group_size = match (strategy, size) {
        ("group", Some(size)) if size > 0 => Some(size as usize), // 1..=2^20
        ("channel", None) => None,
        ("group" | "channel", _) => {
            let size = size.map_or("missing".to_owned(), |s| s.to_string());
            let what = format!(
                "is {size}, but `strategy` is `{strategy}`: `group` has a positive size, `channel` \
                 none or -1"
            );
            return Err(weights.error("group_size", what));
        }
        (other, _) => {
            let what =
                format!("is `{}`: only group and channel are supported", other.escape_debug());
            return Err(weights.error("strategy", what));
        }
    };
    let g_idx = actorder(&weights)?;
    check_rest(
        &weights,
        "a weight scheme",
        &["observer", "observer_kwargs", "scale_dtype", "zp_dtype"],
        &[("block_structure", "scales for blocks")],
    )?;
    Ok(CompressedTensors { bits, group_size, symmetric, g_idx, ignored: Ignored::default() })
}

/// Whether `actorder` is one that stores an index. `weight` (`static`) only changes how the weights
/// were found.
fn actorder(weights: &Fields<'_>) -> Result<bool> {
    const NAME: &str = "actorder";
    let Some(value) = weights.value(NAME) else { return Ok(false) };
    match (value.as_bool(), value.as_str()) {
        (Some(false), _) | (_, Some("weight" | "static")) => Ok(false),
        (Some(true), _) | (_, Some("group" | "dynamic")) => Ok(true),
        _ => {
            let what = "must be null, a boolean, `weight`, `static`, `group` or `dynamic`";
            Err(weights.error(NAME, what))
        }
    }
}

impl CompressedTensors {
    pub(super) fn linear(&self) -> Linear {
        let size = self.group_size.map_or(-1, |n| n as i64);
        let params = ct_dequant::Params::new(self.bits, size);
        Linear::CompressedTensors(quant_gemm::Params::new::<CtDequant>(params))
    }

    pub(super) fn parts(&self, n: usize, k: usize) -> Vec<Part> {
        let groups = self.group_size.map_or(1, |size| k.div_ceil(size));
        let mut parts = vec![
            ("weight_packed", Kind::Packed, vec![n, packed::words(k, self.bits)]),
            ("weight_scale", Kind::FloatScales, vec![n, groups]),
        ];
        if !self.symmetric {
            let shape = vec![packed::words(n, self.bits), groups];
            parts.push(("weight_zero_point", Kind::Packed, shape));
        }
        if self.g_idx {
            parts.push(("weight_g_idx", Kind::GroupIndex { groups }, vec![k]));
        }
        parts.push(("weight_shape", Kind::Sizes { n, k }, vec![2]));
        parts
    }
}
