//! Base cases of the metamorphic relations: small, finite, and within the contracts of the kernels.

use assay_reference::{Case, Dtype, Tensor};

use super::draft::{Draft, UNIT};
use super::{Generated, attention, matmul, power_cases};

/// A chunk over a cache, and one query.
pub(crate) fn attention(seed: u64) -> [Case; 2] {
    let one = |d| attention::random(attention::d128(d), seed, UNIT, 0.5, 1.0).case;
    [one((6, 40, 4, 2)), one((1, 37, 2, 1))]
}

/// Without and with a bias.
pub(crate) fn matmul(seed: u64) -> [Case; 2] {
    [
        matmul::unit((5, 9, 72, false), seed, 1.0).case,
        matmul::unit((6, 10, 40, true), seed, 1.0).case,
    ]
}

/// The first small bf16 case of an op's unit family that has more than one row.
pub(crate) fn first(op: &str, seed: u64) -> Generated {
    let several = |g: &Generated| g.case.tensors.values().any(|t| t.shape()[0] > 1);
    let unit = |g: &Generated| g.case.family == UNIT.0 && g.case.dtype == Dtype::Bf16 && several(g);
    power_cases(op, seed)
        .into_iter()
        .find(unit)
        .expect("every op has a bf16 case of its unit family")
}

/// A quantised layer, or the product with one, and the number of its outputs.
pub(crate) fn layer(op: &str, seed: u64) -> (Case, usize) {
    let g = first(op, seed);
    let n = g.unobserved("output").expect("a case of the op").output.len();
    (g.case, n)
}

pub(crate) fn rms_norm(seed: u64) -> Case {
    first("rms_norm", seed).case
}

pub(crate) fn embedding(seed: u64) -> Case {
    first("embedding", seed).case
}

pub(crate) fn silu_mul(seed: u64) -> Case {
    first("silu_mul", seed).case
}

pub(crate) fn add(seed: u64) -> Case {
    first("add", seed).case
}

/// Two ranks.
pub(crate) fn all_reduce(seed: u64) -> Case {
    first("all_reduce", seed).case
}

/// Two ranks of different width.
pub(crate) fn all_gather(seed: u64) -> Case {
    first("all_gather", seed).case
}

pub(crate) fn moe_experts(seed: u64) -> Case {
    first("moe_experts", seed).case
}

/// Rows of distinct multiples of 1/8 in f32, the largest in column 1 of row 0.
fn eighths(op: &'static str, name: &str, [rows, cols]: [usize; 2], seed: u64) -> Draft {
    let draft = Draft::new(op, UNIT, "eighths", Dtype::Bf16, seed);
    let mut v = draft.values();
    let mut x: Vec<f64> = (0..rows)
        .flat_map(|_| v.permutation(cols))
        .map(|i| 0.125 * (i as f64 - cols as f64 / 2.0))
        .collect();
    x[1] = 0.125 * cols as f64;
    draft.tensor(name, Tensor::from_f64(Dtype::F32, &[rows, cols], &x))
}

pub(crate) fn softmax(seed: u64) -> Case {
    eighths("softmax", "x", [4, 40], seed).done().case
}

/// Indices are stored in f32.
pub(crate) fn argmax(seed: u64) -> Case {
    Case { dtype: Dtype::F32, ..eighths("argmax", "x", [5, 70], seed).done().case }
}

pub(crate) fn moe_route(seed: u64) -> Case {
    let params = serde_json::json!({ "top_k": 4, "normalise": true });
    eighths("moe_route", "logits", [5, 16], seed).params(params).done().case
}

/// Without scaling and with YaRN's, each with its attention factor.
pub(crate) fn rope(seed: u64) -> Vec<(Case, f64)> {
    let factor = |case: &Case| case.params["scaling"]["attention_factor"].as_f64();
    let cases = power_cases("rope", seed);
    let yarn = cases.into_iter().map(|g| g.case).find(|c| factor(c).is_some());
    let yarn = yarn.expect("rope has a case of YaRN");
    let by = factor(&yarn).unwrap_or(1.0);
    vec![(first("rope", seed).case, 1.0), (yarn, by)]
}

/// A query at position 17 and a similar key at position 3.
pub(crate) fn rope_pair(seed: u64) -> Case {
    const D: usize = 64;
    let params = serde_json::json!({ "theta": 1e6 });
    let draft = Draft::new("rope", UNIT, "query and key", Dtype::Bf16, seed).params(params);
    let mut v = draft.values();
    let q = v.normals(D, 1.0);
    let near: Vec<f64> = q.iter().map(|x| x + v.normal(0.2)).collect();
    let x = [q, near].concat();
    draft.ints("positions", &[2], &[17, 3]).with("x", &[2, 1, D], &x).done().case
}
