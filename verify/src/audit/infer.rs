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

    /// Heads, key and value heads, and the elements of a head.
    fn heads(&mut self) {
        let (Some(q), Some(k)) =
            (self.shapes.linear("self_attn.q_proj"), self.shapes.linear("self_attn.k_proj"))
        else {
            return;
        };
        let field = |name: &str| int(&self.fixed, name).filter(|n| *n > 0);
        let (hidden, heads, kv) =
            (field("hidden_size"), field("num_attention_heads"), field("num_key_value_heads"));
        let explicit = field("head_dim");
        let quotient = hidden.zip(heads).map(|(h, n)| h / n);
        let assumed = explicit.or(quotient);
        let over =
            |rows: u64, n: Option<u64>| n.filter(|n| rows.is_multiple_of(*n)).map(|n| rows / n);
        let (by_q, by_k) = (over(q[0], heads), over(k[0], kv));
        let dim = self
            .shapes
            .head_norm
            // Both counts give one size: it is the size that is wrong and not the two counts.
            .or_else(|| by_q.filter(|d| by_k == Some(*d)))
            .or_else(|| assumed.filter(|d| q[0].is_multiple_of(*d) && k[0].is_multiple_of(*d)))
            .or(by_q);
        let Some(dim) =
            dim.filter(|d| *d > 0 && q[0].is_multiple_of(*d) && k[0].is_multiple_of(*d))
        else {
            return;
        };
        if explicit.is_none() && (self.is_qwen3() || quotient != Some(dim))
            || explicit.is_some_and(|d| d != dim)
        {
            let what = self.head_dim(explicit, quotient, hidden, heads, dim, q[0]);
            self.out.add("config.head_dim", format!("{CONFIG}: head_dim"), what);
        }
        if explicit.is_some() || quotient != Some(dim) || self.is_qwen3() {
            self.set("head_dim", dim);
        }
        self.replace(
            "config.heads",
            "num_attention_heads",
            q[0] / dim,
            &format!("q_proj has {} rows of heads of {dim}", q[0]),
        );
        self.replace(
            "config.kv_heads",
            "num_key_value_heads",
            k[0] / dim,
            &format!("k_proj has {} rows of heads of {dim}", k[0]),
        );
    }

    fn head_dim(
        &self,
        explicit: Option<u64>,
        quotient: Option<u64>,
        hidden: Option<u64>,
        heads: Option<u64>,
        dim: u64,
        rows: u64,
    ) -> String {
        let norm = match self.shapes.head_norm {
            Some(n) => format!(", and q_norm has {n} elements"),
            None => String::new(),
        };
        let truth = format!("q_proj has {rows} rows = {} heads x {dim}{norm}", rows / dim);
        match (explicit, quotient, hidden, heads) {
            (Some(d), ..) => format!("is {d}, but {truth}: it must be {dim}"),
            (None, Some(d), Some(h), Some(n)) => format!(
                "is not there, so that engines take hidden_size / num_attention_heads = {h} / {n} = {d}; {}{truth}: it must be {dim}",
                if d == dim {
                    "that is right by chance, but Qwen3's is explicit; "
                } else {
                    "but "
                }
            ),
            _ => format!("is not there; {truth}: it must be {dim}"),
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

    /// The base of the rotary angles in both spellings.
    fn rope(&mut self) {
        let inner = |o: &Object, name: &str| o.get(name).and_then(Value::as_object).cloned();
        let real = |o: &Object| o.get("rope_theta").and_then(Value::as_f64);
        let mut given: Vec<(String, f64)> = Vec::new();
        given.extend(real(&self.fixed).map(|t| ("rope_theta".to_owned(), t)));
        for name in ["rope_parameters", "rope_scaling"] {
            let theta = inner(&self.fixed, name).and_then(|o| real(&o));
            given.extend(theta.map(|t| (format!("{name}.rope_theta"), t)));
        }
        match given.first().cloned() {
            None => {
                let what = "neither rope_theta nor rope_parameters.rope_theta is there; known values are 1000000 (Qwen2, Qwen2.5, Qwen3), 10000 (Qwen2.5-Math and the R1 distills of it) and 5000000 (Qwen3-2507)";
                self.out.add("config.rope_missing", format!("{CONFIG}: rope_theta"), what);
                self.set("rope_theta", 1e6);
            }
            Some((first, theta)) => {
                if let Some((other, value)) = given.iter().find(|(_, t)| *t != theta) {
                    let what = format!("is {theta}, but {other} is {value}");
                    self.out.add("config.rope_contradiction", format!("{CONFIG}: {first}"), what);
                    for name in ["rope_parameters", "rope_scaling"] {
                        if let Some(object) =
                            self.fixed.get_mut(name).and_then(Value::as_object_mut)
                        {
                            object.remove("rope_theta");
                        }
                    }
                    self.set("rope_theta", theta);
                }
            }
        }
        let kind = |o: &Object| {
            (
                text(o, "rope_type").or(text(o, "type")).unwrap_or("default").to_owned(),
                o.get("factor").and_then(Value::as_f64),
            )
        };
        let (new, old) =
            (inner(&self.fixed, "rope_parameters"), inner(&self.fixed, "rope_scaling"));
        if let (Some(new), Some(old)) = (new, old)
            && kind(&new) != kind(&old)
        {
            let what = format!(
                "describes {:?}, but rope_scaling describes {:?} (type and factor)",
                kind(&new),
                kind(&old)
            );
            self.out.add("config.rope_contradiction", format!("{CONFIG}: rope_parameters"), what);
            self.fixed.remove("rope_scaling");
        }
    }

    fn dtype(&mut self) {
        let Some(stored) = self.shapes.dtype else { return };
        let spelled = match stored {
            "BF16" => "bfloat16",
            "F16" => "float16",
            "F32" => "float32",
            _ => return,
        };
        let name = if self.fixed.contains_key("torch_dtype") && !self.fixed.contains_key("dtype") {
            "torch_dtype"
        } else {
            "dtype"
        };
        match text(&self.fixed, name).map(str::to_owned) {
            Some(given) if given == spelled => {}
            Some(given) => {
                let what =
                    format!("is {given}, but most of the unpacked weights are stored as {spelled}");
                self.out.add("config.dtype", format!("{CONFIG}: {name}"), what);
                self.set(name, spelled);
            }
            None => {
                let what =
                    format!("(or torch_dtype) is missing; the weights are stored as {spelled}");
                self.out.add("config.field_missing", format!("{CONFIG}: dtype"), what);
                self.set(name, spelled);
            }
        }
    }

    /// Fields that must not be guessed, and that no tensor tells.
    fn others(&mut self) {
        let mut needed = vec![
            ("rms_norm_eps", json!(1e-6)),
            ("hidden_act", json!("silu")),
            ("max_position_embeddings", json!(32768)),
        ];
        if class(&self.fixed).is_some_and(|c| c.contains("Moe")) {
            needed.extend([
                ("num_experts_per_tok", json!(1)),
                ("norm_topk_prob", json!(true)),
                ("decoder_sparse_step", json!(1)),
            ]);
        }
        for (name, any) in needed {
            if self.fixed.get(name).is_none_or(Value::is_null) {
                let what = "is missing, and no tensor tells it";
                self.out.add("config.field_missing", format!("{CONFIG}: {name}"), what);
                self.set(name, any);
            }
        }
    }
}
