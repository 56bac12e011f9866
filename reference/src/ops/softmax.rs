//! `softmax`: p_j = e^(x_j - m) / sum_i e^(x_i - m), m = max x, over the innermost dimension.
//!
//! Shapes: x [..., D]; output [..., D]. Two passes in f32; the largest term is exactly 1 before the
//! division. -inf gives 0. A row of only -inf is all masked: NaN, as torch. NaN makes the row NaN.
//! Points: `exponentials`, `output`.

use serde::{Deserialize, Serialize};

use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, store_faults, via_f16_fault,
};
use crate::arith::Real;
use crate::dtype::pow2;
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
    /// The exponentials.
    pub exponent: Exponent,
    /// The denominator has a term e^(0 - m) of a padded element: a fault.
    pub padded: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params { temperature: 1.0, unnormalised: false, exponent: Exponent::Shifted, padded: false }
    }
}

/// The op.
#[derive(Debug)]
pub struct Softmax;

/// How e^(x - m) is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exponent {
    /// As it is written.
    #[default]
    Shifted,
    /// e^x: the maximum is not subtracted, so that f32 overflows at x = 88.7 and underflows at -104: a
    /// fault.
    NotShifted,
    /// The exponent is at least -10: a fault.
    Clamped,
    /// As 2^((x - m) log2 e) with log2 e in bf16: a fault.
    Log2eBf16,
}

/// By what an exponent of e is multiplied when log2 e is rounded to bf16, 1.4453125: times ln 2.
pub(crate) const LOG2E_BF16: f64 = 1.4453125 * std::f64::consts::LN_2;

/// The least exponent of [`Exponent::Clamped`].
const LEAST_EXPONENT: f64 = -10.0;

impl Exponent {
    /// e^difference, where the difference is of a score and the maximum.
    pub(crate) fn exp<R: Real>(self, difference: R) -> R {
        match self {
            Exponent::Shifted | Exponent::NotShifted => difference.exp(),
            Exponent::Clamped if difference.value() < LEAST_EXPONENT => {
                R::lift(LEAST_EXPONENT).exp()
            }
            Exponent::Clamped => difference.exp(),
            Exponent::Log2eBf16 => difference.mul(R::constant(LOG2E_BF16)).exp(),
        }
    }

    /// The catalogued faults of exponentials: code, slug, what is wrong.
    pub(crate) const FAULTS: [(Exponent, &'static str, &'static str, &'static str); 3] = [
        (
            Exponent::NotShifted,
            "A255",
            "maximum_not_subtracted",
            "e^x is taken without subtracting the maximum: f32 overflows at 88.7",
        ),
        (
            Exponent::Clamped,
            "A256",
            "exponent_clamped",
            "the exponent x - max is clamped at -10, so that far elements keep weight 4.5e-5",
        ),
        (
            Exponent::Log2eBf16,
            "A257",
            "log2e_bf16",
            "e^x is computed as a power of 2 with log2(e) in bf16: x counts 0.18 % too much",
        ),
    ];
}

/// What an f32 holds of a value beyond its range.
pub(crate) fn in_f32_range<R: Real>(x: R) -> R {
    let v = x.value();
    if v.abs() > f64::from(f32::MAX) {
        R::lift(f64::INFINITY.copysign(v))
    } else if v.abs() < pow2(-150) {
        R::lift(0.0)
    } else {
        x
    }
}

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
            let mut p = match params.exponent {
                Exponent::Shifted => exponentials(&row, m),
                Exponent::NotShifted => row.iter().map(|x| in_f32_range(x.exp())).collect(),
                exponent => row.iter().map(|x| exponent.exp(x.sub(m))).collect(),
            };
            policy.apply("exponentials", &mut p);
            if !params.unnormalised {
                let mut sum = R::sum(&p, 0, &policy.acc);
                if params.padded {
                    sum = sum.add(m.neg().exp());
                }
                if params.exponent == Exponent::NotShifted {
                    sum = in_f32_range(sum);
                }
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

    fn faults(_params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let mut faults = store_faults(["A160", "A164"]);
        faults.extend(via_f16_fault(tensors.get("x")));
        for (exponent, code, slug, detail) in Exponent::FAULTS {
            let edit = move |s: &mut Setup<Self>| s.params.exponent = exponent;
            faults.push(Fault::new(code, slug, detail, edit));
        }
        faults.push(Fault::new(
            "A254",
            "padded_key_counted",
            "the denominator counts one padded element of score 0",
            |s: &mut Setup<Self>| s.params.padded = true,
        ));
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
