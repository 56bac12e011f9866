//! A fused add and norm that stores the residual stream by truncation: each call is within an ulp, the
//! stream shrinks from layer to layer. As reported in <https://github.com/ROCm/aiter/issues/5151>.
//!
//! The engine has the shape of Qwen3-0.6B: hidden 1024, 28 layers of two norms, 16 heads over 8, head_dim
//! 128, MLP 3072. Projections are folds and permutations, since only the other ops are on trial.

use assay_reference::ops::Scope;
use assay_tests::subject::judged;
use assay_verify::judge::{Judgement, Observation, Options, Unseen, Verdict, drift, judge_output};
use serde_json::json;

use super::plain::{Draw, bf16, nearest, rms_norm, run, truncated};

const HIDDEN: usize = 1024;
const LAYERS: usize = 28;
const TOKENS: usize = 4;
const HEADS: usize = 16;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const MLP: usize = 3072;
const EPS: f32 = 1e-6;

/// What the engine recorded, by op.
#[derive(Default)]
struct Recorded {
    residual: Vec<Observation>,
    normed: Vec<Observation>,
    attention: Vec<Observation>,
    silu_mul: Vec<Observation>,
    /// The stream at the end.
    stream: Vec<f32>,
}

/// Row by row: output i is a signed mean of `fan` inputs, a stand-in for a projection.
fn folded(x: &[f32], from: usize, to: usize, salt: usize) -> Vec<f32> {
    let fan = 3;
    let one = |row: &[f32], i: usize| {
        let pick = |n: usize| {
            let at = (i * 7 + n * 331 + salt * 17 + i / from * 5) % from;
            if (i + n + salt).is_multiple_of(2) { row[at] } else { -row[at] }
        };
        nearest((0..fan).map(pick).sum::<f32>() * 0.577)
    };
    x.chunks(from).flat_map(|row| (0..to).map(move |i| one(row, i))).collect()
}

/// Causal softmax(q k^T / sqrt(d)) v in f32, P in f32, rounded once.
fn attention(q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(q.len());
    for t in 0..TOKENS {
        for h in 0..HEADS {
            let row = |x: &[f32], t: usize, heads: usize, h: usize| {
                x[(t * heads + h) * HEAD_DIM..(t * heads + h + 1) * HEAD_DIM].to_vec()
            };
            let query = row(q, t, HEADS, h);
            let kv = h / (HEADS / KV_HEADS);
            let scores: Vec<f32> = (0..=t)
                .map(|j| {
                    let key = row(k, j, KV_HEADS, kv);
                    query.iter().zip(&key).map(|(a, b)| a * b).sum::<f32>()
                        * (1.0 / (HEAD_DIM as f32).sqrt())
                })
                .collect();
            let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let p: Vec<f32> = scores.iter().map(|s| exp(s - top)).collect();
            let sum: f32 = p.iter().sum();
            for i in 0..HEAD_DIM {
                let acc: f32 = (0..=t).map(|j| p[j] * row(v, j, KV_HEADS, kv)[i]).sum();
                out.push(nearest(acc / sum));
            }
        }
    }
    out
}

#[expect(clippy::disallowed_methods, reason = "the subject is no part of the reference")]
fn exp(x: f32) -> f32 {
    f64::from(x).exp() as f32
}

/// The engine with a store of the residual stream.
fn engine(store: fn(f32) -> f32) -> Recorded {
    let mut draw = Draw::new(41);
    let mut stream = draw.values(TOKENS * HIDDEN, 1.0);
    let mut block = draw.values(TOKENS * HIDDEN, 0.05);
    let mut seen = Recorded::default();
    for layer in 0..LAYERS {
        for half in ["attention", "mlp"] {
            let weight = draw.weights(HIDDEN);
            // The fused kernel: the norm reads the f32 sum from registers.
            let sum: Vec<f32> = stream.iter().zip(&block).map(|(a, b)| a + b).collect();
            let normed = rms_norm(&sum, &weight, EPS, |_| true);
            let stored: Vec<f32> = sum.iter().map(|x| store(*x)).collect();
            let shape = [TOKENS, HIDDEN];
            let fused = |output: &[f32]| {
                let tensors = [
                    ("a", bf16(&shape, &stream)),
                    ("b", bf16(&shape, &block)),
                    ("weight", bf16(&[HIDDEN], &weight)),
                ];
                let params = json!({ "norm": { "eps": 1e-6 } });
                let label = format!("layer {layer} before {half}");
                run("add_rms_norm", &params, label, tensors, bf16(&shape, output))
            };
            seen.residual.push(fused(&stored));
            seen.normed.push(fused(&normed));
            for (s, exact) in stored.iter().zip(&sum) {
                let ulp = f32::from_bits((exact.to_bits() & 0x7f80_0000).max(0x0800_0000)) / 128.0;
                assert!((s - exact).abs() < ulp, "{s} for {exact}");
            }
            stream = stored;
            block = if half == "attention" {
                attend(&normed, layer, &mut seen)
            } else {
                mlp(&normed, layer, &mut seen)
            };
        }
    }
    seen.stream = stream;
    seen
}

