//! From a check to the gate and to a replay, through the command line, on the quickest kernel.

use std::path::{Path, PathBuf};

use assay_tests::{cli, golden};
use assay_verify::finding;
use assay_verify::judge::{Judgement, Verdict};
use assay_verify::ledger::{self, Entry, Evidence, Ledger, Limited, Requirements};
use assay_verify::suite::KernelReport;
use serde_json::Value;

const REQUIRED: &str = "[[kernel]]\nname = \"gptq_dequant\"\nbackend = \"emu\"\n";

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn json(run: &cli::Run) -> Value {
    serde_json::from_str(&run.stdout).expect("nothing but JSON")
}

/// The source of a mutant of `gptq_dequant`, as a file.
fn mutant(folder: &Path, name: &str) -> PathBuf {
    let edits = assay_verify::mutants::edits().expect("anchors");
    let edit = edits.iter().find(|e| e.name == format!("gptq_dequant.{name}")).expect("listed");
    let path = folder.join("mutant.hip");
    std::fs::write(&path, &edit.source).expect("a file");
    path
}

/// What a check that passed appends for the built-in kernel, without the minute of checking.
fn passed(ledger_file: &Path) {
    let kernel = assay_hip::kernel("gptq_dequant").expect("a kernel");
    let mut judgement = Judgement::skipped("");
    judgement.verdict = Verdict::Pass {
        conventions: vec!["defaults".into()],
        unseen_faults: Vec::new(),
        indistinct: Vec::new(),
        fault_pairs: Vec::new(),
    };
    let report = KernelReport {
        kernel: kernel.name.into(),
        op: kernel.op.into(),
        cases: 0,
        outside: Vec::new(),
        evidence: Evidence::default(),
        judgement,
    };
    let identity =
        ledger::emulated(kernel, kernel.source, assay_hip::Matrix::None).expect("compiles");
    ledger::append(ledger_file, Entry::of(&report, identity, 1)).expect("appended");
}

#[test]
fn what_passed_is_admitted_until_one_byte_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (ledger, list) = (at("kernels.jsonl"), at("kernels.toml"));
    std::fs::write(&list, REQUIRED).expect("a list");
    let gate = |list: &Path| cli::assay(["gate", text(&ledger), "--require", text(list)]);

    passed(&ledger);
    let run = gate(&list);
    assert_eq!(run.code, 0, "{run:#?}");
    assert!(run.stdout.contains("admitted: all 1 required kernels"), "{run:#?}");
    let report =
        json(&cli::assay(["gate", text(&ledger), "--require", text(&list), "--json", "-"]));
    assert_eq!((&report["command"], &report["result"]), (&"gate".into(), &"pass".into()));
    assert_eq!(report["kernels"][0]["status"], "ok", "{report:#}");

    // One byte of the source that is to serve: its comment's full stop.
    let kernel = assay_hip::kernel("gptq_dequant").expect("a kernel");
    std::fs::write(at("edited.hip"), kernel.source.replacen('.', ";", 1)).expect("a file");
    let own = at("own.toml");
    std::fs::write(&own, format!("{REQUIRED}source = \"edited.hip\"\n")).expect("a list");
    let run = gate(&own);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("stale") && run.stdout.contains("source"), "{run:#?}");

    // A device is another matter, even where there is none.
    let device = at("device.toml");
    std::fs::write(&device, REQUIRED.replace("emu", "hip")).expect("a list");
    let run = gate(&device);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("unknown") || run.stdout.contains("wrong backend"), "{run:#?}");

    // The ledger against itself.
    let run = cli::assay(["gate", "--diff", text(&ledger), text(&ledger)]);
    assert_eq!(run.code, 0, "{run:#?}");
    assert!(run.stdout.contains("0 of 1 kernels changed"), "{run:#?}");

    // Damaged, it is no evidence, and is not written over.
    let mut bytes = std::fs::read(&ledger).expect("the ledger");
    bytes.truncate(bytes.len() - 1);
    std::fs::write(&ledger, &bytes).expect("writable");
    let paths = ["gate", text(&ledger), "--require", text(&list)];
    cli::refused(paths, &[text(&ledger), "line 3", "truncated or edited"]);
    let check = ["check", "--kernel", "gptq_dequant", "--ledger", text(&ledger)];
    cli::refused(check, &[text(&ledger), "line 3"]);
    assert_eq!(std::fs::read(&ledger).expect("still there"), bytes);
}

