//! `rope`.

use assay_reference::ops::Setup;
use assay_reference::ops::rope::{Angle, Params, Rope};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, bits, config, holds, setup, whole};
use crate::naive;

fn turned(x: Tensor, positions: &[i32], theta: f64, angle: Angle) -> Setup<Rope> {
    let t = Tensor::from_i32(&[positions.len()], positions);
    setup::<Rope, 2>(Params::new(theta, angle), [("x", x), ("positions", t)])
}

const THETAS: [f64; 3] = [1e4, 1e6, 5e6];

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn equals_the_formula(
        positions in prop::collection::vec(0i32..40000, 1..5),
        heads in 1usize..4, half in 1usize..65, seed: u64, dtype in 0usize..3, theta in 0usize..3,
        f32_angle: bool,
    ) {
        let mut draw = Draw::new(seed);
        let x = draw.tensor(STORED[dtype], &[positions.len(), heads, 2 * half], 1.0);
        let angle = if f32_angle { Angle::F32 } else { Angle::F64 };
        let values = x.to_f64();
        let s = turned(x, &positions, THETAS[theta], angle);
        let wide: Vec<i64> = positions.iter().map(|&p| p.into()).collect();
        holds(&s, &naive::rope(&values, (heads, 2 * half), &wide, THETAS[theta], f32_angle));
    }

    #[test]
    fn keeps_the_norm_of_every_pair(position in 0i32..40000, half in 1usize..65, seed: u64) {
        let x = Draw::new(seed).tensor(Dtype::F32, &[1, 1, 2 * half], 1.0);
        let values = x.to_f64();
        let y = whole::<_, f64>(&turned(x, &[position], 1e6, Angle::F32));
        for i in 0..half {
            let norm = |v: &[f64]| v[i].hypot(v[i + half]);
            prop_assert!((norm(&y) - norm(&values)).abs() <= 1e-14 * norm(&values).max(1e-300));
        }
    }

    /// q k^T depends on the distance of two positions only.
    #[test]
    fn scores_depend_on_the_relative_position(m in 0i32..2000, n in 0i32..2000, by in 0i32..2000, seed: u64) {
        let mut draw = Draw::new(seed);
        let (q, k) = (draw.tensor(Dtype::F32, &[1, 1, 64], 1.0), draw.tensor(Dtype::F32, &[1, 1, 64], 1.0));
        let score = |m: i32, n: i32| {
            let q = whole::<_, f64>(&turned(q.clone(), &[m], 1e4, Angle::F64));
            let k = whole::<_, f64>(&turned(k.clone(), &[n], 1e4, Angle::F64));
            q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>()
        };
        let size: f64 = q.to_f64().iter().zip(k.to_f64()).map(|(a, b)| (a * b).abs()).sum();
        prop_assert!((score(m, n) - score(m + by, n + by)).abs() <= 1e-11 * (1.0 + size));
    }
}

#[test]
fn position_0_changes_nothing() {
    for angle in [Angle::F32, Angle::F64] {
        let x = Draw::new(3).tensor(Dtype::Bf16, &[1, 2, 8], 1.0);
        let s = turned(x.clone(), &[0], 1e6, angle);
        assert_eq!(bits(&whole::<_, f64>(&s)), bits(&x.to_f64()));
        assert!(whole::<_, assay_reference::arith::Ball<24>>(&s).iter().all(|b| b.r == 0.0));
    }
}

/// transformers' f32 angle differs visibly from the true one at the end of a long context.
#[test]
fn the_f32_angle_is_visible_at_position_32767() {
    let x = Tensor::from_f64(Dtype::F32, &[1, 1, 128], &[1.0; 128]);
    let at = |angle| whole::<_, f64>(&turned(x.clone(), &[32767], 1e6, angle));
    let most = at(Angle::F32).into_iter().zip(at(Angle::F64)).map(|(a, b)| (a - b).abs());
    let most = most.fold(0.0, f64::max);
    assert!((1e-4..1e-2).contains(&most), "{most}");
}
