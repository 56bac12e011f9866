//! `rope`: rotary position embedding of query or key heads.
//!
//! Shapes: x [T, H, D], positions \[T\]; output [T, H, D]. With angle a(t, i) = positions\[t\] *
//! theta^(-2i/D) for i < D/2 and the half-split pairing of Qwen, y\[i\] = x\[i\] cos a - x[i + D/2] sin a
//! and y[i + D/2] = x[i + D/2] cos a + x\[i\] sin a.
//! Points: `table` (cos and sin), `product`, `output`.
//! Conventions: `angle=f32` is transformers': the inverse frequency and its product with the position
//! are rounded to f32 (at position 32767 the cosine differs from f64's by 1.8e-3); `angle=f64` rounds
//! neither. `table=stored` keeps cos and sin in the model's dtype, as transformers and vLLM do;
//! `product=stored` rounds each product there, as an eager framework does. Under dynamic scaling the
//! base follows the largest position of the call (`base=by_call`, transformers: keys cached by an
//! earlier call keep their rotation) or is that of the whole extended context (`base=fixed`, vLLM).
//! Scalings change the frequencies and, in YaRN, multiply cos and sin: see [`Scaling`].
//!
//! Source: <https://arxiv.org/abs/2104.09864>

mod faults;
mod scaling;
mod solve;

use serde::{Deserialize, Serialize};

use self::scaling::{Frequency, frequencies};
pub use self::scaling::{Scaling, Yarn, mscale};
use super::args::in_parallel;
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::{Real, math};
use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Which elements form a rotated pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// (i, i + D/2).
    #[default]
    Halves,
    /// (2i, 2i + 1), GPT-J's: a fault for Qwen.
    Adjacent,
}

/// Precision in which the angle is formed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Angle {
    /// inv_freq and the product rounded to f32.
    #[default]
    F32,
    /// Neither rounded.
    F64,
    /// inv_freq and position rounded to bf16: a fault.
    Bf16,
    /// inv_freq alone rounded to bf16: a fault.
    FrequencyBf16,
    /// The position alone rounded to bf16: a fault.
    PositionBf16,
}

/// Which position a token is rotated by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Its own.
    #[default]
    Own,
    /// That of the call's first token: a fault.
    First,
    /// Its own modulo the length of a table that is too short: a fault.
    Modulo(i64),
}

/// The rotation of the pairs from i = D/4 on, whose angles are small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Upper {
    /// As all others.
    #[default]
    Right,
    /// By minus the angle: a fault.
    Inverse,
    /// Not at all: a fault.
    Still,
}

/// Semantic knobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Base of the frequencies, from the config.
    pub theta: f64,
    /// Change of the frequencies for long contexts.
    #[serde(default)]
    pub scaling: Scaling,
    /// Whether dynamic scaling uses the whole extended context instead of the call's positions.
    #[serde(default)]
    pub base_fixed: bool,
    /// YaRN interpolates every frequency: a fault.
    #[serde(default)]
    pub ramp_missing: bool,
    /// Exponent of the attention factor: a fault unless 1.
    #[serde(default = "once")]
    pub attention_factor_power: u32,
    /// Pairing.
    #[serde(default)]
    pub pairing: Pairing,
    /// Precision of the angle.
    #[serde(default)]
    pub angle: Angle,
    /// Added to every position: a fault unless 0.
    #[serde(default)]
    pub offset: i64,
    /// How many times the rotation is applied: a fault unless 1.
    #[serde(default = "once")]
    pub times: u32,
    /// Rotation by minus the angle: a fault.
    #[serde(default)]
    pub inverse: bool,
    /// Position lookup.
    #[serde(default)]
    pub place: Place,
    /// Rotation of the upper half of the pairs.
    #[serde(default)]
    pub upper: Upper,
}

fn once() -> u32 {
    1
}

impl Params {
    /// The right op with `theta` and no scaling.
    pub fn new(theta: f64, angle: Angle) -> Params {
        Params {
            theta,
            scaling: Scaling::Default,
            base_fixed: false,
            ramp_missing: false,
            attention_factor_power: 1,
            pairing: Pairing::Halves,
            angle,
            offset: 0,
            times: 1,
            inverse: false,
            place: Place::Own,
            upper: Upper::Right,
        }
    }

