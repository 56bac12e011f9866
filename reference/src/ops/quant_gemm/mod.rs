//! Linear layers over quantised weights: a composite of a dequantisation, edge `weight`, and `matmul`.
//!
//! Shapes: x [..., K], the tensors of the dequantisation, bias \[N\] or absent; output [..., N].
//! The dequantised weight is an edge: stored in the model's dtype between the two parts, or carried
//! on in f32 (`edge=f32`). Knobs and faults are those of the parts.
//! With FP8 weights the activations may be quantised too, as the block-scaled GEMMs of serving stacks
//! do (`activations=fp8`): each row of x in groups of 128 is divided by s = max |x| / 448, rounded to
//! e4m3, and the product multiplies codes, with s and the weight's scale applied to the sums of a
//! group. That is x' = s e4m3(x / s) times an f32 edge; a group of zeros stays zero. It is the default
//! of none of the frameworks on a CPU. What kernels get wrong who multiply codes and apply scales later,
//! or who quantise activations for other weights, is among the faults.

mod activations;
mod faults;
mod overflow;
mod unscaled;

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

pub use self::activations::Activations;
use self::faults::{lift_dequant, lift_knob, lift_matmul};
pub use self::unscaled::Unscaled;
use super::args::in_parallel;
use super::awq_dequant::AwqDequant;
use super::ct_dequant::CtDequant;
use super::fp8_dequant::Fp8Dequant;
use super::gptq_dequant::GptqDequant;
use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    gain_faults, matmul, need,
};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::{Policy, Transform};

/// Columns of a product whose weights are dequantised at a time: they stay in the cache, and a layer's weight is
/// never whole in memory.
const COLUMNS: usize = 256;

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

    /// The argument that holds the scales.
    const SCALE: &'static str;

    /// An argument that has a column, or a row where weights are rows, for each column of the product.
    const PER_COLUMN: &'static str = Self::SCALE;

    /// Activations that share a scale where they are quantised as well; `None` where the format has
    /// no such convention.
    fn activation_group(_params: &Self::Params) -> Option<usize> {
        None
    }

    /// Columns of the product.
    fn outputs<R: Real>(inputs: &Inputs<'_, R>) -> usize {
        let argument = inputs.req(Self::PER_COLUMN);
        match Self::LAYOUT {
            matmul::Layout::InOut => argument.cols(),
            matmul::Layout::OutIn | matmul::Layout::Misread => argument.shape()[0],
        }
    }

    /// Of how many consecutive inputs out of `k` the weights of an output share a scale, where no index
    /// says otherwise.
    fn scale_group(params: &Self::Params, k: usize) -> usize;
}

/// The rows of a group out of `k`, where -1 means all.
fn rows_of(group_size: i64, k: usize) -> usize {
    usize::try_from(group_size).unwrap_or(k)
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
    const SCALE: &'static str = "scales";

    fn scale_group(params: &Self::Params, k: usize) -> usize {
        rows_of(params.group_size, k)
    }
}

impl Dequant for AwqDequant {
    const GEMM: &'static str = "awq_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over 4-bit AWQ weights";
    const GEMM_ARGS: &'static [ArgSpec] = &[X, Self::ARGS[0], Self::ARGS[1], Self::ARGS[2], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::InOut;
    const SCALE: &'static str = "scales";

    fn scale_group(params: &Self::Params, k: usize) -> usize {
        rows_of(params.group_size, k)
    }
}

impl Dequant for CtDequant {
    const GEMM: &'static str = "ct_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over compressed-tensors' packed weights";
    const GEMM_ARGS: &'static [ArgSpec] =
        &[X, Self::ARGS[0], Self::ARGS[1], Self::ARGS[2], Self::ARGS[3], Self::ARGS[4], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::OutIn;
    const SCALE: &'static str = "weight_scale";

    fn scale_group(params: &Self::Params, k: usize) -> usize {
        rows_of(params.group_size, k)
    }
}

impl Dequant for Fp8Dequant {
    const GEMM: &'static str = "fp8_gemm";
    const GEMM_SUMMARY: &'static str = "linear layer over block-scaled FP8 weights";
    const GEMM_ARGS: &'static [ArgSpec] = &[X, Self::ARGS[0], Self::ARGS[1], BIAS];
    const LAYOUT: matmul::Layout = matmul::Layout::OutIn;
    const SCALE: &'static str = "weight_scale_inv";
    const PER_COLUMN: &'static str = "weight";

