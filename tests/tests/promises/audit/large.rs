//! Only headers are read: a sparse checkpoint of Qwen3-32B's shape, 65 GB, takes seconds and little memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use assay_tests::cli;
use serde_json::{Value, json};

/// The checkpoint, with a config that calls it a Qwen2 and lost its head_dim; gives its size.
fn qwen3_32b(dir: &Path) -> u64 {
    let place = dir.to_str().expect("UTF-8");
    let run = cli::assay(["make-model", "Qwen3-32B", place, "--sparse", "--json", "-"]);
    assert_eq!(run.code, 0, "{run:#?}");
    let made: Value = serde_json::from_str(&run.stdout).expect("JSON");
    let file = dir.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&fs::read(&file).expect("a config")).expect("JSON");
    config["architectures"] = json!(["Qwen2ForCausalLM"]);
    config["model_type"] = json!("qwen2");
    config.as_object_mut().expect("an object").remove("head_dim");
    fs::write(&file, config.to_string()).expect("written");
    made["bytes"].as_u64().expect("bytes")
}

#[test]
fn sixty_five_gigabytes_in_seconds_and_below_200_megabytes() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("Qwen3-32B");
    let total = qwen3_32b(&dir);
    assert!(total > 60_000_000_000, "{total}");
    let binary = cli::binary();
    let start = Instant::now();
    let written = place.path().join("report.json");
    let mut command = Command::new(binary);
    command.arg("audit").arg(&dir).arg("--json").arg(&written);
    let (code, most) = cli::watched(command.stdout(Stdio::null()).stderr(Stdio::null()));
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(code, 1);
    let report = fs::read(&written).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    assert!(most > 0 && most < 200 * 1024, "{most} KiB");
    let findings = report["findings"].as_array().expect("findings");
    let mut codes: Vec<&str> = findings.iter().filter_map(|f| f["code"].as_str()).collect();
    codes.dedup();
    // The files were reserved and never written; the config lost its head_dim, as somebody's did.
    assert_eq!(codes, ["A40A", "A430", "A431"], "{findings:#?}");
    let text = report.to_string();
    for part in ["5120 / 64 = 80", "8192 rows = 64 heads x 128"] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(report["parameters"], 32_762_123_264u64);
    eprintln!("{total} bytes: {seconds:.2} s, {most} KiB");
}
