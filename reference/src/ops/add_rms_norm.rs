//! `add_rms_norm`: the residual addition and the norm that follows it, as fused kernels do them: a
//! composite of `add`, edge `residual`, and `rms_norm`.
//!
//! Shapes: a (the residual stream) and b (the block's output) [..., D], weight \[D\]; outputs `output` =
//! rms_norm(a + b) and `residual` = a + b, both [..., D]. Fused kernels write both in place.
//! Points: `residual` (the sum as the norm sees it), `squares`, `normalised`, `output`; the stored sum is
//! the `output` of the first part.
//! Conventions: the norm reads the sum as it is stored (`residual=stored`: vLLM's fused CUDA kernel adds
//! in the stored type, and an eager framework reads the tensor back) or as it was in f32
//! (`residual=f32`: FlashInfer's kernel keeps it in shared memory, vLLM's own torch fallback in a
//! tensor); and those of rms_norm.
//!
//! Source: <https://github.com/vllm-project/vllm/blob/main/csrc/layernorm_kernels.cu>,
//! <https://github.com/flashinfer-ai/flashinfer/blob/main/include/flashinfer/norm.cuh>

use serde::{Deserialize, Serialize};

use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    add::{self, Add},
    gain_at,
    lens::Lens,
    need,
    rms_norm::{self, RmsNorm},
};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::tensor::Tensor;

/// What ends in the output `residual`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Written {
    /// a + b.
    #[default]
    Sum,
    /// a, as it was: a fault.
    Old,
    /// The normalised value, as when both outputs share a buffer: a fault.
    Normalised,
}

/// The parts' params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Addition.
    #[serde(default)]
    pub add: add::Params,
    /// Norm.
    pub norm: rms_norm::Params,
    /// Whether the norm sees the sum in f32 instead of as stored.
    #[serde(default)]
    pub edge_f32: bool,
    /// What is written to `residual`.
    #[serde(default)]
    pub written: Written,
    /// The norm reads a before the sum is written to it: a fault.
    #[serde(default)]
    pub norm_of_old: bool,
}

