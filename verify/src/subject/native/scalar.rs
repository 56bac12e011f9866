//! Single values: how dtypes are read and rounded, and elementary functions as devices have them.
//!
//! Written apart from the reference's rounding, which works in f64: here everything is f32 bits.

use assay_reference::{Dtype, Error, Result, Tensor};

/// How a conversion to a narrower dtype rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// To nearest, ties to even.
    Nearest,
    /// To nearest, ties away from zero: `+ 0x8000`.
    TiesAway,
    /// Toward zero: a shift by 16.
    Truncate,
}

impl Store {
    /// The value that `dtype` keeps of `x`.
    pub(super) fn round(self, dtype: Dtype, x: f32) -> f32 {
        match dtype {
            Dtype::Bf16 => self.bf16(x),
            Dtype::F16 => self.narrow(x, 10, -14, 65504.0),
            _ => x,
        }
    }

    /// The value that e4m3 keeps of `x`, cut to +-448.
    pub(super) fn e4m3(self, x: f32) -> f32 {
        if x.is_nan() {
            return x;
        }
        self.narrow(x.clamp(-448.0, 448.0), 3, -6, 480.0).clamp(-448.0, 448.0)
    }

    fn bf16(self, x: f32) -> f32 {
        if x.is_nan() {
            return x;
        }
        let bits = x.to_bits();
        let up = match self {
            Store::Nearest => 0x7fff + (bits >> 16 & 1),
            Store::TiesAway => 0x8000,
            Store::Truncate => 0,
        };
        f32::from_bits((bits + up) & 0xffff_0000)
    }

    /// A format of `fraction` explicit bits whose smallest normal number is 2^`low`.
    fn narrow(self, x: f32, fraction: i32, low: i32, largest: f32) -> f32 {
        if !x.is_finite() || x == 0.0 {
            return x;
        }
        let exponent = (x.to_bits() >> 23 & 0xff) as i32 - 127;
        let step = power_of_two(exponent.max(low) - fraction);
        let steps = x / step;
        let whole = match self {
            // Adding 1.5 x 2^23 leaves no room for a fraction: the hardware rounds it to even.
            Store::Nearest => (steps + 12_582_912.0) - 12_582_912.0,
            Store::TiesAway => (steps.abs() + 0.5).trunc().copysign(x),
            Store::Truncate => steps.trunc(),
        };
        let y = whole * step;
        match self {
            _ if y.abs() <= largest => y,
            Store::Truncate => largest.copysign(x),
            Store::Nearest | Store::TiesAway => f32::INFINITY.copysign(x),
        }
    }
}

/// The nearest value of e4m3, cut to +-448; NaN stays.
pub(super) fn e4m3(x: f32) -> f32 {
    Store::Nearest.e4m3(x)
}

/// 2^e for -126 <= e <= 127.
fn power_of_two(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// A 16-bit float from its bits.
fn f16_value(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction as f32 * power_of_two(-24),
        31 if fraction == 0 => f32::INFINITY,
        31 => f32::NAN,
        e => f32::from_bits(((e + 112) as u32) << 23 | fraction << 13),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The bits of a value that binary16 has.
fn f16_bits(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16 & 0x8000) as u16;
    let size = x.abs();
    let rest = if x.is_nan() {
        0x7e00
    } else if size.is_infinite() {
        0x7c00
    } else if size < power_of_two(-14) {
        (size * power_of_two(24)) as u16
    } else {
        (((size.to_bits() >> 23) - 112) << 10 | (size.to_bits() >> 13 & 0x3ff)) as u16
    };
    sign | rest
}

/// How the bytes of an fp8 weight are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fp8 {
    /// Bias 7, NaN in the two codes of all ones.
    E4m3,
    /// The same without the NaN.
    E4m3NoNan,
    /// Bias 8, NaN in the code of -0.
    E4m3Fnuz,
    /// 5 exponent bits of bias 15, infinities and NaN as in IEEE.
    E5m2,
}

impl Fp8 {
    /// The value of each of the 256 bytes.
    pub(super) fn table(self) -> Vec<f32> {
        (0..=255u8).map(|byte| self.value(byte)).collect()
    }

    fn value(self, byte: u8) -> f32 {
        let (bits, bias) = match self {
            Fp8::E4m3 | Fp8::E4m3NoNan => (3, 7),
            Fp8::E4m3Fnuz => (3, 8),
            Fp8::E5m2 => (2, 15),
        };
        let fraction = (byte & ((1 << bits) - 1)) as f32 / (1 << bits) as f32;
        let exponent = i32::from(byte >> bits) & ((1 << (7 - bits)) - 1);
        let size = match (self, byte & 0x7f) {
            (Fp8::E4m3, 0x7f) => f32::NAN,
            (Fp8::E4m3Fnuz, 0) if byte == 0x80 => f32::NAN,
            (Fp8::E5m2, 0x7c) => f32::INFINITY,
            (Fp8::E5m2, 0x7d..) => f32::NAN,
            _ if exponent == 0 => fraction * power_of_two(1 - bias),
            _ => (1.0 + fraction) * power_of_two(exponent - bias),
        };
        if byte >> 7 == 1 { -size } else { size }
    }
}

