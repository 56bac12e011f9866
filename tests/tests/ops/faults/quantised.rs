//! Integer and fp8 weights, and layers over them.

use assay_reference::ops::awq_dequant::{AwqDequant, Params as Awq};
use assay_reference::ops::ct_dequant::{CtDequant, Params as Ct};
use assay_reference::ops::fp8_dequant::{Fp8Dequant, Params as Fp8};
use assay_reference::ops::gptq_dequant::{Format, GptqDequant, Params as Gptq};
use assay_reference::ops::quant_gemm::{AwqGemm, Fp8Gemm, GptqGemm, Params};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};

use super::{bf16, case, close, f16, f32, offered, plain, with};

/// A word whose eight values are all `v`.
fn word(v: u32) -> i32 {
    (0..8).fold(0, |w, i| w | v << (4 * i)) as i32
}

/// v2 weights [K, N], all `q`, with zero points `z` by group; scales [G, N] as given.
fn gptq(size: [usize; 2], group: i64, q: u32, z: &[u32], scales: Tensor) -> Setup<GptqDequant> {
    let [k, n] = size;
    let zeros: Vec<i32> = z.iter().flat_map(|z| vec![word(*z); n / 8]).collect();
    let tensors = [
        ("qweight", Tensor::from_i32(&[k / 8, n], &vec![word(q); k / 8 * n])),
        ("qzeros", Tensor::from_i32(&[z.len(), n / 8], &zeros)),
        ("scales", scales),
    ];
    case::<GptqDequant, 3>(Gptq::new(Format::V2, group), Dtype::Bf16, tensors)
}

/// Where two outputs differ, and by how much.
fn differences(a: &[f64], b: &[f64]) -> Vec<(usize, f64)> {
    (0..a.len()).filter(|&i| a[i] != b[i]).map(|i| (i, a[i] - b[i])).collect()
}

#[test]
fn one_bit_one_zero_point_one_word() {
    let scales = f16(&[2, 16], &[0.5; 32]);
    let s = gptq([16, 16], 8, 9, &[4, 6], scales);
    let right = plain(&s);
    close(&right[..16], &[2.5; 16]);
    close(&right[15 * 16..], &[1.5; 16]);
    // 9 becomes 8 in row 8, column 8.
    let wrong = with(&s, "value_bit_flipped", "");
    assert_eq!(differences(&wrong, &right), [(8 * 16 + 8, -0.5)]);
    // Group 1, column 8: rows 8 to 15.
    let wrong = with(&s, "one_zero_point_off", "");
    let want: Vec<_> = (8..16).map(|row| (row * 16 + 8, -0.5)).collect();
    assert_eq!(differences(&wrong, &right), want);
    // Zero points of the second word are the last column's own.
    assert!(differences(&with(&s, "zero_of_next_word", ""), &right).is_empty(), "alike words");
    let mut s = s;
    s.tensors
        .insert("qzeros".into(), Tensor::from_i32(&[2, 2], &[word(4), word(5), word(6), word(7)]));
    let wrong = with(&s, "zero_of_next_word", "");
    let want: Vec<_> = (0..16).flat_map(|row| (0..8).map(move |c| (row * 16 + c, -0.5))).collect();
    assert_eq!(differences(&wrong, &plain(&s)), want);
    let narrow = gptq([16, 8], 8, 9, &[4, 6], f16(&[2, 8], &[0.5; 16]));
    assert!(!offered(&narrow, "zero_of_next_word"));
}

