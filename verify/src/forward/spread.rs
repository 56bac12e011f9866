//! How far legitimate forwards lie apart, and whether a recording is one of them.
//!
//! Nobody derives a bound for logits behind thirty layers that is of any use, so it is measured: a
//! sample of legitimate forwards is run (see [`members`](super::run::members)), and for each it is
//! computed how far it lies from the others, as the logarithm of the mean distance. A further
//! legitimate forward is expected within the prediction interval of that sample, mean + t s sqrt(1 +
//! 1/n), with s their standard deviation and t Student's quantile. Distances are relative: over all
//! rows of a probe, and for the worst row alone, which shows what few tokens suffer.

use std::collections::BTreeMap;

use assay_reference::arith::math;

/// What a forward computed: rows of values by probe.
pub(super) type Values = BTreeMap<String, Vec<f64>>;

/// Members of a sample.
pub(crate) const MEMBERS: usize = 12;

/// Student's t with `MEMBERS` - 1 degrees of freedom, exceeded with probability 1e-6.
const QUANTILE: f64 = 9.043;

/// A sample of legitimate forwards under one hypothesis.
pub(super) struct Spread {
    members: Vec<Values>,
    /// Tokens that they computed.
    tokens: usize,
}

/// How well something fits a sample.
#[derive(Clone, Debug)]
pub(super) struct Fit {
    /// Distance as a fraction of the limit; above 1 it does not fit.
    pub(super) ratio: f64,
    /// Where it fits worst.
    pub(super) probe: String,
    /// The row with the largest distance there.
    pub(super) row: usize,
    /// Relative distance over all rows there.
    pub(super) distance: f64,
}

/// Logarithms of mean distances at one probe.
struct Statistic {
    whole: f64,
    worst_row: f64,
    row: usize,
}

impl Spread {
    pub(super) fn new(members: Vec<Values>, tokens: usize) -> Spread {
        Spread { members, tokens }
    }

    /// Whether every member is finite: else the sample says nothing.
    pub(super) fn is_finite(&self) -> bool {
        self.members.iter().all(|m| m.values().flatten().all(|x| x.is_finite()))
    }

    /// The first `tokens` rows of `observed` against the sample, at the probes that both have.
    pub(super) fn fit(&self, observed: &Values, tokens: usize) -> Fit {
        let mut worst =
            Fit { ratio: f64::INFINITY, probe: String::new(), row: 0, distance: f64::INFINITY };
        let mut first = true;
        for (probe, values) in observed {
            let Some(members) = self.rows_of(probe, tokens) else { continue };
            let width = members[0].len() / tokens;
            let Some(values) = values.get(..width * tokens) else { continue };
            let fit = Spread::fit_at(probe, &members, values, tokens);
            // NaN is worse than anything.
            if first || fit.ratio > worst.ratio || fit.ratio.is_nan() {
                worst = fit;
            }
            first = false;
        }
        worst
    }

    /// The first rows of every member at a probe.
    fn rows_of(&self, probe: &str, tokens: usize) -> Option<Vec<&[f64]>> {
        let rows = |m: &'_ Values| {
            let v = m.get(probe)?;
            Some(v.len() / self.tokens * tokens)
        };
        self.members.iter().map(|m| m.get(probe)?.get(..rows(m)?)).collect()
    }

    fn fit_at(probe: &str, members: &[&[f64]], observed: &[f64], tokens: usize) -> Fit {
        let reference = members[0];
        let own: Vec<Statistic> = (0..members.len())
            .map(|i| {
                let others = members.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, m)| *m);
                statistic(members[i], others, reference, tokens)
            })
            .collect();
        let theirs = statistic(observed, members.iter().copied(), reference, tokens);
        let limit = |of: fn(&Statistic) -> f64| limit(&own.iter().map(of).collect::<Vec<_>>());
        let whole = theirs.whole - limit(|s| s.whole);
        let row = theirs.worst_row - limit(|s| s.worst_row);
        let over = if whole >= row { whole } else { row };
        Fit {
            ratio: if over.is_nan() { f64::INFINITY } else { math::exp(over) },
            probe: probe.to_string(),
            row: theirs.row,
            distance: math::exp(theirs.whole),
        }
    }
}

