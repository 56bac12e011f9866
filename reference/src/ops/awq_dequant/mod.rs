//! `awq_dequant`: w[k, n] = (q[k, n] - z[g, n]) * scale[g, n] with g = k / group_size, 4 bits, AWQ's
//! GEMM layout.
//!
//! Shapes: qweight i32 [K, N/8] and qzeros i32 [G, N/8], both packed along N: slot i (bits 4i to
//! 4i + 3) of word c is column 8c + [0, 2, 4, 6, 1, 3, 5, 7]\[i\]; scales f16 or bf16 [G, N]; output
//! [K, N]. Zero points are stored as they are, from 0 to 15, without an offset. group_size -1 is one
//! group of K; there is no g_idx.
//! The product is exact in f32. Points: `scale`, `weight` (the product), `output`.
//! Conventions: as `gptq_dequant`'s: `scale=f16` or `stored`, `weight=direct` or `via_f16` (AutoAWQ
//! dequantises to f16 whatever the model's dtype).
//!
//! Source: <https://arxiv.org/abs/2306.00978> and the files that AutoAWQ and gptqmodel write

mod faults;

use serde::{Deserialize, Serialize};

use super::packed::{self, Nibbles, Reading};
use super::slip::Slip;
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::Real;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::policy::Policy;

/// Bits of a value.
pub const BITS: u32 = 4;
/// Values in a word.
pub const PER_WORD: usize = 8;

/// Which column of its word's eight a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Slot i holds column [0, 2, 4, 6, 1, 3, 5, 7]\[i\]: AWQ's.
    #[default]
    Interleaved,
    /// Slot i holds column i, as GPTQ packs: a fault.
    Identity,
    /// Slot i holds column [0, 4, 1, 5, 2, 6, 3, 7]\[i\], the inverse permutation: a fault.
    Inverse,
}

impl Order {
    /// Value `c` of a row of words.
    fn value(self, c: usize, word: impl Fn(usize) -> i64) -> i64 {
        let order = if self == Order::Interleaved { Nibbles::Awq } else { Nibbles::LowFirst };
        let c = match self {
            Order::Inverse => c / PER_WORD * PER_WORD + [0, 2, 4, 6, 1, 3, 5, 7][c % PER_WORD],
            Order::Interleaved | Order::Identity => c,
        };
        Reading { order, ..Reading::plain(BITS) }.value(c, word)
    }
}

/// What is done with a stored zero point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroPoint {
    /// As stored.
    #[default]
    AsStored,
    /// stored + 1, as GPTQ v1: a fault.
    PlusOne,
    /// 8 whatever is stored: a fault.
    Symmetric,
}

/// How k finds its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// k / group_size.
    #[default]
    InSequence,
    /// The next group, clamped to the last: a fault.
    Next,
    /// The next group for the zero point only: a fault.
    NextZero,
}

/// The axis along which qweight is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Along N, AWQ's.
    #[default]
    AlongN,
    /// The same memory read as packed along K: a fault.
    AlongK,
}

/// Group size and semantic knobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Rows of a group, or -1 for one group.
    pub group_size: i64,
    /// Use of the zero point.
    #[serde(default)]
    pub zero: ZeroPoint,
    /// Group lookup.
    #[serde(default)]
    pub group: Group,
    /// Column order of qweight.
    #[serde(default)]
    pub order: Order,
    /// Column order of qzeros.
    #[serde(default)]
    pub zero_order: Order,
    /// Packing axis.
    #[serde(default)]
    pub packing: Packing,
    /// (z - q) * s: a fault.
    #[serde(default)]
    pub negated: bool,
    /// A single slip.
    #[serde(default)]
    pub slip: Slip,
}

impl Params {
    /// The right op.
    pub fn new(group_size: i64) -> Params {
        Params {
            group_size,
            zero: ZeroPoint::AsStored,
            group: Group::InSequence,
            order: Order::Interleaved,
            zero_order: Order::Interleaved,
            packing: Packing::AlongN,
            negated: false,
            slip: Slip::None,
        }
    }
}

