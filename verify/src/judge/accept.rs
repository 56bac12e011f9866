//! Acceptance, element by element: o in [rnd(y - e), rnd(y + e)].

use assay_reference::Rounding;
use assay_reference::arith::{Ball, math};
use assay_reference::ops::{Op, Setup, Tile};

use super::picture::{Histogram, bin};

/// Elements times hypotheses that one run's false-alarm budget is spread over.
const COMPARISONS: f64 = 2e7;
/// False alarms a run.
const ALPHA: f64 = 1e-6;

/// Standard deviations of the statistical bound: sqrt(2 ln(2 n / alpha)), about 8.
pub fn lambda() -> f64 {
    (2.0 * math::ln(2.0 * COMPARISONS / ALPHA)).sqrt()
}

/// The oracle's tile: value, radius before the output's rounding, interval after it.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) v: Vec<f64>,
    pub(super) radius: Vec<f64>,
    pub(super) lo: Vec<f64>,
    pub(super) hi: Vec<f64>,
}

/// Evaluates the bound of one output of a setup on a tile, in the arithmetic that the case is held to.
pub(super) fn expect<O: Op>(
    setup: &Setup<O>,
    output: usize,
    arithmetic: Arithmetic,
    tile: &Tile,
) -> Expected {
    let (lambda, rounding) =
        (setup.policy.lambda, O::rounding(&setup.params, &setup.policy, output));
    match arithmetic {
        Arithmetic::F32 => {
            intervals(setup.eval::<Ball<24>>(tile).swap_remove(output).data, lambda, rounding)
        }
        Arithmetic::F64 => {
            intervals(setup.eval::<Ball<53>>(tile).swap_remove(output).data, lambda, rounding)
        }
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

fn intervals<const P: i32>(out: Vec<Ball<P>>, lambda: f64, output: Rounding) -> Expected {
    let n = out.len();
    let mut e = Expected {
        v: Vec::with_capacity(n),
        radius: Vec::with_capacity(n),
        lo: Vec::with_capacity(n),
        hi: Vec::with_capacity(n),
    };
    for b in out {
        let radius = b.radius(lambda);
        // A non-finite value is exact; a radius that is not finite says nothing is known.
        let known = b.v.is_finite() && radius > 0.0;
        let (lo, hi) = if known { (b.v - radius, b.v + radius) } else { (b.v, b.v) };
        e.v.push(b.v);
        e.radius.push(radius);
        e.lo.push(output.round(lo));
        e.hi.push(output.round(hi));
    }
    e
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

/// Whether an observed element is one that the oracle allows.
pub(super) fn inside(o: f64, e: &Expected, i: usize) -> bool {
    (e.lo[i] <= o && o <= e.hi[i]) || o == e.v[i] || (o.is_nan() && e.v[i].is_nan())
}

/// An element's error as a fraction of its budget (the radius before the output's rounding and the
/// most that rounding can move a value): at most 1 inside [lo, hi], above 1 outside.
pub(super) fn ratio(o: f64, e: &Expected, i: usize, output: Rounding) -> f64 {
    let v = e.v[i];
    if o == v || (o.is_nan() && v.is_nan()) {
        return 0.0;
    }
    let inside = inside(o, e, i);
    let budget = if e.radius[i].is_finite() { e.radius[i] } else { 0.0 } + output.most(v);
    let ratio = match (o - v).abs() / budget {
        r if r.is_nan() => f64::INFINITY,
        r => r,
    };
    if inside { ratio.min(1.0) } else { ratio.max(1.0 + f64::EPSILON) }
}

/// Compares observed elements with expected ones. `cols` is the tile's width, for row scales.
pub(super) fn compare(observed: &[f64], e: &Expected, output: Rounding, cols: usize) -> Metrics {
    debug_assert_eq!(observed.len(), e.v.len());
    let mut m = Metrics { elements: observed.len(), ..Metrics::default() };
    let mut bits = Bits::default();
    for start in (0..observed.len()).step_by(cols.max(1)) {
        let range = start..(start + cols).min(observed.len());
        let finite = range.clone().map(|i| e.v[i]).filter(|v| v.is_finite());
        let rms = (finite.map(|v| v * v).sum::<f64>() / range.len() as f64).sqrt();
        for i in range {
            let r = ratio(observed[i], e, i, output);
            if r > 1.0 {
                m.outside += 1;
            }
            if r > m.worst {
                (m.worst, m.at) = (r, i);
            }
            m.histogram[bin(r)] += 1;
            let once = output.round(e.v[i]);
            m.equal += usize::from(once == observed[i] || (once.is_nan() && observed[i].is_nan()));
            // Beyond 1/64 of the row's scale and beyond what the output's own rounding hides.
            let ulp = output.ulp(e.v[i]);
            let room = (rms / 64.0).max(4.0 * ulp);
            if e.v[i].is_finite() && (e.radius[i] > room || e.radius[i].is_nan()) {
                m.vague += 1;
            }
            bits.add(1.0 + (2.0 * e.radius[i] / ulp).min(1e300));
        }
    }
    m.tightness = bits.sum() / observed.len().max(1) as f64;
    m
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

    fn one(v: f64, radius: f64, output: Rounding) -> Expected {
        let (lo, hi) = (output.round(v - radius), output.round(v + radius));
        Expected { v: vec![v], radius: vec![radius], lo: vec![lo], hi: vec![hi] }
    }

    #[test]
    fn one_ulp_off_is_outside_and_the_nearest_is_inside() {
        let bf = Rounding::nearest(Dtype::Bf16);
        let e = one(1.003, 1e-6, bf);
        assert!(ratio(1.0, &e, 0, bf) <= 1.0);
        assert!(ratio(1.0078125, &e, 0, bf) > 1.0);
        assert!(ratio(0.99609375, &e, 0, bf) > 1.0);
        let exact = one(1.0, 0.0, bf);
        assert_eq!(ratio(1.0, &exact, 0, bf), 0.0);
        assert!(ratio(1.0078125, &exact, 0, bf) > 1.0);
    }

    #[test]
    fn values_that_are_not_finite_match_only_themselves() {
        let bf = Rounding::nearest(Dtype::Bf16);
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let e = |v: f64| Expected { v: vec![v], radius: vec![0.0], lo: vec![v], hi: vec![v] };
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
