//! Examples of the composites: shapes for every catalogued fault.

use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

type Example = (Value, Vec<(&'static str, Tensor)>);

fn ones(dtype: Dtype, shape: &[usize]) -> Tensor {
    Tensor::from_f64(dtype, shape, &vec![1.0; shape.iter().product()])
}

pub(super) fn examples(op: &str) -> Vec<Example> {
    let bf16 = |shape: &[usize]| ones(Dtype::Bf16, shape);
    match op {
        "add_rms_norm" => {
            // A weight that a kernel may round to bf16 shows what it must not.
            let with = |weight: Tensor| {
                let tensors =
                    vec![("a", bf16(&[2, 300])), ("b", bf16(&[2, 300])), ("weight", weight)];
                (json!({ "norm": { "eps": 1e-7 } }), tensors)
            };
            vec![with(bf16(&[300])), with(ones(Dtype::F32, &[300]))]
        }
        "qk_norm_rope" => {
            let tensors = |dtype, weight: Tensor| {
                let d = weight.len();
                vec![
                    ("x", ones(dtype, &[2, 2, d])),
                    ("weight", weight),
                    ("positions", Tensor::from_i32(&[2], &[5, 32_769])),
                ]
            };
            let wide = ones(Dtype::F32, &[300]);
            let yarn = json!({
                "rope_type": "yarn", "factor": 4.0, "original_max_position": 4096, "beta_fast": 32.0,
                "beta_slow": 1.0, "truncate": true, "attention_factor": 1.1,
            });
            let dynamic = json!({ "rope_type": "dynamic", "factor": 2.0, "max_position": 4 });
            let plain = json!({ "rope_type": "default" });
            [
                (plain.clone(), Dtype::Bf16, wide.clone()),
                (yarn, Dtype::Bf16, wide.clone()),
                (dynamic, Dtype::F32, wide),
                // What the kernel takes.
                (plain, Dtype::Bf16, bf16(&[128])),
            ]
            .map(|(s, dtype, weight)| {
                let rope = json!({ "theta": 2e6, "scaling": s });
                (json!({ "norm": { "eps": 1e-7 }, "rope": rope }), tensors(dtype, weight))
            })
            .into()
        }
        "attention_paged" => attention_paged(),
        "kv_store" => {
            let cache = || bf16(&[4, 16, 2, 8]);
            let tensors = vec![
                ("k", ones(Dtype::F32, &[3, 2, 8])),
                ("v", ones(Dtype::F32, &[3, 2, 8])),
                ("k_cache", cache()),
                ("v_cache", cache()),
                ("slot_mapping", Tensor::from_i32(&[3], &[0, -1, 3])),
            ];
            vec![(json!({ "scales": [0.5, 0.3] }), tensors)]
        }
        _ => Vec::new(),
    }
}

/// A long context with and without a window, and pages of one token in blocks beyond 65535.
fn attention_paged() -> Vec<Example> {
    let scale = 1.0 / 128f64.sqrt();
    let table: Vec<i32> = (0..157).collect();
    let cache = || ones(Dtype::Bf16, &[157, 32, 2, 128]);
    let tensors = vec![
        ("q", ones(Dtype::Bf16, &[3, 4, 128])),
        ("k_cache", cache()),
        ("v_cache", cache()),
        ("block_table", Tensor::from_i32(&[157], &table)),
        ("context_len", Tensor::from_i32(&[1], &[5000])),
    ];
    let far = vec![
        ("q", ones(Dtype::Bf16, &[1, 1, 2])),
        ("k_cache", ones(Dtype::Bf16, &[65_600, 1, 1, 2])),
        ("v_cache", ones(Dtype::Bf16, &[65_600, 1, 1, 2])),
        ("block_table", Tensor::from_i32(&[2], &[65_536, 40_000])),
        ("context_len", Tensor::from_i32(&[1], &[2])),
    ];
    vec![
        (json!({ "attention": { "scale": scale } }), tensors.clone()),
        (json!({ "attention": { "scale": scale, "window": 300 } }), tensors),
        (json!({ "attention": { "scale": 0.7 } }), far),
    ]
}
