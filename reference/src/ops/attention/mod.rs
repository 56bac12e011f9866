//! `attention`: causal grouped-query attention, softmax(q k^T scale + mask) v.
//!
//! Shapes: q [T, Hq, D], k and v [S, Hkv, D] with T <= S and Hq a multiple of Hkv; output [T, Hq, D].
//! Query t is at position S - T + t (the mask is aligned to the lower right, so that a KV cache or a
//! chunk of a prompt sees its whole prefix) and head h reads kv head h / (Hq / Hkv). Masked keys are
//! skipped, so a NaN in one cannot reach the output.
//! Points: `qk` (raw scores), `scores` (scaled), `probs`, `output`. Arithmetic in f32.
//! Conventions: P stays in f32 (`probs=f32`), is rounded to the stored dtype after the division, as
//! eager frameworks do (`normalised`), or before it, relative to the final maximum (`stored`) or to
//! the running maximum of key blocks (`online_32` ...), as flash kernels with matrix units do. An
//! eager framework also stores raw and scaled scores (`scores=stored`); in a kernel that is a fault.
//! The bound covers online rescaling over any key blocks.
//!
//! Source: <https://arxiv.org/abs/1706.03762>, <https://arxiv.org/abs/2205.14135>

mod faults;

use serde::{Deserialize, Serialize};

use super::softmax::maximum;
use super::{
    ArgSpec, Fault, Inputs, Knob, Op, Out, OutSpec, Residual, Setup, Tensors, Tile, gain_faults,
    need,
};
use crate::arith::Real;
use crate::dtype::pow2;
use crate::error::{Error, Result};
use crate::policy::Policy;

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

/// How a query head finds its kv head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvHead {
    /// h / (Hq / Hkv).
    #[default]
    Divide,
    /// h mod Hkv: a fault.
    Modulo,
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
    /// Whether P is divided before it is rounded and multiplied with v.
    #[serde(default)]
    pub normalise_first: bool,
    /// P is rounded relative to the running maximum of blocks of this many keys.
    #[serde(default)]
    pub probs_block: Option<usize>,
    /// A missing rescaling.
    #[serde(default)]
    pub rescale: Option<Rescale>,
}

impl Params {
    /// The right op with `scale`.
    pub fn new(scale: f64) -> Params {
        Params {
            scale,
            mask: MaskCorner::LowerRight,
            kv_head: KvHead::Divide,
            lost: Lost::Nothing,
            sentinel: None,
            normalise_first: false,
            probs_block: None,
            rescale: None,
        }
    }

    /// Whether query t of `t_len` sees key j of `s_len`.
    fn sees(&self, t: usize, j: usize, t_len: usize, s_len: usize) -> bool {
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
            };
        j <= last && !lost
    }
}

/// The op.
#[derive(Debug)]
pub struct Attention;

/// k as rows, v transposed, of one kv head.
struct KvHeadData<R> {
    k: Vec<Vec<R>>,
    v_t: Vec<Vec<R>>,
}

