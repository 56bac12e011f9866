//! Rounding of many numbers at a time, by their codes.

use super::{Dtype, Mode, Rounding};

/// Numbers that are rounded together.
const CHUNK: usize = 64;

/// See [`Rounding::plain`].
struct Plain {
    /// Bits that are rounded away.
    shift: u32,
    /// Biased exponents of numbers that are normal before and after.
    normal: std::ops::Range<u64>,
}

impl Rounding {
    /// [`Rounding::round`] of each, many at a time.
    pub fn round_all(self, x: &mut [f64]) {
        let Some(Plain { shift, normal }) = self.plain(53, 1023) else {
            return x.iter_mut().for_each(|x| *x = self.round(*x));
        };
        let unit = 1u64 << shift;
        for part in x.chunks_mut(CHUNK) {
            let is_plain = |x: &f64| {
                let exponent = (x.to_bits() >> 52) & 0x7ff;
                (exponent.wrapping_sub(normal.start) < normal.end - normal.start) | (*x == 0.0)
            };
            if !part.iter().fold(true, |all, x| all & is_plain(x)) {
                part.iter_mut().for_each(|x| *x = self.round(*x));
                continue;
            }
            for x in part {
                let bits = x.to_bits();
                let up = unit / 2 - 1 + (bits >> shift & 1);
                *x = f64::from_bits((bits + up) & !(unit - 1));
            }
        }
    }

    /// The same of f32, from which every format of fewer bits is rounded once as well.
    pub fn round_all_f32(self, x: &mut [f32]) {
        let Some(Plain { shift, normal }) = self.plain(24, 127) else {
            return x.iter_mut().for_each(|x| *x = self.round(f64::from(*x)) as f32);
        };
        let (unit, first, many) =
            (1u32 << shift, normal.start as u32, (normal.end - normal.start) as u32);
        for part in x.chunks_mut(CHUNK) {
            let is_plain = |x: &f32| {
                let exponent = (x.to_bits() >> 23) & 0xff;
                (exponent.wrapping_sub(first) < many) | (*x == 0.0)
            };
            if !part.iter().fold(true, |all, x| all & is_plain(x)) {
                part.iter_mut().for_each(|x| *x = self.round(f64::from(*x)) as f32);
                continue;
            }
            for x in part {
                let bits = x.to_bits();
                let up = unit / 2 - 1 + (bits >> shift & 1);
                *x = f32::from_bits((bits + up) & !(unit - 1));
            }
        }
    }

    /// How numbers of `from` significant bits, whose exponents are biased by `bias`, are rounded to nearest even by
    /// their codes alone; `None` where they are not.
    fn plain(self, from: i32, bias: i32) -> Option<Plain> {
        let format = self.dtype.format().filter(|f| f.bits < from)?;
        let simple = self.mode == Mode::Nearest && !self.flush && self.dtype != Dtype::F8E4m3;
        // The number's own subnormals are left out too: their codes have no hidden bit.
        let start = (format.min_exp + bias).max(1) as u64;
        simple.then_some(Plain {
            shift: (from - format.bits) as u32,
            normal: start..(format.max_exp + bias) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::pow2;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn many_are_rounded_as_each_one(
            seeds in prop::collection::vec(any::<u64>(), 0..200),
            dtype in prop::sample::select(vec![
                Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64, Dtype::F8E4m3,
            ]),
            mode in prop::sample::select(vec![Mode::Nearest, Mode::TowardZero, Mode::NearestAway]),
            flush: bool,
        ) {
            let rounding = Rounding { dtype, mode, flush };
            // Ties, any bits at all, small exponents, specials.
            let special = [0.0, -0.0, f64::NAN, f64::INFINITY, 65519.0, 65520.0, 3.4e38, 1e-45, 6e-8];
            let one = |s: &u64| match s % 8 {
                0 => f64::from_bits(*s),
                1 => special[(s / 8) as usize % special.len()],
                2 => f64::from(((s >> 20) as u16).wrapping_add(1)) * pow2((s >> 40) as i32 % 30 - 15),
                _ => (s >> 11) as f64 * pow2(-45 - (s % 23) as i32),
            };
            let x: Vec<f64> = seeds.iter().map(one).collect();
            let bits = |x: f64| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() };
            let mut all = x.clone();
            rounding.round_all(&mut all);
            for (got, x) in all.iter().zip(&x) {
                prop_assert_eq!(bits(*got), bits(rounding.round(*x)), "{:e}", x);
            }
            let mut short: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let before = short.clone();
            rounding.round_all_f32(&mut short);
            for (got, x) in short.iter().zip(&before) {
                let want = rounding.round(f64::from(*x)) as f32;
                prop_assert_eq!(bits(f64::from(*got)), bits(f64::from(want)), "{:e}", x);
            }
        }
    }
}
