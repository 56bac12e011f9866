//! A recording of logits alone, or of layer outputs: the wrong forward is named, and a right one of
//! another framework passes. Both were made by transformers (golden/README.md).

use std::collections::BTreeSet;

use assay_reference::ops::rope::Angle;
use assay_reference::qwen::variant::{Reach, catalogue, faults};
use assay_reference::qwen::{Forward, Node, Preset, Wiring};
use assay_reference::trace::Trace;
use assay_tests::golden;
use assay_verify::finding::Finding;
use assay_verify::forward::{Stretch, classify};
use serde_json::Value;

const LOGITS: &[&str] = &["logits"];
const LAYERS: &[&str] = &["logits", "mlp_residual"];

/// What is said of a trace of which only probes with these endings are kept.
#[track_caller]
fn judged(checkpoint: &str, trace: Trace, keep: &[&str]) -> Vec<Stretch> {
    let trace = trace.only(|probe| keep.iter().any(|k| probe.ends_with(k)));
    let checkpoint = golden::checkpoint(checkpoint);
    classify(&checkpoint, &trace, None, &mut |_, _, _| {}).expect("a forward that runs")
}

fn findings(stretches: &[Stretch]) -> Vec<Finding> {
    stretches.iter().flat_map(|s| s.judgement.verdict.findings()).collect()
}

/// The worst error of a sound recording, as a fraction of its limit.
#[track_caller]
fn passes(name: &str, dtype: &str, keep: &[&str]) -> f64 {
    let stretches = judged(name, golden::trace(&format!("{name}/{dtype}")), keep);
    assert!(!stretches.is_empty(), "{name}");
    for s in &stretches {
        let j = &s.judgement;
        assert!(j.verdict.is_pass(), "{name} {dtype} {}: {:?}", s.probe, j.verdict);
    }
    stretches.iter().map(|s| s.judgement.worst).fold(0.0, f64::max)
}

#[test]
fn transformers_own_forward_passes_in_every_dtype() {
    for (name, dtype) in
        [("gqa7-qwen2", "f64"), ("yarn-attn-qwen2", "f16"), ("dynamic-qwen3", "bf16")]
    {
        passes(name, dtype, LOGITS);
    }
    passes("trained-qwen3", "f32", LAYERS);
}

#[test]
#[ignore = "a minute: every sound golden trace; cargo test -p assay-tests field_cases -- --ignored"]
fn every_sound_golden_trace_passes() {
    let folders = std::fs::read_dir(golden::path("traces")).expect("golden traces");
    let names = folders.map(|f| f.expect("a folder").file_name().into_string().expect("ASCII"));
    let mut all = 0;
    for name in names.filter(|n| !n.contains("faults")) {
        for dtype in ["f64", "f32", "bf16", "f16"] {
            if golden::path("traces").join(&name).join(dtype).is_dir() {
                for keep in [LOGITS, LAYERS] {
                    println!("{name} {dtype} {keep:?}: {:.3}", passes(&name, dtype, keep));
                    all += 1;
                }
            }
        }
    }
    assert!(all > 60, "{all}");
}

/// A recording of a whole-model fault and what is said of it.
fn case(fault: &Value) -> Vec<Stretch> {
    let folder = format!("forward-faults/{}", fault["name"].as_str().expect("a name"));
    judged(fault["checkpoint"].as_str().expect("a checkpoint"), golden::trace(&folder), LOGITS)
}

/// The answer, its parameter included, leads the finding or is said to be as good.
fn is_named(fault: &Value, findings: &[Finding]) -> bool {
    let name = fault["expected_fault"].as_str().expect("a name");
    let key = fault["key"].as_str().expect("a key");
    let [finding] = findings else { return false };
    let (label, rival) = match key {
        "" => (String::new(), name.to_string()),
        key => (format!("{key}: "), format!("{name} ({key})")),
    };
    let first = finding.name == name && finding.text.starts_with(&label);
    let equally = finding.text.split_once("Equally good here: ");
    first || equally.is_some_and(|(_, list)| list.contains(&rival))
}

