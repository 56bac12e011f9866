//! `rms_norm`.

use assay_reference::ops::Setup;
use assay_reference::ops::rms_norm::{Params, RmsNorm};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, config, holds, setup, whole};
use crate::naive;

fn norm(rows: usize, d: usize, seed: u64, dtype: Dtype, eps: f64) -> Setup<RmsNorm> {
    let mut draw = Draw::new(seed);
    let x = draw.tensor(dtype, &[rows, 2, d], 0.7);
    let w = draw.tensor(dtype, &[d], 1.0);
    setup::<RmsNorm, 2>(Params::new(eps), [("x", x), ("weight", w)])
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn equals_the_formula(rows in 1usize..6, d in 1usize..260, seed: u64, dtype in 0usize..3, e in 0usize..3) {
        let eps = [1e-6, 1e-5, 0.1][e];
        let s = norm(rows, d, seed, STORED[dtype], eps);
        let (x, w) = (s.tensors["x"].to_f64(), s.tensors["weight"].to_f64());
        holds(&s, &naive::rms_norm(&x, &w, eps));
    }

    /// With weight 1 and eps 0, the mean square of a row is 1.
    #[test]
    fn makes_the_mean_square_one(d in 1usize..200, seed: u64) {
        let mut s = norm(2, d, seed, Dtype::F32, 0.0);
        s.tensors.insert("weight".into(), Tensor::from_f64(Dtype::F32, &[d], &vec![1.0; d]));
        for row in whole::<_, f64>(&s).chunks(d) {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / d as f64;
            prop_assert!((mean - 1.0).abs() < 1e-13, "{}", mean);
        }
    }

    /// A negative weight flips the sign and nothing else.
    #[test]
    fn is_odd_in_the_weight(d in 1usize..100, seed: u64) {
        let s = norm(2, d, seed, Dtype::Bf16, 1e-6);
        let mut other = s.clone();
        other.tensors.insert("weight".into(), s.tensors["weight"].map(|_, v| -v));
        let flipped: Vec<f32> = whole::<_, f32>(&other).into_iter().map(|v| -v).collect();
        prop_assert_eq!(whole::<_, f32>(&s), flipped);
    }
}

#[test]
fn a_row_of_zeros_is_zero_with_eps_and_nan_without() {
    for (eps, want) in [(1e-6, 0.0), (0.0, f64::NAN)] {
        let zeros = Tensor::from_f64(Dtype::F32, &[1, 4], &[0.0; 4]);
        let ones = Tensor::from_f64(Dtype::F32, &[4], &[1.0; 4]);
        let s = setup::<RmsNorm, 2>(Params::new(eps), [("x", zeros), ("weight", ones)]);
        holds(&s, &[(want, 0.0); 4]);
    }
}

/// A mean square that is a power of 4 leaves no doubt about the result.
#[test]
fn powers_of_four_are_exact() {
    let x = Tensor::from_f64(Dtype::Bf16, &[1, 4], &[4.0, -4.0, 4.0, 4.0]);
    let w = Tensor::from_f64(Dtype::Bf16, &[4], &[1.5, 2.0, -3.0, 0.25]);
    let s = setup::<RmsNorm, 2>(Params::new(0.0), [("x", x), ("weight", w)]);
    assert_eq!(whole::<_, f64>(&s), [1.5, -2.0, -3.0, 0.25]);
    let balls = whole::<_, assay_reference::arith::Ball<24>>(&s);
    assert!(balls.iter().all(|b| b.r == 0.0), "{balls:?}");
}
