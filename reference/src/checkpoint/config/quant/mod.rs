//! How the weights are quantised: `quantization_config` in config.json, or `quantize_config.json`.
//!
//! Four methods are read, each by a file of its own. Every field is known to change nothing, read, or
//! refused by name: a description that is half understood gives plausible nonsense.

mod awq;
mod compressed;
mod exclude;
mod fp8;
mod gptq;

use std::fmt;
use std::path::Path;

use serde_json::Value;

pub use self::awq::Awq;
pub use self::compressed::{CompressedTensors, Ignored};
pub use self::exclude::Exclusions;
pub use self::fp8::Fp8;
pub use self::gptq::{Gptq, GptqFormat};
use super::fields::Fields;
use crate::checkpoint::expected::Kind;
use crate::checkpoint::json::Object;
use crate::checkpoint::list;
use crate::error::{Error, Result};
use crate::ops::linear::Linear;
use crate::ops::packed;

/// A quantisation, the same for every quantised layer of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantization {
    /// GPTQ, packed along the inputs.
    Gptq(Gptq),
    /// AWQ in the GEMM layout, packed along the outputs.
    Awq(Awq),
    /// compressed-tensors' packed integers.
    CompressedTensors(CompressedTensors),
    /// FP8 with a scale for each block.
    Fp8(Fp8),
}

/// A tensor of a quantised layer: suffix of its name, kind, shape.
pub type Part = (&'static str, Kind, Vec<usize>);

impl Quantization {
    /// Whether the linear layer at `path` is quantised. The path is the module's name in the model
    /// (`model.layers.3.mlp.down_proj`, `model.layers.3.mlp.experts.17.up_proj`), or within a block
    /// (`mlp.down_proj`), which no rule for a single layer matches.
    pub fn covers(&self, path: &str) -> bool {
        match self {
            Quantization::Gptq(q) => q.covers(path),
            Quantization::Awq(q) => !q.excluded.contains(path),
            Quantization::CompressedTensors(q) => !q.ignored.contains(path),
            Quantization::Fp8(q) => !q.excluded.contains(path),
        }
    }

    /// The linear layer as an op evaluates it.
    pub fn linear(&self) -> Linear {
        match self {
            Quantization::Gptq(q) => q.linear(),
            Quantization::Awq(q) => q.linear(),
            Quantization::CompressedTensors(q) => q.linear(),
            Quantization::Fp8(q) => q.linear(),
        }
    }

    /// The tensors that a quantised layer of `n` outputs and `k` inputs is stored as.
    pub fn parts(&self, [n, k]: [usize; 2]) -> Vec<Part> {
        match self {
            Quantization::Gptq(q) => q.parts(n, k),
            Quantization::Awq(q) => q.parts(n, k),
            Quantization::CompressedTensors(q) => q.parts(n, k),
            Quantization::Fp8(q) => q.parts(n, k),
        }
    }

    /// Why a layer of `n` outputs and `k` inputs cannot be stored so, if it cannot.
    pub fn cannot_hold(&self, [n, k]: [usize; 2]) -> Option<String> {
        let multiple = |what: &str, of: usize, ok: bool| {
            (!ok).then(|| {
                format!("{n} x {k}, but {self} {what}, so that {of} must divide what it packs")
            })
        };
        match self {
            Quantization::Gptq(q) => {
                let run = packed::per_run(q.bits);
                let whole = packed::fills_words(n, q.bits) && packed::fills_words(k, q.bits);
                let what = match q.bits {
                    4 => "packs eight 4-bit values into a word".to_owned(),
                    3 => "packs 32 3-bit values into three words".to_owned(),
                    bits => format!("packs {run} {bits}-bit values into a word"),
                };
                (!whole).then(|| {
                    let bits = q.bits;
                    format!(
                        "{n} x {k}, but {self} {what} (`bits` is {bits}), so both must be multiples \
                         of {run}"
                    )
                })
            }
            Quantization::Awq(q) => {
                let groups = q.group_size.is_none_or(|size| k.is_multiple_of(size));
                multiple("packs the outputs eight to a word", 8, n.is_multiple_of(8)).or_else(
                    || {
                        let size = q.group_size.unwrap_or(k);
                        multiple("has groups of one size", size, groups)
                    },
                )
            }
            Quantization::CompressedTensors(q) => {
                let size = q.group_size.unwrap_or(k);
                multiple("has groups of one size", size, k.is_multiple_of(size))
            }
            Quantization::Fp8(_) => None,
        }
    }

    /// The description's group size as its file spells it, where it has one.
    pub(in crate::checkpoint) fn group_size(&self) -> Option<String> {
        let size = match self {
            Quantization::Gptq(q) => q.group_size,
            Quantization::Awq(q) => q.group_size,
            Quantization::CompressedTensors(q) => q.group_size,
            Quantization::Fp8(_) => return None,
        };
        Some(size.map_or("-1".to_owned(), |s| s.to_string()))
    }
}

impl fmt::Display for Quantization {
    /// The method's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantization::Gptq(_) => "GPTQ",
            Quantization::Awq(_) => "AWQ",
            Quantization::CompressedTensors(_) => "compressed-tensors",
            Quantization::Fp8(_) => "FP8",
        })
    }
}

const METHODS: &str = "assay reads gptq, awq, compressed-tensors and fp8";

/// The quantisation of a checkpoint, from the one or two places that describe it.
pub(super) fn read(
    config: &Fields<'_>,
    beside: Option<(&Path, &Object)>,
) -> Result<Option<Quantization>> {
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
        (Some(inner), Some((path, outer))) => agree(inner, outer, path).map(Some),
        (inner, outer) => Ok(inner.or(outer.map(|(_, q)| q))),
    }
}

