//! Attention over partitions of the keys, each with its own softmax, and their combination: split-KV, as
//! paged decode kernels do for long contexts.
//!
//! With m_p the largest score, l_p the sum of exponentials and o_p the output of partition p, the output
//! is sum_p w_p o_p / sum_p w_p, w_p = l_p e^(m_p - max m). The partitions' outputs pass the point
//! `partial`; maxima and sums stay in f32. A partition is an attention of its own: P is rounded against
//! its maxima, in key blocks that are counted from the partition's start.

use serde::{Deserialize, Serialize};

use crate::arith::Real;
use crate::ops::args::in_parallel;
use crate::ops::attention::{self, Attention, KvHead, Lost, MaskCorner};
use crate::ops::softmax::maximum;
use crate::ops::{Arg, Inputs, Op, Out, Tile};
use crate::policy::Policy;

/// How partitions are weighted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    /// By their share of the softmax's denominator.
    #[default]
    Rescaled,
    /// By their own sums, each relative to its own maximum: a fault.
    NotRescaled,
    /// All alike: a fault.
    Equal,
    /// The partition of this index is left out (when another one is visible): a fault.
    Without(usize),
}

/// Keys in partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// Keys in a partition, by absolute position.
    pub keys: usize,
    /// Weights of the partitions.
    #[serde(default)]
    pub combine: Combine,
}

/// One partition of one query, for some heads.
struct Part<R> {
    index: usize,
    /// By head: its output, its sum of exponentials, its largest score.
    heads: Vec<(Vec<R>, R, R)>,
}

impl Split {
    /// The output over gathered keys `k` and `v`.
    pub(super) fn eval<R: Real>(
        &self,
        params: &attention::Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        tile: &Tile,
    ) -> Vec<Out<R>> {
        let &[t_len, hq, d] = inputs.req("q").shape() else { unreachable!("checked") };
        let wanted = tile.rows_of(t_len * hq);
        // Every query once, with the heads that are asked for.
        let mut queries: Vec<usize> = wanted.iter().map(|r| r / hq).collect();
        queries.sort_unstable();
        queries.dedup();
        let heads_of = |i: usize| {
            let t = queries[i];
            let mut heads: Vec<usize> =
                wanted.iter().filter(|&&r| r / hq == t).map(|r| r % hq).collect();
            heads.sort_unstable();
            heads.dedup();
            let parts = self.parts(params, inputs, policy, (t, &heads));
            let row = |(i, &h): (usize, &usize)| {
                let mut row = self.combined(&parts, i, d, policy);
                policy.apply("output", &mut row);
                (t * hq + h, row)
            };
            heads.iter().enumerate().map(row).collect()
        };
        let rows: Vec<Vec<(usize, Vec<R>)>> = in_parallel(queries.len(), &heads_of);
        let rows: std::collections::BTreeMap<usize, Vec<R>> = rows.into_iter().flatten().collect();
        let mut data = Vec::new();
        wanted.iter().for_each(|r| tile.pick(&rows[r], &mut data));
        vec![Out { name: "output", data }]
    }

    /// The partitions that a query sees something of.
    fn parts<R: Real>(
        &self,
        params: &attention::Params,
        inputs: &Inputs<'_, R>,
        policy: &Policy,
        (t, heads): (usize, &[usize]),
    ) -> Vec<Part<R>> {
        let (q, k) = (inputs.req("q"), inputs.req("k"));
        let (&[t_len, hq, d], &[s_len, hkv, _]) = (q.shape(), k.shape()) else {
            unreachable!("checked")
        };
        let query: Vec<R> = (0..hq).flat_map(|h| q.row(t * hq + h)).collect();
        // What is seen is settled here: inside a partition every key is.
        let within = attention::Params {
            mask: MaskCorner::LowerRight,
            lost: Lost::Nothing,
            window: None,
            ..params.clone()
        };
        let mut inner = policy.clone();
        inner.points.retain(|(point, _)| *point != "output");
        let mut parts = Vec::new();
        for start in (0..s_len).step_by(self.keys) {
            let range = start..(start + self.keys).min(s_len);
            let keys: Vec<usize> = range.filter(|&j| params.sees(t, j, t_len, s_len)).collect();
            let Some(first) = keys.first() else { continue };
            let within = attention::Params { block_offset: first - start, ..within.clone() };
            let picked = |name: &str| {
                let arg = inputs.req(name);
                let rows = keys.iter().flat_map(|j| (0..hkv).map(move |h| j * hkv + h));
                let data = rows.flat_map(|r| arg.row(r)).collect();
                Arg::made(vec![keys.len(), hkv, d], data)
            };
            let edges = inputs
                .clone()
                .with("q", Arg::made(vec![1, hq, d], query.clone()))
                .with("k", picked("k"))
                .with("v", picked("v"));
            let tile = Tile { rows: Some(heads.to_vec()), cols: None };
            let out = Attention::eval(&within, &edges, &inner, &tile).remove(0).data;
            let with_sums = heads.iter().zip(out.chunks(d)).map(|(&h, out)| {
                let kv = match params.kv_head {
                    KvHead::Modulo => h % hkv,
                    _ => h / (hq / hkv),
                };
                let q = &query[h * d..(h + 1) * d];
                let k = edges.req("k");
                let own: Vec<Vec<R>> = (0..keys.len()).map(|j| k.row(j * hkv + kv)).collect();
                let (sum, top) = attention::sum_and_top(q, &own, &within, policy);
                let mut out = out.to_vec();
                policy.apply("partial", &mut out);
                (out, sum, top)
            });
            parts.push(Part { index: start / self.keys, heads: with_sums.collect() });
        }
        parts
    }

    /// The i-th head's output.
    fn combined<R: Real>(&self, parts: &[Part<R>], i: usize, d: usize, policy: &Policy) -> Vec<R> {
        let without = |p: &&Part<R>| self.combine != Combine::Without(p.index);
        let mut kept: Vec<&(Vec<R>, R, R)> =
            parts.iter().filter(without).map(|p| &p.heads[i]).collect();
        if kept.is_empty() {
            kept = parts.iter().map(|p| &p.heads[i]).collect();
        }
        // What no score reaches has no weight.
        let reached = |p: &&(Vec<R>, R, R)| p.2.value() != f64::NEG_INFINITY;
        if kept.iter().any(reached) {
            kept.retain(reached);
        }
        match kept.as_slice() {
            [] => return vec![R::lift(f64::NAN); d],
            [one] => return one.0.clone(),
            _ => {}
        }
        let tops: Vec<R> = kept.iter().map(|p| p.2).collect();
        let top = maximum(&tops);
        let weight = |(_, sum, own): &(Vec<R>, R, R)| match self.combine {
            Combine::Equal => R::lift(1.0),
            Combine::NotRescaled => *sum,
            // A maximum's distance to itself is exactly 0, whatever its error.
            _ if own.value() == top.value() => *sum,
            _ => sum.mul(own.sub(top).exp()),
        };
        let weights: Vec<R> = kept.iter().map(|p| weight(p)).collect();
        let total = R::sum(&weights, 0, &policy.acc);
        let column = |c: usize| kept.iter().map(|p| p.0[c]).collect::<Vec<R>>();
        (0..d).map(|c| R::dot(&weights, &column(c), 0, &policy.acc).div(total)).collect()
    }
}
