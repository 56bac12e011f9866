//! Sampling keeps what transformers' processors keep, with their probabilities, and draws fairly.

use assay_reference::qwen::sample::{
    LogitState, Rng, Sampler, Sampling, classify, log_softmax, survivors,
};
use serde_json::Value;

use crate::support::golden;

fn settings(v: &Value) -> Sampling {
    let number = |name: &str, default: f64| v[name].as_f64().unwrap_or(default);
    Sampling {
        do_sample: true,
        temperature: number("temperature", 1.0),
        top_k: number("top_k", 0.0) as usize,
        top_p: number("top_p", 1.0),
        min_p: number("min_p", 0.0),
        repetition_penalty: number("repetition_penalty", 1.0),
        seed: 0,
    }
}

/// The same ids. Probabilities: both sides compute in f64, each step with a relative error of a
/// few units of 2^-53 (a logit of up to 60 carries its rounding into the exponent: 60 x 2^-53).
#[test]
fn filters_keep_what_transformers_keeps() {
    let text = std::fs::read_to_string(golden("chat/sampling.json")).expect("a golden file");
    let all: Value = serde_json::from_str(&text).expect("golden JSON");
    let mut logits = Vec::new();
    let mut checked = 0;
    for case in all["cases"].as_array().expect("cases") {
        if let Some(values) = case["values"].as_array() {
            logits = values.iter().map(|v| v.as_f64().unwrap_or(f64::NEG_INFINITY)).collect();
        }
        let seen: Vec<u32> = case["seen"]
            .as_array()
            .expect("ids")
            .iter()
            .map(|v| v.as_u64().unwrap() as u32)
            .collect();
        let ours = survivors(&logits, &seen, &settings(&case["settings"])).expect("sound logits");
        let label = format!("{} {}", case["logits"], case["settings"]);
        let kept = case["kept"].as_array().expect("ids");
        let kept: Vec<u32> = kept.iter().map(|v| v.as_u64().unwrap() as u32).collect();
        assert_eq!(ours.iter().map(|p| p.0).collect::<Vec<u32>>(), kept, "{label}");
        for (p, theirs) in ours.iter().zip(case["probabilities"].as_array().expect("numbers")) {
            let theirs = theirs.as_f64().expect("a number");
            assert!((p.1 - theirs).abs() <= 1e-13 * theirs, "{label}: {p:?} against {theirs}");
        }
        checked += 1;
    }
    assert_eq!(checked, 60);
}

fn sampling() -> Sampling {
    Sampling { do_sample: true, ..Sampling::GREEDY }
}

/// Draws against their probabilities. Under the right distribution the statistic has 9 degrees of
/// freedom: above 50 with probability 1e-7.
#[test]
fn draws_follow_the_probabilities() {
    let logits: Vec<f64> = (0..10).map(|i| f64::from(i * i % 7) / 2.0).collect();
    let expected = survivors(&logits, &[], &sampling()).expect("sound logits");
    let n = 20_000;
    for seed in [0, 1, u64::MAX] {
        let mut sampler = Sampler::new(Sampling { seed, ..sampling() }).expect("in range");
        let mut counts = [0u32; 10];
        for _ in 0..n {
            counts[sampler.choose(&logits, &[]) as usize] += 1;
        }
        let statistic: f64 = expected
            .iter()
            .map(|(id, p)| {
                let mean = p * f64::from(n);
                let off = f64::from(counts[*id as usize]) - mean;
                off * off / mean
            })
            .sum();
        assert!(statistic < 50.0, "seed {seed}: {statistic}, {counts:?}");
        // Nor too close, as a stream that is no random one would be: below 0.2 with probability 1e-6.
        assert!(statistic > 0.2, "seed {seed}: {statistic}, {counts:?}");
    }
}

/// Reference values of xoshiro256++ after splitmix64(0), and of splitmix64 itself, by a second
/// implementation in Python's integers.
#[test]
fn the_stream_is_xoshiro256_plus_plus() {
    let mut rng = Rng::new(0);
    let first = [rng.bits(), rng.bits(), rng.bits()];
    assert_eq!(first, XOSHIRO_0);
    let mut rng = Rng::new(12345);
    assert_eq!(rng.bits(), XOSHIRO_12345);
    assert!((0..1000).map(|_| rng.uniform()).all(|u| (0.0..1.0).contains(&u)));
}

