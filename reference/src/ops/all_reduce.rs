//! `all_reduce`: the sum of the ranks' partial outputs of a row-parallel layer.
//!
//! Shapes: part.0 ... part.(n-1), each [..., D] as a rank stored it; output [..., D].
//! Points: `sum` (after each addition but the last), `output`.
//! Conventions: the running sum is f32 and rounded once (`sum=f32`), or is stored in the model's dtype
//! after each rank, as a ring over bf16 buffers does (`sum=stored`). Parts are added in rank order.
//!
//! Source: <https://arxiv.org/abs/1909.08053>

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, store_faults, via_f16_fault,
};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Semantic knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Whether the running sum is stored after each rank.
    pub stored: bool,
    /// A rank whose part is left out: a fault.
    pub lost: Option<usize>,
    /// Whether only rank 0's part arrives: a fault.
    pub first_only: bool,
    /// A rank whose part is added twice: a fault.
    pub doubled: Option<usize>,
}

/// The op.
#[derive(Debug)]
pub struct AllReduce;

/// Name of a rank's argument.
pub fn part(rank: usize) -> String {
    format!("part.{rank}")
}

fn ranks(tensors: &Tensors) -> usize {
    (0..).take_while(|&r| tensors.contains_key(&part(r))).count()
}

/// The parts of all ranks, equal in shape but for their last dimension.
pub(super) fn check_parts(op: &'static str, tensors: &Tensors) -> Result<Vec<Vec<usize>>> {
    let n = ranks(tensors);
    if n < tensors.len() {
        let stray = tensors.keys().find(|k| !(0..n).any(|r| part(r) == **k));
        let what = format!("is not one of the parts of {n} ranks, which are part.0, part.1 ...");
        return Err(Error::arg(op, stray.map_or("part.0", String::as_str), what));
    }
    need(op, tensors, "part.0", true)?;
    (0..n).map(|r| Ok(need(op, tensors, &part(r), true)?.shape().to_vec())).collect()
}

impl Op for AllReduce {
    const NAME: &'static str = "all_reduce";
    const SUMMARY: &'static str = "sum of the ranks' partial outputs";
    const ARGS: &'static [ArgSpec] = &[ArgSpec::new("part.*", "[..., D] of rank 0, 1 ...")];
    const POINTS: &'static [&'static str] = &["sum", "output"];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let shapes = check_parts(Self::NAME, tensors)?;
        for (r, shape) in shapes.iter().enumerate() {
            if *shape != shapes[0] {
                let what = format!("must have part.0's shape {:?}, has {shape:?}", shapes[0]);
                return Err(Error::arg(Self::NAME, part(r), what));
            }
        }
        Ok(OutSpec::output(shapes[0].clone()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let parts: Vec<_> = (0..).map_while(|r| inputs.get(&part(r))).collect();
        let rows = parts[0].shape().iter().product::<usize>() / parts[0].cols();
        Out::by_rows(tile, rows, |i| {
            let mut sum: Option<Vec<R>> = None;
            let times = |r: &usize| if params.doubled == Some(*r) { 2 } else { 1 };
            for r in (0..parts.len()).flat_map(|r| std::iter::repeat_n(r, times(&r))) {
                if params.lost == Some(r) || params.first_only && r > 0 {
                    continue;
                }
                let row = parts[r].row(i);
                sum = Some(match sum {
                    None => row,
                    Some(mut sum) => {
                        policy.apply("sum", &mut sum);
                        if params.stored {
                            sum.iter_mut().for_each(|s| *s = s.round(policy.output, policy.lambda));
                        }
                        sum.iter_mut().zip(row).for_each(|(s, x)| *s = s.add(x));
                        sum
                    }
                });
            }
            let mut row = sum.unwrap_or_else(|| vec![R::lift(0.0); parts[0].cols()]);
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("sum", "f32").or("stored", |s: &mut Setup<Self>| s.params.stored = true)]
    }

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let n = ranks(tensors);
        let mut faults = Vec::new();
        for rank in 0..n {
            let detail = format!("the part of rank {rank} is missing from the sum");
            let edit = move |s: &mut Setup<Self>| s.params.lost = Some(rank);
            faults.push(Fault::new("A220", "rank_dropped", detail, edit).keyed(format!("{rank}")));
        }
        for rank in (0..n).filter(|_| n > 1) {
            let detail = format!("the part of rank {rank} is added twice");
            let edit = move |s: &mut Setup<Self>| s.params.doubled = Some(rank);
            let fault = Fault::new("A26A", "rank_counted_twice", detail, edit);
            faults.push(fault.keyed(format!("{rank}")));
        }
        // Of two parts, rank 1's is dropped.
        if n > 2 {
            faults.push(Fault::new(
                "A221",
                "not_reduced",
                "rank 0's part is taken for the sum",
                |s: &mut Setup<Self>| s.params.first_only = true,
            ));
        }
        faults.extend(store_faults(["A222", "A223"]));
        faults.extend(via_f16_fault(tensors.get("part.0")));
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A224", residual)
    }
}
