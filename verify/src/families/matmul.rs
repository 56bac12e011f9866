//! Cases of `matmul` on both sides of every tile edge.

use assay_reference::dtype::pow2;
use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{Generated, Values, generated, matmul_small};

const UNIT: (&str, bool) = ("unit", false);
const EXACT: (&str, bool) = ("exact", true);
const OUTLIER: (&str, bool) = ("outlier", false);
const SPECIAL: (&str, bool) = ("special", true);

/// (M, N, K, bias).
pub(super) type Dims = (usize, usize, usize, bool);

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for d in [
        (1, 1, 1, false),
        (7, 33, 128, false),
        (65, 70, 100, true),
        (1, 64, 127, true),
        (50, 65, 257, true),
    ] {
        out.push(unit(d, seed, 1.0));
    }
    // Beyond the usual reduction limits, with few outputs.
    out.push(unit((5, 24, 4128, true), seed, 1.0));
    out.push(unit((2, 8, 29568, false), seed, 1.0));
    out.push(unit((14, 8, 5128, true), seed, 1.0));
    // Several tiles each way, and indices beyond 16 bits into each matrix.
    out.push(unit((130, 200, 24, true), seed, 1.0));
    out.push(unit((258, 257, 9, true), seed, 1.0));
    out.push(unit((3, 600, 40, true), seed, 1.0));
    out.push(unit((32, 64, 130, false), seed, 1.0));
    out.push(unit((34, 8, 2056, false), seed, 1.0));
    // The rows at which real libraries change path.
    for m in [2, 8, 9, 16, 24, 25, 33, 49, 51, 63, 64] {
        out.push(unit((m, 16, 40, true), seed, 1.0));
    }
    out.push(unit((9, 65, 96, true), seed, 0.02));
    for d in [(66, 67, 101, true), (8, 63, 64, false), (3, 17, 5120, true), (64, 64, 32, true)] {
        out.push(exact(d, seed));
    }
    for d in [(24, 49, 192, true), (2, 40, 1000, true)] {
        out.push(outlier(d, seed));
    }
    for d in [(12, 33, 72, true), (65, 20, 130, true)] {
        out.push(ties(d, seed));
    }
    out.push(special((9, 20, 70, true), seed));
    out.push(special_weights((4, 24, 72, true), seed));
    out.extend(few_rows(seed));
    // Parts of K that are whole vectors, over several tiles each way.
    out.push(unit((66, 70, 288, true), seed, 1.0));
    out.push(matmul_small::row_parallel((4, 6, 48, true), seed));
    out.extend(drawn(seed));
    out
}

/// Up to eight rows, as at decode: both sides of a wave's 512 terms in vectors of 8 and 64 terms one by
/// one, and the families with either kind of row.
fn few_rows(seed: u64) -> Vec<Generated> {
    let dims = [(1, 6, 504, false), (3, 5, 512, true), (2, 6, 520, true), (4, 7, 515, true)];
    let mut out: Vec<Generated> = dims.map(|d| unit(d, seed, 1.0)).into();
    out.push(unit((6, 3, 65, true), seed, 0.02));
    out.push(exact((7, 9, 101, true), seed));
    out.push(outlier((3, 12, 261, true), seed));
    out.extend([(8, 18, 72, true), (5, 11, 67, true)].map(|d| ties(d, seed)));
    out.extend([(8, 10, 72, true), (7, 5, 70, true)].map(|d| special(d, seed)));
    out.push(special_weights((4, 14, 70, true), seed));
    out
}

fn label((m, n, k, bias): Dims) -> String {
    format!("{m}x{n}x{k}{}", if bias { " bias" } else { "" })
}

