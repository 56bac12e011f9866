//! Linear layers over quantised weights: a composite of a dequantisation, edge `weight`, and `matmul`.
//!
//! Shapes: x [..., K], the tensors of the dequantisation, bias \[N\] or absent; output [..., N].
//! The dequantised weight is an edge: stored in the model's dtype between the two parts, or carried
//! on in f32 (`edge=f32`). Knobs and faults are those of the parts.
//! With FP8 weights the activations may be quantised too, as the block-scaled GEMMs of serving stacks
//! do (`activations=fp8`): each row of x in groups of 128 is divided by s = max |x| / 448, rounded to
//! e4m3, and the product multiplies codes, with s and the weight's scale applied to the sums of a
//! group. That is x' = s e4m3(x / s) times an f32 edge; a group of zeros stays zero. It is the default
//! of none of the frameworks on a CPU.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::awq_dequant::AwqDequant;
use super::ct_dequant::CtDequant;
use super::fp8_dequant::Fp8Dequant;
use super::gptq_dequant::GptqDequant;
use super::{
    Arg, ArgSpec, Choice, Edit, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors,
    Tile, gain_faults, matmul, need,
};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding, e4m3};
use crate::error::{Error, Result};
use crate::policy::{Policy, Transform};

/// A dequantisation that can feed a product.
pub trait Dequant: Op + std::fmt::Debug {
    /// The composite's name.
    const GEMM: &'static str;
    /// The composite's line in `assay list`.
    const GEMM_SUMMARY: &'static str;
    /// The composite's arguments: x, the dequantisation's, bias.
    const GEMM_ARGS: &'static [ArgSpec];
    /// The layout of the dequantised weight: [K, N] or [N, K].
    const LAYOUT: matmul::Layout;

    /// Activations that share a scale where they are quantised as well; `None` where the format has
    /// no such convention.
    fn activation_group(_params: &Self::Params) -> Option<usize> {
        None
    }
}

/// The linear layer over GPTQ weights.
pub type GptqGemm = QuantGemm<GptqDequant>;
/// The linear layer over AWQ weights.
pub type AwqGemm = QuantGemm<AwqDequant>;
/// The linear layer over compressed-tensors weights.
pub type CtGemm = QuantGemm<CtDequant>;
/// The linear layer over FP8 weights.
pub type Fp8Gemm = QuantGemm<Fp8Dequant>;

const X: ArgSpec = ArgSpec::new("x", "[..., K] activations");
const BIAS: ArgSpec = ArgSpec::optional("bias", "[N]");

impl Dequant for GptqDequant {
    const GEMM: &'static str = "gptq_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over GPTQ weights";
    const GEMM_ARGS: &'static [ArgSpec] =
        &[X, Self::ARGS[0], Self::ARGS[1], Self::ARGS[2], Self::ARGS[3], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::InOut;
}

impl Dequant for AwqDequant {
    const GEMM: &'static str = "awq_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over 4-bit AWQ weights";
    const GEMM_ARGS: &'static [ArgSpec] = &[X, Self::ARGS[0], Self::ARGS[1], Self::ARGS[2], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::InOut;
}

impl Dequant for CtDequant {
    const GEMM: &'static str = "ct_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over compressed-tensors' packed weights";
    const GEMM_ARGS: &'static [ArgSpec] =
        &[X, Self::ARGS[0], Self::ARGS[1], Self::ARGS[2], Self::ARGS[3], Self::ARGS[4], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::OutIn;
}

impl Dequant for Fp8Dequant {
    const GEMM: &'static str = "fp8_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over block-scaled FP8 weights";
    const GEMM_ARGS: &'static [ArgSpec] = &[X, Self::ARGS[0], Self::ARGS[1], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::OutIn;

    fn activation_group(params: &Self::Params) -> Option<usize> {
        Some(params.block[1])
    }
}

/// What happens to x before the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// As stored.
    #[default]
    Stored,
    /// Quantised to e4m3 with a scale for each group of a row.
    Fp8,
    /// With one scale for each row: a fault.
    Fp8PerToken,
    /// Without a scale: a fault.
    Fp8Unscaled,
}

impl Activations {
    fn is_stored(&self) -> bool {
        *self == Activations::Stored
    }

