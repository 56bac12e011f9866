//! PyTorch, `torch.testing.assert_close` with its default tolerances.

use assay_reference::Dtype;

use super::{Compared, Criterion};

pub(super) const ASSERT_CLOSE: Criterion = Criterion {
    name: "torch",
    rule: "|a - b| <= atol + rtol |b| for each element; (rtol, atol): bf16 (1.6e-2, 1e-5), f16 (1e-3, 1e-5), f32 (1.3e-6, 1e-5), f64 (1e-7, 1e-7), integers equal",
    source: "https://docs.pytorch.org/docs/stable/testing.html#torch.testing.assert_close, table of defaults; torch/testing/_comparison.py, _DTYPE_PRECISIONS",
    accepts,
};

fn accepts(seen: &Compared<'_>) -> bool {
    let (rtol, atol) = match seen.dtype {
        Dtype::Bf16 => (1.6e-2, 1e-5),
        Dtype::F16 => (1e-3, 1e-5),
        Dtype::F32 => (1.3e-6, 1e-5),
        Dtype::F64 => (1e-7, 1e-7),
        _ => (0.0, 0.0),
    };
    seen.is_close(rtol, atol)
}
