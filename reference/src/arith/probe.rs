//! What the machine can do at most, measured as the kernels use it: fused multiply-adds in registers, and
//! memory that is read once. Benches quote their figures as fractions of these.

#![expect(unsafe_code, reason = "calls of code compiled for detected CPU features")]

use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::isa::Isa;
use super::simd::{Float, Register};

/// Independent accumulators: as many as hide the latency of an FMA.
const CHAINS: usize = 12;
/// Multiply-adds of each chain in a sample.
const STEPS: usize = 1 << 20;

/// Fused multiply-adds of one thread's registers; gives how many there were.
#[inline(always)]
unsafe fn chains<V: Register>() -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        let one: V::Elem = std::hint::black_box(V::Elem::of(0.999_999));
        let (a, b) = (V::splat(one), V::splat(one));
        let mut acc = [V::zero(); CHAINS];
        for _ in 0..STEPS {
            for x in &mut acc {
                // acc a + b, which stays finite.
                *x = b.fma(*x, a);
            }
        }
        for x in acc {
            std::hint::black_box(x.tree());
        }
    }
    CHAINS * STEPS * V::WIDTH
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn avx512<T: Float>() -> usize {
    // SAFETY: as the caller promises.
    unsafe { chains::<T::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: Float>() -> usize {
    // SAFETY: as the caller promises.
    unsafe { chains::<T::Avx2>() }
}

fn flops<T: Float>() -> usize {
    // SAFETY: the instructions were detected.
    let fmas = unsafe {
        match Isa::current() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::<T>(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::<T>(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => chains::<T::Neon>(),
            _ => 0,
        }
    };
    2 * fmas
}

fn peak<T: Float>() -> f64 {
    let threads = rayon::current_num_threads();
    let start = Instant::now();
    let all: usize = (0..threads).into_par_iter().with_max_len(1).map(|_| flops::<T>()).sum();
    per_second(all, start.elapsed()) / 1e9
}

/// f32 operations of all threads of the pool, GFLOP/s; a fused multiply-add is two.
pub fn peak_f32() -> f64 {
    peak::<f32>()
}

/// The same in f64.
pub fn peak_f64() -> f64 {
    peak::<f64>()
}

/// How fast all threads read `bytes` once, GB/s. Each reads four streams that lie far apart, which memory
/// delivers faster than one.
pub fn read_rate(bytes: &[u8]) -> f64 {
    const TASK: usize = 1 << 20;
    let start = Instant::now();
    let sum: u64 = bytes
        .par_chunks(TASK)
        .map(|task| {
            let (words, _) = task.as_chunks::<8>();
            let quarter = words.len() / 4;
            let stream = |s: usize| &words[s * quarter..(s + 1) * quarter];
            let mut sums = [0u64; 4];
            for (((a, b), c), d) in stream(0).iter().zip(stream(1)).zip(stream(2)).zip(stream(3)) {
                for (sum, word) in sums.iter_mut().zip([a, b, c, d]) {
                    *sum ^= u64::from_ne_bytes(*word);
                }
            }
            sums.iter().fold(0, |a, b| a ^ b)
        })
        .reduce(|| 0, |a, b| a ^ b);
    std::hint::black_box(sum);
    per_second(bytes.len(), start.elapsed()) / 1e9
}

fn per_second(n: usize, time: Duration) -> f64 {
    n as f64 / time.as_secs_f64()
}
