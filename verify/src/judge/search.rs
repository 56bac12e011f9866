//! The search for the conventions that explain all runs of a subject.

use assay_reference::ops::{Edit, Op, Scope, Tile};
use assay_reference::{Result, Tensor};
use rayon::prelude::*;

use super::accept::{Metrics, ratio};
use super::baseline::{Baseline, explaining, others};
use super::explain::Subject;
use super::observed::Run;
use super::picture::{Histogram, Picture};
use super::progress::Progress;
use super::{Hidden, Judgement, Observation, Options, Unseen, Verdict, bias, faults, unseen};
use crate::finding::Finding;

/// A complete choice of an op's knobs.
pub(super) struct Convention<O: Op> {
    /// `knob=value` for every choice that is not the default; empty for the defaults.
    pub(super) label: String,
    pub(super) edits: Vec<Edit<O>>,
    /// Whether one of the choices is rare: tried when no common convention explains every run.
    pub(super) rare: bool,
}

/// All combinations of the knobs' allowed choices, the defaults first, then the common ones by number of
/// changes, then the rare ones; or the one of a preset, which is what the runs' setups then start from.
/// Runs may differ in their knobs, as a scaling has one more: those of the run that has most are taken.
pub(super) fn conventions<O: Op>(runs: &[Run<'_, O>], options: Options) -> Vec<Convention<O>> {
    if options.preset.is_some() {
        let label = runs[0].preset.join(" ");
        return vec![Convention { label, edits: Vec::new(), rare: false }];
    }
    let scope = options.scope;
    let knobs = runs
        .iter()
        .map(|r| O::knobs(&r.base.params))
        .reduce(|most, knobs| if knobs.len() > most.len() { knobs } else { most });
    let mut all = vec![Combination::<O>::default()];
    for knob in knobs.unwrap_or_default() {
        let mut next = Vec::new();
        for combination in &all {
            for (i, choice) in knob.choices.iter().enumerate() {
                if choice.framework_only && scope == Scope::Kernel {
                    continue;
                }
                let mut more = combination.clone();
                if i > 0 {
                    more.labels.push(format!("{}={}", knob.name, choice.value));
                    more.edits.push(choice.edit.clone());
                    more.rare |= choice.rare;
                }
                next.push(more);
            }
        }
        all = next;
    }
    all.sort_by_key(|c| (c.rare, c.edits.len()));
    let named =
        |c: Combination<O>| Convention { label: c.labels.join(" "), edits: c.edits, rare: c.rare };
    all.into_iter().map(named).collect()
}

/// Choices of some knobs.
struct Combination<O: Op> {
    labels: Vec<String>,
    edits: Vec<Edit<O>>,
    rare: bool,
}

impl<O: Op> Default for Combination<O> {
    fn default() -> Self {
        Combination { labels: Vec::new(), edits: Vec::new(), rare: false }
    }
}

impl<O: Op> Clone for Combination<O> {
    fn clone(&self) -> Self {
        Combination { labels: self.labels.clone(), edits: self.edits.clone(), rare: self.rare }
    }
}

/// Judges `runs` of one output; `beside` are those of the op's other outputs.
pub(super) fn run<O: Op>(
    runs: &[Observation],
    output: Option<&str>,
    beside: &[(&str, &[Observation])],
    options: Options,
) -> Result<Judgement> {
    let runs: Vec<Run<'_, O>> =
        runs.iter().map(|r| Run::new(r, output, options)).collect::<Result<_>>()?;
    let conventions = conventions(&runs, options);
    let mut baselines: Vec<Option<Baseline>> = runs.iter().map(|_| None).collect();
    let (rare, common): (Vec<usize>, Vec<usize>) =
        (0..conventions.len()).partition(|&c| conventions[c].rare);
    let mut alive = explaining::<O>(&runs, &mut baselines, &conventions, &common);
    if alive.is_empty() && !rare.is_empty() {
        alive = explaining::<O>(&runs, &mut baselines, &conventions, &rare);
    }
    let baselines: Vec<Baseline> = baselines.into_iter().flatten().collect();
    let tried = |b: &Baseline| b.tried.iter().filter(|t| **t).count();
    let mut judgement = Judgement {
        verdict: Verdict::Skipped { reason: String::new() },
        runs: runs.len(),
        elements: runs.iter().map(|r| r.observed.len()).sum(),
        worst: 0.0,
        equal_share: 0.0,
        hypotheses: baselines.iter().map(tried).sum(),
        ill_conditioned: Vec::new(),
        histogram: Histogram::default(),
        picture: None,
    };
    if !alive.is_empty() {
        explained::<O>(&mut judgement, &runs, &baselines, (&conventions, &alive), options)?;
        return Ok(judgement);
    }
    let near: Vec<(usize, Metrics)> =
        runs.par_iter().zip(&baselines).map(|(run, b)| near::<O>(run, b, &conventions)).collect();
    if let Some(i) = (0..runs.len()).rev().max_by_key(|&i| near[i].1.outside) {
        judgement.picture = Some(picture(&runs[i], &conventions[near[i].0]));
    }
    let near: Vec<Metrics> = near.into_iter().map(|(_, m)| m).collect();
    judgement.histogram = histogram(&near);
    judgement.worst = near.iter().map(|m| m.worst).fold(0.0, f64::max);
    judgement.equal_share =
        near.iter().map(|m| m.equal).sum::<usize>() as f64 / judgement.elements as f64;
    judgement.verdict = if baselines.iter().all(Baseline::passes) {
        disagreement(&runs, &baselines, &conventions)
    } else {
        let beside = others(beside, &conventions, options)?;
        let subject = Subject {
            runs: &runs,
            baselines: &baselines,
            conventions: &conventions,
            beside: &beside,
            progress: Progress::new(O::name(&runs[0].base.params)),
            known: options.known,
        };
        let (verdict, tried) = faults::name::<O>(&subject);
        judgement.hypotheses += tried;
        verdict
    };
    Ok(judgement)
}

/// Fills in the judgement of a subject that a convention explains: a pass, unless the inputs say
/// nothing or the errors lean.
fn explained<O: Op>(
    judgement: &mut Judgement,
    runs: &[Run<'_, O>],
    baselines: &[Baseline],
    (conventions, alive): (&[Convention<O>], &[usize]),
    options: Options,
) -> Result<()> {
    let index = alive[0];
    let metrics: Vec<Metrics> = baselines.iter().filter_map(|b| b.by_convention[index]).collect();
    judgement.worst = metrics.iter().map(|m| m.worst).fold(0.0, f64::max);
    judgement.histogram = histogram(&metrics);
    // A pass of one run, as of a recording's op, would cost as much again.
    if runs.len() > 1 {
        let worst = |i: &usize| metrics[*i].worst;
        let telling = (0..runs.len()).max_by(|a, b| worst(a).total_cmp(&worst(b)));
        judgement.picture = telling.map(|i| picture(&runs[i], &conventions[index]));
    }
    judgement.equal_share =
        metrics.iter().map(|m| m.equal).sum::<usize>() as f64 / judgement.elements as f64;
    let labelled = runs.iter().map(|r| r.observation.label.clone()).zip(&metrics);
    judgement.ill_conditioned =
        labelled.filter(|(_, m)| m.is_vague()).map(|(label, _)| label).collect();
    judgement.verdict = if judgement.ill_conditioned.len() == runs.len() {
        let m = metrics[0];
        Verdict::IllConditioned {
            where_: format!(
                "{}: {} of {} elements are uncertain by more than 1/64 of their row",
                runs[0].observation.label, m.vague, m.elements
            ),
        }
    } else if let Some(finding) = bias::test::<O>(runs, &conventions[index]) {
        Verdict::Fail { findings: vec![finding] }
    } else {
        let mut hidden = Hidden::default();
        if options.unseen != Unseen::Nothing {
            let (found, tried) = unseen::hidden::<O>(runs, conventions, alive, options)?;
            judgement.hypotheses += tried;
            hidden = found;
        }
        Verdict::Pass {
            conventions: alive.iter().map(|&c| label(&conventions[c])).collect(),
            unseen_faults: hidden.faults,
            indistinct: hidden.indistinct,
            fault_pairs: hidden.fault_pairs,
        }
    };
    Ok(())
}

fn histogram(metrics: &[Metrics]) -> Histogram {
    let mut sum = Histogram::default();
    for m in metrics {
        sum.iter_mut().zip(m.histogram).for_each(|(s, n)| *s += n);
    }
    sum
}

fn picture<O: Op>(run: &Run<'_, O>, convention: &Convention<O>) -> Picture {
    let setup = run.setup(&convention.edits);
    let (label, e) = (&run.observation.label, run.expect(&setup, &Tile::ALL));
    Picture::new(label, &run.spec.shape, &run.observed, &e, run.rounding(&setup))
}

/// The label that people see.
pub(super) fn label<O: Op>(c: &Convention<O>) -> String {
    if c.label.is_empty() { "defaults".into() } else { c.label.clone() }
}

fn disagreement<O: Op>(
    runs: &[Run<'_, O>],
    baselines: &[Baseline],
    conventions: &[Convention<O>],
) -> Verdict {
    let mut seen: Vec<(Vec<usize>, &str)> = Vec::new();
    for (r, b) in runs.iter().zip(baselines) {
        let set: Vec<usize> = (0..conventions.len()).filter(|&c| b.accepts(c)).collect();
        if !seen.iter().any(|(s, _)| *s == set) {
            seen.push((set, &r.observation.label));
        }
    }
    let parts: Vec<String> = seen
        .iter()
        .map(|(set, l)| {
            let names: Vec<_> = set.iter().map(|&c| label(&conventions[c])).collect();
            format!("{l}: {}", names.join(" or "))
        })
        .collect();
    let text = format!("each case has a convention, but they disagree: {}", parts.join("; "));
    Verdict::Fail { findings: vec![Finding::new("conventions_disagree", text)] }
}

/// The convention that a failing run is described against: one that accepts it, or the common one that the
/// sieve finds nearest.
pub(super) fn near<O: Op>(
    run: &Run<'_, O>,
    baseline: &Baseline,
    conventions: &[Convention<O>],
) -> (usize, Metrics) {
    let best = baseline.by_convention.iter().position(Option::is_some).unwrap_or_else(|| {
        let common = conventions.iter().enumerate().filter(|(_, c)| !c.rare);
        let distance = |c: &Convention<O>| baseline.sieve.distance(run, &run.setup(&c.edits));
        let far = common.map(|(i, c)| (i, distance(c)));
        far.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i)
    });
    (best, run.compare(&run.setup(&conventions[best].edits), &Tile::ALL))
}

/// The convention under which most elements of a run are inside their intervals.
fn closest<'c, O: Op>(run: &Run<'_, O>, conventions: &'c [Convention<O>]) -> &'c Convention<O> {
    let outside = |c: &&Convention<O>| run.compare(&run.setup(&c.edits), &Tile::ALL).outside;
    conventions.iter().min_by_key(outside).expect("there is always the default convention")
}

/// See [`super::reference_output`].
pub(super) fn corrected<O: Op>(run: &Observation, options: Options) -> Result<Tensor> {
    let run = [Run::<O>::new(run, None, options)?];
    let conventions = conventions(&run, options);
    let [run] = run;
    let setup = run.setup(&closest::<O>(&run, &conventions).edits);
    let (e, rounding) = (run.expect(&setup, &Tile::ALL), run.rounding(&setup));
    Ok(run.observation.output.map(|i, o| {
        let outside = ratio(o, &e, i, rounding) > 1.0;
        if outside { rounding.round(e.v[i]) } else { o }
    }))
}
