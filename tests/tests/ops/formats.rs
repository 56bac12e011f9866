//! The quantised formats against a reading bit by bit, from the layouts' descriptions.

use assay_reference::ops::awq_dequant::{self, AwqDequant};
use assay_reference::ops::ct_dequant::{self, CtDequant};
use assay_reference::ops::fp8_dequant::{self, Fp8Dequant};
use assay_reference::ops::gptq_dequant::{self, Format, GptqDequant, Wrap};
use assay_reference::ops::linear::Linear;
use assay_reference::ops::quant_gemm::{self, Activations, AwqGemm, CtGemm, Fp8Gemm, GptqGemm};
use assay_reference::ops::{Arg, Inputs, Op, Setup, Tensors};
use assay_reference::{Dtype, Rounding, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, bits, config, holds, setup, whole};
use crate::naive;

/// Bits `at * width..` of a stream of words, one bit after the other.
fn field(word: impl Fn(usize) -> i64, at: usize, width: usize) -> i64 {
    (0..width).fold(0, |value, b| {
        let bit = at * width + b;
        value | ((word(bit / 32) as u32 >> (bit % 32)) as i64 & 1) << b
    })
}

/// Words of random bits.
fn random(draw: &mut Draw, shape: &[usize]) -> Tensor {
    let n = shape.iter().product();
    Tensor::from_i32(shape, &(0..n).map(|_| draw.word() as i32).collect::<Vec<_>>())
}

fn scales(draw: &mut Draw, dtype: Dtype, shape: &[usize]) -> Tensor {
    draw.tensor(dtype, shape, 0.01).map(|_, v| v.abs() + 1e-3)
}

fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> Tensors {
    tensors.map(|(n, t)| (n.to_string(), t)).into()
}

fn case<O: Op>(params: O::Params, tensors: &Tensors) -> Setup<O> {
    let mut s = setup::<O, 0>(params, []);
    s.tensors = tensors.clone();
    s
}

/// Exact values for [`holds`].
fn exactly(n: usize, value: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
    (0..n).map(|i| (value(i), 0.0)).collect()
}

/// A group size of -1, or one that may leave a short last group.
fn sizes() -> impl Strategy<Value = i64> {
    prop_oneof![Just(-1i64), Just(8), Just(16), Just(32)]
}

fn group(k: usize, size: i64) -> usize {
    if size < 0 { 0 } else { k / size as usize }
}

fn groups(k: usize, size: i64) -> usize {
    group(k - 1, size) + 1
}

#[derive(Debug)]
struct GptqLayer {
    params: gptq_dequant::Params,
    tensors: Tensors,
    /// [K, N]
    weight: Vec<f64>,
    n: usize,
}

/// A GPTQ layer of 32 `rows` by 32 `columns` at a width. With `extra` groups that no row uses, as a
/// shard of a larger layer has.
fn gptq(width: u32, size: i64, format: Format, wrap: Wrap, extra: usize, seed: u64) -> GptqLayer {
    let mut draw = Draw::new(seed);
    let b = width as usize;
    let (k, n) = (32 * (1 + draw.below(3)), 32 * (1 + draw.below(2)));
    let g = groups(k, size) + extra;
    let (qweight, qzeros) =
        (random(&mut draw, &[k * b / 32, n]), random(&mut draw, &[g, n * b / 32]));
    let scale = scales(&mut draw, Dtype::F16, &[g, n]);
    let index: Vec<i32> = (0..k).map(|_| draw.below(g) as i32).collect();
    let with_index = extra > 0 || draw.below(2) == 0;
    let group_of = |k: usize| if with_index { index[k] as usize } else { group(k, size) };
    let weight = (0..k * n)
        .map(|i| {
            let (k, c) = (i / n, i % n);
            let q = field(|w| qweight.get_i64(w * n + c), k, b);
            let row = group_of(k);
            let words = n * b / 32;
            let stored = field(|w| qzeros.get_i64(row * words + w), c, b);
            let z = match (format, wrap) {
                (Format::V2, _) => stored,
                (Format::V1, Wrap::None) => stored + 1,
                (Format::V1, Wrap::Modulo) => (stored + 1) % (1 << b),
                // The whole word plus a one at each value.
                (Format::V1, Wrap::Word) => {
                    let ones = (0..32 / b).fold(0u32, |w, j| w | 1 << (j * b));
                    let word = |w: usize| {
                        (qzeros.get_i64(row * words + w) as u32).wrapping_add(ones) as i64
                    };
                    field(word, c, b)
                }
            };
            (q - z) as f64 * scale.get(row * n + c)
        })
        .collect();
    let mut tensors = named([("qweight", qweight), ("qzeros", qzeros), ("scales", scale)]);
    if with_index {
        tensors.insert("g_idx".into(), Tensor::from_i32(&[k], &index));
    }
    let mut params = gptq_dequant::Params::new(format, size).with_bits(width);
    params.wrap = wrap;
    GptqLayer { params, tensors, weight, n }
}

