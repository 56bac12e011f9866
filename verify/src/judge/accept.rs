//! Acceptance, element by element: o in [rnd(y - e), rnd(y + e)].

use assay_reference::arith::{Ball, math};
use assay_reference::ops::{Op, Setup, Tile};

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

/// Evaluates the bound of a setup on a tile.
pub(super) fn expect<O: Op, const P: i32>(setup: &Setup<O>, tile: &Tile) -> Expected {
    let out = setup.eval::<Ball<P>>(tile).remove(0).data;
    let policy = &setup.policy;
    let n = out.len();
    let mut e = Expected {
        v: Vec::with_capacity(n),
        radius: Vec::with_capacity(n),
        lo: Vec::with_capacity(n),
        hi: Vec::with_capacity(n),
    };
    for b in out {
        let radius = b.radius(policy.lambda);
        // A non-finite value is exact; a radius that is not finite says nothing is known.
        let known = b.v.is_finite() && radius > 0.0;
        let (lo, hi) = if known { (b.v - radius, b.v + radius) } else { (b.v, b.v) };
        e.v.push(b.v);
        e.radius.push(radius);
        e.lo.push(policy.output.round(lo));
        e.hi.push(policy.output.round(hi));
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
    /// Elements whose hard radius is too wide to say anything.
    pub vague: usize,
    /// Mean log2(1 + 2 radius / ulp): how tight the hypothesis is.
    pub tightness: f64,
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

/// An element's error as a fraction of its budget: at most 1 inside [lo, hi].
pub(super) fn ratio(o: f64, v: f64, lo: f64, hi: f64) -> f64 {
    if o == v || (o.is_nan() && v.is_nan()) {
        return 0.0;
    }
    if o.is_nan() || v.is_nan() {
        return f64::INFINITY;
    }
    let inside = lo <= o && o <= hi;
    let (error, budget) = if o > v { (o - v, hi - v) } else { (v - o, v - lo) };
    let ratio = if budget > 0.0 { error / budget } else { f64::INFINITY };
    match (inside, ratio.is_nan()) {
        (true, true) => 0.0, // both infinite
        (true, false) => ratio.min(1.0),
        (false, _) if ratio > 1.0 => ratio,
        (false, _) => f64::INFINITY,
    }
}

/// Compares observed elements with expected ones. `cols` is the tile's width, for row scales.
pub(super) fn compare(
    observed: &[f64],
    e: &Expected,
    output: assay_reference::Rounding,
    cols: usize,
) -> Metrics {
    debug_assert_eq!(observed.len(), e.v.len());
    let mut m = Metrics { elements: observed.len(), ..Metrics::default() };
    let mut bits = 0.0;
    for start in (0..observed.len()).step_by(cols.max(1)) {
        let range = start..(start + cols).min(observed.len());
        let finite = range.clone().map(|i| e.v[i]).filter(|v| v.is_finite());
        let rms = (finite.map(|v| v * v).sum::<f64>() / range.len() as f64).sqrt();
        for i in range {
            let r = ratio(observed[i], e.v[i], e.lo[i], e.hi[i]);
            if r > 1.0 {
                m.outside += 1;
            }
            if r > m.worst {
                (m.worst, m.at) = (r, i);
            }
            let once = output.round(e.v[i]);
            m.equal += usize::from(once == observed[i] || (once.is_nan() && observed[i].is_nan()));
            // Beyond 1/64 of the row's scale and beyond what the output's own rounding hides.
            let ulp = output.ulp(e.v[i]);
            if !(e.radius[i] <= (rms / 64.0).max(4.0 * ulp)) && e.v[i].is_finite() {
                m.vague += 1;
            }
            bits += math::log2(1.0 + (2.0 * e.radius[i] / ulp).min(1e300));
        }
    }
    m.tightness = bits / observed.len().max(1) as f64;
    m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        assert_eq!(ratio(1.0, 1.0, 1.0, 1.0), 0.0);
        assert_eq!(ratio(1.5, 1.0, 0.0, 2.0), 0.5);
        assert_eq!(ratio(3.0, 1.0, 0.0, 2.0), 2.0);
        assert_eq!(ratio(3.0, 1.0, 1.0, 1.0), f64::INFINITY);
        assert_eq!(ratio(f64::NAN, f64::NAN, f64::NAN, f64::NAN), 0.0);
        assert_eq!(ratio(f64::NAN, 1.0, 0.0, 2.0), f64::INFINITY);
        assert_eq!(ratio(f64::INFINITY, f64::INFINITY, 1.0, f64::INFINITY), 0.0);
        assert_eq!(ratio(f64::INFINITY, 1.0, 0.0, 2.0), f64::INFINITY);
        assert!((7.5..9.0).contains(&lambda()));
    }
}
