//! The inner loops of a matmul, generic over registers: P registers hold the lanes of one reduction.
//!
//! Each is the definition of [`dot`](super::dot) for several outputs at once: lanes start at +0, take one
//! fused multiply-add for each group of lanes, in order, and are added by the tree. Rows of activations
//! are padded with +0 and rows of weights with -0, whose product -0 changes no lane.

#![expect(
    unsafe_code,
    reason = "pointers and intrinsics; what a call promises stands at its fields"
)]
#![expect(clippy::needless_range_loop, reason = "several arrays of registers have one index")]

use super::simd::{Float, Register, Stored, fold};

/// A call of [`direct`]: activations in panels times weights as they are stored.
pub(super) struct Direct<T> {
    /// Panels of [`Direct::mr`] rows: [M / mr][K / lanes][mr][lanes].
    pub(super) x: *const T,
    /// Rows of activations.
    pub(super) m: usize,
    /// Rows in a panel.
    pub(super) mr: usize,
    /// The reduced length.
    pub(super) k: usize,
    /// The first row of weights.
    pub(super) w: *const u8,
    /// Bytes from one row to the next.
    pub(super) stride: usize,
    /// Rows of weights, the columns of the output.
    pub(super) n: usize,
    /// The output of activation row 0 and weight row 0; columns lie side by side.
    pub(super) out: *mut T,
    /// Elements from one row of the output to the next.
    pub(super) out_stride: usize,
}

/// The sums of `NR` columns.
#[inline(always)]
unsafe fn sums<V: Register, const NR: usize, const P: usize>(acc: &[[V; P]; NR]) -> [V::Elem; NR] {
    let mut out = [V::Elem::default(); NR];
    // SAFETY: as the caller promises.
    unsafe {
        let mut n = 0;
        while n + 4 <= NR {
            let four = [fold(acc[n]), fold(acc[n + 1]), fold(acc[n + 2]), fold(acc[n + 3])];
            out[n..n + 4].copy_from_slice(&V::trees(four));
            n += 4;
        }
        while n < NR {
            out[n] = fold(acc[n]).tree();
            n += 1;
        }
    }
    out
}

/// One step of a reduction for `MR` x `NR` outputs: `x` points at the panel's step, `w` at the rows'.
#[inline(always)]
unsafe fn step<V: Register, W: Stored, const MR: usize, const NR: usize, const P: usize>(
    acc: &mut [[[V; P]; NR]; MR],
    x: *const V::Elem,
    w: &[*const u8; NR],
    offset: usize,
) {
    let lanes = V::Elem::LANES;
    // SAFETY: as the caller promises.
    unsafe {
        for p in 0..P {
            let mut ws = [V::zero(); NR];
            for n in 0..NR {
                ws[n] = W::load(w[n].add((offset + p * V::WIDTH) * W::SIZE));
            }
            for m in 0..MR {
                let xs = V::load(x.add(m * lanes + p * V::WIDTH));
                for n in 0..NR {
                    acc[m][n][p] = acc[m][n][p].fma(xs, ws[n]);
                }
            }
        }
    }
}

