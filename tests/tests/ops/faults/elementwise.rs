//! Additions, activations, softmax, choices, copies.

#![expect(clippy::disallowed_methods, reason = "a second opinion must not share the reference's")]

use assay_reference::Dtype;
use assay_reference::Tensor;
use assay_reference::ops::add::{self, Add};
use assay_reference::ops::all_reduce::{self, AllReduce};
use assay_reference::ops::argmax::{self, Argmax};
use assay_reference::ops::embedding::{self, Embedding};
use assay_reference::ops::moe_experts::{MoeExperts, Params as Experts};
use assay_reference::ops::moe_route::{MoeRoute, Params as Route};
use assay_reference::ops::silu_mul::{self, SiluMul};
use assay_reference::ops::softmax::{self, Softmax};
use assay_reference::ops::{Setup, linear::Linear};

use super::{bf16, case, close, f16, f32, offered, plain, with};

#[test]
fn a_residual_in_f16_ends_at_65504() {
    let sum = |a: f64, b: f64| {
        let tensors = [("a", bf16(&[1], &[a])), ("b", bf16(&[1], &[b]))];
        case::<Add, 2>(add::Params::default(), Dtype::Bf16, tensors)
    };
    close(&with(&sum(59_904.0, 9_984.0), "sum_f16", ""), &[f64::INFINITY]);
    close(&plain(&sum(59_904.0, 9_984.0)), &[69_888.0]);
    close(&with(&sum(1.5, 2.0), "sum_f16", ""), &[3.5]);
    let half = [("a", f16(&[1], &[1.0])), ("b", f16(&[1], &[1.0]))];
    assert!(!offered(&case::<Add, 2>(add::Params::default(), Dtype::F16, half), "sum_f16"));
}

#[test]
fn ids_of_16_bits_begin_again_at_65536() {
    let table = |rows: usize| {
        let weight: Vec<f64> = (0..rows).map(|r| if r == 65_536 { 7.0 } else { 3.0 }).collect();
        let ids = Tensor::from_i32(&[1], &[rows as i32 - 1]);
        let tensors = [("ids", ids), ("weight", bf16(&[rows, 1], &weight))];
        case::<Embedding, 2>(embedding::Params::default(), Dtype::Bf16, tensors)
    };
    close(&plain(&table(65_537)), &[7.0]);
    close(&with(&table(65_537), "id_16_bit", ""), &[3.0]);
    assert!(!offered(&table(65_536), "id_16_bit"));
}

#[test]
fn argmax_may_start_too_high_stop_too_early_or_see_too_little() {
    let row = |dtype: Dtype, x: &[f64]| {
        let x = Tensor::from_f64(dtype, &[1, x.len()], x);
        case::<Argmax, 1>(argmax::Params::default(), Dtype::F32, [("x", x)])
    };
    let negative = row(Dtype::F32, &[-3.0, -1.0, -2.0]);
    close(&with(&negative, "maximum_from_zero", ""), &[0.0]);
    close(&plain(&negative), &[1.0]);
    close(&with(&row(Dtype::F32, &[-3.0, 1.0]), "maximum_from_zero", ""), &[1.0]);
    close(&with(&row(Dtype::F32, &[-3.0, f64::NAN]), "maximum_from_zero", ""), &[1.0]);
    let mut x = vec![0.0; 65];
    (x[64], x[7]) = (2.0, 1.0);
    let tail = row(Dtype::Bf16, &x);
    close(&plain(&tail), &[64.0]);
    close(&with(&tail, "tail_dropped", "tile 64"), &[7.0]);
    assert!(!offered(&row(Dtype::Bf16, &x[..64]), "tail_dropped"));
    let near = row(Dtype::F32, &[1.0, 1.001]);
    close(&plain(&near), &[1.0]);
    close(&with(&near, "logits_bf16", ""), &[0.0]);
    assert!(!offered(&tail, "logits_bf16"));
}

#[test]
fn a_rank_may_count_twice() {
    let parts = [1.0, 2.0, 4.0].map(|v| f32(&[1], &[v]));
    let [a, b, c] = parts;
    let tensors = [("part.0", a), ("part.1", b), ("part.2", c)];
    let s = case::<AllReduce, 3>(all_reduce::Params::default(), Dtype::F32, tensors);
    for (rank, sum) in [("0", 8.0), ("1", 9.0), ("2", 11.0)] {
        close(&with(&s, "rank_counted_twice", rank), &[sum]);
    }
    close(&plain(&s), &[7.0]);
}

fn silu(gate: f64) -> Setup<SiluMul> {
    let tensors = [("gate", f32(&[1], &[gate])), ("up", f32(&[1], &[1.0]))];
    case::<SiluMul, 2>(silu_mul::Params::default(), Dtype::F32, tensors)
}

#[test]
fn a_sigmoid_may_be_another_function() {
    close(&with(&silu(-20.0), "exp_clamped", ""), &[-20.0 / (1.0 + 10f64.exp())]);
    close(&with(&silu(-9.0), "exp_clamped", ""), &plain(&silu(-9.0)));
    close(&with(&silu(-4.0), "log2e_bf16", ""), &[-4.0 / (1.0 + (4.0 * 1.445_312_5f64).exp2())]);
    // t(1/2) = 0.5 (27.25) / 29.25
    close(&with(&silu(1.0), "tanh_pade", ""), &[0.5 + 13.625 / 29.25 / 2.0]);
    close(&with(&silu(8.0), "tanh_pade", ""), &[8.0]);
    close(&with(&silu(-8.0), "tanh_pade", ""), &[0.0]);
    // e^12 is beyond f16, e^1 is 2.71875 there.
    close(&with(&silu(-12.0), "exp_f16", ""), &[0.0]);
    close(&with(&silu(-1.0), "exp_f16", ""), &[-1.0 / 3.718_75]);
    close(&plain(&silu(-1.0)), &[-1.0 / (1.0 + 1f64.exp())]);
}

