//! Registers through the matrix instruction of a build.
#![expect(unsafe_code, reason = "calls the probe's launcher")]

use std::ffi::{c_int, c_void};
use std::ptr;

use assay_reference::{Dtype, Tensor};

use crate::backend::{Backend, Call, Launched};
use crate::error::Error;
use crate::finding::LaunchStatus;
use crate::matrix::Matrix;
use crate::options::LaunchOptions;

const NAME: &str = "matrix_layout";
/// Registers of an operand: 64 lanes of 4.
pub(super) const REGISTERS: usize = 256;

type Launcher = unsafe extern "C" fn(
    *const u16,
    *const u16,
    *const f32,
    *mut f32,
    *mut i32,
    c_int,
    *mut c_void,
) -> c_int;

/// One product each of `a`, `b` (bf16) and `c` (f32), all `[products, 64, 4]`: the registers of the
/// lanes. Gives D as `[products, 64, 4]` f32, and which instructions the build has.
///
/// # Errors
/// [`Error::Launch`] when the launch did not end well, and those of the backend.
pub(super) fn products(
    backend: &Backend,
    [a, b, c]: [&Tensor; 3],
    options: &LaunchOptions,
) -> Result<(Matrix, Tensor), Error> {
    let failed =
        |what: String| Error::Launch { kernel: NAME, probe: "the lane layout".to_owned(), what };
    let shape = [a.len() / REGISTERS, 64, 4];
    for (name, tensor, dtype) in
        [("a", a, Dtype::Bf16), ("b", b, Dtype::Bf16), ("c", c, Dtype::F32)]
    {
        if tensor.dtype() != dtype || tensor.shape() != shape || shape[0] == 0 {
            let (of, given) = (tensor.dtype(), tensor.shape());
            return Err(failed(format!(
                "{name}: expected {dtype} [products, 64, 4], got {of} {given:?}"
            )));
        }
    }
    let count = c_int::try_from(shape[0]).map_err(|_| failed("too many products".to_owned()))?;
    let address = backend.launcher(NAME)?;
    // SAFETY: matrix_layout.hip defines the launcher with this signature.
    let launcher = unsafe { std::mem::transmute::<*const c_void, Launcher>(address) };
    let mut call = Call::new(backend, options)?;
    let a = call.input("a", a)?;
    let b = call.input("b", b)?;
    let c = call.input("c", c)?;
    let d = call.output("d", Dtype::F32, &shape)?;
    let family = call.output("family", Dtype::I32, &[1])?;
    // SAFETY: buffers of the sizes that the source states, on the backend that the launcher
    // belongs to; the null stream is the default one.
    let launched = call.run(|| unsafe { launcher(a, b, c, d, family, count, ptr::null_mut()) })?;
    let Launched { mut outputs, report } = launched;
    if report.status != LaunchStatus::Completed || !report.findings.is_empty() {
        let said: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        return Err(failed(format!("{:?} {}", report.status, said.join("; "))));
    }
    let family = outputs.pop().map(|(_, t)| t.get_i64(0));
    let d = outputs.pop().map(|(_, t)| t);
    match (family, d) {
        (Some(family @ 0..=2), Some(d)) => Ok((Matrix::ALL[family as usize], d)),
        (family, _) => Err(failed(format!("family: expected 0, 1 or 2, got {family:?}"))),
    }
}