fn build(
    family: (&str, bool),
    d: Dims,
    seed: u64,
    x: Vec<f64>,
    w: Vec<f64>,
    bias: Vec<f64>,
) -> Generated {
    let (m, n, k, has_bias) = d;
    let bf = |shape: &[usize], v: &[f64]| Tensor::from_f64(Dtype::Bf16, shape, v);
    let mut t = Tensors::new();
    t.insert("x".into(), bf(&[m, k], &x));
    t.insert("weight".into(), bf(&[n, k], &w));
    if has_bias {
        t.insert("bias".into(), bf(&[n], &bias));
    }
    generated("matmul", family, &label(d), seed, json!({}), Dtype::Bf16, t)
}

pub(super) fn unit(d: Dims, seed: u64, sd: f64) -> Generated {
    let mut v = Values::new(seed, &format!("matmul unit {} {sd}", label(d)));
    let (m, n, k, _) = d;
    let (x, w) = (v.normals(m * k, sd), v.normals(n * k, 1.0 / (k as f64).sqrt()));
    let bias = v.normals(n, sd);
    let mut g = build(UNIT, d, seed, x, w, bias);
    if sd != 1.0 {
        g.label += &format!(" sd {sd}");
    }
    g
}

/// Sparse rows of small integers: |y| <= 256, so bf16 holds every result and f32 every partial sum.
pub(super) fn exact(d: Dims, seed: u64) -> Generated {
    let (m, n, k, _) = d;
    let mut v = Values::new(seed, &format!("matmul exact {}", label(d)));
    let mut x = vec![0.0; m * k];
    // Row r takes every m-th term, so that together the rows weigh every term; at most 60 a row.
    for r in 0..m {
        let own: Vec<usize> = (0..k).filter(|i| i % m == r % k.max(1)).collect();
        let stride = own.len().div_ceil(60).max(1);
        for &i in own.iter().step_by(stride) {
            x[r * k + i] = if v.below(2) == 0 { 1.0 } else { -1.0 };
        }
        // The last terms are where tails are lost.
        for i in k.saturating_sub(4)..k {
            x[r * k + i] = 1.0;
        }
        x[r * k] = 1.0;
    }
    let w: Vec<f64> = (0..n * k).map(|_| [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0][v.below(6)]).collect();
    let bias = (0..n).map(|c| (c % 13) as f64 - 40.0).collect();
    build(EXACT, d, seed, x, w, bias)
}

/// Odd integers between 256 and 512: bf16 holds only the even ones, so every result is a tie, half of
/// them toward an odd significand.
pub(super) fn ties(d: Dims, seed: u64) -> Generated {
    let (m, n, k, _) = d;
    let mut v = Values::new(seed, &format!("matmul ties {}", label(d)));
    let mut x = vec![0.0; m * k];
    let mut w: Vec<f64> = (0..n * k).map(|_| v.int(-3, 3) as f64).collect();
    for r in 0..m {
        // Two terms of even products keep the sum odd.
        x[r * k + v.below(k - 2)] = 2.0;
        x[r * k + (r * 7 + 3) % (k - 2)] = -2.0;
        x[r * k + k - 2] = 1.0;
        x[r * k + k - 1] = 1.0;
    }
    for c in 0..n {
        // 301 and -407 are no bf16 numbers: they are made of two terms.
        let (even, one) = if c % 2 == 0 { (300.0, 1.0) } else { (-406.0, -1.0) };
        w[c * k + k - 2] = even;
        w[c * k + k - 1] = one;
    }
    let mut g = build(EXACT, d, seed, x, w, vec![0.0; n]);
    g.label += " ties";
    g
}

