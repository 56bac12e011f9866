//! What a model split over ranks adds: `all_reduce`, `all_gather`, and `matmul` over ranks.

use assay_reference::arith::Ball;
use assay_reference::ops::all_gather::{self, AllGather};
use assay_reference::ops::all_reduce::{self, AllReduce};
use assay_reference::ops::matmul::{self, Bias, Matmul};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Rounding, Tensor};
use proptest::prelude::*;

use crate::harness::{
    Draw, STORED, bits, config, every_choice_is_reachable, every_fault_shows, holds, setup, whole,
};
use crate::naive;

pub(crate) fn parts<O: Op>(params: O::Params, parts: Vec<Tensor>) -> Setup<O> {
    let mut s = setup::<O, 0>(params, []);
    s.tensors = parts.into_iter().enumerate().map(|(r, t)| (all_reduce::part(r), t)).collect();
    s
}

fn drawn(n: usize, shape: &[usize], seed: u64, dtype: Dtype) -> Setup<AllReduce> {
    let mut draw = Draw::new(seed);
    let all = (0..n).map(|_| draw.tensor(dtype, shape, 1.0)).collect();
    parts(all_reduce::Params::default(), all)
}

/// A row-parallel layer of whole numbers, of which every sum is exact in any basis.
fn whole_numbers(m: usize, k: usize, n: usize, seed: u64, bias: bool) -> Setup<Matmul> {
    let mut draw = Draw::new(seed);
    let mut integers =
        |shape: &[usize], sd: f64| draw.tensor(Dtype::Bf16, shape, sd).map(|_, v| v.round());
    let (x, w) = (integers(&[m, k], 4.0), integers(&[n, k], 4.0));
    let params = matmul::Params { row_parallel: true, ..Default::default() };
    let mut s = setup::<Matmul, 2>(params, [("x", x), ("weight", w)]);
    if bias {
        s.tensors.insert("bias".into(), integers(&[n], 20.0));
    }
    s.policy = Matmul::policy(Dtype::Bf16);
    s
}

