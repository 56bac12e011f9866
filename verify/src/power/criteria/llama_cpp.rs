//! llama.cpp, `tests/test-backend-ops.cpp`: normalised mean square error.

use super::{Compared, Criterion};

pub(super) const NMSE: Criterion = Criterion {
    name: "llama.cpp",
    rule: "sum (a - b)^2 / sum b^2 <= 5e-4 for products and attention, 1e-6 for softmax, 0 for argmax, else 1e-7; no NaN",
    source: "https://github.com/ggml-org/llama.cpp/blob/master/tests/test-backend-ops.cpp: nmse(), max_nmse_err() of test_case, test_mul_mat, test_mul_mat_id, test_flash_attn_ext, test_soft_max, test_argmax",
    accepts,
};

/// The limits by op. The default was set for f32 outputs; its users get no other for a 16-bit store.
fn limit(op: &str) -> f64 {
    match op {
        "matmul" | "attention" | "attention_paged" | "moe_experts" => 5e-4,
        op if op.ends_with("_gemm") => 5e-4,
        "softmax" => 1e-6,
        "argmax" => 0.0,
        _ => 1e-7,
    }
}

fn accepts(seen: &Compared<'_>) -> bool {
    if seen.pairs().any(|(o, r)| o.is_nan() || r.is_nan() || (o.is_infinite() && o != r)) {
        return false;
    }
    let (mut error, mut square) = (0.0, 0.0);
    for (o, r) in seen.pairs().filter(|(o, r)| o.is_finite() && r.is_finite()) {
        error += (o - r) * (o - r);
        square += r * r;
    }
    // 0 / 0 compares as not above the limit, as it does in the source.
    error == 0.0 || error / square <= limit(seen.op)
}