#[track_caller]
fn check(cases: &[Value]) {
    let mut wrong = Vec::new();
    for fault in cases {
        let findings = findings(&case(fault));
        println!("{} {:?}", fault["name"], findings);
        if !is_named(fault, &findings) {
            wrong.push(format!("{fault}: {findings:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong.join("\n"));
}

fn cases() -> Vec<Value> {
    let all = golden::json("forward_faults.json");
    all["faults"].as_array().expect("faults").clone()
}

#[test]
fn a_wrong_forward_is_named_from_its_logits() {
    // Of the small checkpoints.
    let quick = ["case-08", "case-11", "case-38", "case-40"];
    let of = |c: &Value| quick.contains(&c["name"].as_str().expect("a name"));
    let quick: Vec<Value> = cases().into_iter().filter(of).collect();
    assert_eq!(quick.len(), 4);
    check(&quick);
}

#[test]
#[ignore = "minutes: every wrong forward; cargo test -p assay-tests field_cases -- --ignored"]
fn every_wrong_forward_is_named_from_its_logits() {
    check(&cases());
}

/// The faults of one layer that golden/faults.json holds: those that are variants of the forward are
/// named in their layer, from the logits alone; the others are never called anything else.
fn one_layer(names: &[&str]) {
    let named = [
        ("fault-01", "forward.bias_dropped", "k: the bias of k is not added, in layer 1 alone"),
        ("fault-02", "forward.kv_head", "in layer 0 alone"),
        ("fault-04", "forward.gate_up_swapped", "in layer 1 alone"),
        ("fault-06", "forward.attention_scale", "in layer 0 alone"),
        (
            "fault-07",
            "forward.qk_norm_missing",
            "q: the norm over each head of q is left out, in layer 1 alone",
        ),
        (
            "fault-08",
            "forward.rope_theta",
            "1e4: rope theta is 10000 instead of 1000000, in layer 1 alone",
        ),
        ("fault-09", "forward.rope_pairing", "in layer 0 alone"),
    ];
    let all = golden::json("faults.json");
    for fault in all["faults"].as_array().expect("faults") {
        let name = fault["name"].as_str().expect("a name");
        let expected = named.iter().find(|(n, ..)| *n == name);
        if !(names.is_empty() || names.contains(&name)) {
            continue;
        }
        let trace = golden::trace(&format!("faults/{name}"));
        let stretches = judged(fault["checkpoint"].as_str().expect("a checkpoint"), trace, LOGITS);
        let findings = findings(&stretches);
        println!("{name} {} {findings:?}", fault["expected_fault"]);
        match expected {
            Some((_, finding, text)) => {
                assert_eq!(findings[0].name, *finding, "{name}: {findings:?}");
                assert!(findings[0].text.contains(text), "{name}: {findings:?}");
            }
            // An op's fault, or one below what roundings do.
            None => {
                assert!(findings.iter().all(|f| f.name == "unexplained"), "{name}: {findings:?}")
            }
        }
    }
}

#[test]
fn a_fault_in_one_layer_is_named_there_or_not_at_all() {
    one_layer(&["fault-08"]);
}

#[test]
#[ignore = "a minute: all sixteen; cargo test -p assay-tests field_cases -- --ignored"]
fn every_fault_in_one_layer_is_named_there_or_not_at_all() {
    one_layer(&[]);
}

/// Every variant that a config is offered runs, over two calls, and all but those that attention cannot
/// see change the logits.
fn variants_run(name: &str) -> usize {
    let checkpoint = golden::checkpoint(name);
    let preset = Preset::named("oracle-f64").expect("a preset");
    let logits = |wiring: Wiring| {
        let mut forward = Forward::<f64>::wired(&checkpoint, preset, wiring).expect("its weights");
        let mut quiet = |_: &Node, _: &[f64]| {};
        let mut all = forward.step(&[5, 17, 90, 64, 64, 0, 31], &mut quiet).expect("tokens");
        all.extend(forward.step(&[12, 9, 33], &mut quiet).expect("tokens"));
        all.extend(forward.step(&[2, 3, 1], &mut quiet).expect("tokens"));
        all
    };
    let config = checkpoint.config();
    let right = logits(Wiring::new(config, Angle::F64));
    let scale = right.iter().map(|x| x * x).sum::<f64>();
    let mut tried = 0;
    for fault in faults(config) {
        let forms = match fault.reach {
            Reach::SomeLayers => fault.within(0..1, config).into_iter().collect(),
            _ => vec![fault],
        };
        for fault in forms {
            let wrong = logits(fault.wiring(config, Angle::F64));
            assert_eq!(wrong.len(), right.len(), "{name} {}", fault.label());
            let moved = wrong.iter().zip(&right).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
            let hidden = ["position_from_one", "window_honoured", "rope_angle_bf16"]
                .contains(&fault.entry.slug);
            // A window and a mask may leave nothing to see: NaN shows.
            let shows = moved.is_nan() || moved > 1e-20 * scale;
            assert!(hidden || shows, "{name} {} changes nothing", fault.label());
            tried += 1;
        }
    }
    tried
}

#[test]
fn every_variant_of_a_model_runs_and_shows() {
    for name in ["gqa7-qwen2", "moe-qwen3", "window-qwen2"] {
        let tried = variants_run(name);
        assert!(tried > 40, "{name}: {tried}");
    }
}

#[test]
#[ignore = "a minute: every golden checkpoint; cargo test -p assay-tests field_cases -- --ignored"]
fn every_variant_of_every_model_runs_and_shows() {
    let mut seen = BTreeSet::new();
    for folder in std::fs::read_dir(golden::path("checkpoints")).expect("golden checkpoints") {
        let name = folder.expect("a folder").file_name().into_string().expect("ASCII");
        println!("{name}: {}", variants_run(&name));
        let config = golden::checkpoint(&name);
        seen.extend(faults(config.config()).into_iter().map(|f| f.entry.slug));
    }
    let all: BTreeSet<&str> = catalogue().map(|e| e.slug).collect();
    let missing: Vec<_> = all.difference(&seen).collect();
    // No golden checkpoint has an output bias.
    assert_eq!(missing, [&"row_parallel_bias"]);
}
