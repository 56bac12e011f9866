//! config.json, generation_config.json and the quantisation's description, read leniently.

use std::path::Path;

use assay_reference::checkpoint::Config;
use serde_json::Value;

use super::found::{Blind, Found, list};
use super::infer::Inferred;
use super::json::{self, Doc, Object};

/// The JSON files that describe a checkpoint.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) config: Object,
    pub(super) generation: Option<Object>,
    /// The quantisation's description, and the file that has it.
    pub(super) quantization: Option<(&'static str, Object)>,
}

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const QUANTIZE: &str = "quantize_config.json";

/// Reads the files in `dir`; `None` when config.json cannot be used.
pub(super) fn read(dir: &Path, out: &mut Found) -> Option<Raw> {
    let generation = part(dir, GENERATION, "generation_config.damaged", out);
    let beside = part(dir, QUANTIZE, "config.damaged", out);
    if !dir.join(CONFIG).exists() {
        out.add("config.missing", CONFIG, "is not in the folder");
        return None;
    }
    let config = part(dir, CONFIG, "config.damaged", out)?;
    let inner = config.get("quantization_config").and_then(Value::as_object).cloned();
    let quantization = match (inner, beside) {
        (Some(inner), Some(beside)) => {
            differences(&inner, &beside, out);
            Some((CONFIG, inner))
        }
        (Some(inner), None) => Some((CONFIG, inner)),
        (None, Some(mut beside)) => {
            // AutoGPTQ's own file names no method: it is GPTQ by its name.
            let method = beside.get("method").cloned().unwrap_or_else(|| "gptq".into());
            beside.entry("quant_method").or_insert(method);
            Some((QUANTIZE, beside))
        }
        (None, None) => None,
    };
    Some(Raw { config, generation, quantization })
}

/// One file; what is wrong with it is said.
fn part(dir: &Path, name: &'static str, damaged: &str, out: &mut Found) -> Option<Object> {
    match json::read(&dir.join(name)) {
        Doc::Object(object, twice) => {
            if !twice.is_empty() {
                let twice = list(twice.iter().map(String::as_str));
                out.add(
                    "config.duplicate_key",
                    name,
                    format!("{twice} occurs twice in one object"),
                );
            }
            Some(object)
        }
        Doc::Absent => None,
        Doc::Damaged(why) => {
            out.add(damaged, name, why);
            None
        }
    }
}

/// The two descriptions of a quantisation.
fn differences(inner: &Object, beside: &Object, out: &mut Found) {
    let known =
        ["bits", "group_size", "sym", "desc_act", "checkpoint_format", "zero_point", "format"];
    let differ: Vec<String> = known
        .iter()
        .filter_map(|k| {
            let (a, b) = (inner.get(*k)?, beside.get(*k)?);
            (a != b).then(|| format!("{k} is {a} in {CONFIG} and {b} in {QUANTIZE}"))
        })
        .collect();
    if !differ.is_empty() {
        out.add("quant.descriptions_differ", QUANTIZE, differ.join("; "));
    }
}

/// The fields that decide which tensors there are and what the forward computes.
const READ: &[&str] = &[
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "attention_bias",
    "dtype",
    "torch_dtype",
    "quantization_config",
    "num_experts",
    "num_experts_per_tok",
    "norm_topk_prob",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
];

/// The config that tensors and files together describe, as the reference reads it: every value that the
/// tensors contradict is theirs. `None` when even that is not understood, which is said.
pub(super) fn understand(inferred: &Inferred, out: &mut Found) -> Option<Config> {
    let origin = Path::new(CONFIG);
    let parse = |object: &Object| {
        Config::parse(&Value::Object(object.clone()).to_string(), origin).map_err(|e| e.to_string())
    };
    let why = match parse(&inferred.fixed) {
        Ok(config) => return Some(config),
        Err(why) => why,
    };
    let said = why.strip_prefix("config.json: ").unwrap_or(&why);
    let quant = said.contains("quantization_config");
    // What assay cannot run need not be wrong.
    let unsupported = [
        "does not know",
        "that assay knows",
        "assay does not run",
        "is not supported",
        "supported are",
    ];
    if unsupported.iter().any(|u| said.contains(u)) {
        out.note(format!("assay run and assay diff refuse this checkpoint: {why}"));
    } else {
        let name = if quant { "quant.refused" } else { "config.refused" };
        out.add(name, CONFIG, said);
    }
    // Without the fields that only the forward needs; then without the quantisation.
    let mut less = inferred.fixed.clone();
    less.retain(|name, _| READ.contains(&name.as_str()));
    if let Ok(config) = parse(&less) {
        return Some(config);
    }
    less.remove("quantization_config")?;
    let config = parse(&less).ok()?;
    out.blind(
        Blind::Quantisation,
        "packed tensors against their description: it is not understood",
    );
    Some(config)
}
