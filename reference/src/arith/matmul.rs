//! y = x w^T, every element to the bit what [`dot`](super::dot) defines, near the machine's limits.
//!
//! Few rows of activations (decode) are limited by reading the weights: those are widened in registers.
//! Many (prefill) are limited by arithmetic: blocks of weights are widened once into the cache. Threads
//! split the outputs. Shapes: x [M, K] row-major, weights N rows of K, y [M, N].

#![expect(
    unsafe_code,
    reason = "kernels take pointers, so that threads can write columns of one output"
)]

use rayon::prelude::*;

use super::blocking::{Blocking, Tasks};
use super::fenv::DefaultEnv;
use super::isa::Isa;
use super::kernel::{Direct, Packed, direct, packed};
use super::panels::{Panels, Scratch, copy_pieces};
use super::simd::{Bf16, F16, F32, Float, Own, Stored};
use crate::dtype::Dtype;
use crate::tensor::Tensor;

/// Rows of weights.
pub enum Weights<'a, T> {
    /// A stored tensor [N, K].
    Stored(&'a Tensor),
    /// Numbers of the arithmetic, row-major.
    Own(&'a [T]),
    /// Writes a row of K numbers; called from many threads.
    Made(&'a (dyn Fn(usize, &mut [T]) + Sync)),
}

/// x [M, K] times `n` rows of weights: [M, N].
///
/// # Panics
/// When x is not whole rows of `k`, or the weights are fewer than `n` rows (programming errors).
pub(super) fn product<T: Float>(x: &[T], k: usize, weights: &Weights<'_, T>, n: usize) -> Vec<T> {
    product_with(Isa::current(), x, k, weights, n)
}

/// The same with given instructions, which this CPU must have.
pub(super) fn product_with<T: Float>(
    isa: Isa,
    x: &[T],
    k: usize,
    weights: &Weights<'_, T>,
    n: usize,
) -> Vec<T> {
    assert!(isa.is_supported() && k > 0 && x.len().is_multiple_of(k), "x is not rows of {k}");
    let m = x.len() / k;
    if m == 0 || n == 0 {
        return Vec::new();
    }
    let mut out = Vec::with_capacity(m * n);
    let job = Job { isa, x, m, k, n, out: out.as_mut_ptr() };
    match weights {
        Weights::Stored(t) if t.len() >= n * k => match t.dtype() {
            Dtype::Bf16 => job.stored::<Bf16>(t.bytes()),
            Dtype::F16 => job.stored::<F16>(t.bytes()),
            Dtype::F32 => job.stored::<F32>(t.bytes()),
            _ => job.made(&|r, row: &mut [T]| t.widen(r * k, row, T::of)),
        },
        Weights::Stored(t) => panic!("{t:?} has fewer than {n} rows of {k}"),
        Weights::Own(w) => {
            assert!(w.len() >= n * k, "fewer than {n} rows of {k}");
            // SAFETY: any initialised numbers can be read as bytes.
            let bytes = unsafe { std::slice::from_raw_parts(w.as_ptr().cast(), size_of_val(*w)) };
            job.stored::<Own<T>>(bytes);
        }
        Weights::Made(make) => job.made(*make),
    }
    // SAFETY: the tasks of a job write every row of every column.
    unsafe { out.set_len(m * n) };
    out
}

/// The products of each of `queries` with `n` rows of their length that lie `stride` elements apart.
pub(super) fn dots<T: Float>(
    isa: Isa,
    queries: &[&[T]],
    rows: &[T],
    stride: usize,
    n: usize,
) -> Vec<Vec<T>> {
    let (m, k) = (queries.len(), queries[0].len());
    assert!(n > 0 && rows.len() >= (n - 1) * stride + k, "rows are too short");
    let mr = Blocking::of(isa).expect("has kernels").rows_for(m);
    // One row is a panel of itself, if there is nothing to pad.
    let alone = mr == 1 && k.is_multiple_of(T::LANES);
    let panels = (!alone).then(|| {
        let steps = k.div_ceil(T::LANES);
        let mut panels = vec![T::default(); m.next_multiple_of(mr) * steps * T::LANES];
        for (r, q) in queries.iter().enumerate() {
            let panel = &mut panels[r / mr * mr * steps * T::LANES..];
            for (s, piece) in q.chunks(T::LANES).enumerate() {
                panel[(s * mr + r % mr) * T::LANES..][..piece.len()].copy_from_slice(piece);
            }
        }
        panels
    });
    let mut out = vec![T::default(); m * n];
    let call = |x: &[T], m: usize, out: &mut [T]| {
        let call = Direct {
            x: x.as_ptr(),
            m,
            mr,
            k,
            w: rows.as_ptr().cast(),
            stride: stride * size_of::<T>(),
            n,
            out: out.as_mut_ptr(),
            out_stride: n,
        };
        // SAFETY: the pointers are good for what the call says.
        unsafe { run_direct::<T, Own<T>>(isa, &call) };
    };
    match &panels {
        Some(panels) => call(panels, m, &mut out),
        None => queries.iter().zip(out.chunks_exact_mut(n)).for_each(|(q, out)| call(q, 1, out)),
    }
    out.chunks_exact(n).map(<[T]>::to_vec).collect()
}

/// # Safety
/// The pointers of `call` are good for what it describes.
unsafe fn run_direct<T: Float, W: Stored>(isa: Isa, call: &Direct<T>) {
    // SAFETY: the instructions were detected where the choice was made.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run_direct::<T, W>(call),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::run_direct::<T, W>(call),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run_direct::<T, W>(call),
            _ => unreachable!("has no kernels"),
        }
    }
}