/// AWQ: params, tensors, [K, N], N.
fn awq(k: usize, words: usize, size: i64, seed: u64) -> (awq_dequant::Params, Tensors, Vec<f64>) {
    let mut draw = Draw::new(seed);
    let (n, g) = (words * 8, groups(k, size));
    let (qweight, qzeros) = (random(&mut draw, &[k, words]), random(&mut draw, &[g, words]));
    let scale = scales(&mut draw, Dtype::F16, &[g, n]);
    let mut weight = vec![0.0; k * n];
    for row in 0..k {
        for word in 0..words {
            for (slot, logical) in [0, 2, 4, 6, 1, 3, 5, 7].into_iter().enumerate() {
                let (c, row_group) = (word * 8 + logical, group(row, size));
                let q = field(|_| qweight.get_i64(row * words + word), slot, 4);
                let z = field(|_| qzeros.get_i64(row_group * words + word), slot, 4);
                weight[row * n + c] = (q - z) as f64 * scale.get(row_group * n + c);
            }
        }
    }
    let tensors = named([("qweight", qweight), ("qzeros", qzeros), ("scales", scale)]);
    (awq_dequant::Params::new(size), tensors, weight)
}

/// compressed-tensors: params, tensors, [N, K].
fn compressed(
    (n, k): (usize, usize),
    width: u32,
    size: i64,
    (asymmetric, indexed): (bool, bool),
    seed: u64,
) -> (ct_dequant::Params, Tensors, Vec<f64>) {
    let mut draw = Draw::new(seed);
    let (b, g) = (width as usize, groups(k, size));
    let words = (k * b).div_ceil(32);
    let packed = random(&mut draw, &[n, words]);
    let zeros = random(&mut draw, &[(n * b).div_ceil(32), g]);
    let scale = scales(&mut draw, Dtype::Bf16, &[n, g]);
    let index: Vec<i32> = (0..k).map(|_| draw.below(g) as i32).collect();
    let half = 1i64 << (b - 1);
    let weight = (0..n * k)
        .map(|i| {
            let (row, c) = (i / k, i % k);
            let own = if indexed { index[c] as usize } else { group(c, size) };
            let q = field(|w| packed.get_i64(row * words + w), c, b) - half;
            let z = field(|w| zeros.get_i64(w * g + own), row, b) - half;
            (if asymmetric { q - z } else { q }) as f64 * scale.get(row * g + own)
        })
        .collect();
    let shape = Tensor::from_i32(&[2], &[n as i32, k as i32]);
    let mut tensors =
        named([("weight_packed", packed), ("weight_scale", scale), ("weight_shape", shape)]);
    if asymmetric {
        tensors.insert("weight_zero_point".into(), zeros);
    }
    if indexed {
        tensors.insert("weight_g_idx".into(), Tensor::from_i32(&[k], &index));
    }
    (ct_dequant::Params::new(width, size), tensors, weight)
}

