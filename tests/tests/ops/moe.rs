//! `moe_route` and `moe_experts`.

use assay_reference::arith::Ball;
use assay_reference::ops::moe_experts::{self, MoeExperts};
use assay_reference::ops::moe_route::{self, MoeRoute};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{
    Draw, STORED, bits, config, every_choice_is_reachable, every_fault_shows, holds, holds_apart,
    setup, whole,
};
use crate::naive::{self, Expert};

fn route(logits: Tensor, k: usize, normalise: bool) -> Setup<MoeRoute> {
    setup::<MoeRoute, 1>(moe_route::Params::new(k, normalise), [("logits", logits)])
}

/// Shapes of a mixture: tokens, hidden width, expert width, experts, experts a token goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) t: usize,
    pub(crate) h: usize,
    pub(crate) width: usize,
    pub(crate) e: usize,
    pub(crate) k: usize,
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    (1usize..5, 1usize..20, 1usize..24, 1usize..9, 1usize..9)
        .prop_map(|(t, h, width, e, k)| Shape { t, h, width, e, k: k.min(e) })
}

/// A mixture whose tokens go to k random experts each, with weights that add up to about 1.
pub(crate) fn mixture(n: Shape, seed: u64, dtype: Dtype) -> Setup<MoeExperts> {
    let mut draw = Draw::new(seed);
    let mut weights = vec![0.0; n.t * n.e];
    for row in weights.chunks_mut(n.e) {
        let mut left = n.k;
        while left > 0 {
            let e = draw.below(n.e);
            if row[e] == 0.0 {
                row[e] = (draw.value(0.3).abs() + 0.1) / n.k as f64;
                left -= 1;
            }
        }
    }
    let routing = Tensor::from_f64(dtype, &[n.t, n.e], &weights);
    let x = draw.tensor(dtype, &[n.t, n.h], 1.0);
    let mut s =
        setup::<MoeExperts, 2>(moe_experts::Params::default(), [("x", x), ("routing", routing)]);
    s.policy = MoeExperts::policy(Dtype::F64);
    for e in 0..n.e {
        for (module, shape) in [
            ("gate_proj", [n.width, n.h]),
            ("up_proj", [n.width, n.h]),
            ("down_proj", [n.h, n.width]),
        ] {
            let w = draw.tensor(dtype, &shape, 0.5);
            s.tensors.insert(format!("experts.{e}.{module}.weight"), w);
        }
    }
    s
}

pub(crate) fn expert(s: &Setup<MoeExperts>, e: usize) -> Expert {
    let w = |module: &str| s.tensors[&format!("experts.{e}.{module}.weight")].to_f64();
    Expert { gate: w("gate_proj"), up: w("up_proj"), down: w("down_proj") }
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn route_equals_the_formula(
        rows in 1usize..5, e in 1usize..20, k in 1usize..20, normalise: bool, seed: u64,
        dtype in 0usize..3, sd in 0.05f64..10.0,
    ) {
        let k = k.min(e);
        let logits = Draw::new(seed).tensor(STORED[dtype], &[rows, e], sd);
        let want = naive::moe_route(&logits.to_f64(), e, k, normalise);
        holds(&route(logits, k, normalise), &want);
    }

    /// Few distinct logits, so that most rows tie at the border of the choice.
    #[test]
    fn of_equal_logits_the_first_are_chosen(
        logits in prop::collection::vec(0i32..4, 6), k in 1usize..=6, normalise: bool,
    ) {
        let values: Vec<f64> = logits.iter().map(|&v| f64::from(v)).collect();
        let want = naive::moe_route(&values, 6, k, normalise);
        let s = route(Tensor::from_f64(Dtype::Bf16, &[1, 6], &values), k, normalise);
        holds(&s, &want);
        prop_assert_eq!(want.iter().filter(|w| w.0 > 0.0).count(), k);
    }

    /// An implementation may choose any of the experts that tie: reading them from the last to the
    /// first gives the other outcome, which must be inside the bound as well.
    #[test]
    fn either_outcome_of_a_tie_is_inside_the_ball(
        logits in prop::collection::vec(0u8..5, 2..12), k in 1usize..12, normalise: bool,
    ) {
        let e = logits.len();
        let k = k.min(e);
        let values: Vec<f64> = logits.iter().map(|&v| f64::from(v) * 0.37).collect();
        either_way(&Tensor::from_f64(Dtype::F32, &[1, e], &values), k, normalise)?;
    }

    /// Logits some ulps apart, far below the largest: their f32 softmax may exchange them.
    #[test]
    fn near_ties_far_from_the_maximum_are_inside_the_ball(
        steps in prop::collection::vec(-40i32..=40, 2..8), base in -2f32..2.0, top in 0f32..80.0,
        k in 1usize..8, normalise: bool,
    ) {
        let mut values = vec![f64::from(top)];
        values.extend(steps.iter().map(|&s| {
            f64::from(f32::from_bits((base.to_bits() as i32 + s) as u32))
        }));
        let e = values.len();
        either_way(&Tensor::from_f64(Dtype::F32, &[1, e], &values), k.min(e), normalise)?;
    }

    #[test]
    fn weights_are_probabilities(rows in 1usize..4, e in 1usize..12, k in 1usize..12, seed: u64) {
        let k = k.min(e);
        let logits = Draw::new(seed).tensor(Dtype::F32, &[rows, e], 3.0);
        for row in whole::<_, f64>(&route(logits.clone(), k, true)).chunks(e) {
            prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-14 * e as f64);
            prop_assert_eq!(row.iter().filter(|p| **p > 0.0).count(), k);
        }
        for row in whole::<_, f64>(&route(logits, k, false)).chunks(e) {
            prop_assert!(row.iter().sum::<f64>() < 1.0 + 1e-14 * e as f64);
        }
    }

    #[test]
    fn experts_equal_the_formula(n in shapes(), seed: u64, dtype in 0usize..3) {
        let s = mixture(n, seed, STORED[dtype]);
        let experts: Vec<Expert> = (0..n.e).map(|e| expert(&s, e)).collect();
        let want = naive::moe_experts(
            &s.tensors["x"].to_f64(), n.h, &s.tensors["routing"].to_f64(), &experts,
        );
        // What is done after each addition makes the sum one by one, instead of in lanes.
        holds_apart(&s, &want, &["sum"]);
    }

    /// Under the conventions of a stored dtype, every choice of every knob keeps its f32 result
    /// inside its own bound.
    #[test]
    fn experts_in_a_stored_dtype_stay_inside(n in shapes(), seed: u64, half: bool) {
        let dtype = if half { Dtype::F16 } else { Dtype::Bf16 };
        let mut s = mixture(n, seed, dtype);
        s.policy = MoeExperts::policy(dtype);
        for knob in MoeExperts::knobs(&s.params) {
            for choice in knob.choices {
                let mut set = s.clone();
                (choice.edit)(&mut set);
                let balls = whole::<_, Ball<24>>(&set);
                for (got, ball) in whole::<_, f32>(&set).into_iter().zip(balls) {
                    let error = (f64::from(got) - ball.v).abs();
                    prop_assert!(error <= ball.r, "{}={}: {} outside {:?}", knob.name, choice.value, got, ball);
                }
            }
        }
    }
}

