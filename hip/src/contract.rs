//! Checks of a launcher's arguments, each failing with the argument, the expectation and
//! what was given.

use std::fmt::Debug;

use assay_reference::{Dtype, Tensor};

use crate::error::Error;

/// The arguments of one kernel.
#[derive(Clone, Copy)]
pub(crate) struct Contract(pub(crate) &'static str);

impl Contract {
    pub(crate) fn refuse(
        self,
        argument: &'static str,
        expected: impl Into<String>,
        given: impl Debug,
    ) -> Error {
        let given = format!("{given:?}");
        Error::Argument { kernel: self.0, argument, expected: expected.into(), given }
    }

    pub(crate) fn dtype(
        self,
        argument: &'static str,
        tensor: &Tensor,
        expected: Dtype,
    ) -> Result<(), Error> {
        if tensor.dtype() == expected {
            return Ok(());
        }
        let given = tensor.dtype();
        Err(Error::Argument {
            kernel: self.0,
            argument,
            expected: expected.to_string(),
            given: given.to_string(),
        })
    }

    /// The sizes of a tensor of this rank, none of them zero, named for the message.
    pub(crate) fn sizes<const RANK: usize>(
        self,
        argument: &'static str,
        tensor: &Tensor,
        axes: &str,
    ) -> Result<[usize; RANK], Error> {
        match <[usize; RANK]>::try_from(tensor.shape()) {
            Ok(sizes) if !sizes.contains(&0) => Ok(sizes),
            _ => {
                Err(self.refuse(argument, format!("a shape {axes} without zeros"), tensor.shape()))
            }
        }
    }

    pub(crate) fn shape(
        self,
        argument: &'static str,
        tensor: &Tensor,
        expected: &[usize],
    ) -> Result<(), Error> {
        if tensor.shape() == expected {
            return Ok(());
        }
        Err(self.refuse(argument, format!("shape {expected:?}"), tensor.shape()))
    }

    /// A size as the C `int` that launchers take.
    pub(crate) fn int(self, argument: &'static str, size: usize) -> Result<i32, Error> {
        i32::try_from(size).map_err(|_| self.refuse(argument, "sizes below 2^31", size))
    }
}
