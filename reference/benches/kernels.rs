//! The reference's heavy ops at shapes of Qwen3-0.6B, by criterion.
//!
//!     cargo bench -p assay-reference --bench kernels [FILTER]
//!
//! Names are op/arithmetic/shape. Throughput is in operations (a multiply-add is two) or, of the ops that
//! read memory, in elements.

use std::hint::black_box;

use assay_reference::ops::attention::Attention;
use assay_reference::ops::gptq_dequant::{self, GptqDequant};
use assay_reference::ops::matmul::{self, Matmul};
use assay_reference::ops::quant_gemm::{self, GptqGemm};
use assay_reference::ops::rms_norm::{self, RmsNorm};
use assay_reference::ops::silu_mul::SiluMul;
use assay_reference::ops::{Basis, Op, Setup, Tensors, Tile, attention};
use assay_reference::{Dtype, Tensor};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn tensor(dtype: Dtype, shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed;
    let values: Vec<f64> = (0..shape.iter().product())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 23) - 1.0
        })
        .collect();
    Tensor::from_f64(dtype, shape, &values)
}

fn setup<O: Op>(params: O::Params, tensors: &[(&str, Tensor)], dtype: Dtype) -> Setup<O> {
    let tensors: Tensors = tensors.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    Setup { params, tensors, policy: O::policy(dtype) }
}

fn measure<O: Op>(c: &mut Criterion, name: &str, work: usize, setup: &Setup<O>) {
    let mut group = c.benchmark_group(O::NAME);
    group.throughput(Throughput::Elements(work as u64)).sample_size(20);
    group.bench_function(format!("f32/{name}"), |b| {
        b.iter(|| black_box(f32::eval(O::NAME, setup, &Tile::ALL)));
    });
    group.bench_function(format!("f64/{name}"), |b| {
        b.iter(|| black_box(f64::eval(O::NAME, setup, &Tile::ALL)));
    });
    group.finish();
}

fn all(c: &mut Criterion) {
    for (m, k, n) in [(1, 1024, 3072), (8, 1024, 3072), (128, 1024, 3072), (128, 3072, 1024)] {
        let tensors =
            [("x", tensor(Dtype::F32, &[m, k], 1)), ("weight", tensor(Dtype::Bf16, &[n, k], 2))];
        let setup = setup::<Matmul>(matmul::Params::default(), &tensors, Dtype::F64);
        measure(c, &format!("{m}x{k}x{n}"), 2 * m * k * n, &setup);
    }
    let (t, heads, kv_heads, d) = (128, 16, 8, 128);
    let tensors = [
        ("q", tensor(Dtype::F32, &[t, heads, d], 1)),
        ("k", tensor(Dtype::F32, &[t, kv_heads, d], 2)),
        ("v", tensor(Dtype::F32, &[t, kv_heads, d], 3)),
    ];
    let params = attention::Params::new(1.0 / (d as f64).sqrt());
    let attention = setup::<Attention>(params, &tensors, Dtype::F64);
    measure(c, "128x16x128", 2 * t * (t + 1) * heads * d, &attention);
    let tensors = [
        ("gate", tensor(Dtype::F32, &[128, 3072], 1)),
        ("up", tensor(Dtype::F32, &[128, 3072], 2)),
    ];
    let silu = setup::<SiluMul>(Default::default(), &tensors, Dtype::F64);
    measure(c, "128x3072", 128 * 3072, &silu);
    let tensors =
        [("x", tensor(Dtype::F32, &[128, 1024], 1)), ("weight", tensor(Dtype::Bf16, &[1024], 2))];
    let norm = setup::<RmsNorm>(rms_norm::Params::new(1e-6), &tensors, Dtype::F64);
    measure(c, "128x1024", 128 * 1024, &norm);
    let (k, n, group) = (1024, 3072, 128);
    let words: Vec<i32> =
        (0..k / 8 * n).map(|i| (i as u32).wrapping_mul(0x9e37_79b1) as i32).collect();
    let tensors = [
        ("qweight", Tensor::from_i32(&[k / 8, n], &words)),
        ("qzeros", Tensor::from_i32(&[k / group, n / 8], &words[..k / group * (n / 8)])),
        ("scales", tensor(Dtype::F16, &[k / group, n], 1)),
    ];
    let params = gptq_dequant::Params::new(gptq_dequant::Format::V1, group as i64);
    let gptq = setup::<GptqDequant>(params, &tensors, Dtype::F16);
    measure(c, "1024x3072", k * n, &gptq);
    for m in [1, 128] {
        let params = quant_gemm::Params::new::<GptqDequant>(gptq.params.clone());
        let mut all = tensors.to_vec();
        all.push(("x", tensor(Dtype::Bf16, &[m, k], 2)));
        let gemm = setup::<GptqGemm>(params, &all, Dtype::F16);
        measure(c, &format!("{m}x1024x3072"), 2 * m * k * n, &gemm);
    }
}

criterion_group!(benches, all);
criterion_main!(benches);
