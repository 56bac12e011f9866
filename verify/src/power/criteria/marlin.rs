//! vLLM, the tests of its Marlin kernels: ratio of mean absolute values.

use super::{Compared, Criterion};

pub(super) const MEAN_RATIO: Criterion = Criterion {
    name: "marlin",
    rule: "mean |a - b| / mean |b| < 0.04",
    source: "https://github.com/vllm-project/vllm/blob/main/tests/kernels/quantization/test_marlin_gemm.py: compute_max_diff, `assert max_diff < 0.04`",
    accepts,
};

fn accepts(seen: &Compared<'_>) -> bool {
    let error: f64 = seen.pairs().map(|(o, r)| (o - r).abs()).sum();
    let mean: f64 = seen.pairs().map(|(_, r)| r.abs()).sum();
    error == 0.0 || error / mean < 0.04
}