    /// The frequencies of a call whose largest position is `seq_len` - 1.
    fn frequencies(&self, d: usize, seq_len: usize) -> Vec<Frequency> {
        let seq_len = match self.scaling {
            Scaling::Dynamic { factor, max_position } if self.base_fixed => {
                (max_position as f64 * factor) as usize
            }
            _ => seq_len,
        };
        let interpolated = Scaling::Linear { factor: self.scaling.factor() };
        let scaling = if self.ramp_missing { &interpolated } else { &self.scaling };
        frequencies(scaling, self.theta, d, seq_len)
    }
}

/// The op.
#[derive(Debug)]
pub struct Rope;

/// (cos, sin) of one position for each frequency.
fn table<R: Real>(
    params: &Params,
    position: i64,
    frequencies: &[Frequency],
    policy: &Policy,
) -> (Vec<R>, Vec<R>) {
    let f32_ = Rounding::nearest(Dtype::F32);
    let (u, u64) = (f32_.dtype.unit_roundoff(), Dtype::F64.unit_roundoff());
    let p = (position + params.offset) as f64;
    // In f32 everybody multiplies by the factor rounded to f32: one error for the whole table, which
    // would look like a lean.
    let once = match params.angle {
        Angle::F64 => params.scaling.attention_factor(),
        _ => f32_.round(params.scaling.attention_factor()),
    };
    let factor = (0..params.attention_factor_power).fold(1.0, |f, _| f * once);
    let table_u =
        if params.angle == Angle::F64 && policy.acc.dtype == Dtype::F64 { u64 } else { u };
    // The factor is a constant of the arithmetic, rounded, and so is its product.
    let factor_error = if factor == 1.0 { 0.0 } else { 2.0 * table_u };
    let (mut cos, mut sin) =
        (Vec::with_capacity(frequencies.len()), Vec::with_capacity(frequencies.len()));
    let bf = Rounding::nearest(Dtype::Bf16);
    let p = if params.angle == Angle::PositionBf16 { bf.round(p) } else { p };
    for (i, f) in frequencies.iter().enumerate() {
        let inv = f.value;
        // The radius of the angle: libraries' f32 powers differ by an ulp or two.
        let (angle, radius) = match params.angle {
            Angle::F64 => (p * inv, p.abs() * (f.error + 5.0 * inv) * u64),
            Angle::F32 | Angle::PositionBf16 => {
                let inv32 = f32_.round(inv);
                let a = f32_.round(p * inv32);
                let product = if a == p * inv32 { 0.0 } else { u * a.abs() };
                (a, p.abs() * f.error * u + product)
            }
            Angle::FrequencyBf16 => (f32_.round(p * bf.round(inv)), 0.0),
            Angle::Bf16 => (bf.round(f32_.round(bf.round(p) * bf.round(inv))), 0.0),
        };
        let upper = if i >= frequencies.len() / 2 { params.upper } else { Upper::Right };
        let (angle, radius) = match upper {
            Upper::Still => (0.0, 0.0),
            Upper::Inverse => (-angle, radius),
            Upper::Right => (angle, radius),
        };
        let angle = if params.inverse { -angle } else { angle };
        let value = |v: f64| {
            if factor == 1.0 && (radius == 0.0 && v.abs() == 1.0 || v == 0.0) {
                R::lift(v)
            } else if radius == 0.0 && v.abs() == 1.0 {
                R::constant(v * factor)
            } else {
                R::approx(v * factor, factor * (radius + 2.0 * table_u + factor_error))
            }
        };
        cos.push(value(math::cos(angle)));
        sin.push(value(math::sin(angle)));
    }
    policy.apply("table", &mut cos);
    policy.apply("table", &mut sin);
    (cos, sin)
}