/// One product.
struct Job<'a, T> {
    isa: Isa,
    x: &'a [T],
    m: usize,
    k: usize,
    n: usize,
    out: *mut T,
}

// SAFETY: `out` is written by tasks that have no element in common.
unsafe impl<T: Sync> Sync for Job<'_, T> {}

/// More rows than this are worth widening the weights into memory.
const DIRECT_ROWS: usize = 24;
/// Bytes of weights that a task of a direct kernel reads at least.
const TASK_BYTES: usize = 1 << 17;
/// Products of so few operations are not worth other threads.
const SMALL: usize = 1 << 16;

impl<T: Float> Job<'_, T> {
    /// Weights that a kernel widens itself.
    fn stored<W: Stored>(&self, weights: &[u8]) {
        let Some(blocking) = Blocking::of(self.isa) else { return self.defined::<W>(weights) };
        let stride = self.k * W::SIZE;
        if self.m <= DIRECT_ROWS {
            let mr = blocking.rows_for(self.m);
            let x = self.panels(mr, T::LANES, self.k.next_multiple_of(T::LANES));
            let chunk = self.direct_chunk(stride);
            self.in_parallel(self.n.div_ceil(chunk), |i| {
                let first = i * chunk;
                let n = chunk.min(self.n - first);
                self.direct::<W>(mr, &x, &weights[first * stride..], first, n);
            });
            return;
        }
        let (x, kc) = self.packed_panels(&blocking);
        let tasks = Tasks::of([self.m, self.n], &blocking);
        self.in_parallel(tasks.count(), |i| {
            let (columns, rows) = tasks.task(i);
            let weights = &weights[columns.start * stride..];
            self.packed::<W>(&blocking, (&x, kc), weights, columns, rows);
        });
    }

    /// Weights that are made row by row.
    fn made(&self, make: &(dyn Fn(usize, &mut [T]) + Sync)) {
        let Some(blocking) = Blocking::of(self.isa) else { return self.defined_made(make) };
        let (k, stride) = (self.k, self.k * size_of::<T>());
        let rows = |columns: std::ops::Range<usize>| {
            let mut rows = vec![T::default(); columns.len() * k];
            for (row, r) in rows.chunks_exact_mut(k).zip(columns) {
                make(r, row);
            }
            rows
        };
        let bytes = |rows: &[T]| {
            // SAFETY: any initialised numbers can be read as bytes, for as long as the rows live.
            unsafe { std::slice::from_raw_parts(rows.as_ptr().cast::<u8>(), size_of_val(rows)) }
        };
        if self.m <= DIRECT_ROWS {
            let mr = blocking.rows_for(self.m);
            let x = self.panels(mr, T::LANES, k.next_multiple_of(T::LANES));
            let chunk = self.direct_chunk(stride).min(32);
            self.in_parallel(self.n.div_ceil(chunk), |i| {
                let first = i * chunk;
                let n = chunk.min(self.n - first);
                let rows = rows(first..first + n);
                self.direct::<Own<T>>(mr, &x, bytes(&rows), first, n);
            });
            return;
        }
        let (x, kc) = self.packed_panels(&blocking);
        let tasks = Tasks::of([self.m, self.n], &blocking);
        self.in_parallel(tasks.count(), |i| {
            let (columns, m) = tasks.task(i);
            let rows = rows(columns.clone());
            self.packed::<Own<T>>(&blocking, (&x, kc), bytes(&rows), columns, m);
        });
    }

    /// The definition, element by element.
    fn defined<W: Stored>(&self, weights: &[u8]) {
        let k = self.k;
        self.defined_made(&|r, row: &mut [T]| {
            let bytes = &weights[r * k * W::SIZE..(r + 1) * k * W::SIZE];
            for (x, raw) in row.iter_mut().zip(bytes.chunks_exact(W::SIZE)) {
                *x = W::one(raw);
            }
        });
    }

    fn defined_made(&self, make: &(dyn Fn(usize, &mut [T]) + Sync)) {
        self.in_parallel(self.n, |c| {
            let mut row = vec![T::default(); self.k];
            make(c, &mut row);
            for (r, x) in self.x.chunks_exact(self.k).enumerate() {
                // SAFETY: the output has m rows of n, and only this task writes column c.
                unsafe { *self.out.add(r * self.n + c) = T::dot(x, &row, 0) };
            }
        });
    }

    fn in_parallel(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.m * self.k * self.n <= SMALL {
            (0..tasks).for_each(task);
            return;
        }
        (0..tasks).into_par_iter().for_each(|i| {
            let _env = DefaultEnv::enter();
            task(i);
        });
    }

    /// Rows of weights in a task of a direct kernel.
    fn direct_chunk(&self, stride: usize) -> usize {
        let at_least = TASK_BYTES.div_ceil(stride);
        let even = self.n.div_ceil(8 * rayon::current_num_threads());
        even.max(at_least).min(512).min(self.n)
    }

    /// Panels for the packed kernel and the length of their blocks on the reduced axis.
    fn packed_panels(&self, blocking: &Blocking) -> (Panels<T>, usize) {
        let blocks = (self.k * size_of::<T>()).div_ceil(blocking.block);
        let kc = self.k.div_ceil(blocks).next_multiple_of(T::LANES);
        (self.panels(blocking.packed.0, T::LANES / blocking.parts, kc), kc)
    }

    /// x in panels [K / kc][M / mr][lanes / width][kc / lanes][mr][width], padded with +0.
    fn panels(&self, mr: usize, width: usize, kc: usize) -> Panels<T> {
        let (m, k, lanes) = (self.m, self.k, T::LANES);
        let m_all = m.next_multiple_of(mr);
        let padded = m_all != m || k % lanes != 0;
        let mut panels = Panels::new(m_all * k.next_multiple_of(lanes), padded);
        let out = panels.as_mut_ptr() as usize;
        self.in_parallel(m_all / mr, |g| {
            for r in g * mr..m.min((g + 1) * mr) {
                let row = &self.x[r * k..(r + 1) * k];
                for (b, part) in row.chunks(kc).enumerate() {
                    let steps = part.len().div_ceil(lanes);
                    let base = b * kc * m_all + g * mr * steps * lanes + (r - g * mr) * width;
                    let place = |i: usize| {
                        let (s, p) = (i * width / lanes, i * width % lanes / width);
                        // SAFETY: within the panels, and no other row goes there.
                        unsafe { (out as *mut T).add(base + (p * steps + s) * mr * width) }
                    };
                    match width {
                        16 => copy_pieces::<T, 16>(part, place),
                        8 => copy_pieces::<T, 8>(part, place),
                        4 => copy_pieces::<T, 4>(part, place),
                        _ => copy_pieces::<T, 2>(part, place),
                    }
                }
            }
        });
        panels
    }

    fn direct<W: Stored>(&self, mr: usize, x: &Panels<T>, w: &[u8], first: usize, n: usize) {
        assert!(w.len() >= n * self.k * W::SIZE, "weights are too short");
        let call = Direct {
            x: x.as_ptr(),
            m: self.m,
            mr,
            k: self.k,
            w: w.as_ptr(),
            stride: self.k * W::SIZE,
            n,
            // SAFETY: column `first` of the output.
            out: unsafe { self.out.add(first) },
            out_stride: self.n,
        };
        // SAFETY: panels, weights and output are as large as the call says.
        unsafe { run_direct::<T, W>(self.isa, &call) };
    }

    fn packed<W: Stored>(
        &self,
        blocking: &Blocking,
        (x, kc): (&Panels<T>, usize),
        w: &[u8],
        columns: std::ops::Range<usize>,
        rows: std::ops::Range<usize>,
    ) {
        let (mr, nr) = blocking.packed;
        let n = columns.len();
        assert!(w.len() >= n * self.k * W::SIZE, "weights are too short");
        let wide = n.next_multiple_of(nr);
        let places = if self.k > kc { rows.len().next_multiple_of(mr) * wide } else { mr * nr };
        Scratch::with(wide * kc + places * T::LANES, |scratch: *mut T| {
            let call = Packed {
                x: x.as_ptr(),
                m_all: self.m.next_multiple_of(mr),
                m_first: rows.start,
                m: rows.len(),
                k: self.k,
                kc,
                w: w.as_ptr(),
                stride: self.k * W::SIZE,
                n,
                // SAFETY: the first of the columns.
                out: unsafe { self.out.add(columns.start) },
                out_stride: self.n,
                panel: scratch,
                // SAFETY: after the panel.
                lanes: unsafe { scratch.add(wide * kc) },
            };
            // SAFETY: the instructions were detected; everything is as large as the call says.
            unsafe {
                match self.isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2::run_packed::<T, W>(&call),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => avx512::run_packed::<T, W>(&call),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon => neon::run_packed::<T, W>(&call),
                    _ => unreachable!("has no kernels"),
                }
            }
        });
    }
}

