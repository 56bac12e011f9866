//! What must hold between two evaluations, whatever the values are.

use assay_reference::arith::Ball;
use assay_reference::dtype::pow2;
use assay_reference::ops::all_reduce::{self, AllReduce};
use assay_reference::ops::matmul::{self, Matmul};
use assay_reference::ops::moe_experts::MoeExperts;
use assay_reference::ops::rms_norm::{self, RmsNorm};
use assay_reference::ops::rope::{Angle, Rope, Scaling};
use assay_reference::ops::silu_mul::{self, SiluMul};
use assay_reference::ops::softmax::{self, Softmax};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::attention::{drawn, heads};
use crate::harness::{Draw, bits, config, setup, whole};
use crate::moe::{Shape, mixture, shapes};
use crate::naive::Heads;
use crate::parallel::parts;
use crate::rope::{scalings, turned};

const U: f64 = 1.0 / (1u64 << 53) as f64;

fn fast<O: Op>(s: &Setup<O>) -> Vec<f64> {
    whole::<_, f32>(s).into_iter().map(f64::from).collect()
}

/// Every f32 and f64 value inside the bound of another way to the same result.
#[track_caller]
fn within<O: Op>(got: &Setup<O>, bound: &Setup<O>) {
    let balls = whole::<_, Ball<24>>(bound);
    for (basis, values) in [("f32", fast(got)), ("f64", whole::<_, f64>(got))] {
        assert_eq!(values.len(), balls.len());
        for (i, (y, b)) in values.iter().zip(&balls).enumerate() {
            assert!((y - b.v).abs() <= b.r, "{} {basis} at {i}: {y} outside {b:?}", O::NAME);
        }
    }
}

/// Indices in another order.
fn shuffled(n: usize, seed: u64) -> Vec<usize> {
    let mut draw = Draw::new(seed);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, draw.below(i + 1));
    }
    order
}

/// The columns of a tensor in another order.
fn columns(t: &Tensor, order: &[usize]) -> Tensor {
    t.map(|i, _| t.get(i / order.len() * order.len() + order[i % order.len()]))
}

fn scaled(t: &Tensor, by: f64) -> Tensor {
    t.map(|_, v| v * by)
}

fn rope(x: &Tensor, position: i32, scaling: Scaling) -> Setup<Rope> {
    let mut s = turned(x.clone(), &[position], 1e4, Angle::F64);
    s.params.scaling = scaling;
    s
}

