//! `rms_norm`: y = x / sqrt(mean(x^2) + eps) * weight over the innermost dimension.
//!
//! Shapes: x [..., D], weight \[D\]; output [..., D]. With D = head_dim and x [T, H, D] it is Qwen3's
//! q_norm and k_norm; with `heads` = h the first h heads of each token of such an x are normalised, as
//! the queries in a fused q, k and v: output [T, h, D]. The mean of squares and the normalisation are in
//! f32.
//! Points: `squares` (the row whose squares are summed), `weight`, `normalised` (before the weight),
//! `output`.
//! Conventions: transformers rounds the normalised value to the model's dtype and multiplies by the
//! weight there (`normalised=stored`); fused kernels multiply in f32 and round once (`normalised=f32`).
//! A row of zeros with eps = 0 gives NaN (0 x infinity), as IEEE says.
//!
//! Source: <https://arxiv.org/abs/1910.07467>

mod faults;

use serde::{Deserialize, Serialize};

use super::fit::Fit;
use super::variant::simplest;
use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    gain_faults, need,
};
use crate::arith::Real;
use crate::dtype::pow2;
use crate::error::{Error, Result};
use crate::policy::Policy;

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
    /// Heads of a token that are normalised, of an x [T, H, D]; all rows where it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Rows are read one after the other although the other heads lie between: a fault.
    #[serde(default)]
    pub stride_ignored: bool,
    /// By how many elements the sum of squares is divided, if not by D: a fault.
    #[serde(default)]
    pub width: Option<usize>,
    /// Elements of a vector whose last store in a row runs into the next row: a fault.
    #[serde(default)]
    pub vector: Option<usize>,
    /// The root is one Newton step from the bits of the argument: a fault.
    #[serde(default)]
    pub newton: bool,
}

