//! Wrong forwards that no list holds: a constant whose value is solved for, and two faults at once.

use assay_reference::arith::math;
use assay_reference::checkpoint::Config;
use assay_reference::qwen::ForwardFault;
use assay_reference::qwen::variant::Reach;
use assay_reference::{Error, Result};

use super::run::Span;
use super::spread::{Fit, Values};
use super::{BEAM, Search, distance};
use crate::minimum::minimum;

/// Golden section steps: an interval of half a decade ends below 1e-5 of it.
const STEPS: usize = 24;
/// Tokens from which a value is solved for, where the model is small enough.
const SOLVE_TOKENS: usize = 64;
/// First halves of pairs, those that come nearest alone.
const SEEDS: usize = 6;
/// Multiply-adds of one run up to which pairs are tried.
const PAIR_WORK: f64 = 1e8;

/// A constant that is solved for: how its fault is made, and powers of ten between which it is sought.
type Constant = (fn(&Config, f64) -> ForwardFault, (f64, f64));

const CONSTANTS: [Constant; 2] =
    [(ForwardFault::theta, (2.0, 10.0)), (ForwardFault::eps, (-13.0, -2.0))];

/// What solving for the constants gave.
pub(super) struct Solved {
    /// The constant that explains the stretch, if one does.
    pub(super) fits: Vec<(ForwardFault, Fit)>,
    /// Of every other constant the value that comes nearest.
    pub(super) nearest: Vec<ForwardFault>,
}

impl Search<'_> {
    /// The one constant whose value explains the stretch, in as few digits as explain it, and the values that come
    /// nearest of all.
    pub(super) fn solved(
        &mut self,
        span: &Span,
        observed: &Values,
        tokens: usize,
    ) -> Result<Solved> {
        let config = self.runner.checkpoint.config().clone();
        // More tokens turn further, and tell the value better.
        let more = self.tokens.min(SOLVE_TOKENS).max(tokens);
        let tokens = if self.work(span, more) > PAIR_WORK { tokens } else { more };
        let mut nearest = Vec::new();
        for (make, (from, to)) in CONSTANTS {
            if !self.runner.changes(span, &make(&config, 1.5e-9)) {
                continue;
            }
            let Some(value) =
                self.minimum(span, observed, tokens, from, to, &|x| make(&config, x))?
            else {
                continue;
            };
            for candidate in rounded(value) {
                let mut fault = make(&config, candidate);
                fault.detail += &format!(", solved for: {value:.4e} comes nearest");
                let fits = self.explaining(span, observed, vec![fault])?;
                if !fits.is_empty() {
                    return Ok(Solved { fits, nearest });
                }
            }
            nearest.push(make(&config, value));
        }
        Ok(Solved { fits: Vec::new(), nearest })
    }

    /// The value at which a run comes nearest, if that is nearer than the right forward.
    fn minimum(
        &mut self,
        span: &Span,
        observed: &Values,
        tokens: usize,
        from: f64,
        to: f64,
        make: &dyn Fn(f64) -> ForwardFault,
    ) -> Result<Option<f64>> {
        let right = self.runner.one(span, None, tokens)?;
        let limit = distance(observed, &right, tokens, self.tokens);
        let mut at = |x: f64| -> Result<f64> {
            self.hypotheses += 1;
            let run = self.runner.one(span, Some(&make(math::pow(10.0, x))), tokens)?;
            Ok(distance(observed, &run, tokens, self.tokens))
        };
        // Halves of a decade.
        let n = (2.0 * (to - from)) as usize;
        let grid: Vec<f64> = (0..=n).map(|i| from + 0.5 * i as f64).collect();
        let best = minimum(&grid, STEPS, &mut at)?;
        Ok(best.filter(|(far, _)| *far < limit).map(|(_, x)| math::pow(10.0, x)))
    }

    /// Two faults of the whole model that together explain what none does alone. `more` are further candidates.
    pub(super) fn pairs(
        &mut self,
        span: &Span,
        observed: &Values,
        tokens: usize,
        more: Vec<ForwardFault>,
    ) -> Result<Option<Vec<(ForwardFault, Fit)>>> {
        if self.work(span, tokens) > PAIR_WORK {
            return Ok(None);
        }
        let whole = self.all.iter().filter(|f| f.reach != Reach::SomeLayers).cloned();
        let pool: Vec<ForwardFault> =
            whole.chain(more).filter(|f| self.runner.changes(span, f)).collect();
        let mut singles = Vec::new();
        for (i, fault) in pool.iter().enumerate() {
            singles.push((self.far(span, observed, tokens, fault)?, i));
        }
        singles.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut pairs = Vec::new();
        let seeds: Vec<usize> = singles.iter().take(SEEDS).map(|s| s.1).collect();
        for (nth, &i) in seeds.iter().enumerate() {
            for j in 0..pool.len() {
                let known = seeds[..nth].contains(&j);
                if known || pool[i].entry.code == pool[j].entry.code {
                    continue;
                }
                let both = pool[i].and(&pool[j]);
                // Each runs alone; edits of one op call need not go together, as of a norm that the other one moved.
                match self.far(span, observed, tokens, &both) {
                    Ok(far) => pairs.push((far, both)),
                    Err(Error::Arg { .. } | Error::Tensor { .. }) => {}
                    Err(other) => return Err(other),
                }
            }
        }
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let best = pairs.into_iter().take(BEAM).map(|(_, f)| f).collect();
        Ok(Some(self.explaining(span, observed, best)?))
    }

    fn far(
        &mut self,
        span: &Span,
        observed: &Values,
        tokens: usize,
        fault: &ForwardFault,
    ) -> Result<f64> {
        self.hypotheses += 1;
        let run = self.runner.one(span, Some(fault), tokens)?;
        Ok(distance(observed, &run, tokens, self.tokens))
    }

    /// About how many multiply-adds a run of a span takes.
    fn work(&self, span: &Span, tokens: usize) -> f64 {
        let c = self.runner.checkpoint.config();
        let (hidden, inner) = (c.hidden_size as f64, c.intermediate_size as f64);
        let layers = span.layers.len() as f64 * hidden * (4.0 * hidden + 3.0 * inner);
        let head = if span.head { c.vocab_size as f64 * hidden } else { 0.0 };
        (layers + head) * tokens as f64
    }
}

/// A value in one digit, in two, in three, and as it is.
fn rounded(value: f64) -> Vec<f64> {
    let digits = (0..3).filter_map(|d| format!("{value:.d$e}").parse().ok());
    let mut all: Vec<f64> = digits.chain([value]).collect();
    all.dedup();
    all
}
