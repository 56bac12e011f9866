//! Cases of `add_rms_norm`: residual streams with and without outliers, inputs so small that eps counts,
//! rows whose lanes can be told apart, sums that f16 cannot hold.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{Generated, Values, generated};

const OP: &str = "add_rms_norm";

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for (rows, d) in [(1, 64), (5, 300), (9, 128), (2, 1024)] {
        out.push(random((rows, d), seed, ("unit", false), 1.0, Dtype::Bf16));
    }
    out.push(random((4, 192), seed, ("unit", false), 0.02, Dtype::Bf16));
    out.push(random((3, 96), seed, ("unit", false), 1.0, Dtype::F16));
    out.push(random((3, 96), seed, ("unit", false), 1.0, Dtype::F32));
    out.push(outlier((4, 256), seed));
    out.push(lanes(seed));
    out.push(exact((3, 128), seed));
    out.push(tiny((3, 96), seed));
    out.push(large((2, 64), seed));
    out.push(special((6, 64), seed));
    out
}

/// Widths and rows on both sides of what waves and blocks take.
pub(super) fn edges(seed: u64) -> Vec<Generated> {
    let widths = [1, 2, 63, 64, 65, 767, 768, 769, 896, 5120].map(|d| (3, d));
    let rows = [1, 7, 8, 9, 64, 65].map(|r| (r, 40));
    let one = |d| random(d, seed, ("unit", false), 1.0, Dtype::Bf16);
    widths.into_iter().chain(rows).map(one).collect()
}

fn build(
    family: (&str, bool),
    note: &str,
    seed: u64,
    eps: f64,
    dtype: Dtype,
    (rows, d): (usize, usize),
    [a, b, weight]: [Vec<f64>; 3],
) -> Generated {
    let tensors = Tensors::from([
        ("a".to_string(), Tensor::from_f64(dtype, &[rows, d], &a)),
        ("b".to_string(), Tensor::from_f64(dtype, &[rows, d], &b)),
        ("weight".to_string(), Tensor::from_f64(dtype, &[d], &weight)),
    ]);
    let params = json!({ "norm": { "eps": eps } });
    generated(OP, family, &format!("{rows}x{d}{note}"), seed, params, dtype, tensors)
}

fn random(
    (rows, d): (usize, usize),
    seed: u64,
    family: (&str, bool),
    sd: f64,
    dtype: Dtype,
) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} {rows} {d} {sd} {dtype}"));
    let weight = (0..d).map(|_| 1.0 + v.normal(0.3)).collect();
    let data = [v.normals(rows * d, sd), v.normals(rows * d, sd / 2.0), weight];
    build(family, &format!(" sd {sd} {dtype}"), seed, 1e-6, dtype, (rows, d), data)
}

/// One channel at 26 times the rms of the others.
fn outlier((rows, d): (usize, usize), seed: u64) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} outlier {rows} {d}"));
    let mut a = v.normals(rows * d, 1.0);
    a.iter_mut().skip(d / 3).step_by(d).for_each(|x| *x *= 26.0);
    let weight = (0..d).map(|_| 1.0 + v.normal(0.3)).collect();
    let data = [a, v.normals(rows * d, 0.5), weight];
    build(("outlier", false), "", seed, 1e-6, Dtype::Bf16, (rows, d), data)
}

/// Row l has its weight in lane l of 64, so that each lost lane shows by itself.
fn lanes(seed: u64) -> Generated {
    let (rows, d) = (64, 128);
    let mut v = Values::new(seed, "add_rms_norm lanes");
    let lit = |i: usize| if i % d % 64 == i / d { 8.0 } else { 0.5 };
    let a = (0..rows * d).map(|i| v.normal(lit(i))).collect();
    let weight = (0..d).map(|_| 1.0 + v.normal(0.3)).collect();
    let data = [a, v.normals(rows * d, 0.1), weight];
    build(("unit", false), " lanes", seed, 1e-6, Dtype::Bf16, (rows, d), data)
}

/// |a + b| is 5 in an eighth of the elements, else 1, and eps 0: the mean square is 4, and 5/2 of an odd
/// weight lies half-way between two bf16 numbers.
fn exact((rows, d): (usize, usize), seed: u64) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} exact {rows} {d}"));
    let b: Vec<f64> = (0..rows * d).map(|_| v.int(-100, 100) as f64).collect();
    let mut a = Vec::with_capacity(rows * d);
    for row in b.chunks(d) {
        let large = v.permutation(d);
        a.extend(row.iter().zip(large).map(|(b, i)| {
            let size = if i < d / 8 { 5.0 } else { 1.0 };
            size * [1.0, -1.0][i % 2] - b
        }));
    }
    let weight = (0..d).map(|i| 53.0 + 2.0 * (i % 5) as f64).collect();
    build(("exact", true), "", seed, 0.0, Dtype::Bf16, (rows, d), [a, b, weight])
}

/// Sums beyond 65504, the largest f16.
fn large((rows, d): (usize, usize), seed: u64) -> Generated {
    let mut v = Values::new(seed, &format!("{OP} large {rows} {d}"));
    let a = (0..rows * d).map(|_| 5e4 + v.normal(2e3)).collect();
    let b = (0..rows * d).map(|_| 2e4 + v.normal(2e3)).collect();
    let weight = (0..d).map(|_| 1.0 + v.normal(0.3)).collect();
    build(("outlier", false), " sums of 7e4", seed, 1e-6, Dtype::Bf16, (rows, d), [a, b, weight])
}

/// One kind a row: NaN, infinities, sums that cancel to zeros of either sign, subnormals.
fn special((rows, d): (usize, usize), seed: u64) -> Generated {
    let mut v = Values::new(seed, "add_rms_norm special");
    let (mut a, mut b) = (v.normals(rows * d, 1.0), v.normals(rows * d, 0.5));
    a[3] = f64::NAN;
    b[d + 5] = f64::INFINITY;
    (a[2 * d + 1], b[2 * d + 1]) = (f64::INFINITY, f64::NEG_INFINITY);
    for i in 0..d {
        b[3 * d + i] = if i % 2 == 0 { 1.0 } else { -0.0 };
        a[3 * d + i] = -b[3 * d + i].abs();
        (a[4 * d + i], b[4 * d + i]) = (1.1e-39 * (1.0 + i as f64), -2.2e-39);
    }
    let weight = (0..d).map(|_| 1.0 + v.normal(0.3)).collect();
    build(("special", true), "", seed, 1e-6, Dtype::Bf16, (rows, d), [a, b, weight])
}

/// Sums so small that another eps shows, under an eps that models do not have.
fn tiny((rows, d): (usize, usize), seed: u64) -> Generated {
    let mut v = Values::new(seed, "add_rms_norm tiny");
    let weight = (0..d).map(|_| 1.0 + v.normal(0.3)).collect();
    let data = [v.normals(rows * d, 1e-3), v.normals(rows * d, 1e-3), weight];
    build(("unit", false), " sd 0.001 eps 1e-5", seed, 1e-5, Dtype::Bf16, (rows, d), data)
}