/// FP8: params, tensors, [N, K], from random codes without NaN.
fn fp8(
    (n, k): (usize, usize),
    block: [usize; 2],
    scale_dtype: Dtype,
    seed: u64,
) -> (fp8_dequant::Params, Tensors, Vec<f64>) {
    let mut draw = Draw::new(seed);
    let codes: Vec<u8> = (0..n * k)
        .map(|_| draw.word() as u8)
        .map(|c| if c & 0x7f == 0x7f { c & 0x80 } else { c })
        .collect();
    let (a, b) = (n.div_ceil(block[0]), k.div_ceil(block[1]));
    let scale = scales(&mut draw, scale_dtype, &[a, b]);
    let value = |code: u8| {
        let (exp, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
        let size =
            if exp == 0 { fraction * 2f64.powi(-6) } else { (1.0 + fraction) * 2f64.powi(exp - 7) };
        if code > 127 { -size } else { size }
    };
    let weight = (0..n * k)
        .map(|i| value(codes[i]) * scale.get(i / k / block[0] * b + i % k / block[1]))
        .collect();
    let w = Tensor::from_bytes(Dtype::F8E4m3, vec![n, k], codes).expect("bytes");
    let tensors = named([("weight", w), ("weight_scale_inv", scale)]);
    (fp8_dequant::Params::new(block), tensors, weight)
}

/// A linear layer's output from its weight, by (k, n), with the weight stored in bf16.
fn product(x: &Tensor, n: usize, w: impl Fn(usize, usize) -> f64) -> Vec<(f64, f64)> {
    let stored = |k: usize, n: usize| Rounding::nearest(Dtype::Bf16).round(w(k, n));
    naive::matmul(&x.to_f64(), x.cols(), n, stored, None)
}

/// The composite and [`Linear`] under a prefix give the naive product.
#[track_caller]
fn check_gemm<O: Op>(
    params: O::Params,
    linear: &Linear,
    layer: &Tensors,
    (k, n): (usize, usize),
    w: impl Fn(usize, usize) -> f64,
) {
    let x = Draw::new((k * n) as u64).tensor(Dtype::Bf16, &[3, k], 1.0);
    let want = product(&x, n, w);
    let mut tensors = layer.clone();
    tensors.insert("x".into(), x.clone());
    let mut gemm = case::<O>(params, &tensors);
    gemm.policy.parts[0].output = Rounding::nearest(Dtype::Bf16);
    holds(&gemm, &want);

    let prefixed: Tensors =
        layer.iter().map(|(name, t)| (format!("experts.3.up_proj.{name}"), t.clone())).collect();
    assert_eq!(linear.op(), O::NAME);
    assert_eq!(linear.check(&prefixed, "experts.3.up_proj.", k).expect("checked"), n);
    let inputs = Inputs::<f64>::stored(&prefixed);
    let got = linear.eval(Arg::Stored(&x), &inputs, "experts.3.up_proj.", &gemm.policy);
    assert_eq!(bits(&got), bits(&whole::<O, f64>(&gemm)));
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn gptq_of_every_width_equals_the_bits(
        width in prop::sample::select(vec![2u32, 3, 4, 8]),
        size in sizes(), v1: bool, wrap in 0usize..3, extra in 0usize..3, seed: u64,
    ) {
        let wrap = [Wrap::None, Wrap::Modulo, Wrap::Word][wrap];
        // At 3 bits there is no word arithmetic to imitate.
        let wrap = if width == 3 && wrap == Wrap::Word { Wrap::None } else { wrap };
        let format = if v1 { Format::V1 } else { Format::V2 };
        let layer = gptq(width, size, format, wrap, extra, seed);
        let s = case::<GptqDequant>(layer.params.clone(), &layer.tensors);
        holds(&s, &exactly(layer.weight.len(), |i| layer.weight[i]));
        let params = quant_gemm::Params::new::<GptqDequant>(layer.params.clone());
        let (n, k) = (layer.n, layer.weight.len() / layer.n);
        check_gemm::<GptqGemm>(
            params.clone(), &Linear::Gptq(params), &layer.tensors, (k, n),
            |k, c| layer.weight[k * n + c],
        );
    }

    #[test]
    fn awq_equals_the_bits(k in 1usize..70, words in 1usize..4, size in sizes(), seed: u64) {
        let (params, tensors, weight) = awq(k, words, size, seed);
        let s = case::<AwqDequant>(params.clone(), &tensors);
        holds(&s, &exactly(weight.len(), |i| weight[i]));
        let params = quant_gemm::Params::new::<AwqDequant>(params);
        let n = words * 8;
        check_gemm::<AwqGemm>(
            params.clone(), &Linear::Awq(params), &tensors, (k, n), |k, c| weight[k * n + c],
        );
    }

    #[test]
    fn compressed_tensors_equal_the_bits(
        n in 1usize..40, k in 1usize..70, width in prop::sample::select(vec![2u32, 3, 4, 8]),
        size in sizes(), asymmetric: bool, indexed: bool, seed: u64,
    ) {
        let (params, tensors, weight) = compressed((n, k), width, size, (asymmetric, indexed), seed);
        let s = case::<CtDequant>(params.clone(), &tensors);
        holds(&s, &exactly(weight.len(), |i| weight[i]));
        let params = quant_gemm::Params::new::<CtDequant>(params);
        check_gemm::<CtGemm>(
            params.clone(), &Linear::CompressedTensors(params), &tensors, (k, n),
            |i, c| weight[c * k + i],
        );
    }

    #[test]
    fn fp8_equals_the_codes(
        n in 1usize..40, k in 1usize..40, b0 in 1usize..20, b1 in 1usize..20,
        dtype in prop::sample::select(vec![Dtype::Bf16, Dtype::F16, Dtype::F32]), seed: u64,
    ) {
        let (params, tensors, weight) = fp8((n, k), [b0, b1], dtype, seed);
        let s = case::<Fp8Dequant>(params.clone(), &tensors);
        holds(&s, &exactly(weight.len(), |i| weight[i]));
    }

    #[test]
    fn fp8_products_equal_the_formula(n in 1usize..20, k in 1usize..40, seed: u64) {
        // Scales of few bits, so that the f32 product is exact and its rounding to bf16 has no ties
        // that a ball would have to leave open.
        let (params, mut tensors, _) = fp8((n, k), [8, 16], Dtype::Bf16, seed);
        let scale = tensors["weight_scale_inv"].map(|i, _| [0.25, 0.5, 1.0][i % 3]);
        tensors.insert("weight_scale_inv".into(), scale.clone());
        let codes = tensors["weight"].to_f64();
        let blocks = k.div_ceil(16);
        let w = |i: usize, c: usize| codes[c * k + i] * scale.get(c / 8 * blocks + i / 16);
        let params = quant_gemm::Params::new::<Fp8Dequant>(params);
        check_gemm::<Fp8Gemm>(params.clone(), &Linear::Fp8(params), &tensors, (k, n), w);
    }

    /// Dynamic activations: groups of 16, a scale of max / 448 each.
    #[test]
    fn fp8_activations_follow_the_formula(k in 1usize..50, seed: u64) {
        let (params, mut tensors, weight) = fp8((5, k), [4, 16], Dtype::F32, seed);
        let x = Draw::new(!seed).tensor(Dtype::Bf16, &[2, k], 3.0);
        let mut rows = x.to_f64();
        for row in rows.chunks_mut(k) {
            for part in row.chunks_mut(16) {
                let max = part.iter().fold(0.0f64, |m, v| m.max(v.abs()));
                for v in part.iter_mut().filter(|_| max > 0.0) {
                    *v = nearest_e4m3(*v / (max / 448.0)) * (max / 448.0);
                }
            }
        }
        let want = naive::matmul(&rows, k, 5, |i, c| weight[c * k + i], None);
        tensors.insert("x".into(), x);
        let mut params = quant_gemm::Params::new::<Fp8Dequant>(params);
        params.activations = Activations::Fp8;
        params.edge_f32 = true;
        let got = whole::<Fp8Gemm, f64>(&case(params, &tensors));
        for (got, (want, size)) in got.iter().zip(want) {
            prop_assert!((got - want).abs() <= 1e-12 * size, "{got} for {want}");
        }
    }
}

/// The nearest e4m3 value by trying them all; the values here are never halfway to within f64.
fn nearest_e4m3(x: f64) -> f64 {
    let mut best = 0.0f64;
    for exp in 0..16 {
        for fraction in 0..8 {
            if (exp, fraction) == (15, 7) {
                continue;
            }
            let v = if exp == 0 {
                f64::from(fraction) * 2f64.powi(-9)
            } else {
                (8.0 + f64::from(fraction)) * 2f64.powi(exp - 10)
            };
            let closer = (v - x.abs()).abs() - (best - x.abs()).abs();
            if closer < 0.0 || (closer == 0.0 && fraction % 2 == 0) {
                best = v;
            }
        }
    }
    best.copysign(x)
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let layer = gptq(3, 16, Format::V1, Wrap::None, 0, 5);
    let refuse = |params: gptq_dequant::Params, tensors: &Tensors| {
        GptqDequant::check(&params, tensors).expect_err("refused").to_string()
    };
    let text = refuse(layer.params.clone().with_bits(5), &layer.tensors);
    assert!(text.contains("bits") && text.contains("must be 2, 3, 4 or 8"), "{text}");
    let mut cut = layer.tensors.clone();
    cut.insert("qweight".into(), Tensor::from_i32(&[4, layer.n], &vec![0; 4 * layer.n]));
    let text = refuse(layer.params.clone(), &cut);
    assert!(text.contains("qweight") && text.contains("3 words for 32 rows"), "{text}");

    let (params, mut tensors, _) = fp8((8, 8), [4, 4], Dtype::Bf16, 1);
    let text = Fp8Dequant::check(&fp8_dequant::Params::new([8, 4]), &tensors).expect_err("refused");
    assert!(text.to_string().contains("weight_scale_inv"), "{text}");
    tensors.insert("weight".into(), Tensor::from_f64(Dtype::Bf16, &[8, 8], &[1.0; 64]));
    let text = Fp8Dequant::check(&params, &tensors).expect_err("refused").to_string();
    assert!(text.contains("must be f8e4m3, is bf16"), "{text}");

    let (params, tensors, _) = awq(16, 1, 8, 1);
    let mut gemm = quant_gemm::Params::new::<AwqDequant>(params);
    gemm.activations = Activations::Fp8;
    let text = AwqGemm::check(&gemm, &tensors).expect_err("refused").to_string();
    assert!(text.contains("activations") && text.contains("only with fp8 weights"), "{text}");
}
