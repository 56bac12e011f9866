//! NEON: four registers hold the lanes of a reduction.

#![expect(
    unsafe_code,
    reason = "intrinsics; what each method asks of its caller stands at the trait"
)]

use std::arch::aarch64::*;

use half::f16;

use super::Register;

impl Register for float32x4_t {
    type Elem = f32;
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { vst1q_f32(p, self) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { Self::load(halves::<4>(p).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { vaddq_f32(self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { vfmaq_f32(self, a, b) }
    }
    #[inline(always)]
    unsafe fn tree(self) -> f32 {
        unsafe {
            let two = vadd_f32(vget_low_f32(self), vget_high_f32(self));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}

impl Register for float64x2_t {
    type Elem = f64;
    const WIDTH: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { vdupq_n_f64(0.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        unsafe { vdupq_n_f64(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        unsafe { vld1q_f64(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        unsafe { vst1q_f64(p, self) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let bits = [p.read_unaligned(), p.add(1).read_unaligned()];
            let wide = bits.map(|b| f32::from_bits(u32::from(b) << 16));
            vcvt_f64_f32(vld1_f32(wide.as_ptr()))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { vcvt_f64_f32(vld1_f32(halves::<2>(p).as_ptr())) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self {
        unsafe { vcvt_f64_f32(vld1_f32(p)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { vaddq_f64(self, other) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { vfmaq_f64(self, a, b) }
    }
    #[inline(always)]
    unsafe fn tree(self) -> f64 {
        unsafe { vgetq_lane_f64::<0>(self) + vgetq_lane_f64::<1>(self) }
    }
}

/// Widened f16.
#[inline(always)]
unsafe fn halves<const N: usize>(p: *const u16) -> [f32; N] {
    // SAFETY: as the caller promises.
    std::array::from_fn(|i| f16::from_bits(unsafe { p.add(i).read_unaligned() }).to_f32())
}