/// The choice by an f32 softmax that reads the experts in either direction is inside the bound.
fn either_way(logits: &Tensor, k: usize, normalise: bool) -> Result<(), TestCaseError> {
    let e = logits.len();
    let balls = whole::<_, Ball<24>>(&route(logits.clone(), k, normalise));
    let forward = whole::<_, f32>(&route(logits.clone(), k, normalise));
    let turned = logits.map(|i, _| logits.get(e - 1 - i));
    let mut backward = whole::<_, f32>(&route(turned, k, normalise));
    backward.reverse();
    for (way, got) in [("forward", forward), ("backward", backward)] {
        for (i, (got, ball)) in got.iter().zip(&balls).enumerate() {
            let error = (f64::from(*got) - ball.v).abs();
            prop_assert!(error <= ball.r, "{way} at {i}: {got} outside {ball:?} of {logits:?}");
        }
    }
    Ok(())
}

#[test]
fn broken_logits_make_their_row_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for row in [[nan, 0.0, 1.0], [0.0, inf, 1.0], [-inf, -inf, -inf]] {
        let flat = [row, [0.0, 1.0, 2.0]].concat();
        let s = route(Tensor::from_f64(Dtype::F32, &[2, 3], &flat), 2, true);
        let y = whole::<_, f64>(&s);
        assert!(y[..3].iter().all(|v| v.is_nan()), "{row:?}: {y:?}");
        assert_eq!(y[3], 0.0, "{row:?} spoils the next row");
        assert!((y[4] + y[5] - 1.0).abs() < 1e-15);
    }
    // A single -inf is an expert with weight 0.
    let s = route(Tensor::from_f64(Dtype::F32, &[1, 3], &[-inf, 0.0, 0.0]), 2, false);
    assert_eq!(bits(&whole::<_, f64>(&s)), bits(&[0.0, 0.5, 0.5]));
}

fn routes() -> impl Iterator<Item = Setup<MoeRoute>> {
    (0..40).map(|seed| {
        let mut draw = Draw::new(seed);
        let e = 3 + draw.below(6);
        let k = 1 + draw.below(e);
        let logits = draw.tensor(Dtype::Bf16, &[6, e], 1.0);
        let mut s = route(logits, k, draw.below(2) == 0);
        s.policy = MoeRoute::policy(Dtype::Bf16);
        s
    })
}

#[test]
fn every_fault_of_route_shows() {
    every_fault_shows(routes());
}

