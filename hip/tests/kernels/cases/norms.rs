//! Norms and rotations, alone and fused.

use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{HALF_ULP_BF16, Random, TestCase, case};
use crate::exact::{self, Exact};

const EPS: f64 = 1e-6;

/// Bf16 values near 1, as norms have them.
fn norm_weight(random: &mut Random, d: usize) -> Tensor {
    let values: Vec<f64> = (0..d).map(|_| 1.0 + 0.4 * random.unit()).collect();
    Tensor::from_f64(Dtype::Bf16, &[d], &values)
}

/// T tokens of some heads, of which the first few are normalised.
pub(super) fn rms_norm(
    name: &'static str,
    [t, all, heads]: [usize; 3],
    d: usize,
    size: f64,
) -> TestCase {
    let mut random = Random(13 + d as u64);
    let x = random.tensor(Dtype::Bf16, &[t, all, d], size);
    let weight = norm_weight(&mut random, d);
    let own: Vec<f64> =
        x.to_f64().chunks_exact(all * d).flat_map(|token| token[..heads * d].to_vec()).collect();
    let exact = exact::rms_norm(&own, &weight.to_f64(), EPS);
    let params = json!({ "eps": EPS, "heads": heads });
    let case = case("rms_norm", params, Dtype::Bf16, vec![("x", x), ("weight", weight)]);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

pub(super) fn add_rms_norm(name: &'static str, rows: usize, d: usize, size: f64) -> TestCase {
    let mut random = Random(17 + d as u64);
    let a = random.tensor(Dtype::Bf16, &[rows, d], size);
    let b = random.tensor(Dtype::Bf16, &[rows, d], size);
    let weight = norm_weight(&mut random, d);
    let sums: Vec<f64> = a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a + b).collect();
    let stored = Tensor::from_f64(Dtype::Bf16, &[rows, d], &sums).to_f64();
    let mut exact = exact::rms_norm(&stored, &weight.to_f64(), EPS);
    exact.extend(sums.iter().map(|&value| Exact { value, magnitude: value.abs() }));
    let params = json!({ "norm": { "eps": EPS } });
    let tensors = vec![("a", a), ("b", b), ("weight", weight)];
    let case = case("add_rms_norm", params, Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

pub(super) fn rope(name: &'static str, positions: &[i32], heads: usize, d: usize) -> TestCase {
    let t = positions.len();
    let x = Random(19 + d as u64).tensor(Dtype::Bf16, &[t, heads, d], 1.0);
    let exact = exact::rope(&x.to_f64(), positions, d, 1e6);
    let tensors = vec![("x", x), ("positions", Tensor::from_i32(&[t], positions))];
    let case = case("rope", json!({ "theta": 1e6 }), Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-6 }
}

pub(super) fn qk_norm_rope(
    name: &'static str,
    positions: &[i32],
    heads: usize,
    size: f64,
) -> TestCase {
    const D: usize = 128;
    let t = positions.len();
    let mut random = Random(23);
    let x = random.tensor(Dtype::Bf16, &[t, heads, D], size);
    let weight = norm_weight(&mut random, D);
    let normed: Vec<f64> =
        exact::rms_norm(&x.to_f64(), &weight.to_f64(), EPS).iter().map(|n| n.value).collect();
    let exact = exact::rope(&normed, positions, D, 1e6);
    let params = json!({ "norm": { "eps": EPS }, "rope": { "theta": 1e6 } });
    let positions = Tensor::from_i32(&[t], positions);
    let tensors = vec![("x", x), ("weight", weight), ("positions", positions)];
    let case = case("qk_norm_rope", params, Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}
