//! `argmax`: the index of the largest element of each row; greedy decoding.
//!
//! Shapes: x [..., V]; output [...] as a column of indices [rows, 1].
//! Rules, torch's: the first NaN wins over everything; of equal elements the first wins. So a row of
//! NaN, a constant row and a row of -inf all give index 0.
//! Points: none: comparisons are exact.

use serde::{Deserialize, Serialize};

use super::{ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Setup, Tensors, Tile, need};
use crate::arith::Real;
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
}

/// The op.
#[derive(Debug)]
pub struct Argmax;

/// The index of the largest element under torch's rules. 0 for an empty row.
pub fn argmax(row: &[f64]) -> usize {
    best(row, &Params::default())
}

fn best(row: &[f64], params: &Params) -> usize {
    let row = if params.last_dropped { &row[..row.len().saturating_sub(1)] } else { row };
    if !params.nan_ignored
        && let Some(i) = row.iter().position(|x| x.is_nan())
    {
        return i;
    }
    let mut best = 0;
    for (i, x) in row.iter().enumerate() {
        let better = match params.tie {
            Tie::First => *x > row[best] || row[best].is_nan(),
            Tie::Last => *x >= row[best] || row[best].is_nan(),
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
            let row: Vec<f64> = x.row(r).iter().map(|v| v.value()).collect();
            vec![R::lift(best(&row, params) as f64)]
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("tie", "first").or("last", |s: &mut Setup<Self>| s.params.tie = Tie::Last)]
    }

    fn faults(_params: &Params, _tensors: &Tensors) -> Vec<Fault<Self>> {
        vec![
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
        ]
    }
}