impl<R: Real> KvHeadData<R> {
    fn gather(inputs: &Inputs<'_, R>, head: usize) -> Self {
        let (k, v) = (inputs.req("k"), inputs.req("v"));
        let &[s, heads, d] = k.shape() else { unreachable!("checked") };
        let row = |arg: &super::Arg<'_, R>, j: usize| {
            let mut out = vec![R::lift(0.0); d];
            arg.read((j * heads + head) * d, &mut out);
            out
        };
        let mut v_t = vec![Vec::with_capacity(s); d];
        for j in 0..s {
            for (column, x) in v_t.iter_mut().zip(row(v, j)) {
                column.push(x);
            }
        }
        KvHeadData { k: (0..s).map(|j| row(k, j)).collect(), v_t }
    }
}

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
        let heads: Vec<_> = (0..hkv).map(|h| KvHeadData::gather(inputs, h)).collect();
        Out::by_rows(tile, t_len * hq, |r| {
            let (t, h) = (r / hq, r % hq);
            let kv = match params.kv_head {
                KvHead::Divide => h / (hq / hkv),
                KvHead::Modulo => h % hkv,
            };
            let seen = |j: usize| params.sees(t, j, t_len, s_len);
            let mut row = query(&q.row(r), &heads[kv], seen, params, policy);
            policy.apply("output", &mut row);
            row
        })
    }

    fn knobs(_params: &Params) -> Vec<Knob<Self>> {
        let mut probs = Knob::new("probs", "f32")
            .or("normalised", |s: &mut Setup<Self>| {
                s.params.normalise_first = true;
                s.policy.round_at("probs", s.policy.output.dtype);
            })
            .or("stored", |s: &mut Setup<Self>| s.policy.round_at("probs", s.policy.output.dtype));
        for (name, block) in
            [("online_16", 16), ("online_32", 32), ("online_64", 64), ("online_128", 128)]
        {
            probs = probs.or(name, move |s: &mut Setup<Self>| {
                s.params.probs_block = Some(block);
                s.policy.round_at("probs", s.policy.output.dtype);
            });
        }
        let scores = Knob::new("scores", "f32").or_eager("stored", |s: &mut Setup<Self>| {
            s.policy.round_at("qk", s.policy.output.dtype);
            s.policy.round_at("scores", s.policy.output.dtype);
        });
        vec![probs, scores]
    }

    fn faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Self>> {
        faults::catalogue(params, tensors)
    }

    fn propose(_params: &Params, residual: &Residual<'_>) -> Vec<Fault<Self>> {
        gain_faults("A15F", residual)
    }
}

/// One query head over its visible keys: D outputs.
fn query<R: Real>(
    q: &[R],
    kv: &KvHeadData<R>,
    seen: impl Fn(usize) -> bool,
    params: &Params,
    policy: &Policy,
) -> Vec<R> {
    let s_len = kv.k.len();
    let keys: Vec<usize> = (0..s_len).filter(|&j| params.sentinel.is_some() || seen(j)).collect();
    let raw = keys.iter().map(|&j| R::dot(q, &kv.k[j], 0, &policy.acc)).collect();
    let mut scores = Scores::new(raw, params.scale, policy);
    if let Some(sentinel) = params.sentinel {
        scores.replace(keys.iter().map(|&j| !seen(j)), sentinel);
    }
    let Some(top) = scores.maximum(0..keys.len()) else {
        return vec![R::lift(f64::NAN); q.len()];
    };
    let mut terms = scores.exponentials(0..keys.len(), top);
    let mut weights = rounded_probs(&terms, &scores, &keys, params, policy, top);
    if let Some(rescale) = &params.rescale {
        let target = if rescale.numerator { &mut weights } else { &mut terms };
        skip_rescaling(target, &scores, &keys, rescale, top);
    }
    let first = keys[0];
    let sum = R::sum(&terms, first, &policy.acc);
    if params.normalise_first {
        weights.iter_mut().for_each(|w| *w = w.div(sum));
        policy.apply("probs", &mut weights);
    }
    let contiguous = keys[keys.len() - 1] - first + 1 == keys.len();
    let online = R::approx(1.0, scores.rescale_error());
    let mut gathered = Vec::new();
    kv.v_t
        .iter()
        .map(|column| {
            let v = if contiguous {
                &column[first..first + keys.len()]
            } else {
                gathered.clear();
                gathered.extend(keys.iter().map(|&j| column[j]));
                &gathered[..]
            };
            let o = R::dot(&weights, v, first, &policy.acc);
            if params.normalise_first { o } else { o.div(sum).mul(online) }
        })
        .collect()
}

/// Scores of one query head, raw and scaled.
struct Scores<R> {
    raw: Vec<R>,
    scaled: Vec<R>,
}

impl<R: Real> Scores<R> {
    fn new(mut raw: Vec<R>, scale: f64, policy: &Policy) -> Self {
        policy.apply("qk", &mut raw);
        let scale = R::constant(scale);
        let mut scaled: Vec<R> = raw.iter().map(|s| s.mul(scale)).collect();
        policy.apply("scores", &mut scaled);
        Scores { raw, scaled }
    }

    /// Replaces the masked scores.
    fn replace(&mut self, masked: impl Iterator<Item = bool>, by: f64) {
        for (i, _) in masked.enumerate().filter(|(_, masked)| *masked) {
            self.raw[i] = R::lift(f64::NAN); // equal to no other raw score
            self.scaled[i] = R::lift(by);
        }
    }

