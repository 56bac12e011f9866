//! The op calls of a model, one after the other: embedding, blocks, head.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{Node, Plan, Share, Source, View, linear_at};
use crate::checkpoint::{Config, config::EXPERT};
use crate::error::Result;
use crate::ops::linear::Linear;
use crate::ops::{all_reduce, moe_experts, moe_route, rms_norm, rope};
use crate::qwen::shard::{self, Cut, Rank, Ranks, Split};

/// The plan of a model over `ranks`, which [`shard::check`] has seen.
pub(super) fn plan(config: &Config, angle: rope::Angle, ranks: Ranks) -> Result<Plan> {
    let (sum_stored, ranks) = (ranks.sum_stored, ranks.count);
    let mut b = Builder { config, nodes: Vec::new(), angle, ranks, sum_stored };
    b.embed();
    let mut residual = "embed".to_string();
    for n in 0..config.num_hidden_layers {
        residual = b.layer(n, &residual)?;
    }
    b.head(&residual);
    Ok(Plan { nodes: b.nodes, layers: config.num_hidden_layers })
}

struct Builder<'c> {
    config: &'c Config,
    nodes: Vec<Node>,
    angle: rope::Angle,
    ranks: usize,
    sum_stored: bool,
}

type Inputs = Vec<(Cow<'static, str>, Source)>;

/// A linear layer of a block, or a rank's part of one.
struct Layer<'a> {
    name: &'a str,
    module: &'a str,
    x: &'a str,
    split: Split,
    /// Outputs of a column-parallel layer, or inputs of a row-parallel one.
    range: std::ops::Range<usize>,
    /// Outputs.
    width: usize,
    rank: Rank,
    copies: usize,
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

fn rope_params(config: &Config, angle: rope::Angle) -> rope::Params {
    rope::Params { scaling: config.rope_scaling, ..rope::Params::new(config.rope_theta, angle) }
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
        let inputs = inputs.into_iter().map(|(arg, s)| (arg.into(), s)).collect();
        self.push_all(layer, name, op, params, width, inputs)
    }

    fn push_all(
        &mut self,
        layer: Option<usize>,
        name: &str,
        op: &'static str,
        params: Value,
        width: usize,
        inputs: Inputs,
    ) -> String {
        let probe = layer.map_or_else(|| name.to_string(), |n| format!("layers.{n}.{name}"));
        let node = Node {
            probe: probe.clone(),
            layer,
            op,
            params,
            inputs,
            view: View::Flat,
            width,
            share: Share::Whole,
        };
        self.nodes.push(node);
        probe
    }

    /// Changes the last node.
    fn amend(&mut self, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.last_mut() {
            change(node);
        }
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let of = self.ranks;
        (0..of).map(move |rank| Rank { rank, of })
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

    /// A linear layer: plain or quantised.
    fn linear(&mut self, n: usize, l: &Layer<'_>) -> Result<String> {
        let path = format!("model.layers.{n}.{}", l.module);
        let mut inputs: Inputs = vec![("x".into(), probe(l.x))];
        // The bias of a row-parallel layer belongs to rank 0.
        let first = l.split == Split::Column || l.rank.rank == 0;
        if self.config.has_bias(l.module) && first {
            inputs.push((
                "bias".into(),
                self.part(&path, l.module, "bias", l.split, l.rank, &l.range)?,
            ));
        }
        let (linear, parts) = linear_at(self.config, &path);
        for part in parts {
            let source = self.part(&path, l.module, part, l.split, l.rank, &l.range)?;
            inputs.push((part.into(), source));
        }
        let mut params = linear.params();
        if l.split == Split::Row {
            let dense = matches!(linear, Linear::Dense);
            let matmul = if dense { &mut params } else { &mut params["matmul"] };
            matmul["row_parallel"] = json!(true);
        }
        let name = format!("{}{}", l.name, l.rank.suffix());
        let out = self.push_all(Some(n), &name, linear.op(), params, l.width, inputs);
        self.amend(|node| node.share = l.share());
        Ok(out)
    }

    /// A tensor of a linear layer, or the rank's part of it.
    fn part(
        &self,
        path: &str,
        module: &str,
        suffix: &str,
        split: Split,
        rank: Rank,
        range: &std::ops::Range<usize>,
    ) -> Result<Source> {
        let name = format!("{path}.{suffix}");
        if rank.of == 1 {
            return Ok(Source::Weight(name));
        }
        let quantization = self.config.quantization.as_ref().filter(|q| q.covers(path));
        let shape = self.config.linear_shape(module).unwrap_or([0, 0]);
        let cut = shard::cut(quantization, suffix, split, range.clone(), shape);
        let cut = cut.map_err(|what| shard::refused(rank.of, &format!("{name}: {what}")))?;
        Ok(source(name, cut))
    }

    /// Rope over the heads of `x`, recorded by heads.
    fn rope(&mut self, n: usize, name: &str, x: &str, heads: usize) -> String {
        let params = json_of(rope_params(self.config, self.angle));
        let inputs = vec![
            ("x", Source::Probe(x.to_string(), View::Heads(heads))),
            ("positions", Source::Positions),
        ];
        let width = heads * self.config.head_dim;
        self.push(Some(n), name, "rope", params, width, inputs)
    }

    /// One block; returns the probe of the residual stream after it.
    fn layer(&mut self, n: usize, residual: &str) -> Result<String> {
        let hidden = self.config.hidden_size;
        let (l, prefix) = (Some(n), format!("model.layers.{n}"));

        // 1. Attention over the normalised residual.
        let w = format!("{prefix}.input_layernorm.weight");
        let x = self.norm(l, "input_norm", probe(residual), w, hidden);
        let o = self.sum(n, "o_proj", hidden, |b, rank| b.attention(n, rank, &x))?;
        let mid = self.add(n, "attn_residual", residual, &o);

        // 2. SwiGLU, or a mixture of them, over the normalised sum.
        let w = format!("{prefix}.post_attention_layernorm.weight");
        let x = self.norm(l, "post_norm", probe(&mid), w, hidden);
        let out = match self.config.moe_of(n) {
            None => self.sum(n, "down_proj", hidden, |b, rank| b.mlp(n, rank, &x))?,
            Some(_) => self.mixture(n, &x)?,
        };
        Ok(self.add(n, "mlp_residual", &mid, &out))
    }

    /// What each rank computes, added: the output of a row-parallel layer called `name`.
    fn sum(
        &mut self,
        n: usize,
        name: &str,
        width: usize,
        mut term: impl FnMut(&mut Self, Rank) -> Result<String>,
    ) -> Result<String> {
        let mut terms = Vec::new();
        for rank in self.ranks() {
            terms.push(term(self, rank)?);
            if self.ranks > 1 {
                self.amend(|node| node.share = Share::Term);
            }
        }
        if self.ranks == 1 {
            return Ok(terms.remove(0));
        }
        let params = json_of(all_reduce::Params { stored: self.sum_stored, ..Default::default() });
        let parts = terms.iter().enumerate();
        let inputs = parts.map(|(r, t)| (all_reduce::part(r).into(), probe(t))).collect();
        Ok(self.push_all(Some(n), name, "all_reduce", params, width, inputs))
    }

    /// Projections, norms, rope, attention and output projection of one rank's heads.
    fn attention(&mut self, n: usize, rank: Rank, x: &str) -> Result<String> {
        let c = self.config;
        let d = c.head_dim;
        let (q_heads, kv_heads) =
            (rank.part(c.num_attention_heads), rank.kv_heads(c.num_key_value_heads));
        let kv_copies = (rank.of / c.num_key_value_heads).max(1);
        let project = |b: &mut Self, name: &str, heads: &std::ops::Range<usize>, copies| {
            let module = format!("self_attn.{name}");
            let (range, width) = (heads.start * d..heads.end * d, heads.len() * d);
            let split = Split::Column;
            b.linear(n, &Layer { name, module: &module, x, split, range, width, rank, copies })
        };
        let mut q = project(self, "q_proj", &q_heads, 1)?;
        let mut k = project(self, "k_proj", &kv_heads, kv_copies)?;
        let v = project(self, "v_proj", &kv_heads, kv_copies)?;
        let named = |name: &str| format!("{name}{}", rank.suffix());
        let (hq, hkv) = (q_heads.len(), kv_heads.len());
        let by_heads = |b: &mut Self, heads: usize, copies: usize| {
            b.amend(|node| {
                node.view = View::Heads(heads);
                node.share = columns(rank, copies);
            });
        };
        if c.architecture.has_qk_norm() {
            for (p, name, heads, copies) in
                [(&mut q, "q_norm", hq, 1), (&mut k, "k_norm", hkv, kv_copies)]
            {
                let x = Source::Probe(p.clone(), View::Heads(heads));
                let w = format!("model.layers.{n}.self_attn.{name}.weight");
                *p = self.norm(Some(n), &named(name), x, w, heads * d);
                by_heads(self, heads, copies);
            }
        }
        let q = self.rope(n, &named("q_rope"), &q, hq);
        by_heads(self, hq, 1);
        let k = self.rope(n, &named("k_rope"), &k, hkv);
        by_heads(self, hkv, kv_copies);
        let mut params = json!({ "scale": 1.0 / (d as f64).sqrt() });
        if let Some(window) = c.windows[n] {
            params["window"] = json!(window);
        }
        let inputs = vec![
            ("q", Source::Probe(q, View::Heads(hq))),
            ("k", Source::History(k, View::Heads(hkv))),
            ("v", Source::History(v, View::Heads(hkv))),
        ];
        let x = self.push(Some(n), &named("attention"), "attention", params, hq * d, inputs);
        by_heads(self, hq, 1);
        self.linear(
            n,
            &Layer {
                name: "o_proj",
                module: "self_attn.o_proj",
                x: &x,
                split: Split::Row,
                range: q_heads.start * d..q_heads.end * d,
                width: c.hidden_size,
                rank,
                copies: 1,
            },
        )
    }

    /// One rank's part of a dense MLP.
    fn mlp(&mut self, n: usize, rank: Rank, x: &str) -> Result<String> {
        let c = self.config;
        let range = rank.part(c.intermediate_size);
        let width = range.len();
        let side = |b: &mut Self, name: &str| {
            let (module, range) = (format!("mlp.{name}"), range.clone());
            let split = Split::Column;
            b.linear(n, &Layer { name, module: &module, x, split, range, width, rank, copies: 1 })
        };
        let (gate, up) = (side(self, "gate_proj")?, side(self, "up_proj")?);
        let inputs = vec![("gate", probe(&gate)), ("up", probe(&up))];
        let name = format!("silu_mul{}", rank.suffix());
        let act = self.push(Some(n), &name, "silu_mul", json!({}), width, inputs);
        self.amend(|node| node.share = columns(rank, 1));
        self.linear(
            n,
            &Layer {
                name: "down_proj",
                module: "mlp.down_proj",
                x: &act,
                split: Split::Row,
                range,
                width: c.hidden_size,
                rank,
                copies: 1,
            },
        )
    }

    /// A mixture of experts; every rank has the router and a part of each expert.
    fn mixture(&mut self, n: usize, x: &str) -> Result<String> {
        let c = self.config;
        let Some(moe) = c.moe_of(n) else { return Ok(x.to_string()) };
        let (experts, width) = (moe.num_experts, moe.intermediate_size);
        let prefix = format!("model.layers.{n}.mlp");
        let inputs = vec![("x", probe(x)), ("weight", weight(format!("{prefix}.gate.weight")))];
        let logits = self.push(Some(n), "router_logits", "matmul", json!({}), experts, inputs);
        let params = json_of(moe_route::Params::new(moe.num_experts_per_tok, moe.norm_topk_prob));
        let inputs = vec![("logits", probe(&logits))];
        let routing = self.push(Some(n), "routing", "moe_route", params, experts, inputs);
        let path = |e: usize, module: &str| format!("{prefix}.experts.{e}.{module}");
        // All experts of a layer have one form: the config saw to it.
        let form = EXPERT.map(|m| linear_at(c, &path(0, m)).0);
        let params = json_of(moe_experts::Params::new(form));
        self.sum(n, "experts", c.hidden_size, |b, rank| {
            let mut inputs: Inputs =
                vec![("x".into(), probe(x)), ("routing".into(), probe(&routing))];
            for (e, module) in (0..experts).flat_map(|e| EXPERT.map(|m| (e, m))) {
                let split = if module == "down_proj" { Split::Row } else { Split::Column };
                let (path, name) = (path(e, module), format!("mlp.experts.{e}.{module}"));
                for part in linear_at(c, &path).1 {
                    let source = b.part(&path, &name, part, split, rank, &rank.part(width))?;
                    inputs.push((format!("experts.{e}.{module}.{part}").into(), source));
                }
            }
            let name = format!("experts{}", rank.suffix());
            let params = params.clone();
            Ok(b.push_all(Some(n), &name, "moe_experts", params, c.hidden_size, inputs))
        })
    }

    fn add(&mut self, n: usize, name: &str, residual: &str, block: &str) -> String {
        let inputs = vec![("a", probe(residual)), ("b", probe(block))];
        self.push(Some(n), name, "add", json!({}), self.config.hidden_size, inputs)
    }

    fn head(&mut self, residual: &str) {
        let (hidden, vocab) = (self.config.hidden_size, self.config.vocab_size);
        let x = self.norm(None, "final_norm", probe(residual), "model.norm.weight".into(), hidden);
        let w = if self.config.tie_word_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let mut parts: Inputs = Vec::new();
        for rank in self.ranks() {
            let range = rank.part(vocab);
            let cut = Cut::Range { axis: 0, range: range.clone() };
            let w = source(w.to_string(), Some(cut).filter(|_| rank.of > 1));
            let inputs = vec![("x", probe(&x)), ("weight", w)];
            let name = format!("logits{}", rank.suffix());
            let part = self.push(None, &name, "matmul", json!({}), range.len(), inputs);
            self.amend(|node| node.share = columns(rank, 1));
            parts.push((all_reduce::part(rank.rank).into(), probe(&part)));
        }
        if self.ranks > 1 {
            self.push_all(None, "logits", "all_gather", json!({}), vocab, parts);
        }
    }
}

fn columns(rank: Rank, copies: usize) -> Share {
    if rank.of == 1 { Share::Whole } else { Share::Columns { rank: rank.rank, copies } }
}

impl Layer<'_> {
    fn share(&self) -> Share {
        match self.split {
            Split::Column => columns(self.rank, self.copies),
            Split::Row if self.rank.of == 1 => Share::Whole,
            Split::Row => Share::Term,
        }
    }
}

/// All of a tensor, or a part of it.
fn source(name: String, cut: Option<Cut>) -> Source {
    match cut {
        Some(cut) => Source::Part(name, cut),
        None => Source::Weight(name),
    }
}
