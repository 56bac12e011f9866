//! The quantisation's description against shapes and data of the packed tensors.

use std::collections::BTreeMap;

use assay_reference::Tensor;
use serde_json::{Value, json};

use super::files::Files;
use super::found::{Found, list, plural};
use super::infer::Inferred;
use super::json::Object;

mod packed;
mod zeros;

pub(super) use packed::repair;

/// The description as its file has it.
#[derive(Clone, Debug)]
pub(super) struct Described {
    /// The file.
    pub(super) file: &'static str,
    pub(super) method: Option<String>,
    pub(super) bits: Option<u64>,
    /// -1 is one group.
    pub(super) group_size: Option<i64>,
    sym: Option<bool>,
    zero_point: Option<bool>,
    desc_act: Option<bool>,
    /// `gptq` is v1.
    format: Option<String>,
}

impl Described {
    pub(super) fn read(file: &'static str, object: &Object) -> Described {
        let text = |name: &str| object.get(name).and_then(Value::as_str).map(str::to_owned);
        let flag = |name: &str| object.get(name).and_then(Value::as_bool);
        // compressed-tensors keeps them in its first group.
        let groups = object.get("config_groups").and_then(Value::as_object);
        let weights = groups.and_then(|g| g.values().next()).and_then(|g| g.get("weights"));
        let number = |name: &str| {
            let inner = weights.and_then(|w| w.get(if name == "bits" { "num_bits" } else { name }));
            object.get(name).or(inner).and_then(Value::as_i64)
        };
        Described {
            file,
            method: text("quant_method").or_else(|| text("method")),
            bits: number("bits")
                .or_else(|| number("w_bit"))
                .and_then(|b| u64::try_from(b).ok())
                .filter(|b| (1..=32).contains(b)),
            group_size: number("group_size").or_else(|| number("q_group_size")),
            sym: flag("sym"),
            zero_point: flag("zero_point"),
            desc_act: flag("desc_act"),
            format: text("checkpoint_format").or_else(|| text("format")),
        }
    }

    fn place(&self, field: &str) -> String {
        format!("{}: {field}", self.file)
    }
}

/// The largest group index that is read: inputs of a layer, 4 bytes each.
const MOST_INDEX: u64 = 4 << 20;

/// Holds description and data against each other; `full` reads every zero point.
pub(super) fn check(inferred: &Inferred, files: &Files, full: bool, out: &mut Found) {
    let Some(described) = &inferred.described else { return };
    let gptq = described.method.as_deref() == Some("gptq");
    let awq = described.method.as_deref() == Some("awq");
    if inferred.shapes.packed.is_empty() || !(gptq || awq) {
        return;
    }
    // What the shapes say wins over the description.
    let of_fixed =
        |name: &str| inferred.fixed.get("quantization_config").and_then(|q| q.get(name)).cloned();
    let bits = of_fixed("bits").and_then(|b| b.as_u64()).or(described.bits);
    if let Some(bits) = bits.filter(|b| [2, 3, 4, 8].contains(b)) {
        zeros::check(described, bits as u32, gptq, files, full, out);
    }
    if gptq {
        group_indices(described, files, out);
    }
}

/// Layers with a part of this ending.
fn layers<'a>(files: &'a Files, part: &'static str) -> impl Iterator<Item = &'a str> {
    files.tensors.keys().filter_map(move |n| n.strip_suffix(part))
}

/// A group that has not as many rows as it should: any order of the rows keeps their number.
fn odd_group(index: &Tensor, groups: u64, size: u64) -> Option<String> {
    let k = index.len() as u64;
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for i in 0..index.len() {
        *counts.entry(index.get_i64(i) as u64).or_default() += 1;
    }
    // The last has the rest. Groups beyond all rows have none.
    (0..groups.min(k + 1)).find_map(|g| {
        let expected = size.min(k.saturating_sub(g.saturating_mul(size)));
        let found = counts.get(&g).copied().unwrap_or(0);
        (found != expected).then(|| {
            format!("group {g} has {found} of {k} input rows, where {expected} belong to it")
        })
    })
}

/// Group indices: within range, as many rows in each group as it has, and in order where the description says so.
fn group_indices(described: &Described, files: &Files, out: &mut Found) {
    let (mut unsorted, mut beyond) = (Vec::new(), Vec::new());
    let mut odd: Vec<(&str, String)> = Vec::new();
    let (mut detail, mut seen) = (String::new(), 0);
    for path in layers(files, ".g_idx") {
        let name = format!("{path}.g_idx");
        let Some(index) = files.tensor(&name, MOST_INDEX) else { continue };
        let Some(&[groups, _]) = files.shape(&format!("{path}.scales")) else { continue };
        seen += 1;
        let k = index.len() as u64;
        // The described size where it makes as many groups as there are: the last may have fewer rows.
        let described = described.group_size.and_then(|s| u64::try_from(s).ok());
        let size = described.filter(|s| *s > 0 && k.div_ceil(*s) == groups);
        let size = size.unwrap_or(k.div_ceil(groups.max(1))).max(1);
        let mut sorted = true;
        for i in 0..index.len() {
            let g = index.get_i64(i);
            if g < 0 || g as u64 >= groups {
                if beyond.is_empty() {
                    detail =
                        format!("input row {i} has group {g}, and the scales have {groups} groups");
                }
                beyond.push(path);
                break;
            }
            sorted &= g as u64 == i as u64 / size;
        }
        if beyond.last() == Some(&path) {
            continue;
        }
        match odd_group(&index, groups, size) {
            // Nor is it in any order that could be said.
            Some(what) => odd.push((path, what)),
            None if !sorted => unsorted.push(path),
            None => {}
        }
    }
    if let Some(first) = beyond.first() {
        let what = format!(
            "{detail}; in {}: {}",
            plural(beyond.len(), "layer"),
            list(beyond.iter().copied())
        );
        out.add("quant.g_idx_range", files.place(&format!("{first}.g_idx")), what);
    }
    if let Some((first, what)) = odd.first() {
        let layers = list(odd.iter().map(|o| o.0));
        let what = format!("{what}; in {}: {layers}", plural(odd.len(), "layer"));
        out.add("quant.g_idx_groups", files.place(&format!("{first}.g_idx")), what);
    }
    if !unsorted.is_empty() && described.desc_act == Some(false) {
        let what = format!(
            "is false, but g_idx is not in order in {} of {seen} layers: {}",
            unsorted.len(),
            list(unsorted.iter().copied())
        );
        out.add("quant.g_idx_order", described.place("desc_act"), what);
    }
}

/// The description that the shapes of the packed tensors imply, for one that is missing.
pub(super) fn guessed(method: &str, bits: u64, group_size: i64) -> Object {
    let value = match method {
        "awq" => {
            json!({"quant_method": "awq", "bits": bits, "group_size": group_size, "zero_point": true, "version": "gemm"})
        }
        _ => {
            json!({"quant_method": "gptq", "bits": bits, "group_size": group_size, "sym": false, "desc_act": true})
        }
    };
    value.as_object().cloned().unwrap_or_default()
}
