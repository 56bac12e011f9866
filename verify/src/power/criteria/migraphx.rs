//! AMD MIGraphX, `migraphx-driver verify`: root mean square error.

use assay_reference::Dtype;

use super::{Compared, Criterion};

pub(super) const RMS: Criterion = Criterion {
    name: "MIGraphX",
    rule: "sqrt(mean (a - b)^2) / max(|a|, |b|) <= 8e-2 with any 16-bit type in the program, else 1e-3",
    source: "https://github.com/ROCm/AMDMIGraphX: src/include/migraphx/verify.hpp, rms_range and verify_range_with_tolerance; src/driver/verify.cpp, get_tolerances",
    accepts,
};

fn accepts(seen: &Compared<'_>) -> bool {
    let limit = match seen.dtype {
        Dtype::Bf16 | Dtype::F16 => 8e-2,
        _ => 1e-3,
    };
    let square: f64 = seen.pairs().map(|(o, r)| (o - r) * (o - r)).sum();
    let largest = seen.pairs().map(|(o, r)| o.abs().max(r.abs())).fold(f64::MIN_POSITIVE, f64::max);
    square.sqrt() / ((seen.output.len() as f64).sqrt() * largest) <= limit
}
