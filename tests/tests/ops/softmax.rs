//! `softmax`.

use assay_reference::ops::Setup;
use assay_reference::ops::softmax::{Params, Softmax};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, bits, config, holds, setup, whole};
use crate::naive;

fn over(x: Tensor) -> Setup<Softmax> {
    setup::<Softmax, 1>(Params::default(), [("x", x)])
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn equals_the_formula(rows in 1usize..5, cols in 1usize..150, seed: u64, dtype in 0usize..3, sd in 0.1f64..20.0) {
        let x = Draw::new(seed).tensor(STORED[dtype], &[rows, cols], sd);
        let want = naive::softmax(&x.to_f64(), cols);
        holds(&over(x), &want);
    }

    #[test]
    fn sums_to_one(cols in 1usize..300, seed: u64) {
        let x = Draw::new(seed).tensor(Dtype::F32, &[2, cols], 3.0);
        for row in whole::<_, f64>(&over(x)).chunks(cols) {
            prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-14 * cols as f64);
            prop_assert!(row.iter().all(|p| (0.0..=1.0).contains(p)));
        }
    }

    /// A shift of all scores changes nothing, bit by bit where the shifted scores are exact.
    #[test]
    fn a_common_shift_cancels(cols in 1usize..60, seed: u64, shift in -50i32..50) {
        let x = Draw::new(seed).tensor(Dtype::F32, &[2, cols], 8.0).map(|_, v| v.round());
        let shifted = x.map(|_, v| v + f64::from(shift));
        prop_assert_eq!(bits(&whole::<_, f64>(&over(x.clone()))), bits(&whole::<_, f64>(&over(shifted.clone()))));
        prop_assert_eq!(whole::<_, f32>(&over(x)), whole::<_, f32>(&over(shifted)));
    }
}

#[test]
fn masked_rows_and_broken_rows_have_their_rules() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (row, want) in [
        ([0.0, -inf, 0.0], [0.5, 0.0, 0.5]),
        ([-inf, 7.0, -inf], [0.0, 1.0, 0.0]),
        ([-inf, -inf, -inf], [nan; 3]),
        ([1.0, nan, 2.0], [nan; 3]),
        ([nan, -inf, -inf], [nan; 3]),
        ([1.0, inf, 2.0], [nan; 3]),
        ([9e4, 0.0, 9e4], [0.5, 0.0, 0.5]),
    ] {
        let x = Tensor::from_f64(Dtype::F32, &[1, 3], &row);
        assert_eq!(bits(&whole::<_, f64>(&over(x.clone()))), bits(&want), "{row:?}");
        let fast: Vec<f64> = whole::<_, f32>(&over(x)).into_iter().map(f64::from).collect();
        assert_eq!(bits(&fast), bits(&want), "{row:?}");
    }
}
