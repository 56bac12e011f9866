//! What the shapes of packed tensors say about method, bits and group size.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Described, guessed, layers};
use crate::audit::files::Files;
use crate::audit::found::{Found, plural};
use crate::audit::json::Object;
use crate::audit::shapes::Shapes;

/// What one layer's shapes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Layer {
    method: &'static str,
    bits: Option<u64>,
    inputs: u64,
    groups: u64,
}

/// Reads the shapes of a GPTQ or AWQ layer.
fn layer(files: &Files, path: &str) -> Option<Layer> {
    let two = |part: &str| match files.shape(&format!("{path}.{part}"))? {
        &[a, b] => Some([a, b]),
        _ => None,
    };
    let ([rows, columns], [groups, outputs]) = (two("qweight")?, two("scales")?);
    let width = |words: u64, values: u64| {
        let total = words.checked_mul(32)?;
        (values > 0 && total.is_multiple_of(values)).then(|| total / values)
    };
    if columns == outputs {
        // Packed along the inputs, which g_idx counts; without it the zero points tell the width.
        let index = files.shape(&format!("{path}.g_idx")).and_then(<[u64]>::first).copied();
        let bits = match index {
            Some(inputs) => width(rows, inputs),
            None => two("qzeros").and_then(|[_, words]| width(words, outputs)),
        };
        let inputs = index.or_else(|| Some(rows.checked_mul(32)? / bits?))?;
        return Some(Layer { method: "gptq", bits, inputs, groups });
    }
    Some(Layer { method: "awq", bits: width(columns, outputs), inputs: rows, groups })
}

/// The value that most layers have, and how many.
fn modal<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<(T, usize)> {
    let mut tally = BTreeMap::new();
    for value in values {
        *tally.entry(value).or_insert(0) += 1;
    }
    tally.into_iter().max_by_key(|(_, n)| *n)
}

/// Holds the description in `fixed` against the shapes, and replaces what they contradict.
pub(in crate::audit) fn repair(
    fixed: &mut Object,
    described: Option<&Described>,
    shapes: &Shapes,
    files: &Files,
    out: &mut Found,
) {
    let what_packed = || shapes.packed.iter().copied().collect::<Vec<_>>().join(", ");
    let Some(described) = described else {
        if shapes.packed.is_empty() {
            return;
        }
        let what = format!(
            "has no quantization_config, and there is no quantize_config.json, but the files hold packed weights ({})",
            what_packed()
        );
        out.add("quant.undescribed", "config.json: quantization_config", what);
        if let Some(guess) = guess(files) {
            fixed.insert("quantization_config".into(), Value::Object(guess));
        }
        return;
    };
    let method = described.method.as_deref().unwrap_or("no method");
    if shapes.packed.is_empty() {
        let lacking =
            out.any(&["file.missing", "file.header", "file.lfs", "file.odd", "file.zero_head"]);
        if !lacking {
            let what = format!("describes {method}, but no tensor in the files is packed");
            out.add("quant.not_packed", described.place("quantization_config"), what);
        }
        fixed.remove("quantization_config");
        return;
    }
    let own = match method {
        "gptq" | "awq" => ".qweight",
        "compressed-tensors" => ".weight_packed",
        "fp8" => ".weight_scale_inv",
        _ => return,
    };
    if !shapes.packed.contains(own) {
        let what =
            format!("is {method}, whose layers have {own}, but the files hold {}", what_packed());
        out.add("quant.method", described.place("quant_method"), what);
        fixed.remove("quantization_config");
        if let Some(guess) = guess(files) {
            fixed.insert("quantization_config".into(), Value::Object(guess));
        }
        return;
    }
    if own == ".qweight" {
        against(fixed, described, method, files, out);
    }
}

fn guess(files: &Files) -> Option<Object> {
    let all: Vec<Layer> = layers(files, ".qweight").filter_map(|p| layer(files, p)).collect();
    let (method, _) = modal(all.iter().map(|l| l.method))?;
    let (bits, _) = modal(all.iter().filter_map(|l| l.bits))?;
    let (size, _) = modal(all.iter().map(size_of))?;
    Some(guessed(method, bits, size))
}

/// The group size that a layer's scales imply; -1 is one group.
fn size_of(l: &Layer) -> i64 {
    match l.groups {
        0 | 1 => -1,
        n => i64::try_from(l.inputs.div_ceil(n)).unwrap_or(-1),
    }
}

fn against(
    fixed: &mut Object,
    described: &Described,
    method: &str,
    files: &Files,
    out: &mut Found,
) {
    let all: Vec<Layer> = layers(files, ".qweight").filter_map(|p| layer(files, p)).collect();
    let Some((truth, count)) = modal(all.iter().map(|l| l.method)) else { return };
    if truth != method {
        let how = if truth == "awq" {
            "along the outputs, as AWQ's"
        } else {
            "along the inputs, as GPTQ's"
        };
        let what = format!("is {method}, but {} of {} layers are packed {how}", count, all.len());
        out.add("quant.method", described.place("quant_method"), what);
        if let Some(guess) = guess(files) {
            fixed.insert("quantization_config".into(), Value::Object(guess));
        }
        return;
    }
    let mut set = |name: &str, value: Value| {
        if let Some(q) = fixed.get_mut("quantization_config").and_then(Value::as_object_mut) {
            q.insert(name.into(), value);
        }
    };
    if let Some((bits, n)) = modal(all.iter().filter_map(|l| l.bits))
        && described.bits.is_some_and(|b| b != bits)
    {
        let given = described.bits.unwrap_or(0);
        let what = format!(
            "is {given}, but qweight's words hold {bits}-bit values in {n} of {}",
            plural(all.len(), "layer")
        );
        out.add("quant.bits", described.place("bits"), what);
        set("bits", json!(bits));
    }
    let Some(given) = described.group_size else { return };
    let groups = |l: &Layer| match u64::try_from(given) {
        Ok(size) if size > 0 => l.inputs.div_ceil(size),
        _ => 1,
    };
    let wrong: Vec<&Layer> = all.iter().filter(|l| groups(l) != l.groups).collect();
    if wrong.len() * 2 > all.len()
        && let Some((size, _)) = modal(wrong.iter().map(|l| size_of(l)))
    {
        let l = wrong[0];
        let what = format!(
            "is {given}, but the scales have {} for {} input rows: groups of {size}; so in {} of {}",
            plural(l.groups as usize, "group"),
            l.inputs,
            wrong.len(),
            plural(all.len(), "layer")
        );
        out.add("quant.group_size", described.place("group_size"), what);
        set("group_size", json!(size));
    }
}
