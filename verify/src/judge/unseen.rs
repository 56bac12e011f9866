//! The catalogued faults that a subject's cases cannot see.

use std::collections::BTreeMap;

use assay_reference::ops::{Fault, Op, Tile};
use rayon::prelude::*;

use super::Unseen;
use super::accept::{Expected, ratio};
use super::explain::{Key, key};
use super::longer::longer;
use super::search::{Convention, Run};

/// `most` indices out of `n`, evenly spread with both ends; `None` is all.
fn some(n: usize, most: usize) -> Option<Vec<usize>> {
    (n > most).then(|| (0..most).map(|i| i * (n - 1) / (most - 1)).collect())
}

/// Faults whose output every run would have accepted, and the number of hypotheses tried.
pub(super) fn unseen<O: Op>(
    runs: &[Run<'_, O>],
    convention: &Convention<O>,
    scope: Unseen,
) -> (Vec<String>, usize) {
    let op = O::name(&runs[0].base.params);
    let mut seen: BTreeMap<Key, bool> = BTreeMap::new();
    let mut tried = 0;
    // Small cases first: they settle most faults at little cost.
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|&i| (runs[i].size(), i));
    for i in order {
        let run = &runs[i];
        let setup = run.setup(&convention.edits);
        let faults: Vec<Fault<O>> = O::faults(&setup.params, &setup.tensors)
            .into_iter()
            .filter(|f| !seen.get(&key(f)).copied().unwrap_or(false))
            .collect();
        if faults.is_empty() {
            continue;
        }
        tried += faults.len();
        let rows = run.spec.rows();
        let tile = Tile { rows: some(rows, 2), cols: some(run.spec.cols(), 16) };
        let part = run.expect(&setup, &tile);
        let whole = run.expect(&setup, &Tile::ALL);
        let shows = |fault: &Fault<O>, tile: &Tile, e: &Expected| {
            let mut wrong = setup.clone();
            (fault.edit)(&mut wrong);
            let (stored, right) = (run.rounding(&wrong), run.rounding(&setup));
            let out = run.values(&wrong, tile);
            out.iter().enumerate().any(|(i, v)| ratio(stored.round(*v), e, i, right) > 1.0)
        };
        let results: Vec<(Key, bool)> = faults
            .par_iter()
            // A few elements show most faults.
            .map(|f| (key(f), shows(f, &tile, &part) || shows(f, &Tile::ALL, &whole)))
            .collect();
        for (k, shown) in results {
            *seen.entry(k).or_insert(false) |= shown;
        }
    }
    if let (Unseen::Applicable, Some(run)) = (scope, runs.first()) {
        let setup = run.setup(&convention.edits);
        if let Some(tensors) = longer(op, &setup.tensors) {
            for fault in O::faults(&setup.params, &tensors) {
                seen.entry(key(&fault)).or_insert(false);
            }
        }
    }
    if scope == Unseen::Catalogue {
        // What no case even has the shape for.
        for (params, tensors) in crate::families::kernel_examples::<O>(op) {
            for fault in O::faults(&params, &tensors) {
                seen.entry(key(&fault)).or_insert(false);
            }
        }
    }
    let name = |slug: &str, key: &str| match key {
        "" => format!("{op}.{slug}"),
        key => format!("{op}.{slug} ({key})"),
    };
    let hidden = seen.into_iter().filter(|(_, shown)| !shown);
    (hidden.map(|((_, slug, key), _)| name(slug, &key)).collect(), tried)
}
