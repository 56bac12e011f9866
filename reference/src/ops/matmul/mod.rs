//! `matmul`: y[m, n] = sum_k x[m, k] weight[n, k] + bias\[n\], torch's `nn.functional.linear`.
//!
//! Shapes: x [..., K], weight [N, K] (torch's Linear layout), bias \[N\] or absent; output [..., N].
//! Products of bf16 are exact in f32; the sum accumulates in f32 in any order.
//! With `alpha` the sum is multiplied by it before the bias, as BLAS' gemm does with beta = 1.
//! Points: `x` and `weight` (a row of each before the products), `accumulated` (the sum before the bias),
//! `output`.
//! Conventions: the bias joins the f32 accumulator (one rounding), or is added to the stored product
//! (two roundings, as an eager framework without a fused epilogue does). A row-parallel layer of a
//! model split over n ranks may be the sum of n stored partial products, the bias in rank 0's
//! (`partials=2`, `4`, `8`), added in f32 or stored after each rank (`4_stored`, `8_stored`; of two
//! parts the first is stored anyway).
//! Non-finite values follow IEEE. K = 0 is refused.
//!
//! Source: <https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html>

pub(super) mod faults;

use serde::{Deserialize, Serialize};

use super::args::{in_parallel, run_of};
use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_at,
    gain_faults, need,
};
use crate::arith::Real;
use crate::arith::matmul::Weights;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// How the weight's memory is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// [N, K]: torch's Linear.
    #[default]
    OutIn,
    /// [K, N]: as a GPTQ dequantisation leaves it.
    InOut,
    /// The memory of [N, K] read as if it were [K, N]: a fault.
    Misread,
}

/// Which element of the bias an output gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bias {
    /// bias\[n\].
    #[default]
    ByColumn,
    /// bias[m mod N]: a fault.
    ByRow,
    /// None although there is one: a fault.
    Dropped,
    /// So many times, by every rank of a row-parallel layer: a fault.
    Times(usize),
}

/// Semantic knobs; shapes come from the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Memory layout of the weight.
    pub layout: Layout,
    /// Bias indexing.
    pub bias: Bias,
    /// Whether a model split over ranks splits the reduction of this layer.
    pub row_parallel: bool,
    /// Over how many ranks it is split: their partial products are stored, then added. 0 is 1.
    pub ranks: usize,
    /// Whether the sum over ranks is stored after each rank.
    pub ranks_stored: bool,
    /// Factor of the sum, before the bias.
    #[serde(skip_serializing_if = "is_one")]
    pub alpha: f64,
    /// The first column that lacks the factor: a fault.
    pub alpha_until: Option<usize>,
}

fn is_one(x: &f64) -> bool {
    *x == 1.0
}

impl Default for Params {
    fn default() -> Self {
        Params {
            layout: Layout::OutIn,
            bias: Bias::ByColumn,
            row_parallel: false,
            ranks: 0,
            ranks_stored: false,
            alpha: 1.0,
            alpha_until: None,
        }
    }
}

impl Params {
    /// Whether something depends on the number of a column, so that a part of the columns cannot stand
    /// for itself.
    pub(super) fn by_column(&self) -> bool {
        self.layout == Layout::Misread
            || self.bias == Bias::ByRow
            || self.alpha_until.is_some_and(|until| until > 0)
    }

    /// The sum of row `r` and column `c` with its bias, if there is one.
    fn biased<R: Real>(&self, sum: R, bias: Option<&[R]>, r: usize, c: usize) -> R {
        let Some(bias) = bias else { return sum };
        match self.bias {
            Bias::ByRow => sum.add(bias[r % bias.len()]),
            // Each of the ranks adds it once.
            Bias::Times(n) if n == self.ranks => sum.add(bias[c]),
            Bias::Times(n) => (0..n).fold(sum, |sum, _| sum.add(bias[c])),
            _ => sum.add(bias[c]),
        }
    }

    /// The sum of column `c` times alpha.
    pub(super) fn scaled<R: Real>(&self, sum: R, c: usize) -> R {
        let ignored = self.alpha_until.is_some_and(|until| c >= until);
        if self.alpha == 1.0 || ignored { sum } else { sum.mul(R::constant(self.alpha)) }
    }
}

/// The op.
#[derive(Debug)]
pub struct Matmul;

/// (M, K, N) of checked arguments.
fn dims(params: &Params, x: &[usize], w: &[usize]) -> (usize, usize, usize) {
    let k = x.last().copied().unwrap_or(1);
    let m = x.iter().product::<usize>() / k;
    let n = if params.layout == Layout::InOut { w[1] } else { w[0] };
    (m, k, n)
}

