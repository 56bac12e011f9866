//! Cases of `rope`: positions to 40000, chunks that start late, decoding one position, every scaling.

use assay_reference::Dtype;
use serde_json::{Value, json};

use super::Generated;
use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, STORED, UNIT};

const OP: &str = "rope";

pub(super) fn small(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for dtype in STORED {
        out.push(unit(&SPREAD, (2, 64), 1e6, dtype, seed));
    }
    // A prompt, a chunk that follows a cache, decoding.
    out.push(unit(&[0, 1, 2, 3, 4, 5, 6], (2, 32), 1e4, Dtype::Bf16, seed));
    out.push(unit(&[5, 6, 7, 8], (3, 64), 5e6, Dtype::Bf16, seed));
    out.push(unit(&[4096, 4097, 4098], (2, 128), 1e6, Dtype::Bf16, seed));
    out.push(unit(&[300], (2, 128), 1e6, Dtype::Bf16, seed));
    out.push(unit(&[39_990, 39_991], (2, 128), 1e6, Dtype::Bf16, seed));
    for (name, scaling) in scalings() {
        out.push(scaled(name, scaling, seed));
    }
    out.push(exact(seed));
    out.push(outlier(seed));
    out.push(special(seed));
    out
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = small(seed);
    for d in [2, 4, 62, 64, 66, 80, 96, 128, 256] {
        out.push(unit(&[0, 3, 1000], (1, d), 1e6, Dtype::Bf16, seed));
    }
    for heads in [1, 7, 8, 14, 28, 40] {
        out.push(unit(&[7, 8, 20_000], (heads, 16), 1e6, Dtype::Bf16, seed));
    }
    // More than a block of 256 takes at once, one pair or eight a thread.
    for shape in [(9, 62), (40, 128)] {
        out.push(unit(&[7], shape, 1e6, Dtype::Bf16, seed));
    }
    let long: Vec<i32> = (0..65).map(|i| i * 613).collect();
    out.push(unit(&long, (1, 64), 1e6, Dtype::Bf16, seed));
    out
}

/// Positions on both sides of what bf16 counts, of a chunk and of the trained contexts.
const SPREAD: [i32; 10] = [0, 1, 15, 255, 257, 2048, 4097, 16_385, 32_767, 39_999];

fn scalings() -> Vec<(&'static str, Value)> {
    vec![
        ("linear", json!({ "rope_type": "linear", "factor": 4.0 })),
        ("dynamic", json!({ "rope_type": "dynamic", "factor": 2.0, "max_position": 2048 })),
        // As Qwen2.5 and Qwen3 document it, for 131072 positions.
        (
            "yarn",
            json!({
                "rope_type": "yarn", "factor": 4.0, "original_max_position": 32768,
                "beta_fast": 32.0, "beta_slow": 1.0, "truncate": true,
                "attention_factor": 1.138_629_436_111_989,
            }),
        ),
    ]
}

#[expect(clippy::too_many_arguments, reason = "all that a case of rope is")]
fn build(
    family: Family,
    positions: &[i32],
    (heads, d): (usize, usize),
    note: &str,
    params: Value,
    dtype: Dtype,
    seed: u64,
    value: impl Fn(&mut super::Values, usize) -> f64,
) -> Generated {
    let (t, last) = (positions.len(), positions.iter().max().copied().unwrap_or(0));
    let label = format!("{t} to {last} heads {heads} of {d}{note}");
    let draft = Draft::new(OP, family, label, dtype, seed).params(params);
    let mut v = draft.values();
    let x: Vec<f64> = (0..t * heads * d).map(|i| value(&mut v, i)).collect();
    draft.ints("positions", &[t], positions).with("x", &[t, heads, d], &x).done()
}

fn unit(
    positions: &[i32],
    shape: (usize, usize),
    theta: f64,
    dtype: Dtype,
    seed: u64,
) -> Generated {
    let params = json!({ "theta": theta });
    let note = format!(" theta {theta}");
    build(UNIT, positions, shape, &note, params, dtype, seed, |v, _| v.normal(1.0))
}

fn scaled(name: &str, scaling: Value, seed: u64) -> Generated {
    let params = json!({ "theta": 1e6, "scaling": scaling });
    let note = format!(" {name}");
    build(UNIT, &SPREAD, (1, 128), &note, params, Dtype::Bf16, seed, |v, _| v.normal(1.0))
}

/// Position 0 turns nothing: integers come back.
fn exact(seed: u64) -> Generated {
    let params = json!({ "theta": 1e6 });
    build(EXACT, &[0, 0, 0], (4, 32), "", params, Dtype::Bf16, seed, |_, i| {
        (i * 37 % 509) as f64 - 254.0
    })
}

/// Keys with biases of 147 and 98.5 in pairs of low frequency, as Qwen2.5 has them.
fn outlier(seed: u64) -> Generated {
    let params = json!({ "theta": 1e6 });
    build(OUTLIER, &SPREAD, (2, 128), "", params, Dtype::Bf16, seed, |v, i| match i % 128 {
        60 => 147.0 + v.normal(1.0),
        124 => -98.5 + v.normal(1.0),
        2 | 66 => 26.0 + v.normal(1.0),
        _ => v.normal(1.0),
    })
}

/// One kind a row: a NaN or an infinity reaches its own pair only.
fn special(seed: u64) -> Generated {
    const D: usize = 16;
    let params = json!({ "theta": 1e6 });
    let positions = [0, 1, 5, 300, 9000, 30_000];
    build(SPECIAL, &positions, (1, D), "", params, Dtype::Bf16, seed, |v, i| {
        let x = v.normal(1.0);
        match (i / D, i % D) {
            (1, 3) => f64::NAN,
            (2, 4) => f64::INFINITY,
            (3, 9) => f64::NEG_INFINITY,
            (4, _) => 1.1e-39 * x,
            (5, 0) => 5e4,
            (5, 8) => -5e4,
            (0, 5) => -0.0,
            _ => x,
        }
    })
}
