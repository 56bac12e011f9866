//! Products with weights that are not scaled yet, and what kernels lose there.

use serde::{Deserialize, Serialize};

use super::{Dequant, Params};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::ops::matmul::Layout;
use crate::ops::{Arg, Inputs, Out, Tile};
use crate::policy::Policy;

/// Whether sums are formed before the scale is applied, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unscaled {
    /// No: weights are dequantised first.
    #[default]
    No,
    /// Of each 8 consecutive inputs the even and the odd ones are summed in f16, fused; both sums are
    /// added in f32, scaled, and added to the f32 accumulator: a fault.
    SummedInF16,
    /// The sum of a group, in f32, is rounded to this dtype before it is scaled: a fault.
    Cast(Dtype),
}

/// Inputs of one sum in f16.
pub(super) const BLOCK: usize = 8;
/// Sums in f16 that share a block.
pub(super) const LANES: usize = 2;

/// The weight before it is scaled, and its scales.
struct Weight<R> {
    /// [n][k]
    codes: Vec<Vec<R>>,
    /// [n][group]
    scales: Vec<Vec<R>>,
    group: usize,
}

impl<R: Real> Weight<R> {
    /// The columns `cols` of the weight. The scale of a group is what its first code other than 0 is
    /// multiplied by; that of a group of zeros does not matter.
    fn of<D: Dequant>(
        params: &D::Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        cols: &[usize],
        k: usize,
    ) -> Weight<R> {
        let in_out = D::LAYOUT == Layout::InOut;
        let tile = match in_out {
            true => Tile { rows: None, cols: Some(cols.to_vec()) },
            false => Tile { rows: Some(cols.to_vec()), cols: None },
        };
        let mut scaling = policy.clone();
        scaling.points.retain(|(point, _)| *point == "scale");
        let dequantised = D::eval(params, inputs, &scaling, &tile).remove(0).data;
        let shape = inputs.req(D::SCALE).shape().to_vec();
        let data = vec![R::lift(1.0); shape.iter().product()];
        let ones = inputs.clone().with(D::SCALE, Arg::made(shape, data));
        scaling.points.clear();
        let codes = D::eval(params, &ones, &scaling, &tile).remove(0).data;
        let place = |n: usize, k_at: usize| match in_out {
            true => k_at * cols.len() + n,
            false => n * k + k_at,
        };
        let group = D::scale_group(params, k);
        let column = |data: &[R], n: usize| (0..k).map(|i| data[place(n, i)]).collect::<Vec<R>>();
        let codes: Vec<Vec<R>> = (0..cols.len()).map(|n| column(&codes, n)).collect();
        let scale = |n: usize, start: usize| {
            let end = (start + group).min(k);
            let first = (start..end).find(|&i| codes[n][i].value() != 0.0);
            first.map_or(R::lift(0.0), |i| dequantised[place(n, i)].div(codes[n][i]))
        };
        let scales =
            (0..cols.len()).map(|n| (0..k).step_by(group).map(|at| scale(n, at)).collect());
        Weight { scales: scales.collect(), codes, group }
    }

    /// The sum over k of x with column `n`.
    fn product(&self, x: &[R], n: usize, unscaled: Unscaled, policy: &Policy) -> R {
        let (codes, scales) = (&self.codes[n], &self.scales[n]);
        let terms: Vec<R> = match unscaled {
            Unscaled::SummedInF16 => {
                let blocks = x.chunks(BLOCK).zip(codes.chunks(BLOCK)).enumerate();
                let scale = |b: usize| scales[b * BLOCK / self.group];
                blocks.map(|(b, (x, q))| summed_in_f16(x, q, policy.lambda).mul(scale(b))).collect()
            }
            Unscaled::Cast(dtype) => {
                let groups = x.chunks(self.group).zip(codes.chunks(self.group)).zip(scales);
                let sum = |x: &[R], q: &[R]| {
                    let sum = R::dot(x, q, 0, &policy.acc);
                    sum.round(Rounding::nearest(dtype), policy.lambda)
                };
                groups.map(|((x, q), scale)| sum(x, q).mul(*scale)).collect()
            }
            Unscaled::No => unreachable!("weights are dequantised first"),
        };
        R::sum(&terms, 0, &policy.acc)
    }
}

fn summed_in_f16<R: Real>(x: &[R], codes: &[R], lambda: f64) -> R {
    let half = Rounding::nearest(Dtype::F16);
    let mut lanes = [R::lift(0.0); LANES];
    for (i, (x, q)) in x.iter().zip(codes).enumerate() {
        let lane = &mut lanes[i % LANES];
        *lane = lane.add(q.mul(*x)).round(half, lambda);
    }
    lanes[0].add(lanes[1])
}

/// The codes q - z of all columns, `[n][k]`.
pub(super) fn codes<D: Dequant, R: Real>(
    params: &Params<D::Params>,
    inputs: &Inputs<'_, R>,
    n: usize,
    k: usize,
) -> Vec<Vec<R>> {
    let policy = Policy::stored_as(Dtype::F32);
    let columns: Vec<usize> = (0..n).collect();
    Weight::of::<D>(&params.dequant, inputs, &policy, &columns, k).codes
}

/// The op with such sums.
pub(super) fn eval<D: Dequant, R: Real>(
    params: &Params<D::Params>,
    inputs: &Inputs<'_, R>,
    policy: &Policy,
    tile: &Tile,
) -> Vec<Out<R>> {
    let x = inputs.req("x");
    let (k, rows) = (x.cols(), x.shape().iter().product::<usize>() / x.cols());
    let scale = inputs.req(D::SCALE);
    let n = match (D::LAYOUT, inputs.get("weight"), inputs.get("weight_packed")) {
        (Layout::InOut, ..) => scale.cols(),
        (_, Some(weight), _) | (_, None, Some(weight)) => weight.shape()[0],
        _ => unreachable!("checked"),
    };
    let cols = tile.cols_of(n);
    let mut part = policy.parts[0].clone();
    part.lambda = policy.lambda;
    let weight = Weight::of::<D>(&params.dequant, inputs, &part, &cols, k);
    let bias = inputs.get("bias");
    let rows_only = Tile { rows: tile.rows.clone(), cols: None };
    Out::by_rows(&rows_only, rows, |r| {
        let mut row = x.row(r);
        policy.apply("x", &mut row);
        let one = |(i, &c): (usize, &usize)| {
            let sum = weight.product(&row, i, params.unscaled, policy);
            let sum = policy.apply_one("accumulated", params.matmul.scaled(sum, c));
            bias.map_or(sum, |b| sum.add(b.at(c)))
        };
        let mut out: Vec<R> = cols.iter().enumerate().map(one).collect();
        policy.apply("output", &mut out);
        out
    })
}
