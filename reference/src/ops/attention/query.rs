//! Attention of one query head: scores, softmax in one or several passes, the weighted sum.

use super::keys::Keys;
use super::online::{self, Around};
use super::{Params, Rescale, ScaledQuery};
use crate::arith::{Real, ball};
use crate::dtype::{Dtype, Rounding};
use crate::ops::softmax::{Exponent, in_f32_range, maximum};
use crate::policy::Policy;

/// A query head and the keys that it sees, which ascend.
pub(super) struct Query<R> {
    pub(super) q: Vec<R>,
    pub(super) seen: Vec<usize>,
}

/// Query heads of one kv head: D outputs of each.
pub(super) fn queries<R: Real>(
    heads: Vec<Query<R>>,
    kv: &Keys<'_, R>,
    s_len: usize,
    params: &Params,
    policy: &Policy,
) -> Vec<Vec<R>> {
    let skips = params.sentinel.is_none() && !params.mask_added;
    let all: Vec<usize> = if skips { Vec::new() } else { (0..s_len).collect() };
    let (mut scale, mut scaled) = (params.scale, Vec::with_capacity(heads.len()));
    let mut seen = Vec::with_capacity(heads.len());
    for head in heads {
        let (stored, left) = scaled_query(&head.q, params, policy);
        scale = left;
        scaled.push(stored.unwrap_or(head.q));
        seen.push(head.seen);
    }
    let keys: Vec<&[usize]> = seen.iter().map(|seen| if skips { seen } else { &all[..] }).collect();
    let raw = kv.scores(&scaled, &keys, policy);
    let weigh = |((raw, keys), seen): ((Vec<R>, &&[usize]), &Vec<usize>)| {
        let scores = Scores::new(raw, scale, params.exponent, policy);
        weigh(scores, keys, seen, s_len, params, policy)
    };
    let weighed: Vec<Result<Weighed<R>, f64>> =
        raw.into_iter().zip(&keys).zip(&seen).map(weigh).collect();
    let width = scaled.first().map_or(0, Vec::len);
    let lists: Vec<(&[R], &[usize])> = weighed
        .iter()
        .zip(&keys)
        .filter_map(|(w, keys)| Some((w.as_ref().ok()?.weights.as_slice(), *keys)))
        .collect();
    let mut sums = kv.sums(&lists, width).map(Vec::into_iter);
    weighed
        .iter()
        .zip(&keys)
        .map(|(weighed, keys)| match weighed {
            Ok(weighed) => {
                let sums = sums.as_mut().and_then(Iterator::next);
                output(weighed, sums, kv, keys, width, params, policy)
            }
            Err(everywhere) => vec![R::lift(*everywhere); width],
        })
        .collect()
}

/// What a query head multiplies the values with.
struct Weighed<R> {
    weights: Vec<R>,
    /// The exponentials as the denominator has them.
    terms: Vec<R>,
    scores: Scores<R>,
    top: usize,
    then: Then<R>,
}

/// What becomes of the weighted sums.
enum Then<R> {
    /// They are divided by the sum of the same weights.
    Means,
    /// Nothing: the weights were divided.
    Nothing,
    /// They are divided.
    Divided(R),
    /// The same, within the range of f32.
    Clamped(R),
}

