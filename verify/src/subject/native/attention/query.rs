//! One query head: its scores, their softmax in two passes, online or in partitions, and the sum of values.

use super::super::chain::Rows;
use super::steps::{Probs, Split, Steps};

/// One query head.
pub(super) struct Query<'a> {
    pub(super) steps: &'a Steps<'a>,
    pub(super) scores: Vec<f32>,
    pub(super) mask: &'a [bool],
    /// [S, D].
    pub(super) values: &'a [f32],
    pub(super) d: usize,
    pub(super) s: usize,
}

impl Query<'_> {
    pub(super) fn output(&self, out: &mut [f32]) {
        let (run, seen) = (&self.steps.run, self.seen());
        if let Some(n) = run.count("splits_averaged") {
            return self.averaged(&seen, n, out);
        }
        match self.steps.split {
            Some(split) => self.partitions(&seen, split, out),
            // The choice says nothing where P is rounded.
            None if run.chose("combine", "lse") && self.steps.rounding.is_none() => {
                self.merged(&seen, out);
            }
            None => {
                self.attend(&seen, out);
            }
        }
        if let Some(floor) = run.number("maximum_floor") {
            let largest = seen.iter().map(|j| self.score(*j)).fold(f32::NEG_INFINITY, f32::max);
            if f64::from(largest) < floor - 104.0 {
                out.fill(0.0);
            }
        }
    }

    /// The keys that enter the softmax.
    pub(super) fn seen(&self) -> Vec<u32> {
        let all = self.steps.sentinel.is_some();
        (0..self.s as u32).filter(|j| all || self.mask[*j as usize]).collect()
    }

    pub(super) fn score(&self, j: u32) -> f32 {
        match self.steps.sentinel {
            Some(x) if !self.mask[j as usize] && self.steps.run.chose("masked", "added") => {
                self.scores[j as usize] + x
            }
            Some(x) if !self.mask[j as usize] => x,
            _ => self.scores[j as usize],
        }
    }

    /// Maximum and sum of the softmax.
    pub(super) fn attend(&self, seen: &[u32], out: &mut [f32]) -> (f32, f32) {
        match self.steps.probs {
            // Nothing to rescale where no maximum is subtracted.
            _ if self.steps.run.is("maximum_not_subtracted") => self.two_passes(seen, out),
            Probs::Full { block: None } | Probs::Normalised | Probs::Stored => {
                self.two_passes(seen, out)
            }
            Probs::Full { block: Some(block) } => self.online(seen, block, [false, false], out),
            Probs::Online { block, reversed, lazy } => {
                self.online(seen, block, [reversed, lazy], out)
            }
        }
    }

    /// NaN wins, as it must reach the output.
    pub(super) fn maximum(&self, seen: &[u32]) -> f32 {
        let larger = |m: f32, x: f32| if x > m || x.is_nan() { x } else { m };
        seen.iter().map(|j| self.score(*j)).fold(f32::NEG_INFINITY, larger)
    }

    /// The weighted sum of values; `p` has an entry for each key.
    pub(super) fn values(&self, seen: &[u32], p: &[f32], out: &mut [f32]) {
        let steps = self.steps;
        let mut index = seen.to_vec();
        if steps.run.is("masked_nan") {
            index.extend((0..self.s as u32).filter(|j| !self.mask[*j as usize]));
        }
        let rows = Rows { data: self.values, stride: self.d, first: 0 };
        steps.chain.weighted(&steps.chain.arrange(index), p, rows, out);
    }

    /// The denominator's terms for padded keys, which score 0.
    pub(super) fn padding(&self, maximum: f32) -> f32 {
        let tile = self.steps.run.count("padded_keys_counted").unwrap_or(1).max(1);
        let n = (tile - self.s % tile) % tile;
        if n == 0 { 0.0 } else { n as f32 * self.steps.exp(-maximum) }
    }

    pub(super) fn two_passes(&self, seen: &[u32], out: &mut [f32]) -> (f32, f32) {
        let steps = self.steps;
        let subtract = !steps.run.is("maximum_not_subtracted");
        let m = if subtract { self.maximum(seen) } else { 0.0 };
        let mut p = vec![0.0; self.s];
        let mut terms: Vec<f32> = seen.iter().map(|j| steps.exp(self.score(*j) - m)).collect();
        if steps.probs == Probs::Normalised {
            let sum = steps.sum(&terms) + self.padding(m);
            for (j, e) in seen.iter().zip(&terms) {
                p[*j as usize] = steps.round(steps.chain.quotient(*e, sum));
            }
            self.values(seen, &p, out);
            return (m, sum);
        }
        for (j, e) in seen.iter().zip(&mut terms) {
            let rounded = steps.round(*e);
            p[*j as usize] = rounded;
            if steps.sum_rounded {
                *e = rounded;
            }
        }
        let sum = steps.sum(&terms) + self.padding(m);
        self.values(seen, &p, out);
        out.iter_mut().for_each(|o| *o = steps.chain.quotient(*o, sum));
        (m, sum)
    }

    /// One pass over blocks of keys at multiples of `block`, with rescaling.
    pub(super) fn online(
        &self,
        seen: &[u32],
        block: usize,
        [reversed, lazy]: [bool; 2],
        out: &mut [f32],
    ) -> (f32, f32) {
        let steps = self.steps;
        // A partition counts its blocks from its start.
        let from = match (steps.split, seen) {
            (Some(split), [first, ..]) => *first as usize / split.keys * split.keys,
            _ => 0,
        };
        let (mut m, mut sum) = (f32::NEG_INFINITY, 0.0f32);
        let mut p = vec![0.0; self.s];
        let mut part = vec![0.0; self.d];
        out.fill(0.0);
        let mut blocks: Vec<&[u32]> = seen
            .chunk_by(|a, b| (*a as usize - from) / block == (*b as usize - from) / block)
            .collect();
        if reversed {
            blocks.reverse();
        }
        for (at, keys) in blocks.into_iter().enumerate() {
            let larger = self.maximum(keys);
            let grown = if lazy { larger - m > 8.0 * std::f32::consts::LN_2 } else { larger > m };
            let new = if grown || larger.is_nan() { larger } else { m };
            let rescale = if m == f32::NEG_INFINITY { 0.0 } else { steps.exp(m - new) };
            let factor = |numerator: bool| match steps.missing {
                Some(it) if it.numerator == numerator && it.at.is_none_or(|b| b == at) => 1.0,
                _ => rescale,
            };
            let mut terms: Vec<f32> =
                keys.iter().map(|j| steps.exp(self.score(*j) - new)).collect();
            for (j, e) in keys.iter().zip(&mut terms) {
                let rounded = steps.round(*e);
                p[*j as usize] = rounded;
                if steps.sum_rounded {
                    *e = rounded;
                }
            }
            sum = sum * factor(false) + steps.sum(&terms);
            self.values(keys, &p, &mut part);
            let numerator = factor(true);
            out.iter_mut().zip(&part).for_each(|(o, x)| *o = *o * numerator + *x);
            m = new;
        }
        sum += self.padding(m);
        out.iter_mut().for_each(|o| *o = steps.chain.quotient(*o, sum));
        (m, sum)
    }

    /// Partitions, each by its share of the whole denominator.
    pub(super) fn partitions(&self, seen: &[u32], split: Split, out: &mut [f32]) {
        let run = &self.steps.run;
        let mut runs: Vec<&[u32]> =
            seen.chunk_by(|a, b| *a as usize / split.keys == *b as usize / split.keys).collect();
        if let (Some(key), true) = (run.key("partition_dropped"), runs.len() > 1) {
            // The sequence's first or last, if this query sees it.
            let lost = if key.starts_with("first") { 0 } else { (self.s - 1) / split.keys };
            runs.retain(|keys| keys[0] as usize / split.keys != lost);
        }
        let mut part = vec![0.0; self.d];
        let parts: Vec<(f32, f32, Vec<f32>)> = runs
            .iter()
            .map(|keys| {
                let (m, sum) = self.attend(keys, &mut part);
                let kept = |x: &f32| if split.stored { run.stored(*x) } else { *x };
                (m, sum, part.iter().map(kept).collect())
            })
            .collect();
        let largest = parts
            .iter()
            .map(|p| p.0)
            .fold(f32::NEG_INFINITY, |m, x| if x > m || x.is_nan() { x } else { m });
        let weight = |(m, sum, _): &(f32, f32, Vec<f32>)| match () {
            () if run.is("partition_not_rescaled") => *sum,
            () if run.is("partitions_weighted_equally") => 1.0,
            () => sum * self.steps.exp(m - largest),
        };
        let weights: Vec<f32> = parts.iter().map(weight).collect();
        let total = self.steps.chain.sum(&weights);
        out.fill(0.0);
        for (w, (_, _, o)) in weights.iter().zip(&parts) {
            out.iter_mut().zip(o).for_each(|(t, x)| *t += w * x);
        }
        out.iter_mut().for_each(|o| *o = self.steps.chain.quotient(*o, total));
    }

    /// Parts of 64 keys, each divided by its own sum, merged by their log-sum-exps in f32.
    pub(super) fn merged(&self, seen: &[u32], out: &mut [f32]) {
        let chain = &self.steps.chain;
        let mut part = vec![0.0; self.d];
        let parts: Vec<(f32, Vec<f32>)> = seen
            .chunk_by(|a, b| *a / 64 == *b / 64)
            .map(|keys| {
                let (m, sum) = self.attend(keys, &mut part);
                (m + libm::logf(sum), part.clone())
            })
            .collect();
        let larger = |m: f32, x: f32| if x > m || x.is_nan() { x } else { m };
        let largest = parts.iter().map(|p| p.0).fold(f32::NEG_INFINITY, larger);
        let terms: Vec<f32> = parts.iter().map(|p| self.steps.exp(p.0 - largest)).collect();
        let all = largest + libm::logf(chain.sum(&terms));
        out.fill(0.0);
        for (lse, part) in &parts {
            let by = self.steps.exp(lse - all);
            out.iter_mut().zip(part).for_each(|(o, x)| *o += by * x);
        }
    }

    /// Parts of the keys, each with a softmax of its own, and their plain mean.
    pub(super) fn averaged(&self, seen: &[u32], n: usize, out: &mut [f32]) {
        let mut part = vec![0.0; self.d];
        let runs: Vec<&[u32]> = seen.chunks(seen.len().div_ceil(n.max(1)).max(1)).collect();
        out.fill(0.0);
        for keys in &runs {
            self.attend(keys, &mut part);
            out.iter_mut().zip(&part).for_each(|(o, x)| *o += *x);
        }
        out.iter_mut().for_each(|o| *o /= runs.len() as f32);
    }
}
