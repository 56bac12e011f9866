//! A program as subject, through the command line: what is right passes, what is wrong has a name, and
//! nothing that a child does blocks, or outlives, the run.

use std::path::Path;
use std::time::{Duration, Instant};

use assay_tests::cli;
use assay_verify::ledger::{Ledger, Requirements, survey};
use serde_json::Value;

const CHILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/exec_child.py");

/// `assay exec FLAGS -- python3 CHILD WORDS`.
fn exec(flags: &str, words: &[&str]) -> cli::Run {
    let head = ["exec"].into_iter().chain(flags.split_whitespace());
    cli::assay(head.chain(["--", "python3", CHILD]).chain(words.iter().copied()))
}

const ADD: &str = "--op add --dtype bf16 --quick";

#[test]
fn right_results_pass_in_every_dtype() {
    let run = exec("--quick --json -", &["right"]);
    assert_eq!(run.code, 0, "{run:#?}");
    let json: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON");
    assert_eq!((&json["command"], &json["program"]["name"]), (&"exec".into(), &"child".into()));
    let kernels = json["kernels"].as_array().expect("kernels");
    let names: Vec<&str> = kernels.iter().filter_map(|k| k["kernel"].as_str()).collect();
    let ops = ["add", "argmax"];
    let all = ops.iter().flat_map(|op| ["bf16", "f16", "f32"].map(|d| format!("child/{op}/{d}")));
    assert_eq!(names, all.collect::<Vec<_>>());
    for kernel in kernels {
        assert_eq!(kernel["verdict"]["conventions"][0], "defaults", "{kernel}");
        assert!(kernel["cases"].as_u64() > Some(0), "{kernel}");
    }
}

#[test]
fn a_wrong_operand_has_its_name_and_its_case_is_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let save = folder.path().to_str().expect("UTF-8");
    let run = exec(&format!("{ADD} --save {save}"), &["block_dropped"]);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("add.block_dropped"), "{run:#?}");
    let saved = folder.path().join("child-add-bf16-add.block_dropped.safetensors");
    let replay = cli::assay(["replay".as_ref(), saved.as_os_str()]);
    assert_eq!(replay.code, 1, "{replay:#?}");
    assert!(replay.stdout.contains("as it was saved"), "{replay:#?}");
}

/// What a child does wrong, and how it is called. Each with the case, and the run goes on or gives up.
#[test]
fn what_a_child_does_wrong_has_a_name() {
    for (mode, name, said) in [
        ("crash", "A481 exec.crashed", &["special", "signal 11 (SIGSEGV)", "| about to fall"][..]),
        ("crash_always", "A481 exec.crashed", &["given up: ", "more cases: "]),
        ("half", "A481 exec.crashed", &["exited with status 0, after", "bytes of a frame"]),
        ("deaf", "A482 exec.hang", &["no answer within 0.6 s"]),
        ("text", "A483 exec.bad_frame", &["special", "\"Tracebac\" (54 72 61 63 65 62 61 63)"]),
        ("wrong_id", "A483 exec.bad_frame", &["an answer to case 2, where 1 was asked"]),
        ("shape", "A484 exec.wrong_shape", &["`out.output`: expected shape ["]),
        ("dtype", "A485 exec.wrong_dtype", &["`out.output`: expected bf16, got f32"]),
        ("missing", "A486 exec.missing_output", &["`out.output` is missing", "there are: sum"]),
        ("more", "A487 exec.unknown_output", &["`out.residual` is no output of add"]),
        ("raises", "A488 exec.failed", &["special", "ValueError: out of luck"]),
        ("dead", "A480 exec.not_started", &["status 1", "| exec_child.py: this library"]),
        ("alternating", "A006 not_deterministic", &["asked twice, 1 of", "differ, the first at 0"]),
    ] {
        // Only what is waited for in vain has a short limit: a machine may be busy.
        let limit = if mode == "deaf" { 0.6 } else { 60.0 };
        let run = exec(&format!("{ADD} --timeout {limit}"), &[mode]);
        assert_eq!(run.code, 1, "{mode}: {run:#?}");
        assert!(run.stdout.contains(name), "{mode}: {run:#?}");
        for text in said {
            assert!(run.stdout.contains(text), "{mode}: `{text}` is not said: {run:#?}");
        }
    }
}

