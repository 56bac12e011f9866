//! Traces that assay records itself, in one call or in many, diff clean.

use std::collections::BTreeMap;
use std::path::Path;

use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::attention::{self, Attention};
use assay_reference::ops::{Basis, Setup};
use assay_reference::qwen::{Forward, Node, Preset};
use assay_reference::trace::{self, Manifest, Trace};
use assay_reference::{Dtype, Policy, Tensor};
use assay_tests::{cli, golden, subject};
use assay_verify::judge::Verdict;

const TOKENS: [u32; 11] = [5, 17, 250, 64, 64, 0, 311, 128, 9, 33, 177];

/// Runs the forward over `TOKENS` in segments of these lengths and saves what every probe recorded.
fn record<R: Basis>(
    checkpoint: &Checkpoint,
    preset: &'static Preset,
    lengths: &[usize],
    dir: &Path,
) {
    let mut forward = Forward::<R>::new(checkpoint, preset).expect("a complete checkpoint");
    let mut probes: BTreeMap<String, (Vec<usize>, Vec<f64>)> = BTreeMap::new();
    let mut segments = Vec::new();
    let mut at = 0;
    for &n in lengths {
        let mut see = |node: &Node, x: &[R]| {
            let rows = x.len() / node.width;
            let entry = probes.entry(node.probe.clone()).or_insert_with(|| {
                let mut shape = node.view.shape(rows, node.width);
                shape[0] = TOKENS.len();
                (shape, Vec::new())
            });
            entry.1.extend(x.iter().map(|v| v.value()));
        };
        forward.step(&TOKENS[at..at + n], &mut see).expect("tokens of the vocabulary");
        segments.push((at, at + n));
        at += n;
    }
    assert_eq!(at, TOKENS.len());
    let tensors: BTreeMap<String, Tensor> = probes
        .into_iter()
        .map(|(name, (shape, data))| (name, Tensor::from_f64(preset.dtype, &shape, &data)))
        .collect();
    let manifest = Manifest {
        assay_trace: trace::VERSION,
        producer: BTreeMap::from([("name".into(), "assay-tests".into())]),
        dtype: preset.dtype,
        architecture: checkpoint.config().architecture.class().into(),
        tokens: TOKENS.to_vec(),
        segments,
        layers: checkpoint.config().num_hidden_layers,
        files: Vec::new(),
        notes: String::new(),
        ranks_differ: Vec::new(),
        probes: BTreeMap::new(),
    };
    trace::save(dir, manifest, &tensors).expect("a new folder");
}

fn check<R: Basis>(name: &str, preset: &str, lengths: &[usize]) {
    let checkpoint = golden::checkpoint(name);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let preset = Preset::named(preset).expect("a preset");
    record::<R>(&checkpoint, preset, lengths, dir.path());
    let trace = Trace::open(dir.path()).expect("what was saved");
    let report = golden::diff(&checkpoint, &trace);
    assert_eq!(report.judged(), report.nodes.len());
    for n in &report.nodes {
        let pass = matches!(n.judgement.verdict, Verdict::Pass { .. });
        assert!(pass, "{name} {} in {lengths:?}, {}: {:?}", preset.name, n.probe, n.judgement);
        // Where a cache or the positions matter, each call is a run of its own.
        let runs = if ["attention", "rope"].contains(&n.op.as_str()) { lengths.len() } else { 1 };
        assert_eq!(n.judgement.runs, runs, "{}", n.probe);
        let unrounded = preset.dtype == Dtype::F64;
        assert!(!unrounded || n.judgement.equal_share > 0.99, "{}: {:?}", n.probe, n.judgement);
    }
}

#[test]
fn a_trace_in_chunks_passes_in_f32() {
    check::<f32>("tiny-qwen3", "f32", &[4, 1, 1, 3, 2]);
    check::<f32>("tiny-qwen2", "f32", &[1, 9, 1]);
}