proptest! {
    #![proptest_config(config(40))]

    /// q k^T depends on the distance of two positions only, under every scaling but the dynamic one,
    /// whose base depends on the call. An angle p f is off by p f (u + 3 u) and its cosine by as much
    /// and 2 u; four of them enter each pair's term, of size |q| |k| factor^2.
    #[test]
    fn rotated_scores_depend_on_the_relative_position(
        m in 0i32..2000, n in 0i32..2000, by in 0i32..30000, seed: u64, scaling in scalings(),
    ) {
        prop_assume!(!matches!(scaling, Scaling::Dynamic { .. }));
        let mut draw = Draw::new(seed);
        let [q, k] = [(); 2].map(|()| draw.tensor(Dtype::F32, &[1, 1, 64], 1.0));
        let score = |m: i32, n: i32| {
            let (q, k) = (whole::<_, f64>(&rope(&q, m, scaling)), whole::<_, f64>(&rope(&k, n, scaling)));
            q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>()
        };
        let (q, k) = (q.to_f64(), k.to_f64());
        let size: f64 = (0..32).map(|i| q[i].hypot(q[i + 32]) * k[i].hypot(k[i + 32])).sum();
        let largest = f64::from(m.max(n) + by);
        let factor = scaling.attention_factor();
        let bound = size * factor * factor * 4.0 * (4.0 * largest + 40.0) * U;
        let (a, b) = (score(m, n), score(m + by, n + by));
        prop_assert!((a - b).abs() <= bound, "{} and {}: {:e} > {:e}", a, b, (a - b).abs(), bound);
    }

    /// A pair's norm grows by the attention factor, which is 1 without YaRN.
    #[test]
    fn rope_keeps_norms_times_the_attention_factor(
        position in 0i32..40000, seed: u64, scaling in scalings(), f32_angle: bool,
    ) {
        let x = Draw::new(seed).tensor(Dtype::F32, &[1, 1, 64], 1.0);
        let values = x.to_f64();
        let mut s = rope(&x, position, scaling);
        s.params.angle = if f32_angle { Angle::F32 } else { Angle::F64 };
        let y = whole::<_, f64>(&s);
        for i in 0..32 {
            let norm = |v: &[f64]| v[i].hypot(v[i + 32]);
            // The factor is an f32 in an f32 table.
            let factor = scaling.attention_factor();
            let factor = if f32_angle { f64::from(factor as f32) } else { factor };
            let want = norm(&values) * factor;
            // cos^2 + sin^2 is 1 to 2 u, each product and sum adds one.
            prop_assert!((norm(&y) - want).abs() <= 8.0 * U * want, "{} for {}", norm(&y), want);
        }
    }

    /// A shift that scores do not hold exactly moves each by u (|x| + |c|), the maximum too, and a
    /// weight by that twice, for its own term and for the sum. Rounded differences of up to 2 most add the same
    /// again for either side.
    #[test]
    fn softmax_ignores_any_shift_within_its_bound(cols in 1usize..60, seed: u64, shift in -100f64..100.0) {
        let over = |x: Tensor| setup::<Softmax, 1>(softmax::Params::default(), [("x", x)]);
        let x = Draw::new(seed).tensor(Dtype::F64, &[1, cols], 8.0);
        let a = whole::<_, f64>(&over(x.clone()));
        let b = whole::<_, f64>(&over(x.map(|_, v| v + shift)));
        let most = x.to_f64().iter().fold(0.0f64, |m, v| m.max(v.abs())) + shift.abs();
        for (p, q) in a.iter().zip(&b) {
            // (2 + 2 + 2) most, for the term and for the sum; e^x and the quotient; cols additions.
            prop_assert!((p - q).abs() <= p * U * (12.0 * most + 20.0 + cols as f64), "{p} {q}");
        }
    }

    /// A multiple of a power of two is added exactly to whole numbers in any dtype that holds the sum.
    #[test]
    fn softmax_ignores_exact_shifts_bitwise(cols in 1usize..60, seed: u64, e in 0i32..7) {
        let over = |x: Tensor| setup::<Softmax, 1>(softmax::Params::default(), [("x", x)]);
        let x = Draw::new(seed).tensor(Dtype::F16, &[2, cols], 8.0).map(|_, v| v.round());
        let moved = x.map(|_, v| v + pow2(e));
        prop_assert_eq!(fast(&over(x.clone())), fast(&over(moved.clone())));
        prop_assert_eq!(whole::<_, f64>(&over(x)), whole::<_, f64>(&over(moved)));
    }

    /// Grouped heads are repeated ones, window or not, in every basis.
    #[test]
    fn grouped_attention_equals_repeated_heads_bitwise(n in heads(), seed: u64) {
        let s = drawn(n, seed, Dtype::Bf16, 1.0);
        let mut repeated = s.clone();
        for arg in ["k", "v"] {
            let t = &s.tensors[arg];
            let shape = [n.s, n.hq, n.d];
            let values: Vec<f64> = (0..n.s * n.hq * n.d).map(|i| {
                let (j, h, c) = (i / n.d / n.hq, i / n.d % n.hq, i % n.d);
                t.get((j * n.hkv + h * n.hkv / n.hq) * n.d + c)
            }).collect();
            repeated.tensors.insert(arg.into(), Tensor::from_f64(Dtype::Bf16, &shape, &values));
        }
        prop_assert_eq!(fast(&s), fast(&repeated));
        prop_assert_eq!(bits(&whole::<_, f64>(&s)), bits(&whole::<_, f64>(&repeated)));
    }

    /// A window that reaches the first key is none.
    #[test]
    fn a_window_of_all_keys_equals_none_bitwise(n in heads(), seed: u64, more in 0usize..3) {
        let open = drawn(Heads { window: None, ..n }, seed, Dtype::Bf16, 1.0);
        let wide = drawn(Heads { window: Some(n.s + more), ..n }, seed, Dtype::Bf16, 1.0);
        prop_assert_eq!(fast(&open), fast(&wide));
        prop_assert_eq!(bits(&whole::<_, f64>(&open)), bits(&whole::<_, f64>(&wide)));
    }

    /// A window of w is an attention over the last w keys alone. The lanes of a sum go by the absolute
    /// position, so bits are equal when a whole number of lanes (16 in f32, 8 in f64) is left out;
    /// otherwise terms are added in another order, which the bound covers.
    #[test]
    fn a_window_equals_the_last_keys_alone(n in heads(), seed: u64, w in 1usize..45, whole_lanes: bool) {
        let behind = n.s.saturating_sub(w);
        let behind = if whole_lanes { behind / 16 * 16 } else { behind };
        let n = Heads { t: 1, window: Some(n.s - behind), ..n };
        let s = drawn(n, seed, Dtype::Bf16, 1.0);
        let mut last = s.clone();
        last.params.window = None;
        for arg in ["k", "v"] {
            last.tensors.insert(arg.into(), s.tensors[arg].slice_outer(behind..n.s));
        }
        if behind % 16 == 0 {
            prop_assert_eq!(fast(&s), fast(&last));
            prop_assert_eq!(bits(&whole::<_, f64>(&s)), bits(&whole::<_, f64>(&last)));
        }
        within(&last, &s);
    }

    /// What lies behind the window may hold anything, NaN too.
    #[test]
    fn keys_behind_the_window_change_nothing_bitwise(n in heads(), seed: u64, w in 1usize..45) {
        let n = Heads { window: Some(w), ..n };
        let s = drawn(n, seed, Dtype::Bf16, 1.0);
        // The first query is at S - T and sees the w keys up to its own.
        let behind = (n.s - n.t + 1).saturating_sub(w) * n.hkv * n.d;
        let mut broken = s.clone();
        for arg in ["k", "v"] {
            let t = s.tensors[arg].map(|i, v| if i < behind { f64::NAN } else { v });
            broken.tensors.insert(arg.into(), t);
        }
        prop_assert_eq!(fast(&s), fast(&broken));
    }

    #[test]
    fn permuting_the_reduced_axis_stays_within_bound(m in 1usize..4, k in 1usize..200, n in 1usize..6, seed: u64) {
        let mut draw = Draw::new(seed);
        let (x, w) = (draw.tensor(Dtype::Bf16, &[m, k], 1.0), draw.tensor(Dtype::Bf16, &[n, k], 0.3));
        let order = shuffled(k, seed);
        let linear = |x: Tensor, w: Tensor| {
            setup::<Matmul, 2>(matmul::Params::default(), [("x", x), ("weight", w)])
        };
        within(&linear(columns(&x, &order), columns(&w, &order)), &linear(x, w));
    }

    /// x 2^n with eps 4^n: every intermediate is multiplied by a power of two.
    #[test]
    fn rms_norm_is_invariant_to_scale_bitwise(rows in 1usize..4, d in 1usize..150, seed: u64, n in -20i32..20) {
        let mut draw = Draw::new(seed);
        let (x, w) = (draw.tensor(Dtype::F32, &[rows, d], 0.7), draw.tensor(Dtype::F32, &[d], 1.0));
        let norm = |x: Tensor, eps: f64| {
            setup::<RmsNorm, 2>(rms_norm::Params::new(eps), [("x", x), ("weight", w.clone())])
        };
        let (a, b) = (norm(x.clone(), 1e-6), norm(scaled(&x, pow2(n)), 1e-6 * pow2(2 * n)));
        prop_assert_eq!(fast(&a), fast(&b));
        prop_assert_eq!(bits(&whole::<_, f64>(&a)), bits(&whole::<_, f64>(&b)));
    }

    /// All weight on one expert: that expert's MLP, by the ops of a dense block, bit for bit in f32 and
    /// under the roundings of bf16.
    #[test]
    fn all_weight_on_one_expert_gives_that_expert(n in shapes(), seed: u64, dense: bool) {
        let dtype = if dense { Dtype::Bf16 } else { Dtype::F32 };
        let mut s = mixture(Shape { k: 1, ..n }, seed, dtype);
        let chosen = Draw::new(seed).below(n.e);
        let routing = s.tensors["routing"].map(|i, _| if i % n.e == chosen { 1.0 } else { 0.0 });
        s.tensors.insert("routing".into(), routing);
        s.policy = MoeExperts::policy(dtype);
        let store = |y: Vec<f32>, shape: &[usize]| {
            let y: Vec<f64> = y.into_iter().map(f64::from).collect();
            Tensor::from_f64(dtype, shape, &y)
        };
        let linear = |x: &Tensor, module: &str| {
            let w = s.tensors[&format!("experts.{chosen}.{module}.weight")].clone();
            let shape = [n.t, w.shape()[0]];
            store(whole(&setup::<Matmul, 2>(matmul::Params::default(), [("x", x.clone()), ("weight", w)])), &shape)
        };
        let (gate, up) = (linear(&s.tensors["x"], "gate_proj"), linear(&s.tensors["x"], "up_proj"));
        let act = setup::<SiluMul, 2>(silu_mul::Params::default(), [("gate", gate), ("up", up)]);
        let act = store(whole(&act), &[n.t, n.width]);
        let want = linear(&act, "down_proj");
        prop_assert_eq!(store(whole(&s), &[n.t, n.h]), want);
    }

    /// Experts and routing columns in another order: the same terms, added in another order. Two terms
    /// commute, so that bits are equal for up to two experts a token; more stay within the bound.
    #[test]
    fn permuting_experts_changes_only_the_order_of_the_sum(n in shapes(), seed: u64) {
        let s = mixture(n, seed, Dtype::F32);
        let order = shuffled(n.e, seed);
        let mut other = s.clone();
        other.tensors.insert("routing".into(), columns(&s.tensors["routing"], &order));
        for (to, from) in order.iter().enumerate() {
            for module in ["gate_proj", "up_proj", "down_proj"] {
                let t = s.tensors[&format!("experts.{from}.{module}.weight")].clone();
                other.tensors.insert(format!("experts.{to}.{module}.weight"), t);
            }
        }
        if n.k <= 2 {
            prop_assert_eq!(fast(&s), fast(&other));
            prop_assert_eq!(bits(&whole::<_, f64>(&s)), bits(&whole::<_, f64>(&other)));
        }
        within(&other, &s);
    }

    /// Ranks that each hold some columns, and zeros for the others, add up to the whole exactly.
    #[test]
    fn a_sum_of_disjoint_parts_is_the_whole(ranks in 1usize..9, cols in 1usize..40, seed: u64, stored: bool) {
        let whole_one = Draw::new(seed).tensor(Dtype::Bf16, &[3, cols], 1.0);
        let of = |r: usize| whole_one.map(|i, v| if i % cols % ranks == r { v } else { 0.0 });
        let mut s = parts::<AllReduce>(all_reduce::Params::default(), (0..ranks).map(of).collect());
        if stored {
            s.policy.round_at("sum", Dtype::Bf16);
        }
        prop_assert_eq!(whole::<_, f64>(&s), whole_one.to_f64());
        prop_assert_eq!(fast(&s), whole_one.to_f64());
        prop_assert!(whole::<_, Ball<24>>(&s).iter().all(|b| b.r == 0.0));
    }

    /// Inputs split over ranks by columns: the partial products add up to the product.
    #[test]
    fn products_of_column_zeroed_inputs_add_up(ranks in 1usize..9, k in 1usize..100, seed: u64) {
        let mut draw = Draw::new(seed);
        let (x, w) = (draw.tensor(Dtype::Bf16, &[2, k], 1.0), draw.tensor(Dtype::Bf16, &[3, k], 0.3));
        let linear = |x: Tensor| {
            setup::<Matmul, 2>(matmul::Params::default(), [("x", x), ("weight", w.clone())])
        };
        let part = |r: usize| {
            let y = whole::<_, f64>(&linear(x.map(|i, v| if i % k % ranks == r { v } else { 0.0 })));
            Tensor::from_f64(Dtype::F64, &[2, 3], &y)
        };
        let s = parts::<AllReduce>(all_reduce::Params::default(), (0..ranks).map(part).collect());
        for (y, b) in whole::<_, f64>(&s).iter().zip(whole::<_, Ball<24>>(&linear(x.clone()))) {
            prop_assert!((y - b.v).abs() <= b.r, "{} outside {:?}", y, b);
        }
    }
}

