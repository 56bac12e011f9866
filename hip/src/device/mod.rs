//! A HIP device: memory with canaries, launches, and what can be checked from outside.
#![expect(unsafe_code, reason = "calls the HIP runtime")]

mod runtime;

use std::ffi::{CStr, c_void};
use std::ptr;

use crate::cells::Cells;
use crate::emu::{BufferSpec, Role};
use crate::error::Error;
use crate::finding::{LaunchReport, LaunchStatus, MemoryFinding, elements_equal_to};
use crate::options::LaunchOptions;

/// The first HIP device of this machine.
#[derive(Clone, Debug)]
pub struct HipDevice {
    name: String,
    arch: String,
    runtime_version: i32,
    driver_version: i32,
}

unsafe extern "C" {
    /// Writes the architecture's name, ended by a zero, to `text` of `bytes`; a `hipError_t`.
    /// Compiled by hipcc, because the runtime's struct differs between its releases.
    fn assay_device_arch(device: i32, text: *mut std::ffi::c_char, bytes: usize) -> i32;
}

/// Canaries on both sides of each buffer; keeps the alignment of hipMalloc.
const GUARD_BYTES: usize = 4096;
const CANARY: u8 = 0xa5;

/// Turns a runtime function's answer into an error that names it.
fn check(call: &'static str, error: runtime::hipError_t) -> Result<(), Error> {
    if error == runtime::hipError_t::hipSuccess {
        return Ok(());
    }
    Err(Error::Hip { call, code: error.0 as i32, name: error_name(error) })
}

/// `hipErrorNoDevice` and the like.
fn error_name(error: runtime::hipError_t) -> String {
    // SAFETY: any value may be asked for; the text is the runtime's own and static.
    unsafe {
        let text = runtime::hipGetErrorName(error);
        if text.is_null() {
            "unknown".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into()
        }
    }
}

impl HipDevice {
    /// Opens device 0.
    ///
    /// # Errors
    /// [`Error::NoDevice`] when the runtime sees none.
    pub fn open() -> Result<Self, Error> {
        let mut count = 0;
        // SAFETY: writes one int.
        let error = unsafe { runtime::hipGetDeviceCount(&mut count) };
        if error != runtime::hipError_t::hipSuccess || count < 1 {
            let code = error.0;
            return Err(Error::NoDevice {
                reason: format!(
                    "hipGetDeviceCount answers {code} ({}), {count} devices",
                    error_name(error)
                ),
            });
        }
        let (mut name, mut arch) = ([0; 256], [0; 256]);
        let (mut runtime_version, mut driver_version) = (0, 0);
        // SAFETY: device 0 exists; the texts hold the lengths given and end in a zero.
        let (name, arch) = unsafe {
            check("hipSetDevice", runtime::hipSetDevice(0))?;
            check("hipDeviceGetName", runtime::hipDeviceGetName(name.as_mut_ptr(), 255, 0))?;
            check("hipRuntimeGetVersion", runtime::hipRuntimeGetVersion(&mut runtime_version))?;
            check("hipDriverGetVersion", runtime::hipDriverGetVersion(&mut driver_version))?;
            match assay_device_arch(0, arch.as_mut_ptr(), arch.len()) {
                0 => {}
                code => {
                    let name = error_name(runtime::hipError_t(code as _));
                    return Err(Error::Hip { call: "hipGetDeviceProperties", code, name });
                }
            }
            let text = |bytes: &[std::ffi::c_char]| {
                CStr::from_ptr(bytes.as_ptr()).to_string_lossy().into_owned()
            };
            (text(&name), text(&arch))
        };
        Ok(Self { name, arch, runtime_version, driver_version })
    }

    /// The name that the runtime gives the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the runtime calls the device's architecture, `gfx90a:sramecc+:xnack-`.
    #[must_use]
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// Runtime, driver and device on one line.
    #[must_use]
    pub fn runtime(&self) -> String {
        let Self { name, runtime_version, driver_version, .. } = self;
        format!("HIP runtime {runtime_version}, driver {driver_version}, {name}")
    }

