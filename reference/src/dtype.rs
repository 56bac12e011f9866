//! Element types, and the one rounding function of the project.

mod many;

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the elements of a [`Tensor`](crate::Tensor) are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// bfloat16: 8 significant bits, the exponent range of f32.
    Bf16,
    /// IEEE binary16: 11 significant bits.
    F16,
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// OCP 8-bit float with 4 exponent and 3 fraction bits, torch's `float8_e4m3fn`: no infinities,
    /// largest 448, one NaN per sign (see [`e4m3`]).
    F8E4m3,
    /// 32-bit integers: token ids, positions, `g_idx`, and packed GPTQ words.
    I32,
    /// 64-bit integers, as frameworks store token ids.
    I64,
    /// Bytes and booleans.
    U8,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Dtype::U8 | Dtype::F8E4m3 => 1,
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F64 | Dtype::I64 => 8,
        }
    }

    /// The floating-point format of this dtype, or `None` for integers.
    pub const fn format(self) -> Option<Format> {
        match self {
            Dtype::Bf16 => Some(Format { bits: 8, min_exp: -126, max_exp: 127 }),
            Dtype::F16 => Some(Format { bits: 11, min_exp: -14, max_exp: 15 }),
            Dtype::F32 => Some(Format { bits: 24, min_exp: -126, max_exp: 127 }),
            Dtype::F64 => Some(Format { bits: 53, min_exp: -1022, max_exp: 1023 }),
            Dtype::F8E4m3 => Some(Format { bits: 4, min_exp: -6, max_exp: 8 }),
            Dtype::I32 | Dtype::I64 | Dtype::U8 => None,
        }
    }

    /// The largest finite number, or infinity for integers.
    pub fn largest(self) -> f64 {
        match (self, self.format()) {
            // The code above it is a NaN.
            (Dtype::F8E4m3, _) => e4m3::LARGEST,
            (_, Some(f)) => largest(f),
            (_, None) => f64::INFINITY,
        }
    }

    /// The unit roundoff u = 2^-bits, or 0 for integers.
    pub fn unit_roundoff(self) -> f64 {
        self.format().map_or(0.0, |f| pow2(-f.bits))
    }

    /// The name used in params, JSON and text: `bf16`, `f32`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F8E4m3 => "f8e4m3",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::U8 => "u8",
        }
    }

    /// From the spelling in a safetensors header (`BF16`, `F32`, ...).
    pub fn from_safetensors(name: &str) -> Option<Dtype> {
        Some(match name {
            "BF16" => Dtype::Bf16,
            "F16" => Dtype::F16,
            "F32" => Dtype::F32,
            "F64" => Dtype::F64,
            "F8_E4M3" => Dtype::F8E4m3,
            "I32" | "U32" => Dtype::I32,
            "I64" => Dtype::I64,
            "U8" | "BOOL" => Dtype::U8,
            _ => return None,
        })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A binary floating-point format with IEEE-like subnormals and infinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Significant bits, the hidden one included.
    pub bits: i32,
    /// Exponent of the smallest normal number.
    pub min_exp: i32,
    /// Exponent of the largest finite number.
    pub max_exp: i32,
}

/// Which neighbour a value between two representable ones becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// To nearest, ties to even: IEEE's default and torch's `.to(dtype)`.
    Nearest,
    /// Toward zero: what a kernel does that stores the upper half of an f32.
    TowardZero,
    /// To nearest, ties away from zero: what adding 0x8000 before the shift does.
    NearestAway,
}

/// A rounding to a stored dtype: the transform at a named point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rounding {
    /// Target dtype; a floating-point one.
    pub dtype: Dtype,
    /// Direction.
    pub mode: Mode,
    /// Whether results below the smallest normal number become zero.
    pub flush: bool,
}

impl Rounding {
    /// Round to nearest even with subnormals kept.
    pub const fn nearest(dtype: Dtype) -> Self {
        Rounding { dtype, mode: Mode::Nearest, flush: false }
    }

    /// Round toward zero with subnormals kept.
    pub const fn toward_zero(dtype: Dtype) -> Self {
        Rounding { dtype, mode: Mode::TowardZero, flush: false }
    }

