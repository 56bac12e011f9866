//! [`Ball`]: the oracle with its own error. Running an op over `Ball` gives the op's bound.

mod products;
mod reduction;

pub use reduction::Prepared;

use super::{math, matmul::Weights, real::Real};
use crate::dtype::{Dtype, Rounding, pow2};
use crate::policy::Accumulator;

/// Unit roundoff of the oracle itself.
const ORACLE_U: f64 = 1.0 / (1u64 << 53) as f64;

/// Units u of e^x: two units in the last place, of up to 2 u each, from the correctly rounded value.
pub(crate) const EXP: f64 = 5.0;
/// Units u of e^x for each 1 of |x|: the rounding of x log2(e) and of the constant log2(e) in f32.
const EXP_SLOPE: f64 = 1.25;
/// Units u of 1/sqrt(x): likewise, or a root and a reciprocal within one unit of the exact ones (4 u).
const RSQRT: f64 = 5.0;
/// Units u of a quotient: a reciprocal within one unit of the exact one (2 u), and its product.
const DIVISION: f64 = 3.0;
/// A radius below any rounding, for a value that is known but not to the bit.
pub(crate) const INEXACT: f64 = 1e-30;

/// A value `v` computed in f64, and how far a legitimate implementation in `P`-bit arithmetic may be
/// from it (24 for f32, 53 for f64).
///
/// - `r`: hard radius, never exceeded by a correct implementation in any order;
/// - `s`: standard deviation of the error, adds in quadrature;
/// - `d`: systematic drift that goes with `s`, adds linearly.
///
/// The radius at confidence λ is min(r, d + λ s). An operation whose exact result is representable
/// adds nothing. The f64 oracle's own rounding is included, which matters for `P` = 53.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ball<const P: i32> {
    /// The oracle's value.
    pub v: f64,
    /// Hard radius.
    pub r: f64,
    /// Standard deviation.
    pub s: f64,
    /// Systematic part of the statistical radius.
    pub d: f64,
}

impl<const P: i32> Ball<P> {
    /// Hard unit roundoff: the implementation's and the oracle's.
    fn u() -> f64 {
        pow2(-P) + ORACLE_U
    }

    /// Root mean square of both roundings, in units of |value| (each uniform in ±u).
    fn u_rms() -> f64 {
        (pow2(-2 * P) + ORACLE_U * ORACLE_U).sqrt() / 3f64.sqrt()
    }

    /// Half the spacing of subnormals in the implementation's arithmetic.
    fn eta() -> f64 {
        if P == 24 { pow2(-150) } else { 0.0 }
    }

    const fn exact(v: f64) -> Self {
        Ball { v, r: 0.0, s: 0.0, d: 0.0 }
    }

    /// The radius at confidence `lambda` (infinite: the hard one).
    pub fn radius(self, lambda: f64) -> f64 {
        if lambda.is_infinite() { self.r } else { self.r.min(self.d + lambda * self.s) }
    }

    /// Adds one rounding of the result, unless it was exact.
    fn rounded(self, exact: bool) -> Self {
        if !self.v.is_finite() {
            return Ball::exact(self.v);
        }
        if exact && self.is_exact() && (P == 53 || f64::from(self.v as f32) == self.v) {
            return self;
        }
        let size = self.v.abs();
        Ball {
            v: self.v,
            r: self.r + Self::u() * size + Self::eta(),
            s: self.s.hypot(Self::u_rms() * size + Self::eta()),
            d: self.d,
        }
    }

    /// Adds a relative error of at most `units` u, of unknown distribution.
    fn with_units(self, units: f64) -> Self {
        if !self.v.is_finite() {
            return Ball::exact(self.v);
        }
        let e = units * Self::u() * self.v.abs() + Self::eta();
        Ball { v: self.v, r: self.r + e, s: self.s.hypot(e / 3f64.sqrt()), d: self.d }
    }

    /// Allows a subnormal result to be flushed to zero, as device exponentials do.
    fn flushed(self) -> Self {
        let e = if P == 24 { pow2(-126) } else { 0.0 };
        Ball { r: self.r + e, s: self.s + e, ..self }
    }
}

fn values<const P: i32>(a: &[Ball<P>]) -> Vec<f64> {
    a.iter().map(|x| x.v).collect()
}

impl<const P: i32> Real for Ball<P> {
    const BITS: i32 = P;
    const IS_BOUND: bool = true;

    fn lift(x: f64) -> Self {
        Ball::exact(x)
    }

    fn constant(x: f64) -> Self {
        if f64::from(x as f32) == x {
            return Ball::exact(x);
        }
        let e = Self::u() * x.abs();
        Ball { v: x, r: e, s: 0.0, d: e }
    }

    fn approx(x: f64, radius: f64) -> Self {
        Ball { v: x, r: radius, s: 0.0, d: radius }
    }

    fn value(self) -> f64 {
        self.v
    }

