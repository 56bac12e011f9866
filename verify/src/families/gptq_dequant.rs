//! Cases of `gptq_dequant`: both formats, every grouping, all zero points, all nibbles; the other widths are
//! those of `quantised`.

use assay_reference::ops::Tensors;
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use super::quantised::dequant;
use super::{Generated, Values, generated};

/// One case's shape and flags.
#[derive(Clone, Copy)]
struct Spec {
    format: &'static str,
    k: usize,
    n: usize,
    group_size: i64,
    sym: bool,
    act: bool,
    dtype: Dtype,
}

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = Vec::new();
    for format in ["v1", "v2"] {
        for (k, n, group_size, sym, act) in [
            (128, 64, 128, true, false),
            (256, 72, 32, false, false),
            (256, 40, 32, false, true),
            (512, 16, -1, false, false),
            (512, 24, 128, true, true),
            (128, 40, 64, false, false),
            (1040, 264, 8, false, true),
            (136, 264, 128, false, false),
            (8, 8, -1, false, false),
        ] {
            for dtype in [Dtype::Bf16, Dtype::F16] {
                out.push(random(Spec { format, k, n, group_size, sym, act, dtype }, seed));
            }
        }
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let spec = Spec { format, k: 64, n: 24, group_size: 8, sym: false, act: false, dtype };
            out.push(special(spec, seed));
            out.push(outlier(Spec { act: true, ..spec }, seed));
        }
        out.push(exact(
            Spec {
                format,
                k: 256,
                n: 32,
                group_size: 64,
                sym: false,
                act: true,
                dtype: Dtype::Bf16,
            },
            seed,
        ));
    }
    out.extend(dequant::gptq_widths(seed));
    out
}

fn label(s: &Spec) -> String {
    format!(
        "{} {}x{} g{} {}{} {}",
        s.format,
        s.k,
        s.n,
        s.group_size,
        if s.sym { "sym" } else { "asym" },
        if s.act { " act" } else { "" },
        s.dtype
    )
}

fn build(
    family: (&str, bool),
    s: &Spec,
    seed: u64,
    scale: impl Fn(&mut Values) -> f64,
) -> Generated {
    let mut v = Values::new(seed, &format!("gptq {} {}", family.0, label(s)));
    let size = if s.group_size < 0 { s.k } else { s.group_size as usize };
    let groups = s.k.div_ceil(size);
    let mut pack = |words: usize, nibble: &mut dyn FnMut(&mut Values, usize) -> u32| -> Vec<i32> {
        (0..words)
            .map(|w| (0..8).fold(0u32, |acc, j| acc | nibble(&mut v, w * 8 + j) << (4 * j)) as i32)
            .collect()
    };
    // Every nibble value occurs in every word-sized neighbourhood, in a random order.
    let qweight = pack(s.k / 8 * s.n, &mut |v, _| v.below(16) as u32);
    let symmetric = if s.format == "v1" { 7 } else { 8 };
    let qzeros = pack(groups * s.n / 8, &mut |v, i| match (s.sym, i) {
        (true, _) => symmetric,
        // The two that wrap, always there.
        (false, 0) => 15,
        (false, 1) => 0,
        (false, _) => v.below(16) as u32,
    });
    let scales: Vec<f64> = (0..groups * s.n).map(|_| scale(&mut v)).collect();
    let mut t = Tensors::new();
    t.insert("qweight".into(), Tensor::from_i32(&[s.k / 8, s.n], &qweight));
    t.insert("qzeros".into(), Tensor::from_i32(&[groups, s.n / 8], &qzeros));
    t.insert("scales".into(), Tensor::from_f64(Dtype::F16, &[groups, s.n], &scales));
    if s.act {
        let order = v.permutation(s.k);
        let g_idx: Vec<i32> = order.iter().map(|&p| (p / size) as i32).collect();
        t.insert("g_idx".into(), Tensor::from_i32(&[s.k], &g_idx));
    }
    let params = json!({ "format": s.format, "group_size": s.group_size });
    generated("gptq_dequant", family, &label(s), seed, params, s.dtype, t)
}

/// Distinct scales with all significand bits, as quantisers write them.
fn random(s: Spec, seed: u64) -> Generated {
    build(("unit", false), &s, seed, |v| 0.004 + 0.02 * v.uniform())
}

/// Scales that differ by three orders, in an order of rows that mixes them.
fn outlier(s: Spec, seed: u64) -> Generated {
    build(("outlier", false), &s, seed, |v| {
        0.004 * [0.05, 0.3, 1.0, 7.0, 50.0][v.below(5)] * (1.0 + v.uniform())
    })
}

/// Scales that are negative, subnormal in f16, huge, infinite or NaN.
fn special(s: Spec, seed: u64) -> Generated {
    build(("special", true), &s, seed, |v| match v.below(8) {
        0 => -0.01 * (1.0 + v.uniform()),
        1 => 3e-6 * (1.0 + v.uniform()),
        2 => 6e-8,
        3 => 6e4,
        4 => 40.0 * (1.0 + v.uniform()),
        5 => f64::INFINITY,
        6 => f64::NAN,
        _ => 0.0,
    })
}

/// Power-of-two scales: every product is exact.
fn exact(s: Spec, seed: u64) -> Generated {
    build(("exact", true), &s, seed, |v| [0.25, 0.5, 1.0, 2.0][v.below(4)])
}