/// The op.
#[derive(Debug)]
pub struct AwqDequant;

impl Op for AwqDequant {
    const NAME: &'static str = "awq_dequant";
    const SUMMARY: &'static str = "4-bit AWQ weights to floating point";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("qweight", "[K, N/8] i32, packed along N, interleaved"),
        ArgSpec::new("qzeros", "[G, N/8] i32, packed along N, interleaved"),
        ArgSpec::new("scales", "[G, N]"),
    ];
    const POINTS: &'static [&'static str] = &["scale", "weight", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let qweight = need(Self::NAME, tensors, "qweight", false)?;
        let qzeros = need(Self::NAME, tensors, "qzeros", false)?;
        let scales = need(Self::NAME, tensors, "scales", true)?;
        let &[k, words] = qweight.shape() else {
            let what = format!("must be [K, N/8], is {:?}", qweight.shape());
            return Err(Error::arg(Self::NAME, "qweight", what));
        };
        let (n, groups) = (words * PER_WORD, packed::groups(Self::NAME, k, params.group_size)?);
        if scales.shape() != [groups, n] {
            let what = format!("must be [{groups}, {n}], is {:?}", scales.shape());
            return Err(Error::arg(Self::NAME, "scales", what));
        }
        if qzeros.shape() != [groups, words] {
            let what = format!("must be [{groups}, {words}], is {:?}", qzeros.shape());
            return Err(Error::arg(Self::NAME, "qzeros", what));
        }
        Ok(OutSpec::output([k, n]))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let [qweight, qzeros, scales] =
            ["qweight", "qzeros", "scales"].map(|name| inputs.req(name));
        let (k, words) = (qweight.shape()[0], qweight.cols());
        let (n, groups) = (scales.cols(), scales.shape()[0]);
        let cols = tile.cols_of(n);
        let rows_only = Tile { rows: tile.rows.clone(), cols: None };
        Out::by_rows(&rows_only, k, |row| {
            let own = packed::group_of(row, k, params.group_size, groups);
            let own = params.slip.group(own, k, params.group_size);
            let next = (own + 1).min(groups - 1);
            let scale_group = if params.group == Group::Next { next } else { own };
            let zero_group = if params.group == Group::NextZero { next } else { scale_group };
            let mut s: Vec<R> = cols.iter().map(|&c| scales.at(scale_group * n + c)).collect();
            policy.apply("scale", &mut s);
            for (w, &c) in s.iter_mut().zip(&cols) {
                let q = match params.packing {
                    Packing::AlongN => params.order.value(c, |w| qweight.int(row * words + w)),
                    Packing::AlongK => params.order.value(row, |w| qweight.int(w * n + c)),
                };
                let z = match params.zero {
                    ZeroPoint::Symmetric => 1 << (BITS - 1),
                    zero => {
                        let word = |w: usize| qzeros.int(zero_group * words + w);
                        let column = params.slip.zero_column(c, n, PER_WORD);
                        params.zero_order.value(column, word)
                            + i64::from(zero == ZeroPoint::PlusOne)
                    }
                };
                let q = params.slip.value(q, [row, c], [k, n]);
                let z = params.slip.zero(z, [zero_group, c], [groups, n]);
                *w = params.slip.weight([q, z], *w, params.negated, policy);
            }
            policy.apply("weight", &mut s);
            policy.apply("output", &mut s);
            s
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        vec![
            Knob::new("scale", "f16").or("stored", |s: &mut Setup<Self>| {
                s.policy.round_at("scale", s.policy.output.dtype);
            }),
            Knob::new("weight", "direct").or("via_f16", |s: &mut Setup<Self>| {
                s.policy.round_at("weight", Dtype::F16);
            }),
        ]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A1DA", residual)
    }
}
