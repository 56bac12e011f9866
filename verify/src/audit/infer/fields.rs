//! Fields that shapes do not tell: the rotation, the dtype, and what must not be guessed.

use serde_json::{Value, json};

use super::{CONFIG, Infer, class, text};
use crate::audit::json::Object;

impl Infer<'_> {
    /// The base of the rotary angles in both spellings.
    pub(super) fn rope(&mut self) {
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

    pub(super) fn dtype(&mut self) {
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
    pub(super) fn others(&mut self) {
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
