//! Cases of `all_reduce` and `all_gather`: 1, 2, 3, 4 and 8 ranks.

use assay_reference::Dtype;

use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};
use super::{Generated, Values};

/// (ranks, rows, D).
type Dims = (usize, usize, usize);

fn parts(
    op: &'static str,
    family: Family,
    (ranks, rows, d): Dims,
    note: &str,
    dtype: Dtype,
    seed: u64,
    value: impl Fn(&mut Values, usize, usize) -> f64,
) -> Generated {
    let label = format!("{ranks} ranks {rows}x{d}{note}");
    let mut draft = Draft::new(op, family, label, dtype, seed);
    let mut v = draft.values();
    for rank in 0..ranks {
        // Gathered parts may differ in width.
        let d = if op == "all_gather" { d + rank % 2 } else { d };
        let values: Vec<f64> = (0..rows * d).map(|i| value(&mut v, rank, i)).collect();
        draft = draft.with(&format!("part.{rank}"), &[rows, d], &values);
    }
    draft.done()
}

pub(super) mod all_reduce {
    use super::*;

    const OP: &str = "all_reduce";

    pub(in super::super) fn small(seed: u64) -> Vec<Generated> {
        let mut out = Vec::new();
        for dtype in STORED {
            for ranks in [2, 4, 8] {
                out.push(unit((ranks, 4, 64), dtype, seed));
            }
            out.push(exact((8, 3, 33), dtype, seed));
        }
        out.push(exact((3, 2, 40), Dtype::Bf16, seed));
        out.push(ties((2, 4, 64), seed));
        out.push(unit((1, 2, 16), Dtype::Bf16, seed));
        out.push(outlier((4, 4, 80), seed));
        out.push(special((4, 2, 16), seed));
        out
    }

    pub(in super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        for d in [1, 7, 63, 64, 65, 767, 768, 769, 5120] {
            out.push(unit((4, 2, d), Dtype::Bf16, seed));
        }
        out
    }

    fn unit(d: Dims, dtype: Dtype, seed: u64) -> Generated {
        parts(OP, UNIT, d, "", dtype, seed, |v, _, _| v.normal(1.0))
    }

    /// Integers whose sums every dtype holds; no rank's part is 0.
    fn exact(d: Dims, dtype: Dtype, seed: u64) -> Generated {
        parts(OP, EXACT, d, "", dtype, seed, |v, _, _| {
            v.int(1, 15) as f64 * [1.0, -1.0][v.below(2)]
        })
    }

    /// Sums half-way between two bf16 numbers.
    fn ties(d: Dims, seed: u64) -> Generated {
        parts(OP, EXACT, d, " ties", Dtype::Bf16, seed, |_, rank, i| match rank {
            0 => 128.0 + (i % 97) as f64,
            1 => 0.5,
            _ => 0.0,
        })
    }

    /// Parts that are large and cancel.
    fn outlier(d: Dims, seed: u64) -> Generated {
        parts(OP, OUTLIER, d, "", Dtype::Bf16, seed, |v, rank, i| {
            let size = if i % 11 == 0 { 3e4 } else { 26.0 };
            size * ([1.0, -1.0][rank % 2] + v.normal(0.05))
        })
    }

    fn special(d: Dims, seed: u64) -> Generated {
        let inf = f64::INFINITY;
        parts(OP, SPECIAL, d, "", Dtype::Bf16, seed, move |v, rank, i| match (i, rank) {
            (0, 1) => f64::NAN,
            (1, 3) => inf,
            (2, 0) => -inf,
            (3, 0) => inf,
            (3, 2) => -inf,
            (4, _) => -0.0,
            (5, _) => 1.1e-39 * (1.0 + rank as f64),
            (6, _) => 5e4,
            _ => v.normal(1.0),
        })
    }
}

pub(super) mod all_gather {
    use super::*;

    const OP: &str = "all_gather";

    pub(in super::super) fn small(seed: u64) -> Vec<Generated> {
        let inf = f64::INFINITY;
        let mut out = Vec::new();
        for dtype in STORED {
            for ranks in [2, 4, 8] {
                out.push(parts(OP, UNIT, (ranks, 3, 16), "", dtype, seed, |v, _, _| v.normal(1.0)));
            }
        }
        // Every element names its rank and place.
        out.push(parts(OP, EXACT, (3, 5, 9), "", Dtype::Bf16, seed, |_, rank, i| {
            (rank * 64 + i % 61) as f64
        }));
        out.push(parts(OP, UNIT, (1, 2, 8), "", Dtype::Bf16, seed, |v, _, _| v.normal(1.0)));
        out.push(parts(OP, OUTLIER, (4, 2, 24), "", Dtype::Bf16, seed, |v, rank, _| {
            v.normal([1.0, 26.0, 700.0, 5e4][rank % 4])
        }));
        out.push(parts(OP, SPECIAL, (4, 2, 8), "", Dtype::Bf16, seed, move |v, rank, i| {
            match (i % 6, rank) {
                (0, 1) => f64::NAN,
                (1, 3) => inf,
                (2, 0) => -inf,
                (3, _) => -0.0,
                (4, _) => 1.1e-39 * (1.0 + rank as f64),
                _ => v.normal(1.0),
            }
        }));
        out
    }

    pub(in super::super) fn cases(seed: u64) -> Vec<Generated> {
        let mut out = small(seed);
        for d in [1, 7, 63, 64, 65, 767, 768, 769] {
            out.push(parts(OP, UNIT, (4, 2, d), "", Dtype::Bf16, seed, |v, _, _| v.normal(1.0)));
        }
        out
    }
}
