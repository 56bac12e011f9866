//! Cases of `qk_norm_rope`: few and many heads, near and far positions, inputs so small that eps counts,
//! rows whose lanes can be told apart.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::draft::{EXACT, Family, OUTLIER, SPECIAL, UNIT};
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
        exact(64, seed),
        tiny(80, seed),
        random((&[3, 4, 5], 2, 66), seed, 1.0, Dtype::Bf16),
        scaled("yarn", seed),
        scaled("dynamic", seed),
        special(32, seed),
        // Wider than every tile, and the base frequency of the first Qwen2 models.
        random((&[7, 8], 2, 264), seed, 1.0, Dtype::Bf16),
        with_theta(64, 1e4, seed),
    ]
}

/// Head sizes and numbers of heads on both sides of what waves take, and of the heads of 128 that a kernel
/// is for what `cases` has of others.
pub(super) fn edges(seed: u64) -> Vec<Generated> {
    let sizes = [2, 62, 66, 80, 126, 130, 256].map(|d| (3, d));
    let heads = [1, 7, 8, 14, 28, 40].map(|h| (h, 16));
    let full = [1, 3, 4, 5, 8].map(|h| (h, 128));
    let one = |(h, d)| random((&[7, 8, 20_000], h, d), seed, 1.0, Dtype::Bf16);
    let own = [
        exact(128, seed),
        tiny(128, seed),
        special(128, seed),
        with_theta(128, 1e4, seed),
        random((&[39_998, 39_999], 2, 128), seed, 1.0, Dtype::Bf16),
    ];
    sizes.into_iter().chain(heads).chain(full).map(one).chain(own).collect()
}

fn build(
    family: Family,
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
    let eps = if family == EXACT { 0.0 } else { 1e-6 };
    let params = json!({ "norm": { "eps": eps }, "rope": { "theta": 1e6 } });
    let label = format!("{t}x{heads}x{d} from {}{note}", positions[0]);
    generated(OP, family, &label, seed, params, dtype, tensors)
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
    build(UNIT, &format!(" sd {sd} {dtype}"), seed, dtype, (positions, heads, d), data)
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
    build(OUTLIER, "", seed, Dtype::Bf16, (&positions, heads, d), [x, weight])
}

/// Row l has its weight in lane l of 64, so that each lost lane shows by itself.
fn lanes(seed: u64) -> Generated {
    let d = 128;
    let positions: Vec<i32> = (0..4).collect();
    let mut v = Values::new(seed, "qk_norm_rope lanes");
    let lit = |i: usize| if i % d % 64 == i / d { 8.0 } else { 0.5 };
    let x = (0..64 * d).map(|i| v.normal(lit(i))).collect();
    let weight = weights(&mut v, d);
    build(UNIT, " lanes", seed, Dtype::Bf16, (&positions, 16, d), [x, weight])
}

/// At position 0, an eighth of the elements +-5 and the others +-1: the scale is 1/2, and nothing turns.
fn exact(d: usize, seed: u64) -> Generated {
    let heads = 3;
    let mut v = Values::new(seed, "qk_norm_rope exact");
    let mut x = Vec::new();
    for _ in 0..2 * heads {
        let large = v.permutation(d);
        x.extend(large.into_iter().map(|i| if i < d / 8 { 5.0 } else { 1.0 } * [1.0, -1.0][i % 2]));
    }
    // 5/2 of an odd weight lies half-way between two bf16 numbers.
    let weight = (0..d).map(|i| 53.0 + 2.0 * (i % 5) as f64).collect();
    build(EXACT, "", seed, Dtype::Bf16, (&[0, 0], heads, d), [x, weight])
}

/// One kind a token: NaN, infinities, zeros of either sign, subnormals, large values.
fn special(d: usize, seed: u64) -> Generated {
    let heads = 2;
    let mut v = Values::new(seed, "qk_norm_rope special");
    let mut x = v.normals(6 * heads * d, 1.0);
    let row = heads * d;
    x[3] = f64::NAN;
    x[row + 5] = f64::INFINITY;
    for i in 0..row {
        x[2 * row + i] = if i % 2 == 0 { 0.0 } else { -0.0 };
        x[3 * row + i] = 1.1e-39 * (1.0 + i as f64);
        x[4 * row + i] *= 2e4;
    }
    let weight = weights(&mut v, d);
    build(SPECIAL, "", seed, Dtype::Bf16, (&[0, 1, 7, 300, 4000, 30_000], heads, d), [x, weight])
}

/// Heads so small that another eps shows, under an eps that models do not have.
fn tiny(d: usize, seed: u64) -> Generated {
    let mut g = random((&[5, 6], 3, d), seed, 1e-3, Dtype::Bf16);
    g.case.params["norm"]["eps"] = json!(1e-5);
    g.label += " eps 1e-5";
    g
}

fn with_theta(d: usize, theta: f64, seed: u64) -> Generated {
    let mut g = random((&[7, 300], 2, d), seed, 1.0, Dtype::Bf16);
    g.case.params["rope"]["theta"] = json!(theta);
    g.label += &format!(" theta {theta:e}");
    g
}

/// Under a scaling for long contexts, as Qwen3 documents it.
fn scaled(name: &str, seed: u64) -> Generated {
    let positions = [0, 257, 4095, 32_767, 39_999];
    let mut g = random((&positions, 1, 128), seed, 1.0, Dtype::Bf16);
    g.case.params["rope"]["scaling"] = match name {
        "yarn" => json!({
            "rope_type": "yarn", "factor": 4.0, "original_max_position": 32768, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": true, "attention_factor": 1.138_629_436_111_989,
        }),
        _ => json!({ "rope_type": "dynamic", "factor": 2.0, "max_position": 2048 }),
    };
    g.label += &format!(" {name}");
    g
}
