//! Promises of the ledger and the gate, on entries made by hand and on a real kernel.

mod admission;
mod damage;
mod differences;
mod evidence;
mod probes;
mod writers;

use assay_hip::{BackendKind, Identity};

use super::{Cell, Ended, Entry, Evidence, Ledger, Outcome, Suite};

const OP: &str = "none";

/// A passing entry of an op without a suite, so that its version costs nothing.
fn entry(seed: u64) -> Entry {
    Entry {
        identity: identity(),
        objects: Vec::new(),
        op: OP.into(),
        suite: Suite::of(OP),
        seed,
        cases: 2,
        runs: 6,
        evidence: Evidence {
            families: vec!["unit".into()],
            cells: vec![Cell { name: "g_idx".into(), cases: 2, outputs: Some("0a".into()) }],
            outputs: Some("0b".into()),
        },
        outcome: Outcome {
            result: Ended::Pass,
            conventions: vec!["defaults".into()],
            unseen: Vec::new(),
            findings: Vec::new(),
        },
        date: "2026-11-30T00:00:00Z".into(),
    }
}

fn identity() -> Identity {
    Identity {
        kernel: "gptq_dequant".into(),
        backend: BackendKind::Emu,
        arch: "x86_64".into(),
        source: "source".into(),
        code: "code".into(),
        toolchain: "g++ 12".into(),
        runtime: "emulator".into(),
    }
}

fn ledger(entries: impl IntoIterator<Item = Entry>) -> Ledger {
    let mut ledger = Ledger::new();
    for entry in entries {
        ledger.push(entry, "test".as_ref()).expect("room");
    }
    ledger
}