fn bf16(x: f64) -> f64 {
    half::bf16::from_f32(x as f32).to_f64()
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn reduce_equals_the_formula(n in 1usize..9, rows in 1usize..5, cols in 1usize..30, seed: u64, dtype in 0usize..3) {
        let s = drawn(n, &[rows, cols], seed, STORED[dtype]);
        let all: Vec<Vec<f64>> = (0..n).map(|r| s.tensors[&all_reduce::part(r)].to_f64()).collect();
        let want: Vec<(f64, f64)> = (0..rows * cols).map(|i| {
            (all.iter().map(|p| p[i]).sum(), all.iter().map(|p| p[i].abs()).sum())
        }).collect();
        holds(&s, &want);
    }

    /// `sum=stored` rounds the running sum before each further part, so that parts of whole numbers
    /// leave no doubt about any bit.
    #[test]
    fn a_stored_sum_rounds_after_each_rank(n in 1usize..9, cols in 1usize..30, seed: u64) {
        let mut s = drawn(n, &[2, cols], seed, Dtype::Bf16);
        for t in s.tensors.values_mut() {
            *t = t.map(|_, v| (v * 300.0).round());
        }
        s.policy.round_at("sum", Dtype::Bf16);
        let parts: Vec<Vec<f64>> = (0..n).map(|r| s.tensors[&all_reduce::part(r)].to_f64()).collect();
        let want: Vec<(f64, f64)> = (0..2 * cols).map(|i| {
            let sum = parts[1..].iter().fold(parts[0][i], |sum, p| bf16(sum) + p[i]);
            (sum, 0.0)
        }).collect();
        holds(&s, &want);
        prop_assert!(whole::<_, Ball<24>>(&s).iter().all(|b| b.r == 0.0));
    }

    #[test]
    fn gather_puts_parts_side_by_side(widths in prop::collection::vec(1usize..9, 1..9), rows in 1usize..5, seed: u64, dtype in 0usize..3) {
        let mut draw = Draw::new(seed);
        let all: Vec<Tensor> = widths.iter().map(|&w| draw.tensor(STORED[dtype], &[rows, w], 1.0)).collect();
        let mut want = Vec::new();
        for r in 0..rows {
            for (t, &w) in all.iter().zip(&widths) {
                want.extend((r * w..(r + 1) * w).map(|i| (t.get(i), 0.0)));
            }
        }
        let s = parts::<AllGather>(all_gather::Params::default(), all);
        holds(&s, &want);
        prop_assert!(whole::<_, Ball<24>>(&s).iter().all(|b| b.r == 0.0));
    }

    #[test]
    fn a_matmul_over_ranks_equals_the_formula(
        m in 1usize..5, k in 1usize..150, n in 1usize..7, ranks in 0usize..9, stored: bool,
        bias: bool, seed: u64,
    ) {
        let mut s = whole_numbers(m, k, n, seed, bias);
        s.params.ranks = ranks;
        s.params.ranks_stored = stored;
        let (x, w) = (s.tensors["x"].to_f64(), s.tensors["weight"].to_f64());
        let b = s.tensors.get("bias").map(Tensor::to_f64);
        // One rank stores nothing on the way.
        let store = |v: f64| if ranks < 2 { v } else { bf16(v) };
        let want: Vec<(f64, f64)> = (0..m * n).map(|i| {
            let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
            let b = b.as_ref().map_or(0.0, |b| b[i % n]);
            (naive::over_ranks(x, w, b, ranks.max(1), stored, store), 0.0)
        }).collect();
        holds(&s, &want);
        prop_assert!(whole::<_, Ball<24>>(&s).iter().all(|b| b.r == 0.0));
    }

    /// With ordinary values, ranks that store in f64 add what one rank computes.
    #[test]
    fn ranks_without_rounding_equal_one(m in 1usize..5, k in 1usize..150, n in 1usize..7, ranks in 2usize..9, seed: u64, dtype in 0usize..3) {
        let mut draw = Draw::new(seed);
        let (x, w) = (draw.tensor(STORED[dtype], &[m, k], 1.0), draw.tensor(STORED[dtype], &[n, k], 0.3));
        let want = naive::matmul(&x.to_f64(), k, n, |i, c| w.get(c * k + i), None);
        let params = matmul::Params { row_parallel: true, ranks, ..Default::default() };
        holds(&setup::<Matmul, 2>(params, [("x", x), ("weight", w)]), &want);
    }

    /// A matmul over ranks is a column-sliced matmul on each, and an all_reduce: bit for bit.
    #[test]
    fn a_matmul_over_ranks_is_one_on_each_and_a_sum(
        part in 1usize..40, n in 1usize..7, ranks in 2usize..9, stored: bool, seed: u64,
    ) {
        let mut draw = Draw::new(seed);
        let k = part * ranks;
        let (x, w) = (draw.tensor(Dtype::Bf16, &[3, k], 1.0), draw.tensor(Dtype::Bf16, &[n, k], 0.3));
        let args = |x: Tensor, w: Tensor| [("x", x), ("weight", w)];
        let params = matmul::Params { row_parallel: true, ranks, ranks_stored: stored, ..Default::default() };
        let mut split = setup::<Matmul, 2>(params, args(x.clone(), w.clone()));
        split.policy = Matmul::policy(Dtype::Bf16);
        let bf = Rounding::nearest(Dtype::Bf16);
        let one = |r: usize| {
            let cut = r * part..(r + 1) * part;
            let s = setup::<Matmul, 2>(matmul::Params::default(), args(x.slice_axis(1, cut.clone()), w.slice_axis(1, cut)));
            let y: Vec<f64> = whole::<_, f32>(&s).into_iter().map(|v| bf.round(v.into())).collect();
            Tensor::from_f64(Dtype::Bf16, &[3, n], &y)
        };
        let mut sum = parts::<AllReduce>(all_reduce::Params::default(), (0..ranks).map(one).collect());
        if stored {
            sum.policy.round_at("sum", Dtype::Bf16);
        }
        prop_assert_eq!(whole::<_, f32>(&split), whole::<_, f32>(&sum));
    }
}

fn reductions() -> impl Iterator<Item = Setup<AllReduce>> {
    (0..8).map(|seed| {
        let mut s = drawn(4, &[4, 40], seed, Dtype::Bf16);
        s.policy = AllReduce::policy(Dtype::Bf16);
        s
    })
}

#[test]
fn every_fault_and_choice_of_reduce_shows() {
    every_fault_shows(reductions());
    every_choice_is_reachable(reductions());
}

#[test]
fn every_fault_of_gather_shows() {
    let mut draw = Draw::new(9);
    let all = (0..3).map(|_| draw.tensor(Dtype::Bf16, &[2, 5], 1.0)).collect();
    every_fault_shows([parts::<AllGather>(all_gather::Params::default(), all)]);
}

fn row_parallel() -> impl Iterator<Item = Setup<Matmul>> {
    (0..6).map(|seed| {
        let mut draw = Draw::new(seed);
        let x = draw.tensor(Dtype::Bf16, &[5, 96], 1.0);
        let w = draw.tensor(Dtype::Bf16, &[12, 96], 0.2);
        let b = draw.tensor(Dtype::Bf16, &[12], 1.0);
        let params = matmul::Params { row_parallel: true, ..Default::default() };
        let mut s = setup::<Matmul, 3>(params, [("x", x), ("weight", w), ("bias", b)]);
        s.policy = Matmul::policy(Dtype::Bf16);
        s
    })
}

