//! Rows as flat lists of log-probabilities, and the sequences whose forward gives the reference's.
//!
//! A row depends on the tokens up to it alone, so that one forward of the longest prompt serves all its beginnings.
//! What was generated is run as the server ran it, the prompt in one call and then token by token: forwards that
//! are wrong between calls show there.

use std::collections::{BTreeMap, HashMap};

use assay_reference::arith::math;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::Basis;
use assay_reference::qwen::jitter::Jitter;
use assay_reference::qwen::{Forward, Preset, Wiring};
use assay_reference::{Dtype, Result};

use super::evidence::{Path, Row};

/// Tokens of a call: the logits of all of them are in memory at once.
const CHUNK: usize = 512;

/// One forward: tokens, and where the first call ends; later calls have one token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sequence {
    ids: Vec<u32>,
    first: usize,
}

/// One log-probability that a server told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Element {
    /// The row of evidence.
    pub(super) row: usize,
    /// Its exchange.
    pub(super) exchange: usize,
    /// How it was computed.
    pub(super) path: Path,
    /// Where it is told by the reference.
    at: Place,
    /// The same tokens before and the same token: the same number.
    pub(super) same: usize,
    /// What the server said.
    pub(super) observed: f64,
}

/// A token behind a position of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    sequence: usize,
    position: usize,
    id: u32,
}

/// Everything that is to be compared.
#[derive(Clone, Debug)]
pub(super) struct Elements {
    sequences: Vec<Sequence>,
    /// In the order of rows.
    pub(super) list: Vec<Element>,
}

impl Elements {
    /// Of rows whose tokens are all within a vocabulary.
    pub(super) fn new(rows: &[Row], vocabulary: usize) -> Elements {
        let fits = |r: &&Row| r.prefix.iter().all(|&i| (i as usize) < vocabulary);
        let rows: Vec<(usize, &Row)> = rows.iter().enumerate().filter(|(_, r)| fits(r)).collect();
        let sequences = maximal(rows.iter().map(|(_, r)| sequence(r)).collect());
        let mut same = HashMap::new();
        let mut list = Vec::new();
        for (index, row) in rows {
            let wanted = sequence(row);
            // The first that is not less begins with it.
            let sequence = sequences.partition_point(|s| key(s) < key(&wanted));
            let position = row.prefix.len() - 1;
            for &(id, observed) in row.items.iter().filter(|i| (i.0 as usize) < vocabulary) {
                let next = same.len();
                let same = *same.entry((&row.prefix, id)).or_insert(next);
                let at = Place { sequence, position, id };
                let (exchange, path) = (row.exchange, row.path);
                list.push(Element { row: index, exchange, path, at, same, observed });
            }
        }
        Elements { sequences, list }
    }

    /// What the server said.
    pub(super) fn observed(&self) -> Vec<f64> {
        self.list.iter().map(|e| e.observed).collect()
    }

    /// Tokens of all forwards.
    pub(super) fn tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.ids.len()).sum()
    }

    /// The longest sequence.
    pub(super) fn longest(&self) -> usize {
        self.sequences.iter().map(|s| s.ids.len()).max().unwrap_or(0)
    }

    /// The number of a token behind a row of evidence.
    pub(super) fn find(&self, row: usize, id: u32) -> Option<usize> {
        let first = self.list.partition_point(|e| e.row < row);
        let those = self.list[first..].iter().take_while(|e| e.row == row);
        those.zip(first..).find(|(e, _)| e.at.id == id).map(|(_, i)| i)
    }

    /// Those whose numbers `keep` wants, with the sequences that they need.
    pub(super) fn numbered(&self, keep: impl Fn(usize) -> bool) -> Elements {
        let list = self.list.iter().enumerate().filter(|(i, _)| keep(*i));
        let mut list: Vec<Element> = list.map(|(_, e)| *e).collect();
        let mut needed = BTreeMap::new();
        for e in &list {
            let end = needed.entry(e.at.sequence).or_insert(0);
            *end = (*end).max(e.at.position + 1);
        }
        let mut sequences = Vec::new();
        let mut new = HashMap::new();
        for (&s, &end) in &needed {
            let Sequence { ids, first } = &self.sequences[s];
            new.insert(s, sequences.len());
            sequences.push(Sequence { ids: ids[..end].to_vec(), first: (*first).min(end) });
        }
        for e in &mut list {
            e.at.sequence = new[&e.at.sequence];
        }
        Elements { sequences, list }
    }

    /// The numbers of those within the first `tokens` tokens.
    pub(super) fn within(&self, tokens: usize) -> Vec<usize> {
        (0..self.list.len()).filter(|&i| self.list[i].at.position < tokens).collect()
    }

    /// Those within the first `tokens` tokens.
    pub(super) fn first(&self, tokens: usize) -> Elements {
        self.numbered(|i| self.list[i].at.position < tokens)
    }

    /// What a forward says of each.
    ///
    /// # Errors
    /// When it cannot be run.
    pub(super) fn run(
        &self,
        checkpoint: &Checkpoint,
        wiring: &Wiring,
        preset: &'static Preset,
        jitter: Option<u64>,
    ) -> Result<Vec<f64>> {
        match preset.dtype {
            Dtype::F64 => self.run_in::<f64>(checkpoint, wiring, preset, jitter),
            _ => self.run_in::<f32>(checkpoint, wiring, preset, jitter),
        }
    }

    fn run_in<R: Basis>(
        &self,
        checkpoint: &Checkpoint,
        wiring: &Wiring,
        preset: &'static Preset,
        jitter: Option<u64>,
    ) -> Result<Vec<f64>> {
        let mut by_row: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for (i, e) in self.list.iter().enumerate() {
            by_row.entry((e.at.sequence, e.at.position)).or_default().push(i);
        }
        let mut out = vec![f64::NAN; self.list.len()];
        for (s, sequence) in self.sequences.iter().enumerate() {
            let mut forward = Forward::<R>::wired(checkpoint, preset, wiring.clone())?.streamed();
            if let Some(seed) = jitter {
                // Another stream for each forward.
                let seed = seed.wrapping_add((s as u64) << 32);
                forward = forward.jittered(Jitter::new(seed));
            }
            for (start, end) in sequence.calls() {
                let logits = forward.step(&sequence.ids[start..end], &mut |_, _| {})?;
                let width = logits.len() / (end - start);
                for (position, row) in (start..end).zip(logits.chunks(width.max(1))) {
                    let Some(wanted) = by_row.get(&(s, position)) else { continue };
                    let row: Vec<f64> = row.iter().map(|x| x.value()).collect();
                    let norm = log_sum_exp(&row);
                    for &i in wanted {
                        let x = row.get(self.list[i].at.id as usize);
                        out[i] = x.map_or(f64::NAN, |x| x - norm);
                    }
                }
            }
        }
        Ok(out)
    }

    /// For each (row of evidence, token): how much less likely the forward holds the token than the likeliest, nats;
    /// infinite for what is no token, NaN when the forward's logits are not finite.
    ///
    /// # Errors
    /// When it cannot be run.
    pub(super) fn deficits(
        rows: &[&Row],
        checkpoint: &Checkpoint,
        preset: &'static Preset,
        seed: u64,
    ) -> Result<Vec<f64>> {
        let wiring = Wiring::new(checkpoint.config(), preset.angle);
        let mut out = Vec::new();
        for row in rows {
            let mut forward = Forward::<f32>::wired(checkpoint, preset, wiring.clone())?;
            forward = forward.jittered(Jitter::new(seed)).streamed().with_last_logits();
            let logits = forward.step(&row.prefix, &mut |_, _| {})?;
            let vocabulary = checkpoint.config().vocab_size;
            let last = &logits[logits.len().saturating_sub(vocabulary)..];
            if last.iter().any(|x| !x.is_finite()) {
                out.push(f64::NAN);
                continue;
            }
            let most = last.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
            let taken = row.taken.and_then(|id| last.get(id as usize)).copied();
            out.push(taken.map_or(f64::INFINITY, |x| f64::from(most - x)));
        }
        Ok(out)
    }
}