fn rotate<R: Real>(x: &[R], cos: &[R], sin: &[R], pairing: Pairing, policy: &Policy) -> Vec<R> {
    let half = x.len() / 2;
    let mut out = x.to_vec();
    if pairing == Pairing::Halves && policy.is_identity_at("product") {
        let (a, b) = out.split_at_mut(half);
        for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
            let (x, y) = (*a, *b);
            *a = x.mul(*cos).sub(y.mul(*sin));
            *b = y.mul(*cos).add(x.mul(*sin));
        }
        return out;
    }
    for i in 0..half {
        let (a, b) = match pairing {
            Pairing::Halves => (i, i + half),
            Pairing::Adjacent => (2 * i, 2 * i + 1),
        };
        let mut products = [x[a].mul(cos[i]), x[b].mul(sin[i]), x[b].mul(cos[i]), x[a].mul(sin[i])];
        policy.apply("product", &mut products);
        out[a] = products[0].sub(products[1]);
        out[b] = products[2].add(products[3]);
    }
    out
}

impl Op for Rope {
    const NAME: &'static str = "rope";
    const SUMMARY: &'static str = "rotary position embedding";
    const ARGS: &'static [ArgSpec] =
        &[ArgSpec::new("x", "[T, H, D] heads"), ArgSpec::new("positions", "[T] integers")];
    const POINTS: &'static [&'static str] = &["table", "product", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let x = need(Self::NAME, tensors, "x", true)?;
        let positions = need(Self::NAME, tensors, "positions", false)?;
        let &[t, _, d] = x.shape() else {
            return Err(Error::arg(
                Self::NAME,
                "x",
                format!("must be [T, H, D], is {:?}", x.shape()),
            ));
        };
        if d % 2 != 0 {
            return Err(Error::arg(Self::NAME, "x", format!("head_dim must be even, is {d}")));
        }
        if positions.shape() != [t] {
            let what = format!("must have shape [{t}], has {:?}", positions.shape());
            return Err(Error::arg(Self::NAME, "positions", what));
        }
        if !(params.theta.is_finite() && params.theta > 0.0) {
            return Err(Error::arg(
                Self::NAME,
                "theta",
                format!("must be > 0, is {}", params.theta),
            ));
        }
        params.scaling.check(d).map_err(|what| Error::arg(Self::NAME, "scaling", what))?;
        Ok(OutSpec::output(x.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (x, positions) = (inputs.req("x"), inputs.req("positions"));
        let &[t, heads, d] = x.shape() else { unreachable!("checked") };
        let largest = (0..t).map(|i| positions.int(i)).max().unwrap_or(0).max(0);
        let frequencies = params.frequencies(d, largest as usize + 1);
        let place = |i: usize| match params.place {
            Place::Own => positions.int(i),
            Place::First => positions.int(0),
            Place::Modulo(length) => positions.int(i).rem_euclid(length),
        };
        let tables = in_parallel(t, &|i| table::<R>(params, place(i), &frequencies, policy));
        Out::by_rows(tile, t * heads, |r| {
            let (cos, sin) = &tables[r / heads];
            let mut row = x.row(r);
            for _ in 0..params.times {
                row = rotate(&row, cos, sin, params.pairing, policy);
            }
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(params: &Params) -> Vec<Knob<Self>> {
        let angle = match params.angle {
            Angle::F64 => Knob::new("angle", "f64")
                .or("f32", |s: &mut Setup<Self>| s.params.angle = Angle::F32),
            _ => Knob::new("angle", "f32")
                .or("f64", |s: &mut Setup<Self>| s.params.angle = Angle::F64),
        };
        let stored = |point: &'static str| {
            Knob::new(point, "f32").or("stored", move |s: &mut Setup<Self>| {
                s.policy.round_at(point, s.policy.output.dtype);
            })
        };
        let mut knobs = vec![angle, stored("table"), stored("product")];
        if matches!(params.scaling, Scaling::Dynamic { .. }) {
            knobs.push(
                Knob::new("base", "by_call")
                    .or("fixed", |s: &mut Setup<Self>| s.params.base_fixed = true),
            );
        }
        knobs
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        let mut proposed = gain_faults("A138", residual);
        let solved = solve::implied_theta(params, residual).into_iter();
        proposed.extend(
            solved
                .filter(|t| *t != params.theta && !faults::THETAS.contains(t))
                .map(|theta| faults::wrong_theta(params, theta)),
        );
        proposed
    }
}