    /// The HIP runtime's version number.
    #[must_use]
    pub fn runtime_version(&self) -> i32 {
        self.runtime_version
    }
}

struct Allocation {
    name: String,
    role: Role,
    element: usize,
    bytes: usize,
    shape: Vec<usize>,
    base: *mut u8,
    /// What an input was uploaded as.
    uploaded: Vec<u8>,
}

/// The buffers of one launch.
pub(crate) struct HipMemory {
    allocations: Vec<Allocation>,
}

impl HipMemory {
    /// Memory of `device`, which is the proof that there is one.
    pub(crate) fn new(_device: &HipDevice) -> Self {
        Self { allocations: Vec::new() }
    }

    pub(crate) fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<usize, Error> {
        let total = spec.bytes + 2 * GUARD_BYTES;
        let mut base: *mut c_void = ptr::null_mut();
        // SAFETY: `base` receives the address; the memset stays inside the allocation.
        unsafe {
            check("hipMalloc", runtime::hipMalloc(&mut base, total))
                .map_err(|_| Error::memory(spec.name, spec.bytes))?;
            check("hipMemset", runtime::hipMemset(base, i32::from(CANARY), total))?;
        }
        self.allocations.push(Allocation {
            name: spec.name.to_owned(),
            role: spec.role,
            element: spec.element,
            bytes: spec.bytes,
            shape: spec.shape.to_vec(),
            base: base.cast(),
            uploaded: Vec::new(),
        });
        Ok(self.allocations.len() - 1)
    }

    pub(crate) fn pointer(&self, index: usize) -> *mut u8 {
        self.allocations[index].base.wrapping_add(GUARD_BYTES)
    }

    pub(crate) fn upload(&mut self, index: usize, bytes: &[u8]) -> Result<(), Error> {
        self.allocations[index].uploaded = bytes.to_vec();
        self.write(index, bytes)
    }

    pub(crate) fn download(&self, index: usize) -> Result<Vec<u8>, Error> {
        self.read(index, GUARD_BYTES, self.allocations[index].bytes)
    }

    fn write(&self, index: usize, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(
            bytes.len(),
            self.allocations[index].bytes,
            "copy of another size than the buffer's"
        );
        let kind = runtime::hipMemcpyKind_hipMemcpyHostToDevice;
        let to = self.pointer(index).cast();
        // SAFETY: both ranges have this size, by the assertion.
        check("hipMemcpy", unsafe {
            runtime::hipMemcpy(to, bytes.as_ptr().cast(), bytes.len(), kind)
        })
    }

    fn read(&self, index: usize, start: usize, bytes: usize) -> Result<Vec<u8>, Error> {
        let mut out = vec![0_u8; bytes];
        let kind = runtime::hipMemcpyKind_hipMemcpyDeviceToHost;
        let from = self.allocations[index].base.wrapping_add(start).cast();
        // SAFETY: callers stay inside the allocation and its guards.
        check("hipMemcpy", unsafe {
            runtime::hipMemcpy(out.as_mut_ptr().cast(), from, bytes, kind)
        })?;
        Ok(out)
    }

