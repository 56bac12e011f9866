//! Cases of a few numbers, worked out by hand.

use assay_reference::{Case, Dtype, Tensor};
use serde_json::json;

use super::super::cases::case;
use super::super::*;

fn bf(shape: &[usize], v: &[f64]) -> Tensor {
    Tensor::from_f64(Dtype::Bf16, shape, v)
}

#[track_caller]
fn gives(native: &Native, case: &Case, want: &[f64]) {
    let got = native.run(case).expect("runs").to_f64();
    assert_eq!(got, want, "{native:?}");
}

#[test]
fn matmul_by_hand() {
    let x = bf(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]);
    let w = bf(&[2, 3], &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0]);
    let tensors = vec![("x", x), ("weight", w), ("bias", bf(&[2], &[10.0, 20.0]))];
    let c = case("matmul", json!({}), Dtype::Bf16, tensors);
    let right = Native::new("matmul");
    gives(&right, &c, &[8.0, 32.0, 5.0, 27.0]);
    gives(&right.clone().broken("bias_dropped", ""), &c, &[-2.0, 12.0, -5.0, 7.0]);
    gives(&right.clone().broken("bias_by_row", ""), &c, &[8.0, 22.0, 15.0, 27.0]);
    gives(&right.clone().broken("k_tail_dropped", "tile 2"), &c, &[11.0, 26.0, 9.0, 19.0]);
    gives(&right.clone().broken("k_range_repeated", "last 2"), &c, &[5.0, 38.0, 1.0, 35.0]);
    gives(&right.clone().broken("k_strided", "even"), &c, &[10.0, 24.0, 10.0, 21.0]);
    // Memory 1 0 | -1 2 | 2 2 as [K, N].
    gives(&right.broken("weight_transposed", ""), &c, &[15.0, 30.0, 16.5, 29.0]);
}

#[test]
fn gptq_by_hand() {
    // Column n of word 0 holds q = 0..8 shifted by n; zeros 7 stored (8 in v1) and 3 (4).
    let word = |n: u32| (0..8).fold(0u32, |w, j| w | ((j + n) % 16) << (4 * j)) as i32;
    let words: Vec<i32> = (0..8).map(word).collect();
    let scales: Vec<f64> = (0..8).map(|n| 0.5 + n as f64).collect();
    let tensors = vec![
        ("qweight", Tensor::from_i32(&[1, 8], &words)),
        ("qzeros", Tensor::from_i32(&[1, 1], &[0x7777_7737])),
        ("scales", Tensor::from_f64(Dtype::F16, &[1, 8], &scales)),
    ];
    let params = json!({ "format": "v1", "group_size": -1 });
    let c = case("gptq_dequant", params, Dtype::Bf16, tensors);
    let zero = |n: usize| if n == 1 { 4.0 } else { 8.0 };
    let want = |k: usize, n: usize| ((k + n) as f64 - zero(n)) * scales[n];
    let all: Vec<f64> = (0..64).map(|i| want(i / 8, i % 8)).collect();
    gives(&Native::new("gptq_dequant"), &c, &all);
    let v2: Vec<f64> = (0..64).map(|i| want(i / 8, i % 8) + scales[i % 8]).collect();
    gives(&Native::new("gptq_dequant").broken("zero_without_plus_one", ""), &c, &v2);
}

