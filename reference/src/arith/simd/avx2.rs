//! AVX2: two registers hold the lanes of a reduction.

#![expect(
    unsafe_code,
    reason = "intrinsics; what each method asks of its caller stands at the trait"
)]

use std::arch::x86_64::*;

use super::Register;

impl Register for __m256 {
    type Elem = f32;
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm256_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a hint, which faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm256_fmadd_ps(a, b, self) }
    }
    #[inline(always)]
    unsafe fn tree(self) -> f32 {
        unsafe {
            let high = _mm256_extractf128_ps::<1>(self);
            let four = _mm_add_ps(_mm256_castps256_ps128(self), high);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    unsafe fn trees([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        unsafe {
            let (ab, cd) = (halves(a, b), halves(c, d));
            // [a c | b d], each of two lanes.
            let low = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let two = _mm256_add_ps(low, _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
            let one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
            let mut out = [0.0; 8];
            _mm256_storeu_ps(out.as_mut_ptr(), one);
            [out[0], out[4], out[2], out[6]]
        }
    }
}

impl Register for __m256d {
    type Elem = f64;
    const WIDTH: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm256_setzero_pd() }
    }
    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        unsafe { _mm256_set1_pd(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        unsafe { _mm256_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        unsafe { _mm256_storeu_pd(p, self) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let wide = _mm_cvtepu16_epi32(_mm_loadl_epi64(p.cast()));
            _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self {
        unsafe { _mm256_cvtps_pd(_mm_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm256_add_pd(self, other) }
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a hint, which faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm256_fmadd_pd(a, b, self) }
    }
    #[inline(always)]
    unsafe fn tree(self) -> f64 {
        unsafe {
            let high = _mm256_extractf128_pd::<1>(self);
            let two = _mm_add_pd(_mm256_castpd256_pd128(self), high);
            _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn trees([a, b, c, d]: [Self; 4]) -> [f64; 4] {
        unsafe {
            let (ab, cd) = (halves_d(a, b), halves_d(c, d));
            // [a c | b d].
            let one = _mm256_add_pd(_mm256_unpacklo_pd(ab, cd), _mm256_unpackhi_pd(ab, cd));
            let mut out = [0.0; 4];
            _mm256_storeu_pd(out.as_mut_ptr(), one);
            [out[0], out[2], out[1], out[3]]
        }
    }
}

/// The upper half of each added to its lower half: [x | y].
#[inline(always)]
unsafe fn halves(x: __m256, y: __m256) -> __m256 {
    unsafe {
        let low = _mm256_permute2f128_ps::<0x20>(x, y);
        _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(x, y))
    }
}

/// The same in f64.
#[inline(always)]
unsafe fn halves_d(x: __m256d, y: __m256d) -> __m256d {
    unsafe {
        let low = _mm256_permute2f128_pd::<0x20>(x, y);
        _mm256_add_pd(low, _mm256_permute2f128_pd::<0x31>(x, y))
    }
}
