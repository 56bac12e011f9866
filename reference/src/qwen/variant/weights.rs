//! Weights: not loaded, loaded in another's place, or cut wrongly.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Entry, Form, Make, Wiring};
use crate::checkpoint::{Checkpoint, Config, GptqFormat, Quantization};
use crate::error::{Error, Result};
use crate::qwen::plan::{Node, Source};
use crate::qwen::shard::Cut;
use crate::tensor::Tensor;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: "A307",
        slug: "head_tied",
        summary: "an untied head replaced by the embedding",
        source: "https://github.com/huggingface/candle/issues/2930",
        make: |c| {
            let detail = "the head uses model.embed_tokens.weight instead of lm_head.weight";
            untied(
                c,
                Form::new("", detail).nodes(|n| {
                    rename(n, |w| (w == HEAD).then(|| EMBED.into()));
                }),
            )
        },
    },
    Entry {
        code: "A308",
        slug: "embedding_from_head",
        summary: "an untied embedding replaced by the head's weight",
        source: "https://github.com/huggingface/candle/issues/2930",
        make: |c| {
            let detail =
                "tokens are looked up in lm_head.weight instead of model.embed_tokens.weight";
            untied(
                c,
                Form::new("", detail).nodes(|n| {
                    rename(n, |w| (w == EMBED).then(|| HEAD.into()));
                }),
            )
        },
    },
    Entry {
        code: "A309",
        slug: "bias_dropped",
        summary: "the bias of q, k, v, o or all of them not loaded",
        source: "https://github.com/vllm-project/vllm/issues/39663",
        make: biases,
    },
    Entry {
        code: "A30A",
        slug: "head_dim_from_hidden",
        summary: "head_dim taken to be hidden_size / heads, and the rows beyond it never read",
        source: "https://github.com/vllm-project/vllm/issues/2622",
        make: head_dim,
    },
    Entry {
        code: "A30B",
        slug: "qkv_thirds",
        summary: "a fused q, k, v matrix split at its thirds under grouped-query attention",
        source: "https://github.com/NVIDIA/TransformerEngine/pull/394",
        make: thirds,
    },
    Entry {
        code: "A30C",
        slug: "gate_up_swapped",
        summary: "gate and up exchanged: silu(up) * gate",
        source: "https://github.com/ml-explore/mlx-lm/issues/767",
        make: |_| {
            let detail = "silu is applied to up_proj's output instead of gate_proj's";
            vec![Form::new("", detail).nodes(|node| {
                if ["silu_mul", "moe_experts"].contains(&node.op) {
                    node.params["swapped"] = true.into();
                }
            })]
        },
    },
    Entry {
        code: "A30D",
        slug: "row_parallel_bias",
        summary: "o_proj's bias added on every rank of a split model",
        source: "https://github.com/huggingface/text-generation-inference/issues/1036",
        make: |c| {
            let form = |ranks: u32| {
                let detail = format!("o_proj's bias is added {ranks} times, once by each rank");
                let times = move |t: Tensor| Ok(t.map(|_, v| v * f64::from(ranks)));
                Form::new(format!("{ranks} ranks"), detail).wiring(move |w, _| {
                    w.remake(|n| n.ends_with(".o_proj.bias"), |n| of(n, times), "of every rank");
                })
            };
            if c.has_bias("self_attn.o_proj") { [2, 4, 8].map(form).into() } else { Vec::new() }
        },
    },
    Entry {
        code: "A30E",
        slug: "zero_point_format",
        summary: "GPTQ zero points read in the other format: v1's stored one less, v2's as they are",
        source: "https://github.com/vllm-project/vllm/issues/26343",
        make: |c| {
            let Some(Quantization::Gptq(q)) = &c.quantization else { return Vec::new() };
            let (key, zero) = match q.format {
                GptqFormat::V1 => ("v1 as v2", "as_stored"),
                GptqFormat::V2 => ("v2 as v1", "stored_plus_one"),
            };
            let detail = format!("zero points are read {key}: every weight is off by its scale");
            vec![Form::new(key, detail).nodes(move |n| {
                each_dequant(&mut n.params, &mut |p| p["zero"] = json!(zero));
            })]
        },
    },
    Entry {
        code: "A30F",
        slug: "group_index_ignored",
        summary: "GPTQ groups taken in order although g_idx says otherwise",
        source: "https://github.com/AutoGPTQ/AutoGPTQ/issues/484",
        make: |c| {
            let Some(Quantization::Gptq(q)) = &c.quantization else { return Vec::new() };
            let form = Form::new("", "input row k uses group k / group_size instead of g_idx's")
                .nodes(|n| each_dequant(&mut n.params, &mut |p| p["group"] = json!("sequential")));
            q.desc_act.then_some(form).into_iter().collect()
        },
    },
];

const HEAD: &str = "lm_head.weight";
const EMBED: &str = "model.embed_tokens.weight";

fn untied(c: &Config, form: Form) -> Vec<Form> {
    if c.tie_word_embeddings { Vec::new() } else { vec![form.everywhere()] }
}

/// Renames the tensors that a node reads.
pub(super) fn rename(node: &mut Node, new: impl Fn(&str) -> Option<String>) {
    for (_, source) in &mut node.inputs {
        if let Source::Weight(name) = source
            && let Some(other) = new(name)
        {
            *name = other;
        }
    }
}

