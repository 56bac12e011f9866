//! Real vLLM passes: a bf16 recording of version 0.32.0 on the CPU, made by the taps
//! (golden/vllm/README.md), whose norms are fused with the addition before them.

use assay_reference::Tensor;
use assay_reference::trace::Trace;
use assay_tests::damage::Copy;
use assay_tests::golden;
use assay_verify::judge::Verdict;

const TRACE: &str = "vllm/trace-bf16";

#[test]
fn a_bf16_recording_of_vllm_passes_with_its_fused_norms_named() {
    let trace = Trace::open(&golden::path(TRACE)).expect("a trace");
    let report = golden::diff(&golden::checkpoint("trained-qwen3"), &trace);
    assert_eq!((report.nodes.len(), report.judged()), (37, 37));
    for n in &report.nodes {
        let Verdict::Pass { conventions, .. } = &n.judgement.verdict else {
            panic!("{}: {:?}", n.probe, n.judgement.verdict);
        };
        // The first norm has no addition before it.
        let fused = n.op == "add_rms_norm";
        let behind_a_sum = n.probe.ends_with("_norm")
            && !n.probe.contains(".q_")
            && !n.probe.contains(".k_")
            && n.probe != "layers.0.input_norm";
        assert_eq!(fused, behind_a_sum, "{}", n.probe);
        if fused {
            let all = conventions.iter().all(|c| c.contains("residual=f32"));
            assert!(all && !conventions.is_empty(), "{}: {conventions:?}", n.probe);
        }
    }
}

/// The composite must not excuse what is wrong: a norm of half its lanes, and a sum that was edited.
#[test]
fn a_fused_norm_that_is_wrong_and_an_edited_sum_are_findings() {
    for (probe, file) in
        [("layers.0.post_norm", "layer-00000"), ("layers.1.attn_residual", "layer-00001")]
    {
        let copy = Copy::of(TRACE);
        copy.tensors(&format!("{file}.safetensors"), |tensors| {
            let t = tensors.get_mut(probe).expect("a probe");
            let mut values = t.to_f64();
            let scaled = values.iter_mut().take(64);
            scaled.for_each(|v| *v *= 1.05);
            *t = Tensor::from_f64(t.dtype(), t.shape(), &values);
        });
        let trace = Trace::open(copy.path()).expect("a trace");
        let report = golden::diff(&golden::checkpoint("trained-qwen3"), &trace);
        let found: Vec<&str> = report.findings().into_iter().map(|(probe, _)| probe).collect();
        assert!(found.contains(&probe), "{probe}: {found:?}");
    }
}
