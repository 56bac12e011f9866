//! Cases of `softmax`: flat and steep rows, masked elements, scores of 9e4.

use assay_reference::Dtype;

use super::Generated;
use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};

const OP: &str = "softmax";

/// (rows, D).
type Dims = (usize, usize);

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit((5, 130), dtype, 1.0, seed));
        out.push(unit((4, 65), dtype, 0.2, seed));
        out.push(exact((4, 64), dtype, seed));
    }
    out.push(unit((4, 40), Dtype::F32, 3.0, seed));
    out.push(selecting((5, 40), seed));
    out.push(outlier((4, 80), seed));
    out.push(shifted((4, 64), seed));
    out.push(special(seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for d in [1, 2, 31, 32, 33, 63, 64, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097] {
        out.push(unit((2, d), Dtype::Bf16, 1.0, seed));
    }
    for d in [5, 1022, 1024, 1028] {
        out.push(unit((2, d), Dtype::F32, 2.0, seed));
    }
    out.push(unit((65, 17), Dtype::Bf16, 1.0, seed));
    out
}

fn build(
    family: Family,
    (rows, d): Dims,
    note: &str,
    dtype: Dtype,
    seed: u64,
    value: impl Fn(&mut super::Values, usize, usize) -> f64,
) -> Generated {
    let draft = Draft::new(OP, family, format!("{rows}x{d}{note}"), dtype, seed);
    let mut v = draft.values();
    let x: Vec<f64> = (0..rows * d).map(|i| value(&mut v, i / d, i % d)).collect();
    draft.with("x", &[rows, d], &x).done()
}

fn unit(d: Dims, dtype: Dtype, sd: f64, seed: u64) -> Generated {
    build(UNIT, d, &format!(" sd {sd}"), dtype, seed, |v, _, _| v.normal(sd))
}

/// Equal scores over a power of two of elements, the others so low that they vanish.
fn exact(d: Dims, dtype: Dtype, seed: u64) -> Generated {
    build(EXACT, d, " equal", dtype, seed, |_, r, c| {
        let period = [1, 2, 8, 32][r % 4];
        if c % period == 0 { 3.0 } else { -300.0 }
    })
}

/// Gaps above 104: one element takes all.
fn selecting(d: Dims, seed: u64) -> Generated {
    build(EXACT, d, " selecting", Dtype::Bf16, seed, |_, r, c| {
        let own = [0, d.1 - 1, d.1 / 2, 7, d.1 - 2][r % 5];
        if c == own { 128.0 } else { -((c % 50) as f64) }
    })
}

/// One score at 26 times the others.
fn outlier(d: Dims, seed: u64) -> Generated {
    build(
        OUTLIER,
        d,
        "",
        Dtype::Bf16,
        seed,
        |v, r, c| {
            if c == 9 * (r + 1) { 6.5 } else { v.normal(0.25) }
        },
    )
}

/// Raw scores near 9e4, whose exponential overflows unless the maximum goes first.
fn shifted(d: Dims, seed: u64) -> Generated {
    build(OUTLIER, d, " near 9e4", Dtype::F32, seed, |v, r, _| {
        [9e4, -9e4, 300.0, -300.0][r % 4] + v.int(-6, 6) as f64 * 0.25
    })
}

/// Masked elements, rows of only -inf, NaN, +inf.
fn special(seed: u64) -> Generated {
    let d = (6, 40);
    build(SPECIAL, d, "", Dtype::Bf16, seed, |v, r, c| {
        let x = v.normal(1.0);
        match r {
            0 if c > 20 => f64::NEG_INFINITY,
            1 => f64::NEG_INFINITY,
            2 if c == 11 => f64::NAN,
            3 if c != 17 => f64::NEG_INFINITY,
            4 if c == 30 => f64::INFINITY,
            5 if c % 2 == 0 => f64::NEG_INFINITY,
            5 => -5e4 + x,
            _ => x,
        }
    })
}