/// The weights of a query head's keys; `Err` is what every output is where there are none.
fn weigh<R: Real>(
    mut scores: Scores<R>,
    keys: &[usize],
    seen: &[usize],
    s_len: usize,
    params: &Params,
    policy: &Policy,
) -> Result<Weighed<R>, f64> {
    let masked = || keys.iter().map(|j| seen.binary_search(j).is_err());
    if let Some(sentinel) = params.sentinel {
        scores.replace(masked(), |_| sentinel);
    } else if params.mask_added {
        let added = |score: f64| score + f64::NEG_INFINITY;
        scores.replace(masked(), added);
    }
    let Some(top) = scores.maximum(0..keys.len()) else { return Err(f64::NAN) };
    if params.floor.is_some_and(|floor| scores.scaled[top].value() < floor - UNDERFLOW) {
        return Err(0.0);
    }
    let mut terms = scores.exponentials(0..keys.len(), top);
    let mut weights = rounded_probs(&terms, &scores, keys, params, policy, top);
    if params.sum_rounded && !params.normalise_first {
        terms.copy_from_slice(&weights);
    }
    if let Some(rescale) = &params.rescale {
        let target = if rescale.numerator { &mut weights } else { &mut terms };
        skip_rescaling(target, &scores, keys, rescale, params, top);
    }
    if let Some(runs) = params.averaged {
        average(&mut weights, &scores, runs, params, policy);
        terms.copy_from_slice(&weights);
    }
    let then = if is_one_set(params, policy) {
        Then::Means
    } else {
        let sum = denominator(&terms, keys[0], scores.scaled[top], s_len, params, policy);
        if params.normalise_first {
            weights.iter_mut().for_each(|w| *w = w.div(sum));
            policy.apply("probs", &mut weights);
            Then::Nothing
        } else if params.exponent == Exponent::NotShifted {
            Then::Clamped(sum)
        } else {
            Then::Divided(sum)
        }
    };
    Ok(Weighed { weights, terms, scores, top, then })
}

/// The outputs of a query head; `sums` are the weighted sums of the values, where they are known.
fn output<R: Real>(
    weighed: &Weighed<R>,
    sums: Option<Vec<R>>,
    kv: &Keys<'_, R>,
    keys: &[usize],
    width: usize,
    params: &Params,
    policy: &Policy,
) -> Vec<R> {
    let Weighed { weights, terms, scores, top, then } = weighed;
    let first = keys[0];
    let columns = || kv.columns(keys, width);
    let taken =
        |sums: Option<Vec<R>>| sums.unwrap_or_else(|| columns().sums(weights, first, policy));
    let widened = |means: Vec<R>, around: &Around| {
        if !R::IS_BOUND {
            return means;
        }
        online::widen(means, weights, terms, &columns().slices(), around, params)
    };
    match then {
        Then::Means => {
            let means = match sums {
                Some(sums) => {
                    let sum = R::sum(weights, first, &policy.acc);
                    sums.into_iter().map(|x| x.div(sum)).collect()
                }
                None => columns().means(weights, first, policy),
            };
            widened(means, &scores.around(*top))
        }
        Then::Nothing => taken(sums),
        Then::Clamped(sum) => taken(sums).into_iter().map(|x| in_f32_range(x).div(*sum)).collect(),
        Then::Divided(sum) => {
            let around = scores.around(*top);
            let sum = match R::IS_BOUND {
                true => sum.widened(0.0, around.error * online::below_top(terms)),
                false => *sum,
            };
            widened(taken(sums).into_iter().map(|x| x.div(sum)).collect(), &around)
        }
    }
}

/// The sum of a query head's exponentials over `keys`, all of them visible, relative to its largest
/// score, and that score: what a partition's weight is made of.
pub(in crate::ops) fn sum_and_top<R: Real>(
    q: &[R],
    keys: &[Vec<R>],
    params: &Params,
    policy: &Policy,
) -> (R, R) {
    let raw = keys.iter().map(|k| R::dot(q, k, 0, &policy.acc)).collect();
    let scores = Scores::new(raw, params.scale, params.exponent, policy);
    let Some(top) = scores.maximum(0..keys.len()) else {
        return (R::lift(f64::NAN), maximum(&scores.scaled));
    };
    let mut terms = scores.exponentials(0..keys.len(), top);
    if params.sum_rounded && !params.normalise_first {
        let positions: Vec<usize> = (0..keys.len()).collect();
        terms = rounded_probs(&terms, &scores, &positions, params, policy, top);
    }
    (R::sum(&terms, 0, &policy.acc), scores.scaled[top])
}

