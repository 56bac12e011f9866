//! What is counted: one row a fault, one row a convention.

use std::collections::BTreeMap;

use serde::Serialize;

use super::criteria;
use super::stats::Tally;
use crate::families::{COINCIDE, Coincide};
use crate::judge::panel::FaultId;

/// Number of criteria that are compared.
pub const CRITERIA: usize = criteria::ALL.len();

/// The suite's tally and those of the criteria, in the order of [`criteria::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// The suite's own.
    pub suite: Tally,
    /// The criteria's; fewer trials, as they are not asked where the reference is not finite.
    pub criteria: [Tally; CRITERIA],
}

impl Cell {
    /// Counts a trial; `criteria` is `None` where they are not asked.
    pub fn count(&mut self, suite: bool, criteria: Option<[bool; CRITERIA]>) {
        self.suite.count(suite);
        for (tally, hit) in self.criteria.iter_mut().zip(criteria.into_iter().flatten()) {
            tally.count(hit);
        }
    }

    /// Adds another cell's trials.
    pub fn add(&mut self, other: &Cell) {
        self.suite.add(other.suite);
        for (a, b) in self.criteria.iter_mut().zip(other.criteria) {
            a.add(b);
        }
    }
}

/// How a fault fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultRow {
    /// Finding code.
    pub code: String,
    /// Name within the op.
    pub slug: String,
    /// Tells faults of one slug apart.
    pub key: String,
    /// All families together: the suite's detection rate. A trial in which no case shows the fault
    /// counts as missed.
    pub total: Cell,
    /// Trials in which the fault changed no output.
    pub not_shown: usize,
    /// Trials that only the bias test caught.
    pub by_bias: usize,
    /// By family, of the trials in which one of its cases shows the fault.
    pub families: BTreeMap<String, Cell>,
    /// Why there was no trial: no independent subject has the fault.
    pub missing: Option<String>,
    /// Why no case can show the fault, where that is so: legitimate implementations do the same.
    pub coincides: Option<&'static str>,
    /// The trials that were missed, with what repeats them.
    pub missed: Vec<Missed>,
}

/// A missed trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Missed {
    /// Seed of the cases.
    pub seed: u64,
    /// The convention that the fault was put on, empty for the defaults.
    pub convention: String,
    /// How the subject added.
    pub chain: String,
    /// Families whose cases show the fault; none where it changed nothing.
    pub shown: Vec<String>,
}

impl FaultRow {
    /// An empty row.
    pub fn new(id: &FaultId) -> FaultRow {
        FaultRow {
            code: id.code.clone(),
            slug: id.slug.clone(),
            key: id.key.clone(),
            total: Cell::default(),
            not_shown: 0,
            by_bias: 0,
            families: BTreeMap::new(),
            missing: None,
            coincides: None,
            missed: Vec::new(),
        }
    }

    /// The same, with why the fault cannot show on any case of `op`, if it cannot.
    pub fn of(op: &str, id: &FaultId) -> FaultRow {
        let own = |c: &&Coincide| c.op == op && c.slug == id.slug && c.under.is_none();
        FaultRow { coincides: COINCIDE.iter().find(own).map(|c| c.why), ..FaultRow::new(id) }
    }

    /// Adds the trials of another row of the same fault.
    pub fn add(&mut self, other: FaultRow) {
        self.total.add(&other.total);
        self.not_shown += other.not_shown;
        self.by_bias += other.by_bias;
        self.missed.extend(other.missed);
        merge(&mut self.families, other.families);
        self.missing = self.missing.take().or(other.missing);
    }

    /// `k_tail_dropped (tile 32)`.
    pub fn name(&self) -> String {
        match self.key.as_str() {
            "" => self.slug.clone(),
            key => format!("{} ({key})", self.slug),
        }
    }

    /// Whether every trial was caught, and there was one.
    pub fn is_caught(&self) -> bool {
        self.missing.is_none() && self.total.suite.is_all()
    }

    /// Whether the row counts: no case needs to show what legitimate implementations do as well.
    pub fn counts(&self) -> bool {
        self.coincides.is_none() || self.is_caught()
    }
}

/// How a convention's legitimate subjects fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConventionRow {
    /// Its choices, `defaults` for none.
    pub convention: String,
    /// All families together, as a check judges them: hits are false alarms.
    pub total: Cell,
    /// Upper 95 % limit of the suite's false-alarm rate.
    pub upper95: f64,
    /// Runs that passed, but under other conventions only.
    pub misnamed: usize,
    /// Runs with the same bits as another run of the trial: not counted.
    pub repeated: usize,
    /// By family.
    pub families: BTreeMap<String, Cell>,
    /// Why there was no run: no independent subject has the convention.
    pub missing: Option<String>,
}

impl ConventionRow {
    /// An empty row for a panel's label.
    pub fn new(label: &str) -> ConventionRow {
        ConventionRow {
            convention: if label.is_empty() { "defaults".into() } else { label.into() },
            total: Cell::default(),
            upper95: 1.0,
            misnamed: 0,
            repeated: 0,
            families: BTreeMap::new(),
            missing: None,
        }
    }

    /// Adds the runs of another row of the same convention.
    pub fn add(&mut self, other: ConventionRow) {
        self.total.add(&other.total);
        self.misnamed += other.misnamed;
        self.repeated += other.repeated;
        merge(&mut self.families, other.families);
        self.missing = self.missing.take().or(other.missing);
        self.upper95 = self.total.suite.upper95();
    }
}

fn merge(into: &mut BTreeMap<String, Cell>, from: BTreeMap<String, Cell>) {
    for (family, cell) in from {
        into.entry(family).or_default().add(&cell);
    }
}
