//! The arithmetics in which ops are compiled: once, in this crate, whoever asks for them.

use std::any::Any;

use super::{Inputs, Out, Tensors, Tile};
use crate::arith::Real;
use crate::error::Result;
use crate::qwen::Preset;
use crate::qwen::plan::Node;

/// A [`Real`] in which every op is compiled. What is generic over an op or an arithmetic would else be
/// compiled again in each crate and each test that uses it.
pub trait Basis: Real {
    /// Evaluates a tile of `setup`, a [`Setup`](super::Setup) of the op called `op`.
    ///
    /// # Panics
    /// When it is not.
    fn eval(op: &str, setup: &dyn Any, tile: &Tile) -> Vec<Out<Self>>;

    /// Evaluates a node of a plan under a preset and rounds its output. `stored` are the inputs that
    /// are tensors.
    ///
    /// # Errors
    /// When the node's op is unknown or its params are not the op's.
    fn run(
        node: &Node,
        preset: &Preset,
        inputs: &Inputs<'_, Self>,
        stored: &Tensors,
    ) -> Result<Vec<Self>>;
}

// The unit tests of this crate evaluate no op; compiling all of them a second time for those would take
// most of a test build.
#[cfg(not(test))]
mod instances;
