//! The shapes that most layers have, which tell the config's numbers.

use std::collections::{BTreeMap, BTreeSet};

use assay_reference::Dtype;

use super::files::Files;

/// What names and shapes of the tensors say about the model.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// Outputs and inputs of each linear layer, as most layers have them; an expert's number is left out.
    linears: BTreeMap<String, [u64; 2]>,
    /// Elements of the norm of each head's q, if there is one.
    pub(super) head_norm: Option<u64>,
    /// Whether q, k or v have biases.
    pub(super) attention_bias: bool,
    /// Layers, by the highest number.
    pub(super) layers: u64,
    /// Experts, by the highest number in any layer; 0 in a dense model.
    pub(super) experts: u64,
    /// Width of the residual stream.
    pub(super) hidden: Option<u64>,
    /// The dtype that most bytes of unpacked weights have, as headers spell it.
    pub(super) dtype: Option<&'static str>,
    /// Endings of packed tensors that occur: `.qweight`.
    pub(super) packed: BTreeSet<&'static str>,
}

/// A layer's number and the rest of the name.
pub(super) fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (number, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// The name within a block, without an expert's number; and that number.
fn without_expert(rest: &str) -> (String, Option<u64>) {
    let split = rest.strip_prefix("mlp.experts.").and_then(|r| r.split_once('.'));
    match split.and_then(|(n, module)| Some((n.parse().ok()?, module))) {
        Some((number, module)) => (format!("mlp.experts.{module}"), Some(number)),
        None => (rest.to_owned(), None),
    }
}

/// Endings of the weight of a packed layer.
pub(super) const PACKED: [&str; 3] = [".qweight", ".weight_packed", ".weight_scale_inv"];

/// The most frequent of a tally; the smallest of several.
fn modal<T: Ord + Copy>(tally: &BTreeMap<T, u64>) -> Option<T> {
    let most = tally.values().max()?;
    tally.iter().find(|(_, n)| *n == most).map(|(v, _)| *v)
}

impl Shapes {
    pub(super) fn read(files: &Files, bits: Option<u64>) -> Shapes {
        let mut shapes = Shapes::default();
        let mut linears: BTreeMap<String, BTreeMap<[u64; 2], u64>> = BTreeMap::new();
        let mut norms = BTreeMap::new();
        let mut dtypes: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut layers = BTreeSet::new();
        for (name, held) in &files.tensors {
            let entry = &held.entry;
            shapes.packed.extend(PACKED.iter().find(|p| name.ends_with(**p)));
            let [begin, end] = entry.data_offsets;
            if name.ends_with(".weight")
                && let Some(dtype) = float(&entry.dtype)
            {
                let bytes = dtypes.entry(dtype).or_default();
                *bytes = bytes.saturating_add(end.saturating_sub(begin));
            }
            let Some((layer, rest)) = layer_of(name) else { continue };
            layers.insert(layer);
            shapes.attention_bias |=
                ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"]
                    .contains(&rest);
            if rest == "self_attn.q_norm.weight" && entry.shape.len() == 1 {
                *norms.entry(entry.shape[0]).or_default() += 1;
            }
            let (module, expert) = without_expert(rest);
            shapes.experts = shapes.experts.max(expert.map_or(0, |e| e.saturating_add(1)));
            let module = [".weight", ".qweight", ".weight_packed"]
                .iter()
                .find_map(|s| module.strip_suffix(s));
            let path = name.rsplit_once('.').map_or("", |(path, _)| path);
            if let Some(module) = module
                && let Some(shape) = linear(files, path, bits)
            {
                *linears.entry(module.to_owned()).or_default().entry(shape).or_default() += 1;
            }
        }
        layers.extend(files.lost.iter().filter_map(|n| layer_of(n)).map(|(l, _)| l));
        // A number far beyond the others is one odd name, and no layer.
        let count = layers.len() as u64;
        shapes.layers = layers.last().map_or(0, |l| l.saturating_add(1));
        if shapes.layers > 2 * count + 8 {
            shapes.layers = count;
        }
        if shapes.experts > files.tensors.len() as u64 {
            shapes.experts = 0;
        }
        shapes.linears = linears.into_iter().filter_map(|(m, t)| Some((m, modal(&t)?))).collect();
        shapes.head_norm = modal(&norms).filter(|n| *n > 0);
        shapes.dtype = dtypes.iter().max_by_key(|(_, bytes)| **bytes).map(|(d, _)| *d);
        let columns = |name: &str| files.shape(name).and_then(<[u64]>::last).copied();
        shapes.hidden = shapes
            .linear("self_attn.q_proj")
            .map(|[_, k]| k)
            .or_else(|| columns("model.embed_tokens.weight"))
            .or_else(|| columns("model.norm.weight"));
        shapes
    }

    /// Outputs and inputs of a linear layer of a block.
    pub(super) fn linear(&self, module: &str) -> Option<[u64; 2]> {
        self.linears.get(module).copied()
    }
}

/// A floating-point dtype of weights, FP8 apart.
fn float(dtype: &str) -> Option<&'static str> {
    ["BF16", "F16", "F32", "F64"].into_iter().find(|d| *d == dtype)
}

/// Outputs and inputs of the linear layer at `path`, stored as floats or packed.
fn linear(files: &Files, path: &str, bits: Option<u64>) -> Option<[u64; 2]> {
    let two = |part: &str| match files.shape(&format!("{path}.{part}"))? {
        &[a, b] => Some([a, b]),
        _ => None,
    };
    // 32-bit words to values.
    let values = |words: u64| words.checked_mul(32).map(|b| b / bits.unwrap_or(4).clamp(1, 32));
    if let Some([words, columns]) = two("qweight") {
        let outputs = two("scales").map_or(columns, |s| s[1]);
        if outputs != columns {
            // AWQ packs along the outputs.
            return Some([outputs, words]);
        }
        let inputs = files.shape(&format!("{path}.g_idx")).and_then(<[u64]>::first).copied();
        return Some([outputs, inputs.or_else(|| values(words))?]);
    }
    if let Some([outputs, words]) = two("weight_packed") {
        return Some([outputs, values(words)?]);
    }
    let float = files
        .dtype(&format!("{path}.weight"))
        .is_some_and(|d| d.format().is_some() || d == Dtype::F8E4m3);
    two("weight").filter(|_| float)
}
