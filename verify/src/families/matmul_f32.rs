//! Cases of `matmul` in f32, without a bias.
//!
//! Every operand has 24 significant bits but for the exact family, whose integers have 13: two more than
//! TF32 keeps.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::draft::{EXACT, Family, OUTLIER, UNIT};
use super::{Generated, Values, generated};

/// (M, N, K).
type Dims = (usize, usize, usize);

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    // Both sides of tile edges, few rows as at decode, and long sums.
    for d in [
        (1, 1, 1),
        (1, 64, 127),
        (7, 33, 128),
        (65, 70, 100),
        (130, 200, 24),
        (32, 64, 130),
        (8, 16, 513),
        (5, 24, 4128),
        (2, 8, 18944),
    ] {
        let mut v = values(d, UNIT, seed);
        let (m, n, k) = d;
        let (x, w) = (v.normals(m * k, 1.0), v.normals(n * k, 1.0 / (k as f64).sqrt()));
        out.push(build(UNIT, d, seed, &x, &w));
    }
    for d in [(66, 67, 101), (8, 63, 64), (3, 17, 192), (64, 64, 32)] {
        out.push(exact(d, seed));
    }
    let d @ (m, n, k) = (24, 49, 192);
    let mut v = values(d, OUTLIER, seed);
    let mut x = v.normals(m * k, 1.0);
    for r in 0..m {
        x[r * k + k * 2 / 5] = 26.0 * (1.0 + 0.1 * v.uniform());
    }
    let w = v.normals(n * k, 0.05);
    out.push(build(OUTLIER, d, seed, &x, &w));
    out
}

/// Odd integers of 13 bits times at most 3, no more than 200 of them: f32 holds every partial sum in any
/// order, since 200 * 8191 * 3 < 2^24.
fn exact(d: Dims, seed: u64) -> Generated {
    let (m, n, k) = d;
    let mut v = values(d, EXACT, seed);
    let x: Vec<f64> = (0..m * k)
        .map(|_| {
            let magnitude = (4096 + 2 * v.below(2048) + 1) as f64;
            if v.below(2) == 0 { magnitude } else { -magnitude }
        })
        .collect();
    let w: Vec<f64> = (0..n * k).map(|_| [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0][v.below(6)]).collect();
    build(EXACT, d, seed, &x, &w)
}

fn label((m, n, k): Dims) -> String {
    format!("{m}x{n}x{k} f32")
}

fn values(d: Dims, family: Family, seed: u64) -> Values {
    Values::new(seed, &format!("matmul {} {}", family.0, label(d)))
}

fn build(family: Family, d: Dims, seed: u64, x: &[f64], w: &[f64]) -> Generated {
    let (m, n, k) = d;
    let mut t = Tensors::new();
    t.insert("x".into(), Tensor::from_f64(Dtype::F32, &[m, k], x));
    t.insert("weight".into(), Tensor::from_f64(Dtype::F32, &[n, k], w));
    generated("matmul", family, &label(d), seed, json!({}), Dtype::F32, t)
}
