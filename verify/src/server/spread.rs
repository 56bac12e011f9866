//! How far legitimate forwards lie apart in log-probabilities, and whether a server is one of them.
//!
//! As in [`forward`](crate::forward): twelve legitimate forwards differ in roundings and in the order of their sums. For each the
//! logarithm of its mean distance from the others is taken, over all elements (root mean square, nats) and in the
//! worst row; a further legitimate forward lies within the prediction interval of these twelve. Distances are
//! absolute: a log-probability near 0 has little error and a large relative one.

use assay_reference::Result;
use assay_reference::arith::math;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::preset::legitimate;
use assay_reference::qwen::{Preset, Wiring};
use assay_reference::{Dtype, dtype::pow2};

use super::elements::{Element, Elements};
use crate::forward::{MEMBERS, limit};

/// The roundings of a sample: what is legitimate for a dtype, or one preset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Roundings {
    presets: &'static [Preset],
}

impl Roundings {
    pub(super) fn of(dtype: Dtype) -> Roundings {
        Roundings { presets: legitimate(dtype) }
    }

    pub(super) fn only(preset: &'static Preset) -> Roundings {
        Roundings { presets: std::slice::from_ref(preset) }
    }

    /// The one whose single run stands for a hypothesis.
    pub(super) fn first(self) -> &'static Preset {
        &self.presets[0]
    }

    /// The preset of a member.
    pub(super) fn member(self, i: usize) -> &'static Preset {
        &self.presets[i % self.presets.len()]
    }
}

/// A sample of legitimate forwards: for each member a value for each element.
pub(super) struct Sample {
    members: Vec<Vec<f64>>,
}

/// How well something fits a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// Distance as a fraction of the limit; above 1 it does not fit.
    pub(super) ratio: f64,
    /// Distance over all elements, nats.
    pub(super) distance: f64,
    /// The largest distance that a legitimate forward has, nats.
    pub(super) allowed: f64,
    /// The row of evidence that fits worst.
    pub(super) row: usize,
}

/// Logarithms of mean distances.
struct Statistic {
    whole: f64,
    worst: f64,
    row: usize,
}

impl Sample {
    /// Runs the members. `wiring` makes the forward for a preset.
    pub(super) fn new(
        elements: &Elements,
        checkpoint: &Checkpoint,
        roundings: Roundings,
        wiring: &dyn Fn(&'static Preset) -> Wiring,
        step: &mut dyn FnMut(usize),
    ) -> Result<Sample> {
        let mut members = Vec::with_capacity(MEMBERS);
        for i in 0..MEMBERS {
            step(i);
            let preset = roundings.member(i);
            members.push(elements.run(checkpoint, &wiring(preset), preset, Some(i as u64 + 1))?);
        }
        Ok(Sample { members })
    }

    pub(super) fn is_finite(&self) -> bool {
        self.members.iter().flatten().all(|x| x.is_finite())
    }

    /// The mean of the members at an element.
    pub(super) fn mean(&self, i: usize) -> f64 {
        self.members.iter().map(|m| m[i]).sum::<f64>() / self.members.len() as f64
    }

    /// The elements numbered `which` against the sample.
    pub(super) fn fit(&self, list: &[Element], observed: &[f64], which: &[usize]) -> Fit {
        let rows = rows(list, which);
        let own: Vec<Statistic> = (0..self.members.len())
            .map(|i| {
                let others = self.members.iter().enumerate().filter(|(j, _)| *j != i);
                statistic(&self.members[i], others.map(|(_, m)| m.as_slice()), &rows)
            })
            .collect();
        let theirs = statistic(observed, self.members.iter().map(Vec::as_slice), &rows);
        let limit = |of: fn(&Statistic) -> f64| limit(&own.iter().map(of).collect::<Vec<_>>());
        let allowed = limit(|s| s.whole);
        let (whole, worst) = (theirs.whole - allowed, theirs.worst - limit(|s| s.worst));
        let over = if whole >= worst { whole } else { worst };
        Fit {
            ratio: if over.is_nan() { f64::INFINITY } else { math::exp(over) },
            distance: math::exp(theirs.whole),
            allowed: math::exp(allowed),
            row: theirs.row,
        }
    }
}

/// The elements of each row of evidence.
fn rows(list: &[Element], which: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let mut rows: Vec<(usize, Vec<usize>)> = Vec::new();
    for &i in which {
        match rows.last_mut() {
            Some((row, members)) if *row == list[i].row => members.push(i),
            _ => rows.push((list[i].row, vec![i])),
        }
    }
    rows
}

/// Root mean square of the difference, nats.
pub(super) fn distance(a: &[f64], b: &[f64]) -> f64 {
    let square: f64 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
    let d = (square / a.len().max(1) as f64).sqrt();
    if d.is_nan() { f64::INFINITY } else { d }
}

fn statistic<'m>(
    x: &[f64],
    others: impl Iterator<Item = &'m [f64]>,
    rows: &[(usize, Vec<usize>)],
) -> Statistic {
    let (mut n, mut whole, mut by_row) = (0.0, 0.0, vec![0.0; rows.len()]);
    let mut largest = 1.0f64;
    for other in others {
        let (mut sum, mut count) = (0.0, 0.0);
        for (total, (_, members)) in by_row.iter_mut().zip(rows) {
            let d: f64 = members.iter().map(|&i| (x[i] - other[i]) * (x[i] - other[i])).sum();
            *total += (d / members.len() as f64).sqrt();
            sum += d;
            count += members.len() as f64;
            largest = members.iter().fold(largest, |m, &i| m.max(other[i].abs()));
        }
        n += 1.0;
        whole += (sum / f64::max(count, 1.0)).sqrt();
    }
    let mut worst = (0, 0.0);
    for (&(row, _), &d) in rows.iter().zip(&by_row) {
        if d > worst.1 || f64::is_nan(d) {
            worst = (row, d);
        }
    }
    // Log-softmax in f32 is a few ulps of its largest value off, whatever the logits' dtype.
    let floor = 8.0 * pow2(-24) * largest;
    let ln = |sum: f64| match sum / n {
        mean if mean.is_nan() => f64::INFINITY,
        mean => math::ln(mean.max(floor)),
    };
    Statistic { whole: ln(whole), worst: ln(worst.1), row: worst.0 }
}