/// NaN, infinities, subnormals in weights and bias: one kind a column; sums that overflow.
pub(super) fn special_weights(d: Dims, seed: u64) -> Generated {
    let (m, n, k, _) = d;
    let mut v = Values::new(seed, &format!("matmul special weights {}", label(d)));
    let mut x: Vec<f64> = v.normals(m * k, 1.0);
    x.iter_mut().filter(|x| **x == 0.0).for_each(|x| *x = 1.0);
    x[2 * k + 4] = 0.0; // zero against an infinity: NaN
    let mut w = v.normals(n * k, 0.1);
    let mut bias = v.normals(n, 1.0);
    w[7] = f64::NAN;
    w[k + 4] = f64::INFINITY;
    w[2 * k + k - 1] = f64::NEG_INFINITY;
    for i in 0..k {
        w[3 * k + i] = 1e-39 * (1.0 + i as f64); // subnormal
        // Row 0 overflows to +inf and -inf; the other rows stay far below in any order.
        w[4 * k + i] = if x[i] > 0.0 { 8e36 } else { -8e36 };
        w[5 * k + i] = if x[i] > 0.0 { -8e36 } else { 8e36 };
        w[6 * k + i] = 7e4 * (1.0 + 0.01 * i as f64); // beyond f16
        w[7 * k + i] = 1e-7 * (1.0 + 0.01 * i as f64); // below f16
    }
    bias[8] = f64::NAN;
    bias[9] = f64::INFINITY;
    bias[10] = f64::NEG_INFINITY;
    bias[11] = 1e-39;
    for i in 0..k {
        w[11 * k + i] = 0.0;
        w[12 * k + i] = 0.0;
    }
    // A sum that f32 holds and that bf16 rounds to infinity.
    w[12 * k] = pow2(127) * (2.0 - pow2(-7));
    w[12 * k + 1] = 1.5 * pow2(119);
    bias[12] = 0.0;
    x[3 * k] = 1.0;
    x[3 * k + 1] = 1.0;
    let mut g = build(SPECIAL, d, seed, x, w, bias);
    g.label += " weights";
    g
}

/// One channel at 26 times the rms and biases up to 147, as in released checkpoints.
pub(super) fn outlier(d: Dims, seed: u64) -> Generated {
    let (m, n, k, _) = d;
    let mut v = Values::new(seed, &format!("matmul outlier {}", label(d)));
    let mut x = v.normals(m * k, 1.0);
    let channel = k * 2 / 5;
    for r in 0..m {
        x[r * k + channel] = 26.0 * (1.0 + 0.1 * v.uniform());
    }
    let w = v.normals(n * k, 0.05);
    let mut bias = v.normals(n, 2.0);
    bias[n / 3] = 147.0;
    bias[n / 2] = -98.5;
    build(OUTLIER, d, seed, x, w, bias)
}

/// NaN, infinities, subnormals, huge values: one kind a row, so that rows tell them apart.
pub(super) fn special(d: Dims, seed: u64) -> Generated {
    let (m, n, k, _) = d;
    let mut v = Values::new(seed, &format!("matmul special {}", label(d)));
    let mut x = v.normals(m * k, 1.0);
    let mut w = v.normals(n * k, 0.1);
    x[3] = f64::NAN;
    x[k + 5] = f64::INFINITY;
    x[2 * k + k - 1] = f64::NEG_INFINITY;
    for i in 0..k {
        x[3 * k + i] = 0.0;
        x[4 * k + i] = if i % 2 == 0 { 5e4 } else { -5e4 };
        x[5 * k + i] = 1e-39 * (i as f64 + 1.0);
        x[6 * k + i] = 1.5e38;
    }
    // No product of an infinity with zero, and finite sums that overflow f32 in no order.
    for c in 0..n {
        w[c * k + 5] = 0.25;
        w[c * k + k - 1] = -0.5;
        for i in 0..k {
            if i % 9 == 0 && i != 5 && i != k - 1 {
                w[c * k + i] = 0.0;
            }
        }
    }
    for i in 0..k {
        x[6 * k + i] *= if i % 2 == 0 { 1e-3 } else { -1e-3 };
    }
    let bias = vec![0.0; n];
    build(SPECIAL, d, seed, x, w, bias)
}

/// Two shapes drawn from the seed.
fn drawn(seed: u64) -> Vec<Generated> {
    let mut v = Values::new(seed, "matmul shapes");
    (0..2)
        .map(|_| {
            let d = (1 + v.below(80), 1 + v.below(90), 1 + v.below(300), v.below(2) == 0);
            unit(d, seed, 1.0)
        })
        .collect()
}
