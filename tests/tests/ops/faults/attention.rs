//! Attention over a few keys of one element.

#![expect(clippy::disallowed_methods, reason = "a second opinion must not share the reference's")]

use assay_reference::Dtype;
use assay_reference::ops::Setup;
use assay_reference::ops::attention::{Attention, Params};

use super::{bf16, case, close, f32, offered, plain, with};

/// One query 1 of one head over keys with these scores and values.
fn keys(scores: &[f64], values: &[f64]) -> Setup<Attention> {
    let n = scores.len();
    let tensors = [
        ("q", f32(&[1, 1, 1], &[1.0])),
        ("k", f32(&[n, 1, 1], scores)),
        ("v", f32(&[n, 1, 1], values)),
    ];
    case::<Attention, 3>(Params::new(1.0), Dtype::F32, tensors)
}

#[test]
fn values_may_be_another_keys() {
    let s = keys(&[0.0; 4], &[1.0, 2.0, 4.0, 8.0]);
    close(&plain(&s), &[15.0 / 4.0]);
    close(&with(&s, "value_position_off_by_one", ""), &[(1.0 + 1.0 + 2.0 + 4.0) / 4.0]);
    close(&with(&s, "newest_value_missing", ""), &[7.0 / 4.0]);
    assert!(!offered(&keys(&[0.0], &[1.0]), "value_position_off_by_one"));
}

#[test]
fn denominators_may_count_too_much_or_too_little() {
    let s = keys(&[2.0; 4], &[1.0, 2.0, 4.0, 8.0]);
    let e = 2f64.exp();
    close(&with(&s, "padded_keys_counted", "tile 16"), &[15.0 * e / (4.0 * e + 12.0)]);
    assert!(!offered(&keys(&[2.0; 128], &[1.0; 128]), "padded_keys_counted"));
    // Ones no longer count once the sum is 256.
    let many = keys(&[0.0; 300], &[1.0; 300]);
    close(&with(&many, "denominator_bf16", ""), &[300.0 / 256.0]);
    close(&plain(&many), &[1.0]);
    // Runs of 2 keys: (1 + 2) / 2 and (4 + 3 x 8) / (1 + 3); then the mean of both.
    let s = keys(&[0.0, 0.0, 0.0, 3f64.ln()], &[1.0, 2.0, 4.0, 8.0]);
    close(&with(&s, "splits_averaged", "2"), &[(1.5 + 7.0) / 2.0]);
    close(&plain(&s), &[(1.0 + 2.0 + 4.0 + 24.0) / 6.0]);
    // Five keys in runs of 2: the last run has one.
    let s = keys(&[0.0; 5], &[1.0, 1.0, 1.0, 1.0, 7.0]);
    close(&with(&s, "splits_averaged", "4"), &[(1.0 + 1.0 + 7.0) / 3.0]);
}

#[test]
fn exponents_may_overflow_or_be_clamped() {
    let nan = f64::NAN;
    close(&with(&keys(&[100.0, 0.0], &[1.0, 2.0]), "maximum_not_subtracted", ""), &[nan]);
    close(&with(&keys(&[-200.0, -200.0], &[1.0, 2.0]), "maximum_not_subtracted", ""), &[nan]);
    close(&with(&keys(&[3.0, 3.0], &[1.0, 2.0]), "maximum_not_subtracted", ""), &[1.5]);
    let far = (-10f64).exp();
    let s = keys(&[0.0, -50.0], &[1.0, 3.0]);
    close(&with(&s, "exponent_clamped", ""), &[(1.0 + 3.0 * far) / (1.0 + far)]);
    let e = (-8.0 * 1.445_312_5f64).exp2();
    let s = keys(&[3.0, -5.0], &[1.0, 300.0]);
    close(&with(&s, "log2e_bf16", ""), &[(1.0 + 300.0 * e) / (1.0 + e)]);
    for (score, floor, want) in [
        (-10_105.0, "-10000", 0.0),
        (-10_050.0, "-10000", 5.0),
        (-60_000.0, "-50000", 0.0),
        (-40_000.0, "-50000", 5.0),
    ] {
        close(&with(&keys(&[score], &[5.0]), "maximum_floor", floor), &[want]);
    }
}

#[test]
fn the_last_group_may_read_the_head_before() {
    // Four query heads over two kv heads of one key: the output is the head's value.
    let tensors = [
        ("q", f32(&[1, 4, 1], &[1.0; 4])),
        ("k", f32(&[1, 2, 1], &[1.0; 2])),
        ("v", f32(&[1, 2, 1], &[3.0, 5.0])),
    ];
    let s = case::<Attention, 3>(Params::new(1.0), Dtype::F32, tensors);
    close(&plain(&s), &[3.0, 3.0, 5.0, 5.0]);
    close(&with(&s, "last_group_previous_head", ""), &[3.0; 4]);
    assert!(!offered(&keys(&[0.0], &[1.0]), "last_group_previous_head"));
}

#[test]
fn a_query_may_be_scaled_and_stored_first() {
    let scaled = |scale: f64| {
        let tensors = [
            ("q", bf16(&[1, 1, 1], &[3.0])),
            ("k", bf16(&[2, 1, 1], &[0.0, 8.0])),
            ("v", bf16(&[2, 1, 1], &[0.0, 1.0])),
        ];
        case::<Attention, 3>(Params::new(scale), Dtype::Bf16, tensors)
    };
    let scale = 1.0 / 3f64.sqrt();
    let weight = |score: f64| 1.0 / (1.0 + (-score).exp());
    let s = scaled(scale);
    close(&plain(&s), &[weight(24.0 * scale)]);
    let q = f64::from(half::bf16::from_f64(3.0 * scale));
    assert_ne!(q, 3.0 * scale);
    close(&with(&s, "q_scaled_stored", "scale"), &[weight(8.0 * q)]);
    let q = f64::from(half::bf16::from_f64(3.0 * scale * std::f64::consts::LOG2_E));
    close(&with(&s, "q_scaled_stored", "scale log2e"), &[weight(8.0 * q * std::f64::consts::LN_2)]);
    let keys_of = |s: &Setup<Attention>| {
        let faults = <Attention as assay_reference::ops::Op>::faults(&s.params, &s.tensors);
        faults
            .into_iter()
            .filter(|f| f.slug == "q_scaled_stored")
            .map(|f| f.key)
            .collect::<Vec<_>>()
    };
    assert_eq!(keys_of(&s), ["scale", "scale log2e"]);
    assert_eq!(keys_of(&scaled(0.125)), ["scale log2e"], "a power of two moves no bit");
}
