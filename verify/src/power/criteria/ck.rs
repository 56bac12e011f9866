//! AMD Composable Kernel, `check_err` with its default tolerances.

use assay_reference::Dtype;

use super::{Compared, Criterion};

pub(super) const CHECK_ERR: Criterion = Criterion {
    name: "CK",
    rule: "|a - b| <= atol + rtol |b| for each element; (rtol, atol): bf16 and f16 (1e-3, 1e-3), f32 (1e-5, 3e-6), integers equal; nothing that is not finite",
    source: "https://github.com/ROCm/composable_kernel/blob/develop/library/include/ck/library/utility/check_err.hpp: check_err's default arguments",
    accepts,
};

fn accepts(seen: &Compared<'_>) -> bool {
    let (rtol, atol) = match seen.dtype {
        Dtype::Bf16 | Dtype::F16 => (1e-3, 1e-3),
        _ if seen.is_integer() => (0.0, 0.0),
        _ => (1e-5, 3e-6),
    };
    seen.pairs().all(|(o, r)| o.is_finite() && r.is_finite()) && seen.is_close(rtol, atol)
}
