//! The suite's power and its false alarms, measured.
//!
//! A *trial* is one seed: the op's cases of that seed, a panel of what each legitimate convention
//! allows on them, and subjects that answer them. Faulty subjects give the detection rate of each
//! fault, legitimate ones (conventions times chains of additions) the false-alarm rate of each
//! convention. Both are counted for the whole suite, as a check judges a kernel, and for each family
//! alone; beside them what [`criteria`] of other projects make of the same outputs.
//!
//! The subjects are the native ones, written apart from the reference. Everything is drawn from the
//! seed: the report is the same for any number of threads.

pub mod chart;
pub mod criteria;
pub mod own;
pub mod rows;
pub mod simulate;
pub mod stats;
pub mod subjects;
#[cfg(test)]
mod tests;
pub mod text;
mod trial;

use assay_reference::Result;
use rayon::prelude::*;
use serde::Serialize;

use crate::families::{self, Generated};
use crate::judge::panel::FaultId;
use crate::subject::native::Chain;
pub use rows::{Cell, ConventionRow, FaultRow, Missed};
pub use stats::Tally;
use trial::Trial;
pub use trial::{Run, Stored};

/// Trials that are evaluated together. Fixed, so that what is run does not depend on the threads.
const BATCH: usize = 4;
/// Most trials of an op: one whose legitimate runs all coincide ends here.
const MOST_TRIALS: usize = 4000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Trials of each fault; `None` is the op's default.
    pub trials: Option<usize>,
    /// Legitimate runs of an op, at least.
    pub legitimate: usize,
    /// Only faults of these slugs; empty is all.
    pub faults: Vec<String>,
    /// Seed of the first trial.
    pub seed: u64,
}

/// The figures of one op.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpPower {
    /// The op.
    pub op: String,
    /// Trials with faulty subjects.
    pub trials: usize,
    /// Seeds of the legitimate runs.
    pub seeds: usize,
    /// Cases of one seed.
    pub cases: usize,
    /// Families of those cases.
    pub families: Vec<String>,
    /// Ways of adding that the subjects have.
    pub chains: usize,
    /// All faults together.
    pub detection: Cell,
    /// All legitimate runs together.
    pub alarms: Cell,
    /// Upper 95 % limit of the suite's false-alarm rate.
    pub upper95: f64,
    /// By fault, the worst first.
    pub faults: Vec<FaultRow>,
    /// By convention, the worst first.
    pub conventions: Vec<ConventionRow>,
    /// Why nothing was measured: there is no independent subject, or there are no cases.
    pub missing: Option<String>,
}

impl OpPower {
    /// Whether every fault was always caught and nothing legitimate raised an alarm.
    pub fn is_good(&self) -> bool {
        self.missing.is_none()
            && self.faults.iter().all(|f| f.is_caught() || !f.counts())
            && self.conventions.iter().all(|c| c.missing.is_none() && c.total.suite.hits == 0)
    }

    /// The same, but for what no independent subject has.
    pub fn is_good_but_for_missing(&self) -> bool {
        let caught = |f: &FaultRow| f.missing.is_some() || f.is_caught() || !f.counts();
        self.faults.iter().all(caught) && self.conventions.iter().all(|c| c.total.suite.hits == 0)
    }
}

/// Trials of each fault where `--trials` says nothing: more where they are cheap.
fn default_trials(op: &str) -> usize {
    match op {
        "attention" | "attention_paged" | "moe_experts" => 6,
        op if op == "matmul" || op.ends_with("_gemm") => 8,
        _ => 20,
    }
}

/// The cases of an op for a seed.
fn cases(op: &str, seed: u64) -> Vec<Generated> {
    families::power_cases(op, seed)
}