    fn activation_group(params: &Self::Params) -> Option<usize> {
        Some(params.block[1])
    }

    fn scale_group(params: &Self::Params, _k: usize) -> usize {
        params.block[1]
    }
}

/// The parts' params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params<P> {
    /// Dequantisation.
    pub dequant: P,
    /// Product; its layout is that of the dequantised weight.
    pub matmul: matmul::Params,
    /// Whether the edge stays in f32 instead of being stored.
    #[serde(default)]
    pub edge_f32: bool,
    /// Quantisation of x.
    #[serde(default, skip_serializing_if = "Activations::is_stored")]
    pub activations: Activations,
    /// Sums of products with weights that are not scaled yet: a fault unless `no`.
    #[serde(default)]
    pub unscaled: Unscaled,
}

impl<P> Params<P> {
    /// The right op over a dequantisation.
    pub fn new<D: Dequant<Params = P>>(dequant: P) -> Params<P> {
        let matmul = matmul::Params { layout: D::LAYOUT, ..Default::default() };
        Params {
            dequant,
            matmul,
            edge_f32: false,
            activations: Activations::Stored,
            unscaled: Unscaled::No,
        }
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
        if params.activations.is_fp8() && D::activation_group(&params.dequant).is_none() {
            return fail("activations", "are quantised only with fp8 weights".to_owned());
        }
        Ok(())
    }

    /// The product of some columns, whose weights are dequantised together.
    fn product<R: Real>(
        params: &Params<D::Params>,
        inputs: Inputs<'_, R>,
        (policy, part): (&Policy, &Policy),
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let whole = params.matmul.by_column();
        let outputs = tile.cols.clone().filter(|_| !whole);
        let wanted = match D::LAYOUT {
            matmul::Layout::InOut => Tile { rows: None, cols: outputs.clone() },
            matmul::Layout::OutIn | matmul::Layout::Misread => {
                Tile { rows: outputs.clone(), cols: None }
            }
        };
        let weight = D::eval(&params.dequant, &inputs, part, &wanted).remove(0).data;
        let k = inputs.req("x").cols();
        let n = weight.len() / k;
        let shape = if D::LAYOUT == matmul::Layout::InOut { vec![k, n] } else { vec![n, k] };
        let mut edges = inputs.clone().with("weight", Arg::made(shape, weight));
        if let (Some(bias), Some(cols)) = (inputs.get("bias"), &outputs) {
            let data = cols.iter().map(|&c| bias.at(c)).collect();
            edges = edges.with("bias", Arg::made(vec![n], data));
        }
        let cols = tile.cols.clone().filter(|_| whole);
        matmul::Matmul::eval(
            &params.matmul,
            &edges,
            policy,
            &Tile { rows: tile.rows.clone(), cols },
        )
    }

    /// x, quantised where the convention says so.
    fn activations<'a, R: Real>(
        params: &Params<D::Params>,
        x: &Arg<'a, R>,
        lambda: f64,
    ) -> Option<Arg<'a, R>> {
        if params.activations.is_stored() {
            return None;
        }
        let group = D::activation_group(&params.dequant).unwrap_or(x.cols());
        let rows = x.shape().iter().product::<usize>() / x.cols();
        let mut data = Vec::with_capacity(rows * x.cols());
        for r in 0..rows {
            let mut row = x.row(r);
            params.activations.apply(&mut row, group, lambda);
            data.extend(row);
        }
        Some(Arg::made(x.shape().to_vec(), data))
    }
}

