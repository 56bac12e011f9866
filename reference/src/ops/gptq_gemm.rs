//! `gptq_gemm`: a composite: `gptq_dequant`, edge `weight`, `matmul`.
//!
//! Shapes: x [..., K], the tensors of `gptq_dequant`, bias \[N\] or absent; output [..., N].
//! The dequantised weight is an edge: stored in the model's dtype between the two parts, or carried
//! on in f32 (`edge=f32`). Knobs and faults are those of the parts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Arg, ArgSpec, Choice, Edit, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors,
    Tile, gain_faults, gptq_dequant, matmul, need,
};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::{Policy, Transform};

/// The parts' params.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Dequantisation.
    pub dequant: gptq_dequant::Params,
    /// Product; its layout is [`matmul::Layout::InOut`].
    pub matmul: matmul::Params,
    /// Whether the edge stays in f32 instead of being stored.
    #[serde(default)]
    pub edge_f32: bool,
}

impl Params {
    /// The right op over a dequantisation.
    pub fn new(dequant: gptq_dequant::Params) -> Params {
        let matmul = matmul::Params { layout: matmul::Layout::InOut, ..Default::default() };
        Params { dequant, matmul, edge_f32: false }
    }
}

/// The op.
#[derive(Debug)]
pub struct GptqGemm;

impl Op for GptqGemm {
    const NAME: &'static str = "gptq_gemm";
    const SUMMARY: &'static str = "linear layer over 4-bit GPTQ weights";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("x", "[..., K] activations"),
        ArgSpec::new("qweight", "[K/8, N] i32, packed along K"),
        ArgSpec::new("qzeros", "[G, N/8] i32, packed along N"),
        ArgSpec::new("scales", "[G, N]"),
        ArgSpec::optional("g_idx", "[K] i32"),
        ArgSpec::optional("bias", "[N]"),
    ];
    const POINTS: &'static [&'static str] = &["x", "accumulated", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let weight = gptq_dequant::GptqDequant::check(&params.dequant, tensors)?;
        let x = need(Self::NAME, tensors, "x", true)?;
        let (k, n) = (weight[0].shape[0], weight[0].shape[1]);
        if x.cols() != k {
            let what = format!("must have {k} columns, has shape {:?}", x.shape());
            return Err(Error::arg(Self::NAME, "x", what));
        }
        let mut shape = x.shape().to_vec();
        *shape.last_mut().expect("x is not empty") = n;
        Ok(OutSpec::output(shape))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let mut part = policy.parts[0].clone();
        part.lambda = policy.lambda;
        if !params.edge_f32 {
            part.points.push(("output", Transform::Round(part.output)));
        }
        let columns = Tile { rows: None, cols: tile.cols.clone() };
        let weight =
            gptq_dequant::GptqDequant::eval(&params.dequant, inputs, &part, &columns).remove(0);
        let k = inputs.req("x").cols();
        let n = weight.data.len() / k;
        let mut edges =
            inputs.clone().with("weight", Arg::Made { shape: vec![k, n], data: weight.data });
        if let (Some(bias), Some(cols)) = (inputs.get("bias"), &tile.cols) {
            let data = cols.iter().map(|&c| bias.at(c)).collect();
            edges = edges.with("bias", Arg::Made { shape: vec![n], data });
        }
        let rows = Tile { rows: tile.rows.clone(), cols: None };
        matmul::Matmul::eval(&params.matmul, &edges, policy, &rows)
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let mut knobs = vec![Knob::new("edge", "stored").or("f32", |s: &mut Setup<Self>| {
            s.params.edge_f32 = true;
        })];
        knobs.extend(
            gptq_dequant::GptqDequant::knobs(&params.dequant)
                .into_iter()
                .map(|k| lift_knob(k, lift_dequant)),
        );
        knobs.extend(
            matmul::Matmul::knobs(&params.matmul).into_iter().map(|k| lift_knob(k, lift_matmul)),
        );
        knobs
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let dequant = gptq_dequant::GptqDequant::faults(&params.dequant, tensors)
            .into_iter()
            .map(|f| weight_store(lift_fault(f, lift_dequant)));
        let (Some(x), Some(qweight)) = (tensors.get("x"), tensors.get("qweight")) else {
            return dequant.collect();
        };
        let bias = tensors.contains_key("bias");
        let layout = params.matmul.layout;
        let product = matmul::faults::catalogue(x.cols(), qweight.cols(), bias, layout)
            .into_iter()
            .map(|f| lift_fault(f, lift_matmul));
        dequant.chain(product).collect()
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1B0", residual)
    }

    fn policy(dtype: Dtype) -> Policy {
        let mut policy = Policy::stored_as(dtype);
        policy.parts.push(Policy::stored_as(dtype));
        policy
    }
}

/// An edit of the dequantisation as an edit of the composite.
fn lift_dequant(edit: Edit<gptq_dequant::GptqDequant>) -> Edit<GptqGemm> {
    Arc::new(move |s| {
        let mut part = Setup {
            params: s.params.dequant.clone(),
            policy: s.policy.parts[0].clone(),
            tensors: std::mem::take(&mut s.tensors),
        };
        edit(&mut part);
        s.params.dequant = part.params;
        s.policy.parts[0] = part.policy;
        s.tensors = part.tensors;
    })
}

/// An edit of the product as an edit of the composite.
fn lift_matmul(edit: Edit<matmul::Matmul>) -> Edit<GptqGemm> {
    Arc::new(move |s| {
        let mut part = Setup {
            params: s.params.matmul.clone(),
            policy: s.policy.clone(),
            tensors: std::mem::take(&mut s.tensors),
        };
        edit(&mut part);
        s.params.matmul = part.params;
        s.policy = part.policy;
        s.tensors = part.tensors;
    })
}

/// The store of the dequantised weight is another than the product's, and has its own names.
fn weight_store(fault: Fault<GptqGemm>) -> Fault<GptqGemm> {
    let (code, slug) = match fault.slug {
        "truncating_store" => ("A1B1", "weight_truncating_store"),
        "ties_away_store" => ("A1B2", "weight_ties_away_store"),
        _ => (fault.code, fault.slug),
    };
    Fault { code, slug, ..fault }
}

fn lift_knob<P: Op>(knob: Knob<P>, lift: fn(Edit<P>) -> Edit<GptqGemm>) -> Knob<GptqGemm> {
    let choices = knob
        .choices
        .into_iter()
        .map(|c| Choice { value: c.value, framework_only: c.framework_only, edit: lift(c.edit) })
        .collect();
    Knob { name: knob.name, choices }
}

fn lift_fault<P: Op>(fault: Fault<P>, lift: fn(Edit<P>) -> Edit<GptqGemm>) -> Fault<GptqGemm> {
    Fault {
        code: fault.code,
        slug: fault.slug,
        key: fault.key,
        detail: fault.detail,
        edit: lift(fault.edit),
    }
}
