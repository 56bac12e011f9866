//! What one check found about one build of one kernel.

use assay_hip::Identity;
use serde::{Deserialize, Serialize};

use super::{Evidence, MappedObject, Suite, time};
use crate::judge::Verdict;
use crate::suite::KernelReport;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Result {
    /// Every output is explained by a legitimate convention.
    Pass,
    /// Anything else that was verified.
    Fail,
}

/// A verdict as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Pass or not.
    pub result: Result,
    /// Of a pass: the conventions that explain every case, the simplest first.
    pub conventions: Vec<String>,
    /// Of a pass: the catalogued faults that the cases cannot see.
    pub unseen: Vec<String>,
    /// Of a failure: names of the findings, the most telling first.
    pub findings: Vec<String>,
}

impl Outcome {
    /// `None` for a verdict that verified nothing.
    pub fn of(verdict: &Verdict) -> Option<Outcome> {
        let (mut conventions, mut unseen) = (Vec::new(), Vec::new());
        let result = match verdict {
            Verdict::Skipped { .. } => return None,
            Verdict::Pass { .. } => Result::Pass,
            _ => Result::Fail,
        };
        if let Verdict::Pass { conventions: c, unseen_faults, indistinct, .. } = verdict {
            (conventions, unseen) = (c.clone(), [&unseen_faults[..], indistinct].concat());
        }
        let findings = verdict.findings().into_iter().map(|f| f.name).collect();
        Some(Outcome { result, conventions, unseen, findings })
    }

    /// `pass`, or the first finding's name.
    pub fn word(&self) -> &str {
        match self.result {
            Result::Pass => "pass",
            Result::Fail => self.findings.first().map_or("fail", String::as_str),
        }
    }
}

/// One line of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The build.
    pub identity: Identity,
    /// Of a foreign kernel: the shared objects that its process mapped. Empty for others.
    pub objects: Vec<MappedObject>,
    /// The op.
    pub op: String,
    /// What it was checked with.
    pub suite: Suite,
    /// Seed of the cases.
    pub seed: u64,
    /// Cases generated.
    pub cases: usize,
    /// Outputs judged.
    pub runs: usize,
    /// What the check saw.
    pub evidence: Evidence,
    /// What it found.
    pub outcome: Outcome,
    /// When, in UTC. For people: nothing depends on it.
    pub date: String,
}

impl Entry {
    /// The entry for a report, or `None` when nothing was verified.
    pub fn of(report: &KernelReport, identity: Identity, seed: u64) -> Option<Entry> {
        Some(Entry {
            identity,
            objects: Vec::new(),
            op: report.op.clone(),
            suite: Suite::of(&report.op),
            seed,
            cases: report.cases,
            runs: report.judgement.runs,
            evidence: report.evidence.clone(),
            outcome: Outcome::of(&report.judgement.verdict)?,
            date: time::now(),
        })
    }

    /// Whether it is about the same thing: kernel, backend and architecture.
    pub(super) fn key(&self) -> (&str, assay_hip::BackendKind, &str) {
        (&self.identity.kernel, self.identity.backend, &self.identity.arch)
    }
}
