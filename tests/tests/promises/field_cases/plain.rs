//! Plain f32 code: what the subjects of the field cases compute, and the cases that they compute on.

use std::sync::Arc;

use assay_reference::ops::Tensors;
use assay_reference::{Case, Dtype, Tensor};
use assay_verify::judge::Observation;
use serde_json::Value;

/// An f32 as bf16, to nearest even.
pub(crate) fn nearest(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// An f32 as bf16, by dropping the lower half.
pub(crate) fn truncated(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & 0xffff_0000)
}

/// Seeded values that bf16 can hold, roughly normal.
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn uniform(&mut self) -> f32 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }

    pub(crate) fn values(&mut self, n: usize, sd: f32) -> Vec<f32> {
        let mut one = || nearest((0..4).map(|_| self.uniform()).sum::<f32>() * sd * 3f32.sqrt());
        (0..n).map(|_| one()).collect()
    }

    /// Norm weights around 1.
    pub(crate) fn weights(&mut self, n: usize) -> Vec<f32> {
        self.values(n, 0.3).into_iter().map(|w| nearest(1.0 + w)).collect()
    }
}

/// x / sqrt(mean of the squares of the lanes that `keeps` + eps) * weight, in f32, rounded once.
pub(crate) fn rms_norm(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    keeps: impl Fn(usize) -> bool,
) -> Vec<f32> {
    let d = weight.len();
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks(d) {
        // 64 lanes, then a tree, as a wave does it.
        let mut lanes = [0f32; 64];
        for (i, v) in row.iter().enumerate().filter(|(i, _)| keeps(i % 64)) {
            lanes[i % 64] += v * v;
        }
        let mut n = 64;
        while n > 1 {
            n /= 2;
            for l in 0..n {
                lanes[l] += lanes[l + n];
            }
        }
        let scale = 1.0 / (lanes[0] / d as f32 + eps).sqrt();
        out.extend(row.iter().zip(weight).map(|(v, w)| nearest(v * scale * w)));
    }
    out
}

/// A bf16 tensor of f32 values that it can hold.
pub(crate) fn bf16(shape: &[usize], values: &[f32]) -> Tensor {
    let wide: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
    Tensor::from_f64(Dtype::Bf16, shape, &wide)
}

/// A run of a subject.
pub(crate) fn run<const N: usize>(
    op: &str,
    params: &Value,
    label: String,
    tensors: [(&str, Tensor); N],
    output: Tensor,
) -> Observation {
    let tensors: Tensors = tensors.map(|(name, t)| (name.to_string(), t)).into();
    let case = Case {
        op: op.into(),
        params: params.clone(),
        dtype: output.dtype(),
        tensors,
        outputs: Tensors::new(),
        family: "field".into(),
        seed: 0,
    };
    Observation { case: Arc::new(case), output, label, structured: false }
}
