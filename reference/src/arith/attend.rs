//! The two reductions of attention over keys and values as they lie in memory, for several queries at a time:
//! to the bit what [`dot`](super::dot) defines, without a transposed copy of the values.

#![expect(unsafe_code, reason = "kernels take pointers")]

use super::isa::Isa;
use super::kernel::mix as mix_kernel;
use super::matmul;
use super::simd::{Float, Register};

/// The products of each of `queries`, equally long, with `n` rows of that length, `stride` elements apart.
pub(super) fn dots<T: Float>(queries: &[&[T]], rows: &[T], stride: usize, n: usize) -> Vec<Vec<T>> {
    dots_with(Isa::current(), queries, rows, stride, n)
}

/// The same with given instructions, which this CPU must have.
fn dots_with<T: Float>(
    isa: Isa,
    queries: &[&[T]],
    rows: &[T],
    stride: usize,
    n: usize,
) -> Vec<Vec<T>> {
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
    mix_with(Isa::current(), lists, rows, stride, width, first)
}

/// The same with given instructions, which this CPU must have.
fn mix_with<T: Float>(
    isa: Isa,
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
        mix_some(isa, w, rows, stride, first, out);
    }
    for (w, out) in ones.iter().zip(to_ones) {
        mix_some(isa, &[*w], rows, stride, first, std::array::from_mut(out));
    }
    out
}

fn mix_some<T: Float, const Q: usize>(
    isa: Isa,
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
        match isa {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of both signs, some of them zeros of either sign, from a seed.
    fn numbers<T: Float>(n: usize, seed: u64) -> Vec<T> {
        let mut state = seed | 1;
        let one = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            let x = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
            T::of(if state >> 33 & 15 == 0 { 0.0f64.copysign(x) } else { x })
        };
        (0..n).map(one).collect()
    }

    fn bits<T: Float>(y: &[Vec<T>]) -> Vec<u64> {
        y.iter().flatten().map(|y| y.wide().to_bits()).collect()
    }

    /// Lists of `lengths`, rows that lie further apart than they are wide, a first row at any index.
    fn agrees<T: Float>(lengths: &[usize], width: usize, gap: usize, first: usize, seed: u64) {
        let (n, stride) = (lengths.iter().copied().max().unwrap_or(0), width + gap);
        // Nothing behind the last row: what is read there is not there.
        let rows: Vec<T> = numbers(n.saturating_sub(1) * stride + width, seed);
        let lists: Vec<Vec<T>> =
            lengths.iter().zip(1..).map(|(n, i)| numbers(*n, seed ^ i << 8)).collect();
        let lists: Vec<&[T]> = lists.iter().map(Vec::as_slice).collect();
        let column =
            |c: usize, n: usize| -> Vec<T> { (0..n).map(|j| rows[j * stride + c]).collect() };
        let mixed = |w: &&[T]| (0..width).map(|c| T::dot(w, &column(c, w.len()), first)).collect();
        let mixes: Vec<Vec<T>> = lists.iter().map(mixed).collect();
        let queries: Vec<Vec<T>> =
            (0..lengths.len() as u64).map(|i| numbers(width, seed ^ i << 20)).collect();
        let queries: Vec<&[T]> = queries.iter().map(Vec::as_slice).collect();
        let scores =
            |q: &&[T]| (0..n).map(|j| T::dot(q, &rows[j * stride..][..width], 0)).collect();
        let scores: Vec<Vec<T>> = queries.iter().map(scores).collect();
        for isa in Isa::supported() {
            let what = format!("{isa}: {lengths:?}, width {width}, gap {gap}, first {first}");
            assert!(
                bits(&mix_with(isa, &lists, &rows, stride, width, first)) == bits(&mixes),
                "{what}"
            );
            assert!(bits(&dots_with(isa, &queries, &rows, stride, n)) == bits(&scores), "{what}");
        }
    }

    proptest! {
        #[test]
        fn every_path_gives_the_bits_of_the_definition(
            lengths in proptest::collection::vec(1usize..70, 1..11),
            width in prop_oneof![1usize..40, Just(64), Just(128)],
            gap in 0usize..5,
            first in 0usize..40,
            seed: u64,
        ) {
            agrees::<f32>(&lengths, width, gap, first, seed);
            agrees::<f64>(&lengths, width, gap, first, seed);
        }
    }
}