/// Measures one op. `progress` is called with the share that is done.
///
/// # Errors
/// When a generated case is not the op's (a defect of the families).
pub fn measure(
    op: &'static str,
    settings: &Settings,
    run: &Run<'_>,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<OpPower> {
    let trials = settings.trials.unwrap_or_else(|| default_trials(op)).max(1);
    let mut out = OpPower {
        op: op.into(),
        trials,
        seeds: 0,
        cases: 0,
        families: Vec::new(),
        chains: 0,
        detection: Cell::default(),
        alarms: Cell::default(),
        upper95: 1.0,
        faults: Vec::new(),
        conventions: Vec::new(),
        missing: None,
    };
    let first = cases(op, seed_of(settings.seed, 0));
    if first.is_empty() {
        out.missing = Some("no families".into());
        return Ok(out);
    }
    out.cases = first.len();
    out.families = first.iter().map(|g| g.case.family.clone()).collect();
    out.families.sort();
    out.families.dedup();
    let first = Trial::new(op, seed_of(settings.seed, 0), first, run)?;
    let chains = subjects::chains(op);
    if let Err(e) = first.probe(chains[0]) {
        out.missing = Some(e.to_string());
        return Ok(out);
    }
    out.chains = chains.len();
    out.conventions = first.labels().iter().map(|l| ConventionRow::new(l)).collect();
    drop(first);
    let wanted = |f: &FaultId| settings.faults.is_empty() || settings.faults.contains(&f.slug);
    let catalogue: Vec<FaultId> =
        subjects::faults(op).unwrap_or_default().into_iter().filter(wanted).collect();
    out.faults = catalogue.iter().map(|id| FaultRow::of(op, id)).collect();
    let plan = Plan { op, settings, run, chains, catalogue, trials };
    let mut next = 0;
    loop {
        let done = out.alarms.suite.trials;
        let legitimate = done < settings.legitimate;
        if next >= MOST_TRIALS || (next >= trials && !legitimate) {
            break;
        }
        let batch: Vec<(Vec<FaultRow>, Vec<ConventionRow>)> = (next..next + BATCH)
            .into_par_iter()
            .map(|index| plan.trial(index, legitimate))
            .collect::<Result<_>>()?;
        for (faults, conventions) in batch {
            for (row, new) in out.faults.iter_mut().zip(faults) {
                row.add(new);
            }
            out.seeds += usize::from(!conventions.is_empty());
            for (row, new) in out.conventions.iter_mut().zip(conventions) {
                out.alarms.add(&new.total);
                row.add(new);
            }
        }
        next += BATCH;
        let share = |a: usize, b: usize| if b == 0 { 1.0 } else { (a as f64 / b as f64).min(1.0) };
        let runs = out.alarms.suite.trials;
        progress(share(next, trials).min(share(runs, settings.legitimate)));
    }
    finish(&mut out);
    Ok(out)
}

/// Sums up, and puts the worst rows first.
fn finish(out: &mut OpPower) {
    for row in out.faults.iter().filter(|f| f.counts()) {
        out.detection.add(&row.total);
    }
    out.upper95 = out.alarms.suite.upper95();
    let weakest = |row: &FaultRow| {
        let rates = row.families.values().filter_map(|c| c.suite.rate());
        rates.fold(1.0, f64::min)
    };
    out.faults.sort_by(|a, b| {
        (b.missing.is_some().cmp(&a.missing.is_some()))
            .then(
                a.total.suite.rate().unwrap_or(0.0).total_cmp(&b.total.suite.rate().unwrap_or(0.0)),
            )
            .then(weakest(a).total_cmp(&weakest(b)))
            .then(a.slug.cmp(&b.slug))
            .then(a.key.cmp(&b.key))
    });
    out.conventions.sort_by(|a, b| {
        (b.missing.is_some().cmp(&a.missing.is_some()))
            .then(b.total.suite.hits.cmp(&a.total.suite.hits))
            .then(b.misnamed.cmp(&a.misnamed))
    });
}

struct Plan<'a> {
    op: &'static str,
    settings: &'a Settings,
    run: &'a Run<'a>,
    chains: Vec<Chain>,
    catalogue: Vec<FaultId>,
    trials: usize,
}

impl Plan<'_> {
    fn trial(&self, index: usize, legitimate: bool) -> Result<(Vec<FaultRow>, Vec<ConventionRow>)> {
        let faulty = index < self.trials && !self.catalogue.is_empty();
        if !faulty && !legitimate {
            return Ok((Vec::new(), Vec::new()));
        }
        let seed = seed_of(self.settings.seed, index);
        let trial = Trial::new(self.op, seed, cases(self.op, seed), self.run)?;
        let faults =
            if faulty { trial.faulty(index, &self.chains, &self.catalogue)? } else { Vec::new() };
        // Spread over at least half of the trials' seeds.
        let most = (2 * self.settings.legitimate).div_ceil(self.trials).max(1);
        let rows = if legitimate { trial.legitimate(&self.chains, most) } else { Vec::new() };
        Ok((faults, rows))
    }
}

/// The seed of a trial's cases.
fn seed_of(seed: u64, index: usize) -> u64 {
    seed.wrapping_mul(1_000_003).wrapping_add(index as u64)
}
