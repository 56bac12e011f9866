//! `fp8_dequant`: w[n, k] = weight[n, k] * scale[n / 128, k / 128]: e4m3 weights with one scale for each
//! block, in torch's Linear layout.
//!
//! Shapes: weight f8e4m3 [N, K], weight_scale_inv f32, bf16 or f16 [ceil(N / B0), ceil(K / B1)] for
//! blocks of B0 x B1 (128 x 128 in every released model; blocks at the edge may be partial); output
//! [N, K]. In spite of its name the scale is multiplied: it is the inverse of what quantisation
//! multiplied by. Blocks are counted from the start by the config's size; transformers' conversion,
//! which divides the shape by the number of scales, agrees where the size divides the shape.
//! A NaN code gives NaN. The product of 4 and 24 bits is rounded in f32. Points: `scale`, `weight` (the
//! product), `output`.
//! Conventions: the scale as it is (`scale=file`, DeepSeek's, vLLM's and transformers' loading) or
//! rounded to the stored dtype first (`scale=stored`, transformers' backward pass).
//!
//! Source: <https://arxiv.org/abs/2412.19437>, 3.3.2, and the files that transformers writes

mod faults;

use serde::{Deserialize, Serialize};

use super::{
    Arg, ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile,
    gain_faults, need,
};
use crate::arith::Real;
use crate::dtype::{Dtype, e4m3, pow2};
use crate::error::{Error, Result};
use crate::policy::Policy;

/// As what the weight's bytes are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Codes {
    /// e4m3fn: bias 7, NaN in 0x7f and 0xff only.
    #[default]
    E4m3,
    /// e4m3fn without its NaN, which is 480 then: a fault.
    NanAs480,
    /// e4m3fnuz: bias 8, so half of each value, and a NaN for -0: a fault, AMD's older format.
    E4m3Fnuz,
    /// e5m2: a fault.
    E5m2,
    /// e4m3fn with subnormal numbers read as 0: a fault.
    Flushed,
    /// e4m3fn cut to what e4m3fnuz can hold, 240: a fault.
    Saturated,
}

/// The largest value of e4m3fnuz.
const FNUZ_LARGEST: f64 = 240.0;

impl Codes {
    fn value<R: Real>(self, weight: &Arg<'_, R>, i: usize) -> R {
        if self == Codes::E4m3 {
            return weight.at(i);
        }
        let code = match weight {
            Arg::Stored(t) if t.dtype() == Dtype::F8E4m3 => t.bytes()[i],
            _ => e4m3::encode(weight.at(i).value()),
        };
        let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
        let is_nan = code & 0x7f == e4m3::NAN;
        R::lift(match self {
            Codes::NanAs480 if is_nan => 480.0 * sign,
            Codes::E4m3 | Codes::NanAs480 => e4m3::decode(code),
            Codes::Flushed if code & 0x78 == 0 => 0.0 * sign,
            Codes::Flushed => e4m3::decode(code),
            Codes::Saturated if is_nan => f64::NAN,
            Codes::Saturated => e4m3::decode(code).clamp(-FNUZ_LARGEST, FNUZ_LARGEST),
            Codes::E4m3Fnuz if code == 0x80 => f64::NAN,
            Codes::E4m3Fnuz if is_nan => FNUZ_LARGEST * sign,
            Codes::E4m3Fnuz => e4m3::decode(code) / 2.0,
            Codes::E5m2 => e5m2(code),
        })
    }
}

/// The value of an e5m2 code: the upper byte of an f16.
fn e5m2(code: u8) -> f64 {
    let (exp, fraction) = (i32::from(code >> 2 & 31), f64::from(code & 3));
    let size = match exp {
        0 => fraction * pow2(-16),
        31 if code & 3 == 0 => f64::INFINITY,
        31 => return f64::NAN,
        _ => (4.0 + fraction) * pow2(exp - 17),
    };
    if code & 0x80 != 0 { -size } else { size }
}

/// How an element finds its scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lookup {
    /// scale[n / B0, k / B1].
    #[default]
    Block,
    /// The next block along N, clamped to the last: a fault.
    NextRow,
    /// The next block along K, clamped to the last: a fault.
    NextColumn,
    /// The memory of the scales [A, B] read as [B, A]: a fault.
    Transposed,
    /// Blocks of half the size, clamped to the last: a fault.
    HalfBlock,
    /// In a last block along N that is not full, that of the block before: a fault.
    PartialRow,
    /// The same along K: a fault.
    PartialColumn,
}

