//! `assay check` passes all kernels, and its report depends on the seed alone.

use assay_tests::{cli, golden};
use serde_json::Value;

/// The report of a check without its timings, as text: key order included.
fn report(args: &[&str]) -> String {
    let run = cli::assay(["check", "--json", "-"].iter().chain(args));
    assert_eq!(run.code, 0, "{run:#?}");
    let mut json: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON");
    json.as_object_mut().expect("an object").remove("timings").expect("timings");
    serde_json::to_string_pretty(&json).expect("JSON")
}

/// One kernel stands for all: the suite is the same code for them. Nothing is kept between runs, each in
/// a process of its own.
#[test]
fn the_report_is_the_same_for_any_number_of_threads_and_for_every_run() {
    let args = |threads| ["--seed", "11", "--kernel", "gptq_dequant", "--threads", threads];
    let (one, two) = (report(&args("1")), report(&args("2")));
    assert!(one == two, "1 thread:\n{one}\n2 threads:\n{two}");
}

#[test]
fn all_kernels_pass_under_another_seed_and_are_admitted() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let ledger = dir.path().join("kernels.jsonl");
    let ledger = ledger.to_str().expect("UTF-8");
    let json: Value =
        serde_json::from_str(&report(&["--seed", "7", "--matrix", "none", "--ledger", ledger]))
            .expect("JSON");
    assert_eq!((&json["assay_report"], &json["seed"]), (&1.into(), &7.into()));
    assert_eq!(json["result"], "pass");
    let kernels = json["kernels"].as_array().expect("kernels");
    let names: Vec<&str> = kernels.iter().filter_map(|k| k["kernel"].as_str()).collect();
    assert_eq!(names, assay_hip::kernels().iter().map(|k| k.name).collect::<Vec<_>>());
    for k in kernels {
        assert_eq!(k["verdict"]["kind"], "pass", "{k:#}");
        // Raw scores of 9e4 leave the softmax uncertain in f32, and the report says so.
        let uncertain = k["ill_conditioned"].as_array().expect("an array");
        assert!(uncertain.iter().all(|c| c.to_string().contains("key bias")), "{k:#}");
        assert!(k["runs"].as_u64() > k["cases"].as_u64(), "{k:#}");
    }
    // What the manual's example requires is there.
    let list = golden::path("../docs/kernels.toml");
    let gate = cli::assay(["gate", ledger, "--require", list.to_str().expect("UTF-8")]);
    assert_eq!(gate.code, 0, "{gate:#?}");
}

/// A build is a row of its own, with its convention. Quick, and of one family: that both store the same
/// bits is a test of the kernels' crate.
#[test]
fn builds_with_matrix_instructions_pass_with_their_conventions() {
    let json: Value =
        serde_json::from_str(&report(&["--quick", "--matrix", "mmac"])).expect("JSON");
    let of = |k: &Value| {
        let first = &k["verdict"]["conventions"][0];
        [&k["kernel"], first].map(|text| text.as_str().expect("a string").to_string())
    };
    let rows: Vec<_> = json["kernels"].as_array().expect("kernels").iter().map(of).collect();
    let expected =
        [["gemm_bf16 [mmac]", "defaults"], ["attention_prefill_d128 [mmac]", "probs=online_64"]];
    assert_eq!(rows, expected);
}

#[test]
fn another_seed_draws_other_cases() {
    let inputs = |seed| -> Vec<_> {
        let cases = assay_verify::families::cases("matmul", seed);
        cases.into_iter().map(|g| g.case.tensors).collect()
    };
    assert!(inputs(7) == inputs(7));
    assert!(inputs(7) != inputs(8));
}

/// The exit code of a broken kernel is 1 and the name is right, through the whole command line.
#[test]
fn a_mutant_exits_with_0_when_caught_and_its_source_with_1() {
    let listed = cli::assay(["list", "mutants"]).stdout;
    let line = listed.lines().find(|l| l.contains("zero_without_plus_one")).expect("a mutant");
    let name = line.split_whitespace().next().expect("a name");
    let caught = cli::assay(["check", "--mutant", name]);
    assert_eq!(caught.code, 0, "{caught:#?}");
    assert!(caught.stdout.contains("gptq_dequant.zero_without_plus_one"), "{caught:#?}");
    // The same source given as a user's own kernel is a finding.
    let edits = assay_verify::mutants::edits().expect("anchors");
    let edit = edits.iter().find(|e| e.name == name).expect("listed");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("kernel.hip");
    std::fs::write(&file, &edit.source).expect("a file");
    let file = file.to_str().expect("UTF-8");
    let run = cli::assay(["check", "--kernel", "gptq_dequant", "--source", file]);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("gptq_dequant.zero_without_plus_one"), "{run:#?}");
}