impl<D: Dequant> Op for QuantGemm<D> {
    const NAME: &'static str = D::GEMM;
    const SUMMARY: &'static str = D::GEMM_SUMMARY;
    const ARGS: &'static [ArgSpec] = D::GEMM_ARGS;
    const POINTS: &'static [&'static str] = &["x", "weight", "accumulated", "output"];
    const COLUMNS_APART: bool = true;
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
        if params.unscaled != Unscaled::No {
            return unscaled::eval::<D, R>(params, inputs, policy, tile);
        }
        let mut part = policy.parts[0].clone();
        part.lambda = policy.lambda;
        if !params.edge_f32 {
            part.points.push(("output", Transform::Round(part.output)));
        }
        let mut edges = inputs.clone();
        if let Some(x) = Self::activations(params, inputs.req("x"), policy.lambda) {
            edges = edges.with("x", x);
        }
        let cols = tile.cols_of(D::outputs(inputs));
        // What depends on the number of a column needs the whole weight.
        if params.matmul.by_column() || cols.len() <= COLUMNS {
            return Self::product(params, edges, (policy, &part), tile);
        }
        let blocks: Vec<&[usize]> = cols.chunks(COLUMNS).collect();
        let parts = in_parallel(blocks.len(), &|b| {
            let tile = Tile { rows: tile.rows.clone(), cols: Some(blocks[b].to_vec()) };
            Self::product(params, edges.clone(), (policy, &part), &tile).remove(0).data
        });
        let rows = parts[0].len() / COLUMNS;
        let row = |r: usize| {
            let of = move |(part, cols): (&'_ Vec<R>, &&[usize])| {
                let n = cols.len();
                part[r * n..(r + 1) * n].to_vec()
            };
            parts.iter().zip(&blocks).flat_map(of)
        };
        vec![Out { name: "output", data: (0..rows).flat_map(row).collect() }]
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
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Self::Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1B0", residual)
    }

    fn evidence(params: &Self::Params, residual: &Residual<'_>) -> Vec<String> {
        overflow::evidence::<D>(params, residual).into_iter().collect()
    }

    fn policy(dtype: Dtype) -> Policy {
        let mut policy = Policy::stored_as(dtype);
        policy.parts.push(Policy::stored_as(dtype));
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::Ball;
    use crate::ops::Setup;
    use crate::ops::gptq_dequant::{self, Format};
    use crate::tensor::Tensor;

    /// Columns that are dequantised together do not show in what any of them gives, nor how few are asked for.
    #[test]
    fn blocks_of_columns_are_the_columns() {
        let (m, k, n) = (3, 64, 2 * COLUMNS + 40);
        let words = |count: usize, seed: u32| -> Vec<i32> {
            let one = |i: u32| i.wrapping_add(seed).wrapping_mul(0x9e37_79b1) as i32;
            (0..count as u32).map(one).collect()
        };
        let floats = |dtype: Dtype, shape: &[usize]| {
            let count: usize = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|i| (i * 37 % 101) as f64 / 64.0 - 0.7).collect();
            Tensor::from_f64(dtype, shape, &values)
        };
        let tensors: Tensors = [
            ("x", floats(Dtype::F16, &[m, k])),
            ("qweight", Tensor::from_i32(&[k / 8, n], &words(k / 8 * n, 1))),
            ("qzeros", Tensor::from_i32(&[2, n / 8], &words(2 * n / 8, 2))),
            ("scales", floats(Dtype::F16, &[2, n])),
            ("bias", floats(Dtype::F16, &[n])),
        ]
        .map(|(name, t)| (name.to_owned(), t))
        .into();
        let params = Params::new::<GptqDequant>(gptq_dequant::Params::new(Format::V1, 32));
        GptqGemm::check(&params, &tensors).expect("a sound case");
        let setup = Setup::<GptqGemm> { params, tensors, policy: GptqGemm::policy(Dtype::F16) };
        fn bits<R: Real>(setup: &Setup<GptqGemm>, tile: &Tile) -> Vec<(u64, u64)> {
            let inputs = Inputs::stored(&setup.tensors);
            let data =
                GptqGemm::eval::<R>(&setup.params, &inputs, &setup.policy, tile).remove(0).data;
            data.iter().map(|x| (x.value().to_bits(), x.spread().to_bits())).collect()
        }
        fn agree<R: Real>(setup: &Setup<GptqGemm>, m: usize, n: usize) {
            let all = bits::<R>(setup, &Tile::ALL);
            assert_eq!(all.len(), m * n);
            let cols: Vec<usize> = (0..n).filter(|c| c % 7 == 3).collect();
            let few = bits::<R>(setup, &Tile { rows: Some(vec![2]), cols: Some(cols.clone()) });
            let want: Vec<_> = cols.iter().map(|c| all[2 * n + c]).collect();
            assert_eq!(few, want);
        }
        agree::<f32>(&setup, m, n);
        agree::<f64>(&setup, m, n);
        agree::<Ball<24>>(&setup, m, n);
    }
}