const XOSHIRO_0: [u64; 3] = [0x5317_5d61_490b_23df, 0x61da_6f3d_c380_d507, 0x5c0f_df91_ec9a_7bfc];
const XOSHIRO_12345: u64 = 0x8d94_8a82_def8_a568;

#[test]
fn a_seed_repeats_and_another_differs() {
    let logits: Vec<f64> = (0..50).map(|i| f64::from(i % 7)).collect();
    let run = |seed| {
        let mut s = Sampler::new(Sampling { seed, ..sampling() }).expect("in range");
        (0..30).map(|_| s.choose(&logits, &[])).collect::<Vec<u32>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn temperature_zero_and_no_sampling_are_greedy() {
    let logits = [1.0, 3.0, 3.0, -1.0];
    for s in [Sampling { temperature: 0.0, ..sampling() }, Sampling::GREEDY] {
        let mut sampler = Sampler::new(s).expect("in range");
        assert_eq!(sampler.choose(&logits, &[]), 1);
    }
    // The limit of small temperatures, where the quotients leave f64 in either direction.
    let mut cold = Sampler::new(Sampling { temperature: 1e-320, ..sampling() }).expect("in range");
    assert_eq!(cold.choose(&logits, &[]), 1);
    assert_eq!(cold.choose(&[-5.0, -4.0, -3.0], &[]), 2);
    // The penalty holds in greedy decoding too, as transformers has it.
    let s = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
    assert_eq!(Sampler::new(s).expect("in range").choose(&logits, &[1, 99]), 2);
}

#[test]
fn broken_logits_are_told_apart() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    assert_eq!(classify(&[1.0, -inf, 2.0]), LogitState::Fine);
    assert_eq!(classify(&[1.0, nan, inf]), LogitState::Nan(1));
    assert_eq!(classify(&[1.0, inf]), LogitState::Infinite(1));
    assert_eq!(classify(&[-inf, -inf]), LogitState::Masked);
    assert_eq!(classify(&[0.5; 9]), LogitState::Constant);
    let mut sampler = Sampler::new(sampling()).expect("in range");
    for (logits, token) in [([1.0, nan, 2.0], 1), ([-inf; 3], 0), ([1.0, 2.0, inf], 2)] {
        assert!(survivors(&logits, &[], &sampling()).is_err());
        assert_eq!(sampler.choose(&logits, &[]), token);
    }
    // All equal is strange, but can be drawn from.
    assert_eq!(
        survivors(&[0.0; 4], &[], &sampling()).expect("a draw"),
        [0, 1, 2, 3].map(|i| (i, 0.25))
    );
}

#[test]
fn settings_out_of_range_are_refused() {
    for (s, named) in [
        (Sampling { temperature: -0.1, ..sampling() }, "temperature"),
        (Sampling { temperature: f64::NAN, ..sampling() }, "temperature"),
        (Sampling { top_p: 1.1, ..sampling() }, "top_p"),
        (Sampling { min_p: -1.0, ..sampling() }, "min_p"),
        (Sampling { repetition_penalty: 0.0, ..sampling() }, "repetition_penalty"),
        (Sampling { repetition_penalty: 1e-320, ..sampling() }, "repetition_penalty"),
    ] {
        let error = Sampler::new(s).unwrap_err().to_string();
        assert!(error.starts_with(named), "{error}");
    }
}

#[test]
fn log_softmax_is_a_distribution() {
    let logits: Vec<f64> = (0..1000).map(|i| f64::from(i * 37 % 101) - 50.0).collect();
    let total: f64 = log_softmax(&logits).into_iter().map(libm_exp).sum();
    assert!((total - 1.0).abs() < 1e-12, "{total}");
}

fn libm_exp(x: f64) -> f64 {
    assay_reference::arith::math::exp(x)
}
