//! Four GPTQ checkpoints, symmetric and asymmetric: v1, v2, v1 labelled v2 and v2 labelled v1. Each
//! label is told from the data, the honest ones raise no alarm, and an engine that follows a wrong
//! label is named. The layers are gptqmodel's (golden/README.md).
//!
//! Reports: <https://github.com/vllm-project/vllm/issues/26343>,
//! <https://github.com/vllm-project/vllm/issues/38966>

use std::sync::Arc;

use assay_reference::checkpoint::zeros::{StoredZeros, contradictions};
use assay_reference::checkpoint::{Checkpoint, GptqFormat, Shard};
use assay_reference::ops::gptq_dequant::{Format, GptqDequant, Params};
use assay_reference::ops::{Scope, Setup, Tensors};
use assay_reference::{Case, Dtype, Policy};
use assay_tests::damage::Copy;
use assay_tests::{golden, subject};
use assay_verify::forward::classify;
use assay_verify::judge::Verdict;

/// A layer, the format that it is really of, its group size, and whether its zero points are all one.
const LAYERS: [(&str, GptqFormat, i64, bool); 4] = [
    ("v1-4bit-sym-g128", GptqFormat::V1, 128, true),
    ("v2-4bit-sym-g128", GptqFormat::V2, 128, true),
    ("v1-4bit-asym-g32", GptqFormat::V1, 32, false),
    ("v2-4bit-asym-g32", GptqFormat::V2, 32, false),
];

fn layer(name: &str) -> Tensors {
    let shard = Shard::open(&golden::path(&format!("gptq/{name}.safetensors"))).expect("a layer");
    shard.names().map(|n| (n.to_string(), shard.tensor(n).expect("a tensor"))).collect()
}

fn zeros(name: &str, bits: u32) -> StoredZeros {
    let t = layer(name);
    StoredZeros::read(bits, &t["qweight"], &t["qzeros"], &t["g_idx"]).expect("a layer's tensors")
}

#[test]
fn the_data_tell_the_format_whatever_the_label() {
    for (name, truth, _, symmetric) in LAYERS {
        let zeros = zeros(name, 4);
        assert_eq!(zeros.format, Some(truth), "{name}: {zeros:?}");
        assert_eq!(zeros.single().is_some(), symmetric, "{name}");
    }
}

/// Zero points alone cannot tell the formats of asymmetric data apart, and codes that are not a trained
/// layer's cannot either: these files hold the same tensors under both labels.
#[test]
fn what_the_data_do_not_tell_is_left_undecided() {
    for bits in [2, 3, 4, 8] {
        let (v1, v2) = (
            zeros(&format!("v1-{bits}bit-zeros"), bits),
            zeros(&format!("v2-{bits}bit-zeros"), bits),
        );
        assert_eq!(v1, v2);
        assert_eq!(v1.format, None, "{bits} bits: {v1:?}");
    }
}

/// What an engine dequantises that believes the label, judged by the true format.
#[test]
fn an_engine_that_follows_a_wrong_label_is_named() {
    let format = |f: GptqFormat| if f == GptqFormat::V1 { Format::V1 } else { Format::V2 };
    for (name, truth, group, _) in LAYERS {
        let mut tensors = layer(name);
        let honest = tensors.remove("dequant_f16").expect("gptqmodel's");
        tensors.remove("dequant_bf16");
        let case = |label: GptqFormat| Case {
            op: "gptq_dequant".into(),
            params: serde_json::to_value(Params::new(format(label), group)).expect("JSON"),
            dtype: Dtype::F16,
            tensors: tensors.clone(),
            outputs: Tensors::new(),
            family: "field".into(),
            seed: 0,
        };
        let right = Arc::new(case(truth));
        let pass = subject::observe(&right, honest, name, false);
        let verdict = subject::judged("gptq_dequant", &[pass], Scope::Kernel).verdict;
        assert!(verdict.is_pass(), "{name}: {verdict:?}");

        let (other, expected) = match truth {
            GptqFormat::V1 => (GptqFormat::V2, "gptq_dequant.zero_without_plus_one"),
            GptqFormat::V2 => (GptqFormat::V1, "gptq_dequant.zero_with_plus_one"),
        };
        let believed = Setup::<GptqDequant> {
            params: Params::new(format(other), group),
            policy: Policy::stored_as(Dtype::F16),
            tensors: tensors.clone(),
        };
        let wrong = subject::output::<_, f32>(&believed);
        let run = subject::observe(&right, wrong, name, false);
        let verdict = subject::judged("gptq_dequant", &[run], Scope::Kernel).verdict;
        let names: Vec<String> = verdict.findings().into_iter().map(|f| f.name).collect();
        assert_eq!(names, [expected], "{name}: {verdict:?}");
    }
}

/// A whole checkpoint under the other label.
fn mislabelled() -> (Copy, Checkpoint) {
    let copy = Copy::of("checkpoints/gptq-qwen3");
    for file in ["config.json", "quantize_config.json"] {
        copy.json(file, |json| {
            let quantization = match json.get_mut("quantization_config") {
                Some(q) => q.as_object_mut().expect("an object"),
                None => json,
            };
            quantization.insert("checkpoint_format".into(), "gptq_v2".into());
            quantization.remove("format");
        });
    }
    let labelled = Checkpoint::open(copy.path()).expect("a checkpoint that opens all the same");
    (copy, labelled)
}

#[test]
fn a_mislabelled_checkpoint_is_named_when_it_is_opened() {
    let honest = golden::checkpoint("gptq-qwen3");
    assert_eq!(contradictions(&honest).expect("its tensors"), []);
    assert!(!honest.warnings().iter().any(|w| w.contains("label")), "{:?}", honest.warnings());

    let (_copy, labelled) = mislabelled();
    let warnings = labelled.warnings().join("\n");
    assert!(warnings.contains("every one is 7, as gptq (v1) stores a symmetric one"), "{warnings}");
    let found = contradictions(&labelled).expect("its tensors");
    assert!(found.len() >= 7, "{}", found.len());
    assert!(found.iter().all(|c| c.zeros.format == Some(GptqFormat::V1)));
}

#[test]
#[ignore = "half a minute: quantised forwards; cargo test -p assay-tests field_cases -- --ignored"]
fn a_mislabelled_checkpoint_is_named_from_its_logits() {
    let trace = golden::trace("gptq-qwen3/bf16").only(|p| p == "logits");
    let quiet = &mut |_: usize, _: usize, _: &str| {};
    let sound =
        classify(&golden::checkpoint("gptq-qwen3"), &trace, None, quiet).expect("a forward");
    assert!(sound[0].judgement.verdict.is_pass(), "{:?}", sound[0].judgement.verdict);
    let (_copy, labelled) = mislabelled();
    let wrong = classify(&labelled, &trace, None, quiet).expect("a forward");
    let Verdict::Fail { findings } = &wrong[0].judgement.verdict else { panic!("{wrong:?}") };
    assert_eq!(findings[0].name, "forward.zero_point_format", "{findings:?}");
}
