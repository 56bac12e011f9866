//! Names the faults behind a subject's failing runs.

use std::collections::BTreeMap;

use assay_reference::ops::{Op, Tile};

use super::baseline::Baseline;
use super::explain::{Explanation, Key, SOLVED, Subject};
use super::search::{Convention, label};
use super::{Verdict, evidence, pattern};
use crate::dispatch::{Features, condition};
use crate::finding::Finding;

/// Failing runs on which every hypothesis is tried; the others only check what these found.
const SEARCHED: usize = 6;

/// Explanations by run.
type ByRun = BTreeMap<usize, Vec<Explanation>>;

/// Each fault is found on a failing run. Runs that no fault explains are reported as such. Returns
/// the verdict and the number of hypotheses tried.
pub(super) fn name<O: Op>(subject: &Subject<'_, O>) -> (Verdict, usize) {
    let (mut verdict, tried) = search(subject);
    if let Some(note) = subject.progress.note() {
        match &mut verdict {
            Verdict::Unexplained { pattern } => *pattern += &format!("; {note}"),
            Verdict::Fail { findings } => {
                findings.last_mut().into_iter().for_each(|f| f.text += &format!("; {note}"));
            }
            _ => {}
        }
    }
    (verdict, tried)
}

fn search<O: Op>(subject: &Subject<'_, O>) -> (Verdict, usize) {
    let Subject { baselines, conventions, .. } = subject;
    let bases = plausible_bases(baselines, conventions);
    let failing = failing(subject, |b| !b.passes());
    let found = attempt(subject, &failing, &bases, None);
    let mut tried = found.tried;
    if 2 * found.open.len() <= failing.len() {
        return (found.verdict, tried);
    }
    // A run that is too small to say much may pass under another convention than the subject's, by the
    // fault itself: then one fault on top of the subject's explains that run as well.
    for c in (0..conventions.len()).filter(|c| !conventions[*c].rare && !bases.contains(c)) {
        let failing = self::failing(subject, |b| !b.accepts(c));
        let Some(&smallest) = failing.first().filter(|_| subject.progress.goes_on()) else { break };
        let (explained, count) = subject.explain(smallest, &[c], None);
        tried += count;
        if !explained.is_empty() {
            let other = attempt(subject, &failing, &[c], Some(c));
            tried += other.tried;
            if other.named == 1 && other.open.is_empty() {
                return (other.verdict, tried);
            }
        }
    }
    (found.verdict, tried)
}

/// The runs that fail, from small to large. Those whose inputs leave too much uncertain name nothing,
/// unless there are no others.
fn failing<O: Op>(subject: &Subject<'_, O>, fails: impl Fn(&Baseline) -> bool) -> Vec<usize> {
    let Subject { runs, baselines, .. } = subject;
    let mut failing: Vec<usize> = (0..runs.len()).filter(|&i| fails(&baselines[i])).collect();
    if failing.iter().any(|&i| !baselines[i].defaults.is_vague()) {
        failing.retain(|&i| !baselines[i].defaults.is_vague());
    }
    failing.sort_by_key(|&i| (runs[i].size(), i));
    failing
}

/// What was found on top of some conventions.
struct Attempt {
    verdict: Verdict,
    /// Faults that were named.
    named: usize,
    /// Runs that none explains.
    open: Vec<usize>,
    tried: usize,
}

