//! Acceptance, element by element: o in [rnd(y - e), rnd(y + e)].

use assay_reference::Rounding;
use assay_reference::arith::{Ball, math};
use assay_reference::ops::{Op, Setup, Tile};
use rayon::prelude::*;

use super::picture::{Histogram, bin};

/// Elements times hypotheses that one run's false-alarm budget is spread over.
const COMPARISONS: f64 = 2e7;
/// False alarms a run.
const ALPHA: f64 = 1e-6;

/// Standard deviations of the statistical bound: sqrt(2 ln(2 n / alpha)), about 8.
pub fn lambda() -> f64 {
    (2.0 * math::ln(2.0 * COMPARISONS / ALPHA)).sqrt()
}

/// The oracle's tile: value, and radius before the output's rounding.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) v: Vec<f64>,
    pub(super) radius: Vec<f64>,
}

impl Expected {
    /// What an element may be stored as: from the least to the most.
    pub(super) fn interval(&self, i: usize, output: Rounding) -> (f64, f64) {
        let (v, radius) = (self.v[i], self.radius[i]);
        // A non-finite value is exact; a radius that is not finite says nothing is known.
        let known = v.is_finite() && radius > 0.0;
        let (lo, hi) = if known { (v - radius, v + radius) } else { (v, v) };
        (output.round(lo), output.round(hi))
    }
}

/// Evaluates the bound of one output of a setup on a tile, in the arithmetic that the case is held to.
pub(super) fn expect<O: Op>(
    setup: &Setup<O>,
    output: usize,
    arithmetic: Arithmetic,
    tile: &Tile,
) -> Expected {
    let lambda = setup.policy.lambda;
    match arithmetic {
        Arithmetic::F32 => apart(&setup.eval::<Ball<24>>(tile).swap_remove(output).data, lambda),
        Arithmetic::F64 => apart(&setup.eval::<Ball<53>>(tile).swap_remove(output).data, lambda),
    }
}

/// The arithmetic that a subject is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// For stored bf16, f16 and f32.
    F32,
    /// For stored f64.
    F64,
}

fn apart<const P: i32>(out: &[Ball<P>], lambda: f64) -> Expected {
    let (v, radius) = out.par_iter().map(|b| (b.v, b.radius(lambda))).unzip();
    Expected { v, radius }
}

/// How an output compares with the oracle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Elements compared.
    pub elements: usize,
    /// Elements outside their interval.
    pub outside: usize,
    /// Elements equal to the oracle rounded once.
    pub equal: usize,
    /// Worst error as a fraction of its budget; infinite where the budget is zero.
    pub worst: f64,
    /// Index of the worst element in the tile.
    pub at: usize,
    /// Elements whose radius is too wide to say anything.
    pub vague: usize,
    /// Mean log2(1 + 2 radius / ulp): how tight the hypothesis is.
    pub tightness: f64,
    /// Elements by the size of their error.
    pub histogram: Histogram,
}

impl Metrics {
    /// Whether every element is inside its interval.
    pub fn accepted(&self) -> bool {
        self.outside == 0
    }

    /// Whether more than 1 % of the elements are too uncertain to be judged.
    pub fn is_vague(&self) -> bool {
        self.vague * 100 > self.elements
    }
}

/// Whether an interval allows an observed element; that of a NaN allows NaN.
pub(super) fn allows((lo, hi): (f64, f64), o: f64) -> bool {
    (lo <= o && o <= hi) || (o.is_nan() && lo.is_nan())
}

/// An element's error as a fraction of its budget (the radius before the output's rounding and the
/// most that rounding can move a value): at most 1 inside [lo, hi], above 1 outside.
pub(super) fn ratio(o: f64, e: &Expected, i: usize, output: Rounding) -> f64 {
    let v = e.v[i];
    if o == v || (o.is_nan() && v.is_nan()) {
        return 0.0;
    }
    let inside = allows(e.interval(i, output), o);
    let budget = if e.radius[i].is_finite() { e.radius[i] } else { 0.0 } + output.most(v);
    let ratio = match (o - v).abs() / budget {
        r if r.is_nan() => f64::INFINITY,
        r => r,
    };
    if inside { ratio.min(1.0) } else { ratio.max(1.0 + f64::EPSILON) }
}

/// Compares the rows of observed elements with expected ones, `cols` wide: a row's scale is its own. In each
/// row's metrics `at` is a column.
pub(super) fn compare_rows(
    observed: &[f64],
    e: &Expected,
    output: Rounding,
    cols: usize,
) -> Vec<Metrics> {
    debug_assert_eq!(observed.len(), e.v.len());
    let row = |(r, observed): (usize, &[f64])| compare_row(observed, e, r * cols, output);
    observed.par_chunks(cols.max(1)).enumerate().map(row).collect()
}

