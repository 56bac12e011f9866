//! The logits of independent implementations.

use assay_reference::arith::Ball;
use assay_reference::qwen::plan::as_loaded;
use assay_reference::trace::Trace;
use assay_reference::{Dtype, Tensor};

use crate::support::{checkpoint, golden, logits, logits_in, probe_values, relative_rms};

const CHECKPOINTS: [&str; 3] = ["tiny-qwen2", "tiny-qwen3", "trained-qwen3"];

/// The breadth of the architectures: head ratios, odd vocabulary, rope scalings, windows, experts.
const BREADTH: [&str; 9] = [
    "gqa7-qwen2",
    "yarn-qwen3",
    "yarn-attn-qwen2",
    "linear-qwen3",
    "dynamic-qwen3",
    "window-qwen2",
    "window-off-qwen2",
    "moe-qwen3",
    "moe-norm-qwen3",
];

/// A recorded trace's tokens and logits.
fn recorded(name: &str) -> (Vec<u32>, Vec<f64>) {
    let trace = Trace::open(&golden("traces").join(name)).expect("a golden trace");
    let logits = trace.get("logits").expect("recorded").to_f64();
    (trace.manifest().tokens.clone(), logits)
}

/// The tokens of each call of a recorded forward.
fn calls(trace: &Trace) -> Vec<Vec<u32>> {
    let m = trace.manifest();
    m.segments.iter().map(|&(start, end)| m.tokens[start..end].to_vec()).collect()
}

/// Two float64 forwards that share no code differ by 5e-15 of the maximum (golden/README.md). Each op
/// adds a few u = 1.1e-16 times the square root of its length, amplified by the depth: 1e-11 leaves a
/// factor of a thousand, and a thousandth of it would still show a single f32 rounding (6e-8).
#[test]
fn the_oracle_equals_true_float64() {
    for name in CHECKPOINTS.into_iter().chain(BREADTH).chain(["long-qwen3"]) {
        let trace = Trace::open(&golden("traces").join(name).join("f64")).expect("a golden trace");
        let want = trace.get("logits").expect("recorded").to_f64();
        let calls = calls(&trace);
        let got = logits_in::<f64>(&checkpoint(name), "oracle-f64", &calls);
        assert_eq!(got.len(), want.len());
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (i, (a, b)) in got.iter().zip(&want).enumerate() {
            assert!((a - b).abs() <= 1e-11 * scale, "{name} at {i}: {a} for {b}");
        }
        let relative = relative_rms(&got, &want);
        assert!(relative <= 1e-13, "{name}: relative rms {relative:e}");
    }
}

/// transformers in f32 is 3e-7 to 9e-7 from float64 in relative rms (golden/README.md), and so is any
/// f32 forward; two of them differ by no more than their sum. 1e-5 is the limit that another CPU's
/// transformers is held to.
#[test]
fn f32_equals_transformers_f32() {
    for name in CHECKPOINTS {
        let (tokens, want) = recorded(&format!("{name}/f32"));
        let relative = relative_rms(&logits::<f32>(&checkpoint(name), "f32", &tokens), &want);
        assert!(relative <= 2e-6, "{name}: relative rms {relative:e}");
    }
}

/// The f32 forward is as close to float64 as transformers' own, up to its other rope table.
#[test]
fn f32_is_close_to_true_float64() {
    for name in CHECKPOINTS {
        let (tokens, want) = recorded(&format!("{name}/f64"));
        let own = relative_rms(&logits::<f32>(&checkpoint(name), "f32", &tokens), &want);
        let theirs = relative_rms(&recorded(&format!("{name}/f32")).1, &want);
        assert!(own <= 2.0 * theirs, "{name}: {own:e}, transformers {theirs:e}");
    }
}

/// bf16 noise is 5.6e-3 to 1.4e-2 against float64 (golden/README.md). Under transformers' own
/// conventions the same roundings fall in the same places, so that most elements are equal; where an
/// f32 sum in another order lands on the other side of a tie, one bf16 ulp spreads through the layers.
/// The difference is a fraction of the noise.
#[test]
fn the_bf16_preset_follows_transformers_bf16() {
    let quantised =
        ["gptq-qwen3", "gptq3-qwen3", "gptq8-qwen2", "awq-qwen3", "ct-qwen3", "fp8-qwen3"];
    for (name, trace) in CHECKPOINTS.iter().chain(&quantised).map(|n| (n, format!("{n}/bf16"))) {
        let (tokens, want) = recorded(&trace);
        let got = logits::<f32>(&checkpoint(name), "transformers-bf16", &tokens);
        let relative = relative_rms(&got, &want);
        let equal =
            got.iter().zip(&want).filter(|(a, b)| a == b).count() as f64 / want.len() as f64;
        assert!(equal >= 0.7, "{name}: {equal} equal");
        assert!(relative <= 3e-3, "{name}: relative rms {relative:e}");
    }
}