    fn is_exact(self) -> bool {
        self.r == 0.0
    }

    fn add(self, o: Self) -> Self {
        let v = self.v + o.v;
        let back = v - self.v;
        let exact = (self.v - (v - back)) + (o.v - back) == 0.0; // two-sum
        Ball { v, r: self.r + o.r, s: self.s.hypot(o.s), d: self.d + o.d }.rounded(exact)
    }

    fn sub(self, o: Self) -> Self {
        self.add(o.neg())
    }

    fn neg(self) -> Self {
        Ball { v: -self.v, ..self }
    }

    fn mul(self, o: Self) -> Self {
        let v = self.v * o.v;
        let (a, b) = (self.v.abs(), o.v.abs());
        let exact = libm::fma(self.v, o.v, -v) == 0.0;
        Ball {
            v,
            r: a * o.r + b * self.r + self.r * o.r,
            s: (a * o.s).hypot(b * self.s).hypot(self.s * o.s),
            d: a * o.d + b * self.d + self.d * o.d,
        }
        .rounded(exact)
    }

    fn div(self, o: Self) -> Self {
        let v = self.v / o.v;
        let room = o.v.abs() - o.r;
        if room <= 0.0 {
            return Ball { v, r: f64::INFINITY, s: f64::INFINITY, d: 0.0 };
        }
        if P == 24 && o.v.abs() + o.r > f64::from(f32::MAX) {
            // The divisor may be infinite there, the quotient then zero.
            let most = (self.v.abs() + self.r) / room;
            return Ball { v, r: most, s: most, d: 0.0 };
        }
        let propagated = Ball {
            v,
            r: (self.r + v.abs() * o.r) / room,
            s: self.s.hypot(v * o.s) / room,
            d: (self.d + v.abs() * o.d) / room,
        };
        // Exact both as a division and as a product with the reciprocal.
        let shifts = o.is_exact() && pow2_exact(o.v);
        if P == 53 || shifts || v == 0.0 {
            return propagated.rounded(libm::fma(v, o.v, -self.v) == 0.0);
        }
        propagated.with_units(DIVISION)
    }

    fn exp(self) -> Self {
        let v = math::exp(self.v);
        if self.is_exact() && (self.v == 0.0 || v == 0.0 || !v.is_finite()) {
            return Ball::exact(v);
        }
        // An argument that underflows everywhere within its ball stays an exact zero in f32.
        if v == 0.0 || (P == 24 && self.v + self.r < -104.0) {
            return Ball { v, r: v, s: v, d: 0.0 };
        }
        let grow = |e: f64| v * math::expm1(e);
        Ball { v, r: grow(self.r), s: grow(self.s), d: grow(self.d) }
            .with_units(EXP + EXP_SLOPE * self.v.abs())
            .flushed()
    }

    fn rsqrt(self) -> Self {
        let v = 1.0 / self.v.sqrt();
        if !v.is_finite() {
            return Ball::exact(v);
        }
        let room = self.v - self.r;
        if room <= 0.0 {
            return Ball { v, r: f64::INFINITY, s: f64::INFINITY, d: 0.0 };
        }
        let exact = self.is_exact() && v * v * self.v == 1.0 && f64::from(v as f32) == v;
        if exact && pow2_exact(v) {
            return Ball::exact(v);
        }
        let hard = 1.0 / room.sqrt() - v;
        let slope = v / (2.0 * self.v);
        Ball { v, r: hard, s: slope * self.s, d: slope * self.d }.with_units(RSQRT)
    }

    type Vector = Prepared<P>;

    fn prepare(a: Vec<Self>) -> Prepared<P> {
        Prepared::new(a)
    }

    fn dot_prepared(a: &Prepared<P>, b: &Prepared<P>, first: usize, acc: &Accumulator) -> Self {
        a.dot(b, first, acc)
    }

    fn products(
        x: &[Self],
        k: usize,
        weights: &Weights<'_, Self>,
        n: usize,
        acc: &Accumulator,
    ) -> Option<Vec<Self>> {
        if acc.is_exact() { None } else { products::products(x, k, weights, n) }
    }

    fn dot(a: &[Self], b: &[Self], first: usize, acc: &Accumulator) -> Self {
        Self::ball_dot(a, b, first, acc)
    }

    fn sum(a: &[Self], first: usize, acc: &Accumulator) -> Self {
        Self::ball_sum(a, first, acc)
    }

    fn weighted_sums(
        w: &[Self],
        columns: &[&[Self]],
        first: usize,
        acc: &Accumulator,
    ) -> Vec<Self> {
        Self::sums_of_columns(w, columns, first, acc)
    }

    fn weighted_means(
        w: &[Self],
        columns: &[&[Self]],
        first: usize,
        acc: &Accumulator,
    ) -> Vec<Self> {
        if w.iter().all(|x| x.is_exact()) {
            let (sum, sums) =
                (Self::ball_sum(w, first, acc), Self::weighted_sums(w, columns, first, acc));
            return sums.into_iter().map(|x| x.div(sum)).collect();
        }
        Self::means_of_uncertain(w, columns, first, acc)
    }