/// The upper end of the prediction interval of a further value beside these [`MEMBERS`].
pub(crate) fn limit(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    mean + QUANTILE * (variance * (1.0 + 1.0 / n)).sqrt()
}

/// Squared distances of `a` and `b` by row.
fn by_row(a: &[f64], b: &[f64], tokens: usize) -> Vec<f64> {
    let width = a.len() / tokens;
    let square = |(x, y): (&f64, &f64)| (x - y) * (x - y);
    let row = |(a, b): (&[f64], &[f64])| a.iter().zip(b).map(square).sum();
    a.chunks(width).zip(b.chunks(width)).map(row).collect()
}

fn statistic<'m>(
    x: &[f64],
    others: impl Iterator<Item = &'m [f64]>,
    reference: &[f64],
    tokens: usize,
) -> Statistic {
    let scale = by_row(reference, &vec![0.0; reference.len()], tokens);
    let total: f64 = scale.iter().sum();
    // Equal values are 0 apart, a distance to a row of zeros is infinite.
    let relative = |d: f64, scale: f64| if d == 0.0 { 0.0 } else { (d / scale).sqrt() };
    let (mut n, mut whole, mut rows) = (0.0, 0.0, vec![0.0; tokens]);
    for other in others {
        let d = by_row(x, other, tokens);
        n += 1.0;
        whole += relative(d.iter().sum(), total);
        for ((sum, d), s) in rows.iter_mut().zip(&d).zip(&scale) {
            *sum += relative(*d, *s);
        }
    }
    let mut worst = (0, 0.0);
    for (i, &r) in rows.iter().enumerate() {
        if r > worst.1 || r.is_nan() {
            worst = (i, r);
        }
    }
    // Bits that all agree on are as good as half the smallest step of an f64.
    let ln = |sum: f64| match sum / n {
        mean if mean.is_nan() => f64::INFINITY,
        mean => math::ln(mean.max(f64::EPSILON / 2.0)),
    };
    Statistic { whole: ln(whole), worst_row: ln(worst.1), row: worst.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The density's integral from the quantile on, by the midpoint rule over u = x / (1 + x).
    #[test]
    fn the_quantile_is_students() {
        let n = (MEMBERS - 1) as f64;
        // Gamma(6) / Gamma(5.5), for 11 degrees of freedom.
        let gammas = 120.0 / (945.0 / 32.0 * std::f64::consts::PI.sqrt());
        let c = gammas / (n * std::f64::consts::PI).sqrt();
        let density = |x: f64| c * math::pow(1.0 + x * x / n, -(n + 1.0) / 2.0);
        let steps = 20_000;
        let part = |i: i32| {
            let u = (f64::from(i) + 0.5) / f64::from(steps);
            density(QUANTILE + u / (1.0 - u)) / ((1.0 - u) * (1.0 - u)) / f64::from(steps)
        };
        let tail: f64 = (0..steps).map(part).sum();
        assert!((tail / 1e-6 - 1.0).abs() < 0.01, "{tail}");
    }

    /// Members that differ by 1e-6 and what lies 2e-6, 1e-3 and nowhere away.
    #[test]
    fn what_is_as_near_as_members_fits() {
        let member = |seed: usize| {
            let x = (0..64).map(|i| {
                let noise = ((i * 7919 + seed * 104_729) % 101) as f64 / 101.0 - 0.5;
                (1 + i % 5) as f64 * (1.0 + 1e-6 * noise)
            });
            Values::from([("logits".to_string(), x.collect())])
        };
        let spread = Spread::new((0..MEMBERS).map(member).collect(), 4);
        assert!(spread.is_finite());
        assert!(spread.fit(&member(99), 4).ratio < 1.0);
        let moved = |row: usize, by: f64| {
            let mut v = member(99);
            v.get_mut("logits").expect("logits")[row * 16] *= 1.0 + by;
            v
        };
        let fit = spread.fit(&moved(2, 1e-3), 4);
        assert!(fit.ratio > 1.0 && fit.row == 2, "{fit:?}");
        assert!(spread.fit(&moved(2, 1e-3), 2).ratio < 1.0, "row 2 is not among the first two");
        assert!(spread.fit(&moved(1, f64::NAN), 4).ratio.is_infinite());
        assert!(spread.fit(&Values::new(), 4).ratio.is_infinite(), "nothing fits nothing");
    }
}
