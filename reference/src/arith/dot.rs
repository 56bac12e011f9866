//! The one definition of a reduction, and the same code compiled for AVX2 with FMA.

#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

/// Lanes of an f32 reduction.
pub const LANES_F32: usize = 16;
/// Lanes of an f64 reduction.
pub const LANES_F64: usize = 8;

macro_rules! reduction {
    ($float:ty, $lanes:expr, $dot:ident, $sum:ident, $dot_body:ident, $sum_body:ident, $dot_fma:ident, $sum_fma:ident) => {
        /// Sum of products. `first` is the absolute index of element 0 on the reduced axis.
        pub fn $dot(a: &[$float], b: &[$float], first: usize) -> $float {
            debug_assert_eq!(a.len(), b.len());
            #[cfg(target_arch = "x86_64")]
            if Isa::current() != Isa::Scalar {
                // SAFETY: every other choice on this architecture implies AVX2 and FMA.
                #[expect(
                    unsafe_code,
                    reason = "a call into code compiled for a detected CPU feature"
                )]
                return unsafe { $dot_fma(a, b, first) };
            }
            $dot_body(a, b, first)
        }

        /// Sum. `first` is the absolute index of element 0 on the reduced axis.
        pub fn $sum(a: &[$float], first: usize) -> $float {
            #[cfg(target_arch = "x86_64")]
            if Isa::current() != Isa::Scalar {
                // SAFETY: every other choice on this architecture implies AVX2 and FMA.
                #[expect(
                    unsafe_code,
                    reason = "a call into code compiled for a detected CPU feature"
                )]
                return unsafe { $sum_fma(a, first) };
            }
            $sum_body(a, first)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $dot_fma(a: &[$float], b: &[$float], first: usize) -> $float {
            $dot_body(a, b, first)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $sum_fma(a: &[$float], first: usize) -> $float {
            $sum_body(a, first)
        }

        #[inline(always)]
        fn $dot_body(a: &[$float], b: &[$float], first: usize) -> $float {
            const L: usize = $lanes;
            let mut lanes = [0.0; L];
            let head = head(first, a.len(), L);
            for i in 0..head {
                let lane = (first + i) % L;
                lanes[lane] = a[i].mul_add(b[i], lanes[lane]);
            }
            let (a, b) = (&a[head..], &b[head..a.len()]);
            let (a_chunks, b_chunks) = (a.chunks_exact(L), b.chunks_exact(L));
            let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
            for (x, y) in a_chunks.zip(b_chunks) {
                for l in 0..L {
                    lanes[l] = x[l].mul_add(y[l], lanes[l]);
                }
            }
            for (l, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
                lanes[l] = x.mul_add(*y, lanes[l]);
            }
            tree(lanes)
        }

        #[inline(always)]
        fn $sum_body(a: &[$float], first: usize) -> $float {
            const L: usize = $lanes;
            let mut lanes = [0.0; L];
            let head = head(first, a.len(), L);
            for i in 0..head {
                lanes[(first + i) % L] += a[i];
            }
            let chunks = a[head..].chunks_exact(L);
            let rest = chunks.remainder();
            for x in chunks {
                for l in 0..L {
                    lanes[l] += x[l];
                }
            }
            for (l, x) in rest.iter().enumerate() {
                lanes[l] += x;
            }
            tree(lanes)
        }
    };
}

reduction!(f32, LANES_F32, dot_f32, sum_f32, dot_f32_body, sum_f32_body, dot_f32_fma, sum_f32_fma);
reduction!(f64, LANES_F64, dot_f64, sum_f64, dot_f64_body, sum_f64_body, dot_f64_fma, sum_f64_fma);

/// Elements before the first whole group of lanes.
#[inline(always)]
fn head(first: usize, len: usize, lanes: usize) -> usize {
    ((lanes - first % lanes) % lanes).min(len)
}

/// Adds the lanes in halves: L/2 apart, L/4 apart, ..., 1 apart.
#[inline(always)]
pub(super) fn tree<T: Copy + std::ops::Add<Output = T>, const L: usize>(mut lanes: [T; L]) -> T {
    let mut half = L / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] = lanes[l] + lanes[l + half];
        }
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, as directly as it can be written.
    fn definition(a: &[f32], b: &[f32], first: usize) -> f32 {
        let mut lanes = [0.0f32; LANES_F32];
        for i in 0..a.len() {
            let l = (first + i) % LANES_F32;
            lanes[l] = libm::fmaf(a[i], b[i], lanes[l]);
        }
        for half in [8, 4, 2, 1] {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
        }
        lanes[0]
    }

    proptest! {
        #[test]
        fn fast_and_plain_code_give_the_bits_of_the_definition(
            a in proptest::collection::vec(-1e3f32..1e3, 0..200),
            first in 0usize..40,
        ) {
            let b: Vec<f32> = a.iter().rev().map(|x| x * 0.37 + 1.0).collect();
            let expect = definition(&a, &b, first).to_bits();
            prop_assert_eq!(dot_f32(&a, &b, first).to_bits(), expect);
            prop_assert_eq!(dot_f32_body(&a, &b, first).to_bits(), expect);
            let ones = vec![1.0; a.len()];
            prop_assert_eq!(sum_f32(&a, first).to_bits(), definition(&a, &ones, first).to_bits());
        }

        #[test]
        fn f64_reductions_agree_with_exact_integer_sums(
            a in proptest::collection::vec(-1000i64..1000, 0..300),
            first in 0usize..40,
        ) {
            let x: Vec<f64> = a.iter().map(|&v| v as f64).collect();
            let squares: i64 = a.iter().map(|v| v * v).sum();
            prop_assert_eq!(dot_f64(&x, &x, first), squares as f64);
            prop_assert_eq!(sum_f64(&x, first), a.iter().sum::<i64>() as f64);
        }
    }
}