#[test]
fn groups_at_the_edge() {
    // 40 rows in groups of 32: rows 32 to 39 are the second group's.
    let scales: Vec<f64> = (0..16).map(|i| if i < 8 { 1.0 } else { 2.0 }).collect();
    let s = gptq([40, 8], 32, 9, &[8, 8], f16(&[2, 8], &scales));
    let (right, wrong) = (plain(&s), with(&s, "partial_group_scale", ""));
    close(&right[32 * 8..], &[2.0; 64]);
    close(&wrong, &[1.0; 320]);
    let whole = gptq([64, 8], 32, 9, &[8, 8], f16(&[2, 8], &scales));
    assert!(!offered(&whole, "partial_group_scale"));
    // One group: from row 64 on the scale of the column before, of column 0 the last one's.
    let scales: Vec<f64> = (1..9).map(f64::from).collect();
    let s = gptq([72, 8], -1, 9, &[8], f16(&[1, 8], &scales));
    let wrong = with(&s, "minus_one_as_stride", "");
    close(&wrong[..64 * 8], &plain(&s)[..64 * 8]);
    close(&wrong[64 * 8..65 * 8], &[8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert!(!offered(&gptq([64, 8], -1, 9, &[8], f16(&[1, 8], &scales)), "minus_one_as_stride"));
    assert!(!offered(&whole, "minus_one_as_stride"));
}

#[test]
fn a_zero_point_may_be_scaled_too_early() {
    // 7 x 85/256 has 10 bits; in bf16 it is 2.328125.
    let scale = 85.0 / 256.0;
    let s = gptq([8, 8], -1, 9, &[7], f16(&[1, 8], &[scale; 8]));
    let early = f64::from(half::bf16::from_f64(7.0 * scale));
    assert_ne!(early, 7.0 * scale);
    close(&with(&s, "zero_point_prescaled", ""), &[9.0 * scale - early; 64]);
    close(&plain(&s), &[2.0 * scale; 64]);
}

#[test]
fn the_other_formats_slip_alike() {
    let tensors = [
        ("qweight", Tensor::from_i32(&[40, 2], &[word(9); 80])),
        ("qzeros", Tensor::from_i32(&[2, 2], &[word(8), word(7), word(8), word(7)])),
        (
            "scales",
            f16(&[2, 16], &(0..32).map(|i| if i < 16 { 1.0 } else { 2.0 }).collect::<Vec<_>>()),
        ),
    ];
    let s = case::<AwqDequant, 3>(Awq::new(32), Dtype::Bf16, tensors);
    let right = plain(&s);
    let last = 39 * 16;
    close(&right[last..last + 9], &[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0]);
    close(
        &with(&s, "partial_group_scale", "")[last..last + 9],
        &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0],
    );
    assert_eq!(differences(&with(&s, "value_bit_flipped", ""), &right), [(20 * 16 + 8, -1.0)]);
    close(&with(&s, "zero_of_next_word", "")[..8], &[2.0; 8]);
    let off = differences(&with(&s, "one_zero_point_off", ""), &right);
    assert_eq!(off, (32..40).map(|row| (row * 16 + 8, -2.0)).collect::<Vec<_>>());

    // compressed-tensors, [N, K]: stored 9 is 1, zero points are stored with 8 added.
    let tensors = [
        ("weight_packed", Tensor::from_i32(&[8, 5], &[word(9); 40])),
        ("weight_scale", bf16(&[8, 2], &[1.0, 2.0].repeat(8))),
        ("weight_zero_point", Tensor::from_i32(&[1, 2], &[word(5), word(5)])),
        ("weight_shape", Tensor::from_i32(&[2], &[8, 40])),
    ];
    let s = case::<CtDequant, 4>(Ct::new(4, 32), Dtype::Bf16, tensors);
    let right = plain(&s);
    close(&[right[0], right[39]], &[4.0, 8.0]);
    close(&with(&s, "partial_group_scale", ""), &[4.0; 320]);
    assert_eq!(differences(&with(&s, "value_bit_flipped", ""), &right), [(4 * 40 + 20, -1.0)]);
    assert!(offered(&s, "zero_point_prescaled"));
    let mut symmetric = s;
    symmetric.tensors.remove("weight_zero_point");
    assert!(!offered(&symmetric, "zero_point_prescaled"));
}

#[test]
fn fp8_codes_and_blocks() {
    // 7/512, -7/512, 448, -448, 1 in five columns of blocks of 2 x 2.
    let weight = Tensor::from_f64(
        Dtype::F8E4m3,
        &[3, 5],
        &[7.0 / 512.0, -7.0 / 512.0, 448.0, -448.0, 1.0].repeat(3),
    );
    let scales = f32(&[2, 3], &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
    let tensors = [("weight", weight), ("weight_scale_inv", scales)];
    let s = case::<Fp8Dequant, 2>(Fp8::new([2, 2]), Dtype::F32, tensors);
    close(&plain(&s)[..5], &[7.0 / 512.0, -7.0 / 512.0, 896.0, -896.0, 4.0]);
    close(&with(&s, "code_subnormals_flushed", "")[..5], &[0.0, 0.0, 896.0, -896.0, 4.0]);
    let cut = with(&s, "saturated_at_240", "");
    close(&cut[..5], &[7.0 / 512.0, -7.0 / 512.0, 480.0, -480.0, 4.0]);
    close(&with(&s, "partial_group_scale", "K")[4..5], &[2.0]);
    close(&with(&s, "partial_group_scale", "N")[14..], &[4.0]);
    close(&plain(&s)[14..], &[32.0]);
}

/// A layer of eight columns over weights that are all q - z = `d`.
fn layer(dtype: Dtype, x: &[f64], d: i64, scale: f64) -> Setup<GptqGemm> {
    let k = x.len();
    let weight = gptq([k, 8], -1, (8 + d) as u32, &[8], f16(&[1, 8], &[scale; 8]));
    let mut tensors = weight.tensors;
    tensors.insert("x".into(), Tensor::from_f64(dtype, &[1, k], x));
    let params = Params::new::<GptqDequant>(weight.params);
    let policy = GptqGemm::policy(dtype);
    Setup { params, policy, tensors }
}

#[test]
fn sums_may_overflow_before_they_are_scaled() {
    // Lanes of four products -8 x 2100: -67200 is beyond f16; the sum is -134400 x 0.002.
    let s = layer(Dtype::F16, &[2100.0; 8], -8, 0.002);
    let scale = f64::from(half::f16::from_f64(0.002));
    assert!(plain(&s).iter().all(|y| (y + 134_400.0 * scale).abs() < 0.2), "{:?}", plain(&s));
    close(&with(&s, "unscaled_f16_accumulation", ""), &[f64::NEG_INFINITY; 8]);
    close(&with(&s, "scale_after_cast", ""), &[f64::NEG_INFINITY; 8]);
    let s = layer(Dtype::F16, &[2000.0; 8], -8, 0.5);
    close(&with(&s, "unscaled_f16_accumulation", ""), &[-64_000.0; 8]);
    // Lanes of 2048 + 1 + 1 + 1 stay at 2048 in f16.
    let s = layer(Dtype::F16, &[2048.0, 2048.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1, 0.5);
    close(&plain(&s), &[2051.0; 8]);
    close(&with(&s, "unscaled_f16_accumulation", ""), &[2048.0; 8]);
    // In bf16 the sum of a group, 257, is 256.
    let s = layer(Dtype::Bf16, &[250.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1, 0.5);
    close(&plain(&s), &[128.5; 8]);
    close(&with(&s, "scale_after_cast", ""), &[128.0; 8]);
    assert!(!offered(&s, "unscaled_f16_accumulation"), "of f16 models");
}

#[test]
fn sums_over_fp8_blocks_may_be_cast_too_early() {
    let tensors = [
        ("x", bf16(&[1, 4], &[256.0, 1.0, 256.0, 1.0])),
        ("weight", Tensor::from_f64(Dtype::F8E4m3, &[2, 4], &[1.0; 8])),
        ("weight_scale_inv", f32(&[1, 2], &[0.5, 3.0])),
    ];
    let params = Params::new::<Fp8Dequant>(Fp8::new([2, 2]));
    let s = case::<Fp8Gemm, 3>(params, Dtype::Bf16, tensors);
    close(&plain(&s), &[257.0 * 3.5; 2]);
    close(&with(&s, "scale_after_cast", ""), &[256.0 * 3.5; 2]);
}

#[test]
fn activations_may_be_quantised() {
    // 127 times a scale of 4: 1 is a quarter of it and vanishes, 3 becomes 4.
    let mut x = [0.0; 40];
    (x[0], x[1], x[2], x[39]) = (508.0, 1.0, 3.0, 1.0);
    let s = layer(Dtype::Bf16, &x, 1, 1.0);
    close(&plain(&s), &[513.0; 8]);
    close(&with(&s, "activations_int8", "block 32"), &[508.0 + 4.0 + 1.0; 8]);
    close(&with(&s, "activations_int8", "row"), &[508.0 + 4.0; 8]);
    let awq = [
        ("qweight", Tensor::from_i32(&[8, 1], &[word(9); 8])),
        ("qzeros", Tensor::from_i32(&[1, 1], &[word(8)])),
        ("scales", f16(&[1, 8], &[1.0; 8])),
        ("x", f16(&[1, 8], &[1.0; 8])),
    ];
    let s = case::<AwqGemm, 4>(Params::new::<AwqDequant>(Awq::new(-1)), Dtype::F16, awq);
    close(&with(&s, "activations_int8", "row"), &[8.0; 8]);
    close(&with(&s, "unscaled_f16_accumulation", ""), &[8.0; 8]);
}

#[test]
fn activations_may_keep_their_order_when_weights_do_not() {
    // Groups 1, 0, 0, ..: sorted, row 1 comes first and row 0 last.
    let scales: Vec<f64> = (0..16).map(|i| if i < 8 { 1.0 } else { 100.0 }).collect();
    let weight = gptq([8, 8], 4, 9, &[8, 8], f16(&[2, 8], &scales));
    let mut tensors = weight.tensors;
    let index = |groups: [i32; 8]| Tensor::from_i32(&[8], &groups);
    tensors.insert("g_idx".into(), index([1, 0, 0, 0, 0, 0, 0, 0]));
    tensors.insert("x".into(), bf16(&[1, 8], &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]));
    let params = Params::new::<GptqDequant>(weight.params);
    let mut s = Setup::<GptqGemm> { params, policy: GptqGemm::policy(Dtype::Bf16), tensors };
    close(&plain(&s), &[100.0 + 254.0; 8]);
    close(&with(&s, "activations_unpermuted", ""), &[127.0 + 12_800.0; 8]);
    assert!(!offered(&s, "scale_after_cast"), "groups are not contiguous");
    s.tensors.insert("g_idx".into(), index([0, 0, 0, 0, 1, 1, 1, 1]));
    assert!(!offered(&s, "activations_unpermuted"));
}