macro_rules! kernels {
    ($isa:ident, $features:literal, $register:ident, parts $p:literal,
     packed ($pm:literal, $pn:literal), direct $(($dm:literal, $dn:literal)),+) => {
        mod $isa {
            use super::*;

            /// The kernel of `call.mr` rows.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn run_direct<T: Float, W: Stored>(call: &Direct<T>) {
                // SAFETY: as the caller promises.
                unsafe {
                    match call.mr {
                        $($dm => direct::<T::$register, W, $dm, $dn, $p>(call),)+
                        mr => unreachable!("no kernel of {mr} rows"),
                    }
                }
            }

            #[target_feature(enable = $features)]
            pub(super) unsafe fn run_packed<T: Float, W: Stored>(call: &Packed<T>) {
                // SAFETY: as the caller promises.
                unsafe { packed::<T::$register, W, $pm, $pn, $p>(call) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
kernels!(avx2, "avx2,fma,f16c", Avx2, parts 2, packed (4, 3), direct (1, 4), (2, 2), (4, 1));
#[cfg(target_arch = "x86_64")]
kernels!(avx512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", Avx512, parts 1,
    packed (8, 3), direct (1, 4), (2, 4), (4, 4), (8, 2));
#[cfg(target_arch = "aarch64")]
kernels!(neon, "neon", Neon, parts 4, packed (6, 4), direct (1, 4), (2, 2), (4, 1));

#[cfg(test)]
mod tests;
