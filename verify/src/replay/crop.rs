//! Smaller cases from a case: fewer rows, columns, keys and heads, then plainer values.

use assay_reference::{Case, Dtype, Tensor};
use serde_json::Value;

/// How many sizes of a case can be made smaller.
pub(super) const AXES: usize = 5;
/// How many tensors can be made plainer.
pub(super) const VALUES: usize = 4;
/// [`plainer`]: the values as they are.
pub(super) const ORIGINAL: u32 = 3;

/// The sizes of a case, counted from the smallest that the op's contract allows, 0: in the order in which
/// they are made smaller. All 0 for a case whose op has no rule here.
pub(super) fn sizes(case: &Case) -> [usize; AXES] {
    let shape = |name: &str| case.tensors.get(name).map_or(&[][..], Tensor::shape);
    let bias = usize::from(case.tensors.contains_key("bias"));
    match (case.op.as_str(), shape("x"), shape("weight"), shape("q"), shape("k")) {
        ("matmul", &[m, k], &[n, wide], ..) if out_in(case) && k == wide && m * n * k > 0 => {
            [m - 1, n - 1, k - 1, bias, 0]
        }
        ("attention", .., &[t, hq, _], &[s, hkv, _])
            if 0 < t && t <= s && hkv > 0 && hq > 0 && hq % hkv == 0 =>
        {
            [t - 1, s - t, hkv - 1, hq / hkv - 1, 0]
        }
        ("gptq_dequant", ..) => match *shape("qweight") {
            [words, n] if packed_in_eights(case) && words > 0 && n >= 8 => {
                [words - 1, n / 8 - 1, 0, 0, 0]
            }
            _ => [0; AXES],
        },
        _ => [0; AXES],
    }
}

fn out_in(case: &Case) -> bool {
    case.params.get("layout").is_none_or(|l| l == "out_in")
}

fn packed_in_eights(case: &Case) -> bool {
    case.params.get("bits").is_none_or(|b| *b == 4)
}

/// A case of the given sizes, each at most the case's own.
pub(super) fn crop(case: &Case, sizes: [usize; AXES]) -> Case {
    if sizes == self::sizes(case) {
        return case.clone();
    }
    let mut out = case.clone();
    out.outputs.clear();
    let mut cut = |name: &str, axis: usize, range: std::ops::Range<usize>| {
        if let Some(t) = out.tensors.get_mut(name) {
            *t = t.slice_axis(axis, range);
        }
    };
    let [a, b, c, d, _] = sizes;
    match case.op.as_str() {
        "matmul" => {
            cut("x", 0, 0..a + 1);
            cut("weight", 0, 0..b + 1);
            cut("bias", 0, 0..b + 1);
            cut("x", 1, 0..c + 1);
            cut("weight", 1, 0..c + 1);
            if d == 0 {
                out.tensors.remove("bias");
            }
        }
        "attention" => {
            // The last queries and the newest keys keep their places relative to each other.
            let len = |name: &str, axis: usize| case.tensors[name].shape()[axis];
            let (t, s) = (len("q", 0), len("k", 0));
            cut("q", 0, t - (a + 1)..t);
            cut("q", 1, 0..(c + 1) * (d + 1));
            for name in ["k", "v"] {
                cut(name, 0, s - (a + 1 + b)..s);
                cut(name, 1, 0..c + 1);
            }
        }
        "gptq_dequant" => crop_gptq(case, &mut out, 8 * (a + 1), 8 * (b + 1)),
        _ => {}
    }
    out
}

fn crop_gptq(case: &Case, out: &mut Case, k: usize, n: usize) {
    let size = case.params.get("group_size").and_then(Value::as_i64).unwrap_or(-1);
    let groups = usize::try_from(size).ok().filter(|&s| s > 0).map_or(1, |s| k.div_ceil(s));
    for (name, rows, cols) in
        [("qweight", k / 8, n), ("qzeros", groups, n / 8), ("scales", groups, n)]
    {
        if let Some(t) = out.tensors.get_mut(name) {
            *t = t.slice_axis(0, 0..rows).slice_axis(1, 0..cols);
        }
    }
    if let Some(t) = out.tensors.get_mut("g_idx") {
        // Groups that are gone become others: reordered rows stay reordered.
        let kept: Vec<i32> =
            (0..k).map(|i| (t.get_i64(i).unsigned_abs() as usize % groups) as i32).collect();
        *t = Tensor::from_i32(&[k], &kept);
    }
}

/// The tensors whose values can be made plainer: all but indices.
pub(super) fn values(case: &Case) -> Vec<String> {
    let index = |name: &str| ["ids", "positions"].contains(&name) || name.ends_with("g_idx");
    case.tensors.keys().filter(|name| !index(name)).take(VALUES).cloned().collect()
}

/// Values of a level: 0 all ones (packed words: zeros), 1 signs (packed: every nibble), 2 integers from
/// -3 to 3, [`ORIGINAL`] as they are.
pub(super) fn plainer(t: &Tensor, level: u32) -> Tensor {
    if level >= ORIGINAL {
        return t.clone();
    }
    if !matches!(t.dtype(), Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64) {
        return match (t.dtype(), level) {
            (Dtype::I32, 0) => Tensor::from_i32(t.shape(), &vec![0; t.len()]),
            (Dtype::I32, 1) => Tensor::from_i32(t.shape(), &vec![0x7654_3210; t.len()]),
            _ => t.clone(),
        };
    }
    let values = t.to_f64();
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let count = finite().count().max(1) as f64;
    let rms = (finite().map(|x| x / count * x).sum::<f64>()).sqrt();
    t.map(|_, x| match level {
        0 => 1.0,
        1 if x < 0.0 => -1.0,
        1 => 1.0,
        _ if rms > 0.0 && x.is_finite() => (2.0 * x / rms).round().clamp(-3.0, 3.0),
        _ => 0.0,
    })
}
