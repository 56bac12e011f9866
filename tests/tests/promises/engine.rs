//! The forward made of kernels gives the reference's text, asks before it launches, and a wrong kernel in it
//! is named with the first layer that it spoils.

use std::collections::BTreeMap;

use assay_hip::Matrix;
use assay_hip::engine::{Engine, Kernels};
use assay_hip::{Admission, Admit, Error, Identity, LaunchOptions, Refusal, kernel};
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::{Forward, Preset, generate};
use assay_tests::{cli, golden};
use assay_verify::diff::engine::{self, Prompt};
use assay_verify::mutants;

/// A record in which everything passed but some kernels.
struct AllBut(&'static [&'static str]);

impl Admit for AllBut {
    fn admit(&self, identity: &Identity) -> Result<Admission, Refusal> {
        if self.0.contains(&identity.kernel.as_str()) {
            return Err(Refusal {
                kernel: identity.kernel.clone(),
                backend: identity.backend,
                reason: "missing".into(),
            });
        }
        let evidence = "a test's".to_string();
        Ok(Admission { identity: identity.clone(), conventions: Vec::new(), evidence })
    }
}

fn kernels() -> Kernels {
    Kernels::emulated(&BTreeMap::new(), Matrix::None).expect("the kernels compile")
}

fn engine<'a>(checkpoint: &'a Checkpoint, kernels: &'a Kernels) -> Engine<'a> {
    let options = LaunchOptions { threads: 2, ..LaunchOptions::default() };
    Engine::new(checkpoint, kernels, &AllBut(&[]), options).expect("a model for these kernels")
}

#[test]
fn the_trained_model_gives_transformers_text() {
    let checkpoint = golden::checkpoint("trained-qwen3");
    let kernels = kernels();
    let all = golden::json("generations.json");
    let generations = all["generations"].as_array().expect("an array");
    for one in generations.iter().take(3) {
        let ids = |key: &str| -> Vec<u32> {
            let list = one[key].as_array().expect("ids");
            list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
        };
        let (prompt, mut wanted) = (ids("prompt_ids"), ids("continuation_ids"));
        let eos = &checkpoint.config().eos_token_ids;
        wanted.retain(|id| !eos.contains(id));
        let mut model = engine(&checkpoint, &kernels);
        let (tokens, _) =
            generate::<f64>(&mut model, &prompt, 32, eos, &mut |_, _| {}, |_| {}).expect("runs");
        assert_eq!(tokens, wanted, "{}", one["prompt"]);
    }
}

/// Greedy tokens are close to each other in an untrained model: the reference's own in the same arithmetic.
#[test]
fn a_gptq_model_gives_the_references_text() {
    let checkpoint = golden::checkpoint("gptq-qwen3");
    let prompt = [3, 141, 59, 26, 5, 35, 89, 79, 32, 38];
    let kernels = kernels();
    let mut model = engine(&checkpoint, &kernels);
    let (got, _) =
        generate::<f64>(&mut model, &prompt, 8, &[], &mut |_, _| {}, |_| {}).expect("runs");
    let preset = Preset::named("fused-bf16").expect("a preset");
    let mut reference = Forward::<f32>::new(&checkpoint, preset).expect("a forward");
    let (wanted, _) =
        generate::<f32>(&mut reference, &prompt, 8, &[], &mut |_, _| {}, |_| {}).expect("runs");
    assert_eq!(got, wanted);
}

#[test]
fn every_kernel_that_is_not_admitted_is_named_before_anything_runs() {
    let checkpoint = golden::checkpoint("trained-qwen3");
    let kernels = kernels();
    let record = AllBut(&["rms_norm", "silu_mul", "softmax"]);
    let refused = Engine::new(&checkpoint, &kernels, &record, LaunchOptions::default());
    let Err(Error::NotAdmitted(refusals)) = refused else { panic!("admitted") };
    let names: Vec<&str> = refusals.iter().map(|r| r.kernel.as_str()).collect();
    // The model has no use for softmax.
    assert_eq!(names, ["rms_norm", "silu_mul"]);
}

#[test]
fn a_ledger_without_the_kernels_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let ledger = dir.path().join("kernels.jsonl");
    assay_verify::ledger::append(&ledger, Vec::new()).expect("an empty ledger");
    let model = golden::path("checkpoints/trained-qwen3");
    let run = cli::assay([
        "run",
        model.to_str().expect("UTF-8"),
        "--ids",
        "602,502",
        "--backend",
        "emu",
        "--ledger",
        ledger.to_str().expect("UTF-8"),
    ]);
    assert_eq!(run.code, 2, "{run:#?}");
    for name in ["gemm_bf16", "add_rms_norm", "attention_decode_paged_d128", "kv_store_paged"] {
        assert!(run.stderr.contains(&format!("{name} on emu is not admitted")), "{}", run.stderr);
    }
}