/// Faults on top of `bases` that explain the runs `failing`. With `base`, the others are those that this
/// convention explains.
fn attempt<O: Op>(
    subject: &Subject<'_, O>,
    failing: &[usize],
    bases: &[usize],
    base: Option<usize>,
) -> Attempt {
    let Subject { runs, progress, .. } = subject;
    if let Some(&i) = failing.first() {
        let faults = O::faults(&runs[i].base.params, &runs[i].base.tensors).len();
        progress.expect(failing.len().min(SEARCHED) * bases.len() * faults);
    }
    let mut tried = 0;
    let mut by_run = ByRun::new();
    let mut keys: Vec<Key> = Vec::new();
    let op = O::name(&runs[0].base.params);
    let known = subject.known.map_or(Vec::new(), |k| k.of(op));
    for (n, &i) in failing.iter().enumerate() {
        let (mut found, count) = subject.explain(i, bases, Some(&known));
        tried += count;
        if !found.iter().any(|e| !e.vague) {
            let searched = n < SEARCHED && progress.goes_on();
            let only = (!searched).then_some(keys.as_slice());
            let count;
            (found, count) = subject.explain(i, bases, only);
            tried += count;
        }
        if found.is_empty() && n >= SEARCHED && !keys.is_empty() && progress.goes_on() {
            let (more, count) = subject.explain(i, bases, None);
            tried += count;
            found = more;
        }
        keys.extend(found.iter().map(|e| e.key.clone()));
        keys.sort();
        keys.dedup();
        by_run.insert(i, found);
    }
    if let Some(known) = subject.known {
        let evidence = |key: &&Key| by_run.values().flatten().any(|e| e.key == **key && !e.vague);
        known.add(op, &keys.iter().filter(evidence).cloned().collect::<Vec<_>>());
    }
    let contradicted: BTreeMap<Key, String> = keys
        .into_iter()
        .filter_map(|k| subject.contradiction(&k, base).map(|label| (k, label)))
        .collect();
    let (cover, open) = cover(failing, &by_run, &contradicted);
    let mut verdict = pattern::unexplained::<O>(subject, &open);
    if !cover.is_empty() {
        let mut findings: Vec<Finding> = cover
            .iter()
            .map(|(key, explained)| {
                let mut f = finding::<O>(subject, key, explained, &by_run, &contradicted);
                if let Some(label) = contradicted.get(key) {
                    f.text += &format!("; not in every case: {label} is right");
                    if let Some(condition) = when(subject, key, (failing, base), &by_run) {
                        f.text += &format!("; only {condition}");
                    }
                }
                f
            })
            .collect();
        if !open.is_empty() {
            // What explains the smaller part comes second.
            let at = if 2 * open.len() > failing.len() { 0 } else { findings.len() };
            findings.splice(at..at, verdict.findings());
        }
        verdict = Verdict::Fail { findings };
    }
    Attempt { verdict, named: cover.len(), open, tried }
}

/// Conventions that every passing run allows, or all common ones when none passes.
fn plausible_bases<O: Op>(baselines: &[Baseline], conventions: &[Convention<O>]) -> Vec<usize> {
    let fits =
        |c: usize| baselines.iter().filter(|b| b.passes()).all(|b| b.by_convention[c].is_some());
    let any = baselines.iter().any(Baseline::passes);
    let all = 0..conventions.len();
    let fitting: Vec<usize> = all.clone().filter(|&c| any && fits(c)).collect();
    if !fitting.is_empty() {
        return fitting;
    }
    all.filter(|&c| !conventions[c].rare).collect()
}

/// How well a fault explains the runs that are still open.
struct Score {
    runs: Vec<usize>,
    tightness: f64,
    order: usize,
}

impl Score {
    fn mean_tightness(&self) -> f64 {
        self.tightness / self.runs.len() as f64
    }
}

fn scores<'a>(open: &[usize], by_run: &'a ByRun) -> BTreeMap<&'a Key, Score> {
    let mut scores: BTreeMap<&Key, Score> = BTreeMap::new();
    for &i in open {
        for e in by_run[&i].iter().filter(|e| !e.vague) {
            let s = scores.entry(&e.key).or_insert(Score {
                runs: Vec::new(),
                tightness: 0.0,
                order: e.order,
            });
            // One explanation a run: on top of several conventions it counts once.
            if s.runs.last() != Some(&i) {
                s.runs.push(i);
                s.tightness += e.tightness;
                s.order = s.order.min(e.order);
            }
        }
    }
    scores
}

