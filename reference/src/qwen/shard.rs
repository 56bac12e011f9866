//! Tensor parallelism: which part of each tensor a rank holds.
//!
//! As serving engines do it (Megatron's scheme): q, k, v, gate and up are split by output
//! (column-parallel), o and down by input (row-parallel) with a sum over ranks after them, lm_head by
//! vocabulary with the logits joined, norms and the embedding are whole on every rank. A rank has its
//! share of the query heads and the kv heads that they read; with fewer kv heads than ranks, several
//! ranks hold the same one. Experts are split like MLPs.

use std::ops::Range;

use crate::checkpoint::{Config, Quantization};
use crate::error::{Error, Result};
use crate::ops::packed;
use crate::tensor::Tensor;

/// Over how many ranks a model is split, and how they add what they computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// How many.
    pub count: usize,
    /// Whether the running sum is stored in the model's dtype after each rank, instead of f32.
    pub sum_stored: bool,
}

impl Ranks {
    /// How they add: `f32` or `stored`.
    pub fn name(self) -> &'static str {
        if self.sum_stored { "stored" } else { "f32" }
    }
}

impl From<usize> for Ranks {
    /// `count` ranks that add in f32.
    fn from(count: usize) -> Ranks {
        Ranks { count, sum_stored: false }
    }
}

/// One rank of several; rank 0 of 1 is all of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
}

impl Rank {
    /// `@1` in probe names, nothing for the whole model.
    pub fn suffix(self) -> String {
        if self.of == 1 { String::new() } else { format!("@{}", self.rank) }
    }

    /// This rank's part of `n` things: the last rank's may be smaller.
    pub fn part(self, n: usize) -> Range<usize> {
        let size = n.div_ceil(self.of);
        (self.rank * size).min(n)..((self.rank + 1) * size).min(n)
    }

    /// The kv heads that this rank's query heads read.
    pub fn kv_heads(self, heads: usize) -> Range<usize> {
        if heads >= self.of {
            return self.part(heads);
        }
        let head = self.rank * heads / self.of;
        head..head + 1
    }
}

/// How a linear layer is split over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// By output.
    Column,
    /// By input.
    Row,
}

/// A part of a stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A range on one axis.
    Range {
        /// Axis.
        axis: usize,
        /// Indices on it.
        range: Range<usize>,
    },
    /// Of a tensor that states a layer's outputs and inputs: those of the part.
    Sizes([usize; 2]),
}

impl Cut {
    /// The part of `t`.
    ///
    /// # Panics
    /// When the axis or range is outside the tensor.
    pub fn of(&self, t: &Tensor) -> Tensor {
        match self {
            Cut::Range { axis, range } => t.slice_axis(*axis, range.clone()),
            Cut::Sizes(sizes) => Tensor::from_i32(&[2], &sizes.map(|n| n as i32)),
        }
    }
}

/// Checks that a model can be split over `ranks`.
///
/// # Errors
/// Names the dimension that does not divide.
pub fn check(config: &Config, ranks: usize) -> Result<()> {
    let fail = |what: String| Err(refused(ranks, &what));
    if ![1, 2, 4, 8].contains(&ranks) {
        return fail("1, 2, 4 and 8 are supported".into());
    }
    if !config.num_attention_heads.is_multiple_of(ranks) {
        return fail(format!("{} query heads do not divide", config.num_attention_heads));
    }
    let kv = config.num_key_value_heads;
    if !kv.is_multiple_of(ranks) && !ranks.is_multiple_of(kv) {
        return fail(format!("{kv} kv heads neither divide nor repeat evenly"));
    }
    let mut widths = vec![("intermediate_size", config.intermediate_size)];
    if let Some(moe) = &config.moe {
        widths.push(("moe_intermediate_size", moe.intermediate_size));
        if moe.sparse.iter().all(|s| *s) {
            widths.remove(0);
        }
    }
    for (name, width) in widths {
        if !width.is_multiple_of(ranks) {
            return fail(format!("{name} {width} does not divide"));
        }
    }
    Ok(())
}

/// The error for a model that does not split.
pub(super) fn refused(ranks: usize, what: &str) -> Error {
    Error::Request(format!("cannot split the model over {ranks} ranks: {what}"))
}

