//! `assay bisect --switches --run CMD`, with a shell line as the service.

use assay_tests::cli;
use serde_json::Value;

/// The search with `service` as CMD; its report.
#[track_caller]
fn driven(service: &str, more: &[&str], code: i32) -> Value {
    let args = ["bisect", "--switches", "--json", "-", "--run", service];
    let run = cli::assay(args.iter().chain(more));
    assert_eq!(run.code, code, "{run:#?}");
    serde_json::from_str(&run.stdout).expect("JSON")
}

fn findings(report: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().expect("a text").to_string();
    let all = report["findings"].as_array().expect("an array").iter();
    all.map(|f| (text(&f["name"]), text(&f["where"]))).collect()
}

fn one(name: &str, place: &str) -> (String, String) {
    (name.into(), place.into())
}

#[test]
fn one_guilty_switch_and_two_are_named_in_few_restarts() {
    let report = driven("test $VLLM_HCU_USE_CUSTOM_RMS_NORM = 0", &[], 1);
    assert_eq!(findings(&report), [one("switch.guilty", "VLLM_HCU_USE_CUSTOM_RMS_NORM")]);
    let restarts = report["restarts"].as_array().expect("an array");
    assert!(restarts.len() <= 9, "{} restarts", restarts.len());
    assert_eq!(restarts[0]["on"].as_array().map(Vec::len), Some(0), "it begins with all off");
    // Independent of each other: repairing one leaves the other.
    let two = driven("test $VLLM_HCU_USE_FUSED_RMS_ROPE$VLLM_USE_NN = 00", &[], 1);
    let expected =
        [one("switch.guilty", "VLLM_HCU_USE_FUSED_RMS_ROPE"), one("switch.guilty", "VLLM_USE_NN")];
    assert_eq!(findings(&two), expected);
    let together = driven("test $VLLM_HCU_USE_FUSED_RMS_ROPE$VLLM_USE_NN != 11", &[], 1);
    assert_eq!(
        findings(&together),
        [one("switch.together", "VLLM_HCU_USE_FUSED_RMS_ROPE, VLLM_USE_NN")]
    );
}

#[test]
fn a_guilty_master_hides_its_parts_and_what_no_switch_changes_is_elsewhere() {
    let master = driven("test $VLLM_HCU_USE_CUSTOM_OPS = 0", &[], 1);
    assert_eq!(findings(&master), [one("switch.guilty", "VLLM_HCU_USE_CUSTOM_OPS")]);
    assert!(master["not_testable"].to_string().contains("VLLM_HCU_USE_CUSTOM_RMS_NORM"));
    let always = driven("exit 1", &[], 1);
    assert_eq!(findings(&always)[0].0, "switch.not_among_them");
    assert_eq!(always["restarts"].as_array().map(Vec::len), Some(1));
    assert!(findings(&driven("true", &[], 0)).is_empty());
    // Neither right nor wrong is neither; a restart without an end is stopped.
    assert!(findings(&driven("exit 7", &[], 3)).is_empty());
    driven("sleep 60", &["--restart-timeout", "1"], 3);
}

#[test]
fn a_fault_that_comes_and_goes_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    // Wrong every second time when the kernel is on.
    let line = "test $SGLANG_USE_AITER = 0 && exit 0; f=$COUNTER; if test -e $f; then rm $f; exit 1; else touch $f; fi";
    let line = format!("COUNTER={}/c; {line}", dir.path().display());
    let more = [
        "--engine",
        "sglang",
        "--with",
        "SGLANG_USE_AITER",
        "--with",
        "SGLANG_USE_LIGHTOP",
        "--repeats",
        "2",
    ];
    let report = driven(&line, &more, 1);
    let names: Vec<String> = findings(&report).into_iter().map(|f| f.0).collect();
    assert!(
        names.contains(&"switch.unstable".into()) && names.contains(&"switch.guilty".into()),
        "{names:?}"
    );
}

/// By hand: each call prints the next restart, until the guilty one is named.
#[test]
fn the_next_restart_is_printed_until_the_guilty_switch_is_named() {
    let mut seen: Vec<&str> = Vec::new();
    for _ in 0..12 {
        let states = seen.join(",");
        let mut args = vec!["bisect", "--switches", "--json", "-"];
        if !seen.is_empty() {
            args.extend(["--seen", &states]);
        }
        let run = cli::assay(args);
        let report: Value = serde_json::from_str(&run.stdout).expect("JSON");
        let last = report["restarts"].as_array().and_then(|r| r.last()).expect("a restart").clone();
        if !last["state"].is_null() {
            assert_eq!(run.code, 1, "{run:#?}");
            assert_eq!(findings(&report), [one("switch.guilty", "VLLM_HCU_USE_FUSE_MOE_GATE")]);
            return;
        }
        let on = last["environment"].as_array().expect("variables");
        assert!(run.stderr.contains("export VLLM_USE_NN="), "{run:#?}");
        seen.push(if on.contains(&"VLLM_HCU_USE_FUSE_MOE_GATE=1".into()) {
            "wrong"
        } else {
            "right"
        });
    }
    panic!("not named after {seen:?}");
}
