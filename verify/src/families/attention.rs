//! Cases of `attention`: prompts, chunks over a cache, single queries; every GQA ratio of Qwen.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{Generated, Values, generated};

/// T queries over S keys of `dim` elements; query and kv heads; the dtype of all tensors.
#[derive(Clone, Copy)]
pub(super) struct Dims {
    pub(super) t: usize,
    pub(super) s: usize,
    pub(super) hq: usize,
    pub(super) hkv: usize,
    pub(super) dim: usize,
    pub(super) dtype: Dtype,
}

/// What the kernels take: (T, S, Hq, Hkv) in bf16 with 128 elements a head.
pub(super) fn d128((t, s, hq, hkv): (usize, usize, usize, usize)) -> Dims {
    Dims { t, s, hq, hkv, dim: 128, dtype: Dtype::Bf16 }
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for d in [
        (1, 1, 2, 1),
        (17, 17, 4, 2),
        (5, 68, 14, 2),
        (33, 33, 8, 1),
        (1, 129, 28, 4),
        (16, 257, 4, 2),
    ]
    .map(d128)
    {
        out.push(random(d, seed, ("unit", false), 1.0, 1.0));
    }
    // Many heads, every ratio; more than four query tiles.
    for d in [
        (2, 20, 64, 8),
        (3, 40, 40, 8),
        (5, 37, 6, 6),
        (2, 33, 16, 1),
        (33, 33, 2, 1),
        (80, 80, 2, 1),
        (2, 1100, 2, 1),
    ]
    .map(d128)
    {
        out.push(random(d, seed, ("unit", false), 1.0, 1.0));
    }
    // Flat scores: the newest, the first and the next key all carry visible weight.
    for d in [(7, 7, 4, 2), (4, 40, 5, 1), (20, 70, 4, 2)].map(d128) {
        out.push(random(d, seed, ("unit", false), 0.2, 1.0));
    }
    // Steep scores: maxima that grow from tile to tile.
    out.push(rising(d128((6, 200, 4, 2)), seed));
    out.push(rising(d128((1, 1030, 2, 1)), seed));
    out.push(random(d128((1, 4100, 2, 1)), seed, ("unit", false), 0.3, 1.0));
    out.push(random(d128((1, 8200, 1, 1)), seed, ("unit", false), 0.3, 1.0));
    for d in [(16, 16, 4, 2), (9, 73, 4, 2), (1, 64, 4, 1)].map(d128) {
        out.push(selecting(d, seed));
        out.push(averaging(d, seed));
    }
    out.push(key_bias(d128((12, 50, 4, 2)), BEYOND_F16, seed));
    out.push(key_bias(d128((12, 50, 4, 2)), LARGE, seed));
    out.push(random(d128((8, 24, 4, 2)), seed, ("outlier", false), 4.0, 26.0));
    out.push(deep_negative(d128((16, 32, 4, 2)), seed));
    for d in [(5, 5, 4, 2), (3, 40, 2, 1)].map(d128) {
        out.push(masked_nan(d, seed, true));
        out.push(masked_nan(d, seed, false));
    }
    out.push(seen_nan(d128((6, 40, 4, 2)), seed));
    out
}

fn label(d: Dims) -> String {
    let Dims { t, s, hq, hkv, dim, dtype } = d;
    let dim = if dim == 128 { String::new() } else { format!(" of {dim}") };
    let dtype = if dtype == Dtype::Bf16 { String::new() } else { format!(" {dtype}") };
    format!("q{t} kv{s} heads {hq}/{hkv}{dim}{dtype}")
}

fn build(
    family: (&str, bool),
    d: Dims,
    note: &str,
    seed: u64,
    [q, k, v]: [Vec<f64>; 3],
) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let bf = |shape: &[usize], v: &[f64]| Tensor::from_f64(d.dtype, shape, v);
    let mut tensors = Tensors::new();
    tensors.insert("q".into(), bf(&[t, hq, dim], &q));
    tensors.insert("k".into(), bf(&[s, hkv, dim], &k));
    tensors.insert("v".into(), bf(&[s, hkv, dim], &v));
    let params = json!({ "scale": 1.0 / (dim as f64).sqrt() });
    let label = format!("{}{note}", label(d));
    generated("attention", family, &label, seed, params, d.dtype, tensors)
}

/// Normal q, k of sd `qk` and v of sd `v_sd`.
pub(super) fn random(d: Dims, seed: u64, family: (&str, bool), qk: f64, v_sd: f64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention {} {} {qk} {v_sd}", family.0, label(d)));
    let data =
        [v.normals(t * hq * dim, qk), v.normals(s * hkv * dim, qk), v.normals(s * hkv * dim, v_sd)];
    build(family, d, &format!(" sd {qk}"), seed, data)
}

/// Keys whose score grows with the position, so that every tile rescales.
pub(super) fn rising(d: Dims, seed: u64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention rising {}", label(d)));
    let q: Vec<f64> = (0..t * hq * dim).map(|_| 1.0 + v.normal(0.3)).collect();
    let mut k = v.normals(s * hkv * dim, 0.3);
    for j in 0..s {
        let lift = 0.6 * (j as f64 / s as f64) + if j % 37 == 0 { 0.05 } else { 0.0 };
        k[j * hkv * dim..(j + 1) * hkv * dim].iter_mut().for_each(|x| *x += lift);
    }
    let values = v.normals(s * hkv * dim, 1.0);
    build(("unit", false), d, " rising", seed, [q, k, values])
}

