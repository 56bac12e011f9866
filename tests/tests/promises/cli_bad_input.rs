//! Requests and traces that make no sense are refused: one paragraph, exit code 2, nothing written.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use assay_tests::damage::{Copy, entries};
use assay_tests::{cli, golden};
use serde_json::json;

fn model(name: &str) -> PathBuf {
    golden::path("checkpoints").join(name)
}

fn trace(name: &str) -> PathBuf {
    golden::path("traces").join(name)
}

/// `assay COMMAND PATHS.. ARGS..`
fn line<P: AsRef<OsStr>>(command: &str, paths: &[P], args: &[&str]) -> Vec<OsString> {
    let mut all = vec![OsString::from(command)];
    all.extend(paths.iter().map(|p| p.as_ref().to_owned()));
    all.extend(args.iter().map(OsString::from));
    all
}

#[test]
fn an_empty_prompt() {
    let model = [model("trained-qwen3")];
    for args in [&["--prompt", ""][..], &[]] {
        cli::refused(line("run", &model, args), &["prompt is empty"]);
    }
}

#[test]
fn text_without_a_tokenizer() {
    cli::refused(line("run", &[model("tiny-qwen3")], &["--prompt", "hi"]), &["tokenizer.json"]);
}

#[test]
fn an_id_beyond_the_vocabulary() {
    for id in ["320", "4294967295"] {
        let args = ["--ids", &format!("1,{id}"), "--generate", "1"];
        cli::refused(line("run", &[model("tiny-qwen3")], &args), &[id, "320", "config.json"]);
    }
}

#[test]
fn a_preset_that_is_not_known() {
    let args = ["--ids", "1", "--preset", "vllm"];
    let named = ["vllm", "oracle-f64", "f32", "transformers-bf16"];
    cli::refused(line("run", &[model("tiny-qwen3")], &args), &named);
}

#[test]
fn a_preset_that_the_basis_cannot_hold() {
    let args = ["--ids", "1", "--basis", "f32", "--preset", "oracle-f64"];
    cli::refused(line("run", &[model("tiny-qwen3")], &args), &["oracle-f64", "f64"]);
}

#[test]
fn no_threads() {
    cli::refused(line::<&str>("list", &[], &["--threads", "0"]), &["--threads"]);
    cli::refused(line("run", &[model("tiny-qwen3")], &["--ids", "1", "--threads", "0"]), &[]);
}

#[test]
fn a_list_of_the_variants_of_no_op() {
    let list = |args: &[&str]| line::<&str>("list", &[], args);
    cli::refused(list(&["variants", "--op", "norm"]), &["--op norm", "rms_norm", "attention"]);
    cli::refused(list(&["ops", "--op", "rms_norm"]), &["--op", "list variants"]);
}

#[test]
fn a_trace_of_another_model() {
    let (qwen2, qwen3) = (model("tiny-qwen2"), model("tiny-qwen3"));
    let t = trace("tiny-qwen3/bf16");
    cli::refused(line("diff", &[&qwen2, &t], &[]), &["manifest.json", "Qwen3", "Qwen2"]);
    // The same architecture with other sizes.
    for other in ["trained-qwen3/bf16", "gptq-qwen3/bf16"] {
        let t = trace(other);
        let run = cli::assay(line("diff", &[&qwen3, &t], &[]));
        assert_eq!(run.code, 2, "{run:#?}");
        cli::refused(line("diff", &[&qwen3, &t], &[]), &[t.to_str().expect("UTF-8")]);
    }
}

#[test]
fn a_folder_that_holds_no_trace() {
    let (m, t) = (model("tiny-qwen3"), trace("tiny-qwen3"));
    cli::refused(line("diff", &[&m, &t], &[]), &["manifest.json"]);
    // The two folders the wrong way round.
    let t = trace("tiny-qwen3/bf16");
    cli::refused(line("diff", &[&t, &m], &[]), &["config.json"]);
}

#[test]
fn a_trace_of_a_version_to_come() {
    let copy = Copy::of("traces/tiny-qwen3/bf16");
    copy.json("manifest.json", |m| m["assay_trace"] = json!(2));
    let line = line("diff", &[model("tiny-qwen3").as_path(), copy.path()], &[]);
    cli::refused(line, &["manifest.json", "version 2", "reads 1"]);
}

