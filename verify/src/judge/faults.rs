//! The search for the fault that explains what no convention does.

use std::collections::BTreeMap;

use assay_reference::ops::{Fault, Op, Residual, Setup, Tile};
use rayon::prelude::*;

use super::accept::{Expected, expect, ratio};
use super::search::{Baseline, Convention, Run};
use super::{Verdict, search::label};
use crate::finding::Finding;

/// Failing runs on which every hypothesis is tried; the others only check what these found.
const SEARCHED: usize = 6;

/// A fault's identity across cases.
type Key = (&'static str, &'static str, String);

fn key<O: Op>(f: &Fault<O>) -> Key {
    (f.code, f.slug, f.key.clone())
}

/// An explanation of one run: which fault, on top of which convention, how tight.
struct Explanation {
    key: Key,
    detail: String,
    convention: usize,
    tightness: f64,
    order: usize,
}

/// All explanations of a run, and the number of hypotheses tried.
fn explain<O: Op, const P: i32>(
    run: &Run<'_, O>,
    baseline: &Baseline,
    conventions: &[Convention<O>],
    bases: &[usize],
    only: Option<&[Key]>,
) -> (Vec<Explanation>, usize) {
    let mut tried = 0;
    let mut found = Vec::new();
    for base in distinct(run, baseline, conventions, bases) {
        let setup = run.setup(&conventions[base].edits);
        let mut faults = O::faults(&setup.params, &setup.tensors);
        faults.extend(propose::<O, P>(run, &setup));
        if let Some(only) = only {
            faults.retain(|f| only.contains(&key(f)));
        }
        tried += faults.len();
        let hits: Vec<Explanation> = faults
            .par_iter()
            .enumerate()
            .filter_map(|(order, fault)| {
                let mut wrong = setup.clone();
                (fault.edit)(&mut wrong);
                if !run.compare::<P>(&wrong, &baseline.tile).1.accepted() {
                    return None;
                }
                let whole = run.compare::<P>(&wrong, &Tile::ALL).1;
                // A hypothesis that would accept anything explains nothing.
                (whole.accepted() && !whole.is_vague()).then(|| Explanation {
                    key: key(fault),
                    detail: fault.detail.clone(),
                    convention: base,
                    tightness: whole.tightness,
                    order,
                })
            })
            .collect();
        found.extend(hits);
    }
    (found, tried)
}

fn propose<O: Op, const P: i32>(run: &Run<'_, O>, setup: &Setup<O>) -> Vec<Fault<O>> {
    let e = expect::<O, P>(setup, &Tile::ALL);
    let residual = Residual {
        tensors: &setup.tensors,
        cols: run.spec.cols(),
        expected: &e.v,
        radius: &e.radius,
        observed: &run.observed,
        output: setup.policy.output,
    };
    O::propose(&setup.params, &residual)
}

/// The conventions among `bases` that differ on this run's tile.
fn distinct<O: Op>(
    run: &Run<'_, O>,
    baseline: &Baseline,
    conventions: &[Convention<O>],
    bases: &[usize],
) -> Vec<usize> {
    let mut seen: Vec<Vec<u64>> = Vec::new();
    let mut out = Vec::new();
    for &c in bases {
        let setup = run.setup(&conventions[c].edits);
        let values = setup.eval::<f64>(&baseline.tile).remove(0).data;
        let bits: Vec<u64> =
            values.into_iter().map(|v| setup.policy.output.round(v).to_bits()).collect();
        if !seen.contains(&bits) {
            seen.push(bits);
            out.push(c);
        }
    }
    out
}

