//! Exit codes, JSON and help: what scripts rely on.

use assay_tests::{cli, golden};
use serde_json::Value;

fn diff(trace: &str, checkpoint: &str, args: &[&str]) -> cli::Run {
    let (model, trace) =
        (golden::path("checkpoints").join(checkpoint), golden::path("traces").join(trace));
    let paths = ["diff".as_ref(), model.as_os_str(), trace.as_os_str()];
    cli::assay(paths.into_iter().chain(args.iter().map(AsRef::as_ref)))
}

#[test]
fn a_sound_trace_exits_0_and_a_faulty_one_exits_1() {
    let good = diff("tiny-qwen3/f32", "tiny-qwen3", &[]);
    assert_eq!(good.code, 0, "{good:#?}");
    assert!(good.stdout.contains("37 of 37 ops pass"), "{good:#?}");
    let bad = diff("faults/fault-13", "tiny-qwen3", &[]);
    assert_eq!(bad.code, 1, "{bad:#?}");
    assert!(bad.stdout.contains("matmul.gain"), "{bad:#?}");
    for run in [good, bad] {
        assert_eq!(run.stderr, "", "nothing but results when no one is watching");
    }
}

#[test]
fn json_on_standard_output_stands_alone() {
    for (trace, code, result) in [("tiny-qwen3/f32", 0, "pass"), ("faults/fault-13", 1, "findings")]
    {
        let run = diff(trace, "tiny-qwen3", &["--json", "-"]);
        assert_eq!(run.code, code, "{run:#?}");
        let json: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON");
        assert_eq!(json["assay_report"], 1);
        assert_eq!(json["command"], "diff");
        assert_eq!(json["result"], result);
        assert_eq!(json["nodes"].as_array().map(Vec::len), Some(37));
        assert!(run.stderr.contains("of 37 ops pass"), "the text for people: {run:#?}");
    }
}

#[test]
fn json_in_a_file_is_the_json_on_standard_output() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("report.json");
    let run = diff("faults/fault-13", "tiny-qwen3", &["--json", file.to_str().expect("UTF-8")]);
    assert_eq!(run.code, 1, "{run:#?}");
    let read = |text: &str| {
        let mut json: Value = serde_json::from_str(text).expect("JSON");
        json.as_object_mut().expect("an object").remove("timings");
        json
    };
    let written = read(&std::fs::read_to_string(&file).expect("the report"));
    assert_eq!(written, read(&diff("faults/fault-13", "tiny-qwen3", &["--json", "-"]).stdout));
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 1, "nothing else");
}

/// The finding is named in the JSON with its stable code, at its probe.
#[test]
fn json_names_the_fault_by_its_stable_code() {
    let run = diff("faults/fault-13", "tiny-qwen3", &["--json", "-"]);
    let json: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON");
    let nodes = json["nodes"].as_array().expect("nodes");
    let failing: Vec<&Value> = nodes.iter().filter(|n| n["verdict"]["kind"] != "pass").collect();
    assert_eq!(failing.len(), 1);
    assert_eq!(failing[0]["probe"], "layers.0.o_proj");
    let finding = &failing[0]["verdict"]["findings"][0];
    assert_eq!((&finding["code"], &finding["name"]), (&"A115".into(), &"matmul.gain".into()));
}

#[test]
fn every_command_has_help() {
    for args in [&["--help"][..], &["help"]] {
        let run = cli::assay(args);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:#?}");
        assert!(run.stdout.contains("Exit codes"), "{run:#?}");
    }
    for command in [
        "audit",
        "doctor",
        "device-probe",
        "template",
        "check",
        "exec",
        "run",
        "diff",
        "gate",
        "replay",
        "list",
    ] {
        for flag in ["--help", "-h"] {
            let run = cli::assay([command, flag]);
            assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{command}: {run:#?}");
            assert!(run.stdout.contains("Usage: assay"), "{command}: {run:#?}");
            assert!(run.stdout.contains("--threads"), "{command}: {run:#?}");
        }
    }
    let version = cli::assay(["--version"]);
    assert_eq!(version.code, 0);
    assert!(version.stdout.starts_with("assay "), "{version:#?}");
}

#[test]
fn the_presets_are_listed() {
    insta::assert_snapshot!(cli::assay(["list", "presets"]).stdout);
}

#[test]
fn every_list_is_printed() {
    for what in ["kernels", "ops", "variants", "presets", "mutants", "findings"] {
        let run = cli::assay(["list", what]);
        assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{run:#?}");
        assert!(run.stdout.lines().count() > 2, "{run:#?}");
    }
}

/// Text and JSON list the same variants; each has its meaning and its source.
#[test]
fn variants_are_listed_with_their_sources() {
    let run = cli::assay(["list", "variants", "--op", "rms_norm", "--json", "-"]);
    assert_eq!(run.code, 0, "{run:#?}");
    let json: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON");
    assert_eq!((&json["command"], &json["result"]), (&"list".into(), &"pass".into()));
    let rows = json["variants"].as_array().expect("variants");
    assert!(rows.len() > 20 && rows.iter().all(|r| r["op"] == "rms_norm"), "{run:#?}");
    for row in rows {
        let said = |field: &str| row[field].as_str().is_some_and(|text| !text.is_empty());
        assert!(said("description") && said("source"), "{row}");
    }
    let kind = |name: &str| rows.iter().find(|r| r["name"] == name).map(|r| r["kind"].clone());
    assert_eq!(kind("normalised=stored"), Some("convention".into()));
    assert_eq!(kind("half_lanes"), Some("fault".into()));
    // The text is on standard error then.
    assert_eq!(run.stderr.lines().count(), rows.len() + 1, "{run:#?}");
}

/// A run prints its continuation and nothing else; the summary is for people.
#[test]
fn a_run_prints_its_continuation_alone() {
    let model = golden::path("checkpoints/trained-qwen3");
    let args = ["--prompt", "A kernel that is"].map(AsRef::as_ref);
    let run = cli::assay(["run".as_ref(), model.as_os_str()].into_iter().chain(args));
    assert_eq!(run.code, 0, "{run:#?}");
    assert_eq!(run.stdout, " fast and wrong is only wrong.\n");
    assert!(run.stderr.contains("4 prompt tokens"), "{run:#?}");
}