#[test]
fn other_formats_by_hand() {
    // Slot i holds column 0 2 4 6 1 3 5 7: q = column + 1, z = column.
    let slots = |f: fn(u32) -> u32| {
        let columns = [0u32, 2, 4, 6, 1, 3, 5, 7];
        columns.iter().enumerate().fold(0u32, |w, (i, c)| w | f(*c) << (4 * i)) as i32
    };
    let tensors = vec![
        ("qweight", Tensor::from_i32(&[1, 1], &[slots(|c| c + 1)])),
        ("qzeros", Tensor::from_i32(&[1, 1], &[slots(|c| c)])),
        ("scales", Tensor::from_f64(Dtype::F16, &[1, 8], &[1., 2., 3., 4., 5., 6., 7., 8.])),
    ];
    let c = case("awq_dequant", json!({ "group_size": -1 }), Dtype::Bf16, tensors);
    gives(&Native::new("awq_dequant"), &c, &[1., 2., 3., 4., 5., 6., 7., 8.]);
    // One output of three inputs, stored with 8 added: -8, 0, 7, and a zero point of -1.
    let tensors = vec![
        ("weight_packed", Tensor::from_i32(&[1, 1], &[0xf80])),
        ("weight_scale", bf(&[1, 1], &[0.5])),
        ("weight_zero_point", Tensor::from_i32(&[1, 1], &[7])),
        ("weight_shape", Tensor::from_i32(&[2], &[1, 3])),
    ];
    let c = case("ct_dequant", json!({ "bits": 4, "group_size": -1 }), Dtype::Bf16, tensors);
    gives(&Native::new("ct_dequant"), &c, &[-3.5, 0.5, 4.0]);
    gives(&Native::new("ct_dequant").broken("zero_point_ignored", ""), &c, &[-4.0, 0.0, 3.5]);
    gives(&Native::new("ct_dequant").broken("offset_missing", ""), &c, &[0.5, 4.5, 8.0]);
    // e4m3: 0x38 is 1, 0x3c 1.5, 0x7e 448, 0x81 -2^-9; blocks of 1 x 2.
    let codes = vec![0x38, 0x3c, 0x7e, 0x81];
    let tensors = vec![
        ("weight", Tensor::from_bytes(Dtype::F8E4m3, vec![1, 4], codes).expect("fits")),
        ("weight_scale_inv", bf(&[1, 2], &[2.0, 0.5])),
    ];
    let c = case("fp8_dequant", json!({ "block": [1, 2] }), Dtype::Bf16, tensors);
    gives(&Native::new("fp8_dequant"), &c, &[2.0, 3.0, 224.0, -0.000_976_562_5]);
    gives(
        &Native::new("fp8_dequant").broken("scale_divided", ""),
        &c,
        &[0.5, 0.75, 896.0, -0.003_906_25],
    );
}

#[test]
fn attention_by_hand() {
    // Equal scores: means of what is seen.
    let d = 4;
    let tensors = vec![
        ("q", bf(&[2, 1, d], &[0.0; 8])),
        ("k", bf(&[4, 1, d], &[1.0; 16])),
        ("v", bf(&[4, 1, d], &(0..16).map(|i| (i / 4 * 12) as f64).collect::<Vec<_>>())),
    ];
    let c = case("attention", json!({ "scale": 0.5 }), Dtype::Bf16, tensors);
    let rows = |a: f64, b: f64| [[a; 4], [b; 4]].concat();
    let right = Native::new("attention");
    gives(&right, &c, &rows(12.0, 18.0));
    for online in [1, 2, 3] {
        let chain = Chain { online: Some(online), ..Chain::PLAIN };
        gives(&right.clone().chained(chain), &c, &rows(12.0, 18.0));
    }
    gives(&right.clone().broken("mask_upper_left", ""), &c, &rows(0.0, 6.0));
    gives(&right.clone().broken("future_key_visible", ""), &c, &rows(18.0, 18.0));
    gives(&right.clone().broken("window_honoured", "window 2"), &c, &rows(18.0, 30.0));
    gives(&right.clone().broken("diagonal_key_dropped", ""), &c, &rows(6.0, 12.0));
    gives(&right.clone().broken("newest_key_dropped", ""), &c, &rows(12.0, 12.0));
    gives(&right.broken("splits_averaged", "2"), &c, &rows(15.0, 18.0));
}

