//! AVX-512: one register holds the lanes of a reduction.

#![expect(
    unsafe_code,
    reason = "intrinsics; what each method asks of its caller stands at the trait"
)]

use std::arch::x86_64::*;

use super::Register;

impl Register for __m512 {
    type Elem = f32;
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a hint, which faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm512_fmadd_ps(a, b, self) }
    }
    #[inline(always)]
    unsafe fn tree(self) -> f32 {
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self)));
            _mm256_add_ps(_mm512_castps512_ps256(self), high).tree()
        }
    }
    #[inline(always)]
    unsafe fn trees([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // Each step adds the upper half of every sum's lanes to the lower one, for several sums at once.
        unsafe {
            let (ab, cd) = (halves(a, b), halves(c, d));
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let four = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
            let two = _mm512_add_ps(four, _mm512_permute_ps::<0b11_10_11_10>(four));
            let one = _mm512_add_ps(two, _mm512_permute_ps::<0b01_01_01_01>(two));
            let first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            let picked = _mm512_castps512_ps128(_mm512_permutexvar_ps(first, one));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), picked);
            out
        }
    }
}

impl Register for __m512d {
    type Elem = f64;
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm512_setzero_pd() }
    }
    #[inline(always)]
    unsafe fn splat(x: f64) -> Self {
        unsafe { _mm512_set1_pd(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f64) -> Self {
        unsafe { _mm512_loadu_pd(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f64) {
        unsafe { _mm512_storeu_pd(p, self) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        unsafe { _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self {
        unsafe { _mm512_cvtps_pd(_mm256_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { _mm512_add_pd(self, other) }
    }
    #[inline(always)]
    fn prefetch(p: *const u8) {
        // SAFETY: a hint, which faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm512_fmadd_pd(a, b, self) }
    }
    #[inline(always)]
    unsafe fn tree(self) -> f64 {
        unsafe {
            let high = _mm512_extractf64x4_pd::<1>(self);
            _mm256_add_pd(_mm512_castpd512_pd256(self), high).tree()
        }
    }
    #[inline(always)]
    unsafe fn trees([a, b, c, d]: [Self; 4]) -> [f64; 4] {
        unsafe {
            let (ab, cd) = (halves_d(a, b), halves_d(c, d));
            let low = _mm512_shuffle_f64x2::<0b10_00_10_00>(ab, cd);
            let two = _mm512_add_pd(low, _mm512_shuffle_f64x2::<0b11_01_11_01>(ab, cd));
            let one = _mm512_add_pd(two, _mm512_permute_pd::<0b0101_0101>(two));
            let first = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
            let picked = _mm512_castpd512_pd256(_mm512_permutexvar_pd(first, one));
            let mut out = [0.0; 4];
            _mm256_storeu_pd(out.as_mut_ptr(), picked);
            out
        }
    }
}

/// The upper half of each added to its lower half: [x | y].
#[inline(always)]
unsafe fn halves(x: __m512, y: __m512) -> __m512 {
    unsafe {
        let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(x, y);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(x, y))
    }
}

/// The same in f64.
#[inline(always)]
unsafe fn halves_d(x: __m512d, y: __m512d) -> __m512d {
    unsafe {
        let low = _mm512_shuffle_f64x2::<0b01_00_01_00>(x, y);
        _mm512_add_pd(low, _mm512_shuffle_f64x2::<0b11_10_11_10>(x, y))
    }
}