/// The fewest faults, greedily, that explain the failing runs, each with its runs; and the runs that
/// none explains.
fn cover(
    failing: &[usize],
    by_run: &ByRun,
    contradicted: &BTreeMap<Key, String>,
) -> (Vec<(Key, Vec<usize>)>, Vec<usize>) {
    let mut open: Vec<usize> = failing.to_vec();
    let mut out = Vec::new();
    while !open.is_empty() {
        // Explains most, not solved for, not contradicted by a pass, tightest, first in the catalogue.
        let best = scores(&open, by_run).into_iter().min_by(|(ka, a), (kb, b)| {
            (b.runs.len().cmp(&a.runs.len()))
                .then((a.order >= SOLVED).cmp(&(b.order >= SOLVED)))
                .then(contradicted.contains_key(*ka).cmp(&contradicted.contains_key(*kb)))
                .then(a.mean_tightness().total_cmp(&b.mean_tightness()))
                .then(a.order.cmp(&b.order))
        });
        let Some((key, score)) = best else { break };
        let key = key.clone();
        open.retain(|i| !by_run[i].iter().any(|e| e.key == key));
        out.push((key, score.runs));
    }
    (out, open)
}

fn finding<O: Op>(
    subject: &Subject<'_, O>,
    key: &Key,
    explained: &[usize],
    by_run: &ByRun,
    contradicted: &BTreeMap<Key, String>,
) -> Finding {
    let run = &subject.runs[explained[0]];
    let example = by_run[&explained[0]].iter().find(|e| e.key == *key);
    let (detail, base) = example.map_or((String::new(), 0), |e| (e.detail.clone(), e.convention));
    let right = run.setup(&subject.conventions[base].edits);
    let m = run.compare(&right, &Tile::ALL);
    let mut text = format!("{detail}. {}", run.describe(&right, &m));
    if base > 0 {
        text += &format!("; on top of {}", label(&subject.conventions[base]));
    }
    if explained.len() > 1 {
        text += &format!("; explains {} runs", explained.len());
    }
    let mut others = equally_good(key, explained, by_run, contradicted);
    others.iter_mut().for_each(|slug| *slug = format!("{}.{slug}", O::name(&run.base.params)));
    if !others.is_empty() {
        text += &format!("; equally good here: {}", others.join(", "));
    }
    text += &evidence::of(explained.iter().map(|&i| {
        let base = by_run[&i].iter().find(|e| e.key == *key).map_or(0, |e| e.convention);
        (&subject.runs[i], &subject.conventions[base])
    }));
    Finding { code: key.0.into(), name: format!("{}.{}", O::name(&run.base.params), key.1), text }
}

/// On which sizes the fault depends: the runs that it explains against those that it would have broken.
fn when<O: Op>(
    subject: &Subject<'_, O>,
    key: &Key,
    (failing, base): (&[usize], Option<usize>),
    by_run: &ByRun,
) -> Option<String> {
    let of = |i: &usize| Features::of(&subject.runs[*i].observation.case);
    let explained = failing.iter().filter(|i| by_run[i].iter().any(|e| e.key == *key));
    let wrong: Vec<Features> = explained.filter_map(of).collect();
    let right: Vec<Features> = subject.contradictions(key, base).iter().filter_map(of).collect();
    condition(&wrong, &right)
}

/// Other faults that explain all the same runs as tightly, and that no pass contradicts unless it does
/// this one.
fn equally_good(
    key: &Key,
    explained: &[usize],
    by_run: &ByRun,
    contradicted: &BTreeMap<Key, String>,
) -> Vec<String> {
    let tight = |k: &Key, i: usize| {
        by_run[&i].iter().filter(|e| e.key == *k).map(|e| e.tightness).fold(f64::INFINITY, f64::min)
    };
    let mut names: Vec<String> = by_run[&explained[0]]
        .iter()
        .filter(|e| e.key.1 != key.1)
        .filter(|e| contradicted.contains_key(key) || !contradicted.contains_key(&e.key))
        .filter(|e| explained.iter().all(|&i| tight(&e.key, i) <= tight(key, i) + 0.01))
        .map(|e| e.key.1.to_string())
        .collect();
    names.sort();
    names.dedup();
    names
}
