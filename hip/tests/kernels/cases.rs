//! Small inputs on which every edit of the kernels shows.

use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

use crate::exact::{self, Awq, Exact, Gptq, Heads};

pub(crate) struct TestCase {
    pub(crate) name: &'static str,
    pub(crate) case: Case,
    /// Of all outputs, one after the other.
    pub(crate) exact: Vec<Exact>,
    /// Half a unit in the last place of the output dtype, relative.
    pub(crate) half_ulp: f64,
    /// What f32 arithmetic may add, relative to the magnitude of the terms.
    pub(crate) f32_error: f64,
}

/// xorshift64*; enough for test data.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in [-1, 1).
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    fn tensor(&mut self, dtype: Dtype, shape: &[usize], scale: f64) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| scale * self.unit()).collect();
        Tensor::from_f64(dtype, shape, &values)
    }

    fn words(&mut self, shape: &[usize]) -> (Tensor, Vec<i32>) {
        let words: Vec<i32> = (0..shape.iter().product()).map(|_| self.bits() as i32).collect();
        (Tensor::from_i32(shape, &words), words)
    }
}

pub(crate) fn of(kernel: &str) -> Vec<TestCase> {
    match kernel {
        "gemm_bf16" => vec![
            matmul("edges", 70, 71, 41, true),
            matmul("one tile, short K", 64, 64, 9, true),
            matmul("no bias", 3, 130, 64, false),
            matmul("K beyond 4096", 2, 5, 4100, true),
        ],
        "attention_prefill_d128" => vec![
            attention("cache", &Heads { t: 37, s: 70, q: 4, kv: 2 }, 1.7, false),
            attention("square", &Heads { t: 64, s: 64, q: 4, kv: 2 }, 1.7, false),
            attention("one query", &Heads { t: 1, s: 129, q: 6, kv: 2 }, 1.7, false),
            attention("scores near -1e4", &Heads { t: 5, s: 40, q: 2, kv: 1 }, 30.0, true),
        ],
        "gptq_dequant" => vec![
            gptq("v1, shuffled", (4, 64, 24), 16, true, "v1", Dtype::Bf16),
            gptq("v1, sequential, to f16", (4, 72, 264), 16, false, "v1", Dtype::F16),
            gptq("v2, one group", (4, 64, 16), -1, false, "v2", Dtype::Bf16),
            gptq("2 bits", (2, 64, 272), 12, true, "v1", Dtype::Bf16),
            gptq("3 bits", (3, 64, 288), 12, false, "v1", Dtype::Bf16),
            gptq("8 bits", (8, 64, 260), 12, true, "v2", Dtype::F16),
        ],
        "awq_dequant" => vec![
            awq("partial group", 72, 24, 32, Dtype::Bf16),
            awq("odd rows, to f16", 69, 136, 16, Dtype::F16),
            awq("one group", 64, 16, -1, Dtype::Bf16),
        ],
        "attention_decode_paged_d128" => vec![
            paged("two partitions", &Heads { t: 1, s: 257, q: 4, kv: 2 }, 16, 1.7),
            paged("a few queries", &Heads { t: 3, s: 258, q: 2, kv: 2 }, 32, 1.7),
            paged("seven heads", &Heads { t: 1, s: 17, q: 14, kv: 2 }, 16, 1.7),
            paged("unlike partitions", &Heads { t: 1, s: 600, q: 2, kv: 1 }, 32, 5.0),
        ],
        "silu_mul" => vec![
            silu_mul("tail and a second block", &[5, 481], 20.0, 1.0),
            silu_mul("whole chunks", &[2, 16], 3.0, 1.0),
            silu_mul("small products", &[3, 7], 2.0, 1e-6),
        ],
        "argmax" => vec![
            argmax("whole chunks", 5, 1032, Dtype::Bf16),
            argmax("odd rows", 5, 1030, Dtype::F32),
            argmax("short rows", 4, 70, Dtype::F16),
        ],
        "softmax" => vec![
            softmax("whole chunks", 5, 1032, 8.0, Dtype::Bf16),
            softmax("one chunk", 3, 40, 1.0, Dtype::Bf16),
            softmax("odd rows, steep", 3, 1030, 100.0, Dtype::F32),
        ],
        "embedding" => vec![
            embedding("ids beyond 16 bits", &[65_537, 65_999, 0, 65_536, 1], 66_000, 3, Dtype::I32),
            embedding("odd rows", &[10, 0, 3, 3, 9, 10], 11, 300, Dtype::I32),
            embedding("ids of 64 bits", &[7, 10, 0, 3], 11, 264, Dtype::I64),
        ],
        "kv_store_paged" => vec![
            kv_store("odd rows", &[17, 2, -1, 31, 0], [2, 16, 3, 5], Dtype::Bf16, None),
            kv_store("blocks of 32", &[63, 5, -1, 40], [2, 32, 4, 8], Dtype::F16, None),
            kv_store("fp8", &[15, -1, 4, 30], [2, 16, 2, 8], Dtype::Bf16, Some([0.25, 2.0])),
        ],
        "rms_norm" => vec![
            rms_norm("vectors", [5, 2, 2], 2056, 1.0),
            rms_norm("an odd width, some heads", [3, 3, 2], 333, 1.0),
            rms_norm("small", [4, 1, 1], 72, 2e-3),
        ],
        "add_rms_norm" => vec![
            add_rms_norm("vectors", 3, 2056, 1.0),
            add_rms_norm("an odd width", 2, 333, 1.0),
            add_rms_norm("small", 4, 72, 2e-3),
            add_rms_norm("sums beyond f16", 2, 65, 6e4),
        ],
        "qk_norm_rope" => vec![
            qk_norm_rope("three heads", &[0, 301, 40_001], 3, 1.0),
            qk_norm_rope("small", &[7], 2, 2e-3),
        ],
        "rope" => vec![
            rope("vectors", &[5, 6, 301, 40_001], 3, 128),
            rope("one pair at a time", &[5, 301, 40_001], 11, 62),
            rope("wide", &[9, 10], 2, 512),
        ],
        "gemv_bf16" => vec![
            matmul("vectors", 5, 6, 200, true),
            matmul("one by one", 3, 9, 71, true),
            matmul("no bias", 8, 4, 64, false),
            matmul("K beyond 4096", 2, 5, 4104, true),
        ],
        "gemm_bf16_splitk" => vec![
            matmul("edges", 70, 71, 41, true),
            matmul("vectors", 66, 65, 96, true),
            matmul("fewer terms than parts", 5, 9, 2, true),
            matmul("no bias", 3, 130, 64, false),
            matmul("K beyond 4096", 2, 5, 4128, true),
        ],
        "gptq_gemm" => vec![
            gptq_matmul(
                11,
                gptq("few, v1, sequential", (4, 136, 264), 16, false, "v1", Dtype::F16),
            ),
            gptq_matmul(3, gptq("few, v2, shuffled", (4, 64, 16), 16, true, "v2", Dtype::Bf16)),
            gptq_matmul(67, gptq("many, v1, shuffled", (4, 64, 72), 16, true, "v1", Dtype::Bf16)),
            gptq_matmul(52, gptq("many, v2, one group", (4, 40, 8), -1, false, "v2", Dtype::F16)),
        ],
        other => panic!("no cases for the kernel {other}"),
    }
}

