//! Native subjects: plain f32 implementations of every op, legitimate or broken on purpose.
//!
//! They are written from the formulas in the manual, apart from the reference: the power of the suite
//! is measured on them, and a misreading of an op must not be shared by both sides.

use assay_reference::{Case, Result, Tensor};

use super::Subject;

/// In which order a reduction adds its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First to last.
    Sequential,
    /// Last to first.
    Reversed,
    /// In a seeded random order.
    Permuted(u64),
    /// By halves, recursively.
    Pairwise,
    /// So many contiguous parts, each summed in sequence, then added in sequence: split-K.
    Split(usize),
    /// Term i to partial sum i mod n; the partial sums by a tree.
    Lanes(usize),
    /// Blocks of n terms are summed apart, as matrix instructions do, then added to the running sum.
    Blocks(usize),
}

/// How an implementation reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The order of the terms.
    pub order: Order,
    /// Whether products are fused into the additions.
    pub fma: bool,
    /// For softmax: one pass over blocks of this many keys with rescaling; `None` is two passes.
    pub online: Option<usize>,
}

/// One implementation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Native {
    /// The op.
    pub op: &'static str,
    /// How it reduces.
    pub chain: Chain,
    /// Choices that differ from the defaults: (knob, value), by the names that the op's knobs have.
    pub conventions: Vec<(String, String)>,
    /// What is wrong with it: a fault's slug and key.
    pub fault: Option<(String, String)>,
}

impl Subject for Native {
    fn op(&self) -> &str {
        self.op
    }

    fn run(&self, case: &Case) -> Result<Tensor> {
        Err(assay_reference::Error::Request(format!("no native implementation of `{}`", case.op)))
    }
}
