//! `silu_mul`: `y = silu(gate) * up`, all bf16.
//!
//! silu(g) = g / (1 + e^-g) by expf and a division in f32; the product in f32; one rounding.
//! Non-finite values follow IEEE, so silu(-inf) is NaN.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::silu_mul::{Params, SiluMul};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "silu_mul";
const NAME: &str = "silu_mul";

/// The arguments, bf16 of one shape.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., D]`, activated.
    pub gate: &'a Tensor,
    /// `[..., D]`, multiplied.
    pub up: &'a Tensor,
}

type Launcher = unsafe extern "C" fn(*const u16, *const u16, *mut u16, c_int, *mut c_void) -> c_int;

/// Runs the kernel; the output is `[..., D]` bf16.
///
/// # Errors
/// [`Error::Argument`] when an argument breaks the contract, and what keeps the backend
/// from launching.
pub fn launch(
    backend: &Backend,
    args: &Args<'_>,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let contract = Contract(NAME);
    let Args { gate, up } = *args;
    contract.dtype("gate", gate, Dtype::Bf16)?;
    contract.dtype("up", up, Dtype::Bf16)?;
    contract.shape("up", up, gate.shape())?;
    if gate.is_empty() {
        return Err(contract.refuse("gate", "a shape [..., D] without zeros", gate.shape()));
    }
    let n = contract.int("gate", gate.len())?;

    let address = backend.launcher(NAME)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let gate_pointer = call.input("gate", gate)?;
    let up_pointer = call.input("up", up)?;
    let y_pointer = call.output("output", Dtype::Bf16, gate.shape())?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe { launcher(gate_pointer, up_pointer, y_pointer, n, ptr::null_mut()) })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<SiluMul>()?;
    if params != Params::default() {
        return Err(Contract(NAME).refuse("params", "the defaults", params));
    }
    if case.dtype != Dtype::Bf16 {
        return Err(Contract(NAME).refuse("output", "bf16", case.dtype));
    }
    let args =
        Args { gate: super::tensor(NAME, case, "gate")?, up: super::tensor(NAME, case, "up")? };
    launch(backend, &args, options)
}