/// The outputs by a product of whole matrices, where nothing is done to the weight and each output is one
/// sum; `None` elsewhere, and where the arithmetic has no such product.
fn blocked<R: Real>(
    params: &Params,
    inputs: &Inputs<'_, R>,
    policy: &Policy,
    tile: &Tile,
    rows: &[usize],
    cols: &[usize],
) -> Option<Vec<R>> {
    if params.ranks >= 2 || !policy.is_identity_at("weight") || params.layout == Layout::Misread {
        return None;
    }
    let (x, w) = (inputs.req("x"), inputs.req("weight"));
    let (k, n) = (x.cols(), cols.len());
    let mut activations = x.all();
    if tile.rows.is_some() {
        activations = rows.iter().flat_map(|&r| activations[r * k..(r + 1) * k].to_vec()).collect();
    }
    if !policy.is_identity_at("x") {
        activations.to_mut().chunks_mut(k).for_each(|row| policy.apply("x", row));
    }
    // Errors are carried one by one.
    if !activations.iter().all(|x| x.is_exact()) {
        return None;
    }
    let picked = |i: usize, row: &mut [R]| w.read(cols[i] * k, row);
    let transposed;
    let weights = match (params.layout, w) {
        (Layout::InOut, _) => {
            transposed = columns(w, cols, k);
            Weights::Own(&transposed)
        }
        (_, Arg::Stored(t)) if tile.cols.is_none() => Weights::Stored(t),
        (_, Arg::Made { data, .. }) if tile.cols.is_none() => Weights::Own(data),
        _ => Weights::Made(&picked),
    };
    let mut out = R::products(&activations, k, &weights, n, &policy.acc)?;
    let bias = inputs.get("bias").filter(|_| params.bias != Bias::Dropped);
    let moved = !(policy.is_identity_at("accumulated") && policy.is_identity_at("output"));
    if bias.is_none() && params.alpha == 1.0 && !moved {
        return Some(out);
    }
    let bias = bias.map(Arg::all);
    for (out, &r) in out.chunks_exact_mut(n).zip(rows) {
        for (y, &c) in out.iter_mut().zip(cols) {
            *y = params.scaled(*y, c);
            if moved {
                *y = policy.apply_one("accumulated", *y);
            }
            *y = params.biased(*y, bias.as_deref(), r, c);
            if moved {
                *y = policy.apply_one("output", *y);
            }
        }
    }
    Some(out)
}

/// The wanted columns of a weight [K, N] as rows. A block at a time, so that what is read and what is written
/// is in the cache.
fn columns<R: Real>(w: &Arg<'_, R>, cols: &[usize], k: usize) -> Vec<R> {
    const WIDE: usize = 32;
    const DEEP: usize = 16;
    let n = w.cols();
    let blocks = in_parallel(cols.len().div_ceil(WIDE), &|b| {
        let cols = &cols[b * WIDE..cols.len().min((b + 1) * WIDE)];
        let (width, run) = (cols.len(), run_of(cols));
        let mut rows = vec![R::lift(0.0); width * k];
        let mut block = vec![R::lift(0.0); DEEP * width];
        for first in (0..k).step_by(DEEP) {
            let deep = DEEP.min(k - first);
            for (i, part) in block.chunks_exact_mut(width).take(deep).enumerate() {
                let start = (first + i) * n;
                match &run {
                    Some(run) => w.read(start + run.start, part),
                    None => part.copy_from_slice(&w.gather(start, cols)),
                }
            }
            for (j, row) in rows.chunks_exact_mut(k).enumerate() {
                for (i, x) in row[first..first + deep].iter_mut().enumerate() {
                    *x = block[i * width + j];
                }
            }
        }
        rows
    });
    blocks.concat()
}

/// The sum over ranks of their stored partial products, each over a contiguous part of the reduction.
/// A bias that all of these ranks add is stored with each part, as they would.
fn over_ranks<R: Real>(
    (x, weight): (&[R], &[R]),
    c: usize,
    params: &Params,
    policy: &Policy,
    with_bias: impl Fn(R) -> R,
) -> R {
    let store = |y: R| y.round(policy.output, policy.lambda);
    let part = x.len().div_ceil(params.ranks).max(1);
    let mut parts = x.chunks(part).zip(weight.chunks(part)).enumerate().map(|(rank, (x, w))| {
        let y = params.scaled(R::dot(x, w, 0, &policy.acc), c);
        let biased = rank == 0 || params.bias == Bias::Times(params.ranks);
        store(if biased { with_bias(y) } else { policy.apply_one("accumulated", y) })
    });
    let first = parts.next().unwrap_or(R::lift(0.0));
    let add = |sum: R, y: R| if params.ranks_stored { store(sum).add(y) } else { sum.add(y) };
    parts.fold(first, add)
}