impl Params {
    /// The right op with `eps`.
    pub fn new(eps: f64) -> Params {
        Params {
            add: add::Params::default(),
            norm: rms_norm::Params::new(eps),
            edge_f32: false,
            written: Written::Sum,
            norm_of_old: false,
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct AddRmsNorm;

const ADD: Lens<AddRmsNorm, Add> = Lens { params: |p| &mut p.add, policy: |p| &mut p.parts[0] };
const NORM: Lens<AddRmsNorm, RmsNorm> = Lens { params: |p| &mut p.norm, policy: |p| p };

/// The stored sum has its own names.
const RESIDUAL_STORE: &[(&str, &str, &str)] = &[
    ("truncating_store", "A2B0", "residual_truncating_store"),
    ("ties_away_store", "A2B1", "residual_ties_away_store"),
    ("sum_f16", "A2B5", "residual_sum_f16"),
];

/// The case as the norm's: x is the sum.
fn norm_tensors(tensors: &Tensors) -> Option<Tensors> {
    let (a, b) = (tensors.get("a")?, tensors.get("b")?);
    let b = b.to_f64();
    let sum: Vec<f64> = a.to_f64().iter().zip(&b).map(|(a, b)| a + b).collect();
    let mut own = tensors.clone();
    own.insert("x".into(), Tensor::from_f64(Dtype::F64, a.shape(), &sum));
    Some(own)
}

impl Op for AddRmsNorm {
    const NAME: &'static str = "add_rms_norm";
    const SUMMARY: &'static str = "residual addition and the norm of the sum, fused";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("a", "[..., D] residual"),
        ArgSpec::new("b", "[..., D] block output"),
        ArgSpec::new("weight", "[D]"),
    ];
    const POINTS: &'static [&'static str] = &["residual", "squares", "normalised", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let a = need(Self::NAME, tensors, "a", true)?;
        let b = need(Self::NAME, tensors, "b", true)?;
        let w = need(Self::NAME, tensors, "weight", true)?;
        let fail = |arg: &str, what: String| Err(Error::arg(Self::NAME, arg, what));
        if a.shape() != b.shape() {
            return fail("b", format!("must have a's shape {:?}, has {:?}", a.shape(), b.shape()));
        }
        if w.shape() != [a.cols()] {
            return fail("weight", format!("must have shape [{}], has {:?}", a.cols(), w.shape()));
        }
        let eps = params.norm.eps;
        if !(eps.is_finite() && eps >= 0.0) {
            return fail("norm.eps", format!("must be >= 0, is {eps}"));
        }
        if params.norm.heads.is_some() {
            return fail("norm.heads", "must be missing: all of a row is normalised".into());
        }
        let out = |name| OutSpec { name, shape: a.shape().to_vec() };
        Ok(vec![out("output"), out("residual")])
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let a = inputs.req("a");
        let d = a.cols();
        if params.norm.vector.is_some()
            && let Some(rows) = &tile.rows
        {
            // What the row before stores into the next one is needed too.
            let whole = Tile { rows: None, cols: tile.cols.clone() };
            let n = tile.cols_of(d).len();
            let pick = |data: &[R]| rows.iter().flat_map(|r| data[r * n..][..n].to_vec()).collect();
            return Self::eval(params, inputs, policy, &whole)
                .into_iter()
                .map(|out| Out { name: out.name, data: pick(&out.data) })
                .collect();
        }
        let rows = Tile { rows: tile.rows.clone(), cols: None };
        let mut part = policy.parts[0].clone();
        (part.acc, part.lambda) = (policy.acc, policy.lambda);
        let sum = Add::eval(&params.add, inputs, &part, &rows).remove(0).data;
        let old = || {
            let wanted = rows.rows_of(a.shape().iter().product::<usize>() / d);
            wanted.into_iter().flat_map(|r| a.row(r)).collect::<Vec<R>>()
        };
        let mut x = if params.norm_of_old { old() } else { sum.clone() };
        if !params.edge_f32 {
            x.iter_mut().for_each(|x| *x = x.round(part.output, part.lambda));
        }
        x.chunks_mut(d).for_each(|row| policy.apply("residual", row));
        let edges = inputs.clone().with("x", Arg::made(vec![x.len() / d, d], x));
        let norm = |cols: Option<Vec<usize>>| {
            RmsNorm::eval(&params.norm, &edges, policy, &Tile { rows: None, cols }).remove(0)
        };
        let written = match params.written {
            Written::Sum => sum,
            Written::Old => old(),
            Written::Normalised => norm(None).data,
        };
        let mut residual = Vec::with_capacity(written.len());
        written.chunks(d).for_each(|row| tile.pick(row, &mut residual));
        vec![norm(tile.cols.clone()), Out { name: "residual", data: residual }]
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let edge = Knob::new("residual", "stored")
            .or("f32", |s: &mut Setup<Self>| s.params.edge_f32 = true);
        let norm = RmsNorm::knobs(&params.norm).into_iter().map(|k| NORM.knob(k));
        std::iter::once(edge).chain(norm).collect()
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let Some(own) = norm_tensors(tensors) else { return Vec::new() };
        let mut faults: Vec<Fault<Self>> =
            ADD.faults(Add::faults(&params.add, tensors), RESIDUAL_STORE).collect();
        faults.extend(own_faults());
        faults.extend(NORM.faults(RmsNorm::faults(&params.norm, &own), &[]));
        faults
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        let Some(own) = norm_tensors(residual.tensors) else { return Vec::new() };
        let part = Residual { tensors: &own, ..*residual };
        let mut faults: Vec<Fault<Self>> =
            NORM.faults(RmsNorm::propose(&params.norm, &part), &[]).collect();
        let interval = residual.gain_interval(0..residual.expected.len());
        faults.extend(
            ADD.faults(gain_at("A2B2", "output", interval), &[("gain", "A2B2", "residual_gain")]),
        );
        faults
    }

    fn evidence(params: &Params, residual: &Residual<'_>) -> Vec<String> {
        let Some(own) = norm_tensors(residual.tensors) else { return Vec::new() };
        RmsNorm::evidence(&params.norm, &Residual { tensors: &own, ..*residual })
    }

    fn policy(dtype: Dtype) -> Policy {
        let mut policy = Policy::stored_as(dtype);
        policy.parts.push(Policy::stored_as(dtype));
        policy
    }

    fn rounding(_params: &Params, policy: &Policy, index: usize) -> Rounding {
        if index == 0 { policy.output } else { policy.parts[0].output }
    }
}

/// What only the fused kernel can get wrong.
fn own_faults() -> Vec<Fault<AddRmsNorm>> {
    type S = Setup<AddRmsNorm>;
    vec![
        Fault::new(
            "A2B3",
            "residual_not_updated",
            "the output `residual` holds the old residual: the sum is not written back",
            |s: &mut S| s.params.written = Written::Old,
        ),
        Fault::new(
            "A2B4",
            "residual_normalised",
            "the output `residual` holds the normalised value: both outputs share a buffer",
            |s: &mut S| s.params.written = Written::Normalised,
        ),
        Fault::new(
            "A2B6",
            "norm_of_old_residual",
            "the norm reads the residual before the block's output is added",
            |s: &mut S| s.params.norm_of_old = true,
        ),
    ]
}
