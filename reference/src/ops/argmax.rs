//! `argmax`: the index of the largest element of each row; greedy decoding.
//!
//! Shapes: x [..., V]; output [...] as a column of indices [rows, 1].
//! Rules, torch's: the first NaN wins over everything; of equal elements the first wins. So a row of
//! NaN, a constant row and a row of -inf all give index 0.
//! Points: none: comparisons are exact.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use super::{ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Setup, Tensors, Tile, need};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::error::Result;
use crate::policy::Policy;

/// Which of equal elements wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tie {
    /// The first, torch's rule.
    #[default]
    First,
    /// The last: a convention of some device reductions.
    Last,
}

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Ties.
    pub tie: Tie,
    /// NaN never wins: a fault, it hides broken logits.
    pub nan_ignored: bool,
    /// The last element is not looked at: a fault.
    pub last_dropped: bool,
    /// The search starts from the value 0 instead of -inf: a fault.
    pub from_zero: bool,
    /// Only whole tiles of so many elements are looked at: a fault.
    pub tile: Option<NonZeroUsize>,
    /// Elements are rounded to bf16 before they are compared: a fault.
    pub compared_in_bf16: bool,
}

/// The op.
#[derive(Debug)]
pub struct Argmax;

/// The index of the largest element under torch's rules. 0 for an empty row.
pub fn argmax(row: &[f64]) -> usize {
    best(row, &Params::default())
}

fn best(row: &[f64], params: &Params) -> usize {
    let mut seen = row.len().saturating_sub(usize::from(params.last_dropped));
    if let Some(tile) = params.tile {
        seen -= seen % tile;
    }
    let row = &row[..seen];
    if !params.nan_ignored
        && let Some(i) = row.iter().position(|x| x.is_nan())
    {
        return i;
    }
    if params.from_zero && !row.iter().any(|x| *x > 0.0) {
        return 0;
    }
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        // A search that ignores NaN leaves a row of NaN at index 0.
        let from_nan = row[best].is_nan() && !x.is_nan();
        let better = match params.tie {
            Tie::First => *x > row[best] || from_nan,
            Tie::Last => *x >= row[best] || from_nan,
        };
        if better {
            best = i;
        }
    }
    best
}

impl Op for Argmax {
    const NAME: &'static str = "argmax";
    const SUMMARY: &'static str = "index of the largest logit";
    const ARGS: &'static [ArgSpec] = &[ArgSpec::new("x", "[..., V] logits")];
    const POINTS: &'static [&'static str] = &[];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let x = need(Self::NAME, tensors, "x", true)?;
        Ok(OutSpec::output([x.rows(), 1]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        _policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let x = inputs.req("x");
        let rows = x.shape().iter().product::<usize>() / x.cols();
        Out::by_rows(tile, rows, |r| {
            let mut row: Vec<f64> = x.row(r).iter().map(|v| v.value()).collect();
            if params.compared_in_bf16 {
                row.iter_mut().for_each(|v| *v = Rounding::nearest(Dtype::Bf16).round(*v));
            }
            vec![R::lift(best(&row, params) as f64)]
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("tie", "first").or("last", |s: &mut Setup<Self>| s.params.tie = Tie::Last)]
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = vec![
            Fault::new(
                "A190",
                "nan_ignored",
                "NaN never wins, so broken logits look healthy",
                |s: &mut Setup<Self>| {
                    s.params.nan_ignored = true;
                },
            ),
            Fault::new(
                "A191",
                "last_dropped",
                "the last element is not looked at",
                |s: &mut Setup<Self>| {
                    s.params.last_dropped = true;
                },
            ),
            Fault::new(
                "A263",
                "maximum_from_zero",
                "the search starts from 0, so that a row without a positive element gives index 0",
                |s: &mut Setup<Self>| s.params.from_zero = true,
            ),
        ];
        let Some(x) = tensors.get("x") else { return faults };
        let width = x.cols();
        for tile in [64, 256, 1024] {
            let whole = width / tile * tile;
            if (1..width).contains(&whole) {
                let detail = format!("elements {whole}..{width} are not looked at");
                let edit = move |s: &mut Setup<Self>| s.params.tile = NonZeroUsize::new(tile);
                let fault = Fault::new("A264", "tail_dropped", detail, edit);
                faults.push(fault.keyed(format!("tile {tile}")));
            }
        }
        if x.dtype() != Dtype::Bf16 {
            faults.push(Fault::new(
                "A265",
                "logits_bf16",
                "logits are rounded to bf16 before they are compared",
                |s: &mut Setup<Self>| s.params.compared_in_bf16 = true,
            ));
        }
        faults
    }
}