/// A call that fails half-way has stored keys and values of its first layers.
#[test]
fn after_a_launch_that_failed_only_a_new_engine_goes_on() {
    let source = kernel("add_rms_norm").expect("a kernel").source;
    let refusing = source.replacen("if (rows < 1 ||", "if (rows == 3 || rows < 1 ||", 1);
    assert_ne!(refusing, source);
    let replaced = BTreeMap::from([("add_rms_norm", refusing)]);
    let kernels = Kernels::emulated(&replaced, Matrix::None).expect("compiles");
    let checkpoint = golden::checkpoint("trained-qwen3");
    let mut torn = engine(&checkpoint, &kernels);
    torn.append(&[5, 6], &mut |_, _| {}).expect("two rows are taken");
    let failed = torn.append(&[7, 8, 9], &mut |_, _| {}).expect_err("three are refused");
    assert!(matches!(failed, Error::Launch { kernel: "add_rms_norm", .. }), "{failed}");
    let refused = torn.append(&[5, 6], &mut |_, _| {}).expect_err("two as well, from now on");
    assert!(refused.to_string().contains("make a new engine"), "{refused}");
    let mut fresh = engine(&checkpoint, &kernels);
    fresh.append(&[5, 6], &mut |_, _| {}).expect("a new one takes them");
}

/// A hang or a refusal is the kernel's fault, and no reason to say nothing.
#[test]
fn a_launch_that_does_not_end_well_is_a_finding_of_its_kernel() {
    let source = kernel("add_rms_norm").expect("a kernel").source;
    let refusing = source.replacen("if (rows < 1 ||", "if (rows == 4 || rows < 1 ||", 1);
    let replaced = BTreeMap::from([("add_rms_norm", refusing)]);
    let kernels = Kernels::emulated(&replaced, Matrix::None).expect("compiles");
    let checkpoint = golden::checkpoint("trained-qwen3");
    let report = engine::diff(&checkpoint, &kernels, &prompt(), &mut |_, _, _| {}).expect("runs");
    let wrong: Vec<_> = report.nodes.iter().filter(|n| !n.judgement.verdict.is_pass()).collect();
    let [node] = wrong[..] else { panic!("{:?}", report.findings()) };
    assert_eq!((node.kernel, node.probe.as_str()), (Some("add_rms_norm"), "layers.0.post_norm"));
    let findings = node.judgement.verdict.findings();
    assert!(matches!(&findings[..], [f] if f.name == "launch_refused"), "{findings:?}");
}

/// The prompt of a diff: two calls and two tokens.
fn prompt() -> Prompt {
    let ids = (0..20).map(|i| (i * 37 + 11) % 320).collect();
    Prompt { ids, chunk: 16, generate: 2 }
}

fn passes(name: &str) {
    passes_on(name, &prompt());
}

fn passes_on(name: &str, prompt: &Prompt) {
    let checkpoint = golden::checkpoint(name);
    let report = engine::diff(&checkpoint, &kernels(), prompt, &mut |_, _, _| {}).expect("runs");
    let findings = report.findings();
    assert!(findings.is_empty(), "{name}: {findings:?}");
    assert!(report.nodes.iter().all(|n| n.judgement.verdict.is_pass()), "{name}");
    // Every kernel launch of a layer, and the stretches of the forward.
    assert!(report.judged() > 14, "{name}: {}", report.judged());
}

#[test]
fn every_launch_of_a_bf16_model_passes() {
    passes("trained-qwen3");
}

#[test]
fn every_launch_of_a_qwen2_model_with_biases_passes() {
    passes("tiny-qwen2");
}

#[test]
fn every_launch_of_a_gptq_model_passes() {
    // One call over many rows and one over a single row: both paths of the kernel.
    passes_on("gptq-qwen3", &Prompt { chunk: 0, ..prompt() });
}

#[test]
fn a_mutated_kernel_is_named_with_its_first_layer() {
    let edits = mutants::edits().expect("anchors");
    let edit = edits.iter().find(|e| e.name == "add_rms_norm.truncating_store").expect("a mutant");
    let replaced = BTreeMap::from([("add_rms_norm", edit.source.clone())]);
    let kernels = Kernels::emulated(&replaced, Matrix::None).expect("compiles");
    let checkpoint = golden::checkpoint("trained-qwen3");
    let report = engine::diff(&checkpoint, &kernels, &prompt(), &mut |_, _, _| {}).expect("runs");
    let wrong: Vec<_> = report.nodes.iter().filter(|n| !n.judgement.verdict.is_pass()).collect();
    let first = wrong.first().expect("a finding");
    assert_eq!(first.kernel, Some("add_rms_norm"), "{}", first.probe);
    assert_eq!(first.probe, "layers.0.post_norm");
    // What other kernels computed from it is right on its own inputs.
    assert!(wrong.iter().all(|n| n.kernel.is_none_or(|k| k == "add_rms_norm")));
}