    /// Rounds once, directly from f64 (never through f32, which would round twice).
    ///
    /// NaN stays NaN, infinities stay, overflow gives infinity to nearest and the largest finite
    /// number toward zero. Integers' dtypes leave the value as it is. [`Dtype::F8E4m3`] has no
    /// infinity: overflow and infinities give +-448, as torch's conversion does since 2.15 (before,
    /// it gave NaN; quantisers clamp first).
    pub fn round(self, x: f64) -> f64 {
        let Some(f) = self.dtype.format() else { return x };
        if self.dtype == Dtype::F8E4m3 && x.abs() > e4m3::LARGEST {
            return e4m3::LARGEST.copysign(x);
        }
        if f.bits == 53 || !x.is_finite() || x == 0.0 {
            return x;
        }
        let exp = exponent(x);
        // Normal before and after: a carry out of the fraction steps into the next binade by itself.
        if exp >= f.min_exp && exp < f.max_exp {
            let unit = 1u64 << (53 - f.bits);
            let bits = x.to_bits();
            let up = match self.mode {
                Mode::Nearest => unit / 2 - 1 + u64::from(bits & unit != 0),
                Mode::NearestAway => unit / 2,
                Mode::TowardZero => 0,
            };
            return f64::from_bits((bits + up) & !(unit - 1));
        }
        if self.flush && exp < f.min_exp {
            return 0.0f64.copysign(x);
        }
        let quantum = pow2(exp.max(f.min_exp) - f.bits + 1);
        let scaled = x / quantum; // exact: a power of two
        let whole = match self.mode {
            Mode::Nearest => scaled.round_ties_even(),
            Mode::NearestAway => scaled.round(),
            Mode::TowardZero => scaled.trunc(),
        };
        let y = whole * quantum;
        let max = self.dtype.largest();
        if y.abs() > max {
            return match self.mode {
                Mode::TowardZero => max.copysign(x),
                Mode::Nearest | Mode::NearestAway => f64::INFINITY.copysign(x),
            };
        }
        y
    }

    /// Whether every number of `bits` significant bits, 24 for f32 or 53 for f64, stays as it is.
    pub fn keeps(self, bits: i32) -> bool {
        let format = self.dtype.format();
        !self.flush && bits >= 24 && format.is_none_or(|f| f.bits >= bits)
    }

    /// The most that this rounding moves a value near `x`; 0 for f64, whose values stay as they are.
    pub fn most(self, x: f64) -> f64 {
        match (self.dtype.format(), self.mode) {
            (None, _) | (Some(Format { bits: 53, .. }), _) => 0.0,
            (Some(_), Mode::TowardZero) => self.ulp(x),
            (Some(_), Mode::Nearest | Mode::NearestAway) => self.ulp(x) / 2.0,
        }
    }

    /// Distance between neighbours of this dtype at `x` (the spacing above |x|'s binade).
    pub fn ulp(self, x: f64) -> f64 {
        let Some(f) = self.dtype.format() else { return 1.0 };
        if !x.is_finite() {
            return f64::INFINITY;
        }
        let exp = if x == 0.0 { f.min_exp } else { exponent(x).max(f.min_exp) };
        pow2((exp - f.bits + 1).max(-1074))
    }
}

/// The largest finite number of a format.
pub fn largest(f: Format) -> f64 {
    (2.0 - pow2(1 - f.bits)) * pow2(f.max_exp)
}

/// floor(log2(|x|)) for finite non-zero x.
fn exponent(x: f64) -> i32 {
    let biased = ((x.to_bits() >> 52) & 0x7ff) as i32;
    if biased != 0 {
        return biased - 1023;
    }
    let mantissa = x.to_bits() & ((1 << 52) - 1);
    -1011 - mantissa.leading_zeros() as i32
}

/// 2^e, exact for -1074 <= e <= 1023.
pub fn pow2(e: i32) -> f64 {
    if e >= -1022 {
        f64::from_bits(((e + 1023) as u64) << 52)
    } else {
        f64::from_bits(1u64 << (e + 1074).max(0))
    }
}

/// The codes of [`Dtype::F8E4m3`]: sign, 4 exponent bits of bias 7, 3 fraction bits.
///
/// Source: <https://arxiv.org/abs/2209.05433>
pub mod e4m3 {
    use super::{exponent, pow2};

    /// The largest finite value: the code 0x7e.
    pub const LARGEST: f64 = 448.0;
    /// The NaN without a sign.
    pub const NAN: u8 = 0x7f;

