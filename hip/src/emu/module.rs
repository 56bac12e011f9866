//! A compiled kernel source, loaded, and the launches made with it.
#![expect(unsafe_code, reason = "loads compiled kernels and calls into the runtime")]

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use libloading::Library;
use libloading::os::unix::{Library as UnixLibrary, RTLD_LOCAL, RTLD_NOW};

use super::compiler::Mode;
use super::device::{Buffer, Device, Role};
use super::ffi;
use super::report::{Context, is_hang, stops_block, translate};
use super::symbols::SharedVariables;
use crate::cells::Cells;
use crate::error::Error;
use crate::finding::{LaunchReport, LaunchStatus, MemoryFinding};
use crate::matrix::Matrix;
use crate::options::LaunchOptions;

/// A kernel source compiled for the emulator and loaded. Cheap to clone.
#[derive(Clone)]
pub struct Module(Arc<Inner>);

struct Inner {
    library: Library,
    path: PathBuf,
    source: String,
    mode: Mode,
    matrix: Matrix,
    toolchain: String,
    shared: SharedVariables,
    tls_anchor: unsafe extern "C" fn() -> *mut c_void,
}

impl Module {
    /// Loads what the compiler of version `toolchain` made of `source`.
    pub(super) fn load(
        path: &Path,
        source: &str,
        mode: Mode,
        matrix: Matrix,
        toolchain: &str,
    ) -> Result<Self, Error> {
        let failed = |reason: String| Error::Load { path: path.to_owned(), reason };
        // SAFETY: the object has no initialisers but those of our own headers, which set
        // nothing up before `attach`.
        let library: Library = unsafe { UnixLibrary::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| failed(e.to_string()))?
            .into();
        // SAFETY: the two functions are defined with these types in hip_runtime.h.
        let (attach, tls_anchor) = unsafe {
            let attach =
                library.get::<unsafe extern "C" fn(*const c_void) -> c_int>(b"assay_emu_attach");
            let anchor =
                library.get::<unsafe extern "C" fn() -> *mut c_void>(b"assay_emu_tls_anchor");
            (
                *attach.map_err(|e| failed(e.to_string()))?,
                *anchor.map_err(|e| failed(e.to_string()))?,
            )
        };
        // SAFETY: the table is static.
        if unsafe { attach(ffi::assay_emu_table()) } != 0 {
            return Err(failed("it was compiled for another version of the emulator".to_owned()));
        }
        let shared = SharedVariables::read(path)?;
        let (path, source) = (path.to_owned(), source.to_owned());
        let toolchain = toolchain.to_owned();
        let inner = Inner { library, path, source, mode, matrix, toolchain, shared, tls_anchor };
        Ok(Self(Arc::new(inner)))
    }

    /// Whether accesses are checked one by one.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// The matrix instructions that it was compiled for.
    #[must_use]
    pub fn matrix(&self) -> Matrix {
        self.0.matrix
    }

    /// The source that was compiled.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// What the compiler says of its version.
    #[must_use]
    pub fn toolchain(&self) -> &str {
        &self.0.toolchain
    }

    /// sha256 of the machine code as a loader maps it; equal for equal compilations.
    ///
    /// # Errors
    /// [`Error::Io`] when the module's file is gone, [`Error::Load`] when it is no ELF object.
    pub fn code_sha256(&self) -> Result<String, Error> {
        let path = &self.0.path;
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        crate::identity::loaded_code(&bytes).ok_or_else(|| Error::Load {
            path: path.clone(),
            reason: "it is no ELF object".to_owned(),
        })
    }

    /// Bytes of static LDS of the kernel that declares most. A device gives a workgroup 64 KiB.
    #[must_use]
    pub fn static_lds_bytes(&self) -> usize {
        self.0.shared.most_bytes
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.0.path
    }

    /// The address of a launcher, to be cast to its C signature. Valid as long as a clone
    /// of this module lives.
    ///
    /// # Errors
    /// [`Error::NoLauncher`] if the source defines no such function.
    pub fn launcher(&self, name: &str) -> Result<*const c_void, Error> {
        // SAFETY: a symbol's value is its address, and only that is taken; whoever calls it
        // answers for the type and for keeping the module.
        let symbol = unsafe { self.0.library.get::<*const c_void>(name.as_bytes()) };
        symbol.map(|address| *address).map_err(|_| Error::NoLauncher { launcher: name.to_owned() })
    }

    pub(super) fn shared_variable(&self, index: i32) -> String {
        let name = usize::try_from(index).ok().and_then(|index| self.0.shared.names.get(index));
        match name {
            Some(name) => name.clone(),
            None if index == -2 => "the dynamic array".to_owned(),
            None => "padding between variables".to_owned(),
        }
    }

    pub(super) fn shared_variables_on_line(&self, line: u32) -> Option<String> {
        let text = self.0.source.lines().nth(line.checked_sub(1)? as usize)?;
        self.0.shared.mentioned_in(text)
    }

