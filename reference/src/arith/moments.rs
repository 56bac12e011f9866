//! Sums over the products of two vectors that a bound needs beside the dot product itself.
//!
//! Of numbers of 24 bits, whose products are exact in f64, they are to the bit the dot products of the
//! absolute values and of the squares, so that whole matrices of them are products of matrices.

use super::dot::{LANES_F64 as LANES, tree};
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

/// What a list of terms adds up to when their signs are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moments {
    /// Sum of the absolute values.
    pub(super) abs: f64,
    /// Sum of the squares.
    pub(super) squares: f64,
    /// Terms that are not zero.
    pub(super) terms: usize,
}

/// Of the products of `a` and `b`, which are equally long.
pub(super) fn of_products(a: &[f64], b: &[f64]) -> Moments {
    debug_assert_eq!(a.len(), b.len());
    #[cfg(target_arch = "x86_64")]
    if Isa::current() != Isa::Scalar {
        // SAFETY: every other choice on this architecture implies AVX2.
        #[expect(unsafe_code, reason = "a call into code compiled for a detected CPU feature")]
        return unsafe { of_products_avx2(a, b) };
    }
    body(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn of_products_avx2(a: &[f64], b: &[f64]) -> Moments {
    body(a, b)
}

#[inline(always)]
fn body(a: &[f64], b: &[f64]) -> Moments {
    let (mut abs, mut squares, mut terms) = ([0.0; LANES], [0.0; LANES], [0u64; LANES]);
    let mut one = |l: usize, x: f64, y: f64| {
        let t = x * y;
        abs[l] += t.abs();
        squares[l] = t.mul_add(t, squares[l]);
        terms[l] += u64::from(t != 0.0);
    };
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (x, y) in a_chunks.zip(b_chunks) {
        for l in 0..LANES {
            one(l, x[l], y[l]);
        }
    }
    for (l, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        one(l, *x, *y);
    }
    Moments { abs: tree(abs), squares: tree(squares), terms: terms.iter().sum::<u64>() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn by_hand() {
        let sums = of_products(&[1.0, -2.0, 0.0, 4.0], &[3.0, 0.5, 7.0, 0.0]);
        assert_eq!(sums, Moments { abs: 4.0, squares: 10.0, terms: 2 });
    }

    proptest! {
        #[test]
        fn of_short_numbers_they_are_dot_products(
            pairs in prop::collection::vec((-1e3f32..1e3, -1e-30f32..1e-30), 0..70)
        ) {
            let (a, b): (Vec<f64>, Vec<f64>) =
                pairs.into_iter().map(|(x, y)| (f64::from(x), f64::from(y))).unzip();
            let each = |x: &[f64], f: fn(f64) -> f64| x.iter().map(|x| f(*x)).collect::<Vec<_>>();
            let dot = |f: fn(f64) -> f64| super::super::dot::dot_f64(&each(&a, f), &each(&b, f), 0);
            let sums = of_products(&a, &b);
            prop_assert_eq!(sums.abs.to_bits(), dot(f64::abs).to_bits());
            prop_assert_eq!(sums.squares.to_bits(), dot(|x| x * x).to_bits());
        }

        #[test]
        fn both_compilations_give_the_same_bits(
            pairs in prop::collection::vec((-1e3f64..1e3, -1e3f64..1e3), 0..70)
        ) {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            prop_assert_eq!(of_products(&a, &b), body(&a, &b));
        }
    }
}