    /// One row, quantised and back.
    fn apply<R: Real>(self, row: &mut [R], group: usize, lambda: f64) {
        let rounding = Rounding::nearest(Dtype::F8E4m3);
        let size = match self {
            Activations::Stored => return,
            Activations::Fp8Unscaled => {
                row.iter_mut().for_each(|x| *x = x.round(rounding, lambda));
                return;
            }
            Activations::Fp8PerToken => row.len(),
            Activations::Fp8 => group,
        };
        for part in row.chunks_mut(size.max(1)) {
            let largest = |a: R, b: &R| if b.value().abs() > a.value().abs() { *b } else { a };
            let amax = part.iter().fold(R::lift(0.0), largest);
            if amax.value() == 0.0 {
                continue;
            }
            let amax = if amax.value() < 0.0 { amax.neg() } else { amax };
            let scale = amax.div(R::lift(e4m3::LARGEST));
            part.iter_mut().for_each(|x| *x = x.div(scale).round(rounding, lambda).mul(scale));
        }
    }
}

/// The parts' params.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params<P> {
    /// Dequantisation.
    pub dequant: P,
    /// Product; its layout is that of the dequantised weight.
    pub matmul: matmul::Params,
    /// Whether the edge stays in f32 instead of being stored.
    #[serde(default)]
    pub edge_f32: bool,
    /// Quantisation of x, with FP8 weights.
    #[serde(default, skip_serializing_if = "Activations::is_stored")]
    pub activations: Activations,
}

impl<P> Params<P> {
    /// The right op over a dequantisation.
    pub fn new<D: Dequant<Params = P>>(dequant: P) -> Params<P> {
        let matmul = matmul::Params { layout: D::LAYOUT, ..Default::default() };
        Params { dequant, matmul, edge_f32: false, activations: Activations::Stored }
    }
}

/// The op over a dequantisation.
#[derive(Debug)]
pub struct QuantGemm<D>(PhantomData<fn() -> D>);

type S<D> = Setup<QuantGemm<D>>;

impl<D: Dequant> QuantGemm<D> {
    /// N and K of a dequantised shape.
    fn sizes(weight: &[OutSpec]) -> [usize; 2] {
        let shape = &weight[0].shape;
        if D::LAYOUT == matmul::Layout::InOut { [shape[1], shape[0]] } else { [shape[0], shape[1]] }
    }

    /// Refuses params that do not go with the format.
    fn check_params(params: &Params<D::Params>) -> Result<()> {
        let fail = |arg: &str, what: String| Err(Error::arg(Self::NAME, arg, what));
        let misread =
            D::LAYOUT == matmul::Layout::OutIn && params.matmul.layout == matmul::Layout::Misread;
        if params.matmul.layout != D::LAYOUT && !misread {
            let expected = serde_json::json!(D::LAYOUT);
            return fail("matmul.layout", format!("must be {expected} for this format"));
        }
        if !params.activations.is_stored() && D::activation_group(&params.dequant).is_none() {
            return fail("activations", "are quantised only with fp8 weights".to_owned());
        }
        Ok(())
    }

    /// x, quantised where the convention says so.
    fn activations<'a, R: Real>(
        params: &Params<D::Params>,
        x: &Arg<'a, R>,
        lambda: f64,
    ) -> Option<Arg<'a, R>> {
        let group = D::activation_group(&params.dequant)?;
        if params.activations.is_stored() {
            return None;
        }
        let rows = x.shape().iter().product::<usize>() / x.cols();
        let mut data = Vec::with_capacity(rows * x.cols());
        for r in 0..rows {
            let mut row = x.row(r);
            params.activations.apply(&mut row, group, lambda);
            data.extend(row);
        }
        Some(Arg::Made { shape: x.shape().to_vec(), data })
    }
}

