//! The first pass: which conventions explain which runs.

use std::sync::OnceLock;

use assay_reference::Result;
use assay_reference::ops::{Op, Setup, Tile};
use rayon::prelude::*;

use super::accept::Metrics;
use super::observed::{Run, TellTale};
use super::search::Convention;
use super::sieve::Sieve;
use super::{Observation, Options};

/// What the first pass found for one run.
pub(super) struct Baseline {
    /// Metrics by convention; `None` where it is refused or was not tried.
    pub(super) by_convention: Vec<Option<Metrics>>,
    /// Which conventions were tried.
    pub(super) tried: Vec<bool>,
    /// Metrics of the defaults, accepted or not.
    pub(super) defaults: Metrics,
    /// Of a product some columns of the rows below.
    first: Option<Tile>,
    /// Rows that refuse most wrong hypotheses.
    pub(super) tile: Tile,
    /// Whether they are all rows.
    tile_is_all: bool,
    /// The first look at them.
    pub(super) sieve: Sieve,
    /// Radius of the defaults, by element; evaluated for a run that fails.
    radius: OnceLock<Vec<f64>>,
}

impl Baseline {
    /// Tries the defaults, which the others are looked at against.
    pub(super) fn new<O: Op>(run: &Run<'_, O>, conventions: usize) -> Baseline {
        let rows = run.compare_rows(&run.base, &Tile::ALL);
        let defaults = Metrics::of_rows(&rows);
        let TellTale { sieve, first, rows: tile } = run.tell_tale(&rows);
        let sieve = Sieve::new(run, sieve);
        let (mut by_convention, mut tried) = (vec![None; conventions], vec![false; conventions]);
        by_convention[0] = defaults.accepted().then_some(defaults);
        tried[0] = true;
        let tile_is_all = tile.rows_of(run.spec.rows()).len() == run.spec.rows();
        let radius = OnceLock::new();
        Baseline { by_convention, tried, defaults, first, tile, tile_is_all, sieve, radius }
    }

    /// Radius of the defaults, by element.
    pub(super) fn radius<O: Op>(&self, run: &Run<'_, O>) -> &[f64] {
        if let Some(radius) = self.radius.get() {
            return radius;
        }
        // Not under the lock: a thread that waits for others takes up work, which may want this radius.
        let radius = run.expect(&run.base, &Tile::ALL).into_owned().radius;
        self.radius.get_or_init(|| radius)
    }

    /// Tries those of the conventions named that were not tried yet.
    pub(super) fn consider<O: Op>(
        &mut self,
        run: &Run<'_, O>,
        conventions: &[Convention<O>],
        which: &[usize],
    ) {
        for &i in which {
            if std::mem::replace(&mut self.tried[i], true) {
                continue;
            }
            let setup = run.setup(&conventions[i].edits);
            // A choice may change nothing here, as where a bias joins when there is none.
            let same = |c: &usize| run.setup(&conventions[*c].edits).is_same(&setup);
            if let Some(c) = (0..i).filter(|&c| self.accepts(c)).find(same) {
                self.by_convention[i] = self.by_convention[c];
            } else if let Some(part) = self.part(run, &setup) {
                let whole = if self.tile_is_all { part } else { run.compare(&setup, &Tile::ALL) };
                self.by_convention[i] = whole.accepted().then_some(whole);
            }
        }
    }

    /// The metrics of the rows, unless a look at them refuses the setup.
    pub(super) fn part<O: Op>(&self, run: &Run<'_, O>, setup: &Setup<O>) -> Option<Metrics> {
        let accepted = |tile: &Tile| Some(run.compare(setup, tile)).filter(Metrics::accepted);
        if !self.sieve.passes(run, setup) {
            return None;
        }
        if let Some(first) = &self.first {
            accepted(first)?;
        }
        accepted(&self.tile)
    }

    pub(super) fn accepts(&self, convention: usize) -> bool {
        self.by_convention[convention].is_some()
    }

    pub(super) fn passes(&self) -> bool {
        self.by_convention.iter().any(Option::is_some)
    }
}

/// Runs in the first batch of [`explaining`]; each further batch has twice as many.
const FIRST_BATCH: usize = 4;

/// Those of the conventions named that explain every run. The small runs go first: a convention that
/// one of them refuses is not tried on the others, unless none is left; then each run is tried with
/// every one, since the search for faults starts from what explains the single runs.
pub(super) fn explaining<O: Op>(
    runs: &[Run<'_, O>],
    baselines: &mut [Option<Baseline>],
    conventions: &[Convention<O>],
    which: &[usize],
) -> Vec<usize> {
    let mut alive = which.to_vec();
    let mut order: Vec<(&Run<'_, O>, &mut Option<Baseline>)> =
        runs.iter().zip(baselines.iter_mut()).collect();
    order.sort_by_key(|(run, _)| run.size());
    let consider = |(run, slot): &mut (&Run<'_, O>, &mut Option<Baseline>), which: &[usize]| {
        let baseline = slot.get_or_insert_with(|| Baseline::new(run, conventions.len()));
        baseline.consider(run, conventions, which);
    };
    let (mut start, mut batch) = (0, FIRST_BATCH);
    while start < order.len() && !alive.is_empty() {
        let end = (start + batch).min(order.len());
        order[start..end].par_iter_mut().for_each(|run| consider(run, &alive));
        let accepts = |c: usize| {
            order[start..end].iter().all(|(_, b)| b.as_ref().is_some_and(|b| b.accepts(c)))
        };
        alive.retain(|&c| accepts(c));
        (start, batch) = (end, 2 * batch);
    }
    if alive.is_empty() {
        order.par_iter_mut().for_each(|run| consider(run, which));
    }
    alive
}

/// The runs of other outputs, with what the first pass finds for each.
pub(super) fn others<'a, O: Op>(
    beside: &[(&str, &'a [Observation])],
    conventions: &[Convention<O>],
    options: Options,
) -> Result<Vec<(Run<'a, O>, Baseline)>> {
    let open = |(output, runs): &(&str, &'a [Observation])| -> Vec<Result<Run<'a, O>>> {
        runs.iter().map(|r| Run::new(r, Some(*output), options)).collect()
    };
    let runs: Vec<Run<'a, O>> = beside.iter().flat_map(open).collect::<Result<_>>()?;
    let common: Vec<usize> = (0..conventions.len()).filter(|&c| !conventions[c].rare).collect();
    let first = |run: Run<'a, O>| {
        let mut baseline = Baseline::new(&run, conventions.len());
        baseline.consider(&run, conventions, &common);
        (run, baseline)
    };
    Ok(runs.into_par_iter().map(first).collect())
}
