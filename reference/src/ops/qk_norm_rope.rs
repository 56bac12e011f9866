//! `qk_norm_rope`: the norm of query or key heads and their rotation, as Qwen3's attention begins: a
//! composite of `rms_norm` over head_dim, edge `normed`, and `rope`.
//!
//! Shapes: x [T, H, D], weight \[D\], positions \[T\]; output [T, H, D].
//! Points: `normed` (the heads as they are rotated), `table`, `product`, `output`; the norm's own are in
//! the first part.
//! Conventions: the normalised head is stored before it is rotated (`normed=stored`: two kernels, or an
//! eager framework) or stays in f32 (`normed=f32`: the fused kernel that TensorRT-LLM and vLLM share
//! keeps a head in registers); and those of the parts.
//!
//! Source: <https://arxiv.org/abs/2505.09388>,
//! <https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/kernels/fusedQKNormRopeKernel.cu>

use serde::{Deserialize, Serialize};

use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    gain_faults,
    lens::Lens,
    need,
    rms_norm::{self, RmsNorm},
    rope::{self, Rope},
};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// How the parts are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Composition {
    /// Each head is normalised, then rotated.
    #[default]
    NormFirst,
    /// Rotated, then normalised: a fault unless all weights are alike.
    RopeFirst,
    /// All heads of a token are normalised together: a fault.
    NormOverHeads,
}

/// The parts' params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Norm.
    pub norm: rms_norm::Params,
    /// Rotation.
    pub rope: rope::Params,
    /// Whether the normalised head stays in f32 instead of being stored.
    #[serde(default)]
    pub edge_f32: bool,
    /// Order and scope.
    #[serde(default)]
    pub composition: Composition,
}

impl Params {
    /// The right op over the parts' params.
    pub fn new(norm: rms_norm::Params, rope: rope::Params) -> Params {
        Params { norm, rope, edge_f32: false, composition: Composition::NormFirst }
    }
}

/// The op.
#[derive(Debug)]
pub struct QkNormRope;

const NORM: Lens<QkNormRope, RmsNorm> =
    Lens { params: |p| &mut p.norm, policy: |p| &mut p.parts[0] };
const ROPE: Lens<QkNormRope, Rope> = Lens { params: |p| &mut p.rope, policy: |p| p };

/// Both parts can be skipped, and the norm's store is that of an edge.
const NORM_NAMES: &[(&str, &str, &str)] = &[
    ("truncating_store", "A2B9", "normed_truncating_store"),
    ("ties_away_store", "A2BA", "normed_ties_away_store"),
    ("skipped", "A2BB", "norm_skipped"),
    ("store_via_f16", "A2BF", "normed_store_via_f16"),
];
const ROPE_NAMES: &[(&str, &str, &str)] = &[("skipped", "A2BC", "rope_skipped")];

/// The rows of `x` that a part computes for the wanted ones, in a tensor of x's shape.
fn placed<R: Real>(shape: &[usize], rows: &[usize], data: &[R]) -> Arg<'static, R> {
    let d = shape[2];
    let mut all = vec![R::lift(0.0); shape.iter().product()];
    for (row, &r) in data.chunks(d).zip(rows) {
        all[r * d..(r + 1) * d].copy_from_slice(row);
    }
    Arg::made(shape.to_vec(), all)
}

/// The normalised heads of `rows`.
fn norm<R: Real>(params: &Params, inputs: &Inputs<'_, R>, part: &Policy, rows: &[usize]) -> Vec<R> {
    let shape = inputs.req("x").shape().to_vec();
    if params.composition == Composition::NormOverHeads {
        let (heads, d) = (shape[1], shape[2]);
        let x = inputs.req("x");
        let data: Vec<R> = (0..shape[0] * heads).flat_map(|r| x.row(r)).collect();
        let weight = inputs.req("weight").row(0).repeat(heads);
        let wide = inputs
            .clone()
            .with("x", Arg::made(vec![shape[0], heads * d], data))
            .with("weight", Arg::made(vec![heads * d], weight));
        let all = RmsNorm::eval(&params.norm, &wide, part, &Tile::ALL).remove(0).data;
        return rows.iter().flat_map(|&r| all[r * d..(r + 1) * d].to_vec()).collect();
    }
    let tile = Tile { rows: Some(rows.to_vec()), cols: None };
    RmsNorm::eval(&params.norm, inputs, part, &tile).remove(0).data
}