pub(crate) fn long_attention() -> TestCase {
    attention("long", &Heads { t: 17, s: 4097, q: 2, kv: 1 }, 1.7, false)
}

fn case(op: &str, params: Value, dtype: Dtype, tensors: Vec<(&str, Tensor)>) -> Case {
    Case {
        op: op.to_owned(),
        params,
        dtype,
        tensors: tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect(),
        outputs: Default::default(),
        family: "unit".to_owned(),
        seed: 1,
    }
}

const HALF_ULP_BF16: f64 = 1.0 / 256.0;
const HALF_ULP_F16: f64 = 1.0 / 2048.0;

fn matmul(name: &'static str, m: usize, n: usize, k: usize, bias: bool) -> TestCase {
    let mut random = Random(11 + k as u64);
    let x = random.tensor(Dtype::Bf16, &[m, k], 1.0);
    let weight = random.tensor(Dtype::Bf16, &[n, k], 1.0);
    let bias = bias.then(|| random.tensor(Dtype::Bf16, &[n], 4.0));
    let bias_values = bias.as_ref().map(Tensor::to_f64);
    let exact = exact::matmul(&x.to_f64(), &weight.to_f64(), bias_values.as_deref(), k);
    let mut tensors = vec![("x", x), ("weight", weight)];
    tensors.extend(bias.map(|bias| ("bias", bias)));
    let case = case("matmul", json!({}), Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

/// With `opposed`, keys are near minus the queries: all scores are large and negative.
fn attention(name: &'static str, heads: &Heads, size: f64, opposed: bool) -> TestCase {
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
fn paged(name: &'static str, heads: &Heads, block: usize, size: f64) -> TestCase {
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

fn gptq(
    name: &'static str,
    (bits, k, n): (usize, usize, usize),
    group_size: i64,
    shuffled: bool,
    format: &str,
    dtype: Dtype,
) -> TestCase {
    let mut random = Random(5 + k as u64);
    let rows = usize::try_from(group_size).unwrap_or(k);
    let count = k.div_ceil(rows);
    let (qweight, weight_words) = random.words(&[k * bits / 32, n]);
    let (qzeros, zero_words) = random.words(&[count, n * bits / 32]);
    let scales = random.tensor(Dtype::F16, &[count, n], 0.05);
    // 29 is odd, so this is a permutation of a power of two of rows.
    let group = |row: usize| if shuffled { row * 29 % k / rows } else { row / rows };
    let groups: Vec<usize> = (0..k).map(group).collect();
    let g_idx: Vec<i32> = groups.iter().map(|&group| group as i32).collect();
    let exact = exact::gptq_dequant(&Gptq {
        qweight: &weight_words,
        qzeros: &zero_words,
        scales: &scales.to_f64(),
        groups: &groups,
        n,
        bits,
        plus_one: format == "v1",
    });
    let mut tensors = vec![("qweight", qweight), ("qzeros", qzeros), ("scales", scales)];
    if shuffled {
        tensors.push(("g_idx", Tensor::from_i32(&[k], &g_idx)));
    }
    let params = json!({ "format": format, "bits": bits, "group_size": group_size });
    let half_ulp = if dtype == Dtype::F16 { HALF_ULP_F16 } else { HALF_ULP_BF16 };
    TestCase {
        name,
        case: case("gptq_dequant", params, dtype, tensors),
        exact,
        half_ulp,
        f32_error: 0.0,
    }
}

fn silu_mul(name: &'static str, shape: &[usize], gate_size: f64, up_size: f64) -> TestCase {
    let mut random = Random(13 + shape[1] as u64);
    let gate = random.tensor(Dtype::Bf16, shape, gate_size);
    let up = random.tensor(Dtype::Bf16, shape, up_size);
    let exact = exact::silu_mul(&gate.to_f64(), &up.to_f64());
    let case = case("silu_mul", json!({}), Dtype::Bf16, vec![("gate", gate), ("up", up)]);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

/// Each row has one largest element: at the end, in between, below 0, a NaN. In f32 another element
/// is larger than it by less than bf16 tells.
fn argmax(name: &'static str, rows: usize, v: usize, dtype: Dtype) -> TestCase {
    let mut x = Random(17 + v as u64).tensor(dtype, &[rows, v], 1.0).to_f64();
    let places = [v - 1, 3 * v / 8, v / 2, 5, 0];
    for (r, (row, place)) in x.chunks_exact_mut(v).zip(places).enumerate() {
        row[place] = 3.0;
        match r {
            1 => row.iter_mut().for_each(|x| *x -= 8.0),
            2 => row[v / 3] = f64::NAN,
            3 if dtype == Dtype::F32 => row[v / 5] = 3.0001,
            _ => {}
        }
    }
    let x = Tensor::from_f64(dtype, &[rows, v], &x);
    let exact = exact::argmax(&x.to_f64(), v);
    // Indices are stored in f32 by the op.
    let case = case("argmax", json!({}), Dtype::F32, vec![("x", x)]);
    TestCase { name, case, exact, half_ulp: 0.0, f32_error: 0.0 }
}

fn softmax(name: &'static str, rows: usize, d: usize, size: f64, dtype: Dtype) -> TestCase {
    let x = Random(19 + d as u64).tensor(dtype, &[rows, d], size);
    let exact = exact::softmax(&x.to_f64(), d);
    let half_ulp = if dtype == Dtype::F32 { 0.0 } else { HALF_ULP_BF16 };
    let case = case("softmax", json!({}), dtype, vec![("x", x)]);
    TestCase { name, case, exact, half_ulp, f32_error: 1e-4 }
}

fn embedding(name: &'static str, ids: &[usize], v: usize, h: usize, id_dtype: Dtype) -> TestCase {
    let weight = Random(23 + h as u64).tensor(Dtype::Bf16, &[v, h], 1.0);
    let exact = exact::embedding(ids, &weight.to_f64(), h);
    let values: Vec<f64> = ids.iter().map(|&id| id as f64).collect();
    let tensors =
        vec![("ids", Tensor::from_f64(id_dtype, &[ids.len()], &values)), ("weight", weight)];
    let case = case("embedding", json!({}), Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: 0.0, f32_error: 0.0 }
}

/// With scales, powers of two, into e4m3.
fn kv_store(
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

const EPS: f64 = 1e-6;

/// Bf16 values near 1, as norms have them.
fn norm_weight(random: &mut Random, d: usize) -> Tensor {
    let values: Vec<f64> = (0..d).map(|_| 1.0 + 0.4 * random.unit()).collect();
    Tensor::from_f64(Dtype::Bf16, &[d], &values)
}

/// T tokens of some heads, of which the first few are normalised.
fn rms_norm(name: &'static str, [t, all, heads]: [usize; 3], d: usize, size: f64) -> TestCase {
    let mut random = Random(13 + d as u64);
    let x = random.tensor(Dtype::Bf16, &[t, all, d], size);
    let weight = norm_weight(&mut random, d);
    let own: Vec<f64> =
        x.to_f64().chunks_exact(all * d).flat_map(|token| token[..heads * d].to_vec()).collect();
    let exact = exact::rms_norm(&own, &weight.to_f64(), EPS);
    let params = json!({ "eps": EPS, "heads": heads });
    let case = case("rms_norm", params, Dtype::Bf16, vec![("x", x), ("weight", weight)]);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

fn add_rms_norm(name: &'static str, rows: usize, d: usize, size: f64) -> TestCase {
    let mut random = Random(17 + d as u64);
    let a = random.tensor(Dtype::Bf16, &[rows, d], size);
    let b = random.tensor(Dtype::Bf16, &[rows, d], size);
    let weight = norm_weight(&mut random, d);
    let sums: Vec<f64> = a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a + b).collect();
    let stored = Tensor::from_f64(Dtype::Bf16, &[rows, d], &sums).to_f64();
    let mut exact = exact::rms_norm(&stored, &weight.to_f64(), EPS);
    exact.extend(sums.iter().map(|&value| Exact { value, magnitude: value.abs() }));
    let params = json!({ "norm": { "eps": EPS } });
    let tensors = vec![("a", a), ("b", b), ("weight", weight)];
    let case = case("add_rms_norm", params, Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

fn rope(name: &'static str, positions: &[i32], heads: usize, d: usize) -> TestCase {
    let t = positions.len();
    let x = Random(19 + d as u64).tensor(Dtype::Bf16, &[t, heads, d], 1.0);
    let exact = exact::rope(&x.to_f64(), positions, d, 1e6);
    let tensors = vec![("x", x), ("positions", Tensor::from_i32(&[t], positions))];
    let case = case("rope", json!({ "theta": 1e6 }), Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-6 }
}

fn qk_norm_rope(name: &'static str, positions: &[i32], heads: usize, size: f64) -> TestCase {
    const D: usize = 128;
    let t = positions.len();
    let mut random = Random(23);
    let x = random.tensor(Dtype::Bf16, &[t, heads, D], size);
    let weight = norm_weight(&mut random, D);
    let normed: Vec<f64> =
        exact::rms_norm(&x.to_f64(), &weight.to_f64(), EPS).iter().map(|n| n.value).collect();
    let exact = exact::rope(&normed, positions, D, 1e6);
    let params = json!({ "norm": { "eps": EPS }, "rope": { "theta": 1e6 } });
    let positions = Tensor::from_i32(&[t], positions);
    let tensors = vec![("x", x), ("weight", weight), ("positions", positions)];
    let case = case("qk_norm_rope", params, Dtype::Bf16, tensors);
    TestCase { name, case, exact, half_ulp: HALF_ULP_BF16, f32_error: 1e-5 }
}

/// M rows and a bias for the layer of a dequantisation, whose weights are rounded to its dtype.
fn gptq_matmul(m: usize, dequant: TestCase) -> TestCase {
    let TestCase { name, case: Case { params, dtype, mut tensors, .. }, exact, .. } = dequant;
    let n = tensors["scales"].shape()[1];
    let k = exact.len() / n;
    let mut random = Random(19 + m as u64);
    let x = random.tensor(dtype, &[m, k], 1.0);
    let bias = random.tensor(dtype, &[n], 4.0);
    let values: Vec<f64> = exact.iter().map(|w| w.value).collect();
    let stored = Tensor::from_f64(dtype, &[k, n], &values).to_f64();
    let columns: Vec<f64> = (0..n * k).map(|i| stored[i % k * n + i / k]).collect();
    let exact = exact::matmul(&x.to_f64(), &columns, Some(&bias.to_f64()), k);
    tensors.extend([("x".to_owned(), x), ("bias".to_owned(), bias)]);
    let params = json!({ "dequant": params, "matmul": { "layout": "in_out" } });
    let tensors = tensors.iter().map(|(name, t)| (name.as_str(), t.clone())).collect();
    let half_ulp = if dtype == Dtype::F16 { HALF_ULP_F16 } else { HALF_ULP_BF16 };
    TestCase {
        name,
        case: case("gptq_gemm", params, dtype, tensors),
        exact,
        half_ulp,
        f32_error: 1e-5,
    }
}

fn awq(name: &'static str, k: usize, n: usize, group_size: i64, dtype: Dtype) -> TestCase {
    let mut random = Random(5 + k as u64);
    let rows_per_group = usize::try_from(group_size).unwrap_or(k);
    let groups = k.div_ceil(rows_per_group);
    let (qweight, weight_words) = random.words(&[k, n / 8]);
    let (qzeros, zero_words) = random.words(&[groups, n / 8]);
    let scales = random.tensor(Dtype::F16, &[groups, n], 0.05);
    let exact = exact::awq_dequant(&Awq {
        qweight: &weight_words,
        qzeros: &zero_words,
        scales: &scales.to_f64(),
        k,
        n,
        rows_per_group,
    });
    let tensors = vec![("qweight", qweight), ("qzeros", qzeros), ("scales", scales)];
    let half_ulp = if dtype == Dtype::F16 { HALF_ULP_F16 } else { HALF_ULP_BF16 };
    let params = json!({ "group_size": group_size });
    TestCase {
        name,
        case: case("awq_dequant", params, dtype, tensors),
        exact,
        half_ulp,
        f32_error: 0.0,
    }
}
