//! Bounds of reductions: sums, dot products and weighted means.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::{Ball, INEXACT, ORACLE_U, values};
use crate::arith::moments::{self, Moments};
use crate::arith::{Real, dot, emulate};
use crate::dtype::pow2;
use crate::policy::Accumulator;

/// A vector that takes part in many dot products.
#[derive(Debug)]
pub struct Prepared<const P: i32> {
    v: Vec<f64>,
    /// The elements with their errors; none where all are exact.
    balls: Vec<Ball<P>>,
    few: i32,
    quantum: OnceLock<i32>,
}

impl<const P: i32> Prepared<P> {
    pub(super) fn new(a: Vec<Ball<P>>) -> Self {
        let (v, exact) = (values(&a), has_no_radius(&a));
        let balls = if exact { Vec::new() } else { a };
        Prepared { few: quantum_of_few(&v), v, balls, quantum: OnceLock::new() }
    }

    fn quantum(&self) -> i32 {
        *self.quantum.get_or_init(|| quantum(&self.v))
    }

    /// As [`Real::dot`].
    pub(super) fn dot(&self, b: &Self, first: usize, acc: &Accumulator) -> Ball<P> {
        if !(self.balls.is_empty() && b.balls.is_empty()) {
            return Ball::ball_dot(&self.all(), &b.all(), first, acc);
        }
        if acc.is_exact() {
            return Ball::exact(emulate::dot(&self.v, Some(&b.v), acc));
        }
        let v = Ball::exact(dot::dot_f64(&self.v, &b.v, first));
        let lowest = Lowest { few: self.few + b.few, all: &|| self.quantum() + b.quantum() };
        Ball::reduction(v, self.v.len(), &Stats::of_products(&self.v, &b.v, lowest), true)
    }

    fn all(&self) -> Cow<'_, [Ball<P>]> {
        if self.balls.is_empty() {
            self.v.iter().map(|v| Ball::exact(*v)).collect()
        } else {
            Cow::Borrowed(&self.balls)
        }
    }
}

fn has_no_radius<const P: i32>(a: &[Ball<P>]) -> bool {
    a.iter().all(|x| x.r == 0.0)
}

/// A power of two of which all terms are multiples, as integers are of 2^0.
#[derive(Clone, Copy)]
pub(super) struct Lowest<'a> {
    /// Its exponent is not above this one, that of a few terms: most sums are seen by it not to be exact.
    pub(super) few: i32,
    /// Its exponent.
    pub(super) all: &'a dyn Fn() -> i32,
}

/// What the bound of a reduction needs to know of its terms.
pub(super) struct Stats<'a> {
    pub(super) moments: Moments,
    pub(super) lowest: Lowest<'a>,
    /// The factors of the last term that is not zero, if it is the only one.
    pub(super) only: (f64, f64),
}

impl<'a> Stats<'a> {
    /// Of the products of `a` and `b`.
    pub(super) fn of_products(a: &[f64], b: &[f64], lowest: Lowest<'a>) -> Self {
        let moments = moments::of_products(a, b);
        let mut only = (0.0, 0.0);
        if moments.terms == 1 {
            let last = a.iter().zip(b).find(|(x, y)| *x * *y != 0.0);
            only = last.map_or(only, |(x, y)| (*x, *y));
        }
        Stats { moments, lowest, only }
    }

    /// Of the elements of `a`.
    pub(super) fn of_terms(a: &[f64], lowest: Lowest<'a>) -> Self {
        Stats::of_products(a, &vec![1.0; a.len()], lowest)
    }

    /// Whether every partial sum, in any order, is a number of `P` bits.
    fn any_order_is_exact<const P: i32>(&self) -> bool {
        let exact_if = |quantum: i32| {
            // f32 cannot hold multiples of less than its smallest normal number where subnormals are flushed.
            let fine = P == 24 && quantum < -126;
            !fine && self.moments.abs <= pow2((P + quantum).clamp(-1074, 1023))
        };
        exact_if(self.lowest.few) && exact_if((self.lowest.all)())
    }

    /// Whether the only term that is not zero is a number of `P` bits.
    fn representable<const P: i32>(&self) -> bool {
        let (x, y) = self.only;
        let t = x * y;
        libm::fma(x, y, -t) == 0.0 && (P == 53 || f64::from(t as f32) == t)
    }
}

