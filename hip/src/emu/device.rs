//! Device memory of the emulator: buffers among pages that may not be touched.
#![expect(unsafe_code, reason = "maps and protects pages, and lends them to kernels")]

use std::ptr;

use serde::{Deserialize, Serialize};

use super::ffi;
use crate::error::Error;
use crate::finding::elements_equal_to;

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read only; a store to it is a finding. Also for buffers outside the contract.
    In,
    /// Every element must be written; filled with a pattern before the launch.
    Out,
    /// Read and written in place.
    InOut,
}

/// Where a buffer lies in its pages: the guarded end shows accesses past it exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// The end touches an inaccessible page (to 16 bytes): overruns fault.
    #[default]
    End,
    /// The start touches an inaccessible page: underruns fault.
    Start,
}

/// What to allocate.
#[derive(Clone, Copy, Debug)]
pub struct BufferSpec<'a> {
    /// Name of the argument, as findings give it.
    pub name: &'a str,
    /// What the kernel may do with it.
    pub role: Role,
    /// Size in bytes.
    pub bytes: usize,
    /// Size of one element in bytes: the unit in which unwritten output is told.
    pub element: usize,
}

/// A handle to a buffer of the [`Device`] that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer(pub(super) usize);

/// Marks the bytes of the buffer's own pages that are not the buffer. As bf16, f16 or
/// f32 it is a NaN, so that reading it shows as well.
const CANARY: [u8; 2] = [0xa5, 0xff];

/// Address space reserved for one device; pages are only committed when touched.
const ARENA_BYTES: usize = 64 << 30;
/// Inaccessible bytes on each side of a buffer, at least.
const MIN_GUARD_BYTES: usize = 1 << 20;
/// Buffers keep this alignment, which vector loads rely on.
const ALIGNMENT: usize = 16;

pub(super) struct Allocation {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) element: usize,
    pub(super) bytes: usize,
    /// Offsets in the arena.
    pub(super) span: usize,
    span_bytes: usize,
    pages: usize,
    page_bytes: usize,
    data: usize,
    /// One cell a byte, for checked launches; see `note_store` in the runtime.
    stores: Vec<u64>,
}

/// Memory of an emulated device.
///
/// Buffers live until the device is dropped: make one device a launch.
pub struct Device {
    base: *mut u8,
    used: usize,
    page: usize,
    placement: Placement,
    pub(super) allocations: Vec<Allocation>,
}

// SAFETY: the mapping is owned by this value alone and is not tied to a thread.
unsafe impl Send for Device {}