/// Three experts a token do depend on their order, in the last bits of f32.
#[test]
fn three_experts_show_the_order_of_their_sum() {
    let n = Shape { t: 4, h: 16, width: 12, e: 4, k: 3 };
    let differs = (0..10).any(|seed| {
        let s = mixture(n, seed, Dtype::F32);
        let order = [1, 2, 3, 0];
        let mut other = s.clone();
        other.tensors.insert("routing".into(), columns(&s.tensors["routing"], &order));
        for (to, from) in order.iter().enumerate() {
            for module in ["gate_proj", "up_proj", "down_proj"] {
                let t = s.tensors[&format!("experts.{from}.{module}.weight")].clone();
                other.tensors.insert(format!("experts.{to}.{module}.weight"), t);
            }
        }
        fast(&s) != fast(&other)
    });
    assert!(differs);
}

/// A token's output depends on that token alone, bit by bit, whichever others go to its experts.
#[test]
fn tokens_of_a_mixture_do_not_see_each_other() {
    let n = Shape { t: 5, h: 9, width: 7, e: 6, k: 3 };
    let s = mixture(n, 3, Dtype::F32);
    let all = fast(&s);
    for t in 0..n.t {
        let mut one = s.clone();
        for arg in ["x", "routing"] {
            one.tensors.insert(arg.into(), s.tensors[arg].slice_outer(t..t + 1));
        }
        assert_eq!(fast(&one), all[t * n.h..(t + 1) * n.h], "token {t}");
    }
}
