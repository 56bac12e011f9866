//! `softmax`: `y[j] = e^(x[j] - m) / sum_i e^(x[i] - m)` over rows of any length, bf16 or f32.
//!
//! Maximum, sum and quotients in three passes in f32 with expf; one division, one rounding.
//! -inf gives 0; a row of only -inf, and one with a NaN or +inf, is NaN throughout.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::softmax::{Params, Softmax};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "softmax";
const NAME: &str = "softmax";

/// The argument.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., D]` scores in bf16 or f32.
    pub x: &'a Tensor,
}

type Launcher =
    unsafe extern "C" fn(*const c_void, *mut c_void, c_int, c_int, *mut c_void) -> c_int;

/// Runs the kernel; the output has the shape and dtype of `x`.
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
        Dtype::Bf16 => "softmax_bf16",
        Dtype::F32 => "softmax_f32",
        other => return Err(contract.refuse("x", "bf16 or f32", other)),
    };
    if x.shape().is_empty() || x.is_empty() {
        return Err(contract.refuse("x", "a shape [..., D] without zeros", x.shape()));
    }
    let rows = contract.int("x", x.rows())?;
    let d = contract.int("x", x.cols())?;

    let address = backend.launcher(name)?;
    // SAFETY: kernel.hip defines both launchers with this signature, but for the type that
    // the data pointers point to.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let y_pointer = call.output("output", x.dtype(), x.shape())?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe { launcher(x_pointer, y_pointer, rows, d, ptr::null_mut()) })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<Softmax>()?;
    if params != Params::default() {
        return Err(Contract(NAME).refuse("params", "the defaults", params));
    }
    let x = super::tensor(NAME, case, "x")?;
    if case.dtype != x.dtype() {
        let expected = format!("{}, the dtype of x", x.dtype());
        return Err(Contract(NAME).refuse("output", expected, case.dtype));
    }
    launch(backend, &Args { x }, options)
}
