//! `attention`.

use assay_reference::arith::Ball;
use assay_reference::dtype::pow2;
use assay_reference::ops::attention::{Attention, Combine, Params};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, config, holds, setup, whole};
use crate::naive::{self, Heads};

pub(crate) fn heads() -> impl Strategy<Value = Heads> {
    let d = prop_oneof![Just(2usize), Just(8), Just(33)];
    let window = prop_oneof![2 => Just(None), 3 => (1usize..50).prop_map(Some)];
    (1usize..6, 0usize..40, 1usize..4, 1usize..4, d, window).prop_map(
        |(t, cached, groups, hkv, d, window)| Heads {
            t,
            s: t + cached,
            hq: hkv * groups,
            hkv,
            d,
            window,
        },
    )
}

pub(crate) fn drawn(n: Heads, seed: u64, dtype: Dtype, sd: f64) -> Setup<Attention> {
    let mut draw = Draw::new(seed);
    let q = draw.tensor(dtype, &[n.t, n.hq, n.d], sd);
    let k = draw.tensor(dtype, &[n.s, n.hkv, n.d], sd);
    let v = draw.tensor(dtype, &[n.s, n.hkv, n.d], 1.0);
    let scale = 1.0 / (n.d as f64).sqrt();
    let params = Params { window: n.window, ..Params::new(scale) };
    setup::<Attention, 3>(params, [("q", q), ("k", k), ("v", v)])
}

fn with(s: &Setup<Attention>, arg: &str, t: Tensor) -> Setup<Attention> {
    let mut out = s.clone();
    out.tensors.insert(arg.into(), t);
    out
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn equals_the_formula(n in heads(), seed: u64, dtype in 0usize..3, sd in 0.2f64..3.0) {
        let s = drawn(n, seed, STORED[dtype], sd);
        let [q, k, v] = ["q", "k", "v"].map(|a| s.tensors[a].to_f64());
        holds(&s, &naive::attention(&q, &k, &v, n, s.params.scale));
    }

    /// The weights sum to 1: values of 1 give 1, and of a constant the constant.
    #[test]
    fn values_of_one_give_one(n in heads(), seed: u64) {
        let s = drawn(n, seed, Dtype::F32, 2.0);
        let ones = with(&s, "v", s.tensors["v"].map(|_, _| 1.0));
        for (y, ball) in whole::<_, f32>(&ones).iter().zip(whole::<_, Ball<24>>(&ones)) {
            prop_assert!((f64::from(*y) - 1.0).abs() <= ball.r + 1e-15, "{} {:?}", y, ball);
            // The roundings of two sums and a division: no weight's error, no rescaling.
            let units = 2.0 * n.s as f64 + 5.0;
            prop_assert!(ball.r <= units * 1.01 * pow2(-24), "{:?}", ball);
        }
        for y in whole::<_, f64>(&ones) {
            prop_assert!((y - 1.0).abs() < 1e-14 * n.s as f64, "{}", y);
        }
    }

    #[test]
    fn grouped_heads_equal_repeated_heads_bitwise(n in heads(), seed: u64) {
        let s = drawn(n, seed, Dtype::Bf16, 1.0);
        let mut repeated = s.clone();
        for arg in ["k", "v"] {
            let t = s.tensors[arg].to_f64();
            let mut out = Vec::new();
            for row in t.chunks(n.hkv * n.d) {
                for h in 0..n.hq {
                    let kv = h / (n.hq / n.hkv);
                    out.extend(&row[kv * n.d..(kv + 1) * n.d]);
                }
            }
            let t = Tensor::from_f64(Dtype::Bf16, &[n.s, n.hq, n.d], &out);
            repeated.tensors.insert(arg.into(), t);
        }
        prop_assert_eq!(whole::<_, f32>(&s), whole::<_, f32>(&repeated));
    }

    #[test]
    fn future_tokens_do_not_change_the_past_bitwise(n in heads(), seed: u64, keep in 1usize..6) {
        let s = drawn(n, seed, Dtype::F32, 1.0);
        let keep = keep.min(n.t);
        let visible = (n.s - n.t + keep) * n.hkv * n.d;
        let mut other = s.clone();
        for arg in ["k", "v"] {
            // A NaN that is masked reaches nothing.
            let broken = s.tensors[arg].map(|i, v| if i < visible { v } else { f64::NAN });
            other.tensors.insert(arg.into(), broken);
        }
        let past = keep * n.hq * n.d;
        prop_assert_eq!(&whole::<_, f32>(&s)[..past], &whole::<_, f32>(&other)[..past]);
        // The same without the future at all.
        let mut short = s.clone();
        short.tensors.insert("q".into(), s.tensors["q"].slice_outer(0..keep));
        for arg in ["k", "v"] {
            short.tensors.insert(arg.into(), s.tensors[arg].slice_outer(0..n.s - n.t + keep));
        }
        prop_assert_eq!(&whole::<_, f32>(&s)[..past], &whole::<_, f32>(&short)[..]);
    }

    #[test]
    fn chunks_equal_the_whole_bitwise(n in heads(), seed: u64) {
        let s = drawn(n, seed, Dtype::Bf16, 1.0);
        let all = whole::<_, f32>(&s);
        let row = n.hq * n.d;
        for t in 0..n.t {
            let mut one = s.clone();
            one.tensors.insert("q".into(), s.tensors["q"].slice_outer(t..t + 1));
            for arg in ["k", "v"] {
                one.tensors.insert(arg.into(), s.tensors[arg].slice_outer(0..n.s - n.t + t + 1));
            }
            prop_assert_eq!(&whole::<_, f32>(&one)[..], &all[t * row..(t + 1) * row]);
        }
    }

    /// v enters linearly: a power of two passes through exactly.
    #[test]
    fn scaling_v_by_a_power_of_two_is_exact(n in heads(), seed: u64, e in -8i32..8) {
        let s = drawn(n, seed, Dtype::F32, 1.0);
        let by = pow2(e);
        let scaled = with(&s, "v", s.tensors["v"].map(|_, v| v * by));
        let want: Vec<f64> = whole::<_, f64>(&s).into_iter().map(|y| y * by).collect();
        prop_assert_eq!(whole::<_, f64>(&scaled), want);
    }
}

