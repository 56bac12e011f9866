//! Device probes in the ledger: entries of op `probe`, whose conventions are the readings.

use assay_hip::Identity;
use assay_hip::probe::Reading;

use super::{Cell, Ended, Entry, Evidence, Outcome, Suite, time};

/// The op of a probe's entry. No kernel has it, so that such an entry admits none.
pub const OP: &str = "probe";

impl Entry {
    /// The entry for what a probe measured; `identity.kernel` is `probe.NAME`. Each reading is a cell of
    /// its own with the hash of its bits, and a convention `WHAT: READS`.
    pub fn of_probe(readings: &[Reading], identity: Identity) -> Entry {
        let cell = |r: &Reading| Cell {
            name: r.what.clone(),
            cases: 1,
            outputs: Some(assay_hip::sha256(&r.raw)),
        };
        let findings: Vec<String> =
            readings.iter().filter_map(|r| r.finding.map(str::to_owned)).collect();
        let all: Vec<u8> = readings.iter().flat_map(|r| r.raw.iter().copied()).collect();
        Entry {
            identity,
            objects: Vec::new(),
            op: OP.into(),
            suite: Suite::of(OP),
            seed: 0,
            cases: readings.len(),
            runs: readings.len(),
            evidence: Evidence {
                families: vec![OP.into()],
                cells: readings.iter().map(cell).collect(),
                outputs: Some(assay_hip::sha256(all)),
            },
            outcome: Outcome {
                result: if findings.is_empty() { Ended::Pass } else { Ended::Fail },
                conventions: readings.iter().map(|r| format!("{}: {}", r.what, r.reads)).collect(),
                unseen: Vec::new(),
                findings,
            },
            date: time::now(),
        }
    }

    /// The entry for a probe that gave nothing, for the finding of this name.
    pub fn of_failed_probe(finding: &str, identity: Identity) -> Entry {
        let mut entry = Entry::of_probe(&[], identity);
        entry.evidence.outputs = None;
        entry.outcome.result = Ended::Fail;
        entry.outcome.findings.push(finding.into());
        entry
    }
}
