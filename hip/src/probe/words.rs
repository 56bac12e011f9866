//! The launcher that the probes of single operations share: words in, words out.
#![expect(unsafe_code, reason = "calls the probe's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::{Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::error::Error;
use crate::finding::LaunchStatus;
use crate::options::LaunchOptions;

type Launcher = unsafe extern "C" fn(
    *const u32,
    *const u32,
    *const u32,
    *mut u32,
    c_int,
    c_int,
    *mut c_void,
) -> c_int;

/// A word that no output holds unless it was not written.
pub(super) const UNWRITTEN: u32 = 0xa5a5_a5a5;

/// Runs operation `op` of a probe on operands (a, b, c); one word for each.
pub(super) fn run(
    backend: &Backend,
    options: &LaunchOptions,
    launcher: &'static str,
    op: i32,
    operands: &[[u32; 3]],
) -> Result<Vec<u32>, Error> {
    let launched = launch(backend, options, launcher, op, operands)?;
    completed(launcher, &launched.report.status)?;
    Ok(words(&launched))
}

/// The same, however it ended.
pub(super) fn launch(
    backend: &Backend,
    options: &LaunchOptions,
    launcher: &'static str,
    op: i32,
    operands: &[[u32; 3]],
) -> Result<Launched, Error> {
    let address = backend.launcher(launcher)?;
    // SAFETY: the probes of this folder define their launchers with this signature.
    let function = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let options = LaunchOptions { fill: UNWRITTEN.to_le_bytes().to_vec(), ..options.clone() };
    let mut call = Call::new(backend, &options)?;
    let column = |i: usize| -> Vec<i32> { operands.iter().map(|o| o[i] as i32).collect() };
    let n = operands.len();
    let a = call.input::<u32>("a", &Tensor::from_i32(&[n], &column(0)))?;
    let b = call.input::<u32>("b", &Tensor::from_i32(&[n], &column(1)))?;
    let c = call.input::<u32>("c", &Tensor::from_i32(&[n], &column(2)))?;
    let out = call.output::<u32>("out", Dtype::I32, &[n])?;
    // SAFETY: four buffers of n words on the backend that the launcher belongs to.
    call.run(|| unsafe { function(a, b, c, out, op, n as c_int, ptr::null_mut()) })
}

/// The output's words.
pub(super) fn words(launched: &Launched) -> Vec<u32> {
    let bytes = launched.output().bytes();
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

/// An error for a launch that did not end well.
pub(super) fn completed(kernel: &'static str, status: &LaunchStatus) -> Result<(), Error> {
    match status {
        LaunchStatus::Completed => Ok(()),
        other => Err(Error::Launch {
            kernel,
            probe: "the device probe".to_owned(),
            what: format!("the launch ended as {other:?}"),
        }),
    }
}
