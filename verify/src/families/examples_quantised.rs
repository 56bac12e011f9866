//! Examples of the quantised formats and of the linear layers over them.

use assay_reference::ops::packed;
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

/// Beyond every K limit, with a tail for every tile, and whole words at every width.
const K: usize = 16_392;
/// The same for 3 bits.
const K3: usize = 16_416;
const GROUP: usize = 32;
/// More than a block of rows, whole words, and a last group that is not full.
const SMALL: usize = 72;

type Example = (Value, Vec<(&'static str, Tensor)>);
/// A dequantisation's params, outputs and inputs, and tensors.
type Layer = (Value, [usize; 2], Vec<(&'static str, Tensor)>);

fn ones(dtype: Dtype, shape: &[usize]) -> Tensor {
    Tensor::from_f64(dtype, shape, &vec![1.0; shape.iter().product()])
}

fn words(shape: &[usize]) -> Tensor {
    Tensor::from_i32(shape, &vec![0; shape.iter().product()])
}

/// Valid params and tensors of a quantised op: together they have every fault.
pub(super) fn examples(op: &str) -> Vec<Example> {
    let (format, is_gemm) = match op.strip_suffix("_gemm") {
        Some(format) => (format, true),
        None => (op.strip_suffix("_dequant").unwrap_or(op), false),
    };
    let layers: Vec<Layer> = match format {
        "gptq" => vec![
            gptq("v1", 4, K),
            gptq("v2", 4, K),
            gptq("v1", 3, K3),
            in_sequence(gptq("v1", 4, SMALL)),
            one_group(gptq("v1", 4, SMALL)),
        ],
        "awq" => vec![awq(K), awq(SMALL)],
        "ct" => vec![compressed(4, K), compressed(3, K3), in_sequence(compressed(4, SMALL))],
        "fp8" => vec![fp8(K), fp8(SMALL)],
        _ => Vec::new(),
    };
    let layout = if ["gptq", "awq"].contains(&format) { "in_out" } else { "out_in" };
    layers
        .into_iter()
        .map(|(dequant, [n, k], mut tensors)| {
            if !is_gemm {
                return (dequant, tensors);
            }
            // The small layers are of an f16 model.
            let dtype = if k == SMALL { Dtype::F16 } else { Dtype::Bf16 };
            tensors.push(("x", ones(dtype, &[3, k])));
            tensors.push(("bias", ones(Dtype::Bf16, &[n])));
            (
                json!({ "dequant": dequant, "matmul": { "layout": layout, "row_parallel": true } }),
                tensors,
            )
        })
        .collect()
}

/// The layer without an index of groups.
fn in_sequence((params, sizes, mut tensors): Layer) -> Layer {
    tensors.retain(|(name, _)| !name.ends_with("g_idx"));
    (params, sizes, tensors)
}

/// A GPTQ layer of one group.
fn one_group(layer: Layer) -> Layer {
    let (mut params, [n, k], mut tensors) = in_sequence(layer);
    params["group_size"] = json!(-1);
    for (name, t) in &mut tensors {
        match *name {
            "qzeros" => *t = words(&[1, n / 8]),
            "scales" => *t = ones(Dtype::F16, &[1, n]),
            _ => {}
        }
    }
    (params, [n, k], tensors)
}

fn gptq(format: &str, bits: u32, k: usize) -> Layer {
    let (n, groups) = (2 * packed::per_run(bits), k.div_ceil(GROUP));
    let params = json!({ "format": format, "bits": bits, "group_size": GROUP });
    let tensors = vec![
        ("qweight", words(&[packed::words(k, bits), n])),
        ("qzeros", words(&[groups, packed::words(n, bits)])),
        ("scales", ones(Dtype::F16, &[groups, n])),
        ("g_idx", unsorted(k)),
    ];
    (params, [n, k], tensors)
}

/// An index of groups that sorting would change.
fn unsorted(k: usize) -> Tensor {
    let groups: Vec<i32> = (0..k as i32).map(|i| i % 2).collect();
    Tensor::from_i32(&[k], &groups)
}

fn awq(k: usize) -> Layer {
    let groups = k.div_ceil(GROUP);
    let tensors = vec![
        ("qweight", words(&[k, 2])),
        ("qzeros", words(&[groups, 2])),
        ("scales", ones(Dtype::F16, &[groups, 16])),
    ];
    (json!({ "group_size": GROUP }), [16, k], tensors)
}

fn compressed(bits: u32, k: usize) -> Layer {
    let (n, groups) = (packed::per_run(bits), k.div_ceil(GROUP));
    let tensors = vec![
        ("weight_packed", words(&[n, packed::words(k, bits)])),
        ("weight_scale", ones(Dtype::Bf16, &[n, groups])),
        ("weight_zero_point", words(&[packed::words(n, bits), groups])),
        ("weight_g_idx", unsorted(k)),
        ("weight_shape", Tensor::from_i32(&[2], &[n as i32, k as i32])),
    ];
    (json!({ "bits": bits, "group_size": GROUP }), [n, k], tensors)
}

fn fp8(k: usize) -> Layer {
    let n = 130; // two rows of blocks
    let tensors = vec![
        ("weight", ones(Dtype::F8E4m3, &[n, k])),
        ("weight_scale_inv", ones(Dtype::Bf16, &[2, k.div_ceil(128)])),
    ];
    (json!({ "block": [128, 128] }), [n, k], tensors)
}