#[test]
fn exponentials_may_be_of_another_argument() {
    let row = |x: [f64; 2]| {
        let params = softmax::Params::default();
        case::<Softmax, 1>(params, Dtype::F32, [("x", f32(&[1, 2], &x))])
    };
    close(&with(&row([0.0, 0.0]), "padded_key_counted", ""), &[1.0 / 3.0; 2]);
    let e = 2f64.exp();
    close(&with(&row([2.0, 2.0]), "padded_key_counted", ""), &[e / (2.0 * e + 1.0); 2]);
    let nan = f64::NAN;
    for (x, want) in [
        ([100.0, 0.0], [nan, 0.0]),
        ([-200.0, -200.0], [nan, nan]),
        // The sum alone is beyond f32.
        ([88.5, 88.5], [0.0, 0.0]),
        ([1.0, 1.0], [0.5, 0.5]),
    ] {
        close(&with(&row(x), "maximum_not_subtracted", ""), &want);
    }
    let far = (-10f64).exp();
    close(
        &with(&row([0.0, -50.0]), "exponent_clamped", ""),
        &[1.0 / (1.0 + far), far / (1.0 + far)],
    );
    let e = (-8.0 * 1.445_312_5f64).exp2();
    close(&with(&row([3.0, -5.0]), "log2e_bf16", ""), &[1.0 / (1.0 + e), e / (1.0 + e)]);
    let e = (-8f64).exp();
    close(&plain(&row([3.0, -5.0])), &[1.0 / (1.0 + e), e / (1.0 + e)]);
}

#[test]
fn routing_may_round_its_divisor_and_see_too_few_experts() {
    let route = |logits: &[f64], k: usize| {
        let logits = bf16(&[1, logits.len()], logits);
        case::<MoeRoute, 1>(Route::new(k, true), Dtype::Bf16, [("logits", logits)])
    };
    // Of 1, 1 and e^-1 two are chosen: their probabilities' sum is no bf16.
    let s = route(&[0.0, 0.0, -1.0], 2);
    let p = 1.0 / (2.0 + (-1f64).exp());
    let sum = f64::from(half::bf16::from_f64(2.0 * p));
    assert_ne!(sum, 2.0 * p);
    close(&with(&s, "divisor_stored", ""), &[p / sum, p / sum, 0.0]);
    close(&plain(&s), &[0.5, 0.5, 0.0]);
    let mut logits = vec![0.0; 33];
    (logits[32], logits[4], logits[9]) = (9.0, 5.0, 4.0);
    let (chosen, right) =
        (with(&route(&logits, 2), "experts_limited", "32"), plain(&route(&logits, 2)));
    let taken = |row: &[f64]| (0..33).filter(|&i| row[i] != 0.0).collect::<Vec<_>>();
    assert_eq!((taken(&chosen), taken(&right)), (vec![4, 9], vec![4, 32]));
    close(&[chosen[4]], &[1.0 / (1.0 + (-1f64).exp())]);
    assert!(!offered(&route(&logits[..32], 2), "experts_limited"));
}

/// Two tokens, two experts of width 1: y = sum over experts of w down silu(gate x) up x.
#[test]
fn an_expert_may_be_another_one_or_weighted_too_early() {
    let x = f32(&[2, 1], &[1.0, 2.0]);
    let routing = f32(&[2, 2], &[0.5, 0.25, 0.5, 0.25]);
    let weight = |v: f64| f32(&[1, 1], &[v]);
    let params = Experts::new([Linear::Dense, Linear::Dense, Linear::Dense]);
    let s = case::<MoeExperts, 8>(
        params,
        Dtype::F32,
        [
            ("x", x),
            ("routing", routing),
            ("experts.0.gate_proj.weight", weight(1.0)),
            ("experts.0.up_proj.weight", weight(3.0)),
            ("experts.0.down_proj.weight", weight(5.0)),
            ("experts.1.gate_proj.weight", weight(-1.0)),
            ("experts.1.up_proj.weight", weight(2.0)),
            ("experts.1.down_proj.weight", weight(7.0)),
        ],
    );
    let silu = |g: f64| g / (1.0 + (-g).exp());
    let first = |x: f64| silu(x) * 3.0 * x;
    let second = |x: f64| silu(-x) * 2.0 * x;
    let right = |x: f64, down: f64| 0.5 * down * first(x) + 0.25 * 7.0 * second(x);
    close(&plain(&s), &[right(1.0, 5.0), right(2.0, 5.0)]);
    close(&with(&s, "one_token_wrong_down", ""), &[right(1.0, 5.0), right(2.0, 7.0)]);
    let early = |x: f64| 5.0 * first(0.5 * x) + 7.0 * second(0.25 * x);
    close(&with(&s, "weighted_input", ""), &[early(1.0), early(2.0)]);
}