/// Whether numerator and denominator have the same weights, and nothing else happens to the latter.
fn is_one_set(params: &Params, policy: &Policy) -> bool {
    let rounded_alike = policy.is_identity_at("probs") || params.sum_rounded;
    let denominator_is_the_sum = params.rescale.is_none()
        && params.averaged.is_none()
        && params.padded_to.is_none()
        && !params.denominator_bf16
        && params.exponent != Exponent::NotShifted;
    rounded_alike && denominator_is_the_sum && !params.normalise_first
}

/// How far below 0 an exponent gives 0 in f32.
const UNDERFLOW: f64 = 104.0;

/// The query as it is stored after scaling, if it is, and what is left of the scale.
fn scaled_query<R: Real>(q: &[R], params: &Params, policy: &Policy) -> (Option<Vec<R>>, f64) {
    let Some(scaled) = params.scaled_query else { return (None, params.scale) };
    let (by, left) = match scaled {
        ScaledQuery::Scale => (params.scale, 1.0),
        ScaledQuery::ScaleLog2e => {
            (params.scale * std::f64::consts::LOG2_E, std::f64::consts::LN_2)
        }
    };
    let by = R::constant(by);
    let stored = |x: &R| x.mul(by).round(policy.output, policy.lambda);
    (Some(q.iter().map(stored).collect()), left)
}

/// The sum by which the output is divided, with what is wrong about it.
fn denominator<R: Real>(
    terms: &[R],
    first: usize,
    top: R,
    s_len: usize,
    params: &Params,
    policy: &Policy,
) -> R {
    let bf16 = Rounding::nearest(Dtype::Bf16);
    let mut sum = match params.denominator_bf16 {
        true => terms.iter().fold(R::lift(0.0), |sum, p| sum.add(*p).round(bf16, policy.lambda)),
        false => R::sum(terms, first, &policy.acc),
    };
    if let Some(tile) = params.padded_to {
        let pads = s_len.next_multiple_of(tile) - s_len;
        sum = sum.add(R::lift(pads as f64).mul(top.neg().exp()));
    }
    if params.exponent == Exponent::NotShifted { in_f32_range(sum) } else { sum }
}

/// Makes the weights those of a plain mean over runs of keys that are each softmaxed by itself.
fn average<R: Real>(
    weights: &mut [R],
    scores: &Scores<R>,
    runs: usize,
    params: &Params,
    policy: &Policy,
) {
    let (n, size) = (weights.len(), weights.len().div_ceil(runs));
    for start in (0..n).step_by(size) {
        let run = start..(start + size).min(n);
        let Some(top) = scores.maximum(run.clone()) else { return };
        let mut p = scores.exponentials(run.clone(), top);
        let sum = R::sum(&p, start, &policy.acc);
        if !params.normalise_first {
            policy.apply("probs", &mut p);
        }
        weights[run].iter_mut().zip(p).for_each(|(w, p)| *w = p.div(sum));
    }
}

/// Scores of one query head, raw and scaled.
struct Scores<R> {
    raw: Vec<R>,
    scaled: Vec<R>,
    exponent: Exponent,
}

impl<R: Real> Scores<R> {
    fn new(mut raw: Vec<R>, scale: f64, exponent: Exponent, policy: &Policy) -> Self {
        policy.apply("qk", &mut raw);
        let scale = R::constant(scale);
        let mut scaled: Vec<R> = raw.iter().map(|s| s.mul(scale)).collect();
        policy.apply("scores", &mut scaled);
        Scores { raw, scaled, exponent }
    }

    /// Replaces the masked scores by what `by` makes of them.
    fn replace(&mut self, masked: impl Iterator<Item = bool>, by: impl Fn(f64) -> f64) {
        for (i, _) in masked.enumerate().filter(|(_, masked)| *masked) {
            self.raw[i] = R::lift(f64::NAN); // equal to no other raw score
            self.scaled[i] = R::lift(by(self.scaled[i].value()));
        }
    }

    /// The index of the largest score; `None` when there is none, or it is NaN or infinite.
    fn maximum(&self, range: std::ops::Range<usize>) -> Option<usize> {
        let m = maximum(&self.scaled[range.clone()]).value();
        let top = range.into_iter().find(|&i| self.scaled[i].value() == m)?;
        m.is_finite().then_some(top)
    }

