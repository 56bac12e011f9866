//! Rates and their confidence limits.

use assay_reference::arith::math;
use serde::Serialize;

/// Hits out of trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Trials that count.
    pub trials: usize,
    /// Those that were flagged.
    pub hits: usize,
}

impl Tally {
    /// Counts a trial.
    pub fn count(&mut self, hit: bool) {
        self.trials += 1;
        self.hits += usize::from(hit);
    }

    /// Adds another tally's trials.
    pub fn add(&mut self, other: Tally) {
        self.trials += other.trials;
        self.hits += other.hits;
    }

    /// Share of hits; `None` without trials.
    pub fn rate(&self) -> Option<f64> {
        (self.trials > 0).then(|| self.hits as f64 / self.trials as f64)
    }

    /// Whether every trial hit, and there was one.
    pub fn is_all(&self) -> bool {
        self.trials > 0 && self.hits == self.trials
    }

    /// `100 %`, `99.8 %`, `-`.
    pub fn percent(&self) -> String {
        match self.rate() {
            None => "-".into(),
            Some(r) if r == 0.0 || r == 1.0 => format!("{:.0} %", 100.0 * r),
            // Never rounded up to what it is not.
            Some(r) => format!("{:.1} %", (100.0 * r).clamp(0.1, 99.9)),
        }
    }

    /// One-sided exact 95 % upper limit of the rate (Clopper and Pearson 1934): the largest p under
    /// which so few hits still have a probability of 5 %. For 0 of n it is 1 - 0.05^(1/n). 1 without
    /// trials.
    pub fn upper95(&self) -> f64 {
        if self.hits >= self.trials {
            return 1.0;
        }
        let (mut low, mut high) = (self.hits as f64 / self.trials as f64, 1.0);
        for _ in 0..100 {
            let p = low + (high - low) / 2.0;
            if at_most(self.hits, self.trials, p) > 0.05 { low = p } else { high = p }
        }
        high
    }
}

/// The probability of at most `hits` hits in `trials` trials of probability `p`.
fn at_most(hits: usize, trials: usize, p: f64) -> f64 {
    if p >= 1.0 {
        return if hits >= trials { 1.0 } else { 0.0 };
    }
    let (lp, lq) = (math::ln(p.max(f64::MIN_POSITIVE)), math::ln(1.0 - p));
    let mut choose = 0.0; // ln of trials over i
    let mut sum = 0.0;
    for i in 0..=hits {
        sum += math::exp(choose + i as f64 * lp + (trials - i) as f64 * lq);
        choose += math::ln((trials - i) as f64 / (i + 1) as f64);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upper(hits: usize, trials: usize) -> f64 {
        Tally { trials, hits }.upper95()
    }

    #[test]
    fn no_hit_gives_the_closed_form() {
        for n in [1, 20, 2000, 100_000] {
            let closed = 1.0 - math::pow(0.05, 1.0 / n as f64);
            assert!((upper(0, n) - closed).abs() < 1e-12 + 1e-9 * closed, "{n}");
        }
        assert!((upper(0, 2000) - 0.001_496_7).abs() < 1e-6);
    }

    /// Values of R: `binom.test(k, n, alternative = "less")$conf.int[2]`, which is
    /// `qbeta(0.95, k + 1, n - k)`; for n - k = 1 that is 0.95^(1/n).
    #[test]
    fn known_limits() {
        assert!((upper(1, 10) - 0.394_163).abs() < 1e-5);
        assert!((upper(5, 100) - 0.102_253).abs() < 1e-5);
        assert!((upper(9, 10) - math::pow(0.95, 0.1)).abs() < 1e-9);
        assert_eq!(upper(10, 10), 1.0);
        assert_eq!(upper(0, 0), 1.0);
        assert!(upper(1999, 2000) > 1999.0 / 2000.0);
    }

    #[test]
    fn percentages_are_not_rounded_to_what_they_are_not() {
        assert_eq!(Tally { trials: 9999, hits: 9998 }.percent(), "99.9 %");
        assert_eq!(Tally { trials: 9999, hits: 1 }.percent(), "0.1 %");
        assert_eq!(Tally { trials: 3, hits: 3 }.percent(), "100 %");
        assert_eq!(Tally::default().percent(), "-");
    }
}
