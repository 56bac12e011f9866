//! `attention`: causal grouped-query attention, softmax(q k^T scale + mask) v.
//!
//! Shapes: q [T, Hq, D], k and v [S, Hkv, D] with T <= S and Hq a multiple of Hkv; output [T, Hq, D].
//! Query t is at position S - T + t (the mask is aligned to the lower right, so that a KV cache or a
//! chunk of a prompt sees its whole prefix) and head h reads kv head h / (Hq / Hkv). With a sliding
//! window of w a query sees its own key and the w - 1 before it. Masked keys are skipped, so a NaN in
//! one cannot reach the output.
//! Points: `qk` (raw scores), `scores` (scaled), `probs`, `output`. Arithmetic in f32.
//! Conventions: P stays in f32 (`probs=f32`), is rounded to the stored dtype after the division, as
//! eager frameworks do (`normalised`), or before it, relative to the final maximum (`stored`) or to
//! the running maximum of key blocks visited in either order (`online_32`, `online_64_reversed` ...),
//! as flash kernels with matrix units do; the denominator sums P before or after that rounding. An
//! eager framework also stores raw and scaled scores (`scores=stored`) and masks by adding -inf, so that a
//! NaN in a masked key or value reaches the output (`masked=added`), or by filling in -inf, so that one in a
//! value does (`masked=filled`); in a kernel they are faults.
//! Rarer: blocks of 48 and 96 keys, and a maximum that is kept until it grows by a factor of 2^8
//! (`lazy_128` ..., FlashAttention-4 and aiter: P is then up to 2^8). The bound covers online rescaling
//! over any key blocks and a split over the keys merged by e^(m - M); parts that were divided apart and
//! merged by a log-sum-exp in f32, as FlashAttention's and FlashInfer's split-KV, are `combine=lse`, of
//! which only a P in f32 is covered.
//!
//! Source: <https://arxiv.org/abs/1706.03762>, <https://arxiv.org/abs/2205.14135>; lazy rescaling in
//! <https://github.com/Dao-AILab/flash-attention> (`flash_attn/cute`) and <https://github.com/ROCm/aiter>

mod faults;
mod keys;
mod online;
mod query;

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use self::keys::Keys;
pub(super) use self::query::sum_and_top;
use self::query::{Query, queries};

use super::args::in_parallel;
use super::softmax::Exponent;
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::Real;
use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::tensor::non_finite;

/// Which corner of the score matrix the causal diagonal ends in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskCorner {
    /// Query t sees keys up to S - T + t.
    #[default]
    LowerRight,
    /// Query t sees keys up to t: a fault when there is a cache.
    UpperLeft,
    /// Query t sees keys up to S - T + t + 1: a fault.
    OnePast,
    /// No mask: a fault.
    None,
}

/// How the results over parts of the keys become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// Accumulators and sums are scaled by e^(m_part - m): one pass, or a split over the keys.
    #[default]
    Factor,
    /// Each part is divided by its own sum, and merged by its log-sum-exp in f32: only the bound is
    /// wider, by the rounding of the logarithms.
    Lse,
}

/// How a query head finds its kv head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvHead {
    /// h / (Hq / Hkv).
    #[default]
    Divide,
    /// h mod Hkv: a fault.
    Modulo,
    /// h / (Hq / Hkv), but for the last kv head's queries the head before it: a fault.
    LastPrevious,
}

/// Which value the weight of a key multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// The key's own.
    #[default]
    Own,
    /// That of the position before, of position 0 its own: a fault.
    Previous,
    /// The key's own, but of the last position a zero: a fault.
    NewestMissing,
}

/// A query that is scaled before the product and stored: a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaledQuery {
    /// By the scale.
    Scale,
    /// By the scale and log2 e, for powers of 2.
    ScaleLog2e,
}

/// A visible key that is left out (when another one stays visible): a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lost {
    /// None.
    #[default]
    Nothing,
    /// The query's own position.
    Diagonal,
    /// The last key of the sequence.
    Newest,
    /// Key 0.
    First,
    /// Keys below the last this many: a sliding window that should be off.
    Window(usize),
    /// Keys from the first index up to the second.
    Range(usize, usize),
}

