//! What the tensors say about the config: each field that they contradict is a finding, and is replaced
//! by their value for the checks that follow.

use serde_json::{Value, json};

use super::config::Raw;
use super::files::Files;
use super::found::{Found, plural};
use super::json::Object;
use super::quant::{self, Described};
use super::shapes::Shapes;

/// A config in which what the tensors contradict is theirs.
#[derive(Debug)]
pub(super) struct Inferred {
    pub(super) raw: Raw,
    /// `config.json` with every correction.
    pub(super) fixed: Object,
    pub(super) shapes: Shapes,
    pub(super) described: Option<Described>,
}

mod fields;
mod heads;

const CONFIG: &str = "config.json";

/// An integer field, also one written as a float.
pub(super) fn int(object: &Object, name: &str) -> Option<u64> {
    let value = object.get(name)?;
    value
        .as_u64()
        .or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64))
}

pub(super) fn text<'a>(object: &'a Object, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str)
}

/// The first class of `architectures`.
pub(super) fn class(object: &Object) -> Option<&str> {
    object.get("architectures")?.as_array()?.first()?.as_str()
}

/// Compares `raw` with the tensors.
pub(super) fn infer(raw: Raw, files: &Files, out: &mut Found) -> Inferred {
    let described = raw.quantization.as_ref().map(|(file, q)| Described::read(file, q));
    let shapes = Shapes::read(files, described.as_ref().and_then(|d| d.bits));
    let mut fixed = raw.config.clone();
    if let Some((_, quantization)) = &raw.quantization {
        fixed.insert("quantization_config".into(), Value::Object(quantization.clone()));
    }
    // The end tokens are looked at apart, and must not stop the rest.
    fixed.remove("eos_token_id");
    let mut it = Infer { fixed, shapes: &shapes, files, out };
    it.architecture();
    it.heads();
    it.widths();
    it.layers();
    it.experts();
    it.tie();
    it.rope();
    it.dtype();
    it.others();
    let mut fixed = it.fixed;
    quant::repair(&mut fixed, described.as_ref(), &shapes, files, out);
    Inferred { raw, fixed, shapes, described }
}

struct Infer<'a> {
    fixed: Object,
    shapes: &'a Shapes,
    files: &'a Files,
    out: &'a mut Found,
}

