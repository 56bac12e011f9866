//! `gemm_bf16`: `y[m, n] = sum_k x[m, k] weight[n, k] + bias[n]`, all bf16.
//!
//! f32 accumulation in the order of k by fused multiply-add; the bias joins in f32; one
//! rounding. Any M, N, K of at least 1. Non-finite values follow IEEE.
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
const NAME: &str = "gemm_bf16";

/// The arguments, all bf16.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., K]` activations; the leading axes make up M.
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
    contract.dtype("x", x, Dtype::Bf16)?;
    contract.dtype("weight", weight, Dtype::Bf16)?;
    let [n, k] = contract.sizes("weight", weight, "[N, K]")?;
    let Some((&columns, leading)) = x.shape().split_last() else {
        return Err(contract.refuse("x", "a shape [..., K]", x.shape()));
    };
    let m: usize = leading.iter().product();
    if columns != k || m == 0 {
        return Err(contract.refuse("x", format!("a shape [..., {k}] without zeros"), x.shape()));
    }
    if let Some(bias) = bias {
        contract.dtype("bias", bias, Dtype::Bf16)?;
        contract.shape("bias", bias, &[n])?;
    }
    let sizes = [contract.int("x", m)?, contract.int("weight", n)?, contract.int("x", k)?];

    let address = backend.launcher(NAME)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let weight_pointer = call.input("weight", weight)?;
    let bias_pointer = call.optional_input("bias", bias)?;
    let shape = [leading, &[n]].concat();
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
