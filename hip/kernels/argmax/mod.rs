//! `argmax`: the index of the largest element of each row of bf16, f16 or f32.
//!
//! Torch's rules: of equal elements the first wins, and the first NaN wins over everything.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::argmax::{Argmax, Params};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "argmax";
const NAME: &str = "argmax";

/// The argument.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., V]` logits in bf16, f16 or f32.
    pub x: &'a Tensor,
}

type Launcher = unsafe extern "C" fn(*const c_void, *mut i32, c_int, c_int, *mut c_void) -> c_int;

/// Runs the kernel; the output is `[rows, 1]` i32.
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
    let Args { x } = *args;
    let name = match x.dtype() {
        Dtype::Bf16 => "argmax_bf16",
        Dtype::F16 => "argmax_f16",
        Dtype::F32 => "argmax_f32",
        other => return Err(contract.refuse("x", "bf16, f16 or f32", other)),
    };
    if x.shape().is_empty() || x.is_empty() {
        return Err(contract.refuse("x", "a shape [..., V] without zeros", x.shape()));
    }
    let rows = contract.int("x", x.rows())?;
    let v = contract.int("x", x.cols())?;

    let address = backend.launcher(name)?;
    // SAFETY: kernel.hip defines the launchers with this signature, but for the type that
    // the data pointer points to.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let y_pointer = call.output("output", Dtype::I32, &[x.rows(), 1])?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe { launcher(x_pointer, y_pointer, rows, v, ptr::null_mut()) })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<Argmax>()?;
    if params != Params::default() {
        return Err(Contract(NAME).refuse("params", "the defaults", params));
    }
    launch(backend, &Args { x: super::tensor(NAME, case, "x")? }, options)
}