/// Rows tell apart what an average hides: no row of the f32 forward is far off.
#[test]
fn no_row_of_the_f32_forward_is_far_off() {
    for name in CHECKPOINTS {
        let (tokens, want) = recorded(&format!("{name}/f32"));
        let got = logits::<f32>(&checkpoint(name), "f32", &tokens);
        let vocab = want.len() / tokens.len();
        for (r, (got, want)) in got.chunks(vocab).zip(want.chunks(vocab)).enumerate() {
            let relative = relative_rms(got, want);
            assert!(relative <= 1e-5, "{name} row {r}: relative rms {relative:e}");
        }
    }
}

/// A recording of layer outputs and logits alone cannot be judged op by op; the oracle run over balls
/// carries its own error from the tokens to each of them, here at eight standard deviations. The
/// recorded value may be off by as much as the oracle, so the two intervals must meet. That bound grows
/// with every layer, as errors might; what two f64 forwards really differ by is held to 1e-11 of the
/// probe's scale, as the logits are.
#[test]
fn layer_outputs_of_a_chunked_prompt_are_within_the_f64_bound() {
    let trace = Trace::open(&golden("traces/long-qwen3/f64")).expect("a golden trace");
    let balls = probe_values::<Ball<53>>(&checkpoint("long-qwen3"), "oracle-f64", &calls(&trace));
    assert_eq!(trace.manifest().segments.len(), 3);
    let mut compared = 0;
    for probe in trace.names() {
        let Some(balls) = balls.get(probe) else {
            assert!(probe.starts_with("rope."), "{probe} is no probe of the reference");
            continue;
        };
        let want = trace.get(probe).expect("a name of the trace").to_f64();
        assert_eq!(balls.len(), want.len(), "{probe}");
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (i, (ball, w)) in balls.iter().zip(&want).enumerate() {
            let (radius, off) = (ball.radius(8.0), (ball.v - w).abs());
            assert!(off <= 2.0 * radius, "{probe} at {i}: {} for {w}, radius {radius:e}", ball.v);
            assert!(off <= 1e-11 * scale, "{probe} at {i}: {} for {w} at scale {scale}", ball.v);
        }
        compared += 1;
    }
    assert!(compared >= 3, "{compared} probes");
}

/// transformers' f16 forward under its preset: most roundings fall alike, so that it is closer to
/// transformers than either is to float64.
#[test]
fn the_f16_preset_follows_transformers_f16() {
    for name in ["tiny-qwen2", "tiny-qwen3", "moe-qwen3", "moe-norm-qwen3", "yarn-attn-qwen2"] {
        let (tokens, want) = recorded(&format!("{name}/f16"));
        let got = logits::<f32>(&checkpoint(name), "transformers-f16", &tokens);
        let relative = relative_rms(&got, &want);
        // Two f16 forwards that share no rounding would differ by 1.4 times the noise of either.
        let noise = relative_rms(&want, &recorded(&format!("{name}/f64")).1);
        assert!(relative <= 0.5 * noise, "{name}: relative rms {relative:e}, noise {noise:e}");
    }
}

/// Engines cast weights and biases to a 16-bit dtype when they load them, and nothing else.
#[test]
fn weights_are_cast_as_engines_cast_them() {
    let stored = |dtype| Tensor::from_f64(dtype, &[2], &[0.1, -3.0]);
    for arg in ["weight", "bias", "experts.3.up_proj.weight"] {
        let cast = as_loaded(stored(Dtype::F32), arg, Dtype::Bf16);
        assert_eq!(
            (cast.dtype(), cast.to_f64()),
            (Dtype::Bf16, vec![0.10009765625, -3.0]),
            "{arg}"
        );
        assert_eq!(as_loaded(stored(Dtype::F16), arg, Dtype::F32).dtype(), Dtype::F16);
    }
    for arg in ["scales", "weight_scale", "weight_scale_inv", "x"] {
        assert_eq!(as_loaded(stored(Dtype::F16), arg, Dtype::Bf16).dtype(), Dtype::F16, "{arg}");
    }
    let e4m3 = as_loaded(stored(Dtype::F8E4m3), "weight", Dtype::Bf16);
    assert_eq!(e4m3.dtype(), Dtype::F8E4m3);
}