/// The sequence that a row needs.
fn sequence(row: &Row) -> Sequence {
    let first = match row.path {
        // One call: any beginning of a longer one.
        Path::Prompt | Path::First => usize::MAX,
        Path::Decode => row.prompt,
    };
    Sequence { ids: row.prefix.clone(), first }
}

fn key(s: &Sequence) -> (usize, &[u32]) {
    (s.first, &s.ids)
}

/// Without those that are the beginning of another with the same calls, in order.
fn maximal(mut all: Vec<Sequence>) -> Vec<Sequence> {
    all.sort_by(|a, b| key(a).cmp(&key(b)));
    let mut out: Vec<Sequence> = Vec::new();
    for s in all {
        if let Some(last) = out.last_mut()
            && last.first == s.first
            && s.ids.starts_with(&last.ids)
        {
            *last = s;
        } else {
            out.push(s);
        }
    }
    out
}

impl Sequence {
    fn calls(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (n, first) = (self.ids.len(), self.first.min(self.ids.len()));
        let chunk = move |start: usize| (start, (start + CHUNK).min(first));
        (0..first).step_by(CHUNK).map(chunk).chain((first..n).map(|i| (i, i + 1)))
    }
}

fn log_sum_exp(row: &[f64]) -> f64 {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|x| math::exp(x - most)).sum();
    most + math::ln(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(prefix: &[u32], prompt: usize, path: Path) -> Row {
        let (prefix, items) = (prefix.to_vec(), vec![(1, -1.0)]);
        Row { exchange: 0, prefix, prompt, path, items, taken: None }
    }

    #[test]
    fn beginnings_share_a_forward_and_decoding_has_its_own_calls() {
        let rows = [
            row(&[1], 2, Path::Prompt),
            row(&[1, 2], 2, Path::First),
            row(&[1, 2, 3], 3, Path::First),
            row(&[1, 2, 3], 2, Path::Decode),
            row(&[1, 4], 2, Path::First),
            row(&[9], 1, Path::First),
        ];
        let e = Elements::new(&rows, 9);
        assert_eq!(e.list.len(), 5, "9 is beyond the vocabulary");
        let all: Vec<_> = e.sequences.iter().map(|s| (s.ids.clone(), s.first)).collect();
        let all_at_once = usize::MAX;
        assert_eq!(
            all,
            [(vec![1, 2, 3], 2), (vec![1, 2, 3], all_at_once), (vec![1, 4], all_at_once)]
        );
        let at: Vec<_> = e.list.iter().map(|e| (e.at.sequence, e.at.position)).collect();
        assert_eq!(at, [(1, 0), (1, 1), (1, 2), (0, 2), (2, 1)]);
        assert_eq!(e.list[2].same, e.list[3].same);
        assert_eq!(e.sequences[0].calls().collect::<Vec<_>>(), [(0, 2), (2, 3)]);
        let two = e.first(2);
        assert_eq!((two.list.len(), two.sequences.len()), (3, 2));
    }

    #[test]
    fn probabilities_sum_to_one() {
        let row = [700.0, 701.0, -3.0];
        let norm = log_sum_exp(&row);
        let sum: f64 = row.iter().map(|x| math::exp(x - norm)).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
}
