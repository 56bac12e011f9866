//! Faults from the field as edits of the kernels themselves, run on the emulator: the finding has the
//! fault's name and says which lanes are dead, under which condition a path is wrong, which cells are
//! never written.

use std::sync::Arc;

use assay_hip::emu::Mode;
use assay_hip::{Backend, Kernel, LaunchOptions, Matrix, MemoryFinding};
use assay_reference::ops::{Scope, Tensors};
use assay_reference::{Case, Dtype, Tensor};
use assay_tests::subject::judged;
use assay_verify::finding::Finding;
use assay_verify::judge::Observation;
use assay_verify::suite::{Profile, check_kernel};
use serde_json::{Value, json};

use super::plain::{Draw, bf16};

fn kernel(name: &str) -> &'static Kernel {
    assay_hip::kernel(name).expect("a kernel of that name")
}

/// The source of a kernel with one of its bugs.
fn broken(kernel: &Kernel, bug: &str) -> String {
    let found = kernel.mutants.iter().find(|m| m.edit.name == bug);
    let mutant = found.unwrap_or_else(|| panic!("{} has no mutant {bug}", kernel.name));
    assay_hip::mutate(kernel.source, &mutant.edit).expect("its anchors")
}

fn emulated(source: &str) -> Backend {
    Backend::emulated(source, Mode::Plain).expect("a C++ compiler")
}

fn case(op: &str, params: Value, dtype: Dtype, tensors: Vec<(&str, Tensor)>) -> Arc<Case> {
    let tensors: Tensors = tensors.into_iter().map(|(name, t)| (name.to_string(), t)).collect();
    let (params, outputs) = (params, Tensors::new());
    Arc::new(Case {
        op: op.into(),
        params,
        dtype,
        tensors,
        outputs,
        family: "field".into(),
        seed: 0,
    })
}

fn observed(kernel: &Kernel, backend: &Backend, case: &Arc<Case>, label: &str) -> Observation {
    let options = LaunchOptions::default();
    let launched = (kernel.run)(backend, case, &options).expect("the emulator runs");
    assert!(launched.report.is_clean(), "{label}: {:?}", launched.report);
    let output = launched.output().clone();
    Observation { case: case.clone(), output, label: label.into(), structured: false }
}

fn judge(op: &str, runs: &[Observation]) -> Vec<Finding> {
    judged(op, runs, Scope::Kernel).verdict.findings()
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
}

// --- waves of 64 that are reduced as if they had 32 lanes ------------------------------------------------
// <https://github.com/turboderp-org/exllamav2/pull/137>, <https://github.com/vllm-project/vllm/issues/3321>

#[test]
fn a_reduction_of_32_lanes_in_the_norm_kernels_is_named_with_the_dead_lanes() {
    for (name, dead) in [
        ("qk_norm_rope", "lanes 32..=63 of 64 are lost"),
        ("rms_norm", "lanes 32..=63 of 64 are lost, each of which holds 8 neighbouring elements"),
    ] {
        let kernel = kernel(name);
        let source = broken(kernel, "lanes_32");
        let report =
            check_kernel(kernel, (&source, Matrix::None), 1, Profile::Power, &|| {}).expect("runs");
        let found = report.judgement.verdict.findings();
        assert_eq!(found[0].name, format!("{name}.half_lanes"), "{found:#?}");
        assert_eq!(found.len(), 1, "{found:#?}");
        says(&found[0].text, &[dead]);
    }
}

