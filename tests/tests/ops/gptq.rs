//! `gptq_dequant` and `gptq_gemm`.

use assay_reference::ops::gptq_dequant::{self, Format, GptqDequant};
use assay_reference::ops::quant_gemm::{self, GptqGemm};
use assay_reference::ops::{Setup, Tensors};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, bits, config, holds, setup, whole};
use crate::naive::{self, Gptq};

/// What a layer is made from.
#[derive(Clone, Copy, Debug)]
struct Spec {
    rows: usize,
    columns: usize,
    group: i64,
    format: Format,
    sym: bool,
    act: bool,
}

fn specs() -> impl Strategy<Value = Spec> {
    let group = prop_oneof![Just(-1i64), Just(8), Just(16), Just(32)];
    (1usize..9, 1usize..4, group, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(words, blocks, group, v1, sym, act)| Spec {
            rows: words * 8,
            columns: blocks * 8,
            group,
            format: if v1 { Format::V1 } else { Format::V2 },
            sym,
            act,
        },
    )
}

fn layer(s: Spec, seed: u64) -> (Gptq, Tensors) {
    let mut draw = Draw::new(seed);
    let size = if s.group < 0 { s.rows } else { s.group as usize };
    let groups = s.rows.div_ceil(size);
    let qweight: Vec<i32> = (0..s.rows / 8 * s.columns).map(|_| draw.word() as i32).collect();
    let middle = if s.format == Format::V1 { 0x7777_7777 } else { 0x8888_8888u32 as i32 };
    let qzeros: Vec<i32> = (0..groups * s.columns / 8)
        .map(|_| if s.sym { middle } else { draw.word() as i32 })
        .collect();
    let scales = draw.tensor(Dtype::F16, &[groups, s.columns], 0.01).map(|_, v| v.abs() + 1e-4);
    let mut group_of: Vec<usize> = (0..s.rows).map(|k| k / size).collect();
    if s.act {
        for i in (1..s.rows).rev() {
            group_of.swap(i, draw.below(i + 1));
        }
    }
    let mut tensors: Tensors = [
        ("qweight", Tensor::from_i32(&[s.rows / 8, s.columns], &qweight)),
        ("qzeros", Tensor::from_i32(&[groups, s.columns / 8], &qzeros)),
        ("scales", scales.clone()),
    ]
    .map(|(n, t)| (n.to_string(), t))
    .into();
    if s.act {
        let index: Vec<i32> = group_of.iter().map(|&g| g as i32).collect();
        tensors.insert("g_idx".into(), Tensor::from_i32(&[s.rows], &index));
    }
    let plain = Gptq {
        k: s.rows,
        n: s.columns,
        qweight,
        qzeros,
        scales: scales.to_f64(),
        group_of,
        plus_one: s.format == Format::V1,
    };
    (plain, tensors)
}

fn dequant(s: Spec, tensors: Tensors) -> Setup<GptqDequant> {
    let params = gptq_dequant::Params::new(s.format, s.group);
    let mut out = setup::<GptqDequant, 0>(params, []);
    out.tensors = tensors;
    out
}

