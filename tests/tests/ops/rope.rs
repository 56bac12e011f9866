//! `rope`.

use assay_reference::ops::rope::{Angle, Params, Rope, Scaling, Yarn, mscale};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{
    Draw, STORED, bits, config, every_choice_is_reachable, every_fault_shows, holds, setup, whole,
};
use crate::naive::{self, Turns};

pub(crate) fn turned(x: Tensor, positions: &[i32], theta: f64, angle: Angle) -> Setup<Rope> {
    let t = Tensor::from_i32(&[positions.len()], positions);
    setup::<Rope, 2>(Params::new(theta, angle), [("x", x), ("positions", t)])
}

const THETAS: [f64; 3] = [1e4, 1e6, 5e6];

/// Every scaling, with constants as released models have them and beyond.
pub(crate) fn scalings() -> impl Strategy<Value = Scaling> {
    let factor = || prop_oneof![Just(1.0), Just(2.0), Just(4.0), 1f64..40.0];
    // Slow rotations over a long context reach beyond the last pair, where the ramp is cut.
    let slow = prop_oneof![0.01f64..8.0, 0.001f64..0.01];
    let original = prop_oneof![1usize..40000, 1usize..1 << 30];
    let yarn = (factor(), original, slow, 0.0f64..60.0, any::<bool>(), 0.5f64..2.0).prop_map(
        |(factor, original, slow, more, truncate, given)| {
            Scaling::Yarn(Yarn {
                factor,
                original_max_position: original,
                beta_fast: slow + more,
                beta_slow: slow,
                truncate,
                attention_factor: if more < 30.0 { mscale(factor, 1.0) } else { given },
            })
        },
    );
    prop_oneof![
        1 => Just(Scaling::Default),
        1 => factor().prop_map(|factor| Scaling::Linear { factor }),
        1 => (factor(), 1usize..40000)
            .prop_map(|(factor, max_position)| Scaling::Dynamic { factor, max_position }),
        2 => yarn,
    ]
}

/// The frequencies and the factor by the second implementation.
fn naive_turns(scaling: Scaling, theta: f64, d: usize, len: usize, f32_angle: bool) -> Turns {
    let (frequencies, factor) = match scaling {
        Scaling::Default => (naive::inverse_frequencies(theta, d), 1.0),
        Scaling::Linear { factor } => (naive::linear_frequencies(theta, d, factor), 1.0),
        Scaling::Dynamic { factor, max_position } => {
            (naive::dynamic_frequencies(theta, d, factor, max_position, len), 1.0)
        }
        Scaling::Yarn(y) => {
            let constants = naive::Yarn {
                factor: y.factor,
                original: y.original_max_position,
                beta_fast: y.beta_fast,
                beta_slow: y.beta_slow,
                truncate: y.truncate,
            };
            (naive::yarn_frequencies(theta, d, constants), y.attention_factor)
        }
    };
    // An f32 table is multiplied by the factor rounded to f32.
    let factor = if f32_angle { f64::from(factor as f32) } else { factor };
    Turns { frequencies, factor, f32_angle }
}

