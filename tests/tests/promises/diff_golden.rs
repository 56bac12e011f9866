//! The diff passes every op of a sound recording, names the conventions of the framework that made
//! it, and holds float64 to its own bound.

use std::collections::BTreeMap;

use assay_reference::Dtype;
use assay_tests::golden;
use assay_verify::diff::DiffReport;
use assay_verify::judge::Verdict;

const CHECKPOINTS: [&str; 3] = ["tiny-qwen2", "tiny-qwen3", "trained-qwen3"];

fn report(checkpoint: &str, dtype: &str) -> DiffReport {
    let trace = golden::trace(&format!("{checkpoint}/{dtype}"));
    golden::diff(&golden::checkpoint(checkpoint), &trace)
}

/// Every op was judged and passes; the conventions that explain it, by op and probe.
#[track_caller]
fn conventions(report: &DiffReport) -> BTreeMap<&str, Vec<(&str, &[String])>> {
    let mut out: BTreeMap<&str, Vec<(&str, &[String])>> = BTreeMap::new();
    for n in &report.nodes {
        let Verdict::Pass { conventions, .. } = &n.judgement.verdict else {
            panic!("{}: {:?}", n.probe, n.judgement.verdict);
        };
        assert!(n.judgement.worst <= 1.0, "{}: {}", n.probe, n.judgement.worst);
        assert!(n.judgement.elements > 0, "{}: nothing was compared", n.probe);
        out.entry(&n.op).or_default().push((&n.probe, conventions));
    }
    out
}

/// Every op of the forward is there: nothing passes by being left out.
#[track_caller]
fn complete(report: &DiffReport, checkpoint: &str) {
    let per_layer = if checkpoint.ends_with("qwen2") { 15 } else { 17 };
    assert_eq!(report.nodes.len(), 2 * per_layer + 3, "{checkpoint}");
    assert_eq!(report.judged(), report.nodes.len(), "{checkpoint}");
}

/// Whether an op's every probe is explained by `convention`, which may coincide with others there.
#[track_caller]
fn every_probe_allows(of: &BTreeMap<&str, Vec<(&str, &[String])>>, op: &str, convention: &str) {
    for (probe, conventions) in &of[op] {
        assert!(conventions.iter().any(|c| c == convention), "{probe}: {conventions:?}");
    }
}

/// Whether `convention` explains all of the op's probes, and nothing that lacks one of its choices
/// does.
#[track_caller]
fn decided(of: &BTreeMap<&str, Vec<(&str, &[String])>>, op: &str, convention: &str) {
    every_probe_allows(of, op, convention);
    let mut common: Vec<&String> = of[op][0].1.iter().collect();
    common.retain(|c| of[op].iter().all(|(_, other)| other.contains(c)));
    for choice in convention.split(' ') {
        let all = common.iter().all(|c| c.split(' ').any(|part| part == choice));
        assert!(all, "{op}: {choice} is not decided among {common:?}");
    }
}

#[test]
fn a_bf16_recording_of_transformers_passes_under_its_conventions() {
    for checkpoint in CHECKPOINTS {
        let report = report(checkpoint, "bf16");
        assert_eq!(report.dtype, Dtype::Bf16);
        complete(&report, checkpoint);
        let found = conventions(&report);
        decided(&found, "rms_norm", "normalised=stored");
        decided(&found, "rope", "table=stored product=stored");
        decided(&found, "attention", "probs=normalised scores=stored");
        decided(&found, "silu_mul", "silu=stored");
        for op in ["embedding", "matmul", "add"] {
            every_probe_allows(&found, op, "defaults");
        }
    }
}

#[test]
fn an_f32_recording_of_transformers_passes_under_the_defaults() {
    for checkpoint in CHECKPOINTS {
        let report = report(checkpoint, "f32");
        assert_eq!(report.dtype, Dtype::F32);
        complete(&report, checkpoint);
        for (op, probes) in conventions(&report) {
            for (probe, conventions) in probes {
                let first = &conventions[0];
                assert_eq!(first, "defaults", "{checkpoint} {op} {probe}: {conventions:?}");
            }
        }
    }
}

/// The f64 recordings come from a forward in true float64, so the bound is that of float64: an
/// error of f32's size is a finding (see `an_f64_recording_rounded_to_f32_fails`).
#[test]
fn an_f64_recording_passes_within_the_bound_of_float64() {
    for checkpoint in CHECKPOINTS {
        let report = report(checkpoint, "f64");
        assert_eq!(report.dtype, Dtype::F64);
        complete(&report, checkpoint);
        for (op, probes) in conventions(&report) {
            for (probe, conventions) in probes {
                let first = &conventions[0];
                assert_eq!(first, "defaults", "{checkpoint} {op} {probe}: {conventions:?}");
            }
        }
    }
}

/// gptqmodel's forward casts the scales to bf16 and adds the bias after the product was rounded.
#[test]
fn a_gptq_recording_passes_under_gptqmodels_conventions() {
    let report = report("gptq-qwen3", "bf16");
    complete(&report, "gptq-qwen3");
    let found = conventions(&report);
    decided(&found, "gptq_gemm", "scale=stored");
    assert_eq!(found["gptq_gemm"].len(), 14);
    decided(&found, "rms_norm", "normalised=stored");
    decided(&found, "attention", "probs=normalised scores=stored");
}
