//! Small cases of `attention`, and those that the kernels' contracts do not allow: short heads, f16,
//! sliding windows.

use assay_reference::Dtype;
use serde_json::json;

use super::Generated;
use super::attention::{
    BEYOND_F16, Dims, LARGE, averaging, deep_negative, key_bias, masked_nan, random, rising,
    seen_nan, selecting,
};

const UNIT: (&str, bool) = ("unit", false);
const OUTLIER: (&str, bool) = ("outlier", false);

fn dims((t, s, hq, hkv): (usize, usize, usize, usize), dim: usize) -> Dims {
    Dims { t, s, hq, hkv, dim, dtype: Dtype::Bf16 }
}

fn f16(d: Dims) -> Dims {
    Dims { dtype: Dtype::F16, ..d }
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    // Prompts, chunks, decoding; every GQA ratio of Qwen.
    for d in [(7, 7, 4, 2), (3, 20, 6, 3), (2, 12, 14, 2)] {
        out.push(random(dims(d, 16), seed, UNIT, 1.0, 1.0));
    }
    for d in [(1, 20, 28, 4), (1, 15, 40, 8), (1, 17, 16, 8)] {
        out.push(random(dims(d, 8), seed, UNIT, 1.0, 1.0));
    }
    out.push(random(dims((2, 6, 4, 2), 128), seed, UNIT, 1.0, 1.0));
    out.push(random(f16(dims((4, 21, 4, 2), 16)), seed, UNIT, 1.5, 1.0));
    // Flat scores: every key carries visible weight.
    out.push(random(dims((4, 37, 4, 2), 16), seed, UNIT, 0.2, 1.0));
    out.push(random(f16(dims((3, 30, 4, 2), 16)), seed, UNIT, 0.2, 1.0));
    out.push(random(dims((2, 290, 2, 1), 8), seed, UNIT, 0.3, 1.0));
    out.push(rising(dims((2, 150, 2, 1), 16), seed));
    // Beyond every window.
    out.push(random(dims((1, 4100, 1, 1), 8), seed, UNIT, 0.3, 1.0));
    out.push(windowed(dims((6, 40, 4, 2), 16), 12, seed));
    out.push(windowed(dims((3, 24, 2, 1), 16), 1, seed));
    for d in [(6, 6, 4, 2), (4, 30, 4, 2), (1, 64, 2, 1)] {
        out.push(selecting(dims(d, 16), seed));
        out.push(averaging(dims(d, 16), seed));
    }
    out.push(key_bias(dims((6, 26, 4, 2), 16), LARGE, seed));
    out.push(key_bias(dims((6, 26, 4, 2), 16), BEYOND_F16, seed));
    out.push(random(dims((4, 20, 4, 2), 16), seed, OUTLIER, 4.0, 26.0));
    out.push(deep_negative(dims((6, 16, 4, 2), 16), seed));
    for in_key in [true, false] {
        out.push(masked_nan(dims((4, 12, 4, 2), 16), seed, in_key));
    }
    out.push(seen_nan(dims((4, 40, 4, 2), 16), seed));
    out
}

/// Flat scores behind a sliding window.
fn windowed(d: Dims, window: usize, seed: u64) -> Generated {
    let mut g = random(d, seed, UNIT, 0.3, 1.0);
    g.case.params["window"] = json!(window);
    g.label += &format!(" window {window}");
    g
}