/// Where outputs or inputs lie in a stored tensor: an axis on which index i holds the values i * `per`
/// / `words` to (i + 1) * `per` / `words`.
#[derive(Clone, Copy)]
struct Axis {
    axis: usize,
    /// Values that lie together.
    per: usize,
    /// Indices that they fill.
    words: usize,
}

impl Axis {
    fn plain(axis: usize) -> Option<Axis> {
        Some(Axis { axis, per: 1, words: 1 })
    }

    /// One index for `per` values: groups and blocks.
    fn each(axis: usize, per: usize) -> Option<Axis> {
        Some(Axis { axis, per, words: 1 })
    }

    /// Values of so many bits in 32-bit words.
    fn packed(axis: usize, bits: u32) -> Option<Axis> {
        let per = packed::per_run(bits);
        Some(Axis { axis, per, words: per * bits as usize / 32 })
    }

    fn cut(self, range: Range<usize>, all: usize) -> Result<Cut, String> {
        let index = |value: usize| {
            if value.is_multiple_of(self.per) {
                Ok(value / self.per * self.words)
            } else if value == all {
                Ok((value * self.words).div_ceil(self.per))
            } else {
                let per = self.per;
                Err(format!("{range:?} of {all} would split what {per} of them share"))
            }
        };
        Ok(Cut::Range { axis: self.axis, range: index(range.start)?..index(range.end)? })
    }
}

/// The cut of one tensor of a linear layer of `shape` [N, K]; `None` is all of it. `range` is of
/// outputs or inputs, as the layer is split.
///
/// Where inputs have a group index (`g_idx`), a row-parallel part keeps all groups' scales and zero
/// points and its inputs' part of the index, which may then name any group: the only way that also
/// works with activation order.
///
/// # Errors
/// When packed values, a group or a block would be split.
pub fn cut(
    quantization: Option<&Quantization>,
    suffix: &str,
    split: Split,
    range: Range<usize>,
    shape: [usize; 2],
) -> Result<Option<Cut>, String> {
    if let ("weight_shape", [n, k]) = (suffix, shape) {
        return Ok(Some(Cut::Sizes(match split {
            Split::Column => [range.len(), k],
            Split::Row => [n, range.len()],
        })));
    }
    let (outputs, inputs) = axes(quantization, suffix);
    let (axis, all) = match split {
        Split::Column => (outputs, shape[0]),
        Split::Row => (inputs, shape[1]),
    };
    axis.map(|a| a.cut(range, all)).transpose()
}

/// Where a tensor has the layer's outputs and its inputs; `None` where it is the same for all of them.
fn axes(quantization: Option<&Quantization>, suffix: &str) -> (Option<Axis>, Option<Axis>) {
    let groups = |axis: usize, size: Option<usize>| size.and_then(|s| Axis::each(axis, s));
    match (quantization, suffix) {
        (_, "bias") => (Axis::plain(0), None),
        (None, _) => (Axis::plain(0), Axis::plain(1)),
        (Some(Quantization::Gptq(q)), _) => match suffix {
            "qweight" => (Axis::plain(1), Axis::packed(0, q.bits)),
            "qzeros" => (Axis::packed(1, q.bits), None),
            "g_idx" => (None, Axis::plain(0)),
            _ => (Axis::plain(1), None),
        },
        (Some(Quantization::Awq(q)), _) => match suffix {
            "qweight" => (Axis::packed(1, 4), Axis::plain(0)),
            "qzeros" => (Axis::packed(1, 4), groups(0, q.group_size)),
            _ => (Axis::plain(1), groups(0, q.group_size)),
        },
        (Some(Quantization::CompressedTensors(q)), _) => {
            let groups = if q.g_idx { None } else { groups(1, q.group_size) };
            match suffix {
                "weight_packed" => (Axis::plain(0), Axis::packed(1, q.bits)),
                "weight_zero_point" => (Axis::packed(0, q.bits), groups),
                "weight_g_idx" => (None, Axis::plain(0)),
                _ => (Axis::plain(0), groups),
            }
        }
        (Some(Quantization::Fp8(q)), "weight_scale_inv") => {
            (Axis::each(0, q.block[0]), Axis::each(1, q.block[1]))
        }
        (Some(Quantization::Fp8(_)), _) => (Axis::plain(0), Axis::plain(1)),
    }
}
