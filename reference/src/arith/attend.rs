//! The two reductions of attention over keys and values as they lie in memory, for several queries at a time:
//! to the bit what [`dot`](super::dot) defines, without a transposed copy of the values.

#![expect(unsafe_code, reason = "kernels take pointers")]

use super::isa::Isa;
use super::kernel::mix as mix_kernel;
use super::matmul;
use super::simd::{Float, Register};

/// The products of each of `queries`, equally long, with `n` rows of that length, `stride` elements apart.
pub(super) fn dots<T: Float>(queries: &[&[T]], rows: &[T], stride: usize, n: usize) -> Vec<Vec<T>> {
    let isa = Isa::current();
    if isa == Isa::Scalar || n == 0 {
        let one = |q: &&[T]| (0..n).map(|j| T::dot(q, &rows[j * stride..][..q.len()], 0)).collect();
        return queries.iter().map(one).collect();
    }
    matmul::dots(isa, queries, rows, stride, n)
}

/// Lists of weights that are mixed at a time.
const LISTS: usize = 4;

/// For each list of weights the sums over j of `w[j]` times the first `width` elements of row j, rows lying
/// `stride` elements apart. `first` is the absolute index of row 0.
pub(super) fn mix<T: Float>(
    lists: &[&[T]],
    rows: &[T],
    stride: usize,
    width: usize,
    first: usize,
) -> Vec<Vec<T>> {
    let longest = lists.iter().map(|w| w.len()).max().unwrap_or(0);
    assert!(longest == 0 || rows.len() >= (longest - 1) * stride + width, "rows are too short");
    let mut out = vec![vec![T::default(); width]; lists.len()];
    let (fours, ones) = lists.as_chunks::<LISTS>();
    let (to_fours, to_ones) = out.as_chunks_mut::<LISTS>();
    for (w, out) in fours.iter().zip(to_fours) {
        mix_some(w, rows, stride, first, out);
    }
    for (w, out) in ones.iter().zip(to_ones) {
        mix_some(&[*w], rows, stride, first, std::array::from_mut(out));
    }
    out
}

fn mix_some<T: Float, const Q: usize>(
    w: &[&[T]; Q],
    rows: &[T],
    stride: usize,
    first: usize,
    out: &mut [Vec<T>; Q],
) {
    let width = out[0].len();
    let to = out.each_mut().map(Vec::as_mut_ptr);
    let call = Mix { w, rows: rows.as_ptr(), stride, first, out: &to, width };
    // SAFETY: the instructions were detected, and the caller has checked the rows' length.
    let done = unsafe {
        match Isa::current() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512(&call),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(&call),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon(&call),
            _ => 0,
        }
    };
    let mut column = Vec::new();
    for c in done..width {
        let longest = w.iter().map(|w| w.len()).max().unwrap_or(0);
        column.clear();
        column.extend((0..longest).map(|j| rows[j * stride + c]));
        for (out, w) in out.iter_mut().zip(w) {
            out[c] = T::dot(w, &column[..w.len()], first);
        }
    }
}

/// A call of [`mix_some`].
struct Mix<'a, T, const Q: usize> {
    w: &'a [&'a [T]; Q],
    rows: *const T,
    stride: usize,
    first: usize,
    out: &'a [*mut T; Q],
    width: usize,
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<T: Float, const Q: usize>(call: &Mix<'_, T, Q>) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        match (Q, T::LANES) {
            (1, 16) => columns::<T, T::Avx512, Q, 16>(call),
            (1, _) => columns::<T, T::Avx512, Q, 8>(call),
            _ => columns::<T, T::Avx512, Q, 4>(call),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: Float, const Q: usize>(call: &Mix<'_, T, Q>) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        match Q {
            1 => columns::<T, T::Avx2, Q, 8>(call),
            _ => columns::<T, T::Avx2, Q, 2>(call),
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon<T: Float, const Q: usize>(call: &Mix<'_, T, Q>) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        match Q {
            1 => columns::<T, T::Neon, Q, 8>(call),
            _ => columns::<T, T::Neon, Q, 4>(call),
        }
    }
}

/// Does as many whole registers of columns as there are, and says how many columns that is. `G` lanes of the
/// reduction are held in registers at a time.
#[inline(always)]
unsafe fn columns<T: Float, V: Register<Elem = T>, const Q: usize, const G: usize>(
    call: &Mix<'_, T, Q>,
) -> usize {
    let whole = call.width / V::WIDTH;
    for c in 0..whole {
        let mut out = *call.out;
        // SAFETY: as the caller promises; the columns are within the rows and the outputs.
        unsafe {
            for to in &mut out {
                *to = to.add(c * V::WIDTH);
            }
            let rows = call.rows.add(c * V::WIDTH);
            mix_kernel::<V, Q, G>(call.w, rows, call.stride, call.first, &out);
        }
    }
    whole * V::WIDTH
}
