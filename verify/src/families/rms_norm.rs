//! Cases of `rms_norm`: per head and per token, behind the embedding (sd 0.02) and deep in the residual
//! stream, with a massive activation; widths with a tail for every tile.

use assay_reference::Dtype;
use serde_json::json;

use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};
use super::{Generated, Values};

const OP: &str = "rms_norm";

/// (rows, D).
type Dims = (usize, usize);

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit((5, 128), dtype, 1.0, seed));
        // Behind the embedding: eps counts from here on.
        out.push(unit((4, 760), dtype, 0.02, seed));
        out.push(unit((4, 128), dtype, 1e-3, seed));
        out.push(exact((5, 128), dtype, seed));
    }
    out.push(heads((3, 4, 128), seed));
    out.push(first_heads((3, 5, 32), seed));
    out.push(unit((3, 130), Dtype::Bf16, 3e-5, seed));
    out.push(unit((6, 9), Dtype::Bf16, 1.0, seed));
    out.push(exact((3, 760), Dtype::Bf16, seed));
    out.push(outlier((4, 520), seed));
    out.push(residual((3, 1032), seed));
    out.push(special(Dtype::Bf16, seed));
    out.push(special(Dtype::F16, seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for d in [1, 2, 31, 32, 33, 63, 64, 65, 127, 129, 767, 768, 769, 896, 1024, 2560, 3584, 5120] {
        out.push(unit((3, d), Dtype::Bf16, 1.0, seed));
    }
    for rows in [1, 7, 8, 9, 63, 64, 65, 257] {
        out.push(unit((rows, 64), Dtype::Bf16, 1.0, seed));
    }
    out.push(unit((2, 8192), Dtype::Bf16, 0.02, seed));
    out.push(lanes(130, 1, seed));
    out.push(lanes(512, 8, seed));
    out.push(residual((7, 769), seed));
    out
}

fn draft(family: Family, (rows, d): Dims, note: &str, dtype: Dtype, seed: u64) -> Draft {
    let draft = Draft::new(OP, family, format!("{rows}x{d}{note}"), dtype, seed);
    draft.params(json!({ "eps": 1e-6 }))
}

/// Weights as trained: around 1, none equal to it.
fn weights(v: &mut Values, d: usize) -> Vec<f64> {
    (0..d).map(|_| 1.1 + v.normal(0.4)).collect()
}

fn unit((rows, d): Dims, dtype: Dtype, sd: f64, seed: u64) -> Generated {
    let draft = draft(UNIT, (rows, d), &format!(" sd {sd}"), dtype, seed);
    let mut v = draft.values();
    let x = v.normals(rows * d, sd);
    let w = weights(&mut v, d);
    draft.with("x", &[rows, d], &x).with("weight", &[d], &w).done()
}

/// Row l has its weight in lane l of 64, whose threads take `vector` neighbours at a time, so that each
/// lost lane shows by itself.
fn lanes(d: usize, vector: usize, seed: u64) -> Generated {
    let draft = draft(UNIT, (64, d), " lanes", Dtype::Bf16, seed);
    let mut v = draft.values();
    let lit = |i: usize| if i % d / vector % 64 == i / d { 8.0 } else { 0.5 };
    let x: Vec<f64> = (0..64 * d).map(|i| v.normal(lit(i))).collect();
    let w = weights(&mut v, d);
    draft.with("x", &[64, d], &x).with("weight", &[d], &w).done()
}

/// Three dimensions, as q_norm and k_norm get them.
fn heads((t, heads, d): (usize, usize, usize), seed: u64) -> Generated {
    let draft = draft(UNIT, (t * heads, d), " heads", Dtype::Bf16, seed);
    let mut v = draft.values();
    let x: Vec<f64> = (0..t * heads * d).map(|i| v.normal(0.5 + (i / d % heads) as f64)).collect();
    let w = weights(&mut v, d);
    draft.with("x", &[t, heads, d], &x).with("weight", &[d], &w).done()
}

/// The first three heads of each token of a fused buffer.
fn first_heads(d: (usize, usize, usize), seed: u64) -> Generated {
    let mut g = heads(d, seed);
    g.case.params["heads"] = json!(3);
    g.label += ", the first 3";
    g
}

/// An eighth of the elements +-5, the others +-1, times a power of two: the mean square is a power of
/// 4, and with eps 0 the scale is exact. D is a multiple of 8.
fn exact((rows, d): Dims, dtype: Dtype, seed: u64) -> Generated {
    let draft = draft(EXACT, (rows, d), "", dtype, seed).params(json!({ "eps": 0.0 }));
    let mut v = draft.values();
    let mut x = Vec::with_capacity(rows * d);
    for r in 0..rows {
        let by = [1.0, 0.5, 4.0, 16.0, 0.03125][r % 5];
        let large = v.permutation(d);
        x.extend((0..d).map(|i| {
            let size = if large[i] < d / 8 { 5.0 } else { 1.0 };
            if v.below(2) == 0 { by * size } else { -by * size }
        }));
    }
    // Five times an odd weight of all significand bits but two lies half-way between two stored
    // numbers.
    let least = if dtype == Dtype::Bf16 { 53.0 } else { 413.0 };
    let w: Vec<f64> = (0..d).map(|i| least + 2.0 * (i % 5) as f64).collect();
    draft.with("x", &[rows, d], &x).with("weight", &[d], &w).done()
}

/// A channel at 26 times the rms with a small weight, as released models have.
fn outlier((rows, d): Dims, seed: u64) -> Generated {
    let draft = draft(OUTLIER, (rows, d), "", Dtype::Bf16, seed);
    let mut v = draft.values();
    let (mut x, mut w) = (v.normals(rows * d, 1.0), weights(&mut v, d));
    let channel = d * 2 / 5;
    x.chunks_mut(d).for_each(|row| row[channel] = 26.0 * (1.0 + 0.1 * v.uniform()));
    w[channel] = 0.07;
    draft.with("x", &[rows, d], &x).with("weight", &[d], &w).done()
}

/// A residual stream with one massive activation, whose sign and size differ by row, and a mean that is
/// not 0.
fn residual((rows, d): Dims, seed: u64) -> Generated {
    let draft = draft(OUTLIER, (rows, d), " massive activation", Dtype::Bf16, seed);
    let mut v = draft.values();
    let mut x: Vec<f64> = (0..rows * d).map(|_| 3.0 + v.normal(8.0)).collect();
    for (r, row) in x.chunks_mut(d).enumerate() {
        row[d / 3] = [-5e4, 9e3, 700.0][r % 3];
    }
    let w = weights(&mut v, d);
    draft.with("x", &[rows, d], &x).with("weight", &[d], &w).done()
}

/// One kind a row: NaN, infinities, zeros of either sign, subnormals, squares beyond f16.
fn special(dtype: Dtype, seed: u64) -> Generated {
    const D: usize = 64;
    let draft = draft(SPECIAL, (7, D), "", dtype, seed);
    let mut v = draft.values();
    let mut x = v.normals(7 * D, 1.0);
    x[3] = f64::NAN;
    x[D + 5] = f64::INFINITY;
    x[2 * D + D - 1] = f64::NEG_INFINITY;
    for i in 0..D {
        x[3 * D + i] = if i % 2 == 0 { 0.0 } else { -0.0 };
        x[4 * D + i] = 6e-8 * (1.0 + (i % 7) as f64);
        x[5 * D + i] = if i % 3 == 0 { 5e4 } else { -3e4 };
    }
    let mut w = weights(&mut v, D);
    w[7] = 0.0;
    w[8] = -1.5;
    draft.with("x", &[7, D], &x).with("weight", &[D], &w).done()
}
