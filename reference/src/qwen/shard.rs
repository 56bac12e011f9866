//! Tensor parallelism: which part of each tensor a rank holds.
//!
//! As serving engines do it (Megatron's scheme): q, k, v, gate and up are split by output
//! (column-parallel), o and down by input (row-parallel) with a sum over ranks after them, lm_head by
//! vocabulary with the logits joined, norms and the embedding are whole on every rank. A rank has its
//! share of the query heads and the kv heads that they read; with fewer kv heads than ranks, several
//! ranks hold the same one. Experts are split like MLPs.

use std::ops::Range;

use crate::checkpoint::{Config, Gptq};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Over how many ranks a model is split, and how they add what they computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// How many.
    pub count: usize,
    /// Whether the running sum is stored in the model's dtype after each rank, instead of f32.
    pub sum_stored: bool,
}

impl From<usize> for Ranks {
    /// `count` ranks that add in f32.
    fn from(count: usize) -> Ranks {
        Ranks { count, sum_stored: false }
    }
}

/// One rank of several; the default is all of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
}

impl Rank {
    /// The whole model.
    pub const ALL: Rank = Rank { rank: 0, of: 1 };

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

/// A part of a stored tensor: a range on one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Axis.
    pub axis: usize,
    /// Indices on it.
    pub range: Range<usize>,
}

impl Cut {
    /// The part of `t`.
    ///
    /// # Panics
    /// When the axis or range is outside the tensor.
    pub fn of(&self, t: &Tensor) -> Tensor {
        t.slice_axis(self.axis, self.range.clone())
    }
}

/// Checks that a model can be split over `ranks`.
///
/// # Errors
/// Names the dimension that does not divide.
pub fn check(config: &Config, ranks: usize) -> Result<()> {
    let fail = |what: String| {
        Err(Error::Request(format!("cannot split the model over {ranks} ranks: {what}")))
    };
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

/// The cut of one tensor of a dense linear layer; `None` is all of it. A row-parallel layer's bias
/// belongs to rank 0.
pub fn dense(suffix: &str, split: Split, range: Range<usize>) -> Option<Cut> {
    match (suffix, split) {
        ("bias", Split::Row) => None,
        (_, Split::Column) => Some(Cut { axis: 0, range }),
        (_, Split::Row) => Some(Cut { axis: 1, range }),
    }
}

/// The cut of one tensor of a 4-bit GPTQ layer; `None` is all of it. Split by input, a rank keeps all
/// groups' scales and zero points and its rows' part of `g_idx`, which then may name any group: the
/// only way that also works with activation order.
///
/// # Errors
/// When a word of packed values would be split.
pub fn gptq(
    gptq: &Gptq,
    suffix: &str,
    split: Split,
    range: Range<usize>,
    layer: &str,
) -> Result<Option<Cut>> {
    let words = |axis: usize| -> Result<Option<Cut>> {
        let bits = gptq.bits as usize;
        if !(range.start * bits).is_multiple_of(32) || !(range.end * bits).is_multiple_of(32) {
            return Err(Error::Request(format!(
                "cannot split {layer}: {}..{} of {bits}-bit values do not fill 32-bit words",
                range.start, range.end
            )));
        }
        Ok(Some(Cut { axis, range: range.start * bits / 32..range.end * bits / 32 }))
    };
    match (split, suffix) {
        (Split::Column, "qweight" | "scales") => Ok(Some(Cut { axis: 1, range })),
        (Split::Column, "qzeros") => words(1),
        (Split::Row, "qweight") => words(0),
        (Split::Row, "g_idx") => Ok(Some(Cut { axis: 0, range })),
        _ => Ok(None),
    }
}
