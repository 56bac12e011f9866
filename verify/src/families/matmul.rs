//! Cases of `matmul` on both sides of every tile edge.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{Generated, Values, generated};

const UNIT: (&str, bool) = ("unit", false);
const EXACT: (&str, bool) = ("exact", true);
const OUTLIER: (&str, bool) = ("outlier", false);
const SPECIAL: (&str, bool) = ("special", true);

/// (M, N, K, bias).
type Dims = (usize, usize, usize, bool);

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
    out.push(unit((2, 8, 18944, false), seed, 1.0));
    out.push(unit((9, 65, 96, true), seed, 0.02));
    for d in [(66, 67, 101, true), (8, 63, 64, false), (3, 17, 5120, true), (64, 64, 32, true)] {
        out.push(exact(d, seed));
    }
    for d in [(24, 49, 192, true), (2, 40, 1000, true)] {
        out.push(outlier(d, seed));
    }
    out.push(special((9, 20, 70, true), seed));
    out.extend(drawn(seed));
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

fn unit(d: Dims, seed: u64, sd: f64) -> Generated {
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
fn exact(d: Dims, seed: u64) -> Generated {
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

/// One channel at 26 times the rms and biases up to 147, as in released checkpoints.
fn outlier(d: Dims, seed: u64) -> Generated {
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
fn special(d: Dims, seed: u64) -> Generated {
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
