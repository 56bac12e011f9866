//! Shared objects: loading them, and their functions.
#![expect(unsafe_code, reason = "loads libraries and finds functions")]

use std::error::Error as _;
use std::ffi::c_void;
use std::path::Path;

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

/// A handle of a library, which any thread may use, one at a time.
pub(super) struct SendHandle(pub(super) *mut c_void);
// SAFETY: the libraries tie a handle to a device, not to a thread.
unsafe impl Send for SendHandle {}