#[test]
fn the_other_ops_by_hand() {
    // Squares 9 + 16 + 0 + 0: mean 6.25, root 2.5.
    let norm = |eps: f64| {
        let tensors = vec![
            ("x", bf(&[1, 4], &[3.0, 4.0, 0.0, 0.0])),
            ("weight", bf(&[4], &[5.0, 10.0, 1.0, 1.0])),
        ];
        case("rms_norm", json!({ "eps": eps }), Dtype::Bf16, tensors)
    };
    gives(&Native::new("rms_norm"), &norm(0.0), &[6.0, 16.0, 0.0, 0.0]);
    let plus_one = Native::new("rms_norm").broken("weight_plus_one", "");
    gives(&plus_one, &norm(0.0), &[7.1875, 17.625, 0.0, 0.0]);
    // Position 0 turns nothing; theta 1 turns every pair by the position.
    let rope = |position: i32| {
        let tensors = vec![
            ("x", bf(&[1, 1, 4], &[1.0, 0.0, 0.0, 2.0])),
            ("positions", Tensor::from_i32(&[1], &[position])),
        ];
        case("rope", json!({ "theta": 1.0 }), Dtype::F32, tensors)
    };
    gives(&Native::new("rope"), &rope(0), &[1.0, 0.0, 0.0, 2.0]);
    let (cos, sin) = (f64::from(libm::cosf(1.0)), f64::from(libm::sinf(1.0)));
    gives(&Native::new("rope"), &rope(1), &[cos, -2.0 * sin, sin, 2.0 * cos]);
    // A score of minus infinity has no weight.
    let x = Tensor::from_f64(Dtype::F32, &[1, 2], &[2.0, f64::NEG_INFINITY]);
    gives(
        &Native::new("softmax"),
        &case("softmax", json!({}), Dtype::F32, vec![("x", x)]),
        &[1., 0.],
    );
    let tensors = vec![("gate", bf(&[2], &[0.0, 100.0])), ("up", bf(&[2], &[7.0, 0.5]))];
    gives(&Native::new("silu_mul"), &case("silu_mul", json!({}), Dtype::Bf16, tensors), &[0., 50.]);
    let x = bf(&[3, 3], &[1.0, 3.0, 3.0, f64::NAN, 9.0, f64::NAN, -1.0, -2.0, -3.0]);
    let c = case("argmax", json!({}), Dtype::Bf16, vec![("x", x)]);
    gives(&Native::new("argmax"), &c, &[1.0, 0.0, 0.0]);
    gives(&Native::new("argmax").with("tie", "last"), &c, &[2.0, 0.0, 0.0]);
    gives(&Native::new("argmax").broken("nan_ignored", ""), &c, &[1.0, 1.0, 0.0]);
    // Equal logits, of which the first two are taken.
    let c = case(
        "moe_route",
        json!({ "top_k": 2, "normalise": true }),
        Dtype::Bf16,
        vec![("logits", bf(&[1, 4], &[1.0; 4]))],
    );
    gives(&Native::new("moe_route"), &c, &[0.5, 0.5, 0.0, 0.0]);
    let parts = vec![("part.0", bf(&[1, 2], &[1.0, 2.0])), ("part.1", bf(&[1, 2], &[3.0, 5.0]))];
    let sum = case("all_reduce", json!({}), Dtype::Bf16, parts.clone());
    gives(&Native::new("all_reduce"), &sum, &[4.0, 7.0]);
    gives(&Native::new("all_reduce").broken("rank_dropped", "1"), &sum, &[1.0, 2.0]);
    let side = case("all_gather", json!({}), Dtype::Bf16, parts);
    gives(&Native::new("all_gather"), &side, &[1.0, 2.0, 3.0, 5.0]);
    let tensors = vec![
        ("ids", Tensor::from_i32(&[2], &[2, 0])),
        ("weight", bf(&[3, 1], &[10.0, 20.0, 30.0])),
    ];
    let c = case("embedding", json!({}), Dtype::Bf16, tensors);
    gives(&Native::new("embedding"), &c, &[30.0, 10.0]);
    gives(&Native::new("embedding").broken("id_offset", "by 1"), &c, &[10.0, 20.0]);
}
