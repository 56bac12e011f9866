//! `assay device-probe`: the table, the report, the ledger.

use assay_hip::BackendKind;
use assay_tests::cli;
use assay_verify::ledger::{Ended, Ledger};
use serde_json::Value;

#[test]
fn what_was_measured_is_printed_reported_and_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("units.jsonl");
    let ledger = path.to_str().expect("UTF-8");
    let args = ["device-probe", "--probe", "canary", "--probe", "convert", "--ledger", ledger];
    let run = cli::assay([&args[..], &["--json", "-"]].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON");
    assert_eq!((&report["command"], &report["result"]), (&"device_probe".into(), &"pass".into()));
    let readings = report["probes"][0]["readings"].as_array().expect("readings");
    assert!(readings.iter().any(|r| r["what"] == "f32_to_bf16.own"), "{readings:?}");
    assert!(run.stderr.contains("they say nothing of a device"), "{}", run.stderr);

    // Entries of their own name and op: nobody launches a kernel on the strength of them.
    let kept = Ledger::read(&path).expect("a ledger");
    let names: Vec<&str> = kept.entries().iter().map(|e| e.identity.kernel.as_str()).collect();
    assert_eq!(names, ["probe.convert", "probe.canary"]);
    for entry in kept.entries() {
        assert_eq!((entry.op.as_str(), entry.outcome.result), ("probe", Ended::Pass));
        assert_eq!(entry.identity.backend, BackendKind::Emu);
    }
    assert!(kept.entries()[0].outcome.conventions[0].starts_with("f32_to_bf16.own: nearest_even"));

    // Measured again, nothing has changed.
    let other = folder.path().join("again.jsonl");
    let again = other.to_str().expect("UTF-8");
    let run =
        cli::assay(["device-probe", "--probe", "convert", "--probe", "canary", "--ledger", again]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let run = cli::assay(["gate", "--diff", ledger, again]);
    assert_eq!(run.code, 0, "{}", run.stdout);
}

#[test]
fn without_a_device_nothing_is_measured_and_nothing_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("units.jsonl");
    let ledger = path.to_str().expect("UTF-8");
    let run = cli::assay(["device-probe", "--backend", "hip", "--ledger", ledger]);
    if run.code == 3 {
        assert!(run.stdout.contains("skipped: no device"), "{}", run.stdout);
        assert!(run.stdout.contains("nothing could be measured"), "{}", run.stdout);
        assert_eq!(Ledger::read(&path).expect("a ledger").entries().len(), 0);
    } else {
        assert!([0, 1].contains(&run.code), "{}", run.stderr);
    }
    let run = cli::assay(["device-probe", "--probe", "vectors"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("known are vector, convert"), "{}", run.stderr);
    // Once, whatever builds it has.
    assert_eq!(run.stderr.matches("matrix_layout").count(), 1, "{}", run.stderr);
}