/// y = x w^T with weights widened in registers. Reads `NR` rows of weights that lie far apart at a time:
/// each is a sequential stream, which memory delivers faster than one alone or neighbours.
///
/// # Safety
/// The CPU has V's instructions, `call.mr` is MR, and its pointers are good for what it describes.
#[inline(always)]
pub(super) unsafe fn direct<V, W, const MR: usize, const NR: usize, const P: usize>(
    call: &Direct<V::Elem>,
) where
    V: Register,
    W: Stored,
{
    let lanes = V::Elem::LANES;
    let (whole, rest) = (call.k / lanes, call.k % lanes);
    let panel = call.k.div_ceil(lanes) * MR * lanes;
    let far = call.n.div_ceil(NR);
    // SAFETY: as the caller promises; a stream that has ended repeats the last row.
    unsafe {
        for i in 0..far {
            let mut rows = [call.w; NR];
            for n in 0..NR {
                rows[n] = call.w.add((i + n * far).min(call.n - 1) * call.stride);
            }
            let mut tails = [[0u64; 16]; NR];
            let mut tail_rows = [call.w; NR];
            if rest > 0 {
                for n in 0..NR {
                    let tail = tails[n].as_mut_ptr().cast::<u8>();
                    for e in 0..lanes {
                        let minus_zero = W::NEGATIVE_ZERO.as_ptr();
                        std::ptr::copy_nonoverlapping(minus_zero, tail.add(e * W::SIZE), W::SIZE);
                    }
                    let from = rows[n].add(whole * lanes * W::SIZE);
                    std::ptr::copy_nonoverlapping(from, tail, rest * W::SIZE);
                    tail_rows[n] = tail;
                }
            }
            for g in 0..call.m.div_ceil(MR) {
                let x = call.x.add(g * panel);
                let mut acc = [[[V::zero(); P]; NR]; MR];
                for s in 0..whole {
                    step::<V, W, MR, NR, P>(&mut acc, x.add(s * MR * lanes), &rows, s * lanes);
                }
                if rest > 0 {
                    step::<V, W, MR, NR, P>(&mut acc, x.add(whole * MR * lanes), &tail_rows, 0);
                }
                for m in 0..MR.min(call.m - g * MR) {
                    let sums = sums(&acc[m]);
                    let out = call.out.add((g * MR + m) * call.out_stride);
                    for n in 0..NR {
                        if i + n * far < call.n {
                            *out.add(i + n * far) = sums[n];
                        }
                    }
                }
            }
        }
    }
}

/// A call of [`packed`]: activations in panels times weights that it widens into panels.
pub(super) struct Packed<T> {
    /// Blocks of [`Packed::kc`] on the reduced axis, each of panels of MR rows:
    /// [M / MR][parts][steps][MR][width].
    pub(super) x: *const T,
    /// All rows of activations in `x`, a multiple of MR.
    pub(super) m_all: usize,
    /// The first row of this call, a multiple of MR.
    pub(super) m_first: usize,
    /// Rows of this call.
    pub(super) m: usize,
    /// The reduced length.
    pub(super) k: usize,
    /// Of a block, a multiple of the lanes.
    pub(super) kc: usize,
    /// The first row of weights.
    pub(super) w: *const u8,
    /// Bytes from one row to the next.
    pub(super) stride: usize,
    /// Rows of weights.
    pub(super) n: usize,
    /// As in [`Direct`], of row 0 of all.
    pub(super) out: *mut T,
    /// As in [`Direct`].
    pub(super) out_stride: usize,
    /// Room for `n` rounded up to NR rows of `kc` widened weights.
    pub(super) panel: *mut T,
    /// Room for the lanes of `m` x `n` (both rounded up) outputs; of one block if K fits into kc.
    pub(super) lanes: *mut T,
}

/// Widens a block of `k` columns of `n` rows into panels [n / NR][P][steps][NR][width]. What lies `ahead` bytes
/// on is begun to be read: rows lie so far apart that memory does not bring the next block by itself.
#[inline(always)]
unsafe fn widen<V: Register, W: Stored, const NR: usize, const P: usize>(
    w: *const u8,
    stride: usize,
    n: usize,
    k: usize,
    ahead: usize,
    panel: *mut V::Elem,
) {
    let lanes = V::Elem::LANES;
    let (whole, steps) = (k / lanes, k.div_ceil(lanes));
    // SAFETY: as the caller promises.
    unsafe {
        for r in 0..n.next_multiple_of(NR) {
            let row = w.add(r.min(n - 1) * stride);
            let to = panel.add((r / NR) * NR * steps * lanes + (r % NR) * V::WIDTH);
            for s in 0..whole {
                V::prefetch(row.wrapping_add(ahead + s * lanes * W::SIZE));
                for p in 0..P {
                    let v: V = W::load(row.add((s * lanes + p * V::WIDTH) * W::SIZE));
                    v.store(to.add((p * steps + s) * NR * V::WIDTH));
                }
            }
            if whole < steps {
                let mut tail = [0u64; 16];
                let tail = tail.as_mut_ptr().cast::<u8>();
                for e in 0..lanes {
                    let minus_zero = W::NEGATIVE_ZERO.as_ptr();
                    std::ptr::copy_nonoverlapping(minus_zero, tail.add(e * W::SIZE), W::SIZE);
                }
                let from = row.add(whole * lanes * W::SIZE);
                std::ptr::copy_nonoverlapping(from, tail, (k % lanes) * W::SIZE);
                for p in 0..P {
                    let v: V = W::load(tail.add(p * V::WIDTH * W::SIZE));
                    v.store(to.add((p * steps + whole) * NR * V::WIDTH));
                }
            }
        }
    }
}