/// Only the newest key is visible to a query at position 0: its value, up to the final division.
#[test]
fn the_first_query_of_a_prompt_copies_the_first_value() {
    let n = Heads { t: 3, s: 3, hq: 4, hkv: 2, d: 8, window: None };
    let s = drawn(n, 5, Dtype::Bf16, 3.0);
    let v = s.tensors["v"].to_f64();
    let y = whole::<_, Ball<24>>(&s);
    for h in 0..n.hq {
        for i in 0..n.d {
            let (got, want) = (y[h * n.d + i], v[h / 2 * n.d + i]);
            assert_eq!(got.v, want, "head {h} element {i}");
            // Far below what bf16 shows.
            assert!(got.r <= 6.0 * want.abs() * pow2(-24), "{got:?}");
        }
    }
}

/// Equal scores over a power of two of keys: exact by division and by reciprocal, with rescaling and
/// without, so that ties show how they are stored and a denominator that is off by 1e-6 shows.
#[test]
fn a_mean_over_a_power_of_two_has_no_room() {
    let n = Heads { t: 1, s: 4, hq: 1, hkv: 1, d: 2, window: None };
    let mut s = drawn(n, 3, Dtype::Bf16, 1.0);
    let zeros = |t: &Tensor| t.map(|_, _| 0.0);
    s.tensors.insert("q".into(), zeros(&s.tensors["q"]));
    // Means of 1 + 1/256, between two bf16 values, and of 5.
    let v = [1.0, 5.0, 1.0, 4.0, 1.015625, 6.0, 1.0, 5.0];
    s.tensors.insert("v".into(), Tensor::from_f64(Dtype::Bf16, &[4, 1, 2], &v));
    let exact = whole::<_, Ball<24>>(&s);
    assert_eq!([exact[0].v, exact[1].v], [1.00390625, 5.0]);
    assert!(exact.iter().all(|b| b.r == 0.0), "{exact:?}");
    let lse = Params { combine: Combine::Lse, ..s.params.clone() };
    let merged = whole::<_, Ball<24>>(&Setup { params: lse, ..s.clone() });
    assert!(merged[0].r > 0.0, "logarithms are rounded: {merged:?}");
    // Three keys: a reciprocal of 3 is rounded.
    for arg in ["k", "v"] {
        s.tensors.insert(arg.into(), s.tensors[arg].slice_outer(0..3));
    }
    let third = whole::<_, Ball<24>>(&s)[1];
    assert!(third.v == 5.0 && third.r > 0.0 && third.r <= 3.1 * 5.0 * pow2(-24), "{third:?}");
}

/// Windows with a cache and without, narrower than every tile of a kernel and wider.
#[test]
fn every_fault_of_a_window_shows() {
    let cases = [(1usize, 40, 20), (6, 40, 3), (20, 20, 9), (30, 90, 70)].into_iter().flat_map(
        |(t, s, w)| {
            (0..3).map(move |seed| {
                let n = Heads { t, s, hq: 4, hkv: 2, d: 16, window: Some(w) };
                let mut s = drawn(n, seed, Dtype::Bf16, 1.5);
                s.policy = Attention::policy(Dtype::Bf16);
                s
            })
        },
    );
    every_window_fault_shows(cases);
}

/// The faults of a case that a window concerns, each shown in every case that offers it.
fn every_window_fault_shows(cases: impl Iterator<Item = Setup<Attention>>) {
    let mut slugs = std::collections::BTreeSet::new();
    for case in cases {
        let oracle = whole::<_, Ball<24>>(&case);
        for fault in Attention::faults(&case.params, &case.tensors) {
            if !(fault.slug.contains("window") || fault.slug == "first_key_dropped") {
                continue;
            }
            slugs.insert(fault.slug);
            let mut wrong = case.clone();
            (fault.edit)(&mut wrong);
            let got = whole::<_, f64>(&wrong);
            let shows = got.iter().zip(&oracle).any(|(g, b)| (g - b.v).abs() > b.r);
            assert!(shows, "{fault:?} {} changes nothing: {:?}", fault.key, case.params.window);
        }
    }
    let want = [
        "first_key_dropped",
        "window_honoured",
        "window_ignored",
        "window_one_narrower",
        "window_one_wider",
    ];
    assert_eq!(slugs.into_iter().collect::<Vec<_>>(), want);
}