impl<D: Dequant> Op for QuantGemm<D> {
    const NAME: &'static str = D::GEMM;
    const SUMMARY: &'static str = D::GEMM_SUMMARY;
    const ARGS: &'static [ArgSpec] = D::GEMM_ARGS;
    const POINTS: &'static [&'static str] = &["x", "accumulated", "output"];
    type Params = Params<D::Params>;

    fn check(params: &Self::Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        Self::check_params(params)?;
        let [n, k] = Self::sizes(&D::check(&params.dequant, tensors)?);
        let x = need(Self::NAME, tensors, "x", true)?;
        if x.cols() != k {
            let what = format!("must have {k} columns, has shape {:?}", x.shape());
            return Err(Error::arg(Self::NAME, "x", what));
        }
        if tensors.contains_key("bias") {
            let bias = need(Self::NAME, tensors, "bias", true)?;
            if bias.shape() != [n] {
                let what = format!("must have shape [{n}], has {:?}", bias.shape());
                return Err(Error::arg(Self::NAME, "bias", what));
            }
        }
        let mut shape = x.shape().to_vec();
        *shape.last_mut().expect("x is not empty") = n;
        Ok(OutSpec::output(shape))
    }

    fn eval<R: Real>(
        params: &Self::Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let mut part = policy.parts[0].clone();
        part.lambda = policy.lambda;
        if !params.edge_f32 {
            part.points.push(("output", Transform::Round(part.output)));
        }
        // Memory that is misread needs the whole weight; else the tile's outputs are enough.
        let whole = params.matmul.layout == matmul::Layout::Misread;
        let outputs = tile.cols.clone().filter(|_| !whole);
        let wanted = match D::LAYOUT {
            matmul::Layout::InOut => Tile { rows: None, cols: outputs.clone() },
            matmul::Layout::OutIn | matmul::Layout::Misread => {
                Tile { rows: outputs.clone(), cols: None }
            }
        };
        let weight = D::eval(&params.dequant, inputs, &part, &wanted).remove(0).data;
        let k = inputs.req("x").cols();
        let n = weight.len() / k;
        let shape = if D::LAYOUT == matmul::Layout::InOut { vec![k, n] } else { vec![n, k] };
        let mut edges = inputs.clone().with("weight", Arg::Made { shape, data: weight });
        if let (Some(bias), Some(cols)) = (inputs.get("bias"), &outputs) {
            let data = cols.iter().map(|&c| bias.at(c)).collect();
            edges = edges.with("bias", Arg::Made { shape: vec![n], data });
        }
        if let Some(x) = Self::activations(params, inputs.req("x"), policy.lambda) {
            edges = edges.with("x", x);
        }
        let cols = tile.cols.clone().filter(|_| whole);
        matmul::Matmul::eval(
            &params.matmul,
            &edges,
            policy,
            &Tile { rows: tile.rows.clone(), cols },
        )
    }

    fn knobs(params: &Self::Params) -> Vec<Knob<Self>> {
        let mut knobs = vec![Knob::new("edge", "stored").or("f32", |s: &mut S<D>| {
            s.params.edge_f32 = true;
        })];
        if D::activation_group(&params.dequant).is_some() {
            knobs.push(Knob::new("activations", "stored").or("fp8", |s: &mut S<D>| {
                s.params.activations = Activations::Fp8;
                s.params.edge_f32 = true;
            }));
        }
        knobs.extend(D::knobs(&params.dequant).into_iter().map(|k| lift_knob(k, lift_dequant)));
        knobs.extend(
            matmul::Matmul::knobs(&params.matmul).into_iter().map(|k| lift_knob(k, lift_matmul)),
        );
        knobs
    }

    fn faults(params: &Self::Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults: Vec<Fault<Self>> = D::faults(&params.dequant, tensors)
            .into_iter()
            .map(|f| weight_store(lift_fault(f, lift_dequant)))
            .collect();
        if let Ok(weight) = D::check(&params.dequant, tensors) {
            let [n, k] = Self::sizes(&weight);
            let bias = tensors.contains_key("bias");
            let mut product = matmul::faults::catalogue(k, n, bias, params.matmul.layout);
            if params.matmul.row_parallel && bias {
                product.extend(matmul::faults::bias_by_rank());
            }
            faults.extend(product.into_iter().map(|f| lift_fault(f, lift_matmul)));
        }
        if D::activation_group(&params.dequant).is_some() {
            faults.extend(activation_faults());
        }
        faults
    }

    fn propose(_params: &Self::Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1B0", residual)
    }

    fn policy(dtype: Dtype) -> Policy {
        let mut policy = Policy::stored_as(dtype);
        policy.parts.push(Policy::stored_as(dtype));
        policy
    }
}

/// Activations that are quantised in another way than by groups.
fn activation_faults<D: Dequant>() -> Vec<Fault<QuantGemm<D>>> {
    let edit = |to: Activations| {
        move |s: &mut S<D>| {
            s.params.activations = to;
            s.params.edge_f32 = true;
        }
    };
    vec![
        Fault::new(
            "A1FA",
            "activations_per_token",
            "activations are quantised to fp8 with one scale for a row instead of one for each group",
            edit(Activations::Fp8PerToken),
        ),
        Fault::new(
            "A1FB",
            "activations_unscaled",
            "activations are rounded to fp8 without a scale",
            edit(Activations::Fp8Unscaled),
        ),
    ]
}

/// An edit of the dequantisation as an edit of the composite.
fn lift_dequant<D: Dequant>(edit: Edit<D>) -> Edit<QuantGemm<D>> {
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
fn lift_matmul<D: Dequant>(edit: Edit<matmul::Matmul>) -> Edit<QuantGemm<D>> {
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
fn weight_store<O: Op>(fault: Fault<O>) -> Fault<O> {
    let (code, slug) = match fault.slug {
        "truncating_store" => ("A1B1", "weight_truncating_store"),
        "ties_away_store" => ("A1B2", "weight_ties_away_store"),
        _ => (fault.code, fault.slug),
    };
    Fault { code, slug, ..fault }
}

fn lift_knob<P: Op, O: Op>(knob: Knob<P>, lift: fn(Edit<P>) -> Edit<O>) -> Knob<O> {
    let choices = knob
        .choices
        .into_iter()
        .map(|c| Choice { value: c.value, framework_only: c.framework_only, edit: lift(c.edit) })
        .collect();
    Knob { name: knob.name, choices }
}

fn lift_fault<P: Op, O: Op>(fault: Fault<P>, lift: fn(Edit<P>) -> Edit<O>) -> Fault<O> {
    Fault {
        code: fault.code,
        slug: fault.slug,
        key: fault.key,
        detail: fault.detail,
        edit: lift(fault.edit),
    }
}