    /// e^(score i - score j). Raw scores that every implementation computes to the same value have
    /// the same scaled score, whatever the rounding of the scale.
    fn exp_difference(&self, i: usize, j: usize) -> R {
        let same = |a: R, b: R| a.is_exact() && b.is_exact() && a.value() == b.value();
        let equal = same(self.raw[i], self.raw[j]);
        if i == j || (equal && self.raw[i].value() == 0.0) {
            return R::lift(1.0);
        }
        if equal {
            // Where the exponent is folded into an fma, both are e^x of the same rounding error.
            return R::approx(1.0, ball::INEXACT);
        }
        self.exponent.exp(self.scaled[i].sub(self.scaled[j]))
    }

    /// e^(score - score `top`) over a range. A common shift of all scores cancels in the softmax, so
    /// the error of the maximum is charged to the other terms.
    fn exponentials(&self, range: std::ops::Range<usize>, top: usize) -> Vec<R> {
        if self.exponent == Exponent::NotShifted {
            return range.map(|i| in_f32_range(self.scaled[i].exp())).collect();
        }
        if self.exponent == Exponent::Shifted && !R::IS_BOUND {
            let top = self.scaled[top];
            let mut terms: Vec<R> = self.scaled[range].iter().map(|s| s.sub(top)).collect();
            R::exp_all(&mut terms);
            return terms;
        }
        range.map(|i| self.exp_difference(i, top)).collect()
    }

    /// What the bound of an online softmax needs to know of them.
    fn around(&self, top: usize) -> Around {
        let values: Vec<f64> = match R::IS_BOUND {
            true => self.scaled.iter().map(|s| s.value()).collect(),
            false => Vec::new(),
        };
        Around {
            top: self.scaled[top].value(),
            error: self.scaled[top].spread(),
            scores: values,
            bits: R::BITS,
        }
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
    let shifted = params.exponent != Exponent::NotShifted;
    let Some(block) = params.probs_block.filter(|_| shifted) else {
        policy.apply("probs", &mut weights);
        return weights;
    };
    for (range, running) in blocks(scores, keys, block, params) {
        let mut part = scores.exponentials(range.clone(), running);
        policy.apply("probs", &mut part);
        let back = scores.exp_difference(running, top);
        for (w, p) in weights[range].iter_mut().zip(part) {
            *w = p.mul(back);
        }
    }
    weights
}

/// How much a maximum grows before a lazy online softmax rescales: a factor of 2^8.
const LAZY: f64 = 8.0 * std::f64::consts::LN_2;

/// The ranges of `keys` by blocks of the position, in the order in which they are visited, each with
/// the index of its running maximum; of the maximum last rescaled to, if lazy.
fn blocks<R: Real>(
    scores: &Scores<R>,
    keys: &[usize],
    block: usize,
    params: &Params,
) -> Vec<(std::ops::Range<usize>, usize)> {
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < keys.len() {
        let of = |j: usize| (j + params.block_offset) / block;
        let b = of(keys[start]);
        let end = start + keys[start..].iter().take_while(|&&j| of(j) == b).count();
        ranges.push(start..end);
        start = end;
    }
    if params.blocks_reversed {
        ranges.reverse();
    }
    let mut out: Vec<(std::ops::Range<usize>, usize)> = Vec::new();
    let mut running: Option<usize> = None;
    for range in ranges {
        let start = range.start;
        let local = scores.maximum(range.clone());
        let value = |i: usize| scores.scaled[i].value();
        running = match (running, local) {
            (Some(r), Some(l)) if value(l) - value(r) > if params.lazy { LAZY } else { 0.0 } => {
                Some(l)
            }
            (None, l) => l,
            (r, _) => r,
        };
        out.push((range, running.unwrap_or(start)));
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
    params: &Params,
    top: usize,
) {
    let forward = Params { blocks_reversed: false, lazy: false, ..params.clone() };
    let parts = blocks(scores, keys, fault.block, &forward);
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
