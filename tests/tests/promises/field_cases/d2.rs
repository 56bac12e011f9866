//! A block reduction written for 32 lanes on a device whose waves have 64: half of the squares are lost.
//! As reported in <https://github.com/turboderp-org/exllamav2/pull/137> and
//! <https://github.com/vllm-project/vllm/issues/3321>.

use assay_reference::Tensor;
use assay_reference::ops::Scope;
use assay_tests::subject::judged;
use assay_verify::finding::Finding;
use assay_verify::judge::Observation;
use serde_json::json;

use super::plain::{Draw, bf16, nearest, rms_norm, run};

const HEAD_DIM: usize = 128;
const HIDDEN: usize = 4096;
const EPS: f32 = 1e-6;

/// Which lanes enter the sum.
type Keeps = fn(usize) -> bool;

const ALL: Keeps = |_| true;
const LOWER: Keeps = |lane| lane < 32;
/// No fault of the catalogue: every fourth lane is lost.
const SOME: Keeps = |lane| lane % 4 != 3;

/// Rows of unit scale.
fn rows(seed: u64, rows: usize, d: usize) -> Vec<f32> {
    Draw::new(seed).values(rows * d, 1.0)
}

/// Row l is large in lane l only.
fn one_hot(seed: u64, d: usize) -> Vec<f32> {
    let mut x = Draw::new(seed).values(64 * d, 0.1);
    for (l, row) in x.chunks_mut(d).enumerate() {
        row.iter_mut().skip(l).step_by(64).for_each(|v| *v = nearest(*v * 160.0));
    }
    x
}

fn norm_run(x: &[f32], d: usize, shape: &[usize], label: &str, keeps: Keeps) -> Observation {
    let weight = Draw::new(d as u64).weights(d);
    let out = bf16(shape, &rms_norm(x, &weight, EPS, keeps));
    let tensors = [("x", bf16(shape, x)), ("weight", bf16(&[d], &weight))];
    run("rms_norm", &json!({ "eps": 1e-6 }), label.into(), tensors, out)
}

/// The norm over head_dim of 8 tokens of 16 heads, and the norm over the hidden size; of each, rows that
/// tell the lanes apart.
fn norm_runs(keeps: Keeps) -> Vec<Observation> {
    let heads = |x: Vec<f32>, t: usize, label: &str| {
        norm_run(&x, HEAD_DIM, &[t, 16, HEAD_DIM], label, keeps)
    };
    let full =
        |x: Vec<f32>, t: usize, label: &str| norm_run(&x, HIDDEN, &[t, HIDDEN], label, keeps);
    vec![
        heads(rows(1, 128, HEAD_DIM), 8, "q_norm"),
        heads(one_hot(2, HEAD_DIM), 4, "q_norm lanes"),
        full(rows(3, 8, HIDDEN), 8, "hidden 4096"),
        full(one_hot(4, HIDDEN), 64, "hidden 4096 lanes"),
    ]
}

/// The same heads, rotated after the norm; the head stays in f32 between.
fn fused_runs(keeps: Keeps) -> Vec<Observation> {
    let one = |x: Vec<f32>, t: usize, label: &str| {
        let weight = Draw::new(HEAD_DIM as u64).weights(HEAD_DIM);
        let mut out = Vec::with_capacity(x.len());
        for (r, row) in x.chunks(HEAD_DIM).enumerate() {
            out.extend(rotated(&normed(row, &weight, keeps), 7 + r / 16));
        }
        let shape = [t, 16, HEAD_DIM];
        let positions: Vec<i32> = (0..t as i32).map(|i| 7 + i).collect();
        let tensors = [
            ("x", bf16(&shape, &x)),
            ("weight", bf16(&[HEAD_DIM], &weight)),
            ("positions", Tensor::from_i32(&[t], &positions)),
        ];
        let params = json!({ "norm": { "eps": 1e-6 }, "rope": { "theta": 1e6 } });
        run("qk_norm_rope", &params, label.into(), tensors, bf16(&shape, &out))
    };
    vec![one(rows(1, 128, HEAD_DIM), 8, "q"), one(one_hot(2, HEAD_DIM), 4, "q lanes")]
}

/// A row as the norm leaves it in registers.
fn normed(row: &[f32], weight: &[f32], keeps: Keeps) -> Vec<f32> {
    let squares = row.iter().enumerate().filter(|(i, _)| keeps(i % 64)).map(|(_, v)| v * v);
    let scale = 1.0 / (squares.sum::<f32>() / row.len() as f32 + EPS).sqrt();
    row.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

#[expect(clippy::disallowed_methods, reason = "the subject is no part of the reference")]
fn rotated(x: &[f32], position: usize) -> Vec<f32> {
    let half = x.len() / 2;
    let mut out = vec![0.0; x.len()];
    for i in 0..half {
        let inverse = (1.0 / 1e6f64.powf(2.0 * i as f64 / x.len() as f64)) as f32;
        let angle = f64::from(position as f32 * inverse);
        let (cos, sin) = (angle.cos() as f32, angle.sin() as f32);
        out[i] = nearest(x[i] * cos - x[i + half] * sin);
        out[i + half] = nearest(x[i + half] * cos + x[i] * sin);
    }
    out
}

fn findings(op: &str, runs: &[Observation]) -> Vec<Finding> {
    judged(op, runs, Scope::Kernel).verdict.findings()
}

/// The number behind a word of a finding's text.
#[track_caller]
fn figure(text: &str, word: &str) -> f64 {
    let behind = text.split(word).nth(1).unwrap_or_else(|| panic!("no `{word}` in: {text}"));
    let number = behind.trim().split([' ', ',', ';']).next().unwrap_or_default();
    number.parse().unwrap_or_else(|_| panic!("no number behind `{word}` in: {text}"))
}

#[test]
fn a_norm_that_loses_half_of_its_lanes_is_named_with_gain_cosine_and_lanes() {
    for runs in [norm_runs(LOWER), norm_runs(LOWER)[2..].to_vec()] {
        let found = findings("rms_norm", &runs);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].name, "rms_norm.half_lanes");
        let text = &found[0].text;
        assert!(text.contains("lanes 32..=63 of 64 are lost"), "{text}");
    }
    // Rows of unit scale alone: the square root of two, and a cosine that no criterion would refuse.
    let found = findings("rms_norm", &norm_runs(LOWER)[2..3]);
    let text = &found[0].text;
    assert!((figure(text, "gain") - 1.414).abs() < 0.03, "{text}");
    assert!(figure(text, "cosine") >= 0.999_99, "{text}");
}

#[test]
fn the_same_under_a_fused_norm_and_rotation() {
    let found = findings("qk_norm_rope", &fused_runs(LOWER));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].name, "qk_norm_rope.half_lanes");
    assert!(found[0].text.contains("lanes 32..=63 of 64 are lost"), "{}", found[0].text);
}

#[test]
fn sound_twins_pass() {
    let found = findings("rms_norm", &norm_runs(ALL));
    assert!(found.is_empty(), "{found:#?}");
    let found = findings("qk_norm_rope", &fused_runs(ALL));
    assert!(found.is_empty(), "{found:#?}");
}

/// The list of lanes is solved, not looked up: it is there for losses that have no name.
#[test]
fn lanes_that_no_fault_describes_are_listed_all_the_same() {
    let found = findings("rms_norm", &norm_runs(SOME)[..2]);
    assert_eq!(found[0].name, "unexplained", "{found:#?}");
    assert!(found[0].text.contains("lanes 3, 7, 11"), "{}", found[0].text);
}
