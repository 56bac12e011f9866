//! Cases of `add` and `silu_mul`, and of the collectives `all_reduce` and `all_gather`.

use assay_reference::Dtype;
use serde_json::json;

use super::Generated;
use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};

/// (rows, D).
type Dims = (usize, usize);

/// Rows and columns on both sides of what vector loads, waves and blocks take.
const EDGES: [Dims; 12] = [
    (1, 1),
    (1, 7),
    (7, 8),
    (8, 9),
    (9, 63),
    (2, 64),
    (3, 65),
    (2, 767),
    (2, 768),
    (7, 769),
    (1, 5120),
    (257, 3),
];

/// Values for two operands from the case's own source.
type Pair = (Vec<f64>, Vec<f64>);

fn pair(
    op: &'static str,
    family: Family,
    (rows, d): Dims,
    note: &str,
    dtype: Dtype,
    seed: u64,
    values: impl Fn(&mut super::Values, usize) -> Pair,
) -> Generated {
    let draft = Draft::new(op, family, format!("{rows}x{d}{note}"), dtype, seed);
    let (a, b) = values(&mut draft.values(), rows * d);
    let [first, second] = if op == "add" { ["a", "b"] } else { ["gate", "up"] };
    draft.params(json!({})).with(first, &[rows, d], &a).with(second, &[rows, d], &b).done()
}

pub(super) mod add {
    use super::*;

    const OP: &str = "add";

    pub(in super::super) fn small(seed: u64) -> Vec<Generated> {
        let mut out = Vec::new();
        for dtype in STORED {
            out.push(unit((8, 96), dtype, seed));
            out.push(ties((5, 64), dtype, seed));
            out.push(special(dtype, seed));
        }
        out.push(integers((4, 65), seed));
        out.push(outlier((6, 130), seed));
        out.push(overflow(seed));
        out
    }

    pub(in super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        out.extend(EDGES.map(|d| unit(d, Dtype::Bf16, seed)));
        out
    }

    /// A residual stream and a block's smaller output.
    fn unit(d: Dims, dtype: Dtype, seed: u64) -> Generated {
        pair(OP, UNIT, d, "", dtype, seed, |v, n| (v.normals(n, 6.0), v.normals(n, 0.7)))
    }

    fn integers(d: Dims, seed: u64) -> Generated {
        pair(OP, EXACT, d, "", Dtype::Bf16, seed, |v, n| {
            let mut draw = || (0..n).map(|_| v.int(-128, 128) as f64).collect();
            (draw(), draw())
        })
    }

    /// Sums half-way between two stored numbers, half of them toward an odd significand.
    fn ties(d: Dims, dtype: Dtype, seed: u64) -> Generated {
        let least = if dtype == Dtype::Bf16 { 128.0 } else { 1024.0 };
        pair(OP, EXACT, d, " ties", dtype, seed, |v, n| {
            let mut sign = || if v.below(2) == 0 { 1.0 } else { -1.0 };
            let signs: Vec<f64> = (0..n).map(|_| sign()).collect();
            let a = (0..n).map(|i| signs[i] * (least + (i % 97) as f64)).collect();
            (a, signs.iter().map(|s| s * 0.5).collect())
        })
    }

    /// A massive activation in the residual stream.
    fn outlier(d: Dims, seed: u64) -> Generated {
        pair(OP, OUTLIER, d, "", Dtype::Bf16, seed, |v, n| {
            let mut a = v.normals(n, 3.0);
            a.iter_mut().step_by(43).for_each(|x| *x *= 8e3);
            (a, v.normals(n, 20.0))
        })
    }

    /// 6e4 + 1e4: fine in bf16, infinite in f16.
    fn overflow(seed: u64) -> Generated {
        pair(OP, OUTLIER, (2, 16), " beyond f16", Dtype::Bf16, seed, |v, n| {
            let near = |v: &mut super::super::Values, c: f64| {
                (0..n).map(|i| c * (1.0 + 0.1 * v.uniform()) * [1.0, -1.0][i % 2]).collect()
            };
            (near(v, 6e4), near(v, 1e4))
        })
    }

