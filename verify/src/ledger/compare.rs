//! Two ledgers: what changed, as after an upgrade of the driver or the compiler.

use assay_hip::BackendKind;
use serde::Serialize;

use super::{Entry, Ledger, PROBE_OP};

/// One difference between two entries of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// `bits`, `convention`, `verdict`, `presence`, `evidence`.
    pub what: &'static str,
    /// How it was.
    pub old: String,
    /// How it is.
    pub new: String,
}

/// A kernel in two ledgers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Kernel name.
    pub kernel: String,
    /// Where it runs.
    pub backend: BackendKind,
    /// On what.
    pub arch: String,
    /// What it computes otherwise; empty when nothing.
    pub changes: Vec<Change>,
    /// What may be the cause: `source`, `code`, `toolchain`, `runtime`, with both values. No change by
    /// itself.
    pub causes: Vec<Change>,
}

impl Comparison {
    /// Whether the kernel behaves otherwise, or that cannot be told.
    pub fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }
}

/// Compares the latest entries of every kernel, backend and architecture; of an entry in `old`, with the
/// latest in `new` of the same seed, or else the latest.
pub fn compare(old: &Ledger, new: &Ledger) -> Vec<Comparison> {
    let mut keys: Vec<_> = old.entries().iter().chain(new.entries()).map(Entry::key).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .map(|key| {
            let of = |ledger: &'_ Ledger| -> Vec<Entry> {
                ledger.entries().iter().filter(|e| e.key() == key).cloned().collect()
            };
            let (before, after) = (of(old), of(new));
            let was = before.last();
            let is = was
                .and_then(|was| after.iter().rfind(|e| e.seed == was.seed && e.suite == was.suite))
                .or(after.last());
            let (changes, causes) = match (was, is) {
                (Some(was), Some(is)) => (changes(was, is), causes(was, is)),
                (was, is) => {
                    let word = |e: Option<&Entry>| {
                        e.map_or("not recorded".to_string(), |e| e.outcome.word().into())
                    };
                    let presence = Change { what: "presence", old: word(was), new: word(is) };
                    (vec![presence], Vec::new())
                }
            };
            Comparison { kernel: key.0.into(), backend: key.1, arch: key.2.into(), changes, causes }
        })
        .collect()
}

fn change(what: &'static str, old: &str, new: &str) -> Option<Change> {
    (old != new).then(|| Change { what, old: old.into(), new: new.into() })
}

fn changes(was: &Entry, is: &Entry) -> Vec<Change> {
    let mut out = Vec::new();
    out.extend(change("verdict", was.outcome.word(), is.outcome.word()));
    if was.op == PROBE_OP && is.op == PROBE_OP {
        // Of a probe the conventions are readings, one beside the other.
        let other = |a: &Entry, b: &Entry| -> String {
            let of_b = &b.outcome.conventions;
            let alone = a.outcome.conventions.iter().filter(|reading| !of_b.contains(reading));
            alone.cloned().collect::<Vec<_>>().join("; ")
        };
        out.extend(change("convention", &other(was, is), &other(is, was)));
    } else {
        let convention = |e: &Entry| e.outcome.conventions.join(" = ");
        out.extend(change("convention", &convention(was), &convention(is)));
    }
    if (was.seed, &was.suite) != (is.seed, &is.suite) {
        // Other cases give other bits: nothing follows from that.
        let on = |e: &Entry| format!("seed {}, suite {} {}", e.seed, e.suite.assay, e.suite.cases);
        out.push(Change { what: "evidence", old: on(was), new: on(is) });
        return out;
    }
    for cell in &was.evidence.cells {
        let now = is.evidence.cells.iter().find(|c| c.name == cell.name);
        let word = |sha: Option<&String>| sha.map_or("none".into(), |s| short(s));
        let (a, b) = (cell.outputs.as_ref(), now.and_then(|c| c.outputs.as_ref()));
        if a != b {
            out.push(Change {
                what: "bits",
                old: format!("{}: {}", cell.name, word(a)),
                new: format!("{}: {}", cell.name, word(b)),
            });
        }
    }
    // The order of cases over cells may differ, or a cell be new.
    if was.evidence.outputs != is.evidence.outputs && !out.iter().any(|c| c.what == "bits") {
        let word = |e: &Entry| e.evidence.outputs.as_ref().map_or("none".into(), |s| short(s));
        out.push(Change { what: "bits", old: word(was), new: word(is) });
    }
    out
}

fn causes(was: &Entry, is: &Entry) -> Vec<Change> {
    let (a, b) = (&was.identity, &is.identity);
    [
        change("source", &short(&a.source), &short(&b.source)),
        change("code", &short(&a.code), &short(&b.code)),
        change("toolchain", &a.toolchain, &b.toolchain),
        change("runtime", &a.runtime, &b.runtime),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Enough of a hash to tell two apart by eye.
fn short(sha256: &str) -> String {
    sha256.chars().take(12).collect()
}
