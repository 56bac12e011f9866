//! The GPTQ checkpoint that vLLM served: projections rounded to nearest, by the rule of golden/scripts/vllm_cases.py, in
//! the same f32 arithmetic.

use assay_reference::{Dtype, Tensor};
use assay_tests::damage::Copy;
use serde_json::json;

const GROUP: usize = 64;

/// Quantises every projection in place, 4 bits, symmetric, in groups of 64; zero points as v1 stores them.
pub(super) fn quantise(copy: &Copy, label: &str) {
    copy.tensors("model.safetensors", |tensors| {
        let names: Vec<String> =
            tensors.keys().filter(|n| n.ends_with("_proj.weight")).cloned().collect();
        for name in names {
            let weight = tensors.remove(&name).expect("a projection");
            let prefix = name.trim_end_matches("weight");
            for (part, tensor) in parts(&weight) {
                tensors.insert(format!("{prefix}{part}"), tensor);
            }
        }
    });
    copy.json("config.json", |config| {
        config.insert(
            "quantization_config".into(),
            json!({
                "quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": false,
                "sym": true, "lm_head": false, "checkpoint_format": label,
            }),
        );
    });
}

fn parts(weight: &Tensor) -> Vec<(&'static str, Tensor)> {
    let (n, k) = (weight.shape()[0], weight.shape()[1]);
    let values = weight.to_f64();
    let at = |row: usize, col: usize| values[col * k + row] as f32;
    let groups = k / GROUP;
    let largest = |g: usize, c: usize| {
        (g * GROUP..(g + 1) * GROUP).fold(0.0f32, |m, r| m.max(at(r, c).abs()))
    };
    let scales: Vec<f64> =
        (0..groups * n).map(|i| f64::from(largest(i / n, i % n) / 7.0)).collect();
    let scales = Tensor::from_f64(Dtype::F16, &[groups, n], &scales);
    let scale = scales.to_f64();
    let code = |row: usize, col: usize| -> u32 {
        let q = (at(row, col) / scale[row / GROUP * n + col] as f32).round_ties_even() + 8.0;
        q.clamp(0.0, 15.0) as u32
    };
    let word = |i: usize| -> i32 {
        let (block, col) = (i / n, i % n);
        (0..8).fold(0, |w, j| w | code(block * 8 + j, col) << (4 * j)) as i32
    };
    let words: Vec<i32> = (0..k / 8 * n).map(word).collect();
    let index: Vec<i32> = (0..k).map(|i| (i / GROUP) as i32).collect();
    vec![
        ("qweight", Tensor::from_i32(&[k / 8, n], &words)),
        ("qzeros", Tensor::from_i32(&[groups, n / 8], &vec![0x7777_7777; groups * n / 8])),
        ("scales", scales),
        ("g_idx", Tensor::from_i32(&[k], &index)),
    ]
}
