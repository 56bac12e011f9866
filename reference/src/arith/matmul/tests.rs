//! Every path gives the bits of the definition.

use proptest::prelude::*;

use super::*;
use crate::dtype::pow2;

/// Numbers of both signs, some of them zeros of either sign, from a seed.
fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        state >> 33
    };
    (0..n)
        .map(|_| match next() % 32 {
            0 => 0.0,
            1 => -0.0,
            size => (next() as f64 / f64::from(1u32 << 30) - 1.0) * pow2(size as i32 - 16),
        })
        .collect()
}

/// What every path must give: one definition an element.
fn defined<T: Float>(x: &[T], k: usize, w: &[T]) -> Vec<T> {
    x.chunks(k).flat_map(|x| w.chunks(k).map(|w| T::dot(x, w, 0))).collect()
}

fn bits<T: Float>(y: &[T]) -> Vec<u64> {
    y.iter().map(|y| y.wide().to_bits()).collect()
}

fn agrees<T: Float>(m: usize, k: usize, n: usize, seed: u64, dtype: Dtype, threads: usize) {
    let x: Vec<T> = numbers(m * k, seed).into_iter().map(T::of).collect();
    let stored = Tensor::from_f64(dtype, &[n, k], &numbers(n * k, seed ^ 1));
    let own: Vec<T> = stored.to_f64().into_iter().map(T::of).collect();
    let want = bits(&defined(&x, k, &own));
    let made = |r: usize, row: &mut [T]| row.copy_from_slice(&own[r * k..(r + 1) * k]);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    pool.install(|| {
        for isa in Isa::supported() {
            for weights in [Weights::Stored(&stored), Weights::Own(&own), Weights::Made(&made)] {
                let got = bits(&product_with(isa, &x, k, &weights, n));
                assert!(got == want, "{isa}: {m} x {k} x {n}, {dtype}, seed {seed}");
            }
        }
    });
}

const DTYPES: [Dtype; 4] = [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_path_gives_the_bits_of_the_definition(
        m in prop_oneof![1usize..10, 10usize..40, 100usize..260],
        k in prop_oneof![1usize..70, 100usize..300],
        n in prop_oneof![1usize..10, 20usize..110],
        dtype in 0usize..4,
        seed: u64,
        threads in prop_oneof![Just(1usize), Just(2), Just(3), Just(8), Just(64), Just(192)],
    ) {
        agrees::<f32>(m, k, n, seed, DTYPES[dtype], threads);
        agrees::<f64>(m, k, n, seed, DTYPES[dtype], threads);
    }
}

/// Blocks on the reduced axis: more than one, the last of them partly filled, as short and as long as any CPU
/// has them.
#[test]
fn lanes_go_on_from_block_to_block() {
    for k in [256, 512, 513, 1024, 2049, 4099, 8200] {
        agrees::<f32>(41, k, 27, 5, Dtype::Bf16, 2);
        agrees::<f64>(41, k, 27, 5, Dtype::Bf16, 2);
    }
    // The rows in several tasks as well, of which the last is shorter.
    for m in [528, 529, 1061] {
        agrees::<f32>(m, 1030, 50, 5, Dtype::Bf16, 1);
        agrees::<f64>(m, 1030, 50, 5, Dtype::Bf16, 1);
    }
}

/// NaN is NaN by every path, and infinities are themselves; which NaN depends on the CPU.
#[test]
fn nan_and_infinities_are_where_the_definition_has_them() {
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (m, k, n) in [(1, 35, 9), (3, 64, 5), (41, 35, 9)] {
        let (mut x, mut w) = (numbers(m * k, 3), numbers(n * k, 4));
        // Not every row has one: what padding repeats must not spread.
        for (i, s) in special.into_iter().enumerate() {
            x[i * 11 % (m * k)] = s;
            w[(i + 1) * k - 1] = s;
        }
        let x: Vec<f32> = x.into_iter().map(|x| x as f32).collect();
        let w: Vec<f32> = w.into_iter().map(|w| w as f32).collect();
        let kind = |y: &[f32]| -> Vec<_> {
            y.iter().map(|y| (!y.is_nan()).then_some(y.to_bits())).collect()
        };
        let want = kind(&defined(&x, k, &w));
        assert!(want.contains(&None));
        for isa in Isa::supported() {
            let got = kind(&product_with(isa, &x, k, &Weights::Own(&w), n));
            assert!(got == want, "{isa}: {m} x {k} x {n}");
        }
    }
}

/// A lane that underflows to -0 must not become +0 where a row is padded. Every lane has a term, since
/// one that has none is +0.
#[test]
fn a_negative_zero_survives_the_padding() {
    for k in [17usize, 35, 100] {
        let x = vec![1e-30f32; 40 * k];
        let w = vec![-1e-30f32; k];
        let want = bits(&defined(&x, k, &w));
        assert_eq!(want[0], (-0.0f64).to_bits());
        for isa in Isa::supported() {
            for m in [1, 2, 3, 9, 40] {
                let got = product_with(isa, &x[..m * k], k, &Weights::Own(&w), 1);
                assert!(bits(&got) == want[..m], "{isa}: {m} rows of {k}");
            }
        }
    }
}
