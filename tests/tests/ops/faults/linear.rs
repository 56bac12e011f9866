//! Products with plain weights.

use assay_reference::ops::Setup;
use assay_reference::ops::matmul::{Matmul, Params};
use assay_reference::{Dtype, Tensor};

use super::{bf16, case, close, f16, offered, plain, with};

fn product(params: Params, x: Tensor, weight: Tensor, bias: Option<Tensor>) -> Setup<Matmul> {
    let dtype = x.dtype();
    let mut s = case::<Matmul, 2>(params, dtype, [("x", x), ("weight", weight)]);
    s.tensors.extend(bias.map(|b| ("bias".to_string(), b)));
    s
}

fn simple(x: Tensor, weight: Tensor) -> Setup<Matmul> {
    product(Params::default(), x, weight, None)
}

#[test]
fn inputs_may_be_read_as_less_than_they_are() {
    // 1 + 3/512 is between 1 and 1 + 1/128, and nearer to the latter.
    let s = simple(f16(&[1, 1], &[1.0 + 3.0 / 512.0]), f16(&[1, 1], &[1.0]));
    close(&plain(&s), &[1.0 + 3.0 / 512.0]);
    close(&with(&s, "inputs_via_bf16", "nearest"), &[1.0 + 1.0 / 128.0]);
    close(&with(&s, "inputs_via_bf16", "toward zero"), &[1.0]);
    let small = 2f64.powi(-15);
    let s = simple(f16(&[1, 3], &[small, -1.0, 2f64.powi(-14)]), f16(&[1, 3], &[1.0, small, 1.0]));
    close(&with(&s, "subnormals_flushed", ""), &[2f64.powi(-14)]);
    close(&plain(&s), &[2f64.powi(-14)]);
    let s = simple(f16(&[1, 1], &[small]), f16(&[1, 1], &[4.0]));
    close(&with(&s, "subnormals_flushed", ""), &[0.0]);
    close(&plain(&s), &[4.0 * small]);
    let s = simple(bf16(&[1, 1], &[1.0]), bf16(&[1, 1], &[1.0]));
    assert!(!offered(&s, "subnormals_flushed") && !offered(&s, "inputs_via_bf16"));
}

#[test]
fn alpha_multiplies_the_sum_and_not_the_bias() {
    let n = 65;
    let with_alpha = |alpha: f64, bias: bool| {
        let bias = bias.then(|| bf16(&[n], &vec![10.0; n]));
        let params = Params { alpha, ..Params::default() };
        product(params, bf16(&[1, 2], &[1.0, 3.0]), bf16(&[n, 2], &vec![1.0; 2 * n]), bias)
    };
    let s = with_alpha(0.5, true);
    close(&plain(&s), &vec![12.0; n]);
    close(&with(&s, "alpha_ignored", "everywhere"), &vec![14.0; n]);
    let mut want = vec![12.0; n];
    want[64] = 14.0;
    close(&with(&s, "alpha_ignored", "beyond 64 columns"), &want);
    assert!(!offered(&with_alpha(1.0, true), "alpha_ignored"));
    assert!(!offered(&with_alpha(0.5, false), "alpha_ignored"));
    let text = serde_json::to_string(&Params::default()).expect("plain data");
    assert!(!text.contains("\"alpha\""), "a factor of 1 is not written: {text}");
}

#[test]
fn partial_sums_may_be_stored() {
    // 257.5 is 258 in bf16, 515 would be itself in f32.
    let (x, w) = (bf16(&[1, 4], &[256.0, 1.5, 256.0, 1.5]), bf16(&[1, 4], &[1.0; 4]));
    let s = simple(x.clone(), w.clone());
    close(&plain(&s), &[515.0]);
    close(&with(&s, "split_k_stored", "2"), &[516.0]);
    close(&with(&s, "split_k_stored", "4"), &[515.0]);
    let params = Params { row_parallel: true, ..Params::default() };
    assert!(!offered(&product(params, x, w, None), "split_k_stored"), "a convention there");
    assert!(!offered(&simple(bf16(&[1, 1], &[1.0]), bf16(&[1, 1], &[1.0])), "split_k_stored"));
    assert_eq!(s.policy.output.dtype, Dtype::Bf16);
}
