//! What an online softmax adds to the bound: the rescalings of one pass over any key blocks, and the
//! merging of parts that were computed apart.
//!
//! A rescaling multiplies accumulator and denominator by the same computed factor, so its error e moves
//! the output by e times the weighted sum of (v - o) over the keys before it, which is far below e |o|
//! where values or weights are alike, and 0 for constant values.

use super::{Combine, Params};
use crate::arith::ball::EXP;
use crate::arith::{Real, math};
use crate::dtype::pow2;

/// Units u of one rescaling: an exponential and a product. What grows with the exponent is in the
/// weights' own error, since the exponents of a key's rescalings add up to its own.
const RESCALING: f64 = EXP + 1.0;

/// The scaled scores of a query.
pub(super) struct Around {
    /// The largest.
    pub(super) top: f64,
    /// Standard deviation of the largest one's error, which all other weights share.
    pub(super) error: f64,
    /// All of them.
    pub(super) scores: Vec<f64>,
    /// Significant bits of the arithmetic.
    pub(super) bits: i32,
}

impl Around {
    /// The most rescalings that a key can go through, for blocks of any size from either end, and one
    /// more when parts are merged.
    fn rescalings(&self) -> f64 {
        if self.scores.iter().all(|s| *s == self.top) {
            return 0.0;
        }
        1.0 + records(self.scores.iter()).max(records(self.scores.iter().rev())) as f64
    }

    /// Units u of the weight of a part that is merged by its log-sum-exp: the part's division, two
    /// exponentials and a product; two logarithms of sums below n, within two units in the last place;
    /// and their own and the whole's sum with a maximum, rounded at their size.
    fn by_logarithm(&self) -> f64 {
        let n = self.scores.len() as f64;
        let ln = math::ln(n);
        2.0 * EXP + 4.0 + 8.0 * ln + 2.0 * (self.top.abs() + ln)
    }
}

/// How often the running maximum grows.
fn records<'a>(scores: impl Iterator<Item = &'a f64>) -> usize {
    let mut top = f64::NEG_INFINITY;
    let mut n = 0usize;
    for &s in scores {
        if s > top {
            n += usize::from(top.is_finite());
            top = s;
        }
    }
    n
}

/// The sum of all terms but those that equal the largest.
pub(super) fn below_top<R: Real>(terms: &[R]) -> f64 {
    terms.iter().map(|t| t.value()).filter(|t| *t < 1.0).sum()
}

/// `means` with the errors of an online softmax.
pub(super) fn widen<R: Real>(
    mut means: Vec<R>,
    weights: &[R],
    terms: &[R],
    columns: &[&[R]],
    around: &Around,
    params: &Params,
) -> Vec<R> {
    if !R::IS_BOUND {
        return means;
    }
    let u = pow2(-around.bits);
    let sum: f64 = weights.iter().map(|w| w.value()).sum();
    let rescalings = around.rescalings();
    let merging = if params.combine == Combine::Lse { around.by_logarithm() } else { 0.0 };
    for (mean, v) in means.iter_mut().zip(columns) {
        let o = mean.value();
        if !(o.is_finite() && sum > 0.0) {
            continue;
        }
        let e = Deviation::of(weights, terms, v, o, around);
        let hard = (rescalings * RESCALING + merging) * e.all + merging.min(1.0) * e.by_exponent;
        let steps = RESCALING * e.range * rescalings.sqrt();
        let merged = merging * (e.range * e.all).sqrt();
        let sd = steps.hypot(merged) * u / 3f64.sqrt();
        *mean = mean.widened(hard * u / sum, sd.hypot(around.error * e.top) / sum);
    }
    means
}

/// Weighted sums of v - o over the keys of a query.
struct Deviation {
    /// Of absolute values, over all keys.
    all: f64,
    /// The same, each times the key's distance from the largest score.
    by_exponent: f64,
    /// The most that any range of keys sums to.
    range: f64,
    /// Over the keys that have the largest score.
    top: f64,
}

impl Deviation {
    fn of<R: Real>(weights: &[R], terms: &[R], v: &[R], o: f64, around: &Around) -> Deviation {
        let mut e = Deviation { all: 0.0, by_exponent: 0.0, range: 0.0, top: 0.0 };
        let (mut prefix, mut low, mut high) = (0.0f64, 0.0f64, 0.0f64);
        for (i, (w, v)) in weights.iter().zip(v).enumerate() {
            let d = w.value() * (v.value() - o);
            e.all += d.abs();
            if d != 0.0 {
                e.by_exponent += d.abs() * (around.top - around.scores[i]).abs();
            }
            prefix += d;
            low = low.min(prefix);
            high = high.max(prefix);
            if terms[i].value() >= 1.0 {
                e.top += d;
            }
        }
        e.range = (high - low).min(e.all);
        e.top = e.top.abs();
        e
    }
}
