//! `gemv_bf16`: `y[m, n] = sum_k x[m, k] weight[n, k] + bias[n]` for 1 to 8 rows, all bf16.
//!
//! A wave a column: f32 accumulation by fused multiply-add in each of 64 lanes, then a tree
//! over the lanes; the bias joins in f32; one rounding. Any N and K of at least 1. A row's
//! bits do not depend on the other rows. Non-finite values follow IEEE.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::matmul::{Layout, Matmul};
use assay_reference::{Case, Dtype, Tensor};

use super::linear;
use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "matmul";
const NAME: &str = "gemv_bf16";
const MAX_ROWS: usize = 8;

/// The arguments, all bf16.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., K]` activations; the leading axes make up M, 1 to 8.
    pub x: &'a Tensor,
    /// `[N, K]` weights.
    pub weight: &'a Tensor,
    /// `[N]`, or none.
    pub bias: Option<&'a Tensor>,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const u16,
    *mut u16,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// Runs the kernel; the output is `[..., N]` bf16.
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
    let Args { x, weight, bias } = *args;
    let [m, n, k] = linear::sizes(contract, x, weight, bias)?;
    if m > MAX_ROWS {
        return Err(contract.refuse("x", "[..., K] with 1 to 8 rows", x.shape()));
    }
    let sizes = [contract.int("x", m)?, contract.int("weight", n)?, contract.int("x", k)?];

    let address = backend.launcher(NAME)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let weight_pointer = call.input("weight", weight)?;
    let bias_pointer = call.optional_input("bias", bias)?;
    let shape = linear::output_shape(x, n);
    let y_pointer = call.output("y", Dtype::Bf16, &shape)?;
    let [m, n, k] = sizes;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        launcher(x_pointer, weight_pointer, bias_pointer, y_pointer, m, n, k, ptr::null_mut())
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    linear::plain(Contract(NAME), &case.params::<Matmul>()?, Layout::OutIn)?;
    let args = Args {
        x: super::tensor(NAME, case, "x")?,
        weight: super::tensor(NAME, case, "weight")?,
        bias: case.tensors.get("bias"),
    };
    launch(backend, &args, options)
}