    /// The value of a code.
    pub fn decode(code: u8) -> f64 {
        let (exp, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let size = match (exp, code & 7) {
            (15, 7) => return f64::NAN,
            (0, _) => fraction * pow2(-9),
            _ => (8.0 + fraction) * pow2(exp - 10),
        };
        if code & 0x80 != 0 { -size } else { size }
    }

    /// The code of a representable value; NaN gives 0x7f.
    pub fn encode(x: f64) -> u8 {
        if x.is_nan() {
            return NAN;
        }
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        if x == 0.0 {
            return sign;
        }
        let exp = exponent(x).max(-6);
        let eighths = (x.abs() * pow2(3 - exp)) as u8; // exact: 1 to 15
        // A subnormal has no hidden bit, which a fraction below 8 leaves out by itself.
        sign + ((exp + 6) as u8) * 8 + eighths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powers_and_exponents() {
        for e in -1074..=1023 {
            assert_eq!(exponent(pow2(e)), e, "2^{e}");
        }
    }

    #[test]
    fn overflow_and_subnormals_follow_ieee() {
        let bf = Rounding::nearest(Dtype::Bf16);
        assert_eq!(bf.round(3.4e38), f64::INFINITY);
        assert_eq!(Rounding::toward_zero(Dtype::Bf16).round(3.4e38), 3.3895313892515355e38);
        assert_eq!(Rounding::nearest(Dtype::F16).round(65519.0), 65504.0);
        assert_eq!(Rounding::nearest(Dtype::F16).round(65520.0), f64::INFINITY);
        let flush = Rounding { dtype: Dtype::F16, mode: Mode::Nearest, flush: true };
        assert_eq!(flush.round(3e-5), 0.0);
        assert!(Rounding::nearest(Dtype::F16).round(3e-5) > 0.0);
    }

    /// Every code, from the definition by its fields.
    #[test]
    fn e4m3_codes_are_values_and_back() {
        for code in 0..=255u8 {
            let x = e4m3::decode(code);
            if code & 0x7f == 0x7f {
                assert!(x.is_nan());
                continue;
            }
            let mut want = 0.0;
            for (bit, weight) in [(2, 0.5), (1, 0.25), (0, 0.125)] {
                want += if code >> bit & 1 == 1 { weight } else { 0.0 };
            }
            let exp = i32::from(code >> 3 & 15);
            want = if exp == 0 { want * 2f64.powi(-6) } else { (1.0 + want) * 2f64.powi(exp - 7) };
            want = if code >= 0x80 { -want } else { want };
            assert_eq!(x.to_bits(), want.to_bits(), "{code:#x}");
            assert_eq!(e4m3::encode(x), code);
            assert_eq!(Rounding::nearest(Dtype::F8E4m3).round(x).to_bits(), x.to_bits());
        }
        assert_eq!(e4m3::decode(0x7e), e4m3::LARGEST);
    }

    /// As torch 2.15 on the CPU converts.
    #[test]
    fn e4m3_saturates_and_keeps_nan() {
        let r = Rounding::nearest(Dtype::F8E4m3);
        for x in [448.0, 460.0, 464.0, 465.0, 479.0, 480.0, 1e6, f64::INFINITY] {
            assert_eq!((r.round(x), r.round(-x)), (448.0, -448.0), "{x}");
        }
        assert!(r.round(f64::NAN).is_nan());
        assert_eq!(r.round(pow2(-10)), 0.0);
        assert_eq!(r.round(pow2(-10) * 1.0001), pow2(-9));
        assert_eq!(r.round(1.5 * pow2(-9)), pow2(-8));
        assert_eq!(Rounding::toward_zero(Dtype::F8E4m3).round(479.0), 448.0);
    }

    proptest! {
        /// The nearest of all values, and of two the one with an even code.
        #[test]
        fn e4m3_rounds_to_the_nearest_code(x in -500f64..500.0, small in -0.05f64..0.05) {
            for x in [x, small] {
                let got = Rounding::nearest(Dtype::F8E4m3).round(x);
                let best = (0..=255u8)
                    .map(|c| (c, e4m3::decode(c)))
                    .filter(|(_, v)| !v.is_nan() && v.is_sign_negative() == x.is_sign_negative())
                    .min_by(|a, b| {
                        let by = |(c, v): &(u8, f64)| ((v - x).abs(), c & 1);
                        by(a).partial_cmp(&by(b)).expect("numbers")
                    });
                prop_assert_eq!(got.to_bits(), best.expect("codes").1.to_bits());
            }
        }

        #[test]
        fn agrees_with_half_and_hardware_on_every_f32(bits: u32) {
            let x = f32::from_bits(bits);
            prop_assume!(!x.is_nan());
            let bf = Rounding::nearest(Dtype::Bf16).round(f64::from(x));
            prop_assert_eq!(bf, half::bf16::from_f32(x).to_f64());
            let h = Rounding::nearest(Dtype::F16).round(f64::from(x));
            prop_assert_eq!(h, half::f16::from_f32(x).to_f64());
            let cut = Rounding::toward_zero(Dtype::Bf16).round(f64::from(x));
            prop_assert_eq!(cut, f64::from(f32::from_bits(bits & 0xffff_0000)));
            if x.is_finite() && x.abs() < 3e38 {
                let away = Rounding { mode: Mode::NearestAway, ..Rounding::nearest(Dtype::Bf16) };
                let want = f32::from_bits((bits + 0x8000) & 0xffff_0000);
                prop_assert_eq!(away.round(f64::from(x)), f64::from(want));
            }
        }

        #[test]
        fn f64_to_f32_is_the_hardware_cast(bits: u64) {
            let x = f64::from_bits(bits);
            prop_assume!(!x.is_nan());
            prop_assert_eq!(Rounding::nearest(Dtype::F32).round(x), f64::from(x as f32));
        }
    }
}
