//! The C interface of the emulator's runtime: `emu/runtime/interface.h`, field by field.
#![expect(unsafe_code, reason = "declares foreign functions")]

use std::ffi::{c_char, c_void};

/// `assay_emu::Buffer`.
#[repr(C)]
pub(super) struct Buffer {
    pub(super) span: *mut u8,
    pub(super) span_bytes: usize,
    pub(super) data: *mut u8,
    pub(super) bytes: usize,
    pub(super) stores: *mut u64,
    pub(super) loads: *mut u64,
    pub(super) writable: u32,
    pub(super) initialised: u32,
}

/// `assay_emu::LdsSymbol`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LdsSymbol {
    pub(super) offset: i64,
    pub(super) bytes: usize,
}

/// `assay_emu::SessionOptions`.
#[repr(C)]
pub(super) struct SessionOptions {
    pub(super) buffers: *const Buffer,
    pub(super) buffer_count: usize,
    pub(super) arena: *const u8,
    pub(super) arena_bytes: usize,
    pub(super) symbols: *const LdsSymbol,
    pub(super) symbol_count: usize,
    pub(super) tls_anchor: unsafe extern "C" fn() -> *mut c_void,
    pub(super) module_base: *const u8,
    pub(super) seed: u64,
    pub(super) deadline_ns: u64,
    pub(super) threads: u32,
    pub(super) ulps: u32,
    pub(super) flush_subnormals: u32,
}

/// `assay_emu::Finding`. `kind` is an `assay_emu::FindingKind`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Finding {
    pub(super) kind: u32,
    pub(super) detail: u32,
    pub(super) buffer: i32,
    pub(super) symbol: i32,
    pub(super) pc: u64,
    pub(super) pc2: u64,
    pub(super) line: u32,
    pub(super) line2: u32,
    pub(super) text: *const c_char,
    pub(super) count: u64,
    pub(super) offset: i64,
    pub(super) launch: u64,
    pub(super) block: u64,
    pub(super) block2: u64,
    pub(super) thread: u32,
    pub(super) block_at: [u32; 3],
    pub(super) block2_at: [u32; 3],
    pub(super) thread_at: [u32; 3],
}

unsafe extern "C" {
    pub(super) fn assay_emu_table() -> *const c_void;
    pub(super) fn assay_emu_session_open(options: *const SessionOptions) -> *mut c_void;
    pub(super) fn assay_emu_session_findings(
        session: *mut c_void,
        count: *mut usize,
    ) -> *const Finding;
    pub(super) fn assay_emu_session_close(session: *mut c_void);
}