#[test]
fn what_says_nothing_of_the_numbers_is_no_pass() {
    let start = Instant::now();
    let run = exec(&format!("{ADD} --start-timeout 0.3"), &["silent"]);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("A480 exec.not_started"), "{run:#?}");
    assert!(start.elapsed() < Duration::from_secs(60));
    for (mode, said) in [
        ("nothing", "none of"),
        ("nothing", "NotImplementedError: only on Sundays"),
        ("no_device", "skipped: the program says: RuntimeError: no device is visible"),
    ] {
        let run = exec(ADD, &[mode]);
        assert_eq!(run.code, 3, "{run:#?}");
        assert!(run.stdout.contains(said), "{mode}: {run:#?}");
    }
    let refused = |flags: &str, words: &[&str], named: &[&str]| {
        let head = ["exec"].into_iter().chain(flags.split_whitespace());
        cli::refused(head.chain(["--"]).chain(words.iter().copied()), named);
    };
    refused("", &["python3", CHILD, "version"], &["version 2", "version 1"]);
    refused("--op matmul", &["python3", CHILD, "right"], &["matmul", "add, argmax"]);
    refused("--op gemm", &["python3", CHILD, "right"], &["gemm", "matmul"]);
    refused("", &["/no/such/program"], &["/no/such/program", "cannot be started"]);
    refused("--timeout 0", &["python3", CHILD, "right"], &["--timeout", "above 0"]);
}

/// The small cases show every fault together. A child that takes some of them has passed those alone, and what these
/// cannot see is said: sums of small integers are the same in f16.
#[test]
fn a_child_that_takes_few_of_the_small_cases_is_no_bare_pass() {
    let run = exec(ADD, &["exact"]);
    assert_eq!(run.code, 0, "{run:#?}");
    assert!(run.stdout.contains("faults that these cases cannot see"), "{run:#?}");
    assert!(run.stdout.contains("add.sum_f16"), "{run:#?}");
    let run = exec(ADD, &["right"]);
    assert!(run.code == 0 && !run.stdout.contains("cannot see"), "{run:#?}");
}

/// A megabyte of standard error a case is read while the answer is awaited.
#[test]
fn a_talkative_child_blocks_nothing() {
    let run = exec(ADD, &["flood"]);
    assert_eq!(run.code, 0, "{run:#?}");
    assert_eq!(run.stderr, "", "not passed on");
}

fn is_gone(pid: &str) -> bool {
    // A zombie that nobody has reaped yet is gone too.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, after)| after.starts_with('Z'))
}

fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A child that hangs is ended with what it started, at its time limit and when assay itself is killed.
#[test]
fn nothing_is_left_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let pid_in = |path: &str| {
        within("a pid", || std::fs::read_to_string(path).ok().filter(|text| !text.is_empty()))
    };
    let pid = file("hang");
    let run = exec(&format!("{ADD} --timeout 0.6"), &["hang", &pid]);
    assert_eq!(run.code, 1, "{run:#?}");
    assert!(run.stdout.contains("A482 exec.hang"), "{run:#?}");
    let left = pid_in(&pid);
    within("the end of what a hanging child started", || is_gone(&left).then_some(()));

    let pid = file("killed");
    let mut assay = std::process::Command::new(cli::binary())
        .args(["exec", "--op", "add", "--dtype", "bf16", "--quick", "--"])
        .args(["python3", CHILD, "hang", &pid])
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("assay starts");
    let left = pid_in(&pid);
    assay.kill().expect("killed");
    assay.wait().expect("ended");
    within("the end of what was started, after assay was killed", || is_gone(&left).then_some(()));
}