impl Params {
    /// The right op with `eps`.
    pub fn new(eps: f64) -> Params {
        Params {
            eps,
            weight: Weight::Multiplied,
            skipped: false,
            centred: false,
            heads: None,
            stride_ignored: false,
            width: None,
            vector: None,
            newton: false,
        }
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
    const POINTS: &'static [&'static str] = &["squares", "weight", "normalised", "output"];
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
        let Some(heads) = params.heads else { return Ok(OutSpec::output(x.shape())) };
        match *x.shape() {
            [t, all, d] if (1..=all).contains(&heads) => Ok(OutSpec::output([t, heads, d])),
            _ => {
                let what = format!("must be [T, {heads} heads or more, D], is {:?}", x.shape());
                Err(Error::arg(Self::NAME, "x", what))
            }
        }
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (x, d) = (inputs.req("x"), inputs.req("x").cols());
        let (rows, place) = rows_of(params, x.shape());
        let mut weight = inputs.req("weight").row(0);
        policy.apply("weight", &mut weight);
        Out::by_rows(tile, rows, |r| {
            let (mut row, scale) = row_and_scale(params, x, place(r), policy);
            if params.skipped {
                return row;
            }
            // Of the first elements the row before stores its own idea, if its last vector is too long.
            let spill = params.vector.filter(|_| r > 0).map_or(0, |v| (v - d % v).min(d));
            if spill > 0 {
                let (_, before) = row_and_scale(params, x, place(r - 1), policy);
                row[..spill].iter_mut().for_each(|v| *v = v.mul(before));
            }
            row[spill..].iter_mut().for_each(|v| *v = v.mul(scale));
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
        faults::catalogue(params, tensors)
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        let mut faults = gain_faults("A128", residual);
        let eps = implied_eps(params, residual).or_else(|| fitted_eps(params, residual));
        if let Some(eps) = eps.filter(|eps| *eps != params.eps) {
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

/// How many rows are normalised, and which row of x each of them is.
fn rows_of(params: &Params, shape: &[usize]) -> (usize, impl Fn(usize) -> usize + Sync) {
    let all = shape[..shape.len() - 1].iter().product::<usize>();
    let heads = match (params.heads, shape) {
        (Some(heads), &[_, of, _]) => Some((heads, of)),
        _ => None,
    };
    let stride = heads.filter(|_| !params.stride_ignored);
    let place = move |r: usize| stride.map_or(r, |(heads, of)| r / heads * of + r % heads);
    (heads.map_or(all, |(heads, of)| all / of * heads), place)
}

/// Row `r` of x, centred if it is to be, and by what it is multiplied.
fn row_and_scale<R: Real>(
    params: &Params,
    x: &Arg<'_, R>,
    r: usize,
    policy: &Policy,
) -> (Vec<R>, R) {
    let mut row = x.row(r);
    let d = row.len();
    if params.centred {
        let mean = R::sum(&row, 0, &policy.acc).div(R::lift(d as f64));
        row.iter_mut().for_each(|v| *v = v.sub(mean));
    }
    let sum = if policy.is_identity_at("squares") {
        R::dot(&row, &row, 0, &policy.acc)
    } else {
        let mut squares = row.clone();
        policy.apply("squares", &mut squares);
        R::dot(&squares, &squares, 0, &policy.acc)
    };
    let width = params.width.unwrap_or(d) as f64;
    let mean = sum.div(R::lift(width));
    let mean = mean.add(R::constant(params.eps));
    (row, if params.newton { one_newton_step(mean) } else { mean.rsqrt() })
}

/// 1 / sqrt(m) in f32 from the famous constant and one Newton step: off by up to 0.18 %.
fn one_newton_step<R: Real>(m: R) -> R {
    let x = m.value() as f32;
    let y = f32::from_bits(0x5f37_59df_u32.wrapping_sub(x.to_bits() >> 1));
    let y = f64::from(y * (1.5 - 0.5 * x * y * y));
    let relative = y * f64::from(x).sqrt();
    if !(relative.is_finite() && relative > 0.0) {
        return R::lift(y);
    }
    // The estimate is continuous in m, so that its relative error is too.
    m.rsqrt().mul(R::approx(relative, 8.0 * pow2(-24)))
}

/// The eps that the rows' gains imply by least squares: what a norm stores before its weight is rounded otherwise
/// under another eps, so that no eps is consistent with every element.
fn fitted_eps(params: &Params, residual: &Residual<'_>) -> Option<f64> {
    let x = residual.tensors.get("x")?;
    let d = residual.cols;
    let (_, place) = rows_of(params, x.shape());
    let of = |r: usize| {
        let mut row = vec![0.0; d];
        x.widen(place(r) * d, &mut row, |v| v);
        let mean = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
        let gain = residual.gain_fit(r * d..(r + 1) * d)?;
        let size = (mean + params.eps) / (gain.value * gain.value);
        Some(Fit { value: size - mean, sd: 2.0 * size * gain.sd / gain.value.abs() })
    };
    let rows: Vec<Fit> = (0..residual.expected.len() / d).filter_map(of).collect();
    Fit::mean(&rows)?.other_than(params.eps, 0.0).first().copied().filter(|eps| *eps > 0.0)
}

/// The eps that explains every row's gain, in the fewest digits.
fn implied_eps(params: &Params, residual: &Residual<'_>) -> Option<f64> {
    let x = residual.tensors.get("x")?;
    let d = residual.cols;
    let (mut low, mut high) = (0.0f64, f64::INFINITY);
    let (_, place) = rows_of(params, x.shape());
    for r in 0..residual.expected.len() / d {
        let mut row = vec![0.0; d];
        x.widen(place(r) * d, &mut row, |v| v);
        let mean = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
        let Some((g_low, g_high)) = residual.gain_interval(r * d..(r + 1) * d) else { continue };
        let eps = |g: f64| (mean + params.eps) / (g * g) - mean;
        low = low.max(eps(g_high));
        high = high.min(eps(g_low));
    }
    (low <= high && high.is_finite()).then(|| simplest(low, high))
}
