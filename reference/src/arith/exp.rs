//! e^x of many numbers: to the bit [`math::exp`], several at a time.
//!
//! The operations are those of the `libm` crate's `exp` (FreeBSD's `e_exp.c`) in the same order, with
//! choices in place of its branches, so that a compiler can carry them out on vectors. What lies outside
//! the range of one scaling by a power of two goes to `libm` itself.

use super::isa::Isa;
use super::math;

const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
const LOG2_E: f64 = f64::from_bits(0x3ff7_1547_652b_82fe);
const P1: f64 = f64::from_bits(0x3fc5_5555_5555_553e);
const P2: f64 = f64::from_bits(0xbf66_c16c_16be_bd93);
const P3: f64 = f64::from_bits(0x3f11_566a_af25_de2c);
const P4: f64 = f64::from_bits(0xbebb_bd41_c5d2_6bf1);
const P5: f64 = f64::from_bits(0x3e66_3769_72be_a4d0);
/// Below it in size, x is in the primary range: 0.5 ln 2.
const REDUCED: f64 = f64::from_bits(0x3fd6_2e43_0000_0000);
/// From it on in size, k is computed and not 1 or -1: 1.5 ln 2.
const FAR: f64 = f64::from_bits(0x3ff0_a2b2_0000_0000);
/// Below it in size, 1 + x: 2^-28.
const NEAR: f64 = f64::from_bits(0x3e30_0001_0000_0000);
/// Where one multiplication by a power of two gives the result.
const RANGE: std::ops::RangeInclusive<f64> = -708.0..=709.0;
/// Adding it puts an integer into the low bits.
const MAGIC: f64 = 6_755_399_441_055_744.0;

const WIDTH: usize = 8;

/// For x in [`RANGE`].
#[inline(always)]
fn one(x: f64) -> f64 {
    let size = x.abs();
    let far = (LOG2_E * x + 0.5f64.copysign(x)).trunc();
    let k = if size >= FAR { far } else { 1f64.copysign(x) };
    let k = if size >= REDUCED { k } else { 0.0 };
    let (high, low) = (x - k * LN2_HIGH, k * LN2_LOW);
    let r = high - low;
    let square = r * r;
    let c = r - square * (P1 + square * (P2 + square * (P3 + square * (P4 + square * P5))));
    let y = 1.0 + (r * c / (2.0 - c) - low + high);
    let scale = f64::from_bits((k + 1023.0 + MAGIC).to_bits() << 52);
    if size < NEAR { 1.0 + x } else { y * scale }
}

#[inline(always)]
fn chunk(x: &mut [f64; WIDTH]) {
    let was = *x;
    for v in x.iter_mut() {
        *v = one(*v);
    }
    if !was.iter().all(|v| RANGE.contains(v)) {
        for (v, was) in x.iter_mut().zip(was) {
            *v = math::exp(was);
        }
    }
}

#[inline(always)]
fn all_f64(x: &mut [f64]) {
    let (chunks, rest) = x.as_chunks_mut::<WIDTH>();
    chunks.iter_mut().for_each(chunk);
    let mut last = [0.0; WIDTH];
    last[..rest.len()].copy_from_slice(rest);
    chunk(&mut last);
    rest.copy_from_slice(&last[..rest.len()]);
}

#[inline(always)]
fn all_f32(x: &mut [f32]) {
    for part in x.chunks_mut(WIDTH) {
        let mut wide = [0.0; WIDTH];
        for (w, v) in wide.iter_mut().zip(part.iter()) {
            *w = f64::from(*v);
        }
        chunk(&mut wide);
        for (v, w) in part.iter_mut().zip(wide) {
            *v = w as f32;
        }
    }
}

macro_rules! dispatched {
    ($name:ident, $doc:literal, $float:ty, $body:ident, $one:expr) => {
        #[doc = $doc]
        pub fn $name(x: &mut [$float]) {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "calls of code compiled for a detected CPU feature")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
                fn avx512(x: &mut [$float]) {
                    $body(x);
                }
                #[target_feature(enable = "avx2")]
                fn avx2(x: &mut [$float]) {
                    $body(x);
                }
                match Isa::current() {
                    // SAFETY: it was detected.
                    Isa::Avx512 => return unsafe { avx512(x) },
                    // SAFETY: it was detected.
                    Isa::Avx2 => return unsafe { avx2(x) },
                    _ => {}
                }
            }
            #[cfg(target_arch = "aarch64")]
            if Isa::current() == Isa::Neon {
                return $body(x);
            }
            for v in x {
                *v = $one(*v);
            }
        }
    };
}

dispatched!(f64s, "e^x in place.", f64, all_f64, math::exp);
dispatched!(f32s, "e^x in place: computed in f64 and rounded.", f32, all_f32, |v| {
    math::exp(f64::from(v)) as f32
});

#[cfg(test)]
mod tests {
    use super::*;

    fn is_libms(x: f64) {
        let expect = math::exp(x);
        for exps in [f64s, all_f64] {
            let mut v = [x];
            exps(&mut v);
            let same = v[0].to_bits() == expect.to_bits() || expect.is_nan() && v[0].is_nan();
            assert!(same, "e^{x:e}");
        }
    }

    #[test]
    fn every_branch_of_libm_is_taken() {
        for edge in [REDUCED, FAR, NEAR, 0.0, 708.0, 708.396_418_532_264_1, 709.0, 709.79, 745.2] {
            for ulps in -3i64..=3 {
                let x = f64::from_bits(edge.to_bits().saturating_add_signed(ulps));
                is_libms(x);
                is_libms(-x);
            }
        }
        [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 5e-324].into_iter().for_each(is_libms);
    }

    #[test]
    fn many_numbers_of_every_size() {
        let mut state = 1u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
            is_libms((unit - 0.5) * 1500.0);
            is_libms(-unit * 20.0);
            is_libms((unit - 0.5) * 1e-3);
        }
    }

    #[test]
    fn any_length_and_an_outlier_in_a_chunk() {
        for n in 0..40usize {
            let x: Vec<f32> = (0..n).map(|i| i as f32 * -31.7 + 40.0).collect();
            let mut y = x.clone();
            f32s(&mut y);
            for (x, y) in x.iter().zip(&y) {
                assert_eq!((math::exp(f64::from(*x)) as f32).to_bits(), y.to_bits(), "e^{x}");
            }
        }
    }
}
