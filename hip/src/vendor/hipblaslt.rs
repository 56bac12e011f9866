//! hipBLASLt: `hipblasLtMatmul` in bf16 and f32, with the first algorithm that its heuristic offers.
//!
//! Source: `hipblaslt.h` of <https://github.com/ROCm/hipBLASLt/tree/develop/library/include> (release
//! 0.10 and later, which take `hipDataType`) and `hipblas-common.h` of
//! <https://github.com/ROCm/hipBLAS-common>
#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use assay_reference::Dtype;
use libloading::Library as Object;

use super::gemm::{Failed, Operands};
use super::object::{SendHandle, symbol};
use crate::error::Error;

type Handle = *mut c_void;
type Opaque = *mut c_void;
type Status = c_int;

const COMPUTE_32F: c_int = 2;
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const OP_T: i32 = 112;
const DESC_TRANSA: c_int = 0;
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;
/// What the heuristic may count on.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// `hipblasStatus_t`, in order from 0.
const STATUS: [&str; 12] = [
    "SUCCESS",
    "NOT_INITIALIZED",
    "ALLOC_FAILED",
    "INVALID_VALUE",
    "MAPPING_ERROR",
    "EXECUTION_FAILED",
    "INTERNAL_ERROR",
    "NOT_SUPPORTED",
    "ARCH_MISMATCH",
    "HANDLE_IS_NULLPTR",
    "INVALID_ENUM",
    "UNKNOWN",
];

/// `hipblasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Algorithm {
    data: [u8; 16],
    max_workspace_bytes: usize,
}

/// `hipblasLtMatmulHeuristicResult_t`, and room for what a later release may append.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
    beyond: [u64; 16],
}

type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type GetVersion = unsafe extern "C" fn(Handle, *mut c_int) -> Status;
type LayoutCreate = unsafe extern "C" fn(*mut Opaque, c_int, u64, u64, i64) -> Status;
type DescCreate = unsafe extern "C" fn(*mut Opaque, c_int, c_int) -> Status;
type PrefCreate = unsafe extern "C" fn(*mut Opaque) -> Status;
type SetAttribute = unsafe extern "C" fn(Opaque, c_int, *const c_void, usize) -> Status;
type Release = unsafe extern "C" fn(Opaque) -> Status;
type GetHeuristic = unsafe extern "C" fn(
    Handle,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> Status;
type Matmul = unsafe extern "C" fn(
    Handle,
    Opaque,
    *const c_void,
    *const c_void,
    Opaque,
    *const c_void,
    Opaque,
    *const c_void,
    *const c_void,
    Opaque,
    *mut c_void,
    Opaque,
    *const Algorithm,
    *mut c_void,
    usize,
    *mut c_void,
) -> Status;

struct Functions {
    destroy: Destroy,
    layout_create: LayoutCreate,
    layout_destroy: Release,
    desc_create: DescCreate,
    desc_destroy: Release,
    desc_set: SetAttribute,
    pref_create: PrefCreate,
    pref_destroy: Release,
    pref_set: SetAttribute,
    heuristic: GetHeuristic,
    matmul: Matmul,
}

/// The loaded library.
pub(super) struct HipBlasLt {
    /// One call at a time.
    handle: Mutex<SendHandle>,
    functions: Functions,
    /// Keeps the functions.
    _object: Object,
}

fn check(call: &'static str, status: Status) -> Result<(), Failed> {
    if status == 0 {
        return Ok(());
    }
    let known = usize::try_from(status).ok().and_then(|i| STATUS.get(i));
    let name =
        known.map_or("an unknown hipblasStatus_t".to_owned(), |n| format!("HIPBLAS_STATUS_{n}"));
    Err(Failed { call, status: format!("{name} ({status})") })
}

/// A descriptor, released at the end.
struct Descriptor {
    raw: Opaque,
    release: Release,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by the library and used no more.
        let _ = unsafe { (self.release)(self.raw) };
    }
}

impl HipBlasLt {
    /// Finds the functions, makes a handle, and asks for the version.
    pub(super) fn new(object: Object) -> Result<(HipBlasLt, String), Error> {
        const LIBRARY: &str = "hipBLASLt";
        let o = &object;
        // SAFETY: the types are those of the public headers.
        let (create, version, functions) = unsafe {
            (
                symbol::<Create>(o, LIBRARY, "hipblasLtCreate")?,
                symbol::<GetVersion>(o, LIBRARY, "hipblasLtGetVersion")?,
                Functions {
                    destroy: symbol(o, LIBRARY, "hipblasLtDestroy")?,
                    layout_create: symbol(o, LIBRARY, "hipblasLtMatrixLayoutCreate")?,
                    layout_destroy: symbol(o, LIBRARY, "hipblasLtMatrixLayoutDestroy")?,
                    desc_create: symbol(o, LIBRARY, "hipblasLtMatmulDescCreate")?,
                    desc_destroy: symbol(o, LIBRARY, "hipblasLtMatmulDescDestroy")?,
                    desc_set: symbol(o, LIBRARY, "hipblasLtMatmulDescSetAttribute")?,
                    pref_create: symbol(o, LIBRARY, "hipblasLtMatmulPreferenceCreate")?,
                    pref_destroy: symbol(o, LIBRARY, "hipblasLtMatmulPreferenceDestroy")?,
                    pref_set: symbol(o, LIBRARY, "hipblasLtMatmulPreferenceSetAttribute")?,
                    heuristic: symbol(o, LIBRARY, "hipblasLtMatmulAlgoGetHeuristic")?,
                    matmul: symbol(o, LIBRARY, "hipblasLtMatmul")?,
                },
            )
        };
        let (mut handle, mut number) = (ptr::null_mut(), 0);
        // SAFETY: each writes one value.
        unsafe {
            check("hipblasLtCreate", create(&mut handle))?;
            check("hipblasLtGetVersion", version(handle, &mut number))?;
        }
        let handle = Mutex::new(SendHandle(handle));
        // 100000 major + 100 minor + patch, as hipblaslt-version.h has it.
        let (major, minor, patch) = (number / 100_000, number / 100 % 1000, number % 100);
        let text = format!("hipBLASLt {major}.{minor}.{patch}");
        Ok((HipBlasLt { handle, functions, _object: object }, text))
    }

