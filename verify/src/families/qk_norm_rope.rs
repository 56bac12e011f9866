//! Cases of `qk_norm_rope`: few and many heads, near and far positions, inputs so small that eps counts,
//! rows whose lanes can be told apart.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{Generated, Values, generated};

const OP: &str = "qk_norm_rope";

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let near: &[i32] = &[0, 1, 2, 3];
    let far: &[i32] = &[300, 4095, 32767];
    vec![
        random((near, 2, 128), seed, 1.0, Dtype::Bf16),
        random((near, 5, 64), seed, 1.0, Dtype::Bf16),
        random((far, 2, 128), seed, 1.0, Dtype::Bf16),
        random((&[17], 16, 128), seed, 1.0, Dtype::Bf16),
        random((&[9, 10], 2, 200), seed, 1.0, Dtype::Bf16),
        random((&[5, 6, 7], 3, 128), seed, 0.02, Dtype::Bf16),
        random((&[5, 6, 7], 3, 96), seed, 1.0, Dtype::F32),
        random((&[5, 6, 7], 3, 96), seed, 1.0, Dtype::F16),
        outlier(seed),
        lanes(seed),
        ties(seed, 1.0, 0.5),
        ties(seed, 1.5, 0.0),
    ]
}

fn build(
    family: &str,
    note: &str,
    seed: u64,
    dtype: Dtype,
    (positions, heads, d): (&[i32], usize, usize),
    [x, weight]: [Vec<f64>; 2],
) -> Generated {
    let t = positions.len();
    let tensors = Tensors::from([
        ("x".to_string(), Tensor::from_f64(dtype, &[t, heads, d], &x)),
        ("weight".to_string(), Tensor::from_f64(dtype, &[d], &weight)),
        ("positions".to_string(), Tensor::from_i32(&[t], positions)),
    ]);
    let params = json!({ "norm": { "eps": 1e-6 }, "rope": { "theta": 1e6 } });
    let label = format!("{t}x{heads}x{d} from {}{note}", positions[0]);
    generated(OP, (family, false), &label, seed, params, dtype, tensors)
}

fn weights(v: &mut Values, d: usize) -> Vec<f64> {
    (0..d).map(|_| 1.0 + v.normal(0.3)).collect()
}

fn random(
    (positions, heads, d): (&[i32], usize, usize),
    seed: u64,
    sd: f64,
    dtype: Dtype,
) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} {positions:?} {heads} {d} {sd} {dtype}"));
    let data = [v.normals(positions.len() * heads * d, sd), weights(&mut v, d)];
    build("unit", &format!(" sd {sd} {dtype}"), seed, dtype, (positions, heads, d), data)
}

/// A few dimensions far larger than the others, as the biases of Qwen2.5's keys make them.
fn outlier(seed: u64) -> Generated {
    let (positions, heads, d) = ([20, 21, 22], 4, 128);
    let mut v = Values::new(seed, "qk_norm_rope outlier");
    let mut x = v.normals(3 * heads * d, 1.0);
    for row in x.chunks_mut(d) {
        row[60] += 100.0;
        row[124] += 147.0;
    }
    let weight = weights(&mut v, d);
    build("outlier", "", seed, Dtype::Bf16, (&positions, heads, d), [x, weight])
}

/// Row l has its weight in lane l of 64, so that each lost lane shows by itself.
fn lanes(seed: u64) -> Generated {
    let d = 128;
    let positions: Vec<i32> = (0..4).collect();
    let mut v = Values::new(seed, "qk_norm_rope lanes");
    let lit = |i: usize| if i % d % 64 == i / d { 8.0 } else { 0.5 };
    let x = (0..64 * d).map(|i| v.normal(lit(i))).collect();
    let weight = weights(&mut v, d);
    build("unit", " lanes", seed, Dtype::Bf16, (&positions, 16, d), [x, weight])
}

/// Values of +-2 with eps 0, which become the weights or their negatives, at position 0, where the
/// rotation multiplies by the attention factor alone. The weights have 8 bits and `half` of the last: as
/// f32 they lie half-way between two bf16 numbers, and so do 8 bits times 1.5.
fn ties(seed: u64, factor: f64, half: f64) -> Generated {
    let (heads, d) = (2, 64);
    let mut v = Values::new(seed, &format!("qk_norm_rope ties {factor}"));
    let x = (0..heads * d).map(|_| if v.below(2) == 0 { 2.0 } else { -2.0 }).collect();
    let weight: Vec<f64> = (0..d).map(|_| v.int(128, 255) as f64 + half).collect();
    let data = [x, weight.clone()];
    let note = format!(" ties, factor {factor}");
    let mut g = build("exact", &note, seed, Dtype::Bf16, (&[0], heads, d), data);
    g.structured = true;
    let scaling = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": true, "attention_factor": factor,
    });
    g.case.params = json!({ "norm": { "eps": 0.0 }, "rope": { "theta": 1e6, "scaling": scaling } });
    g.case.tensors.insert("weight".into(), Tensor::from_f64(Dtype::F32, &[d], &weight));
    g
}
