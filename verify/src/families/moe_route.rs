//! Cases of `moe_route`: the routers of Qwen1.5-MoE (60 experts, 4 chosen, not normalised) and Qwen3 (128,
//! 8 chosen, normalised), ties at the border, few and many experts.

use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};
use super::{Generated, Values};

const OP: &str = "moe_route";

/// (T, E, k, normalised).
type Dims = (usize, usize, usize, bool);

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit((12, 8, 2, true), dtype, seed));
        out.push(unit((12, 8, 2, false), dtype, seed));
        out.push(unit((6, 60, 4, false), dtype, seed));
        out.push(stored((12, 16, 4, true), dtype, seed));
    }
    out.push(unit((8, 128, 8, true), Dtype::Bf16, seed));
    out.push(unit((6, 8, 1, true), Dtype::Bf16, seed));
    out.push(unit((6, 8, 1, false), Dtype::Bf16, seed));
    out.push(unit((3, 4, 4, true), Dtype::Bf16, seed));
    out.push(exact(seed));
    out.push(tied(seed));
    out.push(outlier((8, 16, 4, true), seed));
    out.push(special(seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for e in [2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256] {
        out.push(unit((3, e, 2, true), Dtype::Bf16, seed));
    }
    for t in [1, 7, 8, 9, 63, 64, 65] {
        out.push(unit((t, 16, 4, true), Dtype::Bf16, seed));
    }
    out
}

fn build(
    family: Family,
    (t, e, k, normalise): Dims,
    note: &str,
    dtype: Dtype,
    seed: u64,
    value: impl Fn(&mut Values, usize, usize) -> f64,
) -> Generated {
    let how = if normalise { " normalised" } else { "" };
    let draft = Draft::new(OP, family, format!("{t}x{e} top {k}{how}{note}"), dtype, seed);
    let mut v = draft.values();
    let logits: Vec<f64> = (0..t * e).map(|i| value(&mut v, i / e, i % e)).collect();
    // In f32, so that no two are equal by chance.
    let logits = Tensor::from_f64(Dtype::F32, &[t, e], &logits);
    draft.params(json!({ "top_k": k, "normalise": normalise })).tensor("logits", logits).done()
}

fn unit(d: Dims, dtype: Dtype, seed: u64) -> Generated {
    build(UNIT, d, "", dtype, seed, |v, _, _| v.normal(1.5))
}

/// Logits in the model's own dtype, distinct in each row.
fn stored((t, e, k, normalise): Dims, dtype: Dtype, seed: u64) -> Generated {
    let draft = Draft::new(OP, UNIT, format!("{t}x{e} top {k} logits {dtype}"), dtype, seed);
    let mut v = draft.values();
    let row = |v: &mut Values| -> Vec<f64> {
        v.permutation(e).into_iter().map(|i| 0.1875 * i as f64 - 1.5).collect()
    };
    let logits: Vec<f64> = (0..t).flat_map(|_| row(&mut v)).collect();
    let params = json!({ "top_k": k, "normalise": normalise });
    draft.params(params).with("logits", &[t, e], &logits).done()
}

/// The chosen logits are equal and the others vanish: weights of 1/2, 1/4.
fn exact(seed: u64) -> Generated {
    build(EXACT, (6, 16, 4, true), " equal", Dtype::Bf16, seed, |_, r, c| {
        if c % 4 == r % 4 { 7.0 } else { -200.0 - c as f64 }
    })
}

/// Equal logits at the border, and apart from it.
fn tied(seed: u64) -> Generated {
    build(UNIT, (6, 12, 3, true), " tied", Dtype::Bf16, seed, |v, r, c| match (r % 3, c) {
        (0, 2 | 7) => 2.0,
        (0, 4) => 4.0,
        (0, 9) => 3.0,
        (1, 3 | 5) => 5.0,
        (1, 8) => 1.0,
        (2, 1 | 6 | 10) => 2.5,
        _ => -1.0 - v.uniform(),
    })
}

/// A logit at 26 times the rms.
fn outlier(d: Dims, seed: u64) -> Generated {
    build(OUTLIER, d, "", Dtype::Bf16, seed, |v, r, c| {
        if c == (5 * r + 3) % d.1 { 26.0 } else { v.normal(1.0) }
    })
}

fn special(seed: u64) -> Generated {
    build(SPECIAL, (5, 8, 2, true), "", Dtype::Bf16, seed, |v, r, c| match (r, c) {
        (0, 3) => f64::NAN,
        (1, 5) => f64::NEG_INFINITY,
        (2, _) => f64::NEG_INFINITY,
        (3, 1) => 9e4,
        (3, 6) => 9e4 - 1.0,
        (4, _) => -9e4 + 0.5 * c as f64,
        _ => v.normal(1.0),
    })
}
