//! Which variants a set of cases tells apart, from the reference alone: no subject is involved.
//!
//! A variant is told from a convention if some case exists on which the judge would refuse its output
//! under that convention. Most are told apart by a few elements of a small case, so cases go from small
//! to large, first with a tile of each and then, for what is still open, with everything.

use std::borrow::Cow;
use std::collections::BTreeMap;

use assay_reference::Rounding;
use assay_reference::ops::{Edit, Op, Setup, Tile};
use rayon::prelude::*;

use super::accept::{Expected, ratio};
use super::explain::{Key, key};
use super::observed::Run;
use super::search::Convention;

/// A convention by its index, and perhaps a fault on top of it.
#[derive(Clone, Debug)]
pub(super) struct Variant {
    pub(super) convention: usize,
    pub(super) fault: Option<Key>,
}

/// `op.slug (key)`.
pub(super) fn name(op: &str, (_, slug, key): &Key) -> String {
    match key.as_str() {
        "" => format!("{op}.{slug}"),
        key => format!("{op}.{slug} ({key})"),
    }
}

/// `most` indices out of `n`, evenly spread with both ends; `None` is all.
fn some(n: usize, most: usize) -> Option<Vec<usize>> {
    (n > most).then(|| (0..most).map(|i| i * (n - 1) / (most - 1)).collect())
}

/// A few elements of a run.
fn few<O: Op>(run: &Run<'_, O>) -> Tile {
    Tile { rows: some(run.spec.rows(), 2), cols: some(run.spec.cols(), 16) }
}

/// The tiles of the two passes over the runs: a few elements, then all, each from small runs to large.
fn passes<'r, 'a, O: Op>(runs: &'r [Run<'a, O>]) -> Vec<(&'r Run<'a, O>, Tile)> {
    let mut order: Vec<&Run<'_, O>> = runs.iter().collect();
    order.sort_by_key(|r| r.size());
    let first = order.iter().map(|r| (*r, few(r)));
    let second = order.iter().filter(|r| few(r) != Tile::ALL);
    let parts = second.flat_map(|r| r.parts(&Tile::ALL).into_iter().map(|part| (*r, part)));
    first.chain(parts).collect()
}

/// The catalogue's edits on a run under a convention.
pub(super) fn catalogue<O: Op>(setup: &Setup<O>) -> BTreeMap<Key, Edit<O>> {
    let faults = O::faults(&setup.params, &setup.tensors);
    faults.into_iter().map(|f| (key(&f), f.edit)).collect()
}

/// What a setup stores on a tile.
fn stored<O: Op>(run: &Run<'_, O>, setup: &Setup<O>, tile: &Tile) -> Vec<f64> {
    let rounding = run.rounding(setup);
    run.values(setup, tile).into_iter().map(|v| rounding.round(v)).collect()
}

/// Whether a stored output is outside the interval of `right` anywhere.
fn refused(stored: &[f64], right: Rounding, e: &Expected) -> bool {
    stored.iter().enumerate().any(|(i, v)| ratio(*v, e, i, right) > 1.0)
}

/// For each variant whether a run tells it from the convention `truth`, and how many outputs were
/// evaluated. A fault that does not apply to a run changes nothing there.
pub(super) fn told_apart<O: Op>(
    runs: &[Run<'_, O>],
    conventions: &[Convention<O>],
    truth: usize,
    variants: &[Variant],
) -> (Vec<bool>, usize) {
    let (mut apart, mut tried) = (vec![false; variants.len()], 0);
    for (run, tile) in passes(runs) {
        let open: Vec<usize> = (0..variants.len()).filter(|&v| !apart[v]).collect();
        if open.is_empty() {
            break;
        }
        let right = run.setup(&conventions[truth].edits);
        let mut bases: Vec<usize> = open.iter().map(|&v| variants[v].convention).collect();
        bases.sort_unstable();
        bases.dedup();
        type Base<O> = (Setup<O>, BTreeMap<Key, Edit<O>>);
        let bases: BTreeMap<usize, Base<O>> = bases
            .into_par_iter()
            .map(|c| {
                let setup = run.setup(&conventions[c].edits);
                let faults = catalogue(&setup);
                (c, (setup, faults))
            })
            .collect();
        let changed = |v: &usize| {
            let Variant { convention, fault } = &variants[*v];
            let (base, faults) = &bases[convention];
            let edit = fault.as_ref().map(|key| faults.get(key));
            if matches!(edit, None | Some(None)) && *convention == truth {
                return None;
            }
            let mut wrong = base.clone();
            if let Some(Some(edit)) = edit {
                edit(&mut wrong);
            }
            Some((*v, wrong))
        };
        let wrong: Vec<(usize, Setup<O>)> = open.par_iter().filter_map(changed).collect();
        if wrong.is_empty() {
            continue;
        }
        tried += wrong.len();
        // Before the threads part: one that computed it for all would take up another's work meanwhile, which waits
        // for it.
        let (e, rounding) = (run.expect(&right, &tile), run.rounding(&right));
        let one = |(v, wrong): &(usize, Setup<O>)| {
            (*v, refused(&stored(run, wrong, &tile), rounding, &e))
        };
        let told: Vec<(usize, bool)> = wrong.par_iter().map(one).collect();
        told.into_iter().filter(|(_, refused)| *refused).for_each(|(v, _)| apart[v] = true);
    }
    (apart, tried)
}

/// Pairs of faults on top of a convention of which one's output would be accepted as the other's on
/// every run: such faults are caught, but may be called by each other's name.
pub(super) fn confusable<O: Op>(
    runs: &[Run<'_, O>],
    convention: &Convention<O>,
    faults: &[Key],
) -> (Vec<(Key, Key)>, usize) {
    let (n, mut tried) = (faults.len(), 0);
    let mut open: Vec<(usize, usize)> =
        (0..n).flat_map(|a| (0..n).filter(move |b| *b != a).map(move |b| (a, b))).collect();
    for (run, tile) in passes(runs) {
        let base = run.setup(&convention.edits);
        let edits = catalogue(&base);
        let mut wanted: Vec<usize> = open.iter().flat_map(|(a, b)| [*a, *b]).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.iter().all(|&f| !edits.contains_key(&faults[f])) {
            continue;
        }
        tried += wanted.len();
        let outputs: BTreeMap<usize, (Rounding, Vec<f64>, Cow<'_, Expected>)> = wanted
            .into_par_iter()
            .map(|f| {
                let mut setup = base.clone();
                if let Some(edit) = edits.get(&faults[f]) {
                    edit(&mut setup);
                }
                let (values, e) = (stored(run, &setup, &tile), run.expect(&setup, &tile));
                (f, (run.rounding(&setup), values, e))
            })
            .collect();
        open.retain(|(a, b)| {
            let (rounding, _, e) = &outputs[b];
            !refused(&outputs[a].1, *rounding, e)
        });
    }
    open.iter_mut().for_each(|(a, b)| (*a, *b) = (*a.min(b), *a.max(b)));
    open.sort_unstable();
    open.dedup();
    (open.into_iter().map(|(a, b)| (faults[a].clone(), faults[b].clone())).collect(), tried)
}
