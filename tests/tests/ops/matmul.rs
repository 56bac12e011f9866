//! `matmul`.

use assay_reference::ops::Setup;
use assay_reference::ops::matmul::{Layout, Matmul, Params};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, bits, config, holds, setup, whole};
use crate::naive;

#[derive(Clone, Copy, Debug)]
struct Dims {
    m: usize,
    k: usize,
    n: usize,
}

fn dims() -> impl Strategy<Value = Dims> {
    (1usize..9, prop_oneof![1usize..40, 120usize..300], 1usize..12).prop_map(|(m, k, n)| Dims {
        m,
        k,
        n,
    })
}

fn linear(d: Dims, seed: u64, dtype: Dtype, bias: bool) -> Setup<Matmul> {
    let mut draw = Draw::new(seed);
    let x = draw.tensor(dtype, &[d.m, d.k], 1.0);
    let w = draw.tensor(dtype, &[d.n, d.k], 0.1);
    let mut s = setup::<Matmul, 2>(Params::default(), [("x", x), ("weight", w)]);
    if bias {
        s.tensors.insert("bias".into(), draw.tensor(dtype, &[d.n], 3.0));
    }
    s
}

/// The same product with the weight stored as [K, N].
fn transposed(s: &Setup<Matmul>, d: Dims) -> Setup<Matmul> {
    let w = s.tensors["weight"].to_f64();
    let flipped: Vec<f64> = (0..d.k * d.n).map(|i| w[i % d.n * d.k + i / d.n]).collect();
    let mut out = s.clone();
    let dtype = s.tensors["weight"].dtype();
    out.tensors.insert("weight".into(), Tensor::from_f64(dtype, &[d.k, d.n], &flipped));
    out.params.layout = Layout::InOut;
    out
}

fn scaled(s: &Setup<Matmul>, arg: &str, by: f64) -> Setup<Matmul> {
    let mut out = s.clone();
    out.tensors.insert(arg.into(), s.tensors[arg].map(|_, v| v * by));
    out
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn equals_the_formula(d in dims(), seed: u64, dtype in 0usize..3, bias: bool) {
        let s = linear(d, seed, STORED[dtype], bias);
        let (x, w) = (s.tensors["x"].to_f64(), s.tensors["weight"].to_f64());
        let b = s.tensors.get("bias").map(Tensor::to_f64);
        let want = naive::matmul(&x, d.k, d.n, |k, n| w[n * d.k + k], b.as_deref());
        holds(&s, &want);
        let other = transposed(&s, d);
        holds(&other, &want);
        prop_assert_eq!(bits(&whole::<_, f64>(&s)), bits(&whole::<_, f64>(&other)));
    }

    #[test]
    fn scaling_by_a_power_of_two_is_exact(d in dims(), seed: u64, e in -20i32..20) {
        let s = linear(d, seed, Dtype::F32, false);
        let by = assay_reference::dtype::pow2(e);
        for arg in ["x", "weight"] {
            let big = scaled(&s, arg, by);
            let want: Vec<f64> = whole::<_, f64>(&s).iter().map(|v| v * by).collect();
            prop_assert_eq!(bits(&whole::<_, f64>(&big)), bits(&want));
            let fast = whole::<_, f32>(&s).into_iter().map(|v| f64::from(v) * by);
            let got: Vec<f64> = whole::<_, f32>(&big).into_iter().map(f64::from).collect();
            prop_assert_eq!(bits(&got), bits(&fast.collect::<Vec<_>>()));
        }
    }

    #[test]
    fn a_row_alone_equals_the_row_in_the_batch(d in dims(), seed: u64) {
        let s = linear(d, seed, Dtype::Bf16, true);
        let all = whole::<_, f32>(&s);
        for m in 0..d.m {
            let mut alone = s.clone();
            alone.tensors.insert("x".into(), s.tensors["x"].slice_outer(m..m + 1));
            prop_assert_eq!(&whole::<_, f32>(&alone)[..], &all[m * d.n..(m + 1) * d.n]);
        }
    }

    #[test]
    fn integers_are_exact_in_any_basis(d in dims(), seed: u64) {
        let mut s = linear(d, seed, Dtype::Bf16, true);
        for t in s.tensors.values_mut() {
            *t = t.map(|_, v| (v * 3.0).round());
        }
        let want: Vec<f64> = whole(&s);
        let got: Vec<f64> = whole::<_, f32>(&s).into_iter().map(f64::from).collect();
        prop_assert!(want.iter().zip(&got).all(|(a, b)| a == b));
        let balls = whole::<_, assay_reference::arith::Ball<24>>(&s);
        prop_assert!(balls.iter().all(|b| b.r == 0.0), "integers leave no doubt");
    }
}

#[test]
fn what_is_not_finite_follows_ieee() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (x, w, want) in [
        ([inf, 1.0], [1.0, 1.0], inf),
        ([inf, 1.0], [-1.0, 1.0], -inf),
        ([inf, 1.0], [0.0, 1.0], nan),
        ([inf, inf], [1.0, -1.0], nan),
        ([nan, 1.0], [0.0, 1.0], nan),
    ] {
        let s = setup::<Matmul, 2>(
            Params::default(),
            [
                ("x", Tensor::from_f64(Dtype::F32, &[1, 2], &x)),
                ("weight", Tensor::from_f64(Dtype::F32, &[1, 2], &w)),
            ],
        );
        holds(&s, &[(want, 0.0)]);
    }
}
