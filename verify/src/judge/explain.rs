//! Explanations of one run: which faults, on top of which conventions, reproduce its output.

use assay_reference::ops::{Fault, Op, Residual, Setup, Tile};
use rayon::prelude::*;

use super::baseline::Baseline;
use super::known::Known;
use super::observed::Run;
use super::progress::Progress;
use super::search::Convention;

/// From here on, the order of faults whose parameter was solved from the output: they fit more
/// easily than a catalogued one.
pub(super) const SOLVED: usize = 1 << 20;

/// A fault's identity across cases: code, slug, key.
pub(super) type Key = (&'static str, &'static str, String);

pub(super) fn key<O: Op>(f: &Fault<O>) -> Key {
    (f.code, f.slug, f.key.clone())
}

/// A fault that reproduces a run's output within its bound.
pub(super) struct Explanation {
    pub(super) key: Key,
    pub(super) detail: String,
    /// The convention on top of which it was tried.
    pub(super) convention: usize,
    pub(super) tightness: f64,
    /// Place in the catalogue.
    pub(super) order: usize,
    /// Accepted, but no evidence by itself: the bound is wide, or nothing of the output is finite.
    pub(super) vague: bool,
}

/// A subject's runs with what the first pass found.
pub(super) struct Subject<'a, O: Op> {
    pub(super) runs: &'a [Run<'a, O>],
    pub(super) baselines: &'a [Baseline],
    pub(super) conventions: &'a [Convention<O>],
    /// Runs of the other outputs of the same launches.
    pub(super) beside: &'a [(Run<'a, O>, Baseline)],
    pub(super) progress: Progress,
    /// Names of earlier calls.
    pub(super) known: Option<&'a Known>,
}

impl<O: Op> Subject<'_, O> {
    /// All explanations of run `i`, and the number of hypotheses tried. `only` restricts the faults.
    pub(super) fn explain(
        &self,
        i: usize,
        bases: &[usize],
        only: Option<&[Key]>,
    ) -> (Vec<Explanation>, usize) {
        let (run, baseline) = (&self.runs[i], &self.baselines[i]);
        // Any fault that makes a NaN reproduces an output of NaN.
        let nothing_finite = !run.observed.iter().any(|x| x.is_finite());
        let mut tried = 0;
        let mut found = Vec::new();
        if only.is_some_and(<[Key]>::is_empty) {
            return (found, tried);
        }
        for base in self.distinct(i, bases) {
            let setup = run.setup(&self.conventions[base].edits);
            let faults = candidates::<O>(run, &setup, only, baseline.radius(run));
            tried += faults.len();
            let hits: Vec<Explanation> = faults
                .par_iter()
                .filter_map(|(order, fault)| {
                    let mut wrong = setup.clone();
                    (fault.edit)(&mut wrong);
                    self.progress.tried();
                    baseline.part(run, &wrong)?;
                    let whole = run.compare(&wrong, &Tile::ALL);
                    whole.accepted().then(|| Explanation {
                        key: key(fault),
                        detail: fault.detail.clone(),
                        convention: base,
                        tightness: whole.tightness,
                        order: *order,
                        vague: whole.is_vague() || nothing_finite,
                    })
                })
                .collect();
            found.extend(hits);
        }
        (found, tried)
    }

    /// The conventions among `bases` that differ on the run's tell-tale rows.
    fn distinct(&self, i: usize, bases: &[usize]) -> Vec<usize> {
        let mut seen: Vec<Vec<u64>> = Vec::new();
        let mut out = Vec::new();
        for &c in bases {
            let setup = self.runs[i].setup(&self.conventions[c].edits);
            let values = self.runs[i].values(&setup, &self.baselines[i].tile);
            let rounding = self.runs[i].rounding(&setup);
            let bits: Vec<u64> = values.into_iter().map(|v| rounding.round(v).to_bits()).collect();
            if !seen.contains(&bits) {
                seen.push(bits);
                out.push(c);
            }
        }
        out
    }

    /// A run that passes but would have failed with the fault: then the fault is not in every path
    /// of the subject. A fault that does not apply to a case, or changes nothing there, does not
    /// contradict it. Other outputs contradict it as well: what shows in one only is not a fault of both.
    /// With `base`, only what that convention explains is a pass.
    pub(super) fn contradiction(&self, wanted: &Key, base: Option<usize>) -> Option<String> {
        let breaks = |(run, b): &(&Run<'_, O>, &Baseline)| self.would_break(run, b, wanted, base);
        let own = self.runs.par_iter().zip(self.baselines).find_first(breaks);
        if let Some((run, _)) = own {
            return Some(run.observation.label.clone());
        }
        let other = self.beside.par_iter().map(|(run, b)| (run, b)).find_first(breaks);
        other.map(|(run, _)| format!("{}, {}", run.observation.label, run.spec.name))
    }

    /// All such runs of this output.
    pub(super) fn contradictions(&self, wanted: &Key, base: Option<usize>) -> Vec<usize> {
        let all = (0..self.runs.len()).into_par_iter();
        all.filter(|&i| self.would_break(&self.runs[i], &self.baselines[i], wanted, base)).collect()
    }

    /// Whether a run passes that would have failed with the fault.
    fn would_break(
        &self,
        run: &Run<'_, O>,
        b: &Baseline,
        wanted: &Key,
        base: Option<usize>,
    ) -> bool {
        let passing = base.map_or_else(
            || b.by_convention.iter().position(Option::is_some),
            |c| b.accepts(c).then_some(c),
        );
        let Some(passing) = passing else { return false };
        let setup = run.setup(&self.conventions[passing].edits);
        let faults = O::faults(&setup.params, &setup.tensors);
        faults.iter().filter(|f| key(f) == *wanted).any(|fault| {
            let mut wrong = setup.clone();
            (fault.edit)(&mut wrong);
            b.part(run, &wrong).is_none() || !run.compare(&wrong, &Tile::ALL).accepted()
        })
    }
}

/// The catalogued faults and those solved from the output, with their order.
fn candidates<O: Op>(
    run: &Run<'_, O>,
    setup: &Setup<O>,
    only: Option<&[Key]>,
    radius: &[f64],
) -> Vec<(usize, Fault<O>)> {
    let catalogued = O::faults(&setup.params, &setup.tensors).into_iter().enumerate();
    let solved = propose::<O>(run, setup, radius).into_iter().enumerate();
    catalogued
        .chain(solved.map(|(i, f)| (SOLVED + i, f)))
        .filter(|(_, f)| only.is_none_or(|keys| keys.contains(&key(f))))
        .collect()
}

/// The solved faults. Most setups have none, which values without bounds show at less cost: with the
/// defaults' radii four times as wide they would solve whatever the setup's own radii do.
fn propose<O: Op>(run: &Run<'_, O>, setup: &Setup<O>, radius: &[f64]) -> Vec<Fault<O>> {
    let solve = |expected: &[f64], radius: &[f64]| {
        let residual = Residual {
            tensors: &setup.tensors,
            cols: run.spec.cols(),
            expected,
            radius,
            observed: &run.observed,
            output: run.rounding(setup),
        };
        O::propose(&setup.params, &residual)
    };
    let values = run.values(setup, &Tile::ALL);
    // An element that is too vague to say anything stays so, and no other becomes it.
    let widen = |(r, y): (&f64, &f64)| r.max((4.0 * r).min(y.abs() / 64.0));
    let wide: Vec<f64> = radius.iter().zip(&values).map(widen).collect();
    if solve(&values, &wide).is_empty() {
        return Vec::new();
    }
    let e = run.expect(setup, &Tile::ALL);
    solve(&e.v, &e.radius)
}