#[test]
fn a_trace_in_chunks_passes_in_bf16() {
    check::<f32>("tiny-qwen2", "transformers-bf16", &[6, 1, 1, 1, 2]);
    check::<f32>("tiny-qwen3", "transformers-bf16", &[11]);
}

#[test]
fn a_trace_in_chunks_passes_in_f64() {
    check::<f64>("tiny-qwen3", "oracle-f64", &[5, 1, 5]);
}

/// The recording of one layer's attention whose second call did not see the first call's keys.
fn blind_second_call(dir: &Path, checkpoint: &Checkpoint) -> Trace {
    let sound = tempfile::tempdir().expect("a temporary folder");
    let preset = Preset::named("f32").expect("a preset");
    record::<f32>(checkpoint, preset, &[6, 5], sound.path());
    let sound = Trace::open(sound.path()).expect("what was saved");
    let mut tensors: BTreeMap<String, Tensor> = ["q_rope", "k_rope", "v_proj", "attention"]
        .map(|name| format!("layers.0.{name}"))
        .map(|name| (name.clone(), sound.get(&name).expect("recorded").clone()))
        .into();
    let heads = |probe: &str, n: usize| {
        let t = tensors[&format!("layers.0.{probe}")].slice_outer(6..11);
        t.reshape(&[5, n, t.len() / 5 / n]).expect("the same elements")
    };
    let (q, k, v) = (heads("q_rope", 4), heads("k_rope", 2), heads("v_proj", 2));
    let setup = Setup::<Attention> {
        params: attention::Params::new(1.0 / f64::from(128u8).sqrt()),
        policy: Policy::stored_as(Dtype::F32),
        tensors: [("q", q), ("k", k), ("v", v)].map(|(n, t)| (n.to_string(), t)).into(),
    };
    let blind = subject::output::<_, f32>(&setup).to_f64();
    let attention = &tensors["layers.0.attention"];
    let mut values = attention.to_f64();
    let from = values.len() - blind.len();
    values[from..].copy_from_slice(&blind);
    let attention = Tensor::from_f64(Dtype::F32, attention.shape(), &values);
    tensors.insert("layers.0.attention".into(), attention);
    trace::save(dir, sound.manifest().clone(), &tensors).expect("a new folder");
    Trace::open(dir).expect("what was saved")
}

#[test]
fn a_prefix_hidden_from_the_second_call_shows_in_that_call() {
    let checkpoint = golden::checkpoint("tiny-qwen3");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let report = golden::diff(&checkpoint, &blind_second_call(dir.path(), &checkpoint));
    let findings = report.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].0, "layers.0.attention");
    assert!(findings[0].1.text.contains("tokens 6..11"), "{findings:?}");
    // What was not recorded is not judged, and what is not judged does not pass.
    assert_eq!(report.judged(), 1);
    let passed = report.nodes.iter().filter(|n| n.judgement.verdict.is_pass()).count();
    assert_eq!(passed, 0);
}

#[test]
fn what_assay_run_records_while_it_generates_passes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (model, trace) = (golden::path("checkpoints/trained-qwen3"), dir.path().join("trace"));
    let args = ["--prompt", "7+8=", "--generate", "8", "--trace"];
    let run = cli::assay(
        ["run".as_ref(), model.as_os_str()]
            .into_iter()
            .chain(args.map(AsRef::as_ref))
            .chain([trace.as_os_str()]),
    );
    assert_eq!((run.code, run.stdout.as_str()), (0, "15\n"), "{}", run.stderr);
    let opened = Trace::open(&trace).expect("the trace");
    // The prompt in one call, then one call a token but the last.
    assert_eq!(opened.manifest().segments[..2], [(0, 4), (4, 5)]);
    assert_eq!(opened.manifest().tokens.len(), 6);
    let diff = cli::assay(["diff".as_ref(), model.as_os_str(), trace.as_os_str()]);
    assert_eq!(diff.code, 0, "{}{}", diff.stdout, diff.stderr);
}
