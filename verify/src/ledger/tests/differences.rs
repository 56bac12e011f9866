//! Two ledgers: what a kernel computes otherwise, and what may be the cause.

use super::{entry, ledger};
use crate::ledger::{Entry, compare};

fn changes(old: Entry, new: Entry) -> (Vec<&'static str>, Vec<&'static str>) {
    let mut all = compare(&ledger([old]), &ledger([new]));
    assert_eq!(all.len(), 1);
    let c = all.remove(0);
    let names = |changes: &[crate::ledger::Change]| changes.iter().map(|c| c.what).collect();
    (names(&c.changes), names(&c.causes))
}

#[test]
fn each_kind_of_change_is_told_apart() {
    assert_eq!(changes(entry(1), entry(1)), (vec![], vec![]));
    let edited = |edit: fn(&mut Entry)| {
        let mut e = entry(1);
        edit(&mut e);
        e
    };
    // Another compiler that gives the same bits changed nothing.
    let compiler = edited(|e| {
        e.identity.toolchain = "g++ 13".into();
        e.identity.code = "other".into();
    });
    assert_eq!(changes(entry(1), compiler), (vec![], vec!["code", "toolchain"]));
    let bits = edited(|e| {
        e.evidence.cells[0].outputs = Some("ff".into());
        e.evidence.outputs = Some("fe".into());
    });
    assert_eq!(changes(entry(1), bits).0, ["bits"]);
    let convention = edited(|e| e.outcome.conventions = vec!["weight=stored".into()]);
    assert_eq!(changes(entry(1), convention).0, ["convention"]);
    let failed = edited(|e| {
        e.outcome.result = crate::ledger::Ended::Fail;
        e.outcome.findings = vec!["gptq_dequant.gain".into()];
        e.outcome.conventions.clear();
    });
    assert_eq!(changes(entry(1), failed).0, ["verdict", "convention"]);
}

/// Bits of other cases are not compared: that is said, and is no agreement.
#[test]
fn other_seeds_and_other_suites_are_not_comparable() {
    assert_eq!(changes(entry(1), entry(2)).0, ["evidence"]);
    let mut suite = entry(1);
    suite.suite.cases.push('x');
    assert_eq!(changes(entry(1), suite).0, ["evidence"]);
    // The entry of the same seed is found among others.
    let all = compare(&ledger([entry(1)]), &ledger([entry(1), entry(2)]));
    assert!(!all[0].is_changed(), "{all:?}");
}

#[test]
fn a_kernel_in_one_ledger_only_is_a_change() {
    let all = compare(&ledger([entry(1)]), &ledger([]));
    assert_eq!(all[0].changes[0].what, "presence");
    assert_eq!(all[0].changes[0].new, "not recorded");
    assert!(compare(&ledger([]), &ledger([])).is_empty());
}