    /// The index of the largest score; `None` when there is none, or it is NaN or infinite.
    fn maximum(&self, range: std::ops::Range<usize>) -> Option<usize> {
        let m = maximum(&self.scaled[range.clone()]).value();
        let top = range.into_iter().find(|&i| self.scaled[i].value() == m)?;
        m.is_finite().then_some(top)
    }

    /// e^(score i - score j). Raw scores that every implementation computes to the same value have
    /// the same scaled score, whatever the rounding of the scale: their quotient is exactly 1.
    fn exp_difference(&self, i: usize, j: usize) -> R {
        let same = |a: R, b: R| a.is_exact() && b.is_exact() && a.value() == b.value();
        if i == j || same(self.raw[i], self.raw[j]) {
            return R::lift(1.0);
        }
        self.scaled[i].sub(self.scaled[j]).exp()
    }

    /// e^(score - score `top`) over a range. A common shift of all scores cancels in the softmax, so
    /// the error of the maximum is charged to the other terms.
    fn exponentials(&self, range: std::ops::Range<usize>, top: usize) -> Vec<R> {
        range.map(|i| self.exp_difference(i, top)).collect()
    }

    /// Relative error of all rescalings that an online softmax can do over any blocks: an
    /// exponential and a product each time the running maximum grows.
    fn rescale_error(&self) -> f64 {
        let mut top = f64::NEG_INFINITY;
        let mut units = 0.0;
        for s in &self.scaled {
            if s.value() > top {
                if top.is_finite() {
                    units += 5.0 + s.value() - top;
                }
                top = s.value();
            }
        }
        units * pow2(-R::BITS)
    }
}

/// P as it is multiplied with v, unless it is divided first.
fn rounded_probs<R: Real>(
    p: &[R],
    scores: &Scores<R>,
    keys: &[usize],
    params: &Params,
    policy: &Policy,
    top: usize,
) -> Vec<R> {
    let mut weights = p.to_vec();
    if params.normalise_first || policy.is_identity_at("probs") {
        return weights;
    }
    let Some(block) = params.probs_block else {
        policy.apply("probs", &mut weights);
        return weights;
    };
    for (range, running) in blocks(scores, keys, block) {
        let mut part = scores.exponentials(range.clone(), running);
        policy.apply("probs", &mut part);
        let back = scores.exp_difference(running, top);
        for (w, p) in weights[range].iter_mut().zip(part) {
            *w = p.mul(back);
        }
    }
    weights
}

/// The ranges of `keys` by blocks of the absolute position, each with the index of its running
/// maximum.
fn blocks<R: Real>(
    scores: &Scores<R>,
    keys: &[usize],
    block: usize,
) -> Vec<(std::ops::Range<usize>, usize)> {
    let mut out: Vec<(std::ops::Range<usize>, usize)> = Vec::new();
    let mut running: Option<usize> = None;
    let mut start = 0;
    while start < keys.len() {
        let b = keys[start] / block;
        let end = start + keys[start..].iter().take_while(|&&j| j / block == b).count();
        let local = scores.maximum(start..end);
        let value = |i: usize| scores.scaled[i].value();
        running = match (running, local) {
            (Some(r), Some(l)) if value(l) > value(r) => Some(l),
            (None, l) => l,
            (r, _) => r,
        };
        out.push((start..end, running.unwrap_or(start)));
        start = end;
    }
    out
}

/// Sets what a missing rescaling leaves too large. Exponents are added before e^x is taken, since the
/// missing factor may be beyond any format.
fn skip_rescaling<R: Real>(
    row: &mut [R],
    scores: &Scores<R>,
    keys: &[usize],
    fault: &Rescale,
    top: usize,
) {
    let parts = blocks(scores, keys, fault.block);
    match fault.at {
        None => {
            for (range, running) in parts {
                row[range.clone()].copy_from_slice(&scores.exponentials(range, running));
            }
        }
        Some(at) if at > 0 && at < parts.len() => {
            let s = &scores.scaled;
            let missing = s[parts[at].1].sub(s[parts[at - 1].1]);
            for (i, x) in row[..parts[at].0.start].iter_mut().enumerate() {
                *x = s[i].sub(s[top]).add(missing).exp();
            }
        }
        Some(_) => {}
    }
}
