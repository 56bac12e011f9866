//! The two reductions of attention over keys and values as they lie in memory: to the bit what
//! [`dot`](super::dot) defines, without a transposed copy of the values.

#![expect(unsafe_code, reason = "kernels take pointers")]

use super::isa::Isa;
use super::kernel::mix as mix_kernel;
use super::matmul;
use super::simd::{Float, Register};

/// The products of `q` with `n` rows of its length, `stride` elements apart.
pub(super) fn dots<T: Float>(q: &[T], rows: &[T], stride: usize, n: usize) -> Vec<T> {
    let isa = Isa::current();
    if isa == Isa::Scalar || n == 0 {
        return (0..n).map(|j| T::dot(q, &rows[j * stride..j * stride + q.len()], 0)).collect();
    }
    matmul::dots(isa, q, rows, stride, n)
}

/// The sums over keys j of `w[j]` times the first `width` elements of row j, rows lying `stride` elements
/// apart. `first` is the absolute index of key 0.
pub(super) fn mix<T: Float>(
    w: &[T],
    rows: &[T],
    stride: usize,
    width: usize,
    first: usize,
) -> Vec<T> {
    let mut out = vec![T::default(); width];
    assert!(w.is_empty() || rows.len() >= (w.len() - 1) * stride + width, "rows are too short");
    let done = mixed(w, rows.as_ptr(), stride, &mut out, first);
    let mut column = Vec::new();
    for (c, out) in out.iter_mut().enumerate().skip(done) {
        column.clear();
        column.extend((0..w.len()).map(|j| rows[j * stride + c]));
        *out = T::dot(w, &column, first);
    }
    out
}

/// Does as many whole registers of columns as there are, and says how many columns that is.
fn mixed<T: Float>(w: &[T], rows: *const T, stride: usize, out: &mut [T], first: usize) -> usize {
    // SAFETY: the instructions were detected, and the caller has checked the rows' length.
    unsafe {
        match Isa::current() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512(w, rows, stride, out, first),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(w, rows, stride, out, first),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => columns::<T, T::Neon, 8>(w, rows, stride, out, first),
            _ => 0,
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<T: Float>(
    w: &[T],
    rows: *const T,
    stride: usize,
    out: &mut [T],
    first: usize,
) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        match T::LANES {
            16 => columns::<T, T::Avx512, 16>(w, rows, stride, out, first),
            _ => columns::<T, T::Avx512, 8>(w, rows, stride, out, first),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: Float>(
    w: &[T],
    rows: *const T,
    stride: usize,
    out: &mut [T],
    first: usize,
) -> usize {
    // SAFETY: as the caller promises.
    unsafe { columns::<T, T::Avx2, 8>(w, rows, stride, out, first) }
}

/// `G` lanes of the reduction are held in registers at a time.
#[inline(always)]
unsafe fn columns<T: Float, V: Register<Elem = T>, const G: usize>(
    w: &[T],
    rows: *const T,
    stride: usize,
    out: &mut [T],
    first: usize,
) -> usize {
    let whole = out.len() / V::WIDTH;
    for c in 0..whole {
        // SAFETY: as the caller promises; the columns are within the rows and the output.
        unsafe {
            let to = out.as_mut_ptr().add(c * V::WIDTH);
            mix_kernel::<V, G>(w, rows.add(c * V::WIDTH), stride, first, to);
        }
    }
    whole * V::WIDTH
}
