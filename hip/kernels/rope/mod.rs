//! `rope`: rotary position embedding, `[T, H, D]` bf16 with even D, half-split pairs.
//!
//! The inverse frequencies are computed here and rounded to f32; the kernel forms the angle in
//! f32 and keeps cos and sin there. One rounding. No scaling of the frequencies.
#![expect(unsafe_code, reason = "calls the kernel's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::arith::math;
use assay_reference::ops::rope::{Angle, Pairing, Params, Place, Rope, Scaling, Upper};
use assay_reference::{Case, Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

pub(super) const OP: &str = "rope";
const NAME: &str = "rope";
const LAUNCHER: &str = "rope_bf16";
const MAX_HEAD_DIM: usize = 512;
/// Up to here every integer is an f32.
const MAX_POSITION: i64 = 1 << 24;

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// `[T, H, D]` bf16 heads; D is even and at most 512.
    pub x: &'a Tensor,
    /// `[T]` i32 in 0..=2^24.
    pub positions: &'a Tensor,
    /// Base of the frequencies, finite and positive.
    pub theta: f64,
}

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const i32,
    *const f32,
    *mut u16,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// Checks the positions of `t` tokens.
pub(super) fn check_positions(
    contract: Contract,
    positions: &Tensor,
    t: usize,
) -> Result<(), Error> {
    contract.dtype("positions", positions, Dtype::I32)?;
    contract.shape("positions", positions, &[t])?;
    let outside = (0..t).map(|i| positions.get_i64(i)).find(|p| !(0..=MAX_POSITION).contains(p));
    match outside {
        Some(p) => Err(contract.refuse("positions", format!("values in [0, {MAX_POSITION}]"), p)),
        None => Ok(()),
    }
}

/// `theta^(-2i/D)` for i < D/2, rounded to f32.
pub(super) fn inverse_frequencies(
    contract: Contract,
    theta: f64,
    d: usize,
) -> Result<Tensor, Error> {
    if !(theta.is_finite() && theta > 0.0) {
        return Err(contract.refuse("theta", "a finite positive number", theta));
    }
    let values: Vec<f64> =
        (0..d / 2).map(|i| math::pow(theta, -2.0 * i as f64 / d as f64)).collect();
    Ok(Tensor::from_f64(Dtype::F32, &[d / 2], &values))
}

/// Refuses params of the op that say other than `theta`.
pub(super) fn plain(contract: Contract, params: &Params) -> Result<(), Error> {
    let others = [
        ("scaling", params.scaling != Scaling::Default),
        ("base_fixed", params.base_fixed),
        ("ramp_missing", params.ramp_missing),
        ("attention_factor_power", params.attention_factor_power != 1),
        ("pairing", params.pairing != Pairing::Halves),
        ("angle", params.angle != Angle::F32),
        ("offset", params.offset != 0),
        ("times", params.times != 1),
        ("inverse", params.inverse),
        ("place", params.place != Place::Own),
        ("upper", params.upper != Upper::Right),
    ];
    match others.into_iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(contract.refuse(name, "its default", format_args!("another value"))),
        None => Ok(()),
    }
}

/// Runs the kernel; the output is `[T, H, D]` bf16.
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
    let Args { x, positions, theta } = *args;
    contract.dtype("x", x, Dtype::Bf16)?;
    let [t, heads, d] = contract.sizes("x", x, "[T, H, D]")?;
    if d % 2 != 0 || d > MAX_HEAD_DIM {
        let expected = format!("[T, H, D] with D even and at most {MAX_HEAD_DIM}");
        return Err(contract.refuse("x", expected, x.shape()));
    }
    contract.int("x", heads * d)?;
    check_positions(contract, positions, t)?;
    let inv_freq = inverse_frequencies(contract, theta, d)?;
    let [t, heads, d] = [contract.int("x", t)?, contract.int("x", heads)?, contract.int("x", d)?];

    let address = backend.launcher(LAUNCHER)?;
    // SAFETY: kernel.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let x_pointer = call.input("x", x)?;
    let positions_pointer = call.input("positions", positions)?;
    let inv_freq_pointer = call.input("inv_freq", &inv_freq)?;
    let y = call.output("output", Dtype::Bf16, x.shape())?;
    // SAFETY: buffers of the sizes that the contract states, on the backend that the
    // launcher belongs to; the null stream is the default one.
    call.run(|| unsafe {
        let stream = ptr::null_mut();
        launcher(x_pointer, positions_pointer, inv_freq_pointer, y, t, heads, d, stream)
    })
}

pub(super) fn run(
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let params = case.params::<Rope>()?;
    plain(Contract(NAME), &params)?;
    let args = Args {
        x: super::tensor(NAME, case, "x")?,
        positions: super::tensor(NAME, case, "positions")?,
        theta: params.theta,
    };
    launch(backend, &args, options)
}
