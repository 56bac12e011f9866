//! The bias test: errors within bounds that lean to one side, as a truncating store makes them.

use assay_reference::Rounding;
use assay_reference::ops::{Op, Tile};
use rayon::prelude::*;

use super::accept::Arithmetic;
use super::observed::Run;
use super::search::Convention;
use crate::finding::Finding;

/// Fewest rows and elements that can show a bias.
const ENOUGH: (usize, usize) = (8, 256);
/// Mean signed error in ulps that counts: a truncating store gives -0.5.
const LEAN: f64 = 0.2;
/// Standard deviations of the mean.
const SIGMAS: f64 = 8.0;

/// Tests the signed error, in ulps of the output and in the direction away from zero, over all runs
/// of unstructured families. f64 outputs are not tested: the oracle's own error is as large.
pub(super) fn test<O: Op>(runs: &[Run<'_, O>], convention: &Convention<O>) -> Option<Finding> {
    if runs.iter().any(|r| r.arithmetic == Arithmetic::F64) {
        return None;
    }
    let mut lean = Lean::default();
    for run in runs.iter().filter(|r| !r.observation.structured) {
        let setup = run.setup(&convention.edits);
        for part in run.parts(&Tile::ALL) {
            let (expected, observed) = (run.values(&setup, &part), run.observed(&part));
            lean.add(&expected, &observed, run.spec.cols(), run.rounding(&setup));
        }
    }
    lean.finding()
}

/// Mean errors of rows. Rows are the independent units: the elements of one share errors, as a norm's
/// rows share their scale.
#[derive(Debug, Default)]
pub(super) struct Lean {
    rows: Vec<f64>,
    elements: usize,
}

impl Lean {
    /// Adds a run: the oracle before the output's rounding, and what was stored.
    pub(super) fn add(
        &mut self,
        expected: &[f64],
        observed: &[f64],
        cols: usize,
        output: Rounding,
    ) {
        let row = |(y, o): (&[f64], &[f64])| {
            let errors = y.iter().zip(o).filter_map(|(y, o)| lean(*y, *o, output));
            errors.fold((0, 0.0), |(n, sum), e| (n + 1, sum + e))
        };
        let rows: Vec<(usize, f64)> =
            expected.par_chunks(cols).zip(observed.par_chunks(cols)).map(row).collect();
        for (n, sum) in rows.into_iter().filter(|(n, _)| *n > 0) {
            self.elements += n;
            self.rows.push(sum / n as f64);
        }
    }

    /// The finding, when there is enough to show a bias and it shows.
    pub(super) fn finding(&self) -> Option<Finding> {
        let (n, elements) = (self.rows.len(), self.elements);
        if n < ENOUGH.0 || elements < ENOUGH.1 {
            return None;
        }
        let mean = self.rows.iter().sum::<f64>() / n as f64;
        let variance = self.rows.iter().map(|e| (e - mean) * (e - mean)).sum::<f64>() / n as f64;
        let z = mean / (variance / n as f64).sqrt().max(f64::MIN_POSITIVE);
        (mean.abs() >= LEAN && z.abs() >= SIGMAS).then(|| {
            let side = if mean < 0.0 { "toward" } else { "away from" };
            Finding::new(
                "biased_rounding",
                format!(
                    "over {elements} elements the error leans {:.2} ulp {side} zero ({:.0} standard deviations)",
                    mean.abs(),
                    z.abs()
                ),
            )
        })
    }
}

/// The error in ulps away from zero; `None` where rounding had no room to lean.
pub(super) fn lean(y: f64, o: f64, output: Rounding) -> Option<f64> {
    let room = y.is_finite() && o.is_finite() && y != 0.0 && output.round(y) != y;
    room.then(|| (o - y) * y.signum() / output.ulp(y))
}