/// A kernel that reads beyond a buffer: found before anything is judged, which is quick.
#[test]
fn a_failing_kernel_is_recorded_saved_and_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let source = mutant(folder.path(), "n_edge_unmasked");
    let (ledger, list, junit) = (at("kernels.jsonl"), at("kernels.toml"), at("junit.xml"));
    let fault = "memory.out_of_bounds_read";
    passed(&ledger);
    let run = cli::assay([
        "check",
        "--kernel",
        "gptq_dequant",
        "--source",
        text(&source),
        "--save",
        text(&at("saved")),
        "--junit",
        text(&junit),
        "--ledger",
        text(&ledger),
    ]);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("1 entries added, 2 in all, head "), "{run:#?}");
    let xml = std::fs::read_to_string(&junit).expect("the report");
    assert!(xml.contains("<testsuite name=\"gptq_dequant\" tests=\"1\" failures=\"1\""), "{xml}");
    assert!(xml.contains(&format!("type=\"A011 {fault}\"")), "{xml}");

    // The failure is that source's; the built-in kernel still has its own evidence.
    std::fs::write(&list, format!("{REQUIRED}source = \"mutant.hip\"\n")).expect("a list");
    let gate = || cli::assay(["gate", text(&ledger), "--require", text(&list)]);
    let run = gate();
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("failed") && run.stdout.contains(fault), "{run:#?}");
    std::fs::write(&list, REQUIRED).expect("a list");
    assert_eq!(gate().code, 0, "{:#?}", gate());

    let file = at("saved").join(format!("gptq_dequant-{fault}.safetensors"));
    for (args, code, said) in [
        (&[][..], 3, "the file holds no output"),
        (&["--rerun"], 1, "as it was saved"),
        (&["--source", text(&source)], 1, "as it was saved"),
        (&["--kernel", "gptq_dequant"], 0, "no finding now"),
    ] {
        let run = cli::assay(["replay", text(&file)].iter().chain(args));
        assert_eq!(run.code, code, "{args:?}: {run:#?}");
        assert!(run.stdout.contains(said), "{args:?}: {run:#?}");
    }
    let report = json(&cli::assay(["replay", text(&file), "--rerun", "--json", "-"]));
    assert_eq!(report["saved_for"], fault);
    assert_eq!(report["kernels"][0]["verdict"]["findings"][0]["name"], fault);
    cli::refused(["replay", text(&file), "--kernel", "gemm_bf16"], &["gemm_bf16", "matmul"]);
    cli::refused(["replay", text(&source)], &["mutant.hip"]);
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ledger, list) = (folder.path().join("l.jsonl"), folder.path().join("kernels.toml"));
    std::fs::write(&ledger, Ledger::new().to_bytes()).expect("a ledger");
    let gate = ["gate", text(&ledger), "--require", text(&list)];
    cli::refused(gate, &[text(&list)]);
    std::fs::write(&list, format!("{REQUIRED}cell = []\n")).expect("a list");
    cli::refused(gate, &[text(&list), "`cell`", "did you mean `cells`?"]);
    std::fs::write(&list, REQUIRED).expect("a list");
    let run = cli::assay(gate);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("missing"), "{run:#?}");
    let none = folder.path().join("none.jsonl");
    cli::refused(["gate", text(&none), "--require", text(&list)], &["assay check --ledger"]);
    for usage in [&["gate"][..], &["gate", text(&ledger)], &["gate", "--diff", text(&ledger)]] {
        assert_eq!(cli::assay(usage).code, 2, "{usage:?}");
    }
}

/// The manual's example is one that the gate reads, and tolerates only faults that exist.
#[test]
fn the_example_list_holds() {
    let list = Requirements::read(&golden::path("../docs/kernels.toml")).expect("a list");
    let names: Vec<&str> = list.kernels.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(names, assay_hip::kernels().iter().map(|k| k.name).collect::<Vec<_>>());
    let known = finding::all_codes();
    for kernel in &list.kernels {
        if let Limited::These(faults) = &kernel.allow_limited {
            for fault in faults {
                assert!(known.iter().any(|(_, name)| name == fault), "{fault}");
            }
        }
    }
}