/// The largest power of two, by its exponent, of which all of `a` are multiples; 1024 of zeros alone.
pub(super) fn quantum(a: &[f64]) -> i32 {
    const ALL: u64 = f64::INFINITY.to_bits();
    // The lowest bit of a number is a power of two, and these are ordered as their codes are.
    let lowest = |x: &f64| {
        let bits = x.to_bits() << 1 >> 1;
        let without = f64::from_bits(bits & bits.wrapping_sub(1));
        let low = (f64::from_bits(bits) - without).to_bits();
        // A power of two has no bit that its code shows.
        let low = if bits << 12 == 0 { bits } else { low };
        if bits == 0 { ALL } else { low }
    };
    let (chunks, rest) = a.as_chunks::<8>();
    let mut lanes = [ALL; 8];
    for chunk in chunks {
        for l in 0..8 {
            lanes[l] = lanes[l].min(lowest(&chunk[l]));
        }
    }
    let least = lanes.into_iter().chain(rest.iter().map(lowest)).min().unwrap_or(ALL);
    match (least >> 52) as i32 {
        0 => least.trailing_zeros() as i32 - 1074,
        exponent => exponent - 1023,
    }
}

/// That of the first elements, not below that of all.
pub(super) fn quantum_of_few(a: &[f64]) -> i32 {
    quantum(&a[..a.len().min(16)])
}

/// ((1 + u)^k - 1) for `ku` = k u: the most that k roundings in a row can do.
fn gamma(ku: f64) -> f64 {
    if ku < 1.0 { ku / (1.0 - ku) } else { f64::INFINITY }
}

impl<const P: i32> Ball<P> {
    /// The rounding errors of a reduction over `k` terms in any order, added to the propagated ones.
    ///
    /// A term of a sum takes part in at most k - 1 additions; of a dot product also in one product.
    /// Terms that are exactly zero take part in none.
    pub(super) fn reduction(propagated: Self, k: usize, stats: &Stats, products: bool) -> Self {
        let y = propagated.v;
        if !y.is_finite() {
            return Ball::exact(y);
        }
        let exact = propagated.is_exact();
        if exact
            && (stats.any_order_is_exact::<P>()
                || (stats.moments.terms <= 1 && stats.representable::<P>()))
        {
            return propagated;
        }
        let k = if exact { stats.moments.terms } else { k };
        let kf = k as f64;
        let roundings = if products { kf } else { (kf - 1.0).max(0.0) };
        let hard = gamma(roundings * Self::u()) * stats.moments.abs + roundings * Self::eta();
        if k <= 4 {
            return Ball {
                v: y,
                r: propagated.r + hard,
                s: propagated.s.hypot(hard),
                d: propagated.d,
            };
        }
        let u2 = pow2(-2 * P) + ORACLE_U * ORACLE_U;
        let q = stats.moments.squares;
        let unfused = if products { q / 3.0 } else { 0.0 };
        let variance = u2 * (kf * (2.0 * y * y + q) / 18.0 + unfused);
        let drift =
            if stats.moments.abs < 2.0 * y.abs() { 0.125 * kf * Self::u() * y.abs() } else { 0.0 };
        Ball {
            v: y,
            r: propagated.r + hard,
            s: propagated.s.hypot(variance.sqrt() + kf * Self::eta()),
            d: propagated.d + drift,
        }
    }

    pub(super) fn ball_dot(a: &[Self], b: &[Self], first: usize, acc: &Accumulator) -> Self {
        let exact_inputs = has_no_radius(a) && has_no_radius(b);
        let (av, bv) = (values(a), values(b));
        if acc.is_exact() && exact_inputs {
            return Ball::exact(emulate::dot(&av, Some(&bv), acc));
        }
        let v = dot::dot_f64(&av, &bv, first);
        let mut propagated = Ball::exact(v);
        if !exact_inputs {
            let mut var = 0.0;
            for (x, y) in a.iter().zip(b) {
                let (xa, ya) = (x.v.abs(), y.v.abs());
                propagated.r += xa * y.r + ya * x.r + x.r * y.r;
                propagated.d += xa * y.d + ya * x.d + x.d * y.d;
                let (p, q) = (xa * y.s, ya * x.s);
                var += p * p + q * q;
            }
            propagated.s = var.sqrt();
        }
        let few = quantum_of_few(&av) + quantum_of_few(&bv);
        let lowest = Lowest { few, all: &|| quantum(&av) + quantum(&bv) };
        Self::reduction(propagated, a.len(), &Stats::of_products(&av, &bv, lowest), true)
    }

    /// The dot products of exact weights with columns.
    pub(super) fn sums_of_columns(
        w: &[Self],
        columns: &[&[Self]],
        first: usize,
        acc: &Accumulator,
    ) -> Vec<Self> {
        if acc.is_exact() || !has_no_radius(w) {
            return columns.iter().map(|v| Self::ball_dot(w, v, first, acc)).collect();
        }
        let (wv, of_w) = (values(w), OnceLock::new());
        let (few, mut vv) = (quantum_of_few(&wv), Vec::with_capacity(w.len()));
        let one = |v: &&[Self]| {
            if !has_no_radius(v) {
                return Self::ball_dot(w, v, first, acc);
            }
            vv.clear();
            vv.extend(v.iter().map(|x| x.v));
            let all = || of_w.get_or_init(|| quantum(&wv)) + quantum(&vv);
            let lowest = Lowest { few: few + quantum_of_few(&vv), all: &all };
            let y = Ball::exact(dot::dot_f64(&wv, &vv, first));
            Self::reduction(y, w.len(), &Stats::of_products(&wv, &vv, lowest), true)
        };
        columns.iter().map(one).collect()
    }

