//! Cases of `embedding`: both ends of the vocabulary, ids beyond 16 bits, hidden sizes on both sides of
//! a vector width.

use assay_reference::{Dtype, Tensor};

use super::draft::{Draft, EXACT, OUTLIER, SPECIAL, STORED, UNIT};
use super::{Generated, Values};

const OP: &str = "embedding";

/// (ids, vocabulary, hidden).
type Dims = (usize, usize, usize);

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit((7, 11, 24), dtype, seed));
        out.push(exact((9, 13, 16), dtype, seed));
    }
    out.push(exact((1, 2, 1), Dtype::Bf16, seed));
    out.push(beyond_16_bits(seed));
    out.push(outlier((6, 9, 64), seed));
    out.push(special(seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for hidden in [1, 7, 8, 767, 768, 769, 896, 3584, 5120] {
        out.push(unit((3, 7, hidden), Dtype::Bf16, seed));
    }
    for ids in [1, 63, 64, 65, 257] {
        out.push(unit((ids, 31, 20), Dtype::Bf16, seed));
    }
    out.push(wide_ids((5, 29, 24), seed));
    out
}

fn ids(v: &mut Values, (n, vocabulary, _): Dims) -> Vec<i32> {
    // The ends are always looked up; ids repeat.
    (0..n)
        .map(|i| match i {
            0 => vocabulary - 1,
            1 => 0,
            _ => v.below(vocabulary),
        } as i32)
        .collect()
}

fn build(family: super::draft::Family, d: Dims, dtype: Dtype, seed: u64) -> (Draft, Values) {
    let draft = Draft::new(OP, family, format!("{} of {}x{}", d.0, d.1, d.2), dtype, seed);
    let mut v = draft.values();
    let picked = ids(&mut v, d);
    (draft.ints("ids", &[d.0], &picked), v)
}

fn unit(d: Dims, dtype: Dtype, seed: u64) -> Generated {
    let (draft, mut v) = build(UNIT, d, dtype, seed);
    draft.with("weight", &[d.1, d.2], &v.normals(d.1 * d.2, 0.02)).done()
}

/// Ids of 64 bits, as frameworks hold them.
fn wide_ids(d: Dims, seed: u64) -> Generated {
    let label = format!("{} of {}x{}, ids of 64 bits", d.0, d.1, d.2);
    let draft = Draft::new(OP, UNIT, label, Dtype::Bf16, seed);
    let mut v = draft.values();
    let picked: Vec<f64> = ids(&mut v, d).into_iter().map(f64::from).collect();
    let table = v.normals(d.1 * d.2, 0.02);
    let ids = Tensor::from_f64(Dtype::I64, &[d.0], &picked);
    draft.tensor("ids", ids).with("weight", &[d.1, d.2], &table).done()
}

/// Every element names its row and column.
fn exact(d: Dims, dtype: Dtype, seed: u64) -> Generated {
    let (draft, _) = build(EXACT, d, dtype, seed);
    let code = |i: usize| (i * 37 % 509) as f64 - 254.0;
    let table: Vec<f64> = (0..d.1 * d.2).map(code).collect();
    draft.with("weight", &[d.1, d.2], &table).done()
}

/// Ids on both sides of 2^15 and 2^16, in a table of one column.
fn beyond_16_bits(seed: u64) -> Generated {
    const V: usize = 66_000;
    let draft = Draft::new(OP, EXACT, "ids beyond 16 bits", Dtype::Bf16, seed);
    let table: Vec<f64> = (0..V).map(|i| (i * 37 % 509) as f64 - 254.0).collect();
    let ids = [65_535, 65_536, 65_537, 65_999, 32_767, 32_768, 0, 1];
    draft.ints("ids", &[ids.len()], &ids).with("weight", &[V, 1], &table).done()
}

/// A channel at 26 times the rms, as released tables have.
fn outlier(d: Dims, seed: u64) -> Generated {
    let (draft, mut v) = build(OUTLIER, d, Dtype::Bf16, seed);
    let mut table = v.normals(d.1 * d.2, 0.02);
    table.chunks_mut(d.2).for_each(|row| row[d.2 * 2 / 5] = 0.52 * (1.0 + 0.1 * v.uniform()));
    draft.with("weight", &[d.1, d.2], &table).done()
}

/// Rows of NaN that nobody looks up beside rows that are; infinities, subnormals and zeros of either
/// sign are copied as they are.
fn special(seed: u64) -> Generated {
    const D: usize = 12;
    let draft = Draft::new(OP, SPECIAL, "rows of NaN unused", Dtype::Bf16, seed);
    let mut v = draft.values();
    let mut table = v.normals(8 * D, 0.02);
    for row in [1, 4] {
        table[row * D..(row + 1) * D].fill(f64::NAN);
    }
    for (i, x) in [f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1e-39, -9.2e-41, f64::NAN, 3e38]
        .into_iter()
        .enumerate()
    {
        table[6 * D + i] = x;
    }
    draft.ints("ids", &[5], &[0, 6, 2, 5, 7]).with("weight", &[8, D], &table).done()
}