    /// Runs `call`, which calls one of this module's launchers with pointers into
    /// `device` and returns its `hipError_t`, and reports what was found.
    ///
    /// Outputs are filled with `options.fill` first; inputs can't be written meanwhile.
    /// Without checks, an output element that still holds the pattern afterwards may have
    /// been written so: then `call` runs once more over another pattern, to be sure.
    ///
    /// # Errors
    /// [`Error::Memory`] when page protection can't be changed.
    pub fn run(
        &self,
        device: &mut Device,
        options: &LaunchOptions,
        call: impl Fn() -> i32,
    ) -> Result<LaunchReport, Error> {
        let before = device.save(|role| matches!(role, Role::InOut | Role::Scratch));
        let mut report = self.run_once(device, options, &call)?;
        if report.status != LaunchStatus::Completed {
            return Ok(report); // what a stopped block left unwritten is no finding of its own
        }
        let mut unwritten = unwritten_elements(device, &options.fill);
        if self.0.mode == Mode::Plain && unwritten.iter().any(|(_, missing)| !missing.is_empty()) {
            let after = device.save(|role| role != Role::In);
            let fill: Vec<u8> = options.fill.iter().map(|byte| !byte).collect();
            device.restore(&before);
            self.run_once(device, &LaunchOptions { fill: fill.clone(), ..options.clone() }, &call)?;
            let again = unwritten_elements(device, &fill);
            for ((_, missing), (_, still_missing)) in unwritten.iter_mut().zip(&again) {
                missing.retain(|element| still_missing.binary_search(element).is_ok());
            }
            device.restore(&after);
        }
        report.findings.extend(unwritten.iter().filter_map(|(buffer, missing)| {
            let allocation = &device.allocations[buffer.0];
            Some(MemoryFinding::UnwrittenOutput {
                buffer: allocation.name.clone(),
                first: *missing.first()?,
                count: missing.len(),
                elements: allocation.bytes / allocation.element,
                cells: Cells::of(missing, &allocation.shape),
                fills: if self.0.mode == Mode::Plain { 2 } else { 0 },
            })
        }));
        Ok(report)
    }

    fn run_once(
        &self,
        device: &mut Device,
        options: &LaunchOptions,
        call: &impl Fn() -> i32,
    ) -> Result<LaunchReport, Error> {
        for buffer in device.buffers(|role| role == Role::Out) {
            device.fill(buffer, &options.fill);
        }
        let buffers = device.begin_launch(self.0.mode == Mode::Checked)?;
        let (raw, code) = self.call_in_session(device, &buffers, options, call);
        device.end_launch()?;

        let described = device.allocations.iter().map(|a| (a.name.clone(), a.bytes)).collect();
        let context = Context { module: self, buffers: described, deadline: options.deadline };
        let mut findings = translate(&raw, &context);
        for buffer in device.buffers(|_| true) {
            if let Some((offset, count)) = device.damaged_canary(buffer) {
                let (buffer, bytes) = context.buffers[buffer.0].clone();
                findings.push(MemoryFinding::CanaryDamaged { buffer, bytes, offset, count });
            }
        }
        let status = match code {
            _ if raw.iter().any(is_hang) => LaunchStatus::Hung,
            0 if raw.iter().any(stops_block) => LaunchStatus::Aborted,
            0 => LaunchStatus::Completed,
            code => LaunchStatus::Refused(code),
        };
        Ok(LaunchReport { status, findings })
    }

    fn call_in_session(
        &self,
        device: &Device,
        buffers: &[ffi::Buffer],
        options: &LaunchOptions,
        call: &impl Fn() -> i32,
    ) -> (Vec<ffi::Finding>, i32) {
        let (arena, arena_bytes) = device.arena();
        let session_options = ffi::SessionOptions {
            buffers: buffers.as_ptr(),
            buffer_count: buffers.len(),
            arena,
            arena_bytes,
            symbols: self.0.shared.places.as_ptr(),
            symbol_count: self.0.shared.places.len(),
            tls_anchor: self.0.tls_anchor,
            module_base: self.base(),
            seed: options.seed,
            deadline_ns: u64::try_from(options.deadline.as_nanos()).unwrap_or(u64::MAX / 4),
            threads: u32::try_from(options.threads).unwrap_or(u32::MAX),
            ulps: options.ulps,
            flush_subnormals: u32::from(options.ftz),
        };
        // SAFETY: the options and what they point to outlive the session, which this
        // function closes when it returns or unwinds.
        let session = Session(unsafe { ffi::assay_emu_session_open(&session_options) });
        let code = call();
        (session.findings(), code)
    }

    /// Where the object was loaded: addresses in it minus this are those of its file.
    fn base(&self) -> *const u8 {
        let mut info = libc::Dl_info {
            dli_fname: ptr::null(),
            dli_fbase: ptr::null_mut(),
            dli_sname: ptr::null(),
            dli_saddr: ptr::null_mut(),
        };
        // SAFETY: the address is a function of the loaded object; `info` is writable.
        unsafe { libc::dladdr(self.0.tls_anchor as *const c_void, &mut info) };
        info.dli_fbase.cast_const().cast()
    }
}

/// An open session of the runtime: launches of this thread run in it.
struct Session(*mut c_void);

impl Session {
    fn findings(&self) -> Vec<ffi::Finding> {
        let mut count = 0;
        // SAFETY: the session is open; its findings are valid until it is closed, and are
        // copied here. An empty list may have no address.
        unsafe {
            let first = ffi::assay_emu_session_findings(self.0, &mut count);
            if count == 0 { Vec::new() } else { std::slice::from_raw_parts(first, count).to_vec() }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: opened by `assay_emu_session_open`, closed once.
        unsafe { ffi::assay_emu_session_close(self.0) }
    }
}

/// Of each output, the elements that still hold the pattern.
fn unwritten_elements(device: &Device, fill: &[u8]) -> Vec<(Buffer, Vec<usize>)> {
    let outputs = device.buffers(|role| role == Role::Out).into_iter();
    outputs.map(|buffer| (buffer, device.unwritten(buffer, fill))).collect()
}