/// Rows of unit scale, as the residual stream of a model of hidden size 4096: a gain that a cosine does
/// not see. Row l of the second run is large in the elements of lane l.
#[test]
fn the_same_at_hidden_4096_with_its_gain_and_cosine() {
    const D: usize = 4096;
    let kernel = kernel("rms_norm");
    let weight = bf16(&[D], &Draw::new(1).weights(D));
    let norm = |x: &[f32]| {
        let tensors = vec![("x", bf16(&[x.len() / D, D], x)), ("weight", weight.clone())];
        case("rms_norm", json!({ "eps": 1e-6 }), Dtype::Bf16, tensors)
    };
    let unit = norm(&Draw::new(2).values(8 * D, 1.0));
    let mut lit = Draw::new(3).values(64 * D, 0.25);
    for (l, row) in lit.chunks_mut(D).enumerate() {
        let of_lane = row.iter_mut().enumerate().filter(|(i, _)| i / 8 % 64 == l);
        of_lane.for_each(|(_, v)| *v *= 32.0);
    }
    let lit = norm(&lit);
    let runs = |source: &str| {
        let backend = emulated(source);
        let run = |case, label| observed(kernel, &backend, case, label);
        [run(&unit, "hidden 4096"), run(&lit, "hidden 4096, lane by lane")]
    };

    let bad = runs(&broken(kernel, "lanes_32"));
    let found = judge("rms_norm", &bad[..1]);
    assert_eq!(found[0].name, "rms_norm.half_lanes", "{found:#?}");
    says(&found[0].text, &["gain 1.4", "cosine 0.99999"]);
    let found = judge("rms_norm", &bad);
    assert_eq!(found.len(), 1, "{found:#?}");
    says(&found[0].text, &["lanes 32..=63 of 64 are lost, each of which holds 8 neighbouring"]);

    let found = judge("rms_norm", &runs(kernel.source));
    assert!(found.is_empty(), "{found:#?}");
}

// --- a path for few rows that sums (q - z) x in f16 and scales afterwards --------------------------------
// <https://github.com/vllm-project/vllm/issues/10656>

/// Inputs, outputs and the block of 8 inputs that is large in the first row.
const K: usize = 256;
const N: usize = 16;
const BLOCK: std::ops::Range<usize> = 128..136;

/// A linear layer as a down projection: 4 bits in groups of 128, every code 0 and every zero point 8 in
/// the block, so that the sum of its four even inputs is -32 `amplitude`. Only the first token has it, as
/// massive activations do.
fn layer(m: usize, amplitude: f32) -> Arc<Case> {
    let mut draw = Draw::new(m as u64);
    let mut x: Vec<f64> = draw.values(m * K, 1.0).into_iter().map(f64::from).collect();
    x[BLOCK].fill(f64::from(amplitude));
    let code = |k: usize, n: usize| if BLOCK.contains(&k) { 0 } else { (7 * k + 5 * n) % 16 };
    let word = |w: usize| {
        let (row, n) = (w / N, w % N);
        (0..8).fold(0u32, |word, j| word | (code(8 * row + j, n) as u32) << (4 * j)).cast_signed()
    };
    let qweight: Vec<i32> = (0..K / 8 * N).map(word).collect();
    // Version 1 stores the zero point less one.
    let qzeros = vec![0x7777_7777; K / 128 * N / 8];
    let scales = vec![0.002; K / 128 * N];
    let dequant = json!({ "bits": 4, "group_size": 128, "format": "v1" });
    let params = json!({ "dequant": dequant, "matmul": { "layout": "in_out" } });
    let tensors = vec![
        ("x", Tensor::from_f64(Dtype::F16, &[m, K], &x)),
        ("qweight", Tensor::from_i32(&[K / 8, N], &qweight)),
        ("qzeros", Tensor::from_i32(&[K / 128, N / 8], &qzeros)),
        ("scales", Tensor::from_f64(Dtype::F16, &[K / 128, N], &scales)),
    ];
    case("gptq_gemm", params, Dtype::F16, tensors)
}

#[test]
fn a_path_for_few_rows_that_overflows_is_named_with_its_condition_block_and_amplitude() {
    let kernel = kernel("gptq_gemm");
    let runs = |source: &str, rows: &[usize], amplitude: f32| -> Vec<Observation> {
        let backend = emulated(source);
        let run = |&m: &usize| {
            let label = format!("prompt of {m}, {amplitude}");
            observed(kernel, &backend, &layer(m, amplitude), &label)
        };
        rows.iter().map(run).collect()
    };
    let source = broken(kernel, "few_unscaled_in_f16");
    let bad = runs(&source, &[12, 50, 51, 60], 2100.0);
    // Four times -8 of 2100 are -67200, beyond f16; scaled, the block is -268.8.
    let first = |run: &Observation| run.output.to_f64()[..N].to_vec();
    assert!(first(&bad[0]).iter().all(|y| *y == f64::NEG_INFINITY));
    assert!(first(&bad[3]).iter().all(|y| (y + 268.8).abs() < 2.0));

    let found = judge("gptq_gemm", &bad);
    assert_eq!(found[0].name, "gptq_gemm.unscaled_f16_accumulation", "{found:#?}");
    assert_eq!(found.len(), 1, "{found:#?}");
    says(&found[0].text, &["; only M <= 50", "in k 128..136, where |x| reaches 2100", "at 2047)"]);
    // Two prompts alone leave open where the path ends.
    let found = judge("gptq_gemm", &[bad[0].clone(), bad[3].clone()]);
    says(&found[0].text, &["; only M <= 12 (60 is right, none between was tried)"]);
    // At 2000 nothing overflows; the sums are still too coarse.
    let found = judge("gptq_gemm", &runs(&source, &[12, 60], 2000.0));
    assert_eq!(found[0].name, "gptq_gemm.unscaled_f16_accumulation", "{found:#?}");
    assert!(!found[0].text.contains("not finite"), "{}", found[0].text);

    let found = judge("gptq_gemm", &runs(kernel.source, &[12, 50, 51, 60], 2100.0));
    assert!(found.is_empty(), "{found:#?}");
}

