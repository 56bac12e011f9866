//! The plain f32 product of `probes/sgemm.hip`, and what it measures of the backend.
#![expect(unsafe_code, reason = "calls the probe's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::{Dtype, Tensor};

use super::{Reading, gemm, words};
use crate::backend::{Backend, Call};
use crate::contract::Contract;
use crate::error::Error;
use crate::options::LaunchOptions;

type Launcher = unsafe extern "C" fn(
    *const f32,
    *const f32,
    *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// y `[M, N]` = x `[M, K]` times the transpose of w `[N, K]`, all f32.
///
/// # Errors
/// [`Error::Argument`] for other shapes and dtypes, and what keeps the backend from launching.
pub fn sgemm(
    backend: &Backend,
    x: &Tensor,
    w: &Tensor,
    options: &LaunchOptions,
) -> Result<Tensor, Error> {
    let contract = Contract("probe_sgemm");
    contract.dtype("x", x, Dtype::F32)?;
    contract.dtype("w", w, Dtype::F32)?;
    let [m, k] = contract.sizes("x", x, "[M, K]")?;
    let [n, _] = contract.sizes("w", w, "[N, K]")?;
    contract.shape("w", w, &[n, k])?;
    let sizes = [contract.int("x", m)?, contract.int("w", n)?, contract.int("x", k)?];
    let address = backend.launcher("probe_sgemm")?;
    // SAFETY: sgemm.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let (px, pw) = (call.input("x", x)?, call.input("w", w)?);
    let py = call.output("y", Dtype::F32, &[m, n])?;
    let [m, n, k] = sizes;
    // SAFETY: buffers of the sizes that the launcher is told, on its own backend.
    let launched = call.run(|| unsafe { launcher(px, pw, py, m, n, k, ptr::null_mut()) })?;
    words::completed("probe_sgemm", &launched.report.status)?;
    Ok(launched.output().clone())
}

pub(super) fn measure(backend: &Backend, options: &LaunchOptions) -> Result<Vec<Reading>, Error> {
    gemm::measure("sgemm", Dtype::F32, None, &|x, w| sgemm(backend, x, w, options))
}
