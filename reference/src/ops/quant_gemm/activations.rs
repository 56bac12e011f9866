//! Quantised activations.

use serde::{Deserialize, Serialize};

use crate::arith::Real;
use crate::dtype::{Dtype, Rounding, e4m3};

/// What happens to x before the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// As stored.
    #[default]
    Stored,
    /// Quantised to e4m3 with a scale for each group of a row.
    Fp8,
    /// With one scale for each row: a fault.
    Fp8PerToken,
    /// Without a scale: a fault.
    Fp8Unscaled,
    /// Quantised to integers of 8 bits with a scale for each 32 elements: a fault.
    Int8Blocks,
    /// With one scale for each row: a fault.
    Int8PerToken,
}

/// Elements of a block of [`Activations::Int8Blocks`].
const INT8_BLOCK: usize = 32;
/// The largest code of 8 bits.
const INT8_LARGEST: f64 = 127.0;

impl Activations {
    pub(super) fn is_stored(&self) -> bool {
        *self == Activations::Stored
    }

    pub(super) fn is_fp8(self) -> bool {
        matches!(self, Activations::Fp8 | Activations::Fp8PerToken | Activations::Fp8Unscaled)
    }

    /// One row, quantised and back.
    pub(super) fn apply<R: Real>(self, row: &mut [R], group: usize, lambda: f64) {
        let rounding = Rounding::nearest(Dtype::F8E4m3);
        let size = match self {
            Activations::Stored => return,
            Activations::Fp8Unscaled => {
                row.iter_mut().for_each(|x| *x = x.round(rounding, lambda));
                return;
            }
            Activations::Fp8PerToken | Activations::Int8PerToken => row.len(),
            Activations::Fp8 => group,
            Activations::Int8Blocks => INT8_BLOCK,
        };
        let largest_code = if self.is_fp8() { e4m3::LARGEST } else { INT8_LARGEST };
        let code = |x: R| match self.is_fp8() {
            true => x.round(rounding, lambda),
            false => to_integer(x),
        };
        for part in row.chunks_mut(size.max(1)) {
            let largest = |a: R, b: &R| if b.value().abs() > a.value().abs() { *b } else { a };
            let amax = part.iter().fold(R::lift(0.0), largest);
            if amax.value() == 0.0 {
                continue;
            }
            let amax = if amax.value() < 0.0 { amax.neg() } else { amax };
            let scale = amax.div(R::lift(largest_code));
            part.iter_mut().for_each(|x| *x = code(x.div(scale)).mul(scale));
        }
    }
}

/// The nearest integer, halves away from zero. Where f32 leaves open which it is, either.
fn to_integer<R: Real>(x: R) -> R {
    let v = x.value();
    let doubtful = ((v - v.trunc()).abs() - 0.5).abs() < 1e-4;
    if doubtful && !x.is_exact() { R::approx(v.round(), 1.0) } else { R::lift(v.round()) }
}