#[test]
fn a_ledger_knows_a_program_by_what_it_maps_and_admits_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let file = at("kernels.jsonl");
    let run = exec(&format!("--op argmax --dtype f32 --ledger {file}"), &["right"]);
    assert_eq!(run.code, 0, "{run:#?}");
    let ledger = Ledger::read(Path::new(&file)).expect("a ledger");
    let entry = &ledger.entries()[0];
    assert_eq!(entry.identity.kernel, "child/argmax/f32");
    let python = entry.objects.iter().find(|o| o.path.to_string_lossy().contains("python"));
    let python = python.expect("the interpreter is mapped");
    let requirement = |backend: &str, more: &str| {
        let text =
            format!("[[kernel]]\nname = \"child/argmax/f32\"\nbackend = \"{backend}\"\n{more}");
        Requirements::parse(&text)
    };
    let limited = format!("allow_limited = true\nobjects = [{:?}]\n", python.path);
    let list = requirement("process", &limited).expect("a list");
    let decision = survey(&ledger, &list).expect("decided").remove(0);
    assert_eq!(decision.status.word(), "ok", "{decision:?}");
    // Another library is another program; and no kernel of this project can have such a name.
    let other = requirement("process", &format!("allow_limited = true\nobjects = [{CHILD:?}]\n"));
    let decision = survey(&ledger, &other.expect("a list")).expect("decided").remove(0);
    assert_eq!(decision.status.word(), "stale", "{decision:?}");
    assert!(requirement("emu", "").is_err() && requirement("hip", "").is_err());
}

/// What torch on the CPU and gptqmodel do, with the conventions by which they are explained. `ASSAY_TORCH_PYTHON` and
/// `ASSAY_GPTQ_PYTHON` are interpreters that have them.
///
/// Two instruction-set limits make torch's arithmetic what its other paths are: oneDNN without bf16 instructions, which
/// read subnormal numbers as 0, and ATen without the vector exp of its fused attention, which is good for 13 bits
/// (docs/runs/exec-2026-11-30.md).
#[test]
#[ignore = "needs torch and gptqmodel; ASSAY_TORCH_PYTHON=... ASSAY_GPTQ_PYTHON=... cargo test -p assay-tests --test \
            promises torch_and_gptqmodel -- --ignored"]
fn torch_and_gptqmodel_pass_with_their_conventions() {
    let python = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../verify/python");
    let (torch, gptq) = (python("ASSAY_TORCH_PYTHON"), python("ASSAY_GPTQ_PYTHON"));
    let of = "-m assay_taps.exec --with torch --op";
    for (flags, python, words, limit, convention) in [
        (
            "--dtype bf16",
            &torch,
            format!("{of} matmul"),
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE",
            "defaults",
        ),
        ("--dtype f32", &torch, format!("{of} matmul"), "", "defaults"),
        ("--dtype bf16", &torch, format!("{of} rms_norm"), "", "defaults"),
        ("--dtype f32", &torch, format!("{of} rms_norm"), "", "defaults"),
        ("--dtype bf16", &torch, format!("{of} softmax"), "", "defaults"),
        ("--dtype f32", &torch, format!("{of} softmax"), "", "defaults"),
        ("--dtype bf16", &torch, format!("{of} rope"), "", "table=stored product=stored"),
        ("--dtype f32", &torch, format!("{of} rope"), "", "defaults"),
        ("--dtype bf16", &torch, format!("{of} silu_mul"), "", "silu=stored"),
        ("--dtype f32", &torch, format!("{of} silu_mul"), "", "defaults"),
        (
            "--dtype bf16 --framework",
            &torch,
            format!("{of} attention --function eager"),
            "",
            "probs=normalised scores=stored masked=filled",
        ),
        (
            "--dtype f32 --framework",
            &torch,
            format!("{of} attention --function sdpa"),
            "",
            "masked=added",
        ),
        (
            "--dtype bf16 --framework",
            &gptq,
            "-m assay_taps.exec --with gptqmodel --op gptq_dequant".into(),
            "",
            "scale=stored wrap=word",
        ),
    ] {
        let mut command = std::process::Command::new(cli::binary());
        command.args(["exec", "--quick", "--json", "-"]).args(flags.split_whitespace());
        command.arg("--").arg(python).args(words.split_whitespace()).env("PYTHONPATH", package);
        command.envs(limit.split_once('='));
        let out = command.output().expect("assay starts");
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(0), "{flags} {words}: {text}");
        let json: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let verdict = &json["kernels"][0]["verdict"];
        assert_eq!(verdict["conventions"][0], convention, "{flags} {words}: {text}");
    }
}