    fn layout(&self, ty: c_int, rows: i32, columns: i32) -> Result<Descriptor, Failed> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer. Columns lie close: the leading dimension is the number of rows.
        let status = unsafe {
            (self.functions.layout_create)(
                &mut raw,
                ty,
                rows as u64,
                columns as u64,
                i64::from(rows),
            )
        };
        check("hipblasLtMatrixLayoutCreate", status)?;
        Ok(Descriptor { raw, release: self.functions.layout_destroy })
    }

    fn operation(&self) -> Result<Descriptor, Failed> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        let status = unsafe { (self.functions.desc_create)(&mut raw, COMPUTE_32F, R_32F) };
        check("hipblasLtMatmulDescCreate", status)?;
        let operation = Descriptor { raw, release: self.functions.desc_destroy };
        // SAFETY: reads the four bytes that it is told of.
        let status = unsafe {
            (self.functions.desc_set)(
                raw,
                DESC_TRANSA,
                ptr::from_ref(&OP_T).cast(),
                size_of::<i32>(),
            )
        };
        check("hipblasLtMatmulDescSetAttribute", status)?;
        Ok(operation)
    }

    fn preference(&self) -> Result<Descriptor, Failed> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        check("hipblasLtMatmulPreferenceCreate", unsafe {
            (self.functions.pref_create)(&mut raw)
        })?;
        let preference = Descriptor { raw, release: self.functions.pref_destroy };
        let bytes = WORKSPACE_BYTES as u64;
        // SAFETY: reads the eight bytes that it is told of.
        let status = unsafe {
            let at = ptr::from_ref(&bytes).cast();
            (self.functions.pref_set)(raw, PREF_MAX_WORKSPACE_BYTES, at, size_of::<u64>())
        };
        check("hipblasLtMatmulPreferenceSetAttribute", status)?;
        Ok(preference)
    }

    /// y = x w^T, row-major, as for rocBLAS: y^T = w x^T column by column.
    pub(super) fn gemm(&self, o: &Operands) -> Result<(), Failed> {
        let handle = self.handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Operands { m, n, k, x, w, y, workspace, .. } = *o;
        let ty = if o.dtype == Dtype::F32 { R_32F } else { R_16BF };
        let (a, b) = (self.layout(ty, k, n)?, self.layout(ty, k, m)?);
        let d = self.layout(ty, n, m)?;
        let (operation, preference) = (self.operation()?, self.preference()?);
        let (mut found, mut count) = (Heuristic::default(), 0);
        // SAFETY: descriptors that live; room for one result.
        let status = unsafe {
            (self.functions.heuristic)(
                handle.0,
                operation.raw,
                a.raw,
                b.raw,
                d.raw,
                d.raw,
                preference.raw,
                1,
                &mut found,
                &mut count,
            )
        };
        check("hipblasLtMatmulAlgoGetHeuristic", status)?;
        if count < 1 {
            let status = "no algorithm for this shape".to_owned();
            return Err(Failed { call: "hipblasLtMatmulAlgoGetHeuristic", status });
        }
        check("hipblasLtMatmulAlgoGetHeuristic", found.state)?;
        let (one, zero) = (1.0_f32, 0.0_f32);
        // SAFETY: buffers of the sizes that the layouts state; the null stream is the default one;
        // alpha and beta are on the host, the default of a new operation.
        let status = unsafe {
            (self.functions.matmul)(
                handle.0,
                operation.raw,
                ptr::from_ref(&one).cast(),
                w,
                a.raw,
                x,
                b.raw,
                ptr::from_ref(&zero).cast(),
                y,
                d.raw,
                y,
                d.raw,
                &found.algorithm,
                workspace,
                WORKSPACE_BYTES,
                ptr::null_mut(),
            )
        };
        check("hipblasLtMatmul", status)
    }
}

impl Drop for HipBlasLt {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).0;
        // SAFETY: made by this library and used no more.
        let _ = unsafe { (self.functions.destroy)(handle) };
    }
}
