//! `assay audit` names what is wrong with a damaged checkpoint, and nothing with a sound one; two faults do not hide
//! one another; headers alone are read.

mod config;
mod files;
mod large;
mod quant;
mod text;

use std::collections::BTreeSet;
use std::path::Path;

use assay_tests::damage::Copy;
use assay_tests::{cli, golden};
use assay_verify::audit::{Audit, Options, audit};

const FILE: &str = "model.safetensors";

fn look(dir: &Path, options: Options) -> Audit {
    audit(dir, options, &mut |_, _, _| {}).expect("a checkpoint's folder")
}

/// A damaged copy has exactly these findings; their text together says each of `said`.
#[track_caller]
fn found_with(copy: &Path, options: Options, codes: &[&str], said: &[&str]) {
    let report = look(copy, options);
    let found: BTreeSet<&str> = report.findings.iter().map(|f| f.code).collect();
    let expected: BTreeSet<&str> = codes.iter().copied().collect();
    assert_eq!(found, expected, "{:#?}", report.findings);
    let text: String =
        report.findings.iter().map(|f| format!("{}: {}\n", f.r#where, f.what)).collect();
    for part in said {
        assert!(text.contains(part), "`{part}` is not said:\n{text}");
    }
    for f in &report.findings {
        let sentences = [f.why, f.served, f.advice];
        assert!(sentences.iter().all(|s| s.len() > 4), "{}: {sentences:?}", f.code);
    }
}

#[track_caller]
fn found(copy: &Copy, codes: &[&str], said: &[&str]) {
    found_with(copy.path(), Options::default(), codes, said);
}

#[track_caller]
fn found_in_data(copy: &Copy, codes: &[&str], said: &[&str]) {
    found_with(copy.path(), Options { data: true, hash: false }, codes, said);
}

fn qwen2() -> Copy {
    Copy::of("checkpoints/tiny-qwen2")
}

fn qwen3() -> Copy {
    Copy::of("checkpoints/tiny-qwen3")
}

#[test]
fn sound_checkpoints_have_no_finding() {
    let mut seen = 0;
    for entry in std::fs::read_dir(golden::path("checkpoints")).expect("golden checkpoints") {
        let report = look(&entry.expect("an entry").path(), Options { data: true, hash: true });
        assert_eq!(report.findings, [], "{}", report.model);
        assert!(report.tensors > 10 && report.parameters > Some(10_000), "{report:#?}");
        assert_eq!(report.hashes.len(), report.shards);
        seen += 1;
    }
    assert!(seen >= 19, "{seen} checkpoints");
}

#[test]
fn the_command_says_what_to_do_and_exits_with_1() {
    let copy = qwen3();
    copy.json("config.json", |c| {
        c["architectures"] = serde_json::json!(["Qwen2ForCausalLM"]);
        c["model_type"] = "qwen2".into();
        c.remove("head_dim");
    });
    let out = copy.path().join("report.json");
    let run =
        cli::assay(["audit".as_ref(), copy.path().as_os_str(), "--json".as_ref(), out.as_os_str()]);
    assert_eq!(run.code, 1, "{run:#?}");
    let first: Vec<&str> = run.stdout.lines().take(24).collect();
    let screen = first.join("\n");
    for part in ["A431 config.head_dim", "192 / 4 = 48", "do:", "served:"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&out).expect("the report")).expect("JSON");
    assert_eq!((&json["command"], &json["result"]), (&"audit".into(), &"findings".into()));
    assert_eq!(json["findings"][1]["code"], "A431");

    let sound = cli::assay(["audit".as_ref(), golden::path("checkpoints/tiny-qwen3").as_os_str()]);
    assert_eq!(sound.code, 0, "{sound:#?}");
    assert!(sound.stdout.contains("nothing found") && sound.stdout.contains("not checked:"));
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let empty = tempfile::tempdir().expect("a folder");
    cli::refused(["audit".as_ref(), empty.path().as_os_str()], &["config.json"]);
    cli::refused(["audit", "/no/such/folder"], &["/no/such/folder"]);
    let file = golden::path("corpus.jsonl");
    cli::refused(["audit".as_ref(), file.as_os_str()], &["corpus.jsonl", "folder"]);
}
