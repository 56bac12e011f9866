//! Small inputs on which every edit of the kernels shows.

mod attention;
mod norms;
mod quantised;

use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

use self::attention::{attention, kv_store, paged};
use self::norms::{add_rms_norm, qk_norm_rope, rms_norm, rope};
use self::quantised::{awq, gptq, gptq_matmul};
use crate::exact::{self, Exact, Heads};

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
