//! Choosing the next token from logits: greedily, or by sampling as transformers does.
//!
//! Steps, each on the result of the one before, as transformers 5's `generate` orders them:
//!
//! 1. **repetition penalty** p, once for each id of the prompt or generated so far: a negative
//!    logit times p, any other divided by p. The only step that greedy decoding has too;
//! 2. **temperature** t: logits / t;
//! 3. **top-k**: logits below the k-th largest become -inf (ties with it stay);
//! 4. **top-p**: sorted ascending (stable, so among equals the lowest id comes first), tokens whose
//!    cumulative probability is at most 1 - p go; the last one always stays;
//! 5. **min-p**: tokens with a probability below p times the largest go.
//!
//! The draw: u in \[0, 1) from [`Rng`], the survivors' probabilities accumulated in f64 by
//! ascending id, and the first id whose cumulative probability is above u. All of it in f64, so
//! that a seed gives the same tokens on every machine that gives the same logits (torch's own
//! random stream is another).

use crate::arith::dot::sum_f64;
use crate::arith::math::{exp, ln};
use crate::error::{Error, Result};
use crate::ops::argmax::argmax;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Whether to draw; else the largest logit is taken (ties: the lowest id).
    pub do_sample: bool,
    /// Divides the logits; 0 is greedy.
    pub temperature: f64,
    /// Keeps so many of the largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens that make up this probability; 1 keeps all.
    pub top_p: f64,
    /// Keeps tokens with at least this share of the largest probability; 0 keeps all.
    pub min_p: f64,
    /// Above 1 makes tokens that were seen less likely; 1 changes nothing.
    pub repetition_penalty: f64,
    /// Of the random stream.
    pub seed: u64,
}

impl Sampling {
    /// The largest logit each time.
    pub const GREEDY: Sampling = Sampling {
        do_sample: false,
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        seed: 0,
    };

    /// Whether no random number is drawn.
    pub fn is_greedy(&self) -> bool {
        !self.do_sample || self.temperature == 0.0
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`Error::Request`] naming the setting, its range and the value.
    pub fn check(&self) -> Result<()> {
        let wrong = |name: &str, range: &str, value: f64| {
            Err(Error::Request(format!("{name} must be {range}, but is {value}")))
        };
        let not_negative = |x: f64| x >= 0.0 && x.is_finite();
        if !not_negative(self.temperature) {
            return wrong("temperature", "a number from 0 (greedy) up", self.temperature);
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return wrong("top_p", "from 0 to 1 (1 keeps all tokens)", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min_p", "from 0 (keeps all tokens) to 1", self.min_p);
        }
        if !(1e-3..=1e3).contains(&self.repetition_penalty) {
            let range = "from 0.001 to 1000 (1 is none)";
            return wrong("repetition_penalty", range, self.repetition_penalty);
        }
        Ok(())
    }
}

/// What a row of logits is like. All but `Fine` mean a broken model or kernel; token 0 is `!` in
/// Qwen's vocabulary, so that most of them print `!!!!`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogitState {
    /// Finite (single tokens may be masked by -inf) and not all equal.
    Fine,
    /// So many are NaN.
    Nan(usize),
    /// So many are +inf.
    Infinite(usize),
    /// All are -inf.
    Masked,
    /// All are equal.
    Constant,
}

impl LogitState {
    /// What to tell people; `None` if there is nothing to tell.
    pub fn trouble(self) -> Option<String> {
        Some(match self {
            LogitState::Fine => return None,
            LogitState::Nan(n) => format!("NaN ({n} of them)"),
            LogitState::Infinite(n) => format!("infinite ({n} of them)"),
            LogitState::Masked => "all -inf".into(),
            LogitState::Constant => "all equal".into(),
        })
    }
}

/// Looks at a row of logits.
pub fn classify(logits: &[f64]) -> LogitState {
    let count = |test: fn(f64) -> bool| logits.iter().filter(|x| test(**x)).count();
    let (nan, infinite) = (count(f64::is_nan), count(|x| x == f64::INFINITY));
    let first = logits.first().copied().unwrap_or(0.0);
    match (nan, infinite) {
        (1.., _) => LogitState::Nan(nan),
        (0, 1..) => LogitState::Infinite(infinite),
        _ if logits.iter().all(|x| *x == f64::NEG_INFINITY) => LogitState::Masked,
        _ if logits.len() > 1 && logits.iter().all(|x| *x == first) => LogitState::Constant,
        _ => LogitState::Fine,
    }
}

/// log softmax: x - max - ln(sum of exp(x - max)), in f64. NaN where the logits allow no other.
pub fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let terms: Vec<f64> = logits.iter().map(|x| exp(x - max)).collect();
    let ln_sum = ln(sum_f64(&terms, 0));
    logits.iter().map(|x| x - max - ln_sum).collect()
}