    /// Fills the outputs, launches, waits, and looks at canaries, inputs and outputs.
    pub(crate) fn run(
        &mut self,
        options: &LaunchOptions,
        launch: impl Fn() -> i32,
    ) -> Result<LaunchReport, Error> {
        let mut findings = Vec::new();
        if let Some(code) = self.launch_over(&options.fill, &launch)? {
            return Ok(LaunchReport { status: LaunchStatus::Refused(code), findings });
        }
        for (index, allocation) in self.allocations.iter().enumerate() {
            findings.extend(self.damaged_canary(index)?);
            if allocation.role == Role::In {
                findings.extend(self.modified_input(index)?);
            }
        }
        let missing = self.unwritten(&options.fill)?;
        if missing.iter().any(|(_, elements)| !elements.is_empty()) {
            // A kernel may write just the pattern: look again over another one.
            let outputs: Vec<(usize, Vec<u8>)> = missing
                .iter()
                .map(|&(index, _)| Ok((index, self.download(index)?)))
                .collect::<Result<_, Error>>()?;
            let other: Vec<u8> = options.fill.iter().map(|byte| !byte).collect();
            self.launch_over(&other, &launch)?;
            for ((index, first), (_, second)) in missing.iter().zip(self.unwritten(&other)?) {
                let both: Vec<usize> =
                    first.iter().copied().filter(|e| second.binary_search(e).is_ok()).collect();
                let allocation = &self.allocations[*index];
                findings.extend(both.first().map(|&first| MemoryFinding::UnwrittenOutput {
                    buffer: allocation.name.clone(),
                    first,
                    count: both.len(),
                    elements: allocation.bytes / allocation.element,
                    cells: Cells::of(&both, &allocation.shape),
                    fills: 2,
                }));
            }
            for (index, bytes) in outputs {
                self.write(index, &bytes)?;
            }
        }
        Ok(LaunchReport { status: LaunchStatus::Completed, findings })
    }

    /// The launcher's error code, if it refused.
    fn launch_over(&self, fill: &[u8], launch: &impl Fn() -> i32) -> Result<Option<i32>, Error> {
        for (index, allocation) in self.allocations.iter().enumerate() {
            if allocation.role == Role::Out {
                let pattern: Vec<u8> =
                    fill.iter().copied().cycle().take(allocation.bytes).collect();
                self.write(index, &pattern)?;
            }
        }
        match launch() {
            0 => {}
            code => return Ok(Some(code)),
        }
        // SAFETY: no preconditions.
        check("hipDeviceSynchronize", unsafe { runtime::hipDeviceSynchronize() })?;
        Ok(None)
    }

    fn unwritten(&self, fill: &[u8]) -> Result<Vec<(usize, Vec<usize>)>, Error> {
        let outputs = self.allocations.iter().enumerate().filter(|(_, a)| a.role == Role::Out);
        outputs
            .map(|(index, a)| {
                Ok((index, elements_equal_to(&self.download(index)?, fill, a.element)))
            })
            .collect()
    }

    fn damaged_canary(&self, index: usize) -> Result<Option<MemoryFinding>, Error> {
        let allocation = &self.allocations[index];
        let end = GUARD_BYTES + allocation.bytes;
        let mut damaged = Vec::new();
        for start in [0, end] {
            let guard = self.read(index, start, GUARD_BYTES)?;
            let places = guard.iter().enumerate().filter(|&(_, &byte)| byte != CANARY);
            damaged.extend(places.map(|(i, _)| (start + i) as i64 - GUARD_BYTES as i64));
        }
        Ok(damaged.first().map(|&offset| MemoryFinding::CanaryDamaged {
            buffer: allocation.name.clone(),
            bytes: allocation.bytes,
            offset,
            count: damaged.len(),
        }))
    }

    fn modified_input(&self, index: usize) -> Result<Option<MemoryFinding>, Error> {
        let allocation = &self.allocations[index];
        let now = self.download(index)?;
        let changed = now.iter().zip(&allocation.uploaded).position(|(now, then)| now != then);
        Ok(changed.map(|offset| MemoryFinding::InputModified {
            buffer: allocation.name.clone(),
            offset: offset as i64,
            line: None,
            site: None,
            times: 1,
        }))
    }
}

impl Drop for HipMemory {
    fn drop(&mut self) {
        for allocation in &self.allocations {
            // SAFETY: allocated by hipMalloc and not used afterwards. An error leaves
            // nothing to be done.
            let _ = unsafe { runtime::hipFree(allocation.base.cast()) };
        }
    }
}