fn bf16(x: f64) -> f64 {
    // 5 bits times 11 bits fit f32, so only the second rounding does anything.
    half::bf16::from_f32(x as f32).to_f64()
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn dequant_equals_the_formula_exactly(s in specs(), seed: u64) {
        let (plain, tensors) = layer(s, seed);
        let s = dequant(s, tensors);
        let want: Vec<(f64, f64)> = (0..plain.k * plain.n)
            .map(|i| (plain.weight(i / plain.n, i % plain.n), 0.0))
            .collect();
        holds(&s, &want);
        // 4 + 1 bits times 11 bits: exact in f32 too, so that the bound is empty.
        let balls = whole::<_, assay_reference::arith::Ball<24>>(&s);
        prop_assert!(balls.iter().all(|b| b.r == 0.0));
    }

    #[test]
    fn an_index_in_sequence_equals_none(s in specs(), seed: u64) {
        let s = Spec { act: false, ..s };
        let (plain, tensors) = layer(s, seed);
        let without = dequant(s, tensors);
        let mut with = without.clone();
        let index: Vec<i32> = plain.group_of.iter().map(|&g| g as i32).collect();
        with.tensors.insert("g_idx".into(), Tensor::from_i32(&[index.len()], &index));
        prop_assert_eq!(bits(&whole::<_, f64>(&without)), bits(&whole::<_, f64>(&with)));
    }

    /// A v1 file and the v2 file of the same layer, whose zero points are one more.
    #[test]
    fn v1_equals_v2_of_the_same_layer(s in specs(), seed: u64) {
        let v1 = Spec { format: Format::V1, ..s };
        let (_, mut tensors) = layer(v1, seed);
        // Stored values below 15, so that adding 1 to each nibble carries nowhere.
        let zeros = &tensors["qzeros"];
        let clear: Vec<i32> = (0..zeros.len())
            .map(|i| {
                let w = zeros.get_i64(i) as u32;
                (0..8).fold(0u32, |acc, j| acc | (w >> (4 * j) & 15).min(14) << (4 * j)) as i32
            })
            .collect();
        let shape = zeros.shape().to_vec();
        tensors.insert("qzeros".into(), Tensor::from_i32(&shape, &clear));
        let one = dequant(v1, tensors.clone());
        let more: Vec<i32> = clear.iter().map(|&w| (w as u32 + 0x1111_1111) as i32).collect();
        tensors.insert("qzeros".into(), Tensor::from_i32(&shape, &more));
        let two = dequant(Spec { format: Format::V2, ..s }, tensors);
        prop_assert_eq!(bits(&whole::<_, f64>(&one)), bits(&whole::<_, f64>(&two)));
    }

    #[test]
    fn gemm_equals_the_formula(s in specs(), seed: u64, m in 1usize..5, bias: bool, edge_f32: bool) {
        let (plain, mut tensors) = layer(s, seed);
        let mut draw = Draw::new(!seed);
        let x = draw.tensor(Dtype::Bf16, &[m, plain.k], 1.0);
        let b = bias.then(|| draw.tensor(Dtype::Bf16, &[plain.n], 1.0));
        // The edge is stored in bf16 unless it stays wide.
        let edge = |k: usize, n: usize| {
            let w = plain.weight(k, n);
            if edge_f32 { w } else { bf16(w) }
        };
        let want = naive::matmul(
            &x.to_f64(), plain.k, plain.n, edge, b.as_ref().map(Tensor::to_f64).as_deref(),
        );
        tensors.insert("x".into(), x);
        tensors.extend(b.map(|b| ("bias".to_string(), b)));
        let mut params = quant_gemm::Params::new::<GptqDequant>(gptq_dequant::Params::new(s.format, s.group));
        params.edge_f32 = edge_f32;
        let mut gemm = setup::<GptqGemm, 0>(params, []);
        gemm.tensors = tensors;
        gemm.policy.parts[0].output = assay_reference::Rounding::nearest(Dtype::Bf16);
        holds(&gemm, &want);
    }
}

/// A stored 15 in v1: 16, or 0 by the declared wrapping, never anything else.
#[test]
fn a_stored_15_follows_the_declared_policy() {
    use gptq_dequant::Wrap;
    for (wrap, first, second) in [
        (Wrap::None, 5.0 - 16.0, 5.0 - 3.0),
        (Wrap::Modulo, 5.0, 5.0 - 3.0),
        // The carry goes into the next column.
        (Wrap::Word, 5.0, 5.0 - 4.0),
    ] {
        let tensors: Tensors = [
            ("qweight", Tensor::from_i32(&[1, 8], &[0x5555_5555; 8])),
            ("qzeros", Tensor::from_i32(&[1, 1], &[0x0000_002f])),
            ("scales", Tensor::from_f64(Dtype::F16, &[1, 8], &[1.0; 8])),
        ]
        .map(|(n, t)| (n.to_string(), t))
        .into();
        let mut params = gptq_dequant::Params::new(Format::V1, -1);
        params.wrap = wrap;
        let mut s = setup::<GptqDequant, 0>(params, []);
        s.tensors = tensors;
        let y = whole::<_, f64>(&s);
        assert_eq!((y[0], y[1], y[2]), (first, second, 4.0), "{wrap:?}");
    }
}
