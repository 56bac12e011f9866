//! One token's attention over 4096 keys, bf16 in and out.

use assay_reference::arith::math;
use assay_reference::ops::Tensors;
use assay_reference::{Case, Dtype, Result, Rounding, Tensor};
use serde_json::json;

use super::{Judged, Simulation, dot, panel};
use crate::families::Values;

const KEYS: usize = 4096;
const D: usize = 128;
const HEADS: usize = 2;
/// Standard deviation of the scores: flat, so that every key carries about the same weight.
const SPREAD: f64 = 0.3;

const SUBJECTS: [&str; 5] =
    ["correct", "reads one past", "drops the newest", "drops the first", "scale +1 %"];

/// Runs the subjects on `seeds` caches of normal data.
///
/// # Errors
/// When the judge refuses the case (a defect).
pub fn decode_attention(seed: u64, seeds: usize, judged: Judged) -> Result<Simulation> {
    let title =
        "decode attention, kv 4096, head_dim 128, bf16 out, flat scores (sd 0.3), normal values";
    let mut out = Simulation::new(title, &SUBJECTS, judged);
    let bf = Rounding::nearest(Dtype::Bf16);
    let scale = 1.0 / (D as f64).sqrt();
    for index in 0..seeds {
        let mut v = Values::new(seed, &format!("simulate decode {index}"));
        let mut normals = |n: usize, sd: f64| -> Vec<f32> {
            (0..n).map(|_| bf.round(v.normal(sd)) as f32).collect()
        };
        let q = normals(HEADS * D, SPREAD);
        // One key more than the cache holds: what lies behind it in memory.
        let (k, val) = (normals((KEYS + 1) * D, 1.0), normals((KEYS + 1) * D, 1.0));
        let case = case(&q, &k[..KEYS * D], &val[..KEYS * D], scale, seed);
        let panel = panel(case, judged, "")?;
        let outputs: Vec<Vec<f64>> = [
            (0..KEYS, 1.0),
            (0..KEYS + 1, 1.0),
            (0..KEYS - 1, 1.0),
            (1..KEYS, 1.0),
            (0..KEYS, 1.01),
        ]
        .map(|(keys, by)| {
            let s = (scale * by) as f32;
            let y = q.chunks(D).flat_map(|q| attend(q, &k, &val, keys.clone(), s));
            y.map(|y| bf.round(f64::from(y))).collect()
        })
        .into();
        let right: Vec<f64> = q.chunks(D).flat_map(|q| oracle(q, &k, &val, scale)).collect();
        let right: Vec<f64> = right.into_iter().map(|y| bf.round(y)).collect();
        out.count("attention", &right, &outputs, panel.as_ref());
    }
    Ok(out)
}

/// Two-pass softmax over the keys, all in f32.
fn attend(q: &[f32], k: &[f32], v: &[f32], keys: std::ops::Range<usize>, scale: f32) -> Vec<f32> {
    let of = |t: &[f32], j: usize| t[j * D..(j + 1) * D].to_vec();
    let scores: Vec<f32> = keys.clone().map(|j| scale * dot(q, &of(k, j))).collect();
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let p: Vec<f32> = scores.iter().map(|s| math::exp(f64::from(s - top)) as f32).collect();
    let sum = dot(&p, &vec![1.0; p.len()]);
    let column = |d: usize| -> Vec<f32> { keys.clone().map(|j| v[j * D + d]).collect() };
    (0..D).map(|d| dot(&p, &column(d)) / sum).collect()
}

/// The same in f64, over the whole cache.
fn oracle(q: &[f32], k: &[f32], v: &[f32], scale: f64) -> Vec<f64> {
    let scores: Vec<f64> =
        (0..KEYS).map(|j| scale * super::exact(q, &k[j * D..(j + 1) * D])).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = scores.iter().map(|s| math::exp(s - top)).collect();
    let sum: f64 = p.iter().sum();
    let column = |d: usize| (0..KEYS).map(|j| p[j] * f64::from(v[j * D + d])).sum::<f64>();
    (0..D).map(|d| column(d) / sum).collect()
}

fn case(q: &[f32], k: &[f32], v: &[f32], scale: f64, seed: u64) -> Case {
    let tensor = |shape: [usize; 3], x: &[f32]| {
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        Tensor::from_f64(Dtype::Bf16, &shape, &wide)
    };
    let tensors = Tensors::from([
        ("q".to_string(), tensor([1, HEADS, D], q)),
        ("k".into(), tensor([KEYS, 1, D], k)),
        ("v".into(), tensor([KEYS, 1, D], v)),
    ]);
    Case {
        op: "attention".into(),
        params: json!({ "scale": scale }),
        dtype: Dtype::Bf16,
        tensors,
        outputs: Tensors::new(),
        family: "simulation".into(),
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key's weight is 1/4096, so that no fault moves an output by more than limits of a mean square, a
    /// mean or 1e-3; the judge sees all and stays silent on the correct one.
    #[test]
    fn common_limits_miss_what_the_judge_sees() {
        let sim = decode_attention(3, 1, Judged::Own).expect("a simulation");
        for criterion in ["llama.cpp", "vLLM", "marlin", "MIGraphX"] {
            let row = sim.row(criterion).expect("a row");
            assert!(row.iter().all(|t| t.hits == 0), "{criterion}: {row:?}");
        }
        let own = sim.row("assay").expect("a row");
        assert_eq!(own[0].hits, 0, "{own:?}");
        assert!(own[1..].iter().all(|t| t.is_all()), "{own:?}");
    }
}
