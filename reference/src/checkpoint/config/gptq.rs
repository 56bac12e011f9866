//! How the weights are quantised: `quantization_config` in config.json, or `quantize_config.json`.

use std::path::Path;

use serde_json::Value;

use super::fields::Fields;
use crate::checkpoint::json::{Object, describe};
use crate::checkpoint::list;
use crate::error::{Error, Result};

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
    /// Bits of a weight; 4.
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
}

impl Gptq {
    /// Groups of a layer with `k` input rows.
    pub fn groups(&self, k: usize) -> usize {
        self.group_size.map_or(1, |size| k.div_ceil(size))
    }

    /// Whether the layer `module` of a block (as `mlp.down_proj`) is quantised.
    pub fn covers(&self, module: &str) -> bool {
        self.modules.as_ref().is_none_or(|m| m.iter().any(|name| name == module))
    }
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
    ("dynamic", "settings of single layers"),
    ("is_marlin_format", "weights repacked for Marlin"),
    ("lm_head", "a quantised lm_head"),
    ("modules_to_not_convert", "layers left out by name"),
    ("rotation", "rotated weights"),
];

/// The quantisation of a checkpoint, from the one or two places that describe it.
pub(super) fn read(config: &Fields<'_>, beside: Option<(&Path, &Object)>) -> Result<Option<Gptq>> {
    let inner = match config.object("quantization_config")? {
        Some(object) => {
            let fields = Fields::new(config.path(), "quantization_config.", object);
            Some(parse(&fields, true)?)
        }
        None => None,
    };
    let outer = match beside {
        Some((path, object)) => Some((path, parse(&Fields::new(path, "", object), false)?)),
        None => None,
    };
    match (inner, outer) {
        (Some(inner), Some((path, outer))) => {
            agree(&inner, &outer, path)?;
            let modules = inner.modules.or(outer.modules);
            Ok(Some(Gptq { modules, ..inner }))
        }
        (inner, outer) => Ok(inner.or(outer.map(|(_, g)| g))),
    }
}

fn parse(fields: &Fields<'_>, in_config: bool) -> Result<Gptq> {
    check_method(fields, in_config)?;
    let why = "assay does not guess it: take it from the original quantisation config";
    let bits = fields.integer("bits", 1..=16)?;
    let bits = fields.need("bits", bits, why)?;
    if bits != 4 {
        return Err(fields.error("bits", format!("is {bits}: only 4-bit GPTQ is supported so far")));
    }
    let size = fields.integer("group_size", -1..=1 << 20)?;
    let group_size = match fields.need("group_size", size, why)? {
        -1 => None,
        0 => {
            return Err(
                fields.error("group_size", "is 0; expected -1 (one group) or a positive size")
            );
        }
        size => Some(size as usize), // 1..=2^20
    };
    let sym = fields.need("sym", fields.flag("sym")?, why)?;
    let desc_act = fields.need("desc_act", fields.flag("desc_act")?, why)?;
    let format = format(fields)?;
    if let Some(dtype) = fields.text("pack_dtype")?.filter(|d| *d != "int32") {
        let dtype = dtype.escape_debug();
        return Err(
            fields.error("pack_dtype", format!("is `{dtype}`: only int32 words are supported"))
        );
    }
    let modules = modules(fields)?;
    check_rest(fields)?;
    Ok(Gptq { bits: bits as u32, group_size, sym, desc_act, format, modules })
}

/// `quant_method`, or `method` as GPTQModel also writes it. AutoGPTQ's own `quantize_config.json`
/// holds neither, and is GPTQ by its name.
fn check_method(fields: &Fields<'_>, in_config: bool) -> Result<()> {
    let given =
        [("quant_method", fields.text("quant_method")?), ("method", fields.text("method")?)];
    for (name, method) in given {
        if let Some(method) = method.filter(|m| *m != "gptq") {
            return Err(fields.error(
                name,
                format!("is `{}`, which is not supported: assay reads gptq", method.escape_debug()),
            ));
        }
    }
    if in_config && given.iter().all(|(_, m)| m.is_none()) {
        return fields.need(
            "quant_method",
            None,
            "expected `gptq`, the only method that assay reads",
        );
    }
    Ok(())
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
    let known = |n: &&str| super::LINEARS.contains(n);
    let strange = || names.iter().map(String::as_str).filter(|n| !known(n));
    if strange().next().is_some() {
        return Err(fields.error(
            NAME,
            format!(
                "names {}, but a block's layers are {}",
                list(strange()),
                super::LINEARS.join(", ")
            ),
        ));
    }
    if names.is_empty() {
        return Err(fields.error(NAME, "names no layer, so that nothing would be quantised"));
    }
    Ok(Some(names))
}

fn check_rest(fields: &Fields<'_>) -> Result<()> {
    let mut unknown = Vec::new();
    for (name, value) in fields.unseen() {
        let off = match value {
            Value::Bool(on) => !on,
            Value::Array(items) => items.is_empty(),
            Value::Object(inner) => inner.is_empty(),
            _ => false,
        };
        match REFUSED.iter().find(|(refused, _)| *refused == name) {
            Some(_) if off => {}
            Some((_, what)) => {
                return Err(fields.error(name, format!("asks for {what}, which is not supported")));
            }
            None if HARMLESS.contains(&name) => {}
            None => unknown.push(name),
        }
    }
    match unknown.first() {
        None => Ok(()),
        Some(name) => Err(fields.error(
            name,
            format!(
                "is not a field of GPTQ that assay knows (unknown are {}), so it cannot tell \
                 whether it changes the numbers; remove it from a copy of the file if it does \
                 not",
                list(unknown.iter().copied())
            ),
        )),
    }
}

/// Checks that the two descriptions say the same.
fn agree(inner: &Gptq, outer: &Gptq, path: &Path) -> Result<()> {
    let fail = |name: &str, a: String, b: String| {
        Err(Error::file(
            path,
            format!(
                "`{name}` is {b}, but `quantization_config.{name}` in config.json is {a}: \
                 engines differ in which file they read"
            ),
        ))
    };
    let size = |g: &Gptq| g.group_size.map_or("-1".to_owned(), |s| s.to_string());
    if inner.group_size != outer.group_size {
        return fail("group_size", size(inner), size(outer));
    }
    if inner.sym != outer.sym {
        return fail("sym", inner.sym.to_string(), outer.sym.to_string());
    }
    if inner.desc_act != outer.desc_act {
        return fail("desc_act", inner.desc_act.to_string(), outer.desc_act.to_string());
    }
    if inner.format != outer.format {
        let name = |g: &Gptq| format!("{:?}", g.format).to_lowercase();
        return fail("checkpoint_format", name(inner), name(outer));
    }
    if let (Some(a), Some(b)) = (&inner.modules, &outer.modules)
        && a != b
    {
        return fail("modules_in_block_to_quantize", a.join(", "), b.join(", "));
    }
    Ok(())
}
