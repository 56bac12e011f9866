//! `awq_dequant`: `w[k, n] = (q[k, n] - z[g, n]) * scale[g, n]`, 4-bit AWQ to bf16 or f16.
//!
//! g = k / group_size. Both q and z are packed along N, the columns of a word in the order
//! 0 2 4 6 1 3 5 7; zero points are stored as they are. The f16 scale is widened to f32, where
//! the product is exact, and the result is rounded once.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::awq_dequant::{AwqDequant, PER_WORD, Params};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "awq_dequant";
const NAME: &str = "awq_dequant";
/// Threads of a workgroup, each of which unpacks one word.
const THREADS: usize = 256;

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[K, N/8]` i32, packed along N, interleaved.
    pub qweight: &'a Tensor,
    /// `[G, N/8]` i32, packed as the weights are.
    pub qzeros: &'a Tensor,
    /// `[G, N]` f16.
    pub scales: &'a Tensor,
    /// Rows of a group, or -1 for one group of all; G = ceil(K / group_size).
    pub group_size: i64,
    /// Output dtype, bf16 or f16.
    pub output: Dtype,
}

type Launcher = unsafe extern "C" fn(
    *const i32,
    *const i32,
    *const u16,
    *mut u16,
    c_int,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// K, N, G and the group size as the launcher takes them.
fn check(args: &Args<'_>) -> Result<[c_int; 4], Error> {
    let contract = Contract(NAME);
    let Args { qweight, qzeros, scales, group_size, .. } = *args;
    contract.dtype("qweight", qweight, Dtype::I32)?;
    contract.dtype("qzeros", qzeros, Dtype::I32)?;
    contract.dtype("scales", scales, Dtype::F16)?;
    let [k, words] = contract.sizes("qweight", qweight, "[K, N/8]")?;
    let rows = match usize::try_from(group_size) {
        Ok(rows) if rows > 0 => rows,
        _ if group_size == -1 => k,
        _ => return Err(contract.refuse("group_size", "-1 or a positive number", group_size)),
    };
    let (n, groups) = (words * PER_WORD, k.div_ceil(rows));
    contract.shape("scales", scales, &[groups, n])?;
    contract.shape("qzeros", qzeros, &[groups, words])?;
    // The words are counted by an int, in whole workgroups.
    contract.int("qweight", k * words + THREADS)?;
    let group_size = if group_size == -1 { -1 } else { contract.int("group_size", rows)? };
    Ok([
        contract.int("qweight", k)?,
        contract.int("qweight", n)?,
        contract.int("scales", groups)?,
        group_size,
    ])
}

/// Runs the kernel; the output is `[K, N]` in `args.output`.
///
/// # Errors
/// [`Error::Argument`] when an argument breaks the contract, and what keeps the backend
/// from launching.
pub fn launch(
    backend: &Backend,
    args: &Args<'_>,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let [k, n, groups, group_size] = check(args)?;
    let address = match args.output {
        Dtype::Bf16 => backend.launcher("awq_dequant_bf16")?,
        Dtype::F16 => backend.launcher("awq_dequant_f16")?,
        other => return Err(Contract(NAME).refuse("output", "bf16 or f16", other)),
    };
    // SAFETY: kernel.hip defines both launchers with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let qweight = call.input("qweight", args.qweight)?;
    let qzeros = call.input("qzeros", args.qzeros)?;
    let scales = call.input("scales", args.scales)?;
    let weight = call.output("weight", args.output, &[k as usize, n as usize])?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        launcher(qweight, qzeros, scales, weight, k, n, groups, group_size, ptr::null_mut())
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<AwqDequant>()?;
    if params != Params::new(params.group_size) {
        return Err(Contract(NAME).refuse("params", "a group_size only", params));
    }
    let args = Args {
        qweight: super::tensor(NAME, case, "qweight")?,
        qzeros: super::tensor(NAME, case, "qzeros")?,
        scales: super::tensor(NAME, case, "scales")?,
        group_size: params.group_size,
        output: case.dtype,
    };
    launch(backend, &args, options)
}
