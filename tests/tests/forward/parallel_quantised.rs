//! A quantised model split over ranks: each rank's part fits its op, and the ranks' sum is the whole
//! layer's.

use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::awq_dequant::AwqDequant;
use assay_reference::ops::ct_dequant::CtDequant;
use assay_reference::ops::fp8_dequant::Fp8Dequant;
use assay_reference::ops::gptq_dequant::GptqDequant;
use assay_reference::ops::quant_gemm::{Dequant, QuantGemm};
use assay_reference::ops::{Op, Setup, Tensors, Tile};
use assay_reference::qwen::{Forward, Node, Preset, Share, Source};
use assay_reference::{Dtype, Tensor};

use crate::parallel::{joined, row_layers, run};
use crate::support::{Basis, checkpoint};

/// The quantised checkpoints.
const QUANTISED: [&str; 6] =
    ["gptq-qwen3", "gptq8-qwen2", "gptq3-qwen3", "awq-qwen3", "ct-qwen3", "fp8-qwen3"];

#[test]
fn quantised_sums_over_ranks_equal_one_rank_within_float64() {
    let preset = Preset::named("oracle-f64").expect("a preset");
    for name in QUANTISED {
        let checkpoint = checkpoint(name);
        let one = run::<f64>(&checkpoint, preset, 1);
        for ranks in [2, 4] {
            let split = run::<f64>(&checkpoint, preset, ranks);
            for (probe, ..) in row_layers(&checkpoint) {
                let (a, b) = (&split[&probe].values, &one[&probe].values);
                let scale = b.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                let most = a.iter().zip(b).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(most <= 1e-12 * scale, "{name} {probe} over {ranks}: {most:e} of {scale}");
            }
        }
    }
}

/// What a node reads of the checkpoint, by argument.
fn stored(checkpoint: &Checkpoint, node: &Node) -> Tensors {
    let mut tensors = Tensors::new();
    for (arg, source) in &node.inputs {
        let t = match source {
            Source::Weight(name) => checkpoint.tensor(name).expect("stored"),
            Source::Part(name, cut) => cut.of(&checkpoint.tensor(name).expect("stored")),
            _ => continue,
        };
        tensors.insert(arg.to_string(), t);
    }
    tensors
}

/// The whole layer evaluated with its product over ranks has the bits of the ranks' sum.
fn convention<D: Dequant, R: Basis>(checkpoint: &Checkpoint, preset: &str, ranks: usize) {
    let preset = Preset::named(preset).expect("a preset");
    let whole = Forward::<R>::new(checkpoint, preset).expect("a complete checkpoint");
    let split = run::<R>(checkpoint, preset, ranks);
    for (out, x, _) in row_layers(checkpoint) {
        let node = whole.plan().node(&out).expect("a layer");
        assert_eq!((node.op, &node.params["matmul"]["row_parallel"]), (D::GEMM, &true.into()));
        let mut tensors = stored(checkpoint, node);
        tensors.insert("x".into(), joined(&split, &x, ranks));
        let mut params = node.params.clone();
        params["matmul"]["ranks"] = serde_json::json!(ranks);
        let (params, policy) = preset.apply::<QuantGemm<D>>(&params, &tensors).expect("params");
        QuantGemm::<D>::check(&params, &tensors).expect("a whole layer");
        let setup = Setup::<QuantGemm<D>> { params, policy, tensors };
        let store = |x: R| x.round(setup.policy.output, f64::INFINITY).bits();
        let bits = setup.eval::<R>(&Tile::ALL).remove(0).data.into_iter().map(store);
        let what = format!("{out} over {ranks} under {}", preset.name);
        assert_eq!(bits.collect::<Vec<_>>(), split[&out].bits, "{what}");
    }
}

/// What each rank holds of a layer fits the op's own contract, which the judge checks before it
/// evaluates anything.
fn contract<D: Dequant>(checkpoint: &Checkpoint, ranks: usize) {
    let preset = Preset::named("transformers-bf16").expect("a preset");
    let split = Forward::<f32>::split(checkpoint, preset, ranks).expect("splits");
    let mut checked = 0;
    for node in split.plan().nodes.iter().filter(|n| n.op == D::GEMM) {
        let mut tensors = stored(checkpoint, node);
        let inputs = match node.share {
            Share::Term => 512 / ranks,
            _ => checkpoint.config().hidden_size,
        };
        let x = Tensor::from_f64(Dtype::Bf16, &[1, inputs], &vec![1.0; inputs]);
        tensors.insert("x".into(), x);
        let (params, _) = preset.apply::<QuantGemm<D>>(&node.params, &tensors).expect("params");
        let out = QuantGemm::<D>::check(&params, &tensors);
        assert_eq!(out.expect(&node.probe)[0].shape, [1, node.width], "{}", node.probe);
        checked += 1;
    }
    assert_eq!(checked, 7 * checkpoint.config().num_hidden_layers * ranks);
}

fn quantised<D: Dequant>(name: &str) {
    let checkpoint = checkpoint(name);
    for ranks in [2, 4] {
        contract::<D>(&checkpoint, ranks);
        convention::<D, f32>(&checkpoint, "f32", ranks);
        convention::<D, f32>(&checkpoint, "transformers-bf16", ranks);
        convention::<D, f64>(&checkpoint, "oracle-f64", ranks);
    }
}

/// GPTQ split by input: a rank keeps every group's scales, and its rows' part of g_idx names groups
/// anywhere among them, in activation order or not.
#[test]
fn gptq_layers_over_ranks_follow_the_judges_convention_bitwise() {
    for name in ["gptq-qwen3", "gptq8-qwen2", "gptq3-qwen3"] {
        quantised::<GptqDequant>(name);
    }
}

#[test]
fn awq_layers_over_ranks_follow_the_judges_convention_bitwise() {
    quantised::<AwqDequant>("awq-qwen3");
}

#[test]
fn compressed_layers_over_ranks_follow_the_judges_convention_bitwise() {
    quantised::<CtDequant>("ct-qwen3");
}

#[test]
fn fp8_layers_over_ranks_follow_the_judges_convention_bitwise() {
    quantised::<Fp8Dequant>("fp8-qwen3");
}