/// Which accumulator misses its rescaling in an online softmax: a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rescale {
    /// Keys in a block.
    pub block: usize,
    /// The block at which it is missing; `None`: at all.
    pub at: Option<usize>,
    /// The numerator (P V) or the denominator.
    pub numerator: bool,
}

/// Semantic knobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Factor of the raw scores, 1 / sqrt(head_dim).
    pub scale: f64,
    /// Keys that a query sees, its own included; `None` is all: a sliding window.
    #[serde(default)]
    pub window: Option<usize>,
    /// Mask alignment.
    #[serde(default)]
    pub mask: MaskCorner,
    /// Head mapping.
    #[serde(default)]
    pub kv_head: KvHead,
    /// A key left out.
    #[serde(default)]
    pub lost: Lost,
    /// Masked keys get this score instead of being skipped: a fault.
    #[serde(default)]
    pub sentinel: Option<f64>,
    /// Masked scores have -inf added instead of being skipped, so that a NaN in a masked key or value
    /// reaches the output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mask_added: bool,
    /// Whether P is divided before it is rounded and multiplied with v.
    #[serde(default)]
    pub normalise_first: bool,
    /// P is rounded relative to the running maximum of blocks of this many keys.
    #[serde(default)]
    pub probs_block: Option<usize>,
    /// The blocks are visited from the last to the first.
    #[serde(default)]
    pub blocks_reversed: bool,
    /// The maximum is kept until it grows by a factor of 2^8.
    #[serde(default)]
    pub lazy: bool,
    /// Position of the first of the keys, counted from where the blocks start: not 0 where the keys are
    /// a part of a partition.
    #[serde(default)]
    pub block_offset: usize,
    /// How parts of the keys that were computed apart are merged.
    #[serde(default)]
    pub combine: Combine,
    /// The denominator sums the rounded P.
    #[serde(default)]
    pub sum_rounded: bool,
    /// A missing rescaling.
    #[serde(default)]
    pub rescale: Option<Rescale>,
    /// Value lookup.
    #[serde(default)]
    pub values: Values,
    /// The exponentials.
    #[serde(default)]
    pub exponent: Exponent,
    /// The denominator counts keys of score 0 up to a multiple of so many: a fault.
    #[serde(default)]
    pub padded_to: Option<usize>,
    /// The query is scaled and stored before the product.
    #[serde(default)]
    pub scaled_query: Option<ScaledQuery>,
    /// The denominator is stored in bf16 after each key: a fault.
    #[serde(default)]
    pub denominator_bf16: bool,
    /// The keys are cut into so many runs whose outputs are averaged: a fault.
    #[serde(default)]
    pub averaged: Option<usize>,
    /// The running maximum starts from this finite value: a fault.
    #[serde(default)]
    pub floor: Option<f64>,
}

impl Params {
    /// The right op with `scale`.
    pub fn new(scale: f64) -> Params {
        Params {
            scale,
            window: None,
            mask: MaskCorner::LowerRight,
            kv_head: KvHead::Divide,
            lost: Lost::Nothing,
            sentinel: None,
            mask_added: false,
            normalise_first: false,
            probs_block: None,
            blocks_reversed: false,
            lazy: false,
            block_offset: 0,
            combine: Combine::Factor,
            sum_rounded: false,
            rescale: None,
            values: Values::Own,
            exponent: Exponent::Shifted,
            padded_to: None,
            scaled_query: None,
            denominator_bf16: false,
            averaged: None,
            floor: None,
        }
    }

    /// The keys that query t of `t_len` sees of `s_len`, ascending.
    fn seen(&self, t: usize, t_len: usize, s_len: usize) -> Vec<usize> {
        let causal = self.mask == MaskCorner::LowerRight && self.lost == Lost::Nothing;
        if causal {
            let own = s_len - t_len + t;
            return (self.window.map_or(0, |w| (own + 1).saturating_sub(w))..own + 1).collect();
        }
        (0..s_len).filter(|&j| self.sees(t, j, t_len, s_len)).collect()
    }