proptest! {
    #![proptest_config(config(80))]

    #[test]
    fn scaled_equals_the_formula(
        positions in prop::collection::vec(0i32..40000, 1..5), scaling in scalings(),
        heads in 1usize..3, half in 2usize..65, seed: u64, dtype in 0usize..3, theta in 0usize..3,
    ) {
        let d = 2 * half;
        let x = Draw::new(seed).tensor(STORED[dtype], &[positions.len(), heads, d], 1.0);
        let values = x.to_f64();
        let wide: Vec<i64> = positions.iter().map(|&p| p.into()).collect();
        let len = wide.iter().max().map_or(0, |p| *p as usize + 1);
        let mut s = turned(x, &positions, THETAS[theta], Angle::F64);
        s.params.scaling = scaling;
        let turns = naive_turns(scaling, THETAS[theta], d, len, false);
        holds(&s, &naive::rope(&values, (heads, d), &wide, &turns));
    }

    /// The same by way of f32. Its roundings have ties that two f64 computations of a frequency can
    /// take differently: then one ulp of f32 lies between them, times the position.
    #[test]
    fn the_scaled_f32_angle_equals_the_formula(
        position in 0i32..40000, scaling in scalings(), half in 2usize..65, seed: u64,
    ) {
        let d = 2 * half;
        let x = Draw::new(seed).tensor(Dtype::Bf16, &[1, 1, d], 1.0);
        let values = x.to_f64();
        let mut s = turned(x, &[position], 1e6, Angle::F32);
        s.params.scaling = scaling;
        let turns = naive_turns(scaling, 1e6, d, position as usize + 1, true);
        let want = naive::rope(&values, (1, d), &[position.into()], &turns);
        let got = whole::<_, f64>(&s);
        let exact = got.iter().zip(&want).filter(|(g, (w, size))| (*g - w).abs() <= 1e-13 * size).count();
        prop_assert!(exact + 2 >= d, "{} of {} pairs at most by chance: {:?}", d - exact, d, scaling);
        let ulp = assay_reference::dtype::pow2(-22);
        for (g, (w, size)) in got.iter().zip(&want) {
            prop_assert!((g - w).abs() <= ulp * size, "{} for {}", g, w);
        }
        for (fast, ball) in whole::<_, f32>(&s).into_iter().zip(whole::<_, assay_reference::arith::Ball<24>>(&s)) {
            prop_assert!((f64::from(fast) - ball.v).abs() <= ball.r, "{} outside {:?}", fast, ball);
        }
    }

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
        let frequencies = naive::inverse_frequencies(THETAS[theta], 2 * half);
        let turns = Turns { frequencies, factor: 1.0, f32_angle };
        holds(&s, &naive::rope(&values, (heads, 2 * half), &wide, &turns));
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

/// A ramp that would end beyond dimension D - 1 is cut there, which makes it steeper.
#[test]
fn a_ramp_that_ends_beyond_the_last_dimension_is_cut() {
    for truncate in [true, false] {
        let constants = Yarn {
            factor: 4.0,
            original_max_position: 2_000_000,
            beta_fast: 600.0,
            beta_slow: 0.001,
            truncate,
            attention_factor: 1.0,
        };
        let mut s =
            turned(Draw::new(7).tensor(Dtype::F32, &[1, 1, 16], 1.0), &[90], 1e4, Angle::F64);
        s.params.scaling = Scaling::Yarn(constants);
        let turns = naive_turns(s.params.scaling, 1e4, 16, 91, false);
        assert!(turns.frequencies[7] < naive::inverse_frequencies(1e4, 16)[7], "within the ramp");
        holds(&s, &naive::rope(&s.tensors["x"].to_f64(), (1, 16), &[90], &turns));
    }
}

/// The published default: 0.1 ln(s) + 1, and nothing for factors up to 1.
#[test]
fn the_attention_factor_follows_yarns_rule() {
    for factor in [0.5, 1.0, 1.5, 4.0, 32.0] {
        let want = naive::yarn_attention_factor(factor);
        assert!((mscale(factor, 1.0) - want).abs() <= 1e-15, "{factor}");
    }
}

fn yarn(original: usize) -> Scaling {
    Scaling::Yarn(Yarn {
        factor: 4.0,
        original_max_position: original,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: mscale(4.0, 1.0),
    })
}

/// Scaled ropes over positions on both sides of the trained context.
fn scaled_cases() -> impl Iterator<Item = Setup<Rope>> {
    let scalings = [
        Scaling::Linear { factor: 4.0 },
        Scaling::Dynamic { factor: 2.0, max_position: 16 },
        yarn(4096),
        yarn(32768),
    ];
    // At position 0 a bf16 rope stores what it is given: here, half-way between two bf16 numbers.
    let tie = Tensor::from_f64(Dtype::F32, &[1, 1, 4], &[257.0, -259.0, 1.0, 0.0]);
    let stored = |x: Tensor, positions: &[i32], scaling: Scaling| {
        let mut s = turned(x, positions, 1e6, Angle::F32);
        s.params.scaling = scaling;
        s.policy = Rope::policy(Dtype::Bf16);
        s
    };
    let random = scalings.into_iter().flat_map(move |scaling| {
        (0..3).map(move |seed| {
            let x = Draw::new(seed).tensor(Dtype::Bf16, &[5, 2, 64], 1.0);
            stored(x, &[2, 7, 40, 300, 3000], scaling)
        })
    });
    let half = Draw::new(3).tensor(Dtype::F16, &[2, 1, 64], 1.0);
    let mut half = stored(half, &[2, 40], Scaling::Linear { factor: 4.0 });
    half.policy = Rope::policy(Dtype::F16);
    random.chain([stored(tie, &[0], Scaling::Linear { factor: 4.0 }), half])
}

#[test]
fn every_fault_of_scaled_rope_shows() {
    every_fault_shows(scaled_cases());
}

#[test]
fn every_choice_of_scaled_rope_is_reachable() {
    every_choice_is_reachable(scaled_cases());
}

/// Faults of a scaling that does nothing to the case are not offered.
#[test]
fn faults_of_scaling_fit_the_case() {
    let slugs = |scaling: Scaling, position: i32| {
        let x = Draw::new(1).tensor(Dtype::Bf16, &[1, 1, 64], 1.0);
        let mut s = turned(x, &[position], 1e6, Angle::F32);
        s.params.scaling = scaling;
        let faults = Rope::faults(&s.params, &s.tensors);
        faults.into_iter().map(|f| f.slug).collect::<Vec<_>>()
    };
    let has =
        |scaling: Scaling, position: i32, slug: &str| slugs(scaling, position).contains(&slug);
    assert!(has(Scaling::Linear { factor: 2.0 }, 9, "scaling_ignored"));
    assert!(!has(Scaling::Linear { factor: 1.0 }, 9, "scaling_ignored"));
    let dynamic = Scaling::Dynamic { factor: 2.0, max_position: 8 };
    assert!(has(dynamic, 9, "scaling_ignored"));
    assert!(!has(dynamic, 7, "scaling_ignored"), "8 positions need no scaling");
    assert!(has(yarn(4096), 9, "yarn_as_linear") && has(yarn(4096), 9, "yarn_ramp_not_truncated"));
    let Scaling::Yarn(constants) = yarn(4096) else { unreachable!("a YaRN") };
    let idle = Scaling::Yarn(Yarn { factor: 1.0, attention_factor: 1.0, ..constants });
    for slug in [
        "scaling_ignored",
        "attention_factor_ignored",
        "attention_factor_squared",
        "yarn_as_linear",
        "yarn_ramp_not_truncated",
    ] {
        assert!(!has(idle, 9, slug) && has(yarn(4096), 9, slug), "{slug}");
    }
    // A ramp that is not truncated cannot miss it.
    let whole = Scaling::Yarn(Yarn { truncate: false, ..constants });
    assert!(!has(whole, 9, "yarn_ramp_not_truncated"));
}

/// `base=fixed` is what a call over the whole extended context does.
#[test]
fn a_fixed_base_is_that_of_the_extended_context() {
    let x = Draw::new(2).tensor(Dtype::F32, &[2, 1, 16], 1.0);
    let dynamic = |positions: &[i32], fixed: bool| {
        let mut s = turned(x.clone(), positions, 1e4, Angle::F64);
        s.params.scaling = Scaling::Dynamic { factor: 2.0, max_position: 8 };
        s.params.base_fixed = fixed;
        whole::<_, f64>(&s)
    };
    assert_eq!(bits(&dynamic(&[3, 15], true)), bits(&dynamic(&[3, 15], false)));
    assert_ne!(bits(&dynamic(&[3, 9], true)), bits(&dynamic(&[3, 9], false)));
    // A later, longer call turns the same key by another angle; a fixed base does not.
    assert_ne!(dynamic(&[3, 9], false)[..16], dynamic(&[3, 15], false)[..16]);
    assert_eq!(dynamic(&[3, 9], true)[..16], dynamic(&[3, 15], true)[..16]);
}

/// In f32 the attention factor is a constant rounded to f32 by everybody: one relative error for a whole
/// table, which must not look like an implementation's lean.
#[test]
fn the_attention_factor_of_an_f32_table_is_an_f32() {
    for factor in [1.5, 2.5, 5.0, 40.0] {
        let x = Tensor::from_f64(Dtype::F32, &[1, 1, 8], &[1.0; 8]);
        let mut s = turned(x, &[0], 1e4, Angle::F32);
        let Scaling::Yarn(y) = yarn(64) else { unreachable!("a yarn") };
        let attention_factor = mscale(factor, 1.0);
        s.params.scaling = Scaling::Yarn(Yarn { factor, attention_factor, ..y });
        // Position 0: cos is 1 and sin 0.
        assert_eq!(whole::<_, f64>(&s), [f64::from(attention_factor as f32); 8]);
        s.params.angle = Angle::F64;
        assert_eq!(whole::<_, f64>(&s), [attention_factor; 8]);
    }
}