/// Probabilities of `(id, logit)` pairs whose logits are not all -inf.
fn softmax(pairs: &[(u32, f64)]) -> Vec<f64> {
    let max = pairs.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
    let terms: Vec<f64> = pairs.iter().map(|p| exp(p.1 - max)).collect();
    let sum = sum_f64(&terms, 0);
    terms.iter().map(|t| t / sum).collect()
}

/// Step 1, in place. `seen` may repeat ids and hold some beyond the logits.
fn penalise(logits: &mut [f64], seen: &[u32], penalty: f64) {
    if penalty == 1.0 {
        return;
    }
    let mut ids: Vec<u32> = seen.to_vec();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        if let Some(x) = logits.get_mut(id as usize) {
            *x = if *x < 0.0 { *x * penalty } else { *x / penalty };
        }
    }
}

/// The tokens that survive all steps, with their probabilities, by ascending id.
///
/// # Errors
/// [`Error::Request`] when the logits are NaN, +inf or all -inf, or the temperature is so small that
/// they leave f64: nothing can be drawn from them.
pub fn survivors(logits: &[f64], seen: &[u32], sampling: &Sampling) -> Result<Vec<(u32, f64)>> {
    if let trouble @ (LogitState::Nan(_) | LogitState::Infinite(_) | LogitState::Masked) =
        classify(logits)
    {
        let what = trouble.trouble().unwrap_or_default();
        return Err(Error::Request(format!("cannot sample: the logits are {what}")));
    }
    let mut logits = logits.to_vec();
    penalise(&mut logits, seen, sampling.repetition_penalty);
    let kept = |x: &f64| *x > f64::NEG_INFINITY;
    let mut pairs: Vec<(u32, f64)> = (0..)
        .zip(logits)
        .filter(|(_, x)| kept(x))
        .map(|(i, x)| (i, x / sampling.temperature))
        .collect();
    if !pairs.iter().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max).is_finite() {
        let t = sampling.temperature;
        return Err(Error::Request(format!(
            "cannot sample: divided by the temperature {t:e}, the logits are beyond f64"
        )));
    }
    if sampling.top_k > 0 && sampling.top_k < pairs.len() {
        let mut sorted: Vec<f64> = pairs.iter().map(|p| p.1).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted[sampling.top_k - 1];
        pairs.retain(|p| p.1 >= least);
    }
    if sampling.top_p < 1.0 {
        top_p(&mut pairs, sampling.top_p);
    }
    let probabilities = softmax(&pairs);
    let largest = probabilities.iter().copied().fold(0.0, f64::max);
    let mut at = 0;
    pairs.retain(|_| {
        at += 1;
        probabilities[at - 1] >= sampling.min_p * largest
    });
    let probabilities = softmax(&pairs);
    Ok(pairs.iter().map(|p| p.0).zip(probabilities).collect())
}

/// Step 4.
fn top_p(pairs: &mut Vec<(u32, f64)>, p: f64) {
    // Stable, so that ids ascend among equal logits.
    pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut cumulative = 0.0;
    let gone = softmax(pairs).into_iter().position(|q| {
        cumulative += q;
        cumulative > 1.0 - p
    });
    let last = pairs.len().saturating_sub(1);
    pairs.drain(..gone.unwrap_or(last).min(last));
    pairs.sort_by_key(|p| p.0);
}

/// Chooses tokens, one after another.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: Rng,
}

impl Sampler {
    /// A sampler at the start of its random stream.
    ///
    /// # Errors
    /// As [`Sampling::check`].
    pub fn new(sampling: Sampling) -> Result<Sampler> {
        sampling.check()?;
        Ok(Sampler { sampling, rng: Rng::new(sampling.seed) })
    }

    /// The next token. Logits from which nothing can be drawn (see [`survivors`]) give what greedy
    /// decoding gives: the first NaN, the first +inf, or id 0; under a vanishing temperature the
    /// largest.
    pub fn choose(&mut self, logits: &[f64], seen: &[u32]) -> u32 {
        if !self.sampling.is_greedy() {
            let u = self.rng.uniform();
            if let Ok(pairs) = survivors(logits, seen, &self.sampling) {
                return draw(&pairs, u);
            }
        }
        let mut logits = logits.to_vec();
        penalise(&mut logits, seen, self.sampling.repetition_penalty);
        argmax(&logits) as u32
    }
}

/// The first id whose cumulative probability is above `u`; rounding can leave the sum below `u`,
/// and then it is the last one.
fn draw(pairs: &[(u32, f64)], u: f64) -> u32 {
    let mut cumulative = 0.0;
    let found = pairs.iter().find(|(_, p)| {
        cumulative += p;
        cumulative > u
    });
    found.or(pairs.last()).map_or(0, |p| p.0)
}

/// xoshiro256++ (Blackman and Vigna), its state filled by splitmix64 of the seed.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        let mut x = seed;
        Rng([(); 4].map(|()| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// Uniform in \[0, 1): the upper 53 bits times 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}
