//! Cases of `argmax`: the largest at either end and at the edges of waves and blocks, ties, NaN, rows of
//! -inf, rows without a positive number, neighbours that only f32 tells apart.

use assay_reference::{Dtype, Tensor};

use super::Generated;
use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, UNIT};

const OP: &str = "argmax";

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        out.push(unit((5, 97), dtype, seed));
    }
    out.push(placed(130, seed));
    out.push(placed(600, seed));
    out.push(placed(1100, seed));
    out.push(ties(seed));
    out.push(negative(seed));
    out.push(close(seed));
    out.push(special(seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for v in [1, 2, 63, 64, 65, 1023, 1024, 1025, 4097] {
        out.push(unit((2, v), Dtype::Bf16, seed));
    }
    for (v, dtype) in [(128, Dtype::F16), (1028, Dtype::F32), (1030, Dtype::F32)] {
        out.push(unit((2, v), dtype, seed));
    }
    // The vocabularies of Qwen2.5 and Qwen3.
    out.push(placed(151_936, seed));
    out.push(unit((1, 152_064), Dtype::Bf16, seed));
    out
}

/// Indices are stored in f32, which holds them all.
fn build(
    family: Family,
    (rows, v): (usize, usize),
    note: &str,
    dtype: Dtype,
    seed: u64,
    values: impl Fn(&mut super::Values) -> Vec<f64>,
) -> Generated {
    let draft = Draft::new(OP, family, format!("{rows}x{v}{note} of {dtype}"), Dtype::F32, seed);
    let x = values(&mut draft.values());
    draft.tensor("x", Tensor::from_f64(dtype, &[rows, v], &x)).done()
}

fn unit(d: (usize, usize), dtype: Dtype, seed: u64) -> Generated {
    build(UNIT, d, "", dtype, seed, |v| v.normals(d.0 * d.1, 3.0))
}

/// The largest logit, 26 times the others, at both ends and on both sides of every power of two.
fn placed(v_size: usize, seed: u64) -> Generated {
    let mut places = vec![0, v_size - 1];
    let edges = [32, 64, 128, 256, 512, 1024, 32_768, 65_536, 131_072];
    places.extend(edges.into_iter().flat_map(|e| [e - 1, e]).filter(|p| *p < v_size));
    // A large vocabulary is for the few places that a small one lacks.
    if v_size > 10_000 {
        places = vec![v_size - 1, 65_536, 131_072];
    }
    let d = (places.len(), v_size);
    build(OUTLIER, d, " placed", Dtype::Bf16, seed, |v| {
        let mut x = v.normals(d.0 * d.1, 1.0);
        for (row, place) in places.iter().enumerate() {
            x[row * v_size + place] = 26.0 + v.uniform();
        }
        x
    })
}

/// Two and more equal maxima.
fn ties(seed: u64) -> Generated {
    const V: usize = 70;
    build(EXACT, (4, V), " ties", Dtype::Bf16, seed, |v| {
        let mut x: Vec<f64> = (0..4 * V).map(|_| v.int(-20, 20) as f64).collect();
        for (row, places) in
            [&[3, 40][..], &[0, V - 1], &[63, 64], &[5, 6, 7, 66]].into_iter().enumerate()
        {
            places.iter().for_each(|p| x[row * V + p] = 31.0);
        }
        x
    })
}

/// No logit above 0: a maximum that starts at 0 never moves.
fn negative(seed: u64) -> Generated {
    build(EXACT, (3, 65), " all negative", Dtype::Bf16, seed, |v| {
        (0..3 * 65).map(|_| v.int(-200, -2) as f64 - 0.5).collect()
    })
}

/// The two largest differ by less than bf16 tells.
fn close(seed: u64) -> Generated {
    const V: usize = 90;
    build(UNIT, (4, V), " close", Dtype::F32, seed, |v| {
        let mut x = v.normals(4 * V, 1.0);
        for row in 0..4 {
            x[row * V + 10 + row] = 9.0;
            x[row * V + 70 + row] = 9.001;
        }
        x
    })
}

fn special(seed: u64) -> Generated {
    const V: usize = 66;
    build(SPECIAL, (8, V), "", Dtype::Bf16, seed, |v| {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let mut x = v.normals(8 * V, 1.0);
        x[40] = nan;
        x[V + 3] = inf;
        x[V + 50] = nan;
        x[2 * V + V - 1] = nan;
        x[3 * V..4 * V].fill(-inf);
        x[4 * V..5 * V].fill(nan);
        x[5 * V..6 * V].fill(-inf);
        x[5 * V + 37] = -3e38;
        x[6 * V + 20] = inf;
        x[6 * V + 60] = inf;
        // Zeros of either sign are equal.
        x[7 * V..8 * V].iter_mut().for_each(|x| *x = -x.abs() - 0.1);
        x[7 * V + 9] = -0.0;
        x[7 * V + 30] = 0.0;
        x
    })
}
