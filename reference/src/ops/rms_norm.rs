//! `rms_norm`: y = x / sqrt(mean(x^2) + eps) * weight over the innermost dimension.
//!
//! Shapes: x [..., D], weight \[D\]; output [..., D]. With D = head_dim and x [T, H, D] it is Qwen3's
//! q_norm and k_norm. The mean of squares and the normalisation are in f32.
//! Points: `squares` (the row whose squares are summed), `normalised` (before the weight), `output`.
//! Conventions: transformers rounds the normalised value to the model's dtype and multiplies by the
//! weight there (`normalised=stored`); fused kernels multiply in f32 and round once (`normalised=f32`).
//! A row of zeros with eps = 0 gives NaN (0 x infinity), as IEEE says.
//!
//! Source: <https://arxiv.org/abs/1910.07467>

use serde::{Deserialize, Serialize};

use super::variant::simplest;
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need, store_faults,
};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::{At, Policy, Transform};

/// What is done with the weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Multiplied.
    #[default]
    Multiplied,
    /// 1 + weight is multiplied, as Gemma stores it: a fault for Qwen.
    PlusOne,
    /// Not used: a fault.
    Ignored,
}

/// Semantic knobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Added to the mean of squares.
    pub eps: f64,
    /// Use of the weight.
    #[serde(default)]
    pub weight: Weight,
    /// The whole op left out: a fault.
    #[serde(default)]
    pub skipped: bool,
    /// The mean subtracted first, as LayerNorm does: a fault.
    #[serde(default)]
    pub centred: bool,
}

impl Params {
    /// The right op with `eps`.
    pub fn new(eps: f64) -> Params {
        Params { eps, weight: Weight::Multiplied, skipped: false, centred: false }
    }
}

/// The op.
#[derive(Debug)]
pub struct RmsNorm;

