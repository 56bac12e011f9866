//! What the sources say of faults that were derived and not reported: which common criteria miss them,
//! on ordinary data.

use assay_reference::arith::Ball;
use assay_reference::ops::attention::{Attention, Params as Attend};
use assay_reference::ops::gptq_dequant::{Format, GptqDequant, Params as Gptq};
use assay_reference::ops::matmul::{Matmul, Params as Product};
use assay_reference::ops::moe_route::{MoeRoute, Params as Route};
use assay_reference::ops::quant_gemm::{GptqGemm, Params as Layer};
use assay_reference::ops::rms_norm::{Params as Norm, RmsNorm};
use assay_reference::ops::rope::{Angle, Params as Turn, Rope};
use assay_reference::ops::silu_mul::{self, SiluMul};
use assay_reference::ops::softmax::{self, Softmax};
use assay_reference::ops::{Op, Setup};
use assay_reference::{Dtype, Tensor};

use super::{broken, case, plain};
use crate::harness::{Draw, whole};

/// Accepts an output for the right one.
type Criterion = fn(&[f64], &[f64]) -> bool;

/// A fault's slug and key, and the criteria that miss it, by name.
type Claim<'a> = (&'a str, &'a str, &'a [(&'a str, Criterion)]);

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn within(right: &[f64], got: &[f64], atol: f64, rtol: f64) -> bool {
    right.iter().zip(got).all(|(r, g)| (r - g).abs() <= atol + rtol * r.abs())
}

/// llama.cpp's test-backend-ops for matrix products.
const NMSE: Criterion = |right, got| {
    let error: Vec<f64> = right.iter().zip(got).map(|(r, g)| r - g).collect();
    dot(&error, &error) / dot(right, right) <= 5e-4
};
const COSINE: Criterion =
    |right, got| dot(right, got) / (dot(right, right) * dot(got, got)).sqrt() >= 0.9999;
/// torch.testing.assert_close for bf16.
const TORCH: Criterion = |right, got| within(right, got, 1e-5, 1.6e-2);
/// vLLM's kernel tests.
const VLLM: Criterion = |right, got| within(right, got, 1e-2, 1e-2);
/// vLLM's marlin tests.
const MARLIN: Criterion = |right, got| {
    let mean = |x: &mut dyn Iterator<Item = f64>| x.sum::<f64>();
    let error = mean(&mut right.iter().zip(got).map(|(r, g)| (r - g).abs()));
    error / mean(&mut right.iter().map(|r| r.abs())) < 0.04
};

/// Each fault changes the stored output, and each of the criteria accepts it.
#[track_caller]
fn missed<O: Op>(s: &Setup<O>, faults: &[Claim<'_>]) {
    let stored = |s: &Setup<O>| -> Vec<f64> {
        plain(s).into_iter().map(|v| s.policy.output.round(v)).collect()
    };
    let right = stored(s);
    for (slug, key, criteria) in faults {
        let wrong = broken(s, slug, key);
        within_its_bound(&wrong, slug);
        let got = stored(&wrong);
        assert_ne!(got, right, "{}.{slug} changes nothing", O::NAME);
        for (name, accepts) in *criteria {
            assert!(accepts(&right, &got), "{name} sees {}.{slug} ({key})", O::NAME);
        }
    }
}

/// What f32 makes of the fault is within the fault's own bound, so that it can be named.
#[track_caller]
fn within_its_bound<O: Op>(wrong: &Setup<O>, slug: &str) {
    // An accumulator of a given order is not carried out in f32.
    if wrong.policy.acc.is_exact() {
        return;
    }
    let balls = whole::<O, Ball<24>>(wrong);
    for (got, ball) in whole::<O, f32>(wrong).into_iter().map(f64::from).zip(&balls) {
        let inside = (got - ball.v).abs() <= ball.r || got == ball.v;
        assert!(inside, "{}.{slug}: {got} outside {ball:?}", O::NAME);
    }
}

fn unit(draw: &mut Draw, shape: &[usize]) -> Tensor {
    draw.tensor(Dtype::Bf16, shape, 1.0)
}

#[test]
fn of_products() {
    let mut draw = Draw::new(1);
    let x = unit(&mut draw, &[4, 512]);
    let weight = draw.tensor(Dtype::Bf16, &[64, 512], 0.05);
    let s = case::<Matmul, 2>(Product::default(), Dtype::Bf16, [("x", x), ("weight", weight)]);
    missed(
        &s,
        &[
            (
                "store_via_f16",
                "",
                &[("nmse", NMSE), ("torch", TORCH), ("vllm", VLLM), ("cosine", COSINE)],
            ),
            ("split_k_stored", "2", &[("nmse", NMSE), ("cosine", COSINE)]),
            ("split_k_stored", "8", &[("nmse", NMSE), ("cosine", COSINE)]),
        ],
    );
}

#[test]
fn of_quantised_layers() {
    let mut draw = Draw::new(2);
    let (k, n, group) = (1024, 128, 128);
    let words = |draw: &mut Draw, shape: [usize; 2]| {
        let values: Vec<i32> = (0..shape[0] * shape[1]).map(|_| draw.word() as i32).collect();
        Tensor::from_i32(&shape, &values)
    };
    // Asymmetric zero points of 6 to 9, as a quantiser gives.
    let zeros: Vec<i32> = (0..k / group * n / 8)
        .map(|_| (0..8).fold(0u32, |w, i| w | (6 + draw.below(4) as u32) << (4 * i)) as i32)
        .collect();
    let scales = draw.tensor(Dtype::F16, &[k / group, n], 0.002).map(|_, v| 0.004 + v.abs());
    let qweight = words(&mut draw, [k / 8, n]);
    let x = unit(&mut draw, &[16, k]);
    let tensors = [
        ("qweight", qweight),
        ("qzeros", Tensor::from_i32(&[k / group, n / 8], &zeros)),
        ("scales", scales),
        ("x", x),
    ];
    let params = Layer::new::<GptqDequant>(Gptq::new(Format::V2, group as i64));
    let s = case::<GptqGemm, 4>(params, Dtype::Bf16, tensors);
    let loose: &[(&str, Criterion)] = &[("nmse", NMSE), ("marlin", MARLIN), ("cosine", COSINE)];
    missed(
        &s,
        &[
            ("value_bit_flipped", "", loose),
            ("one_zero_point_off", "", loose),
            ("zero_point_prescaled", "", loose),
            ("scale_after_cast", "", loose),
        ],
    );
}

#[test]
fn of_norms_and_rotations() {
    let mut draw = Draw::new(3);
    let (x, weight) = (unit(&mut draw, &[8, 300]), draw.tensor(Dtype::F32, &[300], 1.0));
    let s = case::<RmsNorm, 2>(Norm::new(1e-6), Dtype::Bf16, [("x", x), ("weight", weight)]);
    let all: &[(&str, Criterion)] =
        &[("nmse", NMSE), ("torch", TORCH), ("vllm", VLLM), ("cosine", COSINE)];
    missed(
        &s,
        &[
            ("store_via_f16", "", all),
            ("rsqrt_one_newton_step", "", &[("nmse", NMSE), ("torch", TORCH), ("cosine", COSINE)]),
            ("weight_bf16", "", &[("nmse", NMSE), ("torch", TORCH), ("cosine", COSINE)]),
            ("mean_over_padded_width", "power of two", &[("cosine", COSINE)]),
            ("sum_bf16", "every 8", &[("cosine", COSINE)]),
        ],
    );
    let tensors = [
        ("x", unit(&mut draw, &[4, 2, 128])),
        ("positions", Tensor::from_i32(&[4], &[0, 1, 2, 3])),
    ];
    let s = case::<Rope, 2>(Turn::new(1e6, Angle::F32), Dtype::Bf16, tensors);
    let loose: &[(&str, Criterion)] = &[("nmse", NMSE), ("cosine", COSINE)];
    missed(&s, &[("sign_wrong_beyond", "", loose), ("high_pairs_unrotated", "", loose)]);
}

#[test]
fn of_exponentials() {
    let mut draw = Draw::new(4);
    let (gate, up) = (unit(&mut draw, &[8, 256]), unit(&mut draw, &[8, 256]));
    let params = silu_mul::Params::default();
    let s = case::<SiluMul, 2>(params, Dtype::Bf16, [("gate", gate), ("up", up)]);
    let all: &[(&str, Criterion)] =
        &[("nmse", NMSE), ("torch", TORCH), ("vllm", VLLM), ("cosine", COSINE)];
    missed(
        &s,
        &[
            ("log2e_bf16", "", &[("nmse", NMSE), ("vllm", VLLM), ("cosine", COSINE)]),
            ("tanh_pade", "", &[("cosine", COSINE)]),
            ("exp_f16", "", &[("nmse", NMSE), ("vllm", VLLM), ("cosine", COSINE)]),
            ("store_via_f16", "", all),
        ],
    );
    let x = unit(&mut draw, &[8, 128]);
    let s = case::<Softmax, 1>(softmax::Params::default(), Dtype::Bf16, [("x", x)]);
    missed(
        &s,
        &[
            (
                "log2e_bf16",
                "",
                &[("nmse", NMSE), ("torch", TORCH), ("vllm", VLLM), ("cosine", COSINE)],
            ),
            ("padded_key_counted", "", &[("cosine", COSINE)]),
        ],
    );
    let logits = draw.tensor(Dtype::Bf16, &[32, 128], 2.0);
    let s = case::<MoeRoute, 1>(Route::new(8, true), Dtype::Bf16, [("logits", logits)]);
    missed(&s, &[("divisor_stored", "", all)]);
}

#[test]
fn of_attention() {
    let mut draw = Draw::new(5);
    let (t, s, d) = (2, 1000, 64);
    let tensors = [
        ("q", unit(&mut draw, &[t, 2, d])),
        ("k", unit(&mut draw, &[s, 2, d])),
        ("v", unit(&mut draw, &[s, 2, d])),
    ];
    let params = Attend::new(1.0 / (d as f64).sqrt());
    let s = case::<Attention, 3>(params, Dtype::Bf16, tensors);
    missed(
        &s,
        &[
            ("log2e_bf16", "", &[("nmse", NMSE), ("vllm", VLLM), ("cosine", COSINE)]),
            (
                "q_scaled_stored",
                "scale log2e",
                &[("nmse", NMSE), ("vllm", VLLM), ("cosine", COSINE)],
            ),
            ("padded_keys_counted", "tile 64", &[("vllm", VLLM), ("cosine", COSINE)]),
            (
                "store_via_f16",
                "",
                &[("nmse", NMSE), ("torch", TORCH), ("vllm", VLLM), ("cosine", COSINE)],
            ),
        ],
    );
    // One row, times a factor.
    let mut s = s;
    for (name, rows, sd) in [("q", 1, 0.1), ("k", 1000, 1.0), ("v", 1000, 1.0)] {
        s.tensors.insert(name.into(), draw.tensor(Dtype::Bf16, &[rows, 1, d], sd));
    }
    missed(&s, &[("denominator_bf16", "", &[("cosine", COSINE)])]);
}
