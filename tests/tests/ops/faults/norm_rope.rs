//! Normalisation and rotation.

#![expect(clippy::disallowed_methods, reason = "a second opinion must not share the reference's")]

use assay_reference::ops::rms_norm::{Params as Norm, RmsNorm};
use assay_reference::ops::rope::{Angle, Params as Turn, Rope};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};

use super::{bf16, broken, case, close, f16, f32, offered, plain, with};

fn norm(x: Tensor, weight: Tensor, heads: Option<usize>) -> Setup<RmsNorm> {
    let params = Norm { heads, ..Norm::new(0.0) };
    case::<RmsNorm, 2>(params, x.dtype(), [("x", x), ("weight", weight)])
}

fn ones(n: usize) -> Tensor {
    f32(&[n], &vec![1.0; n])
}

#[test]
fn rows_may_be_read_and_written_in_the_wrong_place() {
    // Two tokens of three heads; the first head of each is wanted.
    let x = [[3.0, 4.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [2.0, 0.0], [0.0, 2.0]];
    let s = norm(f32(&[2, 3, 2], x.as_flattened()), ones(2), Some(1));
    let r = 12.5f64.sqrt();
    close(&plain(&s), &[3.0 / r, 4.0 / r, 1.0, 1.0]);
    close(&with(&s, "row_stride_ignored", ""), &[3.0 / r, 4.0 / r, 0.0, 2f64.sqrt()]);
    let spec = RmsNorm::check(&s.params, &s.tensors).expect("checked").remove(0);
    assert_eq!(spec.shape, [2, 1, 2]);
    assert!(!offered(
        &norm(f32(&[2, 3, 2], x.as_flattened()), ones(2), None),
        "row_stride_ignored"
    ));
    let refused = Norm { heads: Some(4), ..Norm::new(0.0) };
    let text = RmsNorm::check(&refused, &s.tensors).expect_err("3 heads").to_string();
    assert!(text.contains("x") && text.contains('4'), "{text}");

    // Rows of three: a vector of two runs one element into the next row.
    let s = norm(f32(&[2, 3], &[2.0, 2.0, 2.0, 1.0, 1.0, 1.0]), ones(3), None);
    close(&plain(&s), &[1.0; 6]);
    close(&with(&s, "tail_overwrites_next_row", "vector 2"), &[1.0, 1.0, 1.0, 0.5, 1.0, 1.0]);
    close(&with(&s, "tail_overwrites_next_row", "vector 8"), &[1.0, 1.0, 1.0, 0.5, 0.5, 0.5]);
    assert!(!offered(&norm(f32(&[1, 3], &[1.0; 3]), ones(3), None), "tail_overwrites_next_row"));
}

#[test]
fn sums_of_squares_may_count_wrongly() {
    let x: Vec<f64> = (0..64).map(|i| if i < 32 { 1.0 } else { 2.0 }).collect();
    let s = norm(f32(&[1, 64], &x), ones(64), None);
    for (half, mean) in [("lower", (64.0 + 128.0) / 64.0), ("upper", (32.0 + 256.0) / 64.0)] {
        let want: Vec<f64> = x.iter().map(|v| v / f64::sqrt(mean)).collect();
        close(&with(&s, "lanes_counted_twice", half), &want);
    }
    let s = norm(f32(&[1, 3], &[1.0; 3]), ones(3), None);
    close(&with(&s, "mean_over_padded_width", "power of two"), &[(4.0 / 3f64).sqrt(); 3]);
    close(&with(&s, "mean_over_padded_width", "64"), &[(64.0 / 3f64).sqrt(); 3]);
    assert!(!offered(
        &norm(f32(&[1, 1024], &[1.0; 1024]), ones(1024), None),
        "mean_over_padded_width"
    ));
    // 256 + 1 is 256 in bf16; 300^2 is beyond f16.
    let s = norm(bf16(&[1, 300], &[1.0; 300]), ones(300), None);
    close(&with(&s, "sum_bf16", "every 1"), &[(300.0 / 256f64).sqrt(); 300]);
    close(&with(&s, "sum_f16", "every 1"), &[1.0; 300]);
    let s = norm(bf16(&[1, 2], &[300.0, 2.0]), ones(2), None);
    close(&with(&s, "sum_f16", "every 1"), &[0.0; 2]);
}

#[test]
fn roots_and_weights_may_be_rough() {
    // What the constant gives for 1/sqrt(4) after one step, 0.4991536; exact is 0.5.
    let s = norm(f32(&[1, 1], &[2.0]), ones(1), None);
    let rough = with(&s, "rsqrt_one_newton_step", "")[0] / 2.0;
    assert!((rough - 0.499_153_6).abs() < 1e-6, "{rough}");
    for x in [0.37, 1.0, 19.0, 3e-5] {
        let y = with(&norm(f32(&[1, 1], &[x]), ones(1), None), "rsqrt_one_newton_step", "")[0];
        assert!((0.998_2..1.000_001).contains(&y), "{x}: {y}");
    }
    let s = norm(f32(&[1, 1], &[2.0]), f32(&[1], &[1.0 + 1.0 / 512.0]), None);
    close(&with(&s, "weight_bf16", ""), &[1.0]);
    close(&plain(&s), &[1.0 + 1.0 / 512.0]);
    assert!(!offered(&norm(bf16(&[1, 1], &[2.0]), bf16(&[1], &[1.0]), None), "weight_bf16"));
}

/// Rotations of x = (1, .., 0, ..): cos in the first half, sin in the second.
fn turns(dtype: Dtype, d: usize, positions: &[i32]) -> Setup<Rope> {
    let t = positions.len();
    let row = |_| (0..d).map(|i| f64::from(u8::from(i < d / 2)));
    let x: Vec<f64> = (0..t).flat_map(row).collect();
    let tensors = [
        ("x", Tensor::from_f64(dtype, &[t, 1, d], &x)),
        ("positions", Tensor::from_i32(&[t], positions)),
    ];
    case::<Rope, 2>(Turn::new(10_000.0, Angle::F32), dtype, tensors)
}

/// (cos, sin) by halves of one token's angles.
fn halves(angles: &[f64]) -> Vec<f64> {
    angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect()
}

#[test]
fn tables_may_be_rough() {
    // D = 4: frequencies 1 and 0.01, which is 0.010009765625 in bf16.
    let s = turns(Dtype::F32, 4, &[1000]);
    let rounded = f64::from(10.009_766f32);
    close(&with(&s, "inv_freq_bf16", ""), &halves(&[1000.0, rounded]));
    // 257 is half-way between 256 and 258.
    let s = turns(Dtype::F32, 4, &[257]);
    close(&with(&s, "position_bf16", ""), &plain(&turns(Dtype::F32, 4, &[256])));
    assert!(!offered(&turns(Dtype::F32, 4, &[256]), "position_bf16"));
    let s = turns(Dtype::F16, 2, &[1]);
    let stored = |v: f64| f64::from(half::bf16::from_f64(v));
    close(&with(&s, "table_bf16", ""), &[stored(1f64.cos()), stored(1f64.sin())]);
    assert!(!offered(&turns(Dtype::Bf16, 2, &[1]), "table_bf16"));
    let cut = |v: f64| f64::from(f32::from_bits((v as f32).to_bits() & 0xffff_0000));
    let s = turns(Dtype::Bf16, 2, &[1]);
    close(&with(&s, "product_truncated", ""), &[cut(1f64.cos()), cut(1f64.sin())]);
}

#[test]
fn positions_may_be_another_tokens() {
    let at = |positions: &[i32]| turns(Dtype::F32, 4, positions);
    let same = |s: &Setup<Rope>, slug, key, positions: &[i32]| {
        close(&with(s, slug, key), &plain(&at(positions)));
    };
    same(&at(&[3, 4]), "position_double_counted", "", &[6, 7]);
    assert!(!offered(&at(&[0, 1]), "position_double_counted"));
    assert!(!offered(&at(&[1, 2]), "position_double_counted"), "a shift by one has its own name");
    same(&at(&[3, 9]), "first_position_for_all", "", &[3, 3]);
    assert!(!offered(&at(&[3, 3]), "first_position_for_all"));
    same(&at(&[2, 4097]), "position_wraps", "at 4096", &[2, 1]);
    assert!(!offered(&at(&[4095]), "position_wraps"));
}

#[test]
fn slow_pairs_may_turn_the_other_way_or_not_at_all() {
    // D = 8: frequencies 1, 0.1, 0.01, 0.001; pairs 2 and 3 are the upper ones.
    let s = turns(Dtype::F32, 8, &[5]);
    let f = |x: f64| f64::from(x as f32);
    close(&plain(&s), &halves(&[5.0, f(0.5), f(0.05), f(0.005)]));
    close(&with(&s, "sign_wrong_beyond", ""), &halves(&[5.0, f(0.5), -f(0.05), -f(0.005)]));
    close(&with(&s, "high_pairs_unrotated", ""), &halves(&[5.0, f(0.5), 0.0, 0.0]));
    assert!(!offered(&turns(Dtype::F32, 4, &[5]), "sign_wrong_beyond"));
}

/// 1 + 2^-8 + 2^-13 is above a tie of bf16, and on it after f16.
#[test]
fn a_store_by_way_of_f16_rounds_twice() {
    let value = 1.0 + 1.0 / 256.0 + 1.0 / 8192.0;
    let s = norm(bf16(&[1, 1], &[2.0]), f32(&[1], &[value]), None);
    let stored = |s: &Setup<RmsNorm>| s.policy.output.round(plain(s)[0]);
    assert_eq!(stored(&s), 1.0 + 1.0 / 128.0);
    assert_eq!(stored(&broken(&s, "store_via_f16", "")), 1.0);
    assert!(!offered(&norm(f16(&[1, 1], &[2.0]), ones(1), None), "store_via_f16"));
}