/// What is done with the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// Multiplied.
    #[default]
    Multiplied,
    /// Divided by: a fault, which the name `weight_scale_inv` suggests.
    Divided,
    /// Nothing: a fault.
    Ignored,
}

/// Block size and semantic knobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Outputs and inputs of a block, `weight_block_size`.
    pub block: [usize; 2],
    /// Reading of the bytes.
    #[serde(default)]
    pub codes: Codes,
    /// Scale lookup.
    #[serde(default)]
    pub lookup: Lookup,
    /// Use of the scale.
    #[serde(default)]
    pub scaling: Scaling,
}

impl Params {
    /// The right op.
    pub fn new(block: [usize; 2]) -> Params {
        Params { block, codes: Codes::E4m3, lookup: Lookup::Block, scaling: Scaling::Multiplied }
    }

    /// The index of the scale of element (row, column) out of `scales`.
    fn scale_of(&self, row: usize, column: usize, scales: [usize; 2]) -> usize {
        let [rows, columns] = scales;
        let size = |axis: usize| match self.lookup {
            Lookup::HalfBlock => self.block[axis].div_ceil(2),
            _ => self.block[axis],
        };
        let (mut r, mut c) = (row / size(0), column / size(1));
        match self.lookup {
            Lookup::NextRow => r += 1,
            Lookup::NextColumn => c += 1,
            Lookup::Transposed => return c * rows + r,
            Lookup::PartialRow => r = r.min(rows.saturating_sub(2)),
            Lookup::PartialColumn => c = c.min(columns.saturating_sub(2)),
            Lookup::Block | Lookup::HalfBlock => {}
        }
        r.min(rows - 1) * columns + c.min(columns - 1)
    }
}

/// The op.
#[derive(Debug)]
pub struct Fp8Dequant;

impl Op for Fp8Dequant {
    const NAME: &'static str = "fp8_dequant";
    const SUMMARY: &'static str = "block-scaled FP8 weights to floating point";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("weight", "[N, K] f8e4m3"),
        ArgSpec::new("weight_scale_inv", "[ceil(N/128), ceil(K/128)]"),
    ];
    const POINTS: &'static [&'static str] = &["scale", "weight", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let weight = need(Self::NAME, tensors, "weight", true)?;
        let scale = need(Self::NAME, tensors, "weight_scale_inv", true)?;
        if weight.dtype() != Dtype::F8E4m3 {
            let what = format!("must be f8e4m3, is {}", weight.dtype());
            return Err(Error::arg(Self::NAME, "weight", what));
        }
        let &[n, k] = weight.shape() else {
            let what = format!("must be [N, K], is {:?}", weight.shape());
            return Err(Error::arg(Self::NAME, "weight", what));
        };
        if params.block.contains(&0) {
            let what = format!("must be two positive sizes, is {:?}", params.block);
            return Err(Error::arg(Self::NAME, "block", what));
        }
        let expected = [n.div_ceil(params.block[0]), k.div_ceil(params.block[1])];
        if scale.shape() != expected {
            let what = format!(
                "must be {expected:?} for N = {n}, K = {k} and blocks of {:?}, is {:?}",
                params.block,
                scale.shape()
            );
            return Err(Error::arg(Self::NAME, "weight_scale_inv", what));
        }
        Ok(OutSpec::output([n, k]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let (weight, scale) = (inputs.req("weight"), inputs.req("weight_scale_inv"));
        let (n, k) = (weight.shape()[0], weight.cols());
        let scales = [scale.shape()[0], scale.cols()];
        let cols = tile.cols_of(k);
        let rows_only = Tile { rows: tile.rows.clone(), cols: None };
        Out::by_rows(&rows_only, n, |row| {
            let scale_at = |&c: &usize| scale.at(params.scale_of(row, c, scales));
            let mut s: Vec<R> = cols.iter().map(scale_at).collect();
            policy.apply("scale", &mut s);
            for (w, &c) in s.iter_mut().zip(&cols) {
                let q = params.codes.value(weight, row * k + c);
                *w = match params.scaling {
                    Scaling::Multiplied => q.mul(*w),
                    Scaling::Divided => q.div(*w),
                    Scaling::Ignored => q,
                };
            }
            policy.apply("weight", &mut s);
            policy.apply("output", &mut s);
            s
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![Knob::new("scale", "file").or("stored", |s: &mut Setup<Self>| {
            s.policy.round_at("scale", s.policy.output.dtype);
        })]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1F9", residual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e5m2_is_the_upper_byte_of_an_f16() {
        for code in 0..=255u8 {
            let want = half::f16::from_bits(u16::from(code) << 8).to_f64();
            let got = e5m2(code);
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{code:#x}"
            );
        }
    }
}
