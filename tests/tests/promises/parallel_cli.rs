//! `assay run --tp`: a model split over ranks generates the same, and its trace, put together again from
//! the ranks' parts, passes the diff under the convention of that many ranks.

use std::path::Path;

use assay_reference::trace::Trace;
use assay_tests::{cli, golden};
use assay_verify::diff::DiffReport;
use assay_verify::judge::Verdict;

#[track_caller]
fn traced(model: &str, args: &[&str], dir: &Path) -> Trace {
    let checkpoint = golden::path("checkpoints").join(model);
    let mut line = vec!["run".into(), checkpoint.into_os_string()];
    line.extend(["--ids", "7,0,90,31,31,64", "--generate", "3"].map(Into::into));
    line.extend(args.iter().map(Into::into));
    line.extend(["--trace".into(), dir.as_os_str().to_owned()]);
    let out = cli::assay(line);
    assert_eq!(out.code, 0, "{out:#?}");
    Trace::open(dir).expect("a trace")
}

/// The conventions that explain a probe.
#[track_caller]
fn conventions<'r>(report: &'r DiffReport, probe: &str) -> &'r [String] {
    let node = report.nodes.iter().find(|n| n.probe == probe).expect("a probe");
    match &node.judgement.verdict {
        Verdict::Pass { conventions, .. } => conventions,
        other => panic!("{probe}: {other:?}"),
    }
}

#[test]
fn a_trace_of_ranks_is_explained_by_their_number() {
    explained_by_ranks(&[
        ("tiny-qwen3", "2", "f32", "partials=2"),
        ("tiny-qwen3", "4", "stored", "partials=4_stored"),
    ]);
}

#[test]
#[ignore = "half a minute: cargo test -p assay-tests parallel_cli -- --ignored"]
fn a_quantised_trace_of_ranks_is_explained_by_their_number() {
    explained_by_ranks(&[
        ("gptq-qwen3", "2", "f32", "partials=2"),
        ("moe-norm-qwen3", "2", "f32", "partials=2"),
    ]);
}

/// Model, ranks, what their sums are stored in, and the convention that says so.
fn explained_by_ranks(cases: &[(&str, &str, &str, &str)]) {
    for &(model, ranks, sum, convention) in cases {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let args = ["--preset", "transformers-bf16", "--tp", ranks, "--reduce", sum];
        let trace = traced(model, &args, &dir.path().join("trace"));
        let report = golden::diff(&golden::checkpoint(model), &trace);
        assert!(report.findings().is_empty(), "{model} {ranks}: {:?}", report.findings());
        assert_eq!(report.judged(), report.nodes.len(), "{model}: every probe was put together");
        // One process's sum is another: only so many ranks explain these two.
        let moe = model.starts_with("moe");
        let last = if moe { "layers.1.experts" } else { "layers.1.down_proj" };
        for probe in ["layers.0.o_proj", last] {
            let found = conventions(&report, probe);
            // Of two terms there is one sum, whatever is stored after it.
            let names = |choice: &str| match ranks {
                "2" => choice.starts_with(convention),
                _ => choice == convention,
            };
            let all = found.iter().all(|c| c.split(' ').any(names));
            assert!(all && !found.is_empty(), "{model} {ranks} {probe}: {found:?}");
        }
        // What no reduction is split in is as in one process.
        assert_eq!(
            conventions(&report, "layers.0.q_proj").first().map(String::as_str),
            Some(if model == "gptq-qwen3" { "scale=stored" } else { "defaults" })
        );
    }
}

#[test]
fn columns_of_ranks_are_those_of_one_process() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let whole = traced("tiny-qwen2", &[], &dir.path().join("whole"));
    let split = traced("tiny-qwen2", &["--tp", "4"], &dir.path().join("split"));
    // Four ranks, two kv heads: pairs of ranks hold the same one.
    for probe in ["q_proj", "k_proj", "v_proj", "q_rope", "k_rope", "attention"] {
        let probe = format!("layers.0.{probe}");
        assert_eq!(whole.get(&probe), split.get(&probe), "{probe}");
    }
    let names: Vec<&str> = whole.names().collect();
    assert_eq!(names, split.names().collect::<Vec<_>>());
    assert_eq!(whole.manifest().tokens, split.manifest().tokens, "the same generation");
}

#[test]
fn a_model_that_does_not_split_says_why() {
    let model = golden::path("checkpoints/trained-qwen3");
    let line = |ranks: &'static str| {
        let args = ["--ids", "1,2", "--tp", ranks];
        ["run".into(), model.clone().into_os_string()].into_iter().chain(args.map(Into::into))
    };
    cli::refused(line("2").collect::<Vec<_>>(), &["2 ranks", "3 query heads"]);
    cli::refused(line("3").collect::<Vec<_>>(), &["3 ranks", "1, 2, 4 and 8"]);
}
