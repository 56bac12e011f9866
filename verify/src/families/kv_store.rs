//! Cases of `kv_store`: tokens into slots in no order, padding among them, over caches that are not
//! empty; caches of the tokens' dtype, of a narrower one, and of scaled FP8.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

use super::{Generated, Values, generated};

const OP: &str = "kv_store";

/// (T, blocks, block_size, Hkv, D).
type Dims = (usize, usize, usize, usize, usize);

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let none = json!({});
    vec![
        case((1, 2, 16, 1, 8), seed, "unit", (Dtype::Bf16, Dtype::Bf16), &none),
        case((7, 3, 16, 2, 16), seed, "unit", (Dtype::Bf16, Dtype::Bf16), &none),
        case((5, 2, 32, 4, 8), seed, "unit", (Dtype::F16, Dtype::F16), &none),
        case((9, 3, 16, 2, 32), seed, "unit", (Dtype::F32, Dtype::Bf16), &none),
        case(
            (9, 3, 16, 2, 32),
            seed,
            "outlier",
            (Dtype::Bf16, Dtype::F8E4m3),
            &json!({ "scales": [0.37, 0.0123] }),
        ),
        marked("exact", (Dtype::Bf16, Dtype::Bf16), seed),
        marked("exact", (Dtype::F16, Dtype::F16), seed),
        marked("exact", (Dtype::F32, Dtype::Bf16), seed),
        marked("special", (Dtype::Bf16, Dtype::Bf16), seed),
    ]
}

/// Numbers of tokens on both sides of what waves and blocks take; rows that vector loads do not fill,
/// and rows longer than a block takes at once, by elements and by vectors; FP8 caches.
pub(super) fn edges(seed: u64) -> Vec<Generated> {
    let (copied, to_fp8) = ((Dtype::Bf16, Dtype::Bf16), (Dtype::Bf16, Dtype::F8E4m3));
    let unit = |d: Dims| case(d, seed, "unit", copied, &json!({}));
    let mut out: Vec<Generated> =
        [2, 8, 15, 16, 17, 63, 64, 65].map(|t| unit((t, 9, 16, 2, 8))).into();
    out.extend([(3, 2, 16, 3, 5), (2, 2, 2, 3, 87), (2, 2, 2, 17, 128)].map(unit));
    out.push(case((2, 2, 16, 3, 5), seed, "unit", to_fp8, &json!({ "scales": [0.25, 0.03] })));
    out.push(marked("exact", to_fp8, seed));
    out.push(marked("special", to_fp8, seed));
    out
}

fn case(
    (t, blocks, size, heads, d): Dims,
    seed: u64,
    family: &str,
    (from, to): (Dtype, Dtype),
    params: &Value,
) -> Generated {
    let label = format!("{t} tokens, {blocks} blocks of {size}, {heads}x{d}, {from} to {to}");
    let mut v = Values::new(seed, &format!("{OP} {label}"));
    let total = blocks * size;
    // Neighbours of written slots stay, so that a slot that is off by one shows.
    let mut slots: Vec<i32> =
        v.permutation(total / 2).into_iter().take(t).map(|s| 2 * s as i32).collect();
    if t > 2 {
        slots[t / 2] = -1;
    }
    // K reaches 200 in a scaled cache: beyond an e4m3 without its scale only when multiplied by it.
    let sd = if family == "outlier" { 60.0 } else { 1.0 };
    let mut tokens =
        |sd: f64| Tensor::from_f64(from, &[t, heads, d], &v.normals(t * heads * d, sd));
    let (k, values) = (tokens(sd), tokens(sd / 30.0));
    let shape = [blocks, size, heads, d];
    let mut cache = || Tensor::from_f64(to, &shape, &v.normals(total * heads * d, 1.0));
    let tensors = Tensors::from([
        ("k".to_string(), k),
        ("v".to_string(), values),
        ("k_cache".to_string(), cache()),
        ("v_cache".to_string(), cache()),
        ("slot_mapping".to_string(), Tensor::from_i32(&[t], &slots)),
    ]);
    generated(OP, (family, false), &label, seed, params.clone(), to, tensors)
}

/// Elements that name their token and place, many of them ties of a narrower cache; or, among them,
/// NaN, infinities, zeros of either sign and subnormals.
fn marked(family: &str, (dtype, stored): (Dtype, Dtype), seed: u64) -> Generated {
    let (t, heads, d) = (5, 2, 8);
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.1e-39, -9.2e-41];
    let value = |by: usize| {
        move |i: usize| match odd.get(i % 11) {
            Some(x) if family == "special" => *x,
            // Half-way between two numbers of a bf16 cache.
            _ if dtype == Dtype::F32 => 257.0 + 2.0 * (i * by % 101) as f64,
            _ => (i * by % 509) as f64 - 254.0,
        }
    };
    let tokens = |by: usize| {
        let values: Vec<f64> = (0..t * heads * d).map(value(by)).collect();
        Tensor::from_f64(dtype, &[t, heads, d], &values)
    };
    let cache = |by: usize| {
        let values: Vec<f64> = (0..32 * heads * d).map(|i| (i * by % 251) as f64 - 250.0).collect();
        Tensor::from_f64(stored, &[2, 16, heads, d], &values)
    };
    let tensors = Tensors::from([
        ("k".to_string(), tokens(37)),
        ("v".to_string(), tokens(41)),
        ("k_cache".to_string(), cache(11)),
        ("v_cache".to_string(), cache(13)),
        ("slot_mapping".to_string(), Tensor::from_i32(&[t], &[17, 2, -1, 31, 0])),
    ]);
    let label = format!("{t} tokens marked, {dtype} to {stored}");
    generated(OP, (family, true), &label, seed, json!({}), stored, tensors)
}
