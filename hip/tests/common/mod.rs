//! Runs the small kernels of `emu/tests`, all of which have one launcher:
//! `int launch(const void* in, void* out, int n, hipStream_t stream)`.
#![expect(unsafe_code, reason = "calls a launcher through its C signature")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;

use assay_hip::emu::{BufferSpec, Compiler, Device, Mode, Role};
use assay_hip::{LaunchOptions, LaunchReport};

type Launcher = unsafe extern "C" fn(*mut u8, *mut u8, c_int, *mut c_void) -> c_int;

/// A kernel of `emu/tests` and how to run it.
pub(crate) struct Probe {
    pub(crate) kernel: &'static str,
    pub(crate) mode: Mode,
    pub(crate) input: Vec<u8>,
    pub(crate) output_elements: usize,
    pub(crate) role: Role,
    pub(crate) n: i32,
    pub(crate) options: LaunchOptions,
}

impl Probe {
    /// 128 ints (0, 1, ...) in, 128 out, `n` = 128.
    pub(crate) fn new(kernel: &'static str, mode: Mode) -> Self {
        let input = (0..128_i32).flat_map(i32::to_ne_bytes).collect();
        let options = LaunchOptions::default();
        Self { kernel, mode, input, output_elements: 128, role: Role::Out, n: 128, options }
    }

    pub(crate) fn with_floats(mut self, input: &[f32]) -> Self {
        self.input = input.iter().flat_map(|x| x.to_ne_bytes()).collect();
        self
    }

    pub(crate) fn run(&self) -> (LaunchReport, Vec<u8>) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("emu/tests");
        let source = std::fs::read_to_string(path.join(format!("{}.hip", self.kernel))).unwrap();
        let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
        let module = compiler.compile(&source, self.mode).unwrap();
        let address = module.launcher("launch").unwrap();
        // SAFETY: every test kernel defines `launch` with this signature.
        let launch: Launcher = unsafe { std::mem::transmute(address) };

        let mut device = Device::new(self.options.placement).unwrap();
        let mut alloc = |name, role, bytes| {
            device.alloc(BufferSpec { name, role, bytes, element: 4, shape: &[] }).unwrap()
        };
        let input = alloc("in", Role::In, self.input.len());
        let output = alloc("out", self.role, 4 * self.output_elements);
        device.upload(input, &self.input);
        let (from, to) = (device.pointer(input), device.pointer(output));
        // SAFETY: the pointers are buffers of the device that `run` hands to the kernel.
        let call = || unsafe { launch(from, to, self.n, ptr::null_mut()) };
        let report = module.run(&mut device, &self.options, call).unwrap();
        (report, device.download(output).to_vec())
    }

    pub(crate) fn run_ints(&self) -> (LaunchReport, Vec<i32>) {
        let (report, bytes) = self.run();
        let ints = bytes.chunks_exact(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap()));
        (report, ints.collect())
    }

    pub(crate) fn run_floats(&self) -> Vec<f32> {
        let (report, bytes) = self.run();
        assert!(report.is_clean(), "{report:?}");
        bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    }
}

/// The findings as `code: sentence`.
pub(crate) fn said(report: &LaunchReport) -> Vec<String> {
    report.findings.iter().map(|f| format!("{}: {f}", f.code())).collect()
}