impl Device {
    /// Reserves the address space; `placement` holds for all of its buffers.
    ///
    /// # Errors
    /// [`Error::Memory`] when the system refuses.
    pub fn new(placement: Placement) -> Result<Self, Error> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice; no page
        // is accessible until `alloc` opens it.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                ARENA_BYTES,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::memory("the address space of device buffers", ARENA_BYTES));
        }
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        Ok(Self { base: base.cast(), used: 0, page, placement, allocations: Vec::new() })
    }

    /// Allocates a buffer. Inputs are all zero until uploaded.
    ///
    /// # Errors
    /// [`Error::Memory`] when the arena or the system has no room.
    pub fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<Buffer, Error> {
        let round = |n: usize| n.div_ceil(self.page) * self.page;
        let page_bytes = round(spec.bytes.max(1));
        let guard = round(page_bytes.max(MIN_GUARD_BYTES));
        let span = self.used;
        let span_bytes = guard + page_bytes + guard;
        if spec.bytes > ARENA_BYTES / 4 || span + span_bytes > ARENA_BYTES {
            return Err(Error::memory(spec.name, spec.bytes));
        }
        let pages = span + guard;
        let data = match self.placement {
            Placement::Start => pages,
            Placement::End => pages + page_bytes - spec.bytes.next_multiple_of(ALIGNMENT),
        };
        self.used += span_bytes;
        self.allocations.push(Allocation {
            name: spec.name.to_owned(),
            role: spec.role,
            element: spec.element,
            bytes: spec.bytes,
            span,
            span_bytes,
            pages,
            page_bytes,
            data,
            stores: Vec::new(),
        });
        let buffer = Buffer(self.allocations.len() - 1);
        self.protect(buffer, libc::PROT_READ | libc::PROT_WRITE)?;
        let allocation = &self.allocations[buffer.0];
        let (before, after) = (allocation.data - pages, allocation.data + spec.bytes);
        fill_pattern(self.slice_mut(pages, before), &CANARY);
        fill_pattern(self.slice_mut(after, pages + page_bytes - after), &CANARY);
        Ok(buffer)
    }

    /// Copies `bytes` into the buffer; they must be as many as it holds.
    pub fn upload(&mut self, buffer: Buffer, bytes: &[u8]) {
        let (data, size) = self.extent(buffer);
        assert_eq!(size, bytes.len(), "upload of another size than the buffer's");
        self.slice_mut(data, size).copy_from_slice(bytes);
    }

    /// Repeats `pattern` over the buffer.
    pub fn fill(&mut self, buffer: Buffer, pattern: &[u8]) {
        let (data, size) = self.extent(buffer);
        fill_pattern(self.slice_mut(data, size), pattern);
    }

    /// The buffer's bytes.
    #[must_use]
    pub fn download(&self, buffer: Buffer) -> &[u8] {
        let (data, size) = self.extent(buffer);
        self.slice(data, size)
    }

    /// What to hand to a launcher.
    #[must_use]
    pub fn pointer(&self, buffer: Buffer) -> *mut u8 {
        self.base.wrapping_add(self.extent(buffer).0)
    }

    /// Copies of some buffers, for `restore`.
    pub(super) fn save(&self, wanted: impl Fn(Role) -> bool) -> Vec<(Buffer, Vec<u8>)> {
        let buffers = self.buffers(wanted).into_iter();
        buffers.map(|buffer| (buffer, self.download(buffer).to_vec())).collect()
    }

    pub(super) fn restore(&mut self, saved: &[(Buffer, Vec<u8>)]) {
        for (buffer, bytes) in saved {
            self.upload(*buffer, bytes);
        }
    }

    pub(super) fn buffers(&self, wanted: impl Fn(Role) -> bool) -> Vec<Buffer> {
        let all = self.allocations.iter().enumerate();
        all.filter(|(_, a)| wanted(a.role)).map(|(index, _)| Buffer(index)).collect()
    }

    fn extent(&self, buffer: Buffer) -> (usize, usize) {
        let allocation = &self.allocations[buffer.0];
        (allocation.data, allocation.bytes)
    }

    fn slice(&self, start: usize, bytes: usize) -> &[u8] {
        // SAFETY: callers pass ranges inside the readable pages of an allocation, which
        // live as long as `self`; no launch runs while `self` is borrowed here, since
        // `Module::run` borrows it mutably.
        unsafe { std::slice::from_raw_parts(self.base.add(start), bytes) }
    }

    fn slice_mut(&mut self, start: usize, bytes: usize) -> &mut [u8] {
        // SAFETY: as in `slice`, on pages that are writable outside launches.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), bytes) }
    }

    fn protect(&self, buffer: Buffer, protection: libc::c_int) -> Result<(), Error> {
        let allocation = &self.allocations[buffer.0];
        // SAFETY: whole pages of this device's own mapping.
        let refused = unsafe {
            let pages = self.base.add(allocation.pages);
            libc::mprotect(pages.cast(), allocation.page_bytes, protection) != 0
        };
        if refused { Err(Error::memory(&allocation.name, allocation.bytes)) } else { Ok(()) }
    }

    /// Makes inputs read-only and describes the buffers to the runtime. The pointers
    /// hold until the device is used again.
    pub(super) fn begin_launch(&mut self, checked: bool) -> Result<Vec<ffi::Buffer>, Error> {
        for index in 0..self.allocations.len() {
            if self.allocations[index].role == Role::In {
                self.protect(Buffer(index), libc::PROT_READ)?;
            }
        }
        let base = self.base;
        let describe = |allocation: &mut Allocation| {
            let writable = allocation.role != Role::In;
            allocation.stores =
                if checked && writable { vec![0; allocation.bytes] } else { vec![] };
            ffi::Buffer {
                span: base.wrapping_add(allocation.span),
                span_bytes: allocation.span_bytes,
                data: base.wrapping_add(allocation.data),
                bytes: allocation.bytes,
                stores: match allocation.stores.as_mut_slice() {
                    [] => ptr::null_mut(),
                    cells => cells.as_mut_ptr(),
                },
                writable: u32::from(writable),
            }
        };
        Ok(self.allocations.iter_mut().map(describe).collect())
    }

    pub(super) fn end_launch(&mut self) -> Result<(), Error> {
        for index in 0..self.allocations.len() {
            self.protect(Buffer(index), libc::PROT_READ | libc::PROT_WRITE)?;
        }
        Ok(())
    }

    pub(super) fn arena(&self) -> (*const u8, usize) {
        (self.base, ARENA_BYTES)
    }

    /// The byte offset of the first damaged canary, relative to the buffer, and how
    /// many are.
    pub(super) fn damaged_canary(&self, buffer: Buffer) -> Option<(i64, usize)> {
        let allocation = &self.allocations[buffer.0];
        let end = allocation.data + allocation.bytes;
        let pages_end = allocation.pages + allocation.page_bytes;
        let mut first = None;
        let mut count = 0;
        for (start, stop) in [(allocation.pages, allocation.data), (end, pages_end)] {
            for (i, &byte) in self.slice(start, stop - start).iter().enumerate() {
                if byte != CANARY[i % 2] {
                    count += 1;
                    first.get_or_insert((start + i) as i64 - allocation.data as i64);
                }
            }
        }
        first.map(|offset| (offset, count))
    }

    /// Which elements of an output still hold `pattern`: exact after a checked launch,
    /// else a suspicion, for a kernel may write just that.
    pub(super) fn unwritten(&self, buffer: Buffer, pattern: &[u8]) -> Vec<usize> {
        let allocation = &self.allocations[buffer.0];
        if allocation.stores.is_empty() {
            return elements_equal_to(self.download(buffer), pattern, allocation.element);
        }
        let elements = allocation.stores.chunks_exact(allocation.element).enumerate();
        elements.filter(|(_, cells)| cells.contains(&0)).map(|(index, _)| index).collect()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; nothing borrows it any more.
        unsafe { libc::munmap(self.base.cast(), ARENA_BYTES) };
    }
}

fn fill_pattern(bytes: &mut [u8], pattern: &[u8]) {
    for chunk in bytes.chunks_mut(pattern.len()) {
        chunk.copy_from_slice(&pattern[..chunk.len()]);
    }
}
