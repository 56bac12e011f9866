//! Shared objects: loading them, and their functions.
#![expect(unsafe_code, reason = "loads libraries and finds functions")]

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library as Object;

use crate::error::Error;

/// Loads a shared object; the loader's own words when it cannot.
pub(super) fn load(path: &Path) -> Result<Object, String> {
    // SAFETY: its initialisers are those of the vendor's library, which is what is asked for.
    unsafe { Object::new(path) }.map_err(|e| {
        let cause = e.source().map_or_else(String::new, |cause| format!(": {cause}"));
        format!("{}: {e}{cause}", path.display())
    })
}

/// Whether the loader's words are that there is no such file; else the file is there and lacks
/// something, as another library that it needs.
pub(super) fn is_absent(path: &Path, said: &str) -> bool {
    said.contains(&format!(": {}: cannot open shared object file: No such file", path.display()))
}

/// A function of a library.
///
/// # Safety
/// `T` must be the function's type.
pub(super) unsafe fn symbol<T: Copy>(
    object: &Object,
    library: &'static str,
    name: &str,
) -> Result<T, Error> {
    // SAFETY: the caller answers for the type; the object outlives the pointer, see its owners.
    let found = unsafe { object.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| Error::NoLibrary {
        library,
        reason: format!("it has no function {name}: install a release that has"),
    })
}

/// The file that the loader took for a library: a bare name says nothing of where it was found, and a
/// file of that name in the working directory is another one. `path` is what was asked for.
pub(super) fn file(
    object: &Object,
    path: &Path,
    library: &'static str,
    function: &str,
) -> Result<PathBuf, Error> {
    // SAFETY: only its address is taken.
    let function = unsafe { symbol::<unsafe extern "C" fn()>(object, library, function) }?;
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: `info` is writable; any address may be asked for.
    let found = unsafe { libc::dladdr(function as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        let asked = path.display();
        let reason = format!("{asked} is loaded, but the loader does not say from which file");
        return Err(Error::NoLibrary { library, reason });
    }
    // SAFETY: a C string of the loader, which lives as long as the object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    std::fs::canonicalize(name).map_err(Error::io("find", name))
}

/// A handle of a library, which any thread may use, one at a time.
pub(super) struct SendHandle(pub(super) *mut c_void);
// SAFETY: the libraries tie a handle to a device, not to a thread.
unsafe impl Send for SendHandle {}