// --- split-K that leaves a few cells of the last tile unwritten ------------------------------------------
// <https://github.com/ROCm/rocm-libraries/issues/9055>

/// What a bf16 buffer may hold before: NaN, as in the report; zeros; activations of an earlier layer.
const BEFORE: [[u8; 2]; 3] = [[0xc0, 0x7f], [0, 0], [0x5a, 0x3f]];

fn product([m, n, k]: [usize; 3]) -> Arc<Case> {
    let mut draw = Draw::new((m + n + k) as u64);
    let tensors = vec![
        ("x", bf16(&[m, k], &draw.values(m * k, 1.0))),
        ("weight", bf16(&[n, k], &draw.values(n * k, 1.0))),
    ];
    case("matmul", json!({}), Dtype::Bf16, tensors)
}

/// The unwritten cells of a product over each of `fills`, by the finding's text.
fn unwritten(source: &str, shape: [usize; 3], fills: &[[u8; 2]]) -> Vec<String> {
    let kernel = kernel("gemm_bf16_splitk");
    let (backend, case) = (emulated(source), product(shape));
    let one = |fill: &[u8; 2]| {
        let options = LaunchOptions { fill: fill.to_vec(), threads: 2, ..LaunchOptions::default() };
        let options = LaunchOptions { deadline: std::time::Duration::from_secs(7200), ..options };
        let launched = (kernel.run)(&backend, &case, &options).expect("the emulator runs");
        let findings = launched.report.findings;
        let only = |f: &MemoryFinding| matches!(f, MemoryFinding::UnwrittenOutput { .. });
        assert!(findings.iter().all(only), "{findings:#?}");
        findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    fills.iter().map(one).collect()
}

#[test]
fn cells_that_split_k_never_writes_are_listed_with_the_shapes_that_have_them() {
    let kernel = kernel("gemm_bf16_splitk");
    let source = broken(kernel, "edge_cells_missing");
    // 98 = 64 + 34, as 546 = 8 * 64 + 34; 576 columns are whole tiles, as 9728 are.
    for text in unwritten(&source, [98, 576, 40], &BEFORE) {
        says(&text, &["leaves 5 of 56448 elements of y unwritten", "as 2 different fills show"]);
        says(&text, &["[97, 571..=575]"]);
    }
    for m in [64, 128] {
        assert_eq!(unwritten(&source, [m, 576, 40], &BEFORE), ["", "", ""]);
    }
    assert_eq!(unwritten(kernel.source, [98, 576, 40], &BEFORE), ["", "", ""]);

    let report =
        check_kernel(kernel, (&source, Matrix::None), 1, Profile::Power, &|| {}).expect("runs");
    let found = report.judgement.verdict.findings();
    assert_eq!(found[0].name, "memory.unwritten_output", "{found:#?}");
    says(&found[0].text, &["; only where M is no multiple of 64"]);
}

#[test]
#[ignore = "13.6 billion multiply-adds a launch, some 20 minutes; run with `cargo test --release -p assay-tests --test promises reported_shape -- --ignored`"]
fn cells_that_split_k_never_writes_at_the_reported_shape() {
    let source = broken(kernel("gemm_bf16_splitk"), "edge_cells_missing");
    let text = unwritten(&source, [546, 9728, 2560], &BEFORE[..1]).remove(0);
    says(&text, &["leaves 5 of 5311488 elements of y unwritten", "[545, 9723..=9727]"]);
    assert_eq!(unwritten(&source, [512, 9728, 2560], &BEFORE[..1]), [""]);
}