impl Op for QkNormRope {
    const NAME: &'static str = "qk_norm_rope";
    const SUMMARY: &'static str = "norm of query or key heads and their rotation, fused";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("x", "[T, H, D] heads"),
        ArgSpec::new("weight", "[D]"),
        ArgSpec::new("positions", "[T] integers"),
    ];
    const POINTS: &'static [&'static str] = &["normed", "table", "product", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let own = |e: Error| match e {
            Error::Arg { arg, what, .. } => Error::arg(Self::NAME, arg, what),
            other => other,
        };
        if params.norm.heads.is_some() {
            let what = "must be missing: all heads of x are normalised";
            return Err(Error::arg(Self::NAME, "norm.heads", what));
        }
        need(Self::NAME, tensors, "weight", true)?;
        RmsNorm::check(&params.norm, tensors).map_err(own)?;
        Rope::check(&params.rope, tensors).map_err(own)
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let shape = inputs.req("x").shape().to_vec();
        let rows = tile.rows_of(shape[0] * shape[1]);
        let mut part = policy.parts[0].clone();
        (part.acc, part.lambda) = (policy.acc, policy.lambda);
        let edge = |data: &mut Vec<R>, stored: crate::Rounding| {
            if !params.edge_f32 {
                data.iter_mut().for_each(|x| *x = x.round(stored, policy.lambda));
            }
            data.chunks_mut(shape[2]).for_each(|row| policy.apply("normed", row));
        };
        if params.composition == Composition::RopeFirst {
            let whole = Tile { rows: Some(rows.clone()), cols: None };
            let mut turned = Rope::eval(&params.rope, inputs, policy, &whole).remove(0).data;
            edge(&mut turned, policy.output);
            let inputs = inputs.clone().with("x", placed(&shape, &rows, &turned));
            return RmsNorm::eval(&params.norm, &inputs, &part, tile);
        }
        let mut normed = norm(params, inputs, &part, &rows);
        edge(&mut normed, part.output);
        let inputs = inputs.clone().with("x", placed(&shape, &rows, &normed));
        Rope::eval(&params.rope, &inputs, policy, tile)
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let edge =
            Knob::new("normed", "stored").or("f32", |s: &mut Setup<Self>| s.params.edge_f32 = true);
        let norm = RmsNorm::knobs(&params.norm).into_iter().map(|k| NORM.knob(k));
        let rope = Rope::knobs(&params.rope).into_iter().map(|k| ROPE.knob(k));
        std::iter::once(edge).chain(norm).chain(rope).collect()
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults: Vec<Fault<Self>> =
            NORM.faults(RmsNorm::faults(&params.norm, tensors), NORM_NAMES).collect();
        faults.extend(ROPE.faults(Rope::faults(&params.rope, tensors), ROPE_NAMES));
        faults.push(Fault::new(
            "A2B8",
            "norm_after_rope",
            "heads are rotated first and normalised after it",
            |s: &mut Setup<Self>| s.params.composition = Composition::RopeFirst,
        ));
        if tensors.get("x").is_some_and(|x| x.shape().get(1).is_some_and(|&heads| heads > 1)) {
            faults.push(Fault::new(
                "A2BE",
                "norm_over_heads",
                "one mean of squares is taken over all heads of a token instead of one a head",
                |s: &mut Setup<Self>| s.params.composition = Composition::NormOverHeads,
            ));
        }
        faults
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        // A rotation keeps what the norm scales: its eps can be solved for behind it.
        let norm = RmsNorm::propose(&params.norm, residual);
        let norm = norm.into_iter().filter(|f| f.slug != "gain").collect();
        let mut faults = gain_faults("A2BD", residual);
        faults.extend(NORM.faults(norm, NORM_NAMES));
        faults
    }

    fn evidence(params: &Params, residual: &Residual<'_>) -> Vec<String> {
        // A rotation keeps the length of a row.
        RmsNorm::evidence(&params.norm, residual)
    }

    fn policy(dtype: Dtype) -> Policy {
        let mut policy = Policy::stored_as(dtype);
        policy.parts.push(Policy::stored_as(dtype));
        policy
    }
}