    fn special(dtype: Dtype, seed: u64) -> Generated {
        pair(OP, SPECIAL, (2, 16), "", dtype, seed, |v, n| {
            let (mut a, mut b) = (v.normals(n, 1.0), v.normals(n, 1.0));
            let inf = f64::INFINITY;
            let tiny = if dtype == Dtype::Bf16 { 1.1e-39 } else { 6e-8 };
            let table = [
                (f64::NAN, 1.0),
                (1.0, f64::NAN),
                (inf, 1.0),
                (-inf, 2.0),
                (inf, inf),
                (inf, -inf),
                (-0.0, -0.0),
                (-0.0, 0.0),
                (tiny, tiny),
                (tiny, -3.0 * tiny),
                (4.0 * tiny, 1.0),
                (-1.5, 1.5),
                (6e4, 6e4),
            ];
            for (i, (x, y)) in table.into_iter().enumerate() {
                (a[i], b[i]) = (x, y);
            }
            (a, b)
        })
    }
}

pub(super) mod silu_mul {
    use super::*;

    const OP: &str = "silu_mul";

    pub(in super::super) fn small(seed: u64) -> Vec<Generated> {
        let mut out = Vec::new();
        for dtype in STORED {
            out.push(unit((6, 128), dtype, seed));
            out.push(exact((4, 64), dtype, seed));
            out.push(special(dtype, seed));
        }
        out.push(ties((4, 64), seed));
        out.push(outlier((5, 130), seed));
        out
    }

    pub(in super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        out.extend(EDGES.map(|d| unit(d, Dtype::Bf16, seed)));
        out
    }

    fn unit(d: Dims, dtype: Dtype, seed: u64) -> Generated {
        pair(OP, UNIT, d, "", dtype, seed, |v, n| (v.normals(n, 1.5), v.normals(n, 1.0)))
    }

    /// Gates of 0 and above 32, where silu is 0 or the gate itself to well below any rounding.
    fn exact(d: Dims, dtype: Dtype, seed: u64) -> Generated {
        pair(OP, EXACT, d, "", dtype, seed, |v, n| {
            let gate = |v: &mut super::super::Values| [0.0, 32.0, 40.0, 48.0, 64.0][v.below(5)];
            ((0..n).map(|_| gate(v)).collect(), (0..n).map(|_| v.int(-3, 3) as f64).collect())
        })
    }

    /// Products half-way between two bf16 numbers: an odd integer above 256.
    fn ties(d: Dims, seed: u64) -> Generated {
        pair(OP, EXACT, d, " ties", Dtype::Bf16, seed, |v, n| {
            let gate = (0..n).map(|_| [35.0, 37.0, 39.0][v.below(3)]).collect();
            (gate, (0..n).map(|_| [9.0, 11.0, -9.0, -13.0][v.below(4)]).collect())
        })
    }

    /// Gates far on either side, where e^x overflows, and large products.
    fn outlier(d: Dims, seed: u64) -> Generated {
        pair(OP, OUTLIER, d, "", Dtype::Bf16, seed, |v, n| {
            let (mut gate, mut up) = (v.normals(n, 3.0), v.normals(n, 3.0));
            gate.iter_mut().step_by(13).for_each(|x| *x *= 26.0);
            up.iter_mut().step_by(17).for_each(|x| *x *= 260.0);
            (gate, up)
        })
    }

    fn special(dtype: Dtype, seed: u64) -> Generated {
        pair(OP, SPECIAL, (2, 16), "", dtype, seed, |v, n| {
            let (mut gate, mut up) = (v.normals(n, 1.0), v.normals(n, 1.0));
            let inf = f64::INFINITY;
            let tiny = if dtype == Dtype::Bf16 { 1.1e-39 } else { 6e-8 };
            let table = [
                (f64::NAN, 1.0),
                (1.0, f64::NAN),
                (inf, 2.0),
                (inf, 0.0),
                (-inf, 1.0),
                (1.0, inf),
                (-2.0, inf),
                (0.0, inf),
                (-0.0, 3.0),
                (0.0, -3.0),
                (tiny, 4.0),
                (4.0, -tiny),
                (-80.0, 5e4),
                (5e4, 1.5),
            ];
            for (i, (x, y)) in table.into_iter().enumerate() {
                (gate[i], up[i]) = (x, y);
            }
            (gate, up)
        })
    }
}
