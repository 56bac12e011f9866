//! `gemm_bf16_splitk`: `y[m, n] = sum_k x[m, k] weight[n, k] + bias[n]`, all bf16, with K cut
//! into parts that different blocks sum.
//!
//! f32 accumulation in the order of k by fused multiply-add within a part; f32 partial sums
//! in a workspace; a second kernel adds them in the order of the parts, then the bias, and
//! rounds once. Any M, N, K of at least 1 with M N below 2^31. Non-finite values follow IEEE.
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
const NAME: &str = "gemm_bf16_splitk";
const MAX_PARTS: usize = 32;
/// How many parts a case of the op is cut into. It does not depend on M, so that a row has
/// the bits alone that it has in a batch.
const PARTS: usize = 4;

/// The arguments; tensors are bf16.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., K]` activations; the leading axes make up M.
    pub x: &'a Tensor,
    /// `[N, K]` weights.
    pub weight: &'a Tensor,
    /// `[N]`, or none.
    pub bias: Option<&'a Tensor>,
    /// Into how many parts of ceil(K / parts) terms the sum is cut, 1 to 32.
    pub parts: usize,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const u16,
    *mut f32,
    *mut u16,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// Runs the kernels; the output is `[..., N]` bf16.
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
    let Args { x, weight, bias, parts } = *args;
    let [m, n, k] = linear::sizes(contract, x, weight, bias)?;
    if !(1..=MAX_PARTS).contains(&parts) {
        return Err(contract.refuse("parts", format!("1 to {MAX_PARTS}"), parts));
    }
    contract.int("x", m.saturating_mul(n))?;
    let sizes = [
        contract.int("x", m)?,
        contract.int("weight", n)?,
        contract.int("x", k)?,
        contract.int("parts", parts)?,
    ];

    let address = backend.launcher(NAME)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let weight_pointer = call.input("weight", weight)?;
    let bias_pointer = call.optional_input("bias", bias)?;
    let workspace = call.workspace("workspace", parts * m * n * size_of::<f32>())?;
    let y_pointer = call.output("y", Dtype::Bf16, &linear::output_shape(x, n))?;
    let [m, n, k, parts] = sizes;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        let stream = ptr::null_mut();
        launcher(
            x_pointer,
            weight_pointer,
            bias_pointer,
            workspace,
            y_pointer,
            m,
            n,
            k,
            parts,
            stream,
        )
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
        parts: PARTS,
    };
    launch(backend, &args, options)
}
