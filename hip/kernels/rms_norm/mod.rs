//! `rms_norm`: `y = x / sqrt(mean(x^2) + eps) * weight` over the innermost dimension, all bf16.
//!
//! Squares are summed in f32, and the row is multiplied by the reciprocal root and the weight
//! in f32 with one rounding. With `heads`, the first heads of each token of an x [T, H, D].
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::rms_norm::{Params, RmsNorm, Weight};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "rms_norm";
const NAME: &str = "rms_norm";
const LAUNCHER: &str = "rms_norm_bf16";

/// The arguments, all bf16.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[..., D]` activations.
    pub x: &'a Tensor,
    /// `[D]`.
    pub weight: &'a Tensor,
    /// Heads of a token that are normalised, of an x `[T, H, D]`, or none for all rows.
    pub heads: Option<usize>,
    /// Added to the mean of squares: finite, not negative.
    pub eps: f64,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *mut u16,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *mut c_void,
) -> c_int;

/// The eps that a launcher takes.
pub(super) fn eps_f32(contract: Contract, eps: f64) -> Result<f32, Error> {
    let given = eps as f32;
    if given.is_finite() && given >= 0.0 {
        return Ok(given);
    }
    Err(contract.refuse("eps", "a finite number of at least 0", eps))
}

/// Refuses params of the op that say other than `eps` and `heads`.
pub(super) fn plain(contract: Contract, params: &Params) -> Result<(), Error> {
    let others = [
        ("weight", params.weight != Weight::Multiplied),
        ("skipped", params.skipped),
        ("centred", params.centred),
        ("stride_ignored", params.stride_ignored),
        ("width", params.width.is_some()),
        ("vector", params.vector.is_some()),
        ("newton", params.newton),
    ];
    match others.into_iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(contract.refuse(name, "its default", format_args!("another value"))),
        None => Ok(()),
    }
}

/// Runs the kernel; the output is `[..., D]` bf16, or `[T, heads, D]`.
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
    let Args { x, weight, heads, eps } = *args;
    contract.dtype("x", x, Dtype::Bf16)?;
    contract.dtype("weight", weight, Dtype::Bf16)?;
    let [d] = contract.sizes("weight", weight, "[D]")?;
    let eps = eps_f32(contract, eps)?;
    let (tokens, heads, all_heads) = match (heads, x.shape()) {
        (Some(heads), &[t, all, columns])
            if columns == d && t > 0 && (1..=all).contains(&heads) =>
        {
            (t, heads, all)
        }
        (None, [leading @ .., columns]) if *columns == d && !leading.contains(&0) => {
            (leading.iter().product(), 1, 1)
        }
        (None, shape) => {
            return Err(contract.refuse("x", format!("a shape [..., {d}] without zeros"), shape));
        }
        (Some(heads), shape) => {
            let expected = format!("a shape [T, H, {d}] with H at least {heads}, without zeros");
            return Err(contract.refuse("x", expected, shape));
        }
    };
    contract.int("x", tokens * heads)?;
    let sizes = [
        contract.int("x", tokens)?,
        contract.int("weight", d)?,
        contract.int("heads", heads)?,
        contract.int("x", all_heads)?,
    ];

    let address = backend.launcher(LAUNCHER)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let weight_pointer = call.input("weight", weight)?;
    let shape = match args.heads {
        Some(_) => vec![tokens, heads, d],
        None => x.shape().to_vec(),
    };
    let y = call.output("output", Dtype::Bf16, &shape)?;
    let [tokens, d, heads, all_heads] = sizes;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        let stream = ptr::null_mut();
        launcher(x_pointer, weight_pointer, y, tokens, d, heads, all_heads, eps, stream)
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<RmsNorm>()?;
    plain(Contract(NAME), &params)?;
    let args = Args {
        x: super::tensor(NAME, case, "x")?,
        weight: super::tensor(NAME, case, "weight")?,
        heads: params.heads,
        eps: params.eps,
    };
    launch(backend, &args, options)
}