/// No fault is offered where it could not do anything: all experts chosen, or a single one of weight 1.
#[test]
fn faults_of_route_fit_the_case() {
    let slugs = |k: usize, e: usize, normalise: bool| {
        let logits = Draw::new(1).tensor(Dtype::Bf16, &[4, e], 1.0);
        let s = route(logits, k, normalise);
        let faults = MoeRoute::faults(&s.params, &s.tensors);
        faults.into_iter().map(|f| f.slug).collect::<Vec<_>>()
    };
    assert!(slugs(2, 4, true).contains(&"normalisation_flipped"));
    assert!(!slugs(4, 4, true).contains(&"normalisation_flipped"));
    assert!(!slugs(4, 4, false).contains(&"normalisation_flipped"));
    assert!(slugs(1, 4, false).contains(&"sigmoid"));
    assert!(!slugs(1, 4, true).contains(&"sigmoid"));
}

#[test]
fn every_choice_of_route_is_reachable() {
    every_choice_is_reachable(routes());
}

/// Random mixtures, and one of whole numbers whose sum is a tie of bf16.
fn mixtures() -> impl Iterator<Item = Setup<MoeExperts>> {
    let random = (0..12).map(|seed| {
        let n = Shape { t: 3, h: 10, width: 12, e: 6, k: 1 + seed as usize % 4 };
        let mut s = mixture(n, seed, Dtype::Bf16);
        s.policy = MoeExperts::policy(Dtype::Bf16);
        s
    });
    random.chain([tie()])
}

/// silu(256) is 256 to f32's last bit, so the experts' outputs are whole: 256 + 1, half an ulp of
/// bf16 above 256.
fn tie() -> Setup<MoeExperts> {
    let n = Shape { t: 1, h: 1, width: 1, e: 2, k: 2 };
    let mut s = mixture(n, 1, Dtype::Bf16);
    s.policy = MoeExperts::policy(Dtype::Bf16);
    let mut set = |name: &str, shape: &[usize], values: &[f64]| {
        s.tensors.insert(name.into(), Tensor::from_f64(Dtype::Bf16, shape, values));
    };
    set("x", &[1, 1], &[1.0]);
    set("routing", &[1, 2], &[0.5, 0.5]);
    for (e, up, down) in [(0, 1.0, 2.0), (1, 1.0, 1.0)] {
        set(&format!("experts.{e}.gate_proj.weight"), &[1, 1], &[256.0]);
        set(&format!("experts.{e}.up_proj.weight"), &[1, 1], &[up]);
        set(&format!("experts.{e}.down_proj.weight"), &[1, 1], &[down]);
    }
    set("experts.1.up_proj.weight", &[1, 1], &[1.0 / 128.0]);
    s
}

#[test]
fn every_fault_of_experts_shows() {
    every_fault_shows(mixtures());
}

#[test]
fn every_choice_of_experts_is_reachable() {
    every_choice_is_reachable(mixtures());
}

#[test]
fn a_token_without_experts_gets_zero() {
    let n = Shape { t: 2, h: 5, width: 3, e: 3, k: 2 };
    let mut s = mixture(n, 4, Dtype::F32);
    let routing = s.tensors["routing"].map(|i, w| if i < 3 { 0.0 } else { w });
    s.tensors.insert("routing".into(), routing);
    let y = whole::<_, f64>(&s);
    assert_eq!(y[..5], [0.0; 5]);
    assert!(y[5..].iter().all(|v| *v != 0.0));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let n = Shape { t: 2, h: 5, width: 3, e: 3, k: 2 };
    let good = mixture(n, 4, Dtype::F32);
    let refused = |name: &str, t: Option<Tensor>| {
        let mut tensors = good.tensors.clone();
        tensors.remove(name);
        tensors.extend(t.map(|t| (name.to_string(), t)));
        MoeExperts::check(&good.params, &tensors).expect_err("refused").to_string()
    };
    let f = |shape: &[usize]| Draw::new(0).tensor(Dtype::F32, shape, 1.0);
    for (name, t) in [
        ("x", f(&[2, 5, 1])),
        ("routing", f(&[3, 3])),
        ("routing", f(&[2, 4])),
        ("experts.1.gate_proj.weight", f(&[3, 4])),
        ("experts.1.up_proj.weight", f(&[4, 5])),
        ("experts.1.down_proj.weight", f(&[5, 4])),
        ("experts.1.down_proj.weight", f(&[15])),
    ] {
        let text = refused(name, Some(t));
        assert!(text.contains(name), "{name}: {text}");
    }
    assert!(refused("experts.1.up_proj.weight", None).contains("experts.1.up_proj.weight"));
    for k in [0, 4] {
        let s = route(f(&[2, 3]), k, true);
        let text = MoeRoute::check(&s.params, &s.tensors).expect_err("refused").to_string();
        assert!(text.contains("top_k") && text.contains(&k.to_string()), "{text}");
    }
}