    pub(super) fn ball_sum(a: &[Self], first: usize, acc: &Accumulator) -> Self {
        let exact_inputs = has_no_radius(a);
        let av = values(a);
        if acc.is_exact() && exact_inputs {
            return Ball::exact(emulate::dot(&av, None, acc));
        }
        let mut propagated = Ball::exact(dot::sum_f64(&av, first));
        if !exact_inputs {
            propagated.r = a.iter().map(|x| x.r).sum();
            propagated.d = a.iter().map(|x| x.d).sum();
            propagated.s = a.iter().map(|x| x.s * x.s).sum::<f64>().sqrt();
        }
        let lowest = Lowest { few: quantum_of_few(&av), all: &|| quantum(&av) };
        Self::reduction(propagated, a.len(), &Stats::of_terms(&av, lowest), false)
    }

    /// The means of `columns` with weights that carry errors. An error of a weight moves numerator
    /// and denominator together: with o the mean, the computed one is off by
    /// sum (w' - w)(v - o) / sum w', exactly. Only the roundings of the two sums are independent.
    pub(super) fn means_of_uncertain(
        w: &[Self],
        columns: &[&[Self]],
        first: usize,
        acc: &Accumulator,
    ) -> Vec<Self> {
        let wv = values(w);
        // The sums' own roundings: operands that are no longer exact, whose errors come later.
        let touched = |v: f64| Ball { v, r: INEXACT, s: 0.0, d: 0.0 };
        let total = dot::sum_f64(&wv, first);
        // No operand is exact, so that no sum is.
        let none = Lowest { few: 0, all: &|| 0 };
        let sum = Self::reduction(touched(total), w.len(), &Stats::of_terms(&wv, none), false);
        let room = total - w.iter().map(|x| x.r).sum::<f64>() - sum.r;
        if !(room > 0.0 && room.is_finite()) {
            let sum = Self::ball_sum(w, first, acc);
            return columns.iter().map(|v| Self::ball_dot(w, v, first, acc).div(sum)).collect();
        }
        columns
            .iter()
            .map(|v| {
                let vv = values(v);
                let n = dot::dot_f64(&wv, &vv, first);
                let stats = Stats::of_products(&wv, &vv, none);
                let mean = Self::reduction(touched(n), w.len(), &stats, true).div(sum);
                if !mean.v.is_finite() {
                    return mean;
                }
                let (mut r, mut d, mut var) = (0.0, 0.0, 0.0);
                for (w, v) in w.iter().zip(*v) {
                    let from = (v.v - mean.v).abs();
                    r += w.r * (from + v.r) + w.v.abs() * v.r;
                    d += w.d * (from + v.d) + w.v.abs() * v.d;
                    let (p, q) = (w.s * from, w.v * v.s);
                    var += p * p + q * q;
                }
                Ball {
                    v: mean.v,
                    r: mean.r + r / room,
                    s: mean.s.hypot(var.sqrt() / total),
                    d: mean.d + d / room,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_quantum_is_the_lowest_bit_of_all() {
        assert_eq!(quantum(&[3.0, 0.0, -8.0]), 0);
        assert_eq!(quantum(&[8.0, 24.0]), 3);
        assert_eq!(quantum(&[1.015625, 2.0]), -6);
        assert_eq!(quantum(&[f64::from_bits(6)]), -1073);
        assert_eq!(quantum(&[0.0]), 1024);
    }

    /// Multiples of 2^-6 whose sums stay below 2^18 are exact in f32; above, they are not.
    #[test]
    fn sums_of_multiples_are_exact_in_any_order() {
        let acc = Accumulator::ANY;
        let sum = |size: f64| {
            let a: Vec<Ball<24>> = [1.015625, 0.5, size, -0.25, 3.0].map(Ball::lift).to_vec();
            Ball::sum(&a, 0, &acc).r
        };
        assert_eq!(sum(2f64.powi(17)), 0.0);
        assert!(sum(2f64.powi(18)) > 0.0);
        let tiny: Vec<Ball<24>> = [3e-39f32, 1e-39].map(|x| Ball::lift(x.into())).to_vec();
        assert!(Ball::sum(&tiny, 0, &acc).r > 0.0, "subnormals may be flushed");
    }
}