impl Op for Matmul {
    const NAME: &'static str = "matmul";
    const SUMMARY: &'static str = "x weight^T + bias, torch's linear";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("x", "[..., K] activations"),
        ArgSpec::new("weight", "[N, K] weights"),
        ArgSpec::optional("bias", "[N]"),
    ];
    const POINTS: &'static [&'static str] = &["x", "weight", "accumulated", "output"];
    const COLUMNS_APART: bool = true;
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let x = need(Self::NAME, tensors, "x", true)?;
        let w = need(Self::NAME, tensors, "weight", true)?;
        let k = x.cols();
        let reduced = if params.layout == Layout::InOut { 0 } else { 1 };
        if w.shape().len() != 2 || w.shape()[reduced] != k {
            return Err(Error::arg(
                Self::NAME,
                "weight",
                format!("must have {k} in dimension {reduced} of two, has shape {:?}", w.shape()),
            ));
        }
        if !params.alpha.is_finite() {
            return Err(Error::arg(Self::NAME, "alpha", format!("is {}", params.alpha)));
        }
        let n = w.shape()[1 - reduced];
        if let Some(b) = tensors.get("bias") {
            need(Self::NAME, tensors, "bias", true)?;
            if b.shape() != [n] {
                return Err(Error::arg(
                    Self::NAME,
                    "bias",
                    format!("must have shape [{n}], has {:?}", b.shape()),
                ));
            }
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
        let (x, w) = (inputs.req("x"), inputs.req("weight"));
        let (m, k, n) = dims(params, x.shape(), w.shape());
        let (rows, cols) = (tile.rows_of(m), tile.cols_of(n));
        if let Some(data) = blocked(params, inputs, policy, tile, &rows, &cols) {
            return vec![Out { name: "output", data }];
        }
        let activations = |&r: &usize| {
            let mut row = x.row(r);
            policy.apply("x", &mut row);
            row
        };
        // Whole rows, or rows that ranks have parts of.
        let (mut xs, mut parted): (Vec<R::Vector>, Vec<Vec<R>>) = (Vec::new(), Vec::new());
        if params.ranks < 2 {
            xs = rows.iter().map(|r| R::prepare(activations(r))).collect();
        } else {
            parted = rows.iter().map(activations).collect();
        }
        let bias = inputs.get("bias").filter(|_| params.bias != Bias::Dropped).map(Arg::all);
        let column = |i: usize| {
            let c = cols[i];
            let mut weight: Vec<R> = match params.layout {
                Layout::OutIn => w.row(c),
                Layout::InOut | Layout::Misread => (0..k).map(|i| w.at(i * n + c)).collect(),
            };
            policy.apply("weight", &mut weight);
            let with_bias = |r: usize, sum: R| {
                let sum = policy.apply_one("accumulated", sum);
                params.biased(sum, bias.as_deref(), r, c)
            };
            if params.ranks < 2 {
                let weight = R::prepare(weight);
                let dot = |x| params.scaled(R::dot_prepared(x, &weight, 0, &policy.acc), c);
                return xs.iter().zip(&rows).map(|(x, &r)| with_bias(r, dot(x))).collect();
            }
            let one = |(x, &r): (&Vec<R>, &usize)| {
                over_ranks((x, &weight), c, params, policy, |sum| with_bias(r, sum))
            };
            parted.iter().zip(&rows).map(one).collect()
        };
        let columns: Vec<Vec<R>> = in_parallel(cols.len(), &column);
        let mut data = Vec::with_capacity(rows.len() * cols.len());
        for r in 0..rows.len() {
            data.extend(columns.iter().map(|c| policy.apply_one("output", c[r])));
        }
        vec![Out { name: "output", data }]
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let bias = Knob::new("bias", "in_accumulator").or("after_store", |s: &mut Setup<Self>| {
            if s.tensors.contains_key("bias") {
                s.policy.round_at("accumulated", s.policy.output.dtype);
            }
        });
        if !params.row_parallel {
            return vec![bias];
        }
        let mut partials = Knob::new("partials", "1");
        for (value, ranks, stored) in [
            ("2", 2, false),
            ("4", 4, false),
            ("8", 8, false),
            ("4_stored", 4, true),
            ("8_stored", 8, true),
        ] {
            partials = partials.or_eager(value, move |s: &mut Setup<Self>| {
                s.params.ranks = ranks;
                s.params.ranks_stored = stored;
            });
        }
        vec![bias, partials]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let (Some(x), Some(w)) = (tensors.get("x"), tensors.get("weight")) else {
            return Vec::new();
        };
        let (_, k, n) = dims(params, x.shape(), w.shape());
        faults::catalogue(params, [k, n], x, tensors.contains_key("bias"))
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        // A factor on the product comes before the bias, if there is one.
        let bias = residual.tensors.get("bias");
        let addend = |i: usize| bias.map_or(0.0, |b| b.get(i % residual.cols));
        let interval = residual.gain_before(0..residual.expected.len(), addend);
        let mut faults = gain_at("A115", "accumulated", interval);
        faults.extend(gain_faults("A115", residual));
        faults
    }
}
