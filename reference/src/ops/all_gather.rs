//! `all_gather`: the outputs of a column-parallel layer side by side, in rank order: a copy.
//!
//! Shapes: part.r [..., D_r]; output [..., sum of D_r]. Points: none.
//!
//! Source: <https://arxiv.org/abs/1909.08053>

use serde::{Deserialize, Serialize};

use super::all_reduce::{check_parts, part};
use super::{ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Setup, Tensors, Tile};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Ranks from the last to the first: a fault.
    pub reversed: bool,
}

/// The op.
#[derive(Debug)]
pub struct AllGather;

impl Op for AllGather {
    const NAME: &'static str = "all_gather";
    const SUMMARY: &'static str = "the ranks' outputs side by side";
    const ARGS: &'static [ArgSpec] = &[ArgSpec::new("part.*", "[..., D_r] of rank 0, 1 ...")];
    const POINTS: &'static [&'static str] = &[];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let shapes = check_parts(Self::NAME, tensors)?;
        let outer = |shape: &[usize]| shape[..shape.len().saturating_sub(1)].to_vec();
        let mut all = shapes[0].clone();
        for (r, shape) in shapes.iter().enumerate().skip(1) {
            if outer(shape) != outer(&all) || shape.is_empty() {
                let what = format!("must have part.0's outer shape {all:?}, has {shape:?}");
                return Err(Error::arg(Self::NAME, part(r), what));
            }
            *all.last_mut().expect("not empty") += shape[shape.len() - 1];
        }
        Ok(OutSpec::output(all))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        _policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let mut parts: Vec<_> = (0..).map_while(|r| inputs.get(&part(r))).collect();
        if params.reversed {
            parts.reverse();
        }
        let rows = parts[0].shape().iter().product::<usize>() / parts[0].cols();
        Out::by_rows(tile, rows, |i| parts.iter().flat_map(|p| p.row(i)).collect())
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        Vec::new()
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        if tensors.len() < 2 {
            return Vec::new();
        }
        vec![Fault::new(
            "A225",
            "ranks_reversed",
            "the ranks' outputs are joined from the last to the first",
            |s: &mut Setup<Self>| s.params.reversed = true,
        )]
    }
}