#[test]
fn every_choice_of_a_row_parallel_matmul_is_reachable() {
    every_choice_is_reachable(row_parallel());
}

/// A bias that every rank adds is found, and the right one is added once whatever the ranks.
#[test]
fn the_bias_of_a_row_parallel_matmul_is_added_once() {
    for s in row_parallel() {
        let faults = Matmul::faults(&s.params, &s.tensors);
        assert_eq!(faults.iter().filter(|f| f.slug == "bias_times_ranks").count(), 3);
        let once = whole::<_, f64>(&s);
        let mut without = s.clone();
        without.params.bias = Bias::Dropped;
        let without = whole::<_, f64>(&without);
        let bias = s.tensors["bias"].to_f64();
        for ranks in [1, 2, 4, 8] {
            let mut split = s.clone();
            split.policy = Matmul::policy(Dtype::F64);
            split.params.ranks = ranks;
            for (i, (y, y1)) in whole::<_, f64>(&split).into_iter().zip(&once).enumerate() {
                assert!((y - y1).abs() <= 1e-12, "{ranks} ranks at {i}: {y} for {y1}");
                assert!((y - without[i] - bias[i % 12]).abs() <= 1e-12);
            }
            for n in [2, 4, 8] {
                let mut wrong = s.clone();
                wrong.params.bias = Bias::Times(n);
                let y = whole::<_, f64>(&wrong);
                let extra = (n - 1) as f64;
                assert!(
                    y.iter()
                        .enumerate()
                        .all(|(i, y)| { (y - once[i] - extra * bias[i % 12]).abs() <= 1e-11 })
                );
            }
        }
    }
}

/// Over as many ranks the fault is what happens: each stores its part with the bias in it.
#[test]
fn a_bias_of_every_rank_is_stored_with_each_part() {
    let bf = Rounding::nearest(Dtype::Bf16);
    for mut s in row_parallel() {
        s.params.ranks = 2;
        s.params.bias = Bias::Times(2);
        let part = |r: usize| {
            let cut = r * 48..(r + 1) * 48;
            let x = s.tensors["x"].slice_axis(1, cut.clone());
            let w = s.tensors["weight"].slice_axis(1, cut);
            let args = [("x", x), ("weight", w), ("bias", s.tensors["bias"].clone())];
            let one = setup::<Matmul, 3>(matmul::Params::default(), args);
            whole::<_, f32>(&one).into_iter().map(|y| bf.round(y.into()) as f32).collect::<Vec<_>>()
        };
        let want: Vec<f32> = part(0).iter().zip(part(1)).map(|(a, b)| a + b).collect();
        assert_eq!(whole::<_, f32>(&s), want);
    }
}

/// One that is not row-parallel has no ranks to choose.
#[test]
fn only_a_row_parallel_matmul_has_partials() {
    let names = |row_parallel| {
        let params = matmul::Params { row_parallel, ..Default::default() };
        Matmul::knobs(&params).iter().map(|k| k.name).collect::<Vec<_>>()
    };
    assert_eq!(names(false), ["bias"]);
    assert_eq!(names(true), ["bias", "partials"]);
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let f = |shape: &[usize]| Draw::new(0).tensor(Dtype::Bf16, shape, 1.0);
    let reduce = |p: Vec<Tensor>| {
        let s = parts::<AllReduce>(all_reduce::Params::default(), p);
        AllReduce::check(&s.params, &s.tensors)
    };
    let text = reduce(vec![f(&[2, 3]), f(&[2, 4])]).expect_err("refused").to_string();
    assert!(text.contains("part.1") && text.contains("[2, 4]"), "{text}");
    assert!(reduce(Vec::new()).expect_err("refused").to_string().contains("part.0"));
    let gather = |p: Vec<Tensor>| {
        let s = parts::<AllGather>(all_gather::Params::default(), p);
        AllGather::check(&s.params, &s.tensors)
    };
    let text = gather(vec![f(&[2, 3]), f(&[3, 3])]).expect_err("refused").to_string();
    assert!(text.contains("part.1") && text.contains("[3, 3]"), "{text}");
    let mut gap = parts::<AllReduce>(all_reduce::Params::default(), vec![f(&[1]), f(&[1])]);
    let lost = gap.tensors.remove("part.1").expect("two parts");
    gap.tensors.insert("part.2".into(), lost);
    let text = AllReduce::check(&gap.params, &gap.tensors).expect_err("refused").to_string();
    assert!(text.contains("part.2"), "{text}");
    // The output of a scalar has one column.
    assert_eq!(
        bits(&whole::<_, f64>(&parts::<AllReduce>(all_reduce::Params::default(), vec![f(&[])])))
            .len(),
        1
    );
}
