//! `add_rms_norm`: `residual = a + b` and `output = rms_norm(residual)`, all bf16.
//!
//! The sum is rounded to bf16 and the norm reads it as stored; squares are summed in f32, and
//! the row is multiplied by the reciprocal root and the weight in f32 with one rounding.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::add_rms_norm::{AddRmsNorm, Params, Written};
use assay_reference::{Case, Dtype, Tensor};

use super::rms_norm;
use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "add_rms_norm";
const NAME: &str = "add_rms_norm";
const LAUNCHER: &str = "add_rms_norm_bf16";

/// The arguments, all bf16.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., D]` residual stream.
    pub a: &'a Tensor,
    /// `[..., D]` block output.
    pub b: &'a Tensor,
    /// `[D]`.
    pub weight: &'a Tensor,
    /// Added to the mean of squares: finite, not negative.
    pub eps: f64,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const u16,
    *mut u16,
    *mut u16,
    c_int,
    c_int,
    f32,
    *mut c_void,
) -> c_int;

/// Runs the kernel; the outputs are `output` and `residual`, `[..., D]` bf16.
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
    let Args { a, b, weight, eps } = *args;
    for (name, tensor) in [("a", a), ("b", b), ("weight", weight)] {
        contract.dtype(name, tensor, Dtype::Bf16)?;
    }
    let [d] = contract.sizes("weight", weight, "[D]")?;
    let rows = match a.shape() {
        [leading @ .., columns] if *columns == d && !leading.contains(&0) => {
            leading.iter().product()
        }
        shape => {
            return Err(contract.refuse("a", format!("a shape [..., {d}] without zeros"), shape));
        }
    };
    contract.shape("b", b, a.shape())?;
    let eps = rms_norm::eps_f32(contract, eps)?;
    let (rows, d) = (contract.int("a", rows)?, contract.int("weight", d)?);

    let address = backend.launcher(LAUNCHER)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let a_pointer = call.input("a", a)?;
    let b_pointer = call.input("b", b)?;
    let weight_pointer = call.input("weight", weight)?;
    let output = call.output("output", Dtype::Bf16, a.shape())?;
    let residual = call.output("residual", Dtype::Bf16, a.shape())?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        let stream = ptr::null_mut();
        launcher(a_pointer, b_pointer, weight_pointer, output, residual, rows, d, eps, stream)
    })
}

/// Refuses params of the op that say other than `eps` and a default.
fn plain(contract: Contract, params: &Params) -> Result<(), Error> {
    rms_norm::plain(contract, &params.norm)?;
    let others = [
        ("add", params.add != Default::default()),
        ("heads", params.norm.heads.is_some()),
        ("edge_f32", params.edge_f32),
        ("written", params.written != Written::Sum),
        ("norm_of_old", params.norm_of_old),
    ];
    match others.into_iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(contract.refuse(name, "its default", format_args!("another value"))),
        None => Ok(()),
    }
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<AddRmsNorm>()?;
    plain(Contract(NAME), &params)?;
    let args = Args {
        a: super::tensor(NAME, case, "a")?,
        b: super::tensor(NAME, case, "b")?,
        weight: super::tensor(NAME, case, "weight")?,
        eps: params.norm.eps,
    };
    launch(backend, &args, options)
}