#[test]
fn a_trace_that_contradicts_itself() {
    type Edit = fn(&Copy);
    let cases: [(Edit, &[&str]); 6] = [
        (|c| c.json("manifest.json", |m| m["tokens"] = json!([])), &["tokens"]),
        (|c| c.json("manifest.json", |m| m["segments"] = json!([[0, 5], [6, 12]])), &["segments"]),
        (|c| c.json("manifest.json", |m| m["dtype"] = json!("i32")), &["dtype"]),
        (|c| c.json("manifest.json", |m| m["files"] = json!(["../x.safetensors"])), &["files"]),
        (
            |c| c.json("manifest.json", |m| m["probes"]["embed"]["shape"] = json!([12, 191])),
            &["embed", "global.safetensors"],
        ),
        (
            |c| c.bytes("layer-00001.safetensors", |b| b.truncate(b.len() - 2)),
            &["layer-00001.safetensors"],
        ),
    ];
    for (edit, named) in cases {
        let copy = Copy::of("traces/tiny-qwen3/bf16");
        edit(&copy);
        cli::refused(line("diff", &[model("tiny-qwen3").as_path(), copy.path()], &[]), named);
    }
}

#[test]
fn a_report_that_cannot_be_written() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let target = dir.path().join("no/such/folder/report.json");
    let target = target.to_str().expect("UTF-8");
    let paths = [model("tiny-qwen3"), trace("tiny-qwen3/bf16")];
    cli::refused(line("diff", &paths, &["--json", target]), &[target]);
    let check = ["--kernel", "gptq_dequant", "--json", target];
    cli::refused(line::<&str>("check", &[], &check), &[target]);
    assert!(entries(dir.path()).is_empty());
}

#[test]
fn a_trace_folder_that_is_not_empty() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("notes.txt"), "mine").expect("a file");
    let before = entries(dir.path());
    let target = dir.path().to_str().expect("UTF-8");
    let args = ["--ids", "1,2", "--generate", "2", "--trace", target];
    cli::refused(line("run", &[model("tiny-qwen3")], &args), &[target]);
    assert_eq!(entries(dir.path()), before);
}

#[test]
fn a_trace_is_not_begun_for_a_prompt_that_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let target = dir.path().join("trace");
    let args = ["--ids", "1,999", "--trace", target.to_str().expect("UTF-8")];
    cli::refused(line("run", &[model("tiny-qwen3")], &args), &["999"]);
    assert!(entries(dir.path()).is_empty(), "{:?}", entries(dir.path()));
}

#[test]
fn kernels_and_mutants_that_are_not_known() {
    let check = |args: &[&str]| line::<&str>("check", &[], args);
    cli::refused(check(&["--kernel", "gemm"]), &["gemm", "gemm_bf16", "attention_prefill_d128"]);
    cli::refused(check(&["--mutant", "gemm_bf16.nothing"]), &["gemm_bf16.nothing", "list mutants"]);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let source = dir.path().join("kernel.hip");
    std::fs::write(&source, "// empty").expect("a file");
    cli::refused(check(&["--source", source.to_str().expect("UTF-8")]), &["--kernel"]);
    let missing = ["--kernel", "gemm_bf16", "--source", "/no/such/kernel.hip"];
    cli::refused(check(&missing), &["/no/such/kernel.hip"]);
    // A kernel without that build, and a device, where nobody chooses it.
    let build = ["--kernel", "silu_mul", "--matrix", "mmac"];
    cli::refused(check(&build), &["no such build", "assay_matrix.h", "gemm_bf16"]);
    let device = ["--kernel", "gemm_bf16", "--matrix", "mmac", "--backend", "hip"];
    cli::refused(check(&device), &["--matrix", "architecture"]);
}

/// Usage errors are clap's: several lines, but the same exit code and the same silence.
#[test]
fn arguments_that_do_not_parse() {
    for args in
        [&["frobnicate"][..], &["check", "--seed", "x"], &["list", "nothing"], &["diff"], &[]]
    {
        let run = cli::assay(args);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{args:?}: {run:#?}");
        assert!(
            run.stderr.contains("--help") || run.stderr.contains("Usage"),
            "{args:?}: {run:#?}"
        );
    }
}
