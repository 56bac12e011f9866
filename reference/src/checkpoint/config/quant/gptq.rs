//! GPTQ's description, as AutoGPTQ, transformers and gptqmodel write it.

use super::{Ignored, Part, check_pack_dtype, check_rest};
use crate::checkpoint::config::LINEARS;
use crate::checkpoint::config::fields::Fields;
use crate::checkpoint::expected::Kind;
use crate::checkpoint::json::describe;
use crate::checkpoint::list;
use crate::error::Result;
use crate::ops::gptq_dequant::{self, GptqDequant};
use crate::ops::linear::Linear;
use crate::ops::{packed, quant_gemm};

/// How zero points are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptqFormat {
    /// `gptq`: the stored zero point is one less than the real one.
    V1,
    /// `gptq_v2`: the zero point is stored as it is.
    V2,
}

/// A GPTQ quantisation, the same for every quantised layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Gptq {
    /// Bits of a weight: 2, 3, 4 or 8.
    pub bits: u32,
    /// Input rows that share a scale and a zero point; `None` (-1 in the file) is all of a layer's.
    pub group_size: Option<usize>,
    /// Whether quantisation was symmetric. Zero points are stored either way.
    pub sym: bool,
    /// Whether rows were quantised by falling activation, so that `g_idx` is not sorted.
    pub desc_act: bool,
    /// How zero points are stored. A file that does not say is V1, the only format when it was
    /// made.
    pub format: GptqFormat,
    /// The quantised layers of a block as `self_attn.q_proj`; `None` is all seven.
    pub modules: Option<Vec<String>>,
    /// Layers left out by an expression: gptqmodel's `dynamic` with keys `-:expression`.
    pub excluded: Ignored,
}

impl Gptq {
    /// Groups of a layer with `k` input rows.
    pub fn groups(&self, k: usize) -> usize {
        self.group_size.map_or(1, |size| k.div_ceil(size))
    }

    /// Whether the layer at `path` is quantised; a list names layers within a block
    /// (`mlp.down_proj`), so that a path's block does not matter.
    pub fn covers(&self, path: &str) -> bool {
        let module = within_block(path);
        !self.excluded.contains(path)
            && self.modules.as_ref().is_none_or(|m| m.iter().any(|name| name == module))
    }

    pub(super) fn linear(&self) -> Linear {
        let format = match self.format {
            GptqFormat::V1 => gptq_dequant::Format::V1,
            GptqFormat::V2 => gptq_dequant::Format::V2,
        };
        let size = self.group_size.map_or(-1, |n| n as i64);
        let params = gptq_dequant::Params::new(format, size).with_bits(self.bits);
        Linear::Gptq(quant_gemm::Params::new::<GptqDequant>(params))
    }

    pub(super) fn parts(&self, n: usize, k: usize) -> Vec<Part> {
        let groups = self.groups(k);
        vec![
            ("qweight", Kind::Packed, vec![packed::words(k, self.bits), n]),
            ("qzeros", Kind::Packed, vec![groups, packed::words(n, self.bits)]),
            ("scales", Kind::Scales, vec![groups, n]),
            ("g_idx", Kind::GroupIndex { groups }, vec![k]),
        ]
    }

    /// What a symmetric layer stores as every zero point.
    pub fn symmetric_zero(&self) -> u32 {
        (1 << (self.bits - 1)) - u32::from(self.format == GptqFormat::V1)
    }
}

/// A module's name within its block.
fn within_block(path: &str) -> &str {
    let inner = path.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    inner.map_or(path, |(_, module)| module)
}

