//! `add`: y = a + b, the residual additions of a block. In the forward, a is the residual stream and
//! b the output of the block.
//!
//! Shapes: a, b [..., D] alike; output the same. One f32 addition and one rounding: exact to the bit.
//! Points: `output`. There is no convention to choose: an output stored by truncation is a fault,
//! because it shrinks the residual stream a little in every layer.

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, store_faults,
};
use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Which operands are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operands {
    /// a + b.
    #[default]
    Both,
    /// a alone: a fault.
    First,
    /// b alone: a fault.
    Second,
}

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Operands.
    pub operands: Operands,
    /// Operands and sum are rounded to f16, which ends at 65504: a fault unless the model is f16.
    pub in_f16: bool,
}

/// The op.
#[derive(Debug)]
pub struct Add;

impl Op for Add {
    const NAME: &'static str = "add";
    const SUMMARY: &'static str = "residual addition";
    const ARGS: &'static [ArgSpec] =
        &[ArgSpec::new("a", "[..., D] residual"), ArgSpec::new("b", "[..., D] block output")];
    const POINTS: &'static [&'static str] = &["output"];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let a = need(Self::NAME, tensors, "a", true)?;
        let b = need(Self::NAME, tensors, "b", true)?;
        if a.shape() != b.shape() {
            let what = format!("must have a's shape {:?}, has {:?}", a.shape(), b.shape());
            return Err(Error::arg(Self::NAME, "b", what));
        }
        Ok(OutSpec::output(a.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (a, b) = (inputs.req("a"), inputs.req("b"));
        let rows = a.shape().iter().product::<usize>() / a.cols();
        Out::by_rows(tile, rows, |r| {
            let half = |x: R| match params.in_f16 {
                true => x.round(Rounding::nearest(Dtype::F16), policy.lambda),
                false => x,
            };
            let pairs = a.row(r).into_iter().zip(b.row(r));
            let mut row: Vec<R> = pairs
                .map(|(x, y)| match params.operands {
                    Operands::Both => half(half(x).add(half(y))),
                    Operands::First => x,
                    Operands::Second => y,
                })
                .collect();
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        Vec::new()
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = store_faults(["A180", "A181"]);
        if tensors.get("a").is_some_and(|a| a.dtype() != Dtype::F16) {
            faults.push(Fault::new(
                "A231",
                "sum_f16",
                "the residual is added in f16, which ends at 65504",
                |s: &mut Setup<Self>| s.params.in_f16 = true,
            ));
        }
        for (operands, slug, code, detail) in [
            (Operands::First, "block_dropped", "A182", "the block's output is not added"),
            (Operands::Second, "residual_dropped", "A183", "the residual is not added"),
        ] {
            faults.push(Fault::new(code, slug, detail, move |s: &mut Setup<Self>| {
                s.params.operands = operands;
            }));
        }
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A184", residual)
    }
}