fn attend(x: &[f32], layer: usize, seen: &mut Recorded) -> Vec<f32> {
    let q = folded(x, HIDDEN, HEADS * HEAD_DIM, layer);
    let k = folded(x, HIDDEN, KV_HEADS * HEAD_DIM, layer + 1);
    let v = folded(x, HIDDEN, KV_HEADS * HEAD_DIM, layer + 2);
    let out = attention(&q, &k, &v);
    if layer.is_multiple_of(9) {
        let (heads, kv) = ([TOKENS, HEADS, HEAD_DIM], [TOKENS, KV_HEADS, HEAD_DIM]);
        let tensors = [("q", bf16(&heads, &q)), ("k", bf16(&kv, &k)), ("v", bf16(&kv, &v))];
        let params = json!({ "scale": 1.0 / (HEAD_DIM as f64).sqrt() });
        let label = format!("layer {layer} attention");
        seen.attention.push(run("attention", &params, label, tensors, bf16(&heads, &out)));
    }
    folded(&out, HEADS * HEAD_DIM, HIDDEN, layer).into_iter().map(|x| nearest(x * 0.1)).collect()
}

fn mlp(x: &[f32], layer: usize, seen: &mut Recorded) -> Vec<f32> {
    let gate = folded(x, HIDDEN, MLP, layer + 3);
    let up = folded(x, HIDDEN, MLP, layer + 4);
    let silu = |g: f32| g / (1.0 + exp(-g));
    let out: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| nearest(silu(*g) * u)).collect();
    if layer.is_multiple_of(9) {
        let shape = [TOKENS, MLP];
        let tensors = [("gate", bf16(&shape, &gate)), ("up", bf16(&shape, &up))];
        let label = format!("layer {layer} mlp");
        seen.silu_mul.push(run("silu_mul", &json!({}), label, tensors, bf16(&shape, &out)));
    }
    folded(&out, MLP, HIDDEN, layer).into_iter().map(|x| nearest(x * 0.1)).collect()
}

fn judged_output(output: &str, runs: &[Observation]) -> Judgement {
    let options =
        Options { scope: Scope::Kernel, unseen: Unseen::Nothing, preset: None, known: None };
    judge_output("add_rms_norm", output, runs, options).expect("runs of the op")
}

#[track_caller]
fn passes(judgement: &Judgement) -> Vec<String> {
    match &judgement.verdict {
        Verdict::Pass { conventions, .. } => conventions.clone(),
        other => panic!("{other:#?}"),
    }
}

/// The part of the first stream that is still in the last one.
fn left(faulty: &[f32], sound: &[f32]) -> f64 {
    let start = Draw::new(41).values(TOKENS * HIDDEN, 1.0);
    let along =
        |x: &[f32]| x.iter().zip(&start).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    along(faulty) / along(sound)
}

#[test]
fn a_truncated_residual_stream_is_found_and_nothing_else() {
    let (faulty, sound) = (engine(truncated), engine(nearest));
    assert_eq!(faulty.residual.len(), drift::additions(LAYERS));
    let residual = judged_output("residual", &faulty.residual);
    let findings = residual.verdict.findings();
    let names: Vec<&str> = findings.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["add_rms_norm.residual_truncating_store"], "{findings:#?}");
    let text = &findings[0].text;
    assert!(text.contains("(100.0 %)"), "{text}");
    assert!(text.contains("error -0.5"), "{text}");
    assert!(text.contains("56 such roundings in a row"), "{text}");
    // The prediction in the text, against what the two engines really ended with.
    let predicted = text.split("leave ").nth(1).and_then(|t| t.split(' ').next());
    let predicted: f64 = predicted.and_then(|t| t.parse().ok()).expect("a figure");
    let measured = left(&faulty.stream, &sound.stream);
    assert!((predicted - measured).abs() < 0.02, "predicted {predicted}, measured {measured}");
    assert!(measured < 0.95, "{measured}");
    // The norm reads the sum before it is stored, so its own output is right; so is all the rest, on the
    // inputs that the engine gave it.
    passes(&judged_output("output", &faulty.normed));
    passes(&judged("attention", &faulty.attention, Scope::Kernel));
    passes(&judged("silu_mul", &faulty.silu_mul, Scope::Kernel));
    // The sound twin.
    passes(&judged_output("residual", &sound.residual));
    let conventions = passes(&judged_output("output", &sound.normed));
    assert_eq!(conventions, ["residual=f32"]);
    passes(&judged("attention", &sound.attention, Scope::Kernel));
    passes(&judged("silu_mul", &sound.silu_mul, Scope::Kernel));
}

/// An unknown output is refused by name.
#[test]
fn an_output_is_named_as_the_op_names_it() {
    let runs = engine(nearest).residual;
    let options =
        Options { scope: Scope::Kernel, unseen: Unseen::Nothing, preset: None, known: None };
    let e = judge_output("add_rms_norm", "sum", &runs[..1], options).expect_err("no such output");
    assert!(e.to_string().contains("output, residual"), "{e}");
}