/// Score gaps beyond 104: the output is v of one key, exactly.
pub(super) fn selecting(d: Dims, seed: u64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention selecting {}", label(d)));
    let code: Vec<f64> =
        (0..s * hkv * dim).map(|_| if v.below(2) == 0 { 16.0 } else { -16.0 }).collect();
    let mut q = vec![0.0; t * hq * dim];
    for i in 0..t {
        for h in 0..hq {
            // The query's own key, key 0, or any visible one.
            let own = s - t + i;
            let j = match (i + h) % 3 {
                0 => own,
                1 => 0,
                _ => v.below(own + 1),
            };
            let kv = h / (hq / hkv);
            let from = (j * hkv + kv) * dim;
            q[(i * hq + h) * dim..(i * hq + h + 1) * dim].copy_from_slice(&code[from..from + dim]);
        }
    }
    let values = (0..s * hkv * dim).map(|_| 512.0 * v.int(-100, 100) as f64).collect();
    build(("exact", true), d, " selecting", seed, [q, code, values])
}

/// Equal scores: the output is the mean of the visible values, one exact sum and one division.
pub(super) fn averaging(d: Dims, seed: u64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention averaging {}", label(d)));
    let q = vec![0.0; t * hq * dim];
    let k = v.normals(s * hkv * dim, 1.0);
    let values = (0..s * hkv * dim).map(|_| v.int(-100, 100) as f64).collect();
    build(("exact", true), d, " averaging", seed, [q, k, values])
}

/// Query biases that make raw scores of 9e4, beyond f16 and hard for f32.
pub(super) const BEYOND_F16: f64 = 364.0;
/// And of 5e3, which f32 holds well.
pub(super) const LARGE: f64 = 20.0;

/// A large constant key bias in two dimensions, as Qwen2.5 has it: large raw scores that hardly differ.
pub(super) fn key_bias(d: Dims, query: f64, seed: u64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention key bias {}", label(d)));
    let mut q = v.normals(t * hq * dim, 1.0);
    let mut k = v.normals(s * hkv * dim, 1.0);
    for row in q.chunks_exact_mut(dim) {
        row[dim * 15 / 32] += query;
        row[dim * 31 / 32] += query;
    }
    for row in k.chunks_exact_mut(dim) {
        row[dim * 15 / 32] += 100.0;
        row[dim * 31 / 32] += 147.0;
    }
    let values = v.normals(s * hkv * dim, 1.0);
    let note = if query == LARGE { " key bias" } else { " key bias beyond f16" };
    build(("outlier", false), d, note, seed, [q, k, values])
}

/// All visible scores near -9.2e4: a finite mask value would outweigh them.
pub(super) fn deep_negative(d: Dims, seed: u64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention deep {}", label(d)));
    // 90 at 128 elements; scores grow with the root of their number.
    let size = (90.0 * (128.0 / dim as f64).sqrt().sqrt()).ceil();
    let (q, k) = (vec![size; t * hq * dim], vec![-size; s * hkv * dim]);
    let values = (0..s * hkv * dim).map(|_| v.int(-100, 100) as f64).collect();
    build(("special", true), d, " deep scores", seed, [q, k, values])
}

/// NaN in the last key, and in some columns of the last value, which all queries but the last must not
/// see.
pub(super) fn masked_nan(d: Dims, seed: u64, in_key: bool) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let note = if in_key { " masked NaN key" } else { " masked NaN value" };
    let mut v = Values::new(seed, &format!("attention{note} {}", label(d)));
    let q = v.normals(t * hq * dim, 1.0);
    let mut k = v.normals(s * hkv * dim, 1.0);
    let mut values = v.normals(s * hkv * dim, 1.0);
    let last = (s - 1) * hkv * dim..s * hkv * dim;
    if in_key {
        k[last].fill(f64::NAN);
    } else {
        values[last].iter_mut().step_by(3).for_each(|x| *x = f64::NAN);
    }
    build(("special", true), d, note, seed, [q, k, values])
}

/// NaN that queries do see: in one query, in one early key, in one early value; one kind a kv head.
pub(super) fn seen_nan(d: Dims, seed: u64) -> Generated {
    let Dims { t, s, hq, hkv, dim, .. } = d;
    let mut v = Values::new(seed, &format!("attention seen NaN {}", label(d)));
    let mut q = v.normals(t * hq * dim, 1.0);
    let mut k = v.normals(s * hkv * dim, 1.0);
    let mut values = v.normals(s * hkv * dim, 1.0);
    q[(2 * hq) * dim + 5] = f64::NAN;
    // Key 38 of kv head 0 is seen by the last queries only, value 3 of kv head 1 by all.
    k[(38 * hkv) * dim + 7] = f64::NAN;
    values[(3 * hkv + 1) * dim + 9] = f64::NAN;
    build(("special", true), d, " seen NaN", seed, [q, k, values])
}
