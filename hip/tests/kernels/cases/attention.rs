//! Queries over keys and values: given, in a paged cache, and written into one.

use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::{HALF_ULP_BF16, Random, TestCase, case};
use crate::exact::{self, Heads};

/// With `opposed`, keys are near minus the queries: all scores are large and negative.
pub(super) fn attention(name: &'static str, heads: &Heads, size: f64, opposed: bool) -> TestCase {
    let mut random = Random(7 + heads.s as u64);
    let shape_q = [heads.t, heads.q, 128];
    let shape_kv = [heads.s, heads.kv, 128];
    let mut tensor = |shape: &[usize], sign: f64| {
        if opposed {
            let values = random.tensor(Dtype::F64, shape, 0.01).to_f64();
            let values: Vec<f64> = values.iter().map(|noise| sign * size * (1.0 + noise)).collect();
            Tensor::from_f64(Dtype::Bf16, shape, &values)
        } else {
            random.tensor(Dtype::Bf16, shape, size)
        }
    };
    let (q, k) = (tensor(&shape_q, 1.0), tensor(&shape_kv, -1.0));
    let v = Random(3).tensor(Dtype::Bf16, &shape_kv, 1.0);
    let scale = 1.0 / 128.0_f64.sqrt();
    let exact =
        exact::attention(&q.to_f64(), &k.to_f64(), &v.to_f64(), heads, f64::from(scale as f32));
    // One unit in the last place of a score of -1e4 is 1e-3 in the exponent.
    let f32_error = if opposed { 1e-2 } else { 1e-4 };
    let tensors = vec![("q", q), ("k", k), ("v", v)];
    let case = case("attention", json!({ "scale": scale }), Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error }
}

/// Blocks in a stride through the cache; stale slots and spare blocks hold NaN.
pub(super) fn paged(name: &'static str, heads: &Heads, block: usize, size: f64) -> TestCase {
    let mut random = Random(9 + heads.s as u64);
    let entries = heads.s.div_ceil(block) + 1;
    // 3 is prime to it.
    let blocks = 3 * entries + 2;
    let table: Vec<i32> = (0..entries).map(|i| ((3 * i + 4) % blocks) as i32).collect();
    let rows: Vec<usize> =
        (0..heads.s).map(|j| table[j / block] as usize * block + j % block).collect();
    let mut cache = |size: f64| {
        let shape = [blocks, block, heads.kv, 128];
        let width = heads.kv * 128;
        let used: std::collections::BTreeSet<usize> = rows.iter().copied().collect();
        let all = random.tensor(Dtype::Bf16, &shape, size);
        all.map(|i, x| if used.contains(&(i / width)) { x } else { f64::NAN })
    };
    let (k, v) = (cache(size), cache(1.0));
    let q = Random(3).tensor(Dtype::Bf16, &[heads.t, heads.q, 128], size);
    let scale = 1.0 / 128.0_f64.sqrt();
    let caches = [&*k.to_f64(), &*v.to_f64()];
    let exact = exact::attention_paged(&q.to_f64(), caches, &rows, heads, f64::from(scale as f32));
    let tensors = vec![
        ("q", q),
        ("k_cache", k),
        ("v_cache", v),
        ("block_table", Tensor::from_i32(&[entries], &table)),
        ("context_len", Tensor::from_i32(&[1], &[heads.s as i32])),
    ];
    let params = json!({ "attention": { "scale": scale } });
    let case = case("attention_paged", params, Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-4 }
}

/// With scales, powers of two, into e4m3.
pub(super) fn kv_store(
    name: &'static str,
    slots: &[i32],
    cache: [usize; 4],
    dtype: Dtype,
    scales: Option<[f64; 2]>,
) -> TestCase {
    let [_, _, heads, d] = cache;
    let mut random = Random(29 + d as u64);
    let stored = if scales.is_some() { Dtype::F8E4m3 } else { dtype };
    let mut tokens = || random.tensor(dtype, &[slots.len(), heads, d], 200.0);
    let (k, v) = (tokens(), tokens());
    let mut before = || random.tensor(stored, &cache, 2.0);
    let (k_cache, v_cache) = (before(), before());
    let [k_scale, v_scale] = scales.unwrap_or([1.0; 2]);
    let after = |x: &Tensor, cache: &Tensor, scale: f64| {
        let scaled: Vec<f64> = x.to_f64().iter().map(|x| x / scale).collect();
        let rows = Tensor::from_f64(stored, x.shape(), &scaled).to_f64();
        exact::kv_store(&rows, &cache.to_f64(), slots, heads * d)
    };
    let mut exact = after(&k, &k_cache, k_scale);
    exact.extend(after(&v, &v_cache, v_scale));
    let tensors = vec![
        ("k", k),
        ("v", v),
        ("k_cache", k_cache),
        ("v_cache", v_cache),
        ("slot_mapping", Tensor::from_i32(&[slots.len()], slots)),
    ];
    let case = case("kv_store", json!({ "scales": [k_scale, v_scale] }), stored, tensors);
    TestCase { name, case, exact, half_ulp: 0.0, f32_error: 0.0 }
}
