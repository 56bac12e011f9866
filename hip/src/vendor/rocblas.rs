//! rocBLAS: `rocblas_gemm_ex` in bf16 with f32 accumulation, `rocblas_sgemm`.
//!
//! Source: `rocblas-types.h`, `rocblas-functions.h` and `rocblas-auxiliary.h` of
//! <https://github.com/ROCm/rocBLAS/tree/develop/library/include>
#![expect(unsafe_code, reason = "calls the library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use assay_reference::Dtype;
use libloading::Library as Object;

use super::gemm::{Failed, Operands};
use super::object::{SendHandle, symbol};
use crate::error::Error;

type Handle = *mut c_void;
type Status = c_int;

type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type Destroy = unsafe extern "C" fn(Handle) -> Status;
type VersionSize = unsafe extern "C" fn(*mut usize) -> Status;
type Version = unsafe extern "C" fn(*mut c_char, usize) -> Status;
type StatusName = unsafe extern "C" fn(Status) -> *const c_char;
type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    i32,
    i32,
    i32,
    *const c_void,
    *const c_void,
    c_int,
    i32,
    *const c_void,
    c_int,
    i32,
    *const c_void,
    *const c_void,
    c_int,
    i32,
    *mut c_void,
    c_int,
    i32,
    c_int,
    c_int,
    i32,
    u32,
) -> Status;
type Sgemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    i32,
    i32,
    i32,
    *const f32,
    *const f32,
    i32,
    *const f32,
    i32,
    *const f32,
    *mut f32,
    i32,
) -> Status;

const OPERATION_NONE: c_int = 111;
const OPERATION_TRANSPOSE: c_int = 112;
const DATATYPE_F32_R: c_int = 151;
const DATATYPE_BF16_R: c_int = 168;
const ALGO_STANDARD: c_int = 0;
const FLAGS_NONE: u32 = 0;

/// `rocblas_status`, in order from 0.
const STATUS: [&str; 16] = [
    "success",
    "invalid_handle",
    "not_implemented",
    "invalid_pointer",
    "invalid_size",
    "memory_error",
    "internal_error",
    "perf_degraded",
    "size_query_mismatch",
    "size_increased",
    "size_unchanged",
    "invalid_value",
    "continue",
    "check_numerics_fail",
    "excluded_from_build",
    "arch_mismatch",
];

/// The loaded library.
pub(super) struct RocBlas {
    /// One call at a time: a handle is for one thread.
    handle: Mutex<SendHandle>,
    destroy: Destroy,
    gemm_ex: GemmEx,
    sgemm: Sgemm,
    status_name: Option<StatusName>,
    /// Keeps the functions.
    _object: Object,
}

impl RocBlas {
    /// Finds the functions, makes a handle, and asks for the version.
    pub(super) fn new(object: Object) -> Result<(RocBlas, String), Error> {
        const LIBRARY: &str = "rocBLAS";
        // SAFETY: the types are those of the public headers.
        let (create, destroy, size, version, gemm_ex, sgemm) = unsafe {
            (
                symbol::<Create>(&object, LIBRARY, "rocblas_create_handle")?,
                symbol::<Destroy>(&object, LIBRARY, "rocblas_destroy_handle")?,
                symbol::<VersionSize>(&object, LIBRARY, "rocblas_get_version_string_size")?,
                symbol::<Version>(&object, LIBRARY, "rocblas_get_version_string")?,
                symbol::<GemmEx>(&object, LIBRARY, "rocblas_gemm_ex")?,
                symbol::<Sgemm>(&object, LIBRARY, "rocblas_sgemm")?,
            )
        };
        // SAFETY: as above.
        let status_name =
            unsafe { symbol::<StatusName>(&object, LIBRARY, "rocblas_status_to_string") }.ok();
        let text = version_text(size, version, status_name)?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle.
        check("rocblas_create_handle", unsafe { create(&mut handle) }, status_name)?;
        let handle = Mutex::new(SendHandle(handle));
        let library = RocBlas { handle, destroy, gemm_ex, sgemm, status_name, _object: object };
        Ok((library, format!("rocBLAS {text}")))
    }

    /// y = x w^T, row-major, which is y^T = w x^T column by column: w's rows are columns of length K to
    /// be transposed, x's rows are columns of length K.
    pub(super) fn gemm(&self, o: &Operands) -> Result<(), Failed> {
        let handle = self.handle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Operands { m, n, k, x, w, y, .. } = *o;
        let (one, zero) = (1.0_f32, 0.0_f32);
        let (alpha, beta): (*const f32, *const f32) = (&one, &zero);
        // SAFETY: buffers of the sizes stated; alpha and beta are on the host, which is the mode of a
        // new handle.
        let (call, status) = unsafe {
            if o.dtype == Dtype::F32 {
                let status = (self.sgemm)(
                    handle.0,
                    OPERATION_TRANSPOSE,
                    OPERATION_NONE,
                    n,
                    m,
                    k,
                    alpha,
                    w.cast(),
                    k,
                    x.cast(),
                    k,
                    beta,
                    y.cast(),
                    n,
                );
                ("rocblas_sgemm", status)
            } else {
                let ty = DATATYPE_BF16_R;
                let status = (self.gemm_ex)(
                    handle.0,
                    OPERATION_TRANSPOSE,
                    OPERATION_NONE,
                    n,
                    m,
                    k,
                    alpha.cast(),
                    w,
                    ty,
                    k,
                    x,
                    ty,
                    k,
                    beta.cast(),
                    y,
                    ty,
                    n,
                    y,
                    ty,
                    n,
                    DATATYPE_F32_R,
                    ALGO_STANDARD,
                    0,
                    FLAGS_NONE,
                );
                ("rocblas_gemm_ex", status)
            }
        };
        if status == 0 {
            return Ok(());
        }
        Err(Failed { call, status: status_text(status, self.status_name) })
    }
}

impl Drop for RocBlas {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).0;
        // SAFETY: made by this library and used no more. An error leaves nothing to be done.
        let _ = unsafe { (self.destroy)(handle) };
    }
}

fn version_text(
    size: VersionSize,
    version: Version,
    status_name: Option<StatusName>,
) -> Result<String, Error> {
    let mut bytes = 0;
    // SAFETY: writes one size.
    check("rocblas_get_version_string_size", unsafe { size(&mut bytes) }, status_name)?;
    // With the final zero; a library that says more than a page is not believed.
    let mut text = vec![0_u8; bytes.clamp(1, 4096) + 1];
    // SAFETY: the buffer holds one byte more than it is said to.
    check(
        "rocblas_get_version_string",
        unsafe { version(text.as_mut_ptr().cast(), text.len() - 1) },
        status_name,
    )?;
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// `rocblas_status_invalid_size (4)`.
fn status_text(status: Status, name: Option<StatusName>) -> String {
    // SAFETY: any status may be asked for; the text is static.
    let own = name.map(|name| unsafe { name(status) }).filter(|text| !text.is_null());
    // SAFETY: a C string of the library.
    let own = own.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    let known = usize::try_from(status).ok().and_then(|i| STATUS.get(i));
    let name = own.or(known.map(|name| format!("rocblas_status_{name}")));
    format!("{} ({status})", name.unwrap_or_else(|| "an unknown rocblas_status".to_owned()))
}

fn check(call: &'static str, status: Status, name: Option<StatusName>) -> Result<(), Error> {
    if status == 0 {
        Ok(())
    } else {
        Err(Error::Library { call, status: status_text(status, name) })
    }
}