    /// Whether query t of `t_len` sees key j of `s_len`.
    pub(super) fn sees(&self, t: usize, j: usize, t_len: usize, s_len: usize) -> bool {
        let own = s_len - t_len + t;
        let last = match self.mask {
            MaskCorner::LowerRight => own,
            MaskCorner::UpperLeft => t,
            MaskCorner::OnePast => own + 1,
            MaskCorner::None => s_len,
        };
        let lost = last > 0
            && match self.lost {
                Lost::Nothing => false,
                Lost::Diagonal => j == own,
                Lost::Newest => j == s_len - 1,
                Lost::First => j == 0,
                Lost::Window(n) => j + n <= own,
                Lost::Range(from, to) => (from..to).contains(&j),
            };
        let behind = self.window.is_some_and(|w| j + w <= own);
        j <= last && !behind && !lost
    }
}

/// Query heads that are computed together.
const BLOCK: usize = 8;

/// The op.
#[derive(Debug)]
pub struct Attention;

impl Op for Attention {
    const NAME: &'static str = "attention";
    const SUMMARY: &'static str = "causal grouped-query attention";
    const ARGS: &'static [ArgSpec] = &[
        ArgSpec::new("q", "[T, Hq, D] queries"),
        ArgSpec::new("k", "[S, Hkv, D] keys"),
        ArgSpec::new("v", "[S, Hkv, D] values"),
    ];
    const POINTS: &'static [&'static str] = &["qk", "scores", "probs", "output"];
    type Params = Params;

    fn check(params: &Params, tensors: &Tensors) -> Result<Vec<OutSpec>> {
        let [q, k, v] = ["q", "k", "v"].map(|n| need(Self::NAME, tensors, n, true));
        let (q, k, v) = (q?, k?, v?);
        let (&[t, hq, d], &[s, hkv, dk]) = (q.shape(), k.shape()) else {
            let what =
                format!("q and k must be [T, H, D], are {:?} and {:?}", q.shape(), k.shape());
            return Err(Error::arg(Self::NAME, "q", what));
        };
        if v.shape() != k.shape() {
            let what = format!("must have k's shape {:?}, has {:?}", k.shape(), v.shape());
            return Err(Error::arg(Self::NAME, "v", what));
        }
        if dk != d || t > s || hq % hkv != 0 {
            let what = format!(
                "must have head_dim {d}, at least {t} positions and a divisor of {hq} heads, has {:?}",
                k.shape()
            );
            return Err(Error::arg(Self::NAME, "k", what));
        }
        if params.window == Some(0) {
            return Err(Error::arg(
                Self::NAME,
                "window",
                "is 0: a query sees at least its own key",
            ));
        }
        if !params.scale.is_finite() {
            return Err(Error::arg(Self::NAME, "scale", format!("is {}", params.scale)));
        }
        Ok(OutSpec::output(q.shape()))
    }

    fn eval<R: Real>(
        params: &Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let q = inputs.req("q");
        let (&[t_len, hq, _], &[s_len, hkv, _]) = (q.shape(), inputs.req("k").shape()) else {
            unreachable!("checked")
        };
        let plain = R::is_plain(&policy.acc);
        let [k, v] = ["k", "v"].map(|name| plain.then(|| inputs.req(name).all()));
        let all = k.as_deref().zip(v.as_deref()).map(|(k, v)| [k, v]);
        // A tile may need few of the kv heads.
        let heads: Vec<OnceLock<Keys<'_, R>>> = (0..hkv).map(|_| OnceLock::new()).collect();
        let kv_of = |r: usize| {
            let (h, own) = (r % hq, r % hq / (hq / hkv));
            match params.kv_head {
                KvHead::Divide => own,
                KvHead::Modulo => h % hkv,
                KvHead::LastPrevious if own + 1 == hkv => own.saturating_sub(1),
                KvHead::LastPrevious => own,
            }
        };
        let wanted = tile.rows_of(t_len * hq);
        // Neighbouring queries of one kv head see almost the same keys.
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|&i| (kv_of(wanted[i]), wanted[i]));
        let kv_at = |&i: &usize| kv_of(wanted[i]);
        let blocks: Vec<&[usize]> = order
            .chunk_by(|a, b| kv_at(a) == kv_at(b))
            .flat_map(|head| head.chunks(if plain { BLOCK } else { 1 }))
            .collect();
        let outputs = in_parallel(blocks.len(), &|b| {
            let rows = blocks[b].iter().map(|&i| wanted[i]);
            let kv = kv_at(&blocks[b][0]);
            let keys = heads[kv]
                .get_or_init(|| Keys::of(inputs, all, kv, params.values, t_len * (hq / hkv)));
            let query = |r: usize| Query { q: q.row(r), seen: params.seen(r / hq, t_len, s_len) };
            let mut out = queries(rows.map(query).collect(), keys, s_len, params, policy);
            out.iter_mut().for_each(|row| policy.apply("output", row));
            out
        });
        let mut by_row: Vec<(usize, Vec<R>)> =
            order.iter().copied().zip(outputs.into_iter().flatten()).collect();
        by_row.sort_unstable_by_key(|(i, _)| *i);
        let mut data = Vec::with_capacity(by_row.iter().map(|(_, row)| row.len()).sum());
        by_row.iter().for_each(|(_, row)| tile.pick(row, &mut data));
        vec![Out { name: "output", data }]
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        let mut probs = Knob::new("probs", "f32")
            .or("normalised", |s: &mut Setup<Self>| {
                s.params.normalise_first = true;
                s.policy.round_at("probs", s.policy.output.dtype);
            })
            .or("stored", |s: &mut Setup<Self>| s.policy.round_at("probs", s.policy.output.dtype));
        let online = |block: usize, reversed: bool, lazy: bool| {
            move |s: &mut Setup<Self>| {
                s.params.probs_block = Some(block);
                s.params.blocks_reversed = reversed;
                s.params.lazy = lazy;
                s.policy.round_at("probs", s.policy.output.dtype);
            }
        };
        for (name, block, reversed) in [
            ("online_16", 16, false),
            ("online_32", 32, false),
            ("online_64", 64, false),
            ("online_128", 128, false),
            ("online_32_reversed", 32, true),
            ("online_64_reversed", 64, true),
            ("online_128_reversed", 128, true),
        ] {
            probs = probs.or(name, online(block, reversed, false));
        }
        for (name, block, lazy) in [
            ("online_48", 48, false),
            ("online_96", 96, false),
            ("lazy_32", 32, true),
            ("lazy_64", 64, true),
            ("lazy_128", 128, true),
        ] {
            probs = probs.or_rarely(name, online(block, false, lazy));
        }
        let combine = Knob::new("combine", "factor")
            // Where P is rounded, each part would round against a maximum of its own: that is the paged
            // op's `split`, which knows the parts.
            .or_rarely("lse", |s: &mut Setup<Self>| {
                if s.policy.is_identity_at("probs") {
                    s.params.combine = Combine::Lse;
                }
            });
        let sum = Knob::new("sum", "f32")
            .or("rounded_probs", |s: &mut Setup<Self>| s.params.sum_rounded = true);
        let scores = Knob::new("scores", "f32").or_eager("stored", |s: &mut Setup<Self>| {
            s.policy.round_at("qk", s.policy.output.dtype);
            s.policy.round_at("scores", s.policy.output.dtype);
        });
        // Among finite numbers a masked key has weight 0 in any case.
        let matters = |s: &Setup<Self>| s.tensors.values().any(|t| non_finite(t).is_some());
        let masked = Knob::new("masked", "skipped")
            .or_eager("added", move |s: &mut Setup<Self>| s.params.mask_added |= matters(s))
            .or_eager("filled", move |s: &mut Setup<Self>| {
                if matters(s) {
                    s.params.sentinel = Some(f64::NEG_INFINITY);
                }
            });
        vec![probs, sum, scores, combine, masked]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A15F", residual)
    }
}
