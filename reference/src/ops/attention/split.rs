//! Attention over partitions of the keys, each with its own softmax, and their combination: split-KV
//! ("flash decoding"), as paged decode kernels do for long contexts.
//!
//! With m_p the largest score, l_p the sum of exponentials and o_p the output of partition p, the output
//! is sum_p w_p o_p / sum_p w_p, w_p = l_p e^(m_p - max m). The partitions' outputs pass the point
//! `partial`; their maxima and sums stay in f32.

use serde::{Deserialize, Serialize};

use super::Params;
use super::query::{Attended, KvHeadData, Scores, attend};
use crate::arith::Real;
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

impl Split {
    /// A query's output; `None` when a partition's largest score is NaN or infinite.
    pub(super) fn combine<R: Real>(
        &self,
        scores: &Scores<R>,
        keys: &[usize],
        kv: &KvHeadData<R>,
        params: &Params,
        policy: &Policy,
    ) -> Option<Vec<R>> {
        let mut parts: Vec<Attended<R>> = Vec::new();
        let (mut start, mut without) = (0, None);
        while start < keys.len() {
            let p = keys[start] / self.keys;
            let end = start + keys[start..].iter().take_while(|&&j| j / self.keys == p).count();
            // What no score reaches has no weight.
            if scores.scaled[start..end].iter().any(|s| s.value() != f64::NEG_INFINITY) {
                let own = scores.part(start..end);
                let mut part = attend(&own, &keys[start..end], kv, params, policy)?;
                policy.apply("partial", &mut part.out);
                part.top += start;
                if self.combine == Combine::Without(p) {
                    without = Some(parts.len());
                }
                parts.push(part);
            }
            start = end;
        }
        if parts.len() > 1
            && let Some(index) = without
        {
            parts.remove(index);
        }
        if parts.len() < 2 {
            return parts.pop().map(|p| p.out);
        }
        let score = |p: &Attended<R>| scores.scaled[p.top].value();
        let top = parts.iter().max_by(|a, b| score(a).total_cmp(&score(b)))?.top;
        let weight = |p: &Attended<R>| match self.combine {
            Combine::Rescaled | Combine::Without(_) => p.sum.mul(scores.exp_difference(p.top, top)),
            Combine::NotRescaled => p.sum,
            Combine::Equal => R::lift(1.0),
        };
        let weights: Vec<R> = parts.iter().map(weight).collect();
        let total = R::sum(&weights, 0, &policy.acc);
        let column = |c: usize| parts.iter().map(|p| p.out[c]).collect::<Vec<R>>();
        let columns = 0..parts[0].out.len();
        Some(columns.map(|c| R::dot(&weights, &column(c), 0, &policy.acc).div(total)).collect())
    }
}
