//! Memory of the blocked products: panels of activations, and room for widened weights.

#![expect(unsafe_code, reason = "panels are filled through pointers, from many threads")]

use std::cell::RefCell;

use super::simd::Float;

/// Copies a row in pieces of `W`, each to its place, of which the last may be shorter.
pub(super) fn copy_pieces<T: Float, const W: usize>(row: &[T], place: impl Fn(usize) -> *mut T) {
    let (pieces, rest) = row.as_chunks::<W>();
    for (i, piece) in pieces.iter().enumerate() {
        // SAFETY: the caller's places have room for W numbers.
        unsafe { place(i).cast::<[T; W]>().write(*piece) };
    }
    if !rest.is_empty() {
        let to = place(pieces.len());
        // SAFETY: likewise.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, rest.len()) };
    }
}

/// Numbers that begin at a cache line.
pub(super) struct Panels<T> {
    data: Vec<T>,
    skip: usize,
}

/// Bytes of a cache line, and of the widest register.
const LINE: usize = 64;

impl<T: Float> Panels<T> {
    /// Room for `n` of them: +0 where they are to be padded, else of no particular value.
    pub(super) fn new(n: usize, padded: bool) -> Self {
        let mut data = Vec::with_capacity(n + LINE / size_of::<T>());
        if padded {
            data.resize(data.capacity(), T::default());
        }
        let skip = data.as_ptr().align_offset(LINE);
        Panels { data, skip }
    }

    pub(super) fn as_ptr(&self) -> *const T {
        // SAFETY: there is room for a cache line more than asked for.
        unsafe { self.data.as_ptr().add(self.skip) }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut T {
        // SAFETY: likewise.
        unsafe { self.data.as_mut_ptr().add(self.skip) }
    }
}

/// A thread's memory for widened weights, kept from call to call.
pub(super) struct Scratch;

impl Scratch {
    /// Room for `n` numbers from a cache line on, of no particular value.
    pub(super) fn with<T: Float>(n: usize, f: impl FnOnce(*mut T)) {
        thread_local! {
            static KEPT: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
        }
        let mut memory = KEPT.take();
        let words = (n * size_of::<T>() + LINE).div_ceil(8);
        if memory.len() < words {
            memory = vec![0; words];
        }
        let start = memory.as_ptr().align_offset(LINE);
        f(memory[start..].as_mut_ptr().cast());
        KEPT.set(memory);
    }
}
