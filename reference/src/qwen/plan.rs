//! A model as a list of op calls, each named by the probe that records its output.
//!
//! Probe names: `embed`; per layer `layers.N.` with `input_norm`, `q_proj`, `k_proj`, `v_proj`,
//! `q_norm`, `k_norm` (Qwen3), `q_rope`, `k_rope`, `attention`, `o_proj`, `attn_residual`,
//! `post_norm`, `gate_proj`, `up_proj`, `silu_mul`, `down_proj`, `mlp_residual`; then `final_norm`
//! and `logits`.

use serde_json::{Value, json};

use crate::checkpoint::{Architecture, Config, GptqFormat};
use crate::ops::{gptq_dequant, gptq_gemm, rms_norm, rope};

/// Where an op's argument comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The output recorded under this probe, for the rows at hand.
    Probe(String, View),
    /// The same for all positions so far: keys and values.
    History(String, View),
    /// A tensor of the checkpoint.
    Weight(String),
    /// The token ids, \[T\].
    Tokens,
    /// The positions, \[T\].
    Positions,
}

/// The shape under which a probe's rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// [T, width].
    Flat,
    /// [T, heads, width / heads].
    Heads(usize),
}

impl View {
    /// The shape of `rows` rows of `width` elements.
    pub fn shape(self, rows: usize, width: usize) -> Vec<usize> {
        match self {
            View::Flat => vec![rows, width],
            View::Heads(n) => vec![rows, n, width / n],
        }
    }
}

/// One op call.
#[derive(Clone, Debug)]
pub struct Node {
    /// Probe name of the output.
    pub probe: String,
    /// Layer, if it belongs to one.
    pub layer: Option<usize>,
    /// Op name.
    pub op: &'static str,
    /// The op's params.
    pub params: Value,
    /// Arguments by name.
    pub inputs: Vec<(&'static str, Source)>,
    /// The shape in which the output is recorded.
    pub view: View,
    /// Elements a row.
    pub width: usize,
}

impl Node {
    /// Probes that this node reads.
    pub fn reads(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().filter_map(|(_, s)| match s {
            Source::Probe(p, _) | Source::History(p, _) => Some(p.as_str()),
            Source::Weight(_) | Source::Tokens | Source::Positions => None,
        })
    }
}

/// The op calls of a model in order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Calls; each reads only probes of earlier ones.
    pub nodes: Vec<Node>,
    /// Layers.
    pub layers: usize,
}

impl Plan {
    /// The plan of a config's model. `angle` is the convention of the rope angle.
    pub fn new(config: &Config, angle: rope::Angle) -> Plan {
        let mut b = Builder { config, nodes: Vec::new(), angle };
        b.embed();
        let mut residual = "embed".to_string();
        for n in 0..config.num_hidden_layers {
            residual = b.layer(n, &residual);
        }
        b.head(&residual);
        Plan { nodes: b.nodes, layers: config.num_hidden_layers }
    }

    /// The node that records `probe`.
    pub fn node(&self, probe: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.probe == probe)
    }
}

struct Builder<'c> {
    config: &'c Config,
    nodes: Vec<Node>,
    angle: rope::Angle,
}

fn probe(name: &str) -> Source {
    Source::Probe(name.to_string(), View::Flat)
}

fn weight(name: impl Into<String>) -> Source {
    Source::Weight(name.into())
}

fn json_of<T: serde::Serialize>(params: T) -> Value {
    serde_json::to_value(params).expect("params are plain data")
}

