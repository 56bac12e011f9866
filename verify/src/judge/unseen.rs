//! What a pass leaves open: the variants that a subject's cases cannot tell from what was accepted.

use std::collections::{BTreeMap, BTreeSet};

use assay_reference::Result;
use assay_reference::ops::{Erased, Op, Scope};

use super::explain::{Key, key};
use super::longer::longer;
use super::observed::Run;
use super::search::{Convention, conventions, label};
use super::separate::{Variant, catalogue, confusable, name, told_apart};
use super::{Hidden, Observation, Options, Unseen};
use crate::families::{self, Generated};

/// Seed of the op's own families where they are the yardstick.
const SEED: u64 = 1;

/// What these runs cannot tell from the accepted conventions `alive`, the first of which is the
/// explanation; and the number of outputs evaluated.
pub(super) fn hidden<O: Op>(
    runs: &[Run<'_, O>],
    conventions: &[Convention<O>],
    alive: &[usize],
    options: Options,
) -> Result<(Hidden, usize)> {
    let (truth, scope) = (alive[0], options.unseen);
    let op = O::name(&runs[0].base.params);
    let applicable = applicable_to(runs, &conventions[truth]);
    let faults = &applicable;
    let on = |convention: usize| move |key: &Key| Variant { convention, fault: Some(key.clone()) };
    let (mut unseen, mut tried) =
        open(runs, conventions, truth, faults.iter().map(on(truth)).collect());
    let mut hidden = Hidden::default();
    if scope == Unseen::Applicable {
        let mut faults: BTreeSet<Key> = unseen.into_iter().filter_map(|v| v.fault).collect();
        let first = runs[0].setup(&conventions[truth].edits);
        if let Some(tensors) = longer(op, &first.tensors) {
            let beyond = O::faults(&first.params, &tensors);
            faults.extend(beyond.iter().map(key).filter(|k| !applicable.contains(k)));
        }
        hidden.faults = faults.iter().map(|f| name(op, f)).collect();
        return Ok((hidden, tried));
    }
    // A fault that undoes another convention's difference would pass as the accepted one. Rare
    // conventions and their combinations are too many to cross with every fault.
    let others = (0..conventions.len()).filter(|&c| !alive.contains(&c) && !conventions[c].rare);
    let crossed = others.flat_map(|c| faults.iter().map(on(c))).collect();
    let (mut limits, more) = open(runs, conventions, truth, crossed);
    tried += more;
    limits.extend(alive[1..].iter().map(|&convention| Variant { convention, fault: None }));
    // What is the same by nature, as a rounding that is done twice, no case can tell apart.
    unseen = differing(unseen, &runs[0], conventions, truth, options)?;
    let limits = differing(limits, &runs[0], conventions, truth, options)?;
    hidden.faults = unseen.into_iter().filter_map(|v| v.fault).map(|f| name(op, &f)).collect();
    // What no case even has the shape for.
    let shapes = families::kernel_examples::<O>(op);
    let all = shapes.iter().flat_map(|(params, tensors)| O::faults(params, tensors));
    let lacking: BTreeSet<Key> = all.map(|f| key(&f)).collect();
    hidden.faults.extend(lacking.iter().filter(|k| !faults.contains(k)).map(|k| name(op, k)));
    hidden.faults.sort();
    let accepted = label(&conventions[truth]);
    hidden.indistinct = limits
        .into_iter()
        .map(|v| {
            let other = label(&conventions[v.convention]);
            match v.fault {
                None => format!("{accepted} ~ {other}"),
                Some(fault) => format!("{accepted} ~ {} on top of {other}", name(op, &fault)),
            }
        })
        .collect();
    if scope == Unseen::Pairs {
        let (pairs, more) = confusable(runs, &conventions[truth], faults);
        tried += more;
        let both = |(a, b): &(Key, Key)| format!("{} ~ {}", name(op, a), name(op, b));
        hidden.fault_pairs = pairs.iter().map(both).collect();
    }
    Ok((hidden, tried))
}

/// The catalogued faults of all runs under a convention.
fn applicable_to<O: Op>(runs: &[Run<'_, O>], convention: &Convention<O>) -> Vec<Key> {
    let of = |run: &Run<'_, O>| catalogue(&run.setup(&convention.edits)).into_keys();
    let all: BTreeSet<Key> = runs.iter().flat_map(of).collect();
    all.into_iter().collect()
}

/// The variants that no run tells from `truth`.
fn open<O: Op>(
    runs: &[Run<'_, O>],
    conventions: &[Convention<O>],
    truth: usize,
    variants: Vec<Variant>,
) -> (Vec<Variant>, usize) {
    let (apart, tried) = told_apart(runs, conventions, truth, &variants);
    let open = variants.into_iter().zip(apart).filter(|(_, apart)| !apart).map(|(v, _)| v);
    (open.collect(), tried)
}

/// Those variants that the op's own families tell from `truth`, or do not have the shape for, in the
/// output that `like` observed.
fn differing<O: Op>(
    variants: Vec<Variant>,
    like: &Run<'_, O>,
    conventions: &[Convention<O>],
    truth: usize,
    options: Options,
) -> Result<Vec<Variant>> {
    if variants.is_empty() {
        return Ok(variants);
    }
    let (op, output) = (O::name(&like.base.params), like.spec.name);
    let own = observations(&families::power_cases(op, SEED), output)?;
    let runs = opened(&own, output, options)?;
    let shaped = applicable_to(&runs, &conventions[truth]);
    let (apart, _) = told_apart(&runs, conventions, truth, &variants);
    let keep = |(v, apart): &(Variant, bool)| {
        *apart || v.fault.as_ref().is_some_and(|f| !shaped.contains(f))
    };
    Ok(variants.into_iter().zip(apart).filter(keep).map(|(v, _)| v).collect())
}

/// Runs of no subject, of the output of that name: what was stored does not matter.
fn observations(cases: &[Generated], output: &str) -> Result<Vec<Observation>> {
    cases.iter().map(|g| g.unobserved(output)).collect()
}

fn opened<'a, O: Op>(
    observations: &'a [Observation],
    output: &str,
    options: Options,
) -> Result<Vec<Run<'a, O>>> {
    observations.iter().map(|o| Run::new(o, Some(output), options)).collect()
}

/// See [`super::shown`].
pub(super) fn shown(cases: &[Generated], scope: Scope) -> Result<Vec<(Key, bool)>> {
    let options = Options { scope, unseen: Unseen::Nothing, preset: None, known: None };
    let Some(first) = cases.first() else { return Ok(Vec::new()) };
    let mut all: BTreeMap<Key, bool> = BTreeMap::new();
    // Each output has its own verdict; a fault that shows in one is caught.
    for spec in Erased::open(&first.case)?.1 {
        let own = observations(cases, spec.name)?;
        let runs = opened::<Erased>(&own, spec.name, options)?;
        let conventions = conventions(&runs, options);
        let faults = applicable_to(&runs, &conventions[0]);
        let mut shown = vec![true; faults.len()];
        for truth in 0..conventions.len() {
            let left: Vec<usize> = (0..faults.len()).filter(|&f| shown[f]).collect();
            let variant = |f: &usize| Variant { convention: 0, fault: Some(faults[*f].clone()) };
            let variants: Vec<Variant> = left.iter().map(variant).collect();
            let (apart, _) = told_apart(&runs, &conventions, truth, &variants);
            left.into_iter().zip(apart).for_each(|(f, apart)| shown[f] = apart);
        }
        for (fault, shown) in faults.into_iter().zip(shown) {
            *all.entry(fault).or_insert(false) |= shown;
        }
    }
    Ok(all.into_iter().collect())
}