impl Op for RmsNorm {
    const NAME: &'static str = "rms_norm";
    const SUMMARY: &'static str = "root mean square normalisation with a weight";
    const ARGS: &'static [ArgSpec] =
        &[ArgSpec::new("x", "[..., D] activations"), ArgSpec::new("weight", "[D]")];
    const POINTS: &'static [&'static str] = &["squares", "normalised", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let x = need(Self::NAME, tensors, "x", true)?;
        let w = need(Self::NAME, tensors, "weight", true)?;
        if w.shape() != [x.cols()] {
            return Err(Error::arg(
                Self::NAME,
                "weight",
                format!("must have shape [{}], has {:?}", x.cols(), w.shape()),
            ));
        }
        if !(params.eps.is_finite() && params.eps >= 0.0) {
            return Err(Error::arg(Self::NAME, "eps", format!("must be >= 0, is {}", params.eps)));
        }
        Ok(OutSpec::output(x.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let x = inputs.req("x");
        let d = x.cols();
        let rows = x.shape().iter().product::<usize>() / d;
        let weight = inputs.req("weight").row(0);
        Out::by_rows(tile, rows, |r| {
            let mut row = x.row(r);
            if params.skipped {
                return row;
            }
            if params.centred {
                let mean = R::sum(&row, 0, &policy.acc).div(R::lift(d as f64));
                row.iter_mut().for_each(|v| *v = v.sub(mean));
            }
            let mut squares = row.clone();
            policy.apply("squares", &mut squares);
            let mean = R::dot(&squares, &squares, 0, &policy.acc).div(R::lift(d as f64));
            let scale = mean.add(R::constant(params.eps)).rsqrt();
            row.iter_mut().for_each(|v| *v = v.mul(scale));
            policy.apply("normalised", &mut row);
            for (v, w) in row.iter_mut().zip(&weight) {
                *v = match params.weight {
                    Weight::Multiplied => v.mul(*w),
                    Weight::PlusOne => v.mul(w.add(R::lift(1.0))),
                    Weight::Ignored => *v,
                };
            }
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("normalised", "f32").or("stored", |s: &mut Setup<Self>| {
            s.policy.round_at("normalised", s.policy.output.dtype);
        })]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        let d = tensors.get("x").map_or(0, |x| x.cols());
        let mut faults = Vec::new();
        for eps in [1e-5, 1e-6, 1e-8, 1e-12, 0.0] {
            if eps != params.eps {
                faults.push(
                    Fault::new(
                        "A120",
                        "wrong_eps",
                        format!("eps is {eps:e} instead of {:e}", params.eps),
                        move |s: &mut Setup<Self>| s.params.eps = eps,
                    )
                    .keyed(format!("{eps:e}")),
                );
            }
        }
        faults.push(Fault::new(
            "A121",
            "skipped",
            "the normalisation is left out",
            |s: &mut Setup<Self>| {
                s.params.skipped = true;
            },
        ));
        for (weight, slug, code, detail) in [
            (Weight::PlusOne, "weight_plus_one", "A122", "1 + weight is multiplied (Gemma's form)"),
            (Weight::Ignored, "weight_ignored", "A123", "the weight is not multiplied"),
        ] {
            faults.push(Fault::new(code, slug, detail, move |s: &mut Setup<Self>| {
                s.params.weight = weight;
            }));
        }
        for (keep, which) in [(32..64, "lower"), (0..32, "upper")] {
            if d >= 64 {
                faults.push(
                    Fault::new(
                        "A124",
                        "half_lanes",
                        format!("only the {which} 32 of each 64 lanes enter the mean of squares"),
                        move |s: &mut Setup<Self>| {
                            let at = At::Lanes { modulus: 64, keep: keep.clone() };
                            s.policy.at("squares", Transform::Scale { at, by: 0.0 });
                        },
                    )
                    .keyed(which),
                );
            }
        }
        for tile in [32, 64, 128, 256] {
            let whole = d / tile * tile;
            if whole > 0 && whole < d {
                faults.push(
                    Fault::new(
                        "A125",
                        "tail_dropped",
                        format!("elements {whole}..{d} are missing from the mean of squares"),
                        move |s: &mut Setup<Self>| {
                            let at = At::Range(whole..d);
                            s.policy.at("squares", Transform::Scale { at, by: 0.0 });
                        },
                    )
                    .keyed(format!("tile {tile}")),
                );
            }
        }
        faults.push(Fault::new(
            "A126",
            "centred",
            "the mean is subtracted first, as in LayerNorm",
            |s: &mut Setup<Self>| {
                s.params.centred = true;
            },
        ));
        faults.extend(store_faults(["A127", "A129"]));
        faults
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        let mut faults = gain_faults("A128", residual);
        if let Some(eps) = implied_eps(params, residual)
            && eps != params.eps
        {
            faults.push(
                Fault::new(
                    "A120",
                    "wrong_eps",
                    format!("eps is {eps:e} instead of {:e}", params.eps),
                    move |s: &mut Setup<Self>| s.params.eps = eps,
                )
                .keyed(format!("{eps:e}")),
            );
        }
        faults
    }

    fn evidence(params: &Params, residual: &Residual<'_>) -> Vec<String> {
        super::lanes::dead(params.eps, residual).into_iter().collect()
    }
}

/// The eps that explains every row's gain, in the fewest digits.
fn implied_eps(params: &Params, residual: &Residual<'_>) -> Option<f64> {
    let x = residual.tensors.get("x")?;
    let d = residual.cols;
    let (mut low, mut high) = (0.0f64, f64::INFINITY);
    for r in 0..residual.expected.len() / d {
        let mut row = vec![0.0; d];
        x.widen(r * d, &mut row, |v| v);
        let mean = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
        let Some((g_low, g_high)) = residual.gain_interval(r * d..(r + 1) * d) else { continue };
        let eps = |g: f64| (mean + params.eps) / (g * g) - mean;
        low = low.max(eps(g_high));
        high = high.min(eps(g_low));
    }
    (low <= high && high.is_finite()).then(|| simplest(low, high))
}
