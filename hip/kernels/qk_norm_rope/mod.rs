//! `qk_norm_rope`: the norm of query or key heads of 128 and their rotation, all bf16.
//!
//! The squares of a head are summed in f32 by one wave, the normalised head stays in f32, and
//! the rotation is that of `rope`, with the angle, cos and sin in f32. One rounding. No scaling
//! of the frequencies.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::ops::qk_norm_rope::{Composition, Params, QkNormRope};
use assay_reference::{Case, Dtype, Tensor};

use super::{rms_norm, rope};
use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "qk_norm_rope";
const NAME: &str = "qk_norm_rope";
const LAUNCHER: &str = "qk_norm_rope_d128";
const HEAD_DIM: usize = 128;

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[T, H, 128]` bf16 heads.
    pub x: &'a Tensor,
    /// `[128]` bf16.
    pub weight: &'a Tensor,
    /// `[T]` i32 in 0..=2^24.
    pub positions: &'a Tensor,
    /// Added to the mean of squares: finite, not negative.
    pub eps: f64,
    /// Base of the frequencies, finite and positive.
    pub theta: f64,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const i32,
    *const f32,
    *mut u16,
    c_int,
    c_int,
    f32,
    *mut c_void,
) -> c_int;

/// Runs the kernel; the output is `[T, H, 128]` bf16.
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
    let Args { x, weight, positions, eps, theta } = *args;
    contract.dtype("x", x, Dtype::Bf16)?;
    contract.dtype("weight", weight, Dtype::Bf16)?;
    let [t, heads, d] = contract.sizes("x", x, "[T, H, 128]")?;
    if d != HEAD_DIM {
        return Err(contract.refuse("x", "[T, H, 128]", x.shape()));
    }
    contract.shape("weight", weight, &[HEAD_DIM])?;
    // The last block counts up to three heads further.
    contract.int("x", t * heads + 4)?;
    rope::check_positions(contract, positions, t)?;
    let eps = rms_norm::eps_f32(contract, eps)?;
    let inv_freq = rope::inverse_frequencies(contract, theta, d)?;
    let (t, heads) = (contract.int("x", t)?, contract.int("x", heads)?);

    let address = backend.launcher(LAUNCHER)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let weight_pointer = call.input("weight", weight)?;
    let positions_pointer = call.input("positions", positions)?;
    let inv_freq_pointer = call.input("inv_freq", &inv_freq)?;
    let y = call.output("output", Dtype::Bf16, x.shape())?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        launcher(
            x_pointer,
            weight_pointer,
            positions_pointer,
            inv_freq_pointer,
            y,
            t,
            heads,
            eps,
            ptr::null_mut(),
        )
    })
}

/// Refuses params of the op that say other than `eps`, `theta` and a default.
fn plain(contract: Contract, params: &Params) -> Result<(), Error> {
    rms_norm::plain(contract, &params.norm)?;
    rope::plain(contract, &params.rope)?;
    let others = [
        ("heads", params.norm.heads.is_some()),
        ("edge_f32", params.edge_f32),
        ("composition", params.composition != Composition::NormFirst),
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
    let params = case.params::<QkNormRope>()?;
    plain(Contract(NAME), &params)?;
    let args = Args {
        x: super::tensor(NAME, case, "x")?,
        weight: super::tensor(NAME, case, "weight")?,
        positions: super::tensor(NAME, case, "positions")?,
        eps: params.norm.eps,
        theta: params.rope.theta,
    };
    launch(backend, &args, options)
}
