//! `softmax`: p_j = e^(x_j - m) / sum_i e^(x_i - m), m = max x, over the innermost dimension.
//!
//! Shapes: x [..., D]; output [..., D]. Two passes in f32; the largest term is exactly 1 before the
//! division. -inf gives 0. A row of only -inf is all masked: NaN, as torch. NaN makes the row NaN.
//! Points: `exponentials`, `output`.

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, store_faults,
};
use crate::arith::Real;
use crate::error::Result;
use crate::policy::Policy;

/// Semantic knobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// e^(x / temperature): a fault unless 1.
    pub temperature: f64,
    /// The division left out: a fault.
    pub unnormalised: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params { temperature: 1.0, unnormalised: false }
    }
}

/// The op.
#[derive(Debug)]
pub struct Softmax;

/// The largest value; NaN when there is one.
pub(crate) fn maximum<R: Real>(row: &[R]) -> R {
    row.iter().copied().fold(R::lift(f64::NEG_INFINITY), |m, x| {
        if m.value().is_nan() || x.value() <= m.value() { m } else { x }
    })
}

/// e^(x - m). The maximum's own term is exactly 1: a common shift of all scores cancels in the
/// quotient, so the error of the maximum is charged to the other terms.
pub(crate) fn exponentials<R: Real>(row: &[R], m: R) -> Vec<R> {
    let mut taken = false;
    row.iter()
        .map(|x| {
            if !taken && x.value() == m.value() {
                taken = true;
                return R::lift(1.0);
            }
            x.sub(m).exp()
        })
        .collect()
}

impl Op for Softmax {
    const NAME: &'static str = "softmax";
    const SUMMARY: &'static str = "softmax over the innermost dimension";
    const ARGS: &'static [ArgSpec] = &[ArgSpec::new("x", "[..., D] scores")];
    const POINTS: &'static [&'static str] = &["exponentials", "output"];
    type Params = Params;

    fn check(_params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        Ok(OutSpec::output(need(Self::NAME, tensors, "x", true)?.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let x = inputs.req("x");
        let rows = x.shape().iter().product::<usize>() / x.cols();
        Out::by_rows(tile, rows, |r| {
            let mut row = x.row(r);
            if params.temperature != 1.0 {
                row.iter_mut().for_each(|v| *v = v.div(R::constant(params.temperature)));
            }
            let m = maximum(&row);
            if !m.value().is_finite() {
                return vec![R::lift(f64::NAN); row.len()];
            }
            let mut p = exponentials(&row, m);
            policy.apply("exponentials", &mut p);
            if !params.unnormalised {
                let sum = R::sum(&p, 0, &policy.acc);
                p.iter_mut().for_each(|v| *v = v.div(sum));
            }
            policy.apply("output", &mut p);
            p
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("exponentials", "f32").or_eager("stored", |s: &mut Setup<Self>| {
            s.policy.round_at("exponentials", s.policy.output.dtype);
        })]
    }

    fn faults(_params: &Params, _tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = store_faults(["A160", "A164"]);
        faults.push(Fault::new(
            "A161",
            "unnormalised",
            "the division by the sum is missing",
            |s: &mut Setup<Self>| {
                s.params.unnormalised = true;
            },
        ));
        for temperature in [0.5, 2.0] {
            faults.push(
                Fault::new(
                    "A162",
                    "wrong_temperature",
                    format!("scores are divided by {temperature}"),
                    move |s: &mut Setup<Self>| s.params.temperature = temperature,
                )
                .keyed(format!("{temperature}")),
            );
        }
        faults
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A163", residual)
    }
}