/// Goes on with the lanes of `MR` x `NR` outputs over a block of `steps`.
#[inline(always)]
unsafe fn block<V: Register, const MR: usize, const NR: usize, const P: usize>(
    x: *const V::Elem,
    w: *const V::Elem,
    steps: usize,
    lanes: *mut V::Elem,
    from_zero: bool,
) {
    let all = V::Elem::LANES;
    // SAFETY: as the caller promises.
    unsafe {
        for p in 0..P {
            let (mut x, mut w) =
                (x.add(p * steps * MR * V::WIDTH), w.add(p * steps * NR * V::WIDTH));
            let mut acc = [[V::zero(); NR]; MR];
            if !from_zero {
                for m in 0..MR {
                    for n in 0..NR {
                        acc[m][n] = V::load(lanes.add((m * NR + n) * all + p * V::WIDTH));
                    }
                }
            }
            for _ in 0..steps {
                let mut ws = [V::zero(); NR];
                for n in 0..NR {
                    ws[n] = V::load(w.add(n * V::WIDTH));
                }
                for m in 0..MR {
                    let xs = V::load(x.add(m * V::WIDTH));
                    for n in 0..NR {
                        acc[m][n] = acc[m][n].fma(xs, ws[n]);
                    }
                }
                x = x.add(MR * V::WIDTH);
                w = w.add(NR * V::WIDTH);
            }
            for m in 0..MR {
                for n in 0..NR {
                    acc[m][n].store(lanes.add((m * NR + n) * all + p * V::WIDTH));
                }
            }
        }
    }
}

/// Adds the lanes of `rows` outputs of column `n`, four rows at a time.
#[inline(always)]
unsafe fn column_sums<V: Register, const MR: usize, const NR: usize, const P: usize>(
    lanes: *const V::Elem,
    n: usize,
    rows: usize,
    out: *mut V::Elem,
    out_stride: usize,
) {
    // SAFETY: as the caller promises; the block has MR rows.
    unsafe {
        for first in (0..rows).step_by(4) {
            let mut four = [V::zero(); 4];
            for i in 0..4 {
                let m = (first + i).min(MR - 1);
                let mut parts = [V::zero(); P];
                for p in 0..P {
                    let at = (m * NR + n) * V::Elem::LANES + p * V::WIDTH;
                    parts[p] = V::load(lanes.add(at));
                }
                four[i] = fold(parts);
            }
            let sums = V::trees(four);
            for i in 0..4.min(rows - first) {
                *out.add((first + i) * out_stride) = sums[i];
            }
        }
    }
}

