//! A model as a list of op calls, each named by the probe that records its output.
//!
//! Probe names: `embed`; per layer `layers.N.` with `input_norm`, `q_proj`, `k_proj`, `v_proj`,
//! `q_norm`, `k_norm` (Qwen3), `q_rope`, `k_rope`, `attention`, `o_proj`, `attn_residual`,
//! `post_norm`, `gate_proj`, `up_proj`, `silu_mul`, `down_proj` (in a mixture of experts
//! `router_logits`, `routing`, `experts` instead), `mlp_residual`; then `final_norm` and `logits`.
//! In a model split over ranks, what rank 1 computes of a layer's output is `layers.N.q_proj@1`.

mod build;

use std::borrow::Cow;

use serde_json::Value;

use super::shard::{self, Cut, Ranks};
use crate::checkpoint::Config;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::ops::linear::Linear;
use crate::ops::rope;
use crate::tensor::Tensor;

/// Where an op's argument comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The output recorded under this probe, for the rows at hand.
    Probe(String, View),
    /// The same for all positions so far: keys and values.
    History(String, View),
    /// A tensor of the checkpoint.
    Weight(String),
    /// A rank's part of one.
    Part(String, Cut),
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

/// What a node computes of its layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    Whole,
    /// Some columns: those of `rank`, which `copies` ranks in a row hold alike.
    Columns {
        /// The rank.
        rank: usize,
        /// Ranks that hold the same columns.
        copies: usize,
    },
    /// One rank's term of a sum.
    Term,
}

/// One op call.
#[derive(Clone, Debug, PartialEq)]
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
    pub inputs: Vec<(Cow<'static, str>, Source)>,
    /// The shape in which the output is recorded.
    pub view: View,
    /// Elements a row.
    pub width: usize,
    /// What it is of its layer's output.
    pub share: Share,
}

impl Node {
    /// Probes that this node reads.
    pub fn reads(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().filter_map(|(_, s)| match s {
            Source::Probe(p, _) | Source::History(p, _) => Some(p.as_str()),
            Source::Weight(_) | Source::Part(..) | Source::Tokens | Source::Positions => None,
        })
    }

    /// The probe without its rank.
    pub fn layer_probe(&self) -> &str {
        self.probe.split_once('@').map_or(&self.probe, |(name, _)| name)
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
        build::plan(config, angle, 1.into()).expect("a whole model needs no splitting")
    }

    /// The plan of the model split over `ranks`, as serving engines split it (see [`shard`]).
    ///
    /// # Errors
    /// When the model does not split evenly.
    pub fn split(config: &Config, angle: rope::Angle, ranks: Ranks) -> Result<Plan> {
        shard::check(config, ranks.count)?;
        build::plan(config, angle, ranks)
    }

    /// The node that records `probe`.
    pub fn node(&self, probe: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.probe == probe)
    }
}

/// How the linear layer at `path` is evaluated, and its weight tensors' names after the path.
pub fn linear_at(config: &Config, path: &str) -> (Linear, Vec<&'static str>) {
    match config.quantization.as_ref().filter(|q| q.covers(path)) {
        // The names do not depend on the shape.
        Some(q) => (q.linear(), q.parts([1, 1]).into_iter().map(|(part, ..)| part).collect()),
        None => (Linear::Dense, vec!["weight"]),
    }
}

/// A tensor of the checkpoint as a model that runs in `dtype` holds it: engines cast weights and biases
/// to a 16-bit dtype when they load them. Scales and packed values stay: what is done with those is a
/// convention of their ops.
pub fn as_loaded(t: Tensor, arg: &str, dtype: Dtype) -> Tensor {
    let part = arg.rsplit('.').next().unwrap_or(arg);
    let float = matches!(t.dtype(), Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64);
    let narrow = matches!(dtype, Dtype::Bf16 | Dtype::F16);
    if !(float && narrow && t.dtype() != dtype && matches!(part, "weight" | "bias")) {
        return t;
    }
    Tensor::from_f64(dtype, t.shape(), &t.to_f64())
}
