//! vLLM, the default tolerances of its kernel tests.

use assay_reference::Dtype;

use super::{Compared, Criterion};

pub(super) const DEFAULT: Criterion = Criterion {
    name: "vLLM",
    rule: "|a - b| <= atol + rtol |b| for each element; (rtol, atol): bf16 (1.6e-2, 1e-3), f16 (1e-3, 1e-3), f32 (1.3e-6, 1e-5)",
    source: "https://github.com/vllm-project/vllm/blob/main/tests/kernels/allclose_default.py: default_atol, default_rtol",
    accepts,
};

fn accepts(seen: &Compared<'_>) -> bool {
    let (rtol, atol) = match seen.dtype {
        Dtype::Bf16 => (1.6e-2, 1e-3),
        Dtype::F16 => (1e-3, 1e-3),
        Dtype::F32 | Dtype::F64 => (1.3e-6, 1e-5),
        _ => (0.0, 0.0),
    };
    seen.is_close(rtol, atol)
}