/// y = x w^T with blocks of weights widened once into memory that the cache holds.
///
/// # Safety
/// The CPU has V's instructions, panels are MR rows of P parts, and the pointers are good for what the
/// call describes.
#[inline(always)]
pub(super) unsafe fn packed<V, W, const MR: usize, const NR: usize, const P: usize>(
    call: &Packed<V::Elem>,
) where
    V: Register,
    W: Stored,
{
    let lanes = V::Elem::LANES;
    let columns = call.n.div_ceil(NR);
    let blocks = call.k.div_ceil(call.kc);
    // SAFETY: as the caller promises.
    unsafe {
        let panels = call.m.div_ceil(MR);
        for b in 0..blocks {
            let at = b * call.kc;
            let k = call.kc.min(call.k - at);
            let steps = k.div_ceil(lanes);
            // The next block is that of the same rows, or the first one of the next rows.
            let end = b + 1 == blocks;
            let ahead = if end { call.n * call.stride - at * W::SIZE } else { call.kc * W::SIZE };
            let w = call.w.add(at * W::SIZE);
            widen::<V, W, NR, P>(w, call.stride, call.n, k, ahead, call.panel);
            let x = call.x.add(at * call.m_all + call.m_first * steps * lanes);
            // A panel of activations stays in a near cache while those of weights go by.
            for g in 0..panels {
                let x = x.add(g * MR * steps * lanes);
                for c in 0..columns {
                    let w = call.panel.add(c * NR * steps * lanes);
                    let place = if blocks > 1 { c * panels + g } else { 0 };
                    let to = call.lanes.add(place * MR * NR * lanes);
                    block::<V, MR, NR, P>(x, w, steps, to, b == 0);
                    if !end {
                        continue;
                    }
                    let row = g * MR;
                    let rows = MR.min(call.m - row);
                    for n in 0..NR.min(call.n - c * NR) {
                        let row = call.m_first + row;
                        let out = call.out.add(row * call.out_stride + c * NR + n);
                        column_sums::<V, MR, NR, P>(to, n, rows, out, call.out_stride);
                    }
                }
            }
        }
    }
}

/// Weighted sums of rows for one register of columns, for `Q` lists of weights that begin at the same row. Lane
/// l of a reduction takes the rows whose absolute index is l modulo the lanes; `G` lanes at a time are in
/// registers, so that a row is read once for all lists.
///
/// # Safety
/// The CPU has V's instructions; `rows` has as many rows of a register's width, `stride` elements apart, as
/// the longest list has weights; each of `out` has room for a register.
#[inline(always)]
pub(super) unsafe fn mix<V: Register, const Q: usize, const G: usize>(
    w: &[&[V::Elem]; Q],
    rows: *const V::Elem,
    stride: usize,
    first: usize,
    out: &[*mut V::Elem; Q],
) {
    let lanes = V::Elem::LANES;
    let mut n = usize::MAX;
    for q in 0..Q {
        n = n.min(w[q].len());
    }
    // Rows before the first whole group of lanes, and whole groups.
    let head = ((lanes - first % lanes) % lanes).min(n);
    let groups = (n - head) / lanes;
    // SAFETY: as the caller promises.
    unsafe {
        let mut all = [[V::zero(); 16]; Q];
        for j in 0..head {
            let row = V::load(rows.add(j * stride));
            for q in 0..Q {
                let lane = &mut all[q][(first + j) % lanes];
                *lane = lane.fma(V::splat(*w[q].as_ptr().add(j)), row);
            }
        }
        for part in 0..lanes / G {
            let mut acc = [[V::zero(); G]; Q];
            for q in 0..Q {
                acc[q].copy_from_slice(&all[q][part * G..(part + 1) * G]);
            }
            for g in 0..groups {
                let j = head + g * lanes + part * G;
                for l in 0..G {
                    let row = V::load(rows.add((j + l) * stride));
                    for q in 0..Q {
                        let weight = V::splat(*w[q].as_ptr().add(j + l));
                        acc[q][l] = acc[q][l].fma(weight, row);
                    }
                }
            }
            for q in 0..Q {
                all[q][part * G..(part + 1) * G].copy_from_slice(&acc[q]);
            }
        }
        for q in 0..Q {
            for j in head + groups * lanes..w[q].len() {
                let lane = &mut all[q][(first + j) % lanes];
                *lane = lane.fma(V::splat(*w[q].as_ptr().add(j)), V::load(rows.add(j * stride)));
            }
            let mut half = lanes / 2;
            while half > 0 {
                for l in 0..half {
                    all[q][l] = all[q][l].add(all[q][l + half]);
                }
                half /= 2;
            }
            all[q][0].store(out[q]);
        }
    }
}