impl Builder<'_> {
    fn push(
        &mut self,
        layer: Option<usize>,
        name: &str,
        op: &'static str,
        params: Value,
        width: usize,
        inputs: Vec<(&'static str, Source)>,
    ) -> String {
        let probe = layer.map_or_else(|| name.to_string(), |n| format!("layers.{n}.{name}"));
        let node =
            Node { probe: probe.clone(), layer, op, params, inputs, view: View::Flat, width };
        self.nodes.push(node);
        probe
    }

    /// Records the last node's output by heads.
    fn by_heads(&mut self, heads: usize) {
        if let Some(node) = self.nodes.last_mut() {
            node.view = View::Heads(heads);
        }
    }

    fn embed(&mut self) {
        let inputs = vec![("ids", Source::Tokens), ("weight", weight("model.embed_tokens.weight"))];
        self.push(None, "embed", "embedding", json!({}), self.config.hidden_size, inputs);
    }

    fn norm(
        &mut self,
        layer: Option<usize>,
        name: &str,
        x: Source,
        w: String,
        width: usize,
    ) -> String {
        let params = json_of(rms_norm::Params::new(self.config.rms_norm_eps));
        self.push(layer, name, "rms_norm", params, width, vec![("x", x), ("weight", weight(w))])
    }

    /// A linear layer: plain or GPTQ.
    fn linear(
        &mut self,
        n: usize,
        name: &str,
        module: &str,
        x: &str,
        width: usize,
        bias: bool,
    ) -> String {
        let prefix = format!("model.layers.{n}.{module}");
        let mut inputs = vec![("x", probe(x))];
        if bias {
            inputs.push(("bias", weight(format!("{prefix}.bias"))));
        }
        let gptq = self.config.quantization.as_ref().filter(|q| q.covers(module));
        let Some(gptq) = gptq else {
            inputs.push(("weight", weight(format!("{prefix}.weight"))));
            return self.push(Some(n), name, "matmul", json!({}), width, inputs);
        };
        for part in ["qweight", "qzeros", "scales", "g_idx"] {
            inputs.push((part, weight(format!("{prefix}.{part}"))));
        }
        let format = match gptq.format {
            GptqFormat::V1 => gptq_dequant::Format::V1,
            GptqFormat::V2 => gptq_dequant::Format::V2,
        };
        let dequant = gptq_dequant::Params::new(format, gptq.group_size.map_or(-1, |n| n as i64));
        let params = json_of(gptq_gemm::Params::new(dequant));
        self.push(Some(n), name, "gptq_gemm", params, width, inputs)
    }

    /// Rope over the heads of `x`, recorded by heads.
    fn rope(&mut self, n: usize, name: &str, x: &str, heads: usize) -> String {
        let params = json_of(rope::Params::new(self.config.rope_theta, self.angle));
        let inputs = vec![
            ("x", Source::Probe(x.to_string(), View::Heads(heads))),
            ("positions", Source::Positions),
        ];
        let width = heads * self.config.head_dim;
        let out = self.push(Some(n), name, "rope", params, width, inputs);
        self.by_heads(heads);
        out
    }

    /// One block; returns the probe of the residual stream after it.
    fn layer(&mut self, n: usize, residual: &str) -> String {
        let c = self.config;
        let (hidden, d) = (c.hidden_size, c.head_dim);
        let (hq, hkv) = (c.num_attention_heads, c.num_key_value_heads);
        let bias = c.attention_bias;
        let prefix = format!("model.layers.{n}");
        let l = Some(n);

        // 1. Attention over the normalised residual.
        let x = self.norm(
            l,
            "input_norm",
            probe(residual),
            format!("{prefix}.input_layernorm.weight"),
            hidden,
        );
        let mut q = self.linear(n, "q_proj", "self_attn.q_proj", &x, hq * d, bias);
        let mut k = self.linear(n, "k_proj", "self_attn.k_proj", &x, hkv * d, bias);
        let v = self.linear(n, "v_proj", "self_attn.v_proj", &x, hkv * d, bias);
        if c.architecture == Architecture::Qwen3 {
            for (p, name, heads) in [(&mut q, "q_norm", hq), (&mut k, "k_norm", hkv)] {
                let x = Source::Probe(p.clone(), View::Heads(heads));
                let w = format!("{prefix}.self_attn.{name}.weight");
                *p = self.norm(l, name, x, w, heads * d);
                self.by_heads(heads);
            }
        }
        let q = self.rope(n, "q_rope", &q, hq);
        let k = self.rope(n, "k_rope", &k, hkv);
        let attention = self.push(
            l,
            "attention",
            "attention",
            json!({ "scale": 1.0 / (d as f64).sqrt() }),
            hq * d,
            vec![
                ("q", Source::Probe(q, View::Heads(hq))),
                ("k", Source::History(k, View::Heads(hkv))),
                ("v", Source::History(v, View::Heads(hkv))),
            ],
        );
        self.by_heads(hq);
        // Released Qwen3 has no biases; a config that sets attention_bias has one on o_proj too.
        let o_bias = bias && c.architecture == Architecture::Qwen3;
        let o = self.linear(n, "o_proj", "self_attn.o_proj", &attention, hidden, o_bias);
        let mid = self.add(n, "attn_residual", residual, &o);

        // 2. SwiGLU over the normalised sum.
        let x = self.norm(
            l,
            "post_norm",
            probe(&mid),
            format!("{prefix}.post_attention_layernorm.weight"),
            hidden,
        );
        let inter = c.intermediate_size;
        let gate = self.linear(n, "gate_proj", "mlp.gate_proj", &x, inter, false);
        let up = self.linear(n, "up_proj", "mlp.up_proj", &x, inter, false);
        let inputs = vec![("gate", probe(&gate)), ("up", probe(&up))];
        let act = self.push(l, "silu_mul", "silu_mul", json!({}), inter, inputs);
        let down = self.linear(n, "down_proj", "mlp.down_proj", &act, hidden, false);
        self.add(n, "mlp_residual", &mid, &down)
    }

    fn add(&mut self, n: usize, name: &str, residual: &str, block: &str) -> String {
        let inputs = vec![("a", probe(residual)), ("b", probe(block))];
        self.push(Some(n), name, "add", json!({}), self.config.hidden_size, inputs)
    }

    fn head(&mut self, residual: &str) {
        let hidden = self.config.hidden_size;
        let x = self.norm(None, "final_norm", probe(residual), "model.norm.weight".into(), hidden);
        let w = if self.config.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let inputs = vec![("x", probe(&x)), ("weight", weight(w))];
        self.push(None, "logits", "matmul", json!({}), self.config.vocab_size, inputs);
    }
}
