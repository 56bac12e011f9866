//! The frequencies of the rotation, and how long contexts change them.

use serde::{Deserialize, Serialize};

use crate::arith::math;

/// How the inverse frequencies theta^(-2i/D) are changed for contexts longer than those of training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Scaling {
    /// Not at all.
    #[default]
    Default,
    /// Every frequency divided by `factor`: positions are interpolated.
    Linear {
        /// Ratio of the long context to the trained one.
        factor: f64,
    },
    /// The base grows with the sequence once it is longer than `max_position` (NTK).
    Dynamic {
        /// Ratio of the long context to the trained one.
        factor: f64,
        /// Positions that need no scaling.
        max_position: usize,
    },
    /// YaRN: high frequencies stay, low ones are interpolated, a ramp lies between; cos and sin are
    /// multiplied by an attention factor.
    Yarn(Yarn),
}

/// Constants of YaRN. Source: <https://arxiv.org/abs/2309.00071>
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Yarn {
    /// Ratio of the long context to the trained one.
    pub factor: f64,
    /// Positions of the trained context.
    pub original_max_position: usize,
    /// Rotations over the trained context above which a frequency stays; 32 by default.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by `factor`; 1 by default.
    pub beta_slow: f64,
    /// Whether the ramp's ends are whole dimensions; true by default.
    pub truncate: bool,
    /// Factor of cos and sin; [`mscale`]`(factor, 1)` by default.
    pub attention_factor: f64,
}

/// YaRN's 0.1 m ln(factor) + 1, or 1 for factors up to 1.
pub fn mscale(factor: f64, m: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * m * math::ln(factor) + 1.0 }
}

impl Yarn {
    /// The dimension pairs between which the ramp lies.
    fn ramp_ends(&self, theta: f64, d: usize) -> (f64, f64) {
        let dimension = |rotations: f64| {
            let turns = self.original_max_position as f64 / (rotations * std::f64::consts::TAU);
            d as f64 * math::ln(turns) / (2.0 * math::ln(theta))
        };
        let (mut low, mut high) = (dimension(self.beta_fast), dimension(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(d as f64 - 1.0));
        if low == high {
            high += 0.001; // as published implementations do: a step
        }
        (low, high)
    }
}

/// An inverse frequency with the most by which implementations are off that compute it in some
/// precision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frequency {
    pub(super) value: f64,
    /// Radians a position, in unit roundoffs of that precision.
    pub(super) error: f64,
}

/// Inverse frequencies for i < D/2. `seq_len` is one more than the largest position.
///
/// Powers and reciprocals are off by up to 3 u (a power by 2 units, its reciprocal by half of one);
/// each further operation adds u. theta^0 is exactly 1.
pub(super) fn frequencies(
    scaling: &Scaling,
    theta: f64,
    d: usize,
    seq_len: usize,
) -> Vec<Frequency> {
    let base = match *scaling {
        Scaling::Dynamic { factor, max_position } => {
            let len = seq_len.max(max_position) as f64;
            let grown = factor * len / max_position as f64 - (factor - 1.0);
            theta * math::pow(grown, d as f64 / (d as f64 - 2.0))
        }
        _ => theta,
    };
    let one = |i: usize| {
        let plain = math::pow(base, -2.0 * i as f64 / d as f64);
        let power = if i == 0 { 0.0 } else { 3.0 * plain };
        let (value, error) = match scaling {
            Scaling::Default => (plain, power),
            Scaling::Linear { factor } => (plain / factor, (power + plain) / factor),
            // A base off by 4 u moves its power, whose exponent is below 1, by no more.
            Scaling::Dynamic { .. } => (plain, if i == 0 { 0.0 } else { power + 4.0 * plain }),
            Scaling::Yarn(yarn) => {
                let (low, high) = yarn.ramp_ends(theta, d);
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                let inter = plain / yarn.factor;
                // The ramp is off by its own operations and by the rounding of its lower end.
                let mixed = if ramp > 0.0 && ramp < 1.0 {
                    (3.0 + low / (high - low)) * (inter + plain)
                } else {
                    0.0
                };
                let divided = if ramp > 0.0 { inter } else { 0.0 };
                (inter * ramp + plain * (1.0 - ramp), power + divided + mixed)
            }
        };
        Frequency { value, error }
    };
    (0..d / 2).map(one).collect()
}

impl Scaling {
    /// Ratio of the extended context to the trained one.
    pub fn factor(&self) -> f64 {
        match *self {
            Scaling::Default => 1.0,
            Scaling::Linear { factor } | Scaling::Dynamic { factor, .. } => factor,
            Scaling::Yarn(yarn) => yarn.factor,
        }
    }

    /// The factor of cos and sin.
    pub fn attention_factor(&self) -> f64 {
        if let Scaling::Yarn(yarn) = self { yarn.attention_factor } else { 1.0 }
    }

    /// Checks the constants.
    pub(super) fn check(&self, d: usize) -> Result<(), String> {
        let positive = |name: &str, x: f64| {
            if x.is_finite() && x > 0.0 {
                Ok(())
            } else {
                Err(format!("{name} must be > 0, is {x}"))
            }
        };
        match *self {
            Scaling::Default => Ok(()),
            Scaling::Linear { factor } => positive("factor", factor),
            Scaling::Dynamic { factor, max_position } => {
                positive("factor", factor)?;
                positive("max_position", max_position as f64)?;
                if d > 2 { Ok(()) } else { Err(format!("needs head_dim above 2, is {d}")) }
            }
            Scaling::Yarn(yarn) => {
                positive("factor", yarn.factor)?;
                positive("original_max_position", yarn.original_max_position as f64)?;
                positive("beta_fast", yarn.beta_fast)?;
                positive("beta_slow", yarn.beta_slow)?;
                positive("attention_factor", yarn.attention_factor)
            }
        }
    }
}
