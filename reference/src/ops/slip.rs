//! Single slips of integer weights that the formats share: one bit, one zero point, one group.

use serde::{Deserialize, Serialize};

use super::{Fault, Op, Setup};
use crate::arith::Real;
use crate::policy::Policy;

/// What is wrong about one value, zero point or group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slip {
    /// Nothing.
    #[default]
    None,
    /// A last group that is not full has the scale and zero point of the one before: a fault.
    PartialGroup,
    /// The zero point is that of the same slot of the next word, in the last word its own: a fault.
    NextZeroWord,
    /// The lowest bit of the value in the middle, k = K/2 and n = N/2, is inverted: a fault.
    FlippedBit,
    /// The zero point in the middle, of group G/2 and column N/2, is one too large: a fault.
    OneZeroPoint,
    /// Zero point times scale is stored, then subtracted from value times scale: a fault.
    PrescaledZero,
    /// A group size of -1 is used as a number: rows of block b = k / 64 have the scale of column n - b: a
    /// fault.
    MinusOneStride,
}

/// Rows of a block of [`Slip::MinusOneStride`].
const BLOCK: usize = 64;

impl Slip {
    /// The group of row `own`, of groups of `size` rows out of `k`.
    pub(super) fn group(self, own: usize, k: usize, size: i64) -> usize {
        let whole = usize::try_from(size).map_or(1, |size| k / size.max(1));
        if self == Slip::PartialGroup { own.min(whole.max(1) - 1) } else { own }
    }

    /// The column whose scale row `k` of column `c` of `n` has.
    pub(super) fn scale_column(self, c: usize, k: usize, n: usize) -> usize {
        if self == Slip::MinusOneStride { (c + n - k / BLOCK % n) % n } else { c }
    }

    /// The column whose zero point column `c` of `n` has, with `run` columns a word.
    pub(super) fn zero_column(self, c: usize, n: usize, run: usize) -> usize {
        if self == Slip::NextZeroWord && c + run < n { c + run } else { c }
    }

    /// The packed integer at [k, n] as it is read.
    pub(super) fn value(self, value: i64, at: [usize; 2], sizes: [usize; 2]) -> i64 {
        let middle = at == sizes.map(|size| size / 2);
        if self == Slip::FlippedBit && middle { value ^ 1 } else { value }
    }

    /// The zero point at [group, n] as it is used.
    pub(super) fn zero(self, zero: i64, at: [usize; 2], sizes: [usize; 2]) -> i64 {
        let middle = at == sizes.map(|size| size / 2);
        zero + i64::from(self == Slip::OneZeroPoint && middle)
    }

    /// (q - z) s as it is computed; `negated` is (z - q) s.
    pub(super) fn weight<R: Real>(
        self,
        [q, z]: [i64; 2],
        s: R,
        negated: bool,
        policy: &Policy,
    ) -> R {
        if self == Slip::PrescaledZero {
            let zero = R::lift(z as f64).mul(s).round(policy.output, policy.lambda);
            return R::lift(q as f64).mul(s).sub(zero);
        }
        R::lift(if negated { z - q } else { q - z } as f64).mul(s)
    }
}

/// A layer of packed integers, as far as its slips depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) group_size: i64,
    /// Whether rows have their groups by an index.
    pub(super) indexed: bool,
    /// Columns of a word of zero points; `None` without zero points.
    pub(super) zeros: Option<usize>,
    pub(super) groups: usize,
}

/// The slips that change something in a layer, but for those that only one format has.
pub(super) fn faults<O: Op>(
    layer: Packed,
    set: impl Fn(&mut Setup<O>, Slip) + Copy + Send + Sync + 'static,
) -> Vec<Fault<O>> {
    let Packed { k, n, group_size, groups, .. } = layer;
    let fault = |slip: Slip, code, slug, detail: String| {
        Fault::new(code, slug, detail, move |s: &mut Setup<O>| set(s, slip))
    };
    let mut faults = Vec::new();
    let size = usize::try_from(group_size).unwrap_or(k).max(1);
    if !layer.indexed && groups > 1 && k % size != 0 {
        let detail = format!("rows {}..{k} have the scale of the group before", k / size * size);
        faults.push(fault(Slip::PartialGroup, "A23B", "partial_group_scale", detail));
    }
    let detail =
        format!("the lowest bit of the value at row {}, column {} is inverted", k / 2, n / 2);
    faults.push(fault(Slip::FlippedBit, "A23D", "value_bit_flipped", detail));
    if layer.zeros.is_some() {
        let detail = "zero point times scale is stored before it is subtracted".to_owned();
        faults.push(fault(Slip::PrescaledZero, "A23F", "zero_point_prescaled", detail));
    }
    faults
}

/// The slips of zero points that have a word for several columns.
pub(super) fn zero_faults<O: Op>(
    layer: Packed,
    set: impl Fn(&mut Setup<O>, Slip) + Copy + Send + Sync + 'static,
) -> Vec<Fault<O>> {
    let fault = |slip: Slip, code, slug, detail: String| {
        Fault::new(code, slug, detail, move |s: &mut Setup<O>| set(s, slip))
    };
    let (group, column) = (layer.groups / 2, layer.n / 2);
    let detail = format!("the zero point of group {group}, column {column} is one too large");
    let mut faults = vec![fault(Slip::OneZeroPoint, "A23E", "one_zero_point_off", detail)];
    if let Some(run) = layer.zeros.filter(|run| layer.n > *run) {
        let detail = format!("zero points are those of the next word, {run} columns on");
        faults.push(fault(Slip::NextZeroWord, "A23C", "zero_of_next_word", detail));
    }
    faults
}

/// The slip of a group size of -1.
pub(super) fn stride_fault<O: Op>(
    layer: Packed,
    set: impl Fn(&mut Setup<O>, Slip) + Copy + Send + Sync + 'static,
) -> Option<Fault<O>> {
    let offered = layer.group_size == -1 && !layer.indexed && layer.k > BLOCK && layer.n > 1;
    offered.then(|| {
        let detail = format!("the group size -1 is used as a stride: rows from {BLOCK} on have the scale of another column");
        Fault::new("A23A", "minus_one_as_stride", detail, move |s: &mut Setup<O>| {
            set(s, Slip::MinusOneStride);
        })
    })
}