/// Reads `b` where the node reads `a`, and the other way round.
pub(super) fn exchange(node: &mut Node, a: &str, b: &str) {
    rename(node, |name| {
        if name.contains(a) {
            Some(name.replace(a, b))
        } else {
            name.contains(b).then(|| name.replace(b, a))
        }
    });
}

/// A tensor made of one of the checkpoint's.
fn of(name: String, make: impl Fn(Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Make {
    Arc::new(move |c: &Checkpoint| make(c.tensor(&name)?))
}

fn biases(c: &Config) -> Vec<Form> {
    let form = |names: &'static [&'static str]| {
        let key = names.join(" ");
        Form::new(key.clone(), format!("the bias of {key} is not added")).nodes(move |n| {
            if names.iter().any(|x| n.probe.ends_with(&format!(".{x}_proj"))) {
                n.inputs.retain(|(arg, _)| arg != "bias");
            }
        })
    };
    let mut forms = Vec::new();
    if c.has_bias("self_attn.q_proj") {
        forms.extend([&["q", "k", "v"][..], &["q"], &["k"], &["v"]].map(form));
    }
    if c.has_bias("self_attn.o_proj") {
        forms.push(form(&["o"]));
    }
    forms
}

/// Runs where the wrong head_dim is smaller and the weights are dense: what an engine does that takes
/// the first rows and columns that it expects. Otherwise nothing could be loaded.
fn head_dim(c: &Config) -> Vec<Form> {
    let (hidden, heads, right) = (c.hidden_size, c.num_attention_heads, c.head_dim);
    let wrong = hidden / heads;
    let fits =
        hidden.is_multiple_of(heads) && wrong.is_multiple_of(2) && wrong < right && wrong > 0;
    if !fits || c.quantization.is_some() {
        return Vec::new();
    }
    let detail = format!("head_dim is {wrong} (hidden_size / heads) instead of {right}");
    let form = Form::new("", detail).config(move |c| c.head_dim = wrong).wiring(move |w, c| {
        let (q, kv) = (c.num_attention_heads * wrong, c.num_key_value_heads * wrong);
        w.first(".q_proj.", 0, q);
        w.first(".k_proj.", 0, kv);
        w.first(".v_proj.", 0, kv);
        w.first(".q_norm.", 0, wrong);
        w.first(".k_norm.", 0, wrong);
        w.first(".o_proj.weight", 1, q);
    });
    vec![form]
}

impl Wiring {
    /// Reads only the first `n` rows or columns of tensors whose names hold `part`.
    fn first(&mut self, part: &str, axis: usize, n: usize) {
        let cut = move |t: Tensor| Ok(Cut::Range { axis, range: 0..n }.of(&t));
        self.remake(|name| name.contains(part), |name| of(name, cut), "cut");
    }
}

/// `torch.chunk(3)` of the fused matrix, where its heads divide by 3: k begins at one third and v at
/// two thirds of the rows, so that both are made of q's or k's.
fn thirds(c: &Config) -> Vec<Form> {
    let (q, kv) = (c.num_attention_heads, c.num_key_value_heads);
    let all = q + 2 * kv;
    if q == kv || !all.is_multiple_of(3) || c.quantization.is_some() {
        return Vec::new();
    }
    let detail = format!(
        "of the {all} fused heads k's begin at {} and v's at {} instead of {q} and {}",
        all / 3,
        2 * all / 3,
        q + kv
    );
    let form = Form::new("", detail).wiring(move |w, c| {
        let d = c.head_dim;
        for (part, first) in [("k_proj", all / 3), ("v_proj", 2 * all / 3)] {
            let rows = first * d..(first + kv) * d;
            let this = format!(".{part}.");
            w.remake(
                |name| name.contains(&this),
                |name| {
                    let (part, rows) = (part.to_string(), rows.clone());
                    Arc::new(move |c: &Checkpoint| fused_rows(c, &name, &part, &rows))
                },
                "by thirds",
            );
        }
    });
    vec![form]
}

/// Rows of the matrix in which q's, k's and v's lie below one another.
fn fused_rows(c: &Checkpoint, name: &str, part: &str, rows: &Range<usize>) -> Result<Tensor> {
    let (mut bytes, mut begin, mut like) = (Vec::new(), 0, None);
    for other in ["q_proj", "k_proj", "v_proj"] {
        let t = c.tensor(&name.replace(part, other))?;
        let end = begin + t.shape()[0];
        let (from, to) = (rows.start.max(begin), rows.end.min(end));
        if from < to {
            bytes.extend_from_slice(t.slice_outer(from - begin..to - begin).bytes());
        }
        begin = end;
        let same = like.get_or_insert_with(|| t.clone());
        if same.dtype() != t.dtype() || same.shape()[1..] != t.shape()[1..] {
            let what = "cannot be fused with q_proj's: another dtype or width";
            return Err(Error::tensor(c.dir(), name.replace(part, other), what));
        }
    }
    let like = like.expect("three tensors");
    let shape = [&[rows.len()], &like.shape()[1..]].concat();
    Tensor::from_bytes(like.dtype(), shape, bytes)
}

/// Every dequantisation's params inside a node's.
fn each_dequant(params: &mut Value, edit: &mut dyn FnMut(&mut Value)) {
    let Value::Object(map) = params else { return };
    for (key, value) in map {
        if key == "dequant" {
            edit(value);
        } else {
            each_dequant(value, edit);
        }
    }
}
