//! Families: seeded generators of cases.
//!
//! - `exact`: integers whose every partial sum and result is exact, so that any order gives the same
//!   bits and one missing or doubled term always shows;
//! - `unit`: values of standard deviation 1 or as the op sees them in a model;
//! - `outlier`: one channel at 26 times the rms, biases up to 147, inputs of sd 0.02;
//! - `special`: infinities, NaN, subnormals, negative zero, huge scores.
//!
//! Unit-scale random data alone is how wrong kernels pass.

mod attention;
mod gptq_dequant;
mod matmul;
mod values;

use assay_reference::ops::{Op, Tensors};
use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

pub use values::Values;

/// A generated case and how it is to be judged.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The case.
    pub case: Case,
    /// `unit 65x70x100 bias`.
    pub label: String,
    /// Whether errors are not random here, so that only hard radii apply.
    pub structured: bool,
}

/// All cases of an op for a kernel's check; empty when the op has no families yet.
pub fn cases(op: &str, seed: u64) -> Vec<Generated> {
    match op {
        "matmul" => matmul::cases(seed),
        "attention" => attention::cases(seed),
        "gptq_dequant" => gptq_dequant::cases(seed),
        _ => Vec::new(),
    }
}

/// Builds a [`Generated`].
pub(crate) fn generated(
    op: &str,
    (family, structured): (&str, bool),
    label: &str,
    seed: u64,
    params: Value,
    dtype: Dtype,
    tensors: Tensors,
) -> Generated {
    let case = Case {
        op: op.into(),
        params,
        dtype,
        tensors,
        outputs: Tensors::new(),
        family: family.into(),
        seed,
    };
    Generated { case, label: format!("{family} {label}"), structured }
}

/// Small valid params and tensors of an op, for listing its knobs and faults.
pub fn example<O: Op>() -> Option<(O::Params, Tensors)> {
    let (params, tensors) = example_of(O::NAME)?;
    Some((serde_json::from_value(params).ok()?, tensors))
}

fn example_of(op: &str) -> Option<(Value, Tensors)> {
    let ones =
        |shape: &[usize]| Tensor::from_f64(Dtype::Bf16, shape, &vec![1.0; shape.iter().product()]);
    let ints = |shape: &[usize]| Tensor::from_i32(shape, &vec![0; shape.iter().product()]);
    let gptq = [
        ("qweight", ints(&[32, 16])),
        ("qzeros", ints(&[8, 2])),
        ("scales", ones(&[8, 16])),
        ("g_idx", ints(&[256])),
    ];
    let gptq_params = json!({ "format": "v1", "group_size": 32 });
    let (params, tensors): (Value, Vec<(&str, Tensor)>) = match op {
        "embedding" => (json!({}), vec![("ids", ints(&[3])), ("weight", ones(&[5, 8]))]),
        "rms_norm" => {
            (json!({ "eps": 1e-6 }), vec![("x", ones(&[2, 200])), ("weight", ones(&[200]))])
        }
        "matmul" => (
            json!({}),
            vec![("x", ones(&[3, 20000])), ("weight", ones(&[4, 20000])), ("bias", ones(&[4]))],
        ),
        "gptq_dequant" => (gptq_params, gptq.into()),
        "gptq_gemm" => (
            json!({ "dequant": gptq_params, "matmul": { "layout": "in_out" } }),
            gptq.into_iter().chain([("x", ones(&[3, 256])), ("bias", ones(&[16]))]).collect(),
        ),
        "rope" => {
            (json!({ "theta": 2e6 }), vec![("x", ones(&[2, 1, 8])), ("positions", ints(&[2]))])
        }
        "softmax" => (json!({}), vec![("x", ones(&[2, 8]))]),
        "attention" => (
            json!({ "scale": 1.0 / 128f64.sqrt() }),
            vec![
                ("q", ones(&[3, 4, 128])),
                ("k", ones(&[5000, 2, 128])),
                ("v", ones(&[5000, 2, 128])),
            ],
        ),
        "silu_mul" => (json!({}), vec![("gate", ones(&[2, 8])), ("up", ones(&[2, 8]))]),
        "add" => (json!({}), vec![("a", ones(&[2, 8])), ("b", ones(&[2, 8]))]),
        "argmax" => (json!({}), vec![("x", ones(&[2, 8]))]),
        _ => return None,
    };
    Some((params, tensors.into_iter().map(|(k, v)| (k.to_string(), v)).collect()))
}