/// The metrics of a row that begins at element `start` of the expected ones.
fn compare_row(observed: &[f64], e: &Expected, start: usize, output: Rounding) -> Metrics {
    let mut m = Metrics { elements: observed.len(), ..Metrics::default() };
    let finite = e.v[start..start + observed.len()].iter().filter(|v| v.is_finite());
    let rms = (finite.map(|v| v * v).sum::<f64>() / observed.len() as f64).sqrt();
    let mut bits = Bits::default();
    for (c, &o) in observed.iter().enumerate() {
        let i = start + c;
        let (v, radius) = (e.v[i], e.radius[i]);
        let r = ratio(o, e, i, output);
        m.outside += usize::from(r > 1.0);
        if r > m.worst {
            (m.worst, m.at) = (r, c);
        }
        m.histogram[bin(r)] += 1;
        let once = output.round(v);
        m.equal += usize::from(once == o || (once.is_nan() && o.is_nan()));
        // Beyond 1/64 of the row's scale and beyond what the output's own rounding hides.
        let ulp = output.ulp(v);
        let room = (rms / 64.0).max(4.0 * ulp);
        m.vague += usize::from(v.is_finite() && (radius > room || radius.is_nan()));
        bits.add(1.0 + (2.0 * radius / ulp).min(1e300));
    }
    m.tightness = bits.sum() / observed.len().max(1) as f64;
    m
}

impl Metrics {
    /// The metrics of all of a tile's rows.
    pub(super) fn of_rows(rows: &[Metrics]) -> Metrics {
        let mut all = Metrics::default();
        for m in rows {
            if m.worst > all.worst {
                (all.worst, all.at) = (m.worst, all.elements + m.at);
            }
            all.elements += m.elements;
            all.outside += m.outside;
            all.equal += m.equal;
            all.vague += m.vague;
            all.tightness += m.tightness * m.elements as f64;
            all.histogram.iter_mut().zip(m.histogram).for_each(|(sum, n)| *sum += n);
        }
        all.tightness /= all.elements.max(1) as f64;
        all
    }
}

/// A sum of base-2 logarithms of numbers of at least 1, of which few are taken: of their products.
struct Bits {
    sum: f64,
    product: f64,
}

impl Default for Bits {
    fn default() -> Self {
        Bits { sum: 0.0, product: 1.0 }
    }
}

impl Bits {
    fn add(&mut self, x: f64) {
        if x > 1e100 || x.is_nan() {
            self.sum += math::log2(x);
        } else {
            self.product *= x;
            if self.product > 1e200 {
                self.sum += math::log2(std::mem::replace(&mut self.product, 1.0));
            }
        }
    }

    fn sum(&self) -> f64 {
        self.sum + math::log2(self.product)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use assay_reference::Dtype;

    fn one(v: f64, radius: f64) -> Expected {
        Expected { v: vec![v], radius: vec![radius] }
    }

    #[test]
    fn one_ulp_off_is_outside_and_the_nearest_is_inside() {
        let bf = Rounding::nearest(Dtype::Bf16);
        let e = one(1.003, 1e-6);
        assert!(ratio(1.0, &e, 0, bf) <= 1.0);
        assert!(ratio(1.0078125, &e, 0, bf) > 1.0);
        assert!(ratio(0.99609375, &e, 0, bf) > 1.0);
        let exact = one(1.0, 0.0);
        assert_eq!(ratio(1.0, &exact, 0, bf), 0.0);
        assert!(ratio(1.0078125, &exact, 0, bf) > 1.0);
    }

    #[test]
    fn values_that_are_not_finite_match_only_themselves() {
        let bf = Rounding::nearest(Dtype::Bf16);
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let e = |v: f64| one(v, 0.0);
        assert_eq!(ratio(nan, &e(nan), 0, bf), 0.0);
        assert_eq!(ratio(inf, &e(inf), 0, bf), 0.0);
        for (o, v) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (-inf, inf), (nan, inf)] {
            assert!(ratio(o, &e(v), 0, bf) > 1.0, "{o} for {v}");
        }
    }

    #[test]
    fn logarithms_of_products_are_sums_of_logarithms() {
        let mut bits = Bits::default();
        let numbers = [1.0, 2.0, 1e300, 1e90, 1e99, 1e99, 1e50, 3.0, 1e300];
        numbers.iter().for_each(|x| bits.add(*x));
        let want: f64 = numbers.iter().map(|x| math::log2(*x)).sum();
        assert!((bits.sum() - want).abs() < 1e-9 * want, "{} {want}", bits.sum());
    }

    #[test]
    fn the_budget_of_false_alarms_asks_for_about_eight_sigma() {
        assert!((7.5..9.0).contains(&lambda()));
    }
}
