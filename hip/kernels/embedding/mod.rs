//! `embedding`: `y[t] = weight[ids[t]]`, rows of bf16 or f16 by ids of 32 or 64 bits.
//!
//! A copy that keeps every bit. Ids outside the table are refused.
#![expect(unsafe_code, reason = "calls the kernel's launchers")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::embedding::{Embedding, Params};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "embedding";
const NAME: &str = "embedding";

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[T]` i32 or i64, in 0..V.
    pub ids: &'a Tensor,
    /// `[V, H]` bf16 or f16.
    pub weight: &'a Tensor,
}

type Launcher =
    unsafe extern "C" fn(*const c_void, *const u16, *mut u16, c_int, c_int, *mut c_void) -> c_int;

/// Runs the kernel; the output is `[T, H]` in the weight's dtype.
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
    let Args { ids, weight } = *args;
    let name = match ids.dtype() {
        Dtype::I32 => "embedding_i32",
        Dtype::I64 => "embedding_i64",
        other => return Err(contract.refuse("ids", "i32 or i64", other)),
    };
    if !matches!(weight.dtype(), Dtype::Bf16 | Dtype::F16) {
        return Err(contract.refuse("weight", "bf16 or f16", weight.dtype()));
    }
    let [tokens] = contract.sizes("ids", ids, "[T]")?;
    let [vocabulary, hidden] = contract.sizes("weight", weight, "[V, H]")?;
    let in_table = 0..vocabulary as i64;
    if let Some(id) = (0..tokens).map(|t| ids.get_i64(t)).find(|id| !in_table.contains(id)) {
        return Err(contract.refuse("ids", format!("values in [0, {vocabulary})"), id));
    }
    let t = contract.int("ids", tokens)?;
    let h = contract.int("weight", hidden)?;

    let address = backend.launcher(name)?;
    // SAFETY: kernel.hip defines both launchers with this signature, but for the type that
    // the ids' pointer points to.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let ids_pointer = call.input("ids", ids)?;
    let weight_pointer = call.input("weight", weight)?;
    let y_pointer = call.output("output", weight.dtype(), &[tokens, hidden])?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe { launcher(ids_pointer, weight_pointer, y_pointer, t, h, ptr::null_mut()) })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<Embedding>()?;
    if params != Params::default() {
        return Err(Contract(NAME).refuse("params", "the defaults", params));
    }
    let args = Args {
        ids: super::tensor(NAME, case, "ids")?,
        weight: super::tensor(NAME, case, "weight")?,
    };
    if case.dtype != args.weight.dtype() {
        let expected = format!("{}, the dtype of weight", args.weight.dtype());
        return Err(Contract(NAME).refuse("output", expected, case.dtype));
    }
    launch(backend, &args, options)
}