impl Infer<'_> {
    fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.fixed.insert(name.into(), value.into());
    }

    fn is_qwen3(&self) -> bool {
        class(&self.fixed).is_some_and(|c| c.starts_with("Qwen3"))
    }

    /// The class, by the tensors that only one has.
    fn architecture(&mut self) {
        let s = self.shapes;
        let (truth, kind, evidence) = match (s.head_norm, s.experts, s.attention_bias) {
            (Some(n), 0, _) => (
                "Qwen3ForCausalLM",
                "qwen3",
                format!("norms of each head's q and k ({n} elements)"),
            ),
            (Some(n), e, _) => (
                "Qwen3MoeForCausalLM",
                "qwen3_moe",
                format!("norms of each head's q and k ({n} elements) and {e} experts a layer"),
            ),
            (None, 0, true) => (
                "Qwen2ForCausalLM",
                "qwen2",
                "biases of q, k or v, and no norms of q and k".to_owned(),
            ),
            _ => return,
        };
        let named = class(&self.fixed).unwrap_or("no class").to_owned();
        let model_type = text(&self.fixed, "model_type").unwrap_or(kind).to_owned();
        if named != truth {
            let what = format!(
                "`architectures` names {named}, but the files hold {evidence}: this is {truth}"
            );
            self.out.add("config.architecture", format!("{CONFIG}: architectures"), what);
        } else if model_type != kind {
            let what = format!(
                "`model_type` is {model_type}, but `architectures` names {named}, whose type is {kind}"
            );
            self.out.add("config.architecture", format!("{CONFIG}: model_type"), what);
        }
        self.set("architectures", json!([truth]));
        self.set("model_type", kind);
        if truth == "Qwen2ForCausalLM" {
            self.fixed.remove("attention_bias");
        }
    }

    /// Replaces a field by the tensors' value, which is a finding when it is there and differs, or when it
    /// is missing.
    fn replace(&mut self, finding: &str, name: &str, truth: u64, evidence: &str) {
        match int(&self.fixed, name) {
            Some(value) if value == truth => return,
            Some(value) => {
                let what = format!("is {value}, but {evidence}: it must be {truth}");
                self.out.add(finding, format!("{CONFIG}: {name}"), what);
            }
            None => {
                let what = format!("is missing; {evidence}: it is {truth}");
                self.out.add("config.field_missing", format!("{CONFIG}: {name}"), what);
            }
        }
        self.set(name, truth);
    }

    fn widths(&mut self) {
        let s = self.shapes;
        if let Some(width) = s.hidden {
            self.replace(
                "config.hidden_size",
                "hidden_size",
                width,
                &format!("the layers take {width} inputs"),
            );
        }
        if let Some([rows, _]) = s.linear("mlp.gate_proj").or_else(|| s.linear("mlp.up_proj")) {
            let given = int(&self.fixed, "intermediate_size").unwrap_or(rows);
            let dropped = rows.saturating_sub(given);
            let more = if dropped > 0 {
                format!(" (a loader that slices drops {dropped} of them in every layer)")
            } else {
                String::new()
            };
            self.replace(
                "config.intermediate_size",
                "intermediate_size",
                rows,
                &format!("gate_proj has {rows} rows{more}"),
            );
        }
        let table = ["model.embed_tokens.weight", "lm_head.weight"]
            .into_iter()
            .find_map(|n| Some((n, self.files.shape(n)?.first().copied()?)));
        if let Some((name, rows)) = table {
            self.replace(
                "config.vocab_size",
                "vocab_size",
                rows,
                &format!("{name} has {rows} rows"),
            );
        }
    }

    fn layers(&mut self) {
        let count = self.shapes.layers;
        let given = int(&self.fixed, "num_hidden_layers");
        // Layers may lie in a file that is missing or unreadable, which is said already.
        let lacking = given.is_some_and(|g| g > count) && self.out.any(&["file.", "index."]);
        if count == 0 || lacking {
            return;
        }
        if given != Some(count) {
            self.fixed.remove("layer_types");
        }
        self.replace(
            "config.layers",
            "num_hidden_layers",
            count,
            &format!("the files hold {}", plural(count as usize, "layer")),
        );
    }

    fn experts(&mut self) {
        let s = self.shapes;
        if s.experts == 0 {
            return;
        }
        let name = if self.fixed.contains_key("num_experts")
            || !self.fixed.contains_key("num_local_experts")
        {
            "num_experts"
        } else {
            "num_local_experts"
        };
        self.replace(
            "config.experts",
            name,
            s.experts,
            &format!("the files hold {} experts a layer", s.experts),
        );
        if let Some([rows, _]) = s.linear("mlp.experts.gate_proj") {
            self.replace(
                "config.experts",
                "moe_intermediate_size",
                rows,
                &format!("the experts' gate_proj has {rows} rows"),
            );
        }
    }

    fn tie(&mut self) {
        let held = |n: &str| self.files.tensors.contains_key(n) || self.files.lost.contains(n);
        let head = held("lm_head.weight") || held("lm_head.qweight");
        match self.fixed.get("tie_word_embeddings").and_then(Value::as_bool) {
            Some(false)
                if !head
                    && !self.out.any(&[
                        "file.missing",
                        "file.header",
                        "file.lfs",
                        "file.zero_head",
                        "file.odd_name",
                    ]) =>
            {
                let what = "is false, but no file holds lm_head.weight: the head is the embedding, or it was lost";
                self.out.add("config.tie", format!("{CONFIG}: tie_word_embeddings"), what);
                self.set("tie_word_embeddings", true);
            }
            Some(_) => {}
            None => {
                let what = format!(
                    "is missing; the files hold {} lm_head.weight: it is {}",
                    if head { "a" } else { "no" },
                    !head
                );
                self.out.add(
                    "config.field_missing",
                    format!("{CONFIG}: tie_word_embeddings"),
                    what,
                );
                self.set("tie_word_embeddings", !head);
            }
        }
    }
}
