//! A first look at a hypothesis: its plain f64 values on the two rows where the defaults err most, of a product in
//! some of its columns.
//!
//! The bound costs many times the value. A right hypothesis is within its bound of nearly every
//! element, so one that is far from most of them needs no bound to be refused. What passes here is
//! still judged by its bound, on every element.

use assay_reference::ops::{Op, Setup, Tile};
use assay_reference::{Dtype, Rounding};

use super::observed::Run;

/// So many units in the last place of the output are far.
const ULPS: f64 = 32.0;
/// So many radii of the defaults are.
const RADII: f64 = 16.0;

/// The tile and what was stored there.
pub(super) struct Sieve {
    tile: Tile,
    observed: Vec<f64>,
    /// Radii of the defaults, whose size a hypothesis's has.
    radius: Vec<f64>,
}

impl Sieve {
    /// Over a tile.
    pub(super) fn new<O: Op>(run: &Run<'_, O>, tile: Tile) -> Sieve {
        let radius = run.expect(&run.base, &tile).into_owned().radius;
        Sieve { observed: run.observed(&tile).into_owned(), tile, radius }
    }

    /// Whether the bound is worth computing. Always for outputs of more than 11 bits, whose units are
    /// smaller than what the bounds of different hypotheses differ by.
    pub(super) fn passes<O: Op>(&self, run: &Run<'_, O>, setup: &Setup<O>) -> bool {
        let output = run.rounding(setup);
        if !matches!(output.dtype, Dtype::Bf16 | Dtype::F16) {
            return true;
        }
        let values = run.values(setup, &self.tile);
        let far = |i: usize| is_far(values[i], self.observed[i], self.radius[i], output);
        2 * (0..values.len()).filter(|&i| far(i)).count() <= values.len()
    }

    /// Mean distance from what was stored, in units in the last place, each at most 1000.
    pub(super) fn distance<O: Op>(&self, run: &Run<'_, O>, setup: &Setup<O>) -> f64 {
        let output = run.rounding(setup);
        let values = run.values(setup, &self.tile);
        let one = |(v, o): (&f64, &f64)| {
            let rounded = output.round(*v);
            if rounded == *o || (rounded.is_nan() && o.is_nan()) {
                return 0.0;
            }
            let ulps = (rounded - o).abs() / output.ulp(*v);
            if ulps.is_finite() { ulps.min(1e3) } else { 1e3 }
        };
        values.iter().zip(&self.observed).map(one).sum::<f64>() / values.len().max(1) as f64
    }
}

/// Whether `o` is out of reach of `v`.
fn is_far(v: f64, o: f64, radius: f64, output: Rounding) -> bool {
    if !(v.is_finite() && o.is_finite()) {
        // On the brink of overflow either may be infinite.
        let stored = output.round(v);
        return !(stored == o || (stored.is_nan() && o.is_nan()) || radius > 0.0 && !v.is_nan());
    }
    let room = if radius.is_nan() { f64::INFINITY } else { RADII * radius };
    (o - v).abs() > room + ULPS * output.ulp(v.abs().max(o.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_is_far_beyond_any_bound() {
        let bf = Rounding::nearest(Dtype::Bf16);
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        for (v, o, radius, far) in [
            (1.0, 1.2, 1e-6, false),
            (1.0, 1.3, 1e-6, true),
            (1.0, 1.3, 0.02, false),
            (0.0, 1.0, 0.0, true),
            (nan, nan, 0.0, false),
            (nan, 1.0, 0.0, true),
            (1.0, nan, 0.0, true),
            (inf, inf, 0.0, false),
            (inf, 1.0, 0.0, true),
            (1.0, 5.0, nan, false),
        ] {
            assert_eq!(is_far(v, o, radius, bf), far, "{v} {o} {radius}");
        }
    }
}
