//! Weights in few bits: unpacked, and multiplied.

use assay_reference::{Case, Dtype, Tensor};
use serde_json::json;

use super::{HALF_ULP_BF16, HALF_ULP_F16, Random, TestCase, case};
use crate::exact::{self, Awq, Gptq};

pub(super) fn gptq(
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

/// M rows and a bias for the layer of a dequantisation, whose weights are rounded to its dtype.
pub(super) fn gptq_matmul(m: usize, dequant: TestCase) -> TestCase {
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

pub(super) fn awq(
    name: &'static str,
    k: usize,
    n: usize,
    group_size: i64,
    dtype: Dtype,
) -> TestCase {
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
