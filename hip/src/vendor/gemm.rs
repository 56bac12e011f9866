//! The matrix product of a library as the typed launcher that every kernel has.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;

use assay_reference::ops::matmul::{Layout, Matmul};
use assay_reference::{Case, Dtype};

use super::{Api, Vendor, hipblaslt};
use crate::backend::{Backend, Call, Launched};
use crate::contract::Contract;
use crate::error::Error;
use crate::finding::LaunchStatus;
use crate::kernels::{linear, tensor};
use crate::options::LaunchOptions;

/// A call that answered an error.
pub(super) struct Failed {
    /// The library's function.
    pub(super) call: &'static str,
    /// What it answered, by name.
    pub(super) status: String,
}

impl From<Failed> for Error {
    fn from(Failed { call, status }: Failed) -> Error {
        Error::Library { call, status }
    }
}

/// y `[M, N]` = x `[M, K]` times the transpose of w `[N, K]`, row-major, on the library's memory.
pub(super) struct Operands {
    pub(super) dtype: Dtype,
    pub(super) m: i32,
    pub(super) n: i32,
    pub(super) k: i32,
    pub(super) x: *const c_void,
    pub(super) w: *const c_void,
    pub(super) y: *mut c_void,
    /// Of hipBLASLt alone.
    pub(super) workspace: *mut c_void,
}

pub(super) fn rocblas_bf16(b: &Backend, c: &Case, o: &LaunchOptions) -> Result<Launched, Error> {
    run("rocblas.gemm_bf16", Vendor::RocBlas, Dtype::Bf16, b, c, o)
}

pub(super) fn rocblas_f32(b: &Backend, c: &Case, o: &LaunchOptions) -> Result<Launched, Error> {
    run("rocblas.sgemm", Vendor::RocBlas, Dtype::F32, b, c, o)
}

pub(super) fn hipblaslt_bf16(b: &Backend, c: &Case, o: &LaunchOptions) -> Result<Launched, Error> {
    run("hipblaslt.gemm_bf16", Vendor::HipBlasLt, Dtype::Bf16, b, c, o)
}

pub(super) fn hipblaslt_f32(b: &Backend, c: &Case, o: &LaunchOptions) -> Result<Launched, Error> {
    run("hipblaslt.gemm_f32", Vendor::HipBlasLt, Dtype::F32, b, c, o)
}

/// The contract: torch's Linear without a bias, every tensor of one dtype.
fn run(
    name: &'static str,
    vendor: Vendor,
    dtype: Dtype,
    backend: &Backend,
    case: &Case,
    options: &LaunchOptions,
) -> Result<Launched, Error> {
    let contract = Contract(name);
    linear::plain(contract, &case.params::<Matmul>()?, Layout::OutIn)?;
    let (x, w) = (tensor(name, case, "x")?, tensor(name, case, "weight")?);
    contract.dtype("x", x, dtype)?;
    contract.dtype("weight", w, dtype)?;
    if case.dtype != dtype {
        return Err(contract.refuse("y", dtype.to_string(), case.dtype));
    }
    if let Some(bias) = case.tensors.get("bias") {
        return Err(contract.refuse("bias", "none", bias.shape()));
    }
    let [n, k] = contract.sizes("weight", w, "[N, K]")?;
    let m = linear::rows(contract, x, k)?;
    let [m_int, n_int, k_int] =
        [contract.int("x", m)?, contract.int("weight", n)?, contract.int("x", k)?];

    let library = match backend {
        Backend::Library(library) => library.clone(),
        Backend::Contract => return Err(Error::NotLaunched),
        _ => return Err(Error::NoLauncher { launcher: name.to_owned() }),
    };
    let mut call = Call::new(backend, options)?;
    let (x_pointer, w_pointer) = (call.input("x", x)?, call.input("weight", w)?);
    let y_pointer = call.output("y", dtype, &linear::output_shape(x, n))?;
    let workspace = match vendor {
        Vendor::RocBlas => ptr::null_mut(),
        Vendor::HipBlasLt => call.scratch("workspace", hipblaslt::WORKSPACE_BYTES)?,
    };
    let operands = Operands {
        dtype,
        m: m_int,
        n: n_int,
        k: k_int,
        x: x_pointer,
        w: w_pointer,
        y: y_pointer,
        workspace,
    };
    let failed = RefCell::new(None);
    let launched = call.run(|| {
        let answer = match &library.0.api {
            Api::RocBlas(api) => api.gemm(&operands),
            Api::HipBlasLt(api) => api.gemm(&operands),
        };
        let code = i32::from(answer.is_err());
        *failed.borrow_mut() = answer.err();
        code
    })?;
    match (launched.report.status, failed.into_inner()) {
        (LaunchStatus::Refused(_), Some(failed)) => Err(failed.into()),
        _ => Ok(launched),
    }
}
