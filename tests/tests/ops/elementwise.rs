//! `silu_mul` and `add`.

use assay_reference::ops::add::{self, Add};
use assay_reference::ops::silu_mul::{self, SiluMul};
use assay_reference::{Dtype, Rounding, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, bits, config, holds, setup, whole};
use crate::naive;

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn silu_mul_equals_the_formula(rows in 1usize..5, cols in 1usize..60, seed: u64, dtype in 0usize..3, sd in 0.1f64..30.0) {
        let mut draw = Draw::new(seed);
        let [gate, up] = [sd, 1.0].map(|sd| draw.tensor(STORED[dtype], &[rows, cols], sd));
        let want: Vec<(f64, f64)> = gate.to_f64().iter().zip(up.to_f64()).map(|(g, u)| {
            let y = g / (1.0 + naive::exp(-g)) * u;
            // e^-g carries the error of an argument of size g.
            (y, y.abs() * (1.0 + g.abs()))
        }).collect();
        holds(&setup::<SiluMul, 2>(silu_mul::Params::default(), [("gate", gate), ("up", up)]), &want);
    }

    #[test]
    fn add_equals_the_formula(rows in 1usize..5, cols in 1usize..60, seed: u64, dtype in 0usize..3) {
        let mut draw = Draw::new(seed);
        let [a, b] = [1.0, 20.0].map(|sd| draw.tensor(STORED[dtype], &[rows, cols], sd));
        let want: Vec<(f64, f64)> = a.to_f64().iter().zip(b.to_f64()).map(|(x, y)| (x + y, 0.0)).collect();
        let s = setup::<Add, 2>(add::Params::default(), [("a", a.clone()), ("b", b.clone())]);
        holds(&s, &want);
        // One addition and one rounding: rounded to bf16, f32 and f64 give the same bits.
        let bf = Rounding::nearest(Dtype::Bf16);
        let stored = |x: f64| bf.round(x).to_bits();
        let f32_way: Vec<u64> = whole::<_, f32>(&s).into_iter().map(|v| stored(v.into())).collect();
        if dtype == 0 {
            let f64_way: Vec<u64> = whole::<_, f64>(&s).into_iter().map(stored).collect();
            let close = f32_way.iter().zip(&f64_way).filter(|(a, b)| a != b).count();
            prop_assert!(close * 100 <= f64_way.len(), "{} of {}", close, f64_way.len());
        }
        let swapped = setup::<Add, 2>(add::Params::default(), [("a", b), ("b", a)]);
        prop_assert_eq!(bits(&whole::<_, f64>(&s)), bits(&whole::<_, f64>(&swapped)));
    }
}

#[test]
fn silu_of_what_is_not_finite_follows_ieee() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let gate = [inf, -inf, nan, 0.0, -0.0, -800.0];
    let want = [inf, nan, nan, 0.0, -0.0, -0.0];
    let gate = Tensor::from_f64(Dtype::F32, &[1, 6], &gate);
    let up = Tensor::from_f64(Dtype::F32, &[1, 6], &[1.0; 6]);
    let s = setup::<SiluMul, 2>(silu_mul::Params::default(), [("gate", gate), ("up", up)]);
    let got: Vec<f64> = whole::<_, f32>(&s).into_iter().map(f64::from).collect();
    assert_eq!(bits(&got), bits(&want));
}

/// Below -88.7, e^-gate overflows f32 and the quotient is 0, where the true value is still a normal
/// number: a bound for f32 must hold both.
#[test]
fn a_gate_whose_exponential_overflows_f32_stays_inside_the_ball() {
    for gate in [-88.5, -89.0, -90.0, -95.0, -104.0] {
        let tensor = |v: f64| Tensor::from_f64(Dtype::F32, &[1, 1], &[v]);
        let y = gate / (1.0 + naive::exp(-gate)) * 1e6;
        let args = [("gate", tensor(gate)), ("up", tensor(1e6))];
        let s = setup::<SiluMul, 2>(silu_mul::Params::default(), args);
        holds(&s, &[(y, y.abs() * (1.0 + gate.abs()))]);
    }
}