fn parse(fields: &Fields<'_>, in_config: bool) -> Result<Quantization> {
    Ok(match method(fields, in_config)? {
        "gptq" => Quantization::Gptq(gptq::parse(fields)?),
        "awq" => Quantization::Awq(awq::parse(fields)?),
        "compressed-tensors" => Quantization::CompressedTensors(compressed::parse(fields)?),
        _ => Quantization::Fp8(fp8::parse(fields)?),
    })
}

/// `quant_method`, or `method` as GPTQModel also writes it. AutoGPTQ's own `quantize_config.json`
/// holds neither, and is GPTQ by its name.
fn method<'a>(fields: &Fields<'a>, in_config: bool) -> Result<&'a str> {
    let given =
        [("quant_method", fields.text("quant_method")?), ("method", fields.text("method")?)];
    let mut found: Option<(&str, &'a str)> = None;
    for (name, method) in given {
        let Some(method) = method else { continue };
        if !["gptq", "awq", "compressed-tensors", "fp8"].contains(&method) {
            let method = method.escape_debug();
            return Err(
                fields.error(name, format!("is `{method}`, which is not supported: {METHODS}"))
            );
        }
        if let Some((first, other)) = found.filter(|(_, m)| *m != method) {
            let what =
                format!("says `{other}`, but `{name}` says `{method}`: one of them is wrong");
            return Err(fields.error(first, what));
        }
        found = Some((name, method));
    }
    match found {
        Some((_, method)) => Ok(method),
        None if in_config => fields.need("quant_method", None, METHODS),
        None => Ok("gptq"),
    }
}

/// Checks that the two descriptions say the same, and gives what they say.
fn agree(inner: Quantization, outer: Quantization, path: &Path) -> Result<Quantization> {
    let fail = |name: &str, a: String, b: String| {
        Err(Error::file(
            path,
            format!(
                "`{name}` is {b}, but `quantization_config.{name}` in config.json is {a}: \
                 engines differ in which file they read"
            ),
        ))
    };
    match (inner, outer) {
        (Quantization::Gptq(a), Quantization::Gptq(b)) => {
            if let Some((name, a, b)) = gptq::difference(&a, &b) {
                return fail(name, a, b);
            }
            let modules = a.modules.or(b.modules);
            Ok(Quantization::Gptq(Gptq { modules, ..a }))
        }
        (a, b) if a.to_string() != b.to_string() => {
            let name = |q: &Quantization| format!("that of {q}");
            fail("quant_method", name(&a), name(&b))
        }
        (a, b) if a == b => Ok(a),
        (a, _) => Err(Error::file(
            path,
            format!(
                "describes {a} otherwise than `quantization_config` in config.json does: engines \
                 differ in which file they read"
            ),
        )),
    }
}

/// A number of bits that must be there.
fn bits(fields: &Fields<'_>, name: &'static str, allowed: &[i64], what: &str) -> Result<u32> {
    let bits = fields.integer(name, 1..=64)?;
    let bits = fields.need(name, bits, WHY)?;
    if !allowed.contains(&bits) {
        let list: Vec<String> = allowed.iter().map(i64::to_string).collect();
        let what = format!("is {bits}: {what} is supported at {} bits", list.join(", "));
        return Err(fields.error(name, what));
    }
    Ok(bits as u32)
}

/// `group_size`: `None` for -1, one group.
fn group_size(fields: &Fields<'_>) -> Result<Option<usize>> {
    let size = fields.integer("group_size", -1..=1 << 20)?;
    match fields.need("group_size", size, WHY)? {
        -1 => Ok(None),
        0 => Err(fields.error("group_size", "is 0; expected -1 (one group) or a positive size")),
        size => Ok(Some(size as usize)), // 1..=2^20
    }
}

const WHY: &str = "assay does not guess it: take it from the original quantisation config";

/// Refuses fields that were not read: those known to change the numbers unless they are off, and
/// unknown ones.
fn check_rest(
    fields: &Fields<'_>,
    what: &str,
    harmless: &[&str],
    refused: &[(&str, &str)],
) -> Result<()> {
    let mut unknown = Vec::new();
    for (name, value) in fields.unseen() {
        let off = match value {
            Value::Bool(on) => !on,
            Value::Array(items) => items.is_empty(),
            Value::Object(inner) => inner.is_empty(),
            _ => false,
        };
        match refused.iter().find(|(refused, _)| *refused == name) {
            Some(_) if off => {}
            Some((_, what)) => {
                return Err(fields.error(name, format!("asks for {what}, which is not supported")));
            }
            None if harmless.contains(&name) => {}
            None => unknown.push(name),
        }
    }
    match unknown.first() {
        None => Ok(()),
        Some(name) => Err(fields.error(
            name,
            format!(
                "is not a field of {what} that assay knows (unknown are {}), so it cannot tell \
                 whether it changes the numbers; remove it from a copy of the file if it does \
                 not",
                list(unknown.iter().copied())
            ),
        )),
    }
}

/// `pack_dtype`: only 32-bit words are read.
fn check_pack_dtype(fields: &Fields<'_>) -> Result<()> {
    match fields.text("pack_dtype")?.filter(|d| *d != "int32") {
        None => Ok(()),
        Some(dtype) => {
            let dtype = dtype.escape_debug();
            let what = format!("is `{dtype}`: only int32 words are supported");
            Err(fields.error("pack_dtype", what))
        }
    }
}
