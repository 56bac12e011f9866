//! Each faulty recording of golden/faults.json ends with exactly the named fault at exactly the
//! faulty probes; the ops that only inherit its consequences pass.

use assay_reference::trace::Trace;
use assay_tests::damage::Copy;
use assay_tests::golden;
use assay_verify::diff::DiffReport;
use serde_json::{Value, json};

fn strings(v: &Value) -> Vec<&str> {
    v.as_array().expect("an array").iter().map(|s| s.as_str().expect("a string")).collect()
}

fn catalogue() -> Vec<Value> {
    let all = golden::json("faults.json");
    let faults = all["faults"].as_array().expect("faults").clone();
    assert_eq!(faults.len(), 16);
    faults
}

fn diff(fault: &Value) -> DiffReport {
    let checkpoint = golden::checkpoint(fault["checkpoint"].as_str().expect("a name"));
    let trace = golden::trace(&format!("faults/{}", fault["name"].as_str().expect("a name")));
    golden::diff(&checkpoint, &trace)
}

/// Exactly the expected probes carry exactly the expected fault, and all others pass.
fn check(kind: &str) {
    let mut wrong = Vec::new();
    for fault in catalogue().iter().filter(|f| f["kind"] == kind) {
        let report = diff(fault);
        let name = fault["expected_fault"].as_str().expect("a name");
        let expected: Vec<(&str, &str)> =
            strings(&fault["expected_probes"]).into_iter().map(|p| (p, name)).collect();
        let findings = report.findings();
        let found: Vec<(&str, &str)> =
            findings.iter().map(|(probe, f)| (*probe, f.name.as_str())).collect();
        let passed = report.nodes.iter().filter(|n| n.judgement.verdict.is_pass()).count();
        if found != expected || passed + expected.len() != report.nodes.len() {
            wrong.push(format!("{}: expected {expected:?}, found {findings:#?}", fault["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_fault_in_one_op_is_named_there_and_nowhere_else() {
    check("patched");
}

#[test]
fn a_recording_altered_afterwards_is_reported_as_inconsistent_there_and_nowhere_else() {
    check("edited");
}

/// What the text says of a parameter that the judge had to find or solve for.
#[test]
fn the_text_gives_the_parameter() {
    for (name, part) in [
        ("fault-05", "eps is 1e-5 instead of 1e-6"),
        ("fault-06", "1/sqrt(48)"),
        ("fault-08", "theta is 10000 instead of 1000000"),
        ("fault-10", "terms 256..320"),
        ("fault-13", "multiplied by 1.02"),
    ] {
        let faults = catalogue();
        let fault = faults.iter().find(|f| f["name"] == name).expect("a known fault");
        let report = diff(fault);
        for (probe, finding) in report.findings() {
            assert!(finding.text.contains(part), "{name} at {probe}: {}", finding.text);
        }
    }
}

/// Nothing in a faulty trace gives the answer away: the same model, tokens and wording.
#[test]
fn the_traces_say_nothing_about_their_faults() {
    for fault in catalogue() {
        let name = fault["name"].as_str().expect("a name");
        let folder = golden::path("traces/faults").join(name);
        let manifest = std::fs::read_to_string(folder.join("manifest.json")).expect("a manifest");
        let fault = fault["expected_fault"].as_str().expect("a name");
        let slug = fault.split_once('.').map_or("inconsistent", |(_, slug)| slug);
        for word in ["fault", slug, "patched", "edited"] {
            assert!(!manifest.contains(word), "{name}: the manifest says `{word}`");
        }
    }
}

/// The report that people read, whole.
#[test]
fn the_text_of_a_faulty_recording() {
    let fault = catalogue().into_iter().find(|f| f["name"] == "fault-12").expect("fault-12");
    insta::assert_snapshot!(assay_verify::report::text::diff(&diff(&fault), false));
}

/// What the recorder noted is shown, and tensors that ranks held otherwise are findings although rank 0's are right.
#[test]
fn a_recording_of_ranks_that_differ_fails_and_its_notes_are_shown() {
    let copy = Copy::of("traces/tiny-qwen3/bf16");
    copy.json("manifest.json", |m| {
        m.insert("ranks_differ".into(), json!(["layers.0.o_proj"]));
        m.insert("notes".into(), "tensor parallel over 2 ranks".into());
    });
    let trace = Trace::open(copy.path()).expect("a trace");
    let report = golden::diff(&golden::checkpoint("tiny-qwen3"), &trace);
    let found: Vec<(&str, String)> =
        report.findings().into_iter().map(|(probe, f)| (probe, f.code)).collect();
    assert_eq!(found, [("layers.0.o_proj", "A007".to_owned())]);
    let text = assay_verify::report::text::diff(&report, false);
    for said in
        ["A007 ranks_differ", "the trace says: tensor parallel over 2 ranks", "37 of 37 ops pass"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["notes"], "tensor parallel over 2 ranks");
}