    fn spread(self) -> f64 {
        self.s
    }

    fn widened(self, hard: f64, sd: f64) -> Self {
        if !self.v.is_finite() {
            return self;
        }
        Ball { v: self.v, r: self.r + hard, s: self.s.hypot(sd), d: self.d }
    }

    fn round(self, rounding: Rounding, lambda: f64) -> Self {
        if P == 53 && rounding.dtype == Dtype::F64 {
            // What f64 arithmetic computes is f64 already; a bound kept whole stays statistical.
            return self;
        }
        let radius = self.radius(lambda);
        if !(self.v.is_finite() && radius.is_finite()) {
            return Ball { v: rounding.round(self.v), ..self };
        }
        let (lo, hi) = (rounding.round(self.v - radius), rounding.round(self.v + radius));
        if lo == hi {
            return Ball::exact(lo);
        }
        if !(lo.is_finite() && hi.is_finite()) {
            // On the brink of overflow nothing is known of what follows.
            return Ball { v: self.v, r: f64::INFINITY, s: f64::INFINITY, d: 0.0 };
        }
        let half = (hi - lo) / 2.0;
        Ball { v: lo + half, r: half, s: half, d: 0.0 }
    }
}

/// Whether v is a power of two: then rsqrt is exact in every sane implementation.
fn pow2_exact(v: f64) -> bool {
    v.to_bits() & ((1 << 52) - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type B = Ball<24>;

    #[test]
    fn exact_operations_add_nothing() {
        let three = B::lift(3.0);
        assert_eq!(three.mul(B::lift(0.5)), B::exact(1.5));
        assert_eq!(three.add(B::lift(4.0)), B::exact(7.0));
        assert_eq!(B::lift(0.0).exp(), B::exact(1.0));
        assert!(three.div(B::lift(7.0)).r > 0.0);
        assert!(B::lift(1.0).add(B::lift(1e-9)).r > 0.0);
        let ints: Vec<B> = (0..100).map(|i| B::lift(f64::from(i % 7))).collect();
        assert_eq!(B::dot(&ints, &ints, 0, &Accumulator::ANY).r, 0.0);
    }

    #[test]
    fn interior_rounding_is_exact_again_unless_near_a_tie() {
        let bf = Rounding::nearest(Dtype::Bf16);
        let clear = B { v: 1.003, r: 1e-6, s: 1e-7, d: 0.0 }.round(bf, 8.0);
        assert_eq!(clear, B::exact(1.0));
        let tie = B { v: 1.00390625, r: 1e-6, s: 1e-7, d: 0.0 }.round(bf, 8.0);
        assert_eq!((tie.v, tie.r), (1.00390625, 0.00390625));
    }

    proptest! {
        #[test]
        fn f32_in_three_orders_stays_inside(
            a in proptest::collection::vec(-4f32..4.0, 5..400),
            seed in 0u32..1000,
        ) {
            let b: Vec<f32> = a.iter().enumerate()
                .map(|(i, x)| ((i as u32 * 97 + seed) % 101) as f32 * 0.013 - x * 0.3).collect();
            let ball = B::dot(
                &a.iter().map(|&x| B::lift(f64::from(x))).collect::<Vec<_>>(),
                &b.iter().map(|&x| B::lift(f64::from(x))).collect::<Vec<_>>(),
                0, &Accumulator::ANY);
            let forward: f32 = a.iter().zip(&b).fold(0.0, |s, (x, y)| s + x * y);
            let backward: f32 = a.iter().zip(&b).rev().fold(0.0, |s, (x, y)| x.mul_add(*y, s));
            for got in [forward, backward, crate::arith::dot::dot_f32(&a, &b, 0)] {
                let error = (f64::from(got) - ball.v).abs();
                prop_assert!(error <= ball.r, "hard: {error:e} > {:e}", ball.r);
                prop_assert!(error <= ball.radius(8.0), "8 sigma: {error:e} > {:e}", ball.radius(8.0));
            }
        }

        #[test]
        fn f32_elementary_operations_stay_inside(x in -20f32..20.0, y in 0.01f32..30.0) {
            let (bx, by) = (B::lift(f64::from(x)), B::lift(f64::from(y)));
            for (got, ball) in [
                (x / y, bx.div(by)),
                (x * y + x, bx.mul(by).add(bx)),
                (Real::exp(x), bx.exp()),
                (1.0 / (1.0 + Real::exp(-x)), B::lift(1.0).div(B::lift(1.0).add(bx.neg().exp()))),
                (Real::rsqrt(y * y + 0.1), by.mul(by).add(B::constant(0.1)).rsqrt()),
            ] {
                prop_assert!((f64::from(got) - ball.v).abs() <= ball.r);
            }
        }
    }
}