/// All elements of a floating-point tensor.
pub(super) fn floats(t: &Tensor, name: &str) -> Result<Vec<f32>> {
    let bytes = t.bytes();
    let two = |c: &[u8]| u16::from_le_bytes([c[0], c[1]]);
    let four = |c: &[u8]| f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
    Ok(match t.dtype() {
        Dtype::Bf16 => {
            bytes.chunks_exact(2).map(|c| f32::from_bits(u32::from(two(c)) << 16)).collect()
        }
        Dtype::F16 => bytes.chunks_exact(2).map(|c| f16_value(two(c))).collect(),
        Dtype::F32 => bytes.chunks_exact(4).map(four).collect(),
        Dtype::F8E4m3 => {
            let table = Fp8::E4m3.table();
            bytes.iter().map(|&b| table[usize::from(b)]).collect()
        }
        other => {
            return Err(Error::Request(format!(
                "argument `{name}`: a native subject computes in f32 and takes bf16, f16 or f32, not {other}"
            )));
        }
    })
}

/// A tensor of values that `dtype` has.
pub(super) fn tensor(dtype: Dtype, shape: &[usize], values: &[f32]) -> Result<Tensor> {
    let bytes = match dtype {
        Dtype::Bf16 => values.iter().flat_map(|v| bf16_bits(*v).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|v| f16_bits(*v).to_le_bytes()).collect(),
        Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        other => {
            return Err(Error::Request(format!(
                "a native subject stores bf16, f16 or f32, not {other}: judge f64 cases with another subject"
            )));
        }
    };
    Tensor::from_bytes(dtype, shape.to_vec(), bytes)
}

fn bf16_bits(x: f32) -> u16 {
    if x.is_nan() { 0x7fc0 } else { (x.to_bits() >> 16) as u16 }
}

/// e^x as devices compute it, by way of 2^x: good to 2 + 1.22 |x| units, since log2 e is rounded too.
pub(super) fn device_exp(x: f32) -> f32 {
    exp2(x * std::f32::consts::LOG2_E)
}

/// 2^x with a polynomial on [-1/2, 1/2], good to two units.
pub(super) fn exp2(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x >= 128.0 {
        return f32::INFINITY;
    }
    // Devices flush what is below the smallest normal number.
    if x < -126.0 {
        return 0.0;
    }
    // Adding 1.5 x 2^23 leaves no room for a fraction.
    let whole = (x + 12_582_912.0) - 12_582_912.0;
    // Taylor's series in f ln 2, whose next term is below 2^-26.
    let z = (x - whole) * std::f32::consts::LN_2;
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    let p = series.iter().fold(1.0 / 5040.0, |p: f32, c| p * z + c) * z + 1.0;
    let exponent = whole as i32;
    // 2^128 has no bits of its own.
    if exponent > 127 { p * power_of_two(127) * 2.0 } else { p * power_of_two(exponent) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_round_as_the_standards_say() {
        let bf = |x| Store::Nearest.round(Dtype::Bf16, x);
        // 1 + 2^-8 is a tie, 1 + 3 x 2^-8 another: both go to the even neighbour.
        assert_eq!([bf(1.0 + 1.0 / 256.0), bf(1.0 + 3.0 / 256.0)], [1.0, 1.015_625]);
        assert_eq!(Store::TiesAway.round(Dtype::Bf16, 1.0 + 1.0 / 256.0), 1.007_812_5);
        assert_eq!(Store::Truncate.round(Dtype::Bf16, -1.99999), -1.992_187_5);
        assert_eq!(bf(3.4e38), f32::INFINITY);
        let half = |x| Store::Nearest.round(Dtype::F16, x);
        assert_eq!(
            [half(65519.0), half(65520.0), half(-65520.0)],
            [65504.0, f32::INFINITY, f32::NEG_INFINITY]
        );
        assert_eq!(half(3.0e-8), 5.960_464_5e-8);
        assert_eq!(half(2.9e-8), 0.0);
        assert_eq!(Store::Truncate.round(Dtype::F16, 1e6), 65504.0);
        assert_eq!([e4m3(17.0), e4m3(19.0), e4m3(1e9), e4m3(0.0009)], [16.0, 20.0, 448.0, 0.0]);
    }

    /// Every 16-bit pattern survives reading and writing.
    #[test]
    fn sixteen_bit_floats_are_read_and_written() {
        for bits in 0..=u16::MAX {
            let x = f16_value(bits);
            if !x.is_nan() {
                assert_eq!(f16_bits(x), bits);
                assert_eq!(Store::Nearest.round(Dtype::F16, x), x);
            }
        }
    }

    #[test]
    fn fp8_tables_have_the_known_extremes() {
        assert_eq!(Fp8::E4m3.value(0x7e), 448.0);
        assert!(Fp8::E4m3.value(0xff).is_nan());
        assert_eq!(Fp8::E4m3NoNan.value(0xff), -480.0);
        assert_eq!(Fp8::E4m3Fnuz.value(0x7f), 240.0);
        assert_eq!(Fp8::E5m2.value(0x7b), 57344.0);
        assert_eq!(Fp8::E4m3.value(1), 0.001_953_125);
    }

    #[test]
    fn the_device_exponential_is_close() {
        for i in -870..=880 {
            let x = i as f32 * 0.1;
            let units = (device_exp(x) / libm::expf(x) - 1.0).abs() * 16_777_216.0;
            // The rounded product and the rounded constant: (1 + 0.22) |x|.
            assert!(units <= 3.0 + 1.25 * x.abs(), "{x}: {units}");
        }
        assert_eq!(device_exp(0.0), 1.0);
    }
}