/// Names the faults behind the failing runs: each found on a failing run, consistent with the
/// passing ones. `None` when a failing run has no explanation.
pub(super) fn name<O: Op, const P: i32>(
    runs: &[Run<'_, O>],
    baselines: &[Baseline],
    conventions: &[Convention<O>],
) -> (Option<Verdict>, usize) {
    let mut failing: Vec<usize> = (0..runs.len()).filter(|&i| !baselines[i].passes()).collect();
    failing.sort_by_key(|&i| (runs[i].base.tensors.values().map(|t| t.len()).sum::<usize>(), i));
    let bases = plausible_bases(baselines, conventions.len());
    let mut tried = 0;
    let mut by_run: BTreeMap<usize, Vec<Explanation>> = BTreeMap::new();
    let mut keys: Vec<Key> = Vec::new();
    for (n, &i) in failing.iter().enumerate() {
        let only = (n >= SEARCHED).then_some(keys.as_slice());
        let (mut found, count) =
            explain::<O, P>(&runs[i], &baselines[i], conventions, &bases, only);
        tried += count;
        if found.is_empty() && only.is_some() {
            let (more, count) = explain::<O, P>(&runs[i], &baselines[i], conventions, &bases, None);
            tried += count;
            found = more;
        }
        keys.extend(found.iter().map(|e| e.key.clone()));
        keys.sort();
        keys.dedup();
        by_run.insert(i, found);
    }
    let contradicted: Vec<Key> = keys
        .iter()
        .filter(|k| contradicts::<O, P>(k, runs, baselines, conventions))
        .cloned()
        .collect();
    let cover = cover(&failing, &by_run, &contradicted);
    let Some(cover) = cover else { return (None, tried) };
    let findings = cover
        .into_iter()
        .map(|(key, explained)| {
            finding::<O>(&key, &explained, runs, baselines, &by_run, conventions)
        })
        .collect();
    (Some(Verdict::Fail { findings }), tried)
}

/// Conventions that every passing run allows, or all when none passes.
fn plausible_bases(baselines: &[Baseline], n: usize) -> Vec<usize> {
    let fits =
        |c: usize| baselines.iter().filter(|b| b.passes()).all(|b| b.by_convention[c].is_some());
    let fitting: Vec<usize> = (0..n).filter(|&c| fits(c)).collect();
    if fitting.is_empty() { (0..n).collect() } else { fitting }
}

/// Whether a run that passes would have failed with the fault. A fault that does not apply to a
/// case, or changes nothing there, does not contradict it.
fn contradicts<O: Op, const P: i32>(
    wanted: &Key,
    runs: &[Run<'_, O>],
    baselines: &[Baseline],
    conventions: &[Convention<O>],
) -> bool {
    runs.par_iter().zip(baselines).filter(|(_, b)| b.passes()).any(|(run, b)| {
        let base = b.by_convention.iter().position(Option::is_some).unwrap_or(0);
        let setup = run.setup(&conventions[base].edits);
        let faults = O::faults(&setup.params, &setup.tensors);
        faults.iter().filter(|f| key(f) == *wanted).any(|fault| {
            let mut wrong = setup.clone();
            (fault.edit)(&mut wrong);
            !run.compare::<P>(&wrong, &b.tile).1.accepted()
                || !run.compare::<P>(&wrong, &Tile::ALL).1.accepted()
        })
    })
}

/// The fewest faults, greedily, that explain every failing run.
fn cover(
    failing: &[usize],
    by_run: &BTreeMap<usize, Vec<Explanation>>,
    contradicted: &[Key],
) -> Option<Vec<(Key, Vec<usize>)>> {
    let mut open: Vec<usize> = failing.to_vec();
    let mut out = Vec::new();
    while !open.is_empty() {
        let mut scores: BTreeMap<&Key, (Vec<usize>, f64, usize)> = BTreeMap::new();
        for &i in &open {
            let mut counted: Vec<&Key> = Vec::new();
            for e in &by_run[&i] {
                if !counted.contains(&&e.key) {
                    counted.push(&e.key);
                    let s = scores.entry(&e.key).or_insert((Vec::new(), 0.0, e.order));
                    s.0.push(i);
                    s.1 += e.tightness;
                    s.2 = s.2.min(e.order);
                }
            }
        }
        // Not contradicted by a pass, explains most, tightest, first in the catalogue.
        let best = scores.into_iter().min_by(|(ka, a), (kb, b)| {
            let rank = |k: &Key| contradicted.contains(k);
            let mean = |s: &(Vec<usize>, f64, usize)| s.1 / s.0.len() as f64;
            rank(ka)
                .cmp(&rank(kb))
                .then(b.0.len().cmp(&a.0.len()))
                .then(mean(a).total_cmp(&mean(b)))
                .then(a.2.cmp(&b.2))
        });
        let (key, (explained, _, _)) = best?;
        open.retain(|i| !explained.contains(i));
        out.push((key.clone(), explained));
    }
    Some(out)
}

fn finding<O: Op>(
    key: &Key,
    explained: &[usize],
    runs: &[Run<'_, O>],
    baselines: &[Baseline],
    by_run: &BTreeMap<usize, Vec<Explanation>>,
    conventions: &[Convention<O>],
) -> Finding {
    let first = explained[0];
    let example = by_run[&first].iter().find(|e| e.key == *key);
    let (detail, base) = example.map_or((String::new(), 0), |e| (e.detail.clone(), e.convention));
    let others: Vec<String> = equally_good(key, explained, by_run, O::NAME);
    let mut text = format!(
        "{detail}. {}",
        runs[first].describe(&baselines[first].default, &baselines[first].default_metrics)
    );
    if base > 0 {
        text += &format!("; on top of {}", label(&conventions[base]));
    }
    if explained.len() > 1 {
        text += &format!("; explains {} runs", explained.len());
    }
    if !others.is_empty() {
        text += &format!("; equally good here: {}", others.join(", "));
    }
    Finding { code: key.0.into(), name: format!("{}.{}", O::NAME, key.1), text }
}

/// Other faults that explain all the same runs as tightly.
fn equally_good(
    key: &Key,
    explained: &[usize],
    by_run: &BTreeMap<usize, Vec<Explanation>>,
    op: &str,
) -> Vec<String> {
    let tight = |k: &Key, i: usize| {
        by_run[&i].iter().filter(|e| e.key == *k).map(|e| e.tightness).fold(f64::INFINITY, f64::min)
    };
    let mut names: Vec<String> = by_run[&explained[0]]
        .iter()
        .filter(|e| e.key.1 != key.1)
        .filter(|e| explained.iter().all(|&i| tight(&e.key, i) <= tight(key, i) + 0.01))
        .map(|e| format!("{op}.{}", e.key.1))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Catalogued faults whose output every run would have accepted, and the number tried.
pub(super) fn unseen<O: Op, const P: i32>(
    runs: &[Run<'_, O>],
    convention: &Convention<O>,
) -> (Vec<String>, usize) {
    let mut seen: BTreeMap<Key, bool> = BTreeMap::new();
    let mut tried = 0;
    // Small cases first: they settle most faults at little cost.
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|&i| (runs[i].base.tensors.values().map(|t| t.len()).sum::<usize>(), i));
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
        let tile = Tile { rows: Some(vec![rows / 2, rows - 1].into_iter().collect()), cols: None };
        let (part, whole) = (expect::<O, P>(&setup, &tile), expect::<O, P>(&setup, &Tile::ALL));
        let shows = |fault: &Fault<O>, tile: &Tile, e: &Expected| {
            let mut wrong = setup.clone();
            (fault.edit)(&mut wrong);
            let out = wrong.eval::<f64>(tile).remove(0).data;
            out.iter().enumerate().any(|(i, v)| {
                let o = wrong.policy.output.round(*v);
                ratio(o, e, i, setup.policy.output) > 1.0
            })
        };
        let results: Vec<(Key, bool)> = faults
            .par_iter()
            .map(|f| (key(f), shows(f, &tile, &part) || shows(f, &Tile::ALL, &whole)))
            .collect();
        for (k, shown) in results {
            *seen.entry(k).or_insert(false) |= shown;
        }
    }
    let names = seen
        .into_iter()
        .filter(|(_, shown)| !shown)
        .map(|((_, slug, key), _)| {
            if key.is_empty() {
                format!("{}.{slug}", O::NAME)
            } else {
                format!("{}.{slug} ({key})", O::NAME)
            }
        })
        .collect();
    (names, tried)
}
