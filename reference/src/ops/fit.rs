//! Least squares of a residual: for outputs that were rounded twice, where no factor is consistent with the interval
//! of every element.

use super::Op;
use super::variant::{Fault, Residual, Setup, simplest};
use crate::dtype::pow2;
use crate::policy::{At, Transform};

/// Fewest elements of a fit.
const ENOUGH: usize = 16;
/// Standard deviations within which the simplest number is taken.
const WITHIN: f64 = 3.0;

/// An estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    pub(super) value: f64,
    /// Its standard deviation.
    pub(super) sd: f64,
}

impl Fit {
    /// The mean of estimates, each weighed by its variance.
    pub(super) fn mean(all: &[Fit]) -> Option<Fit> {
        let weight: f64 = all.iter().map(|f| 1.0 / (f.sd * f.sd)).sum();
        let value = all.iter().map(|f| f.value / (f.sd * f.sd)).sum::<f64>() / weight;
        (weight.is_finite() && weight > 0.0).then(|| Fit { value, sd: 1.0 / weight.sqrt() })
    }

    /// The numbers with the fewest digits that are near enough, unless `given` is nearly the estimate: one within
    /// `floor` of it, where the estimate leans by so much, and one that is nearer.
    pub(super) fn other_than(self, given: f64, floor: f64) -> Vec<f64> {
        let near = WITHIN * self.sd;
        if (self.value - given).abs() <= near.max(floor) {
            return Vec::new();
        }
        let simple = |room: f64| simplest(self.value - room, self.value + room);
        let mut all = vec![simple(near.max(floor)), simple(near)];
        all.dedup();
        all
    }
}

impl Residual<'_> {
    /// The factor between what was expected and observed, if it leaves what two roundings of the output do: a unit in
    /// the last place, in the mean.
    pub(super) fn gain_fit(&self, elements: std::ops::Range<usize>) -> Option<Fit> {
        let pairs: Vec<(f64, f64)> = elements
            .map(|i| (self.expected[i], self.observed[i]))
            .filter(|(e, o)| e.is_finite() && o.is_finite())
            .collect();
        let square: f64 = pairs.iter().map(|(e, _)| e * e).sum();
        let value = pairs.iter().map(|(e, o)| e * o).sum::<f64>() / square;
        let left: f64 = pairs.iter().map(|(e, o)| (o - value * e).powi(2)).sum();
        // A unit in the last place, relative to the value.
        let unit = 2.0 * self.output.dtype.unit_roundoff();
        if pairs.len() < ENOUGH || left.is_nan() || left > square * unit * unit {
            return None;
        }
        // Something is always left, if only the fit's own rounding.
        let left = left.max(square * pow2(-96));
        Some(Fit { value, sd: (left / (pairs.len() - 1) as f64 / square).sqrt() })
    }
}

/// A factor on what was stored already, stored again.
pub(super) fn stored_gains<O: Op>(code: &'static str, residual: &Residual<'_>) -> Vec<Fault<O>> {
    let all = 0..residual.expected.len();
    let output = residual.output;
    if output.dtype.size() != 2 || residual.gain_interval(all.clone()).is_some() {
        return Vec::new();
    }
    // Products of so few significands are not rounded evenly to both sides.
    let floor = output.dtype.unit_roundoff() / 4.0;
    let values = residual.gain_fit(all).map_or(Vec::new(), |fit| fit.other_than(1.0, floor));
    let fault = |by: f64| {
        let detail = format!("the stored output is multiplied by {by} and stored again");
        let edit = move |s: &mut Setup<O>| {
            s.policy.at("output", Transform::Round(output));
            s.policy.at("output", Transform::Scale { at: At::All, by });
        };
        Fault::new(code, "gain", detail, edit).keyed("stored")
    };
    values.into_iter().filter(|by| *by != 0.0).map(fault).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Dtype, Rounding};
    use crate::ops::Tensors;

    #[test]
    fn a_factor_is_found_behind_two_roundings_and_none_where_there_is_none() {
        let bf16 = Rounding::nearest(Dtype::Bf16);
        let expected: Vec<f64> =
            (0..400).map(|i| ((i * 7919) % 1009) as f64 / 300.0 - 1.6).collect();
        let tensors = Tensors::new();
        let fit = |observed: &[f64]| {
            let residual = Residual {
                tensors: &tensors,
                cols: 20,
                expected: &expected,
                radius: &vec![0.0; expected.len()],
                observed,
                output: bf16,
            };
            let floor = bf16.dtype.unit_roundoff() / 4.0;
            residual.gain_fit(0..expected.len()).map(|f| f.other_than(1.0, floor).first().copied())
        };
        let stored = |f: &dyn Fn(f64) -> f64| -> Vec<f64> {
            expected.iter().map(|e| bf16.round(f(bf16.round(*e)))).collect()
        };
        assert_eq!(fit(&stored(&|x| 0.93 * x)), Some(Some(0.93)));
        assert_eq!(fit(&stored(&|x| 1.02 * x)), Some(Some(1.02)));
        assert_eq!(fit(&stored(&|x| x)), Some(None), "1 is near enough");
        assert_eq!(fit(&stored(&|x| x + 0.1)), None, "no factor");
    }
}