/// Fields of the description that do not change how stored weights are read.
const HARMLESS: &[&str] = &[
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "exllama_config",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "mse",
    "pad_token_id",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// Fields that change the numbers when they are set to anything but null, false or nothing.
const REFUSED: &[(&str, &str)] = &[
    ("activation", "quantised activations"),
    ("adapter", "an adapter on top of the weights"),
    ("is_marlin_format", "weights repacked for Marlin"),
    ("lm_head", "a quantised lm_head"),
    ("modules_to_not_convert", "layers left out by name"),
    ("rotation", "rotated weights"),
];

pub(super) fn parse(fields: &Fields<'_>) -> Result<Gptq> {
    let bits = super::bits(fields, "bits", &[2, 3, 4, 8], "GPTQ")?;
    let group_size = super::group_size(fields)?;
    let sym = fields.need("sym", fields.flag("sym")?, super::WHY)?;
    let desc_act = fields.need("desc_act", fields.flag("desc_act")?, super::WHY)?;
    let format = format(fields)?;
    check_pack_dtype(fields)?;
    let (modules, excluded) = (modules(fields)?, excluded(fields)?);
    check_rest(fields, "GPTQ", HARMLESS, REFUSED)?;
    Ok(Gptq { bits, group_size, sym, desc_act, format, modules, excluded })
}

fn format(fields: &Fields<'_>) -> Result<GptqFormat> {
    let mut found: Option<(&str, GptqFormat)> = None;
    for name in ["checkpoint_format", "format"] {
        let format = match fields.text(name)? {
            None => continue,
            Some("gptq") => GptqFormat::V1,
            Some("gptq_v2") => GptqFormat::V2,
            Some(other) => {
                return Err(fields.error(
                    name,
                    format!(
                        "is `{}`, which is not supported: assay reads gptq and gptq_v2",
                        other.escape_debug()
                    ),
                ));
            }
        };
        if let Some((first, value)) = found.filter(|(_, f)| *f != format) {
            return Err(fields.error(
                first,
                format!(
                    "says {value:?}, but `{name}` says {format:?}: the formats' zero points \
                     differ by one"
                ),
            ));
        }
        found = Some((name, format));
    }
    Ok(found.map_or(GptqFormat::V1, |(_, f)| f))
}

/// `modules_in_block_to_quantize`: an array of names, or of arrays of names.
fn modules(fields: &Fields<'_>) -> Result<Option<Vec<String>>> {
    const NAME: &str = "modules_in_block_to_quantize";
    let Some(value) = fields.value(NAME) else { return Ok(None) };
    let wrong = || {
        let what = describe(value);
        fields.error(NAME, format!("must be an array of the layers' names, but is {what}"))
    };
    let mut names = Vec::new();
    for item in value.as_array().ok_or_else(wrong)? {
        let one = std::slice::from_ref(item);
        for name in item.as_array().map_or(one, Vec::as_slice) {
            names.push(name.as_str().ok_or_else(wrong)?.to_owned());
        }
    }
    let known = |n: &&str| LINEARS.contains(n) || is_expert(n);
    let strange = || names.iter().map(String::as_str).filter(|n| !known(n));
    if strange().next().is_some() {
        return Err(fields.error(
            NAME,
            format!("names {}, but a block's layers are {}", list(strange()), LINEARS.join(", ")),
        ));
    }
    if names.is_empty() {
        return Err(fields.error(NAME, "names no layer, so that nothing would be quantised"));
    }
    Ok(Some(names))
}

/// The layers that `dynamic` leaves out. Its other keys (`+:` or none) change settings of the layers
/// that they match, which is refused.
fn excluded(fields: &Fields<'_>) -> Result<Ignored> {
    const NAME: &str = "dynamic";
    let mut excluded = Ignored::default();
    for key in fields.object(NAME)?.into_iter().flat_map(|o| o.keys()) {
        let Some(pattern) = key.strip_prefix("-:") else {
            let what = format!(
                "asks for settings of single layers (`{}`), which is not supported: only layers \
                 left out (`-:`) are",
                key.escape_debug()
            );
            return Err(fields.error(NAME, what));
        };
        excluded.add(fields, NAME, key, pattern)?;
    }
    Ok(excluded)
}

/// Whether a name is that of an expert's linear layer.
fn is_expert(name: &str) -> bool {
    let rest = name.strip_prefix("mlp.experts.").and_then(|r| r.split_once('.'));
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    rest.is_some_and(|(n, layer)| {
        number(n) && ["gate_proj", "up_proj", "down_proj"].contains(&layer)
    })
}

/// The first field in which two descriptions differ, with both values.
pub(super) fn difference(a: &Gptq, b: &Gptq) -> Option<(&'static str, String, String)> {
    let size = |g: &Gptq| g.group_size.map_or("-1".to_owned(), |s| s.to_string());
    let format = |g: &Gptq| format!("{:?}", g.format).to_lowercase();
    let excluded = |g: &Gptq| match g.excluded.shown() {
        text if text.is_empty() => "nothing".to_owned(),
        text => text,
    };
    let modules = |m: &Option<Vec<String>>| m.as_ref().map(|m| m.join(", "));
    let fields = [
        ("bits", a.bits.to_string(), b.bits.to_string()),
        ("group_size", size(a), size(b)),
        ("sym", a.sym.to_string(), b.sym.to_string()),
        ("desc_act", a.desc_act.to_string(), b.desc_act.to_string()),
        ("checkpoint_format", format(a), format(b)),
        ("dynamic", excluded(a), excluded(b)),
    ];
    if let Some(field) = fields.into_iter().find(|(_, a, b)| a != b) {
        return Some(field);
    }
    match (modules(&a.modules), modules(&b.modules)) {
        (Some(a), Some(b)) if a != b => Some(("modules_in_block_to_quantize", a, b)),
        _ => None,
    }
}
