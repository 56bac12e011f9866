//! Small inputs on which every edit of the kernels shows.

use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

use crate::exact::{self, Awq, Exact, Gptq, Heads};

pub(crate) struct TestCase {
    pub(crate) name: &'static str,
    pub(crate) case: Case,
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
