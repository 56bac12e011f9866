//! Continuing a prompt, token by token.

use crate::arith::Real;
use crate::error::{Error, Result};
use crate::ops::Basis;
use crate::qwen::forward::{Forward, Observer};
use crate::qwen::sample::{LogitState, Sampler, Sampling, classify, log_softmax};

/// What continues a prompt: the reference's [`Forward`], or an engine made of kernels.
pub trait Model<R> {
    /// Checks that tokens can be fed.
    ///
    /// # Errors
    /// When there is none, or one is outside the vocabulary.
    fn check(&self, ids: &[u32]) -> Result<()>;

    /// Logits of a token.
    fn vocab(&self) -> usize;

    /// Appends tokens and returns their logits, [T, vocab], or the last one's alone.
    ///
    /// # Errors
    /// As [`Model::check`], and what keeps the model from running.
    fn step(&mut self, ids: &[u32], observer: &mut Observer<'_, R>) -> Result<Vec<R>>;
}

impl<R: Basis> Model<R> for Forward<'_, R> {
    fn check(&self, ids: &[u32]) -> Result<()> {
        Forward::check(self, ids)
    }

    fn vocab(&self) -> usize {
        self.plan().node("logits").map_or(0, |n| n.width)
    }

    fn step(&mut self, ids: &[u32], observer: &mut Observer<'_, R>) -> Result<Vec<R>> {
        Forward::step(self, ids, observer)
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An end-of-sequence token was chosen; it is not part of the output.
    Eos(u32),
    /// The requested number of tokens was reached.
    Length,
}

/// How to continue a prompt.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// At most so many new tokens.
    pub max_new: usize,
    /// Tokens that end the text.
    pub eos: &'a [u32],
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The prompt is fed in calls of at most so many tokens, 0 for one call. The results have the
    /// same bits, but under dynamic rope scaling; logits of [chunk, vocab] are held at a time.
    pub chunk: usize,
    /// With each token, the log probabilities of so many most likely ones; `None` for none at all.
    pub logprobs: Option<usize>,
}

/// What a token's logits said, before sampling changed them.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The chosen token, an end token included.
    pub token: u32,
    /// ln of its probability under the plain softmax of the logits.
    pub logprob: f64,
    /// The most likely tokens with theirs: descending, ties by ascending id.
    pub best: Vec<(u32, f64)>,
}

/// A continued prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The new tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub stop: Stop,
    /// For each choice, the end token's included, when asked for.
    pub logprobs: Vec<Logprobs>,
    /// Steps, from 0, whose logits are not [`LogitState::Fine`].
    pub broken: Vec<(usize, LogitState)>,
}

/// Progress of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// So many tokens of the prompt have been fed.
    Prompt(usize),
    /// A new token, not an end token.
    Token(u32),
}

/// Continues `prompt` greedily by at most `max_new` tokens: the most likely one each time (ties:
/// the lowest id; NaN wins, see [`argmax`](mod@crate::ops::argmax)). `on_token` sees each.
///
/// # Errors
/// When the prompt is empty or has an id outside the vocabulary.
pub fn generate<R: Real>(
    forward: &mut dyn Model<R>,
    prompt: &[u32],
    max_new: usize,
    eos: &[u32],
    observer: &mut Observer<'_, R>,
    mut on_token: impl FnMut(u32),
) -> Result<(Vec<u32>, Stop)> {
    let options = Options { max_new, eos, sampling: Sampling::GREEDY, chunk: 0, logprobs: None };
    let mut on_event = |event| {
        if let Event::Token(id) = event {
            on_token(id);
        }
    };
    let out = continue_prompt(forward, prompt, &options, observer, &mut on_event)?;
    Ok((out.tokens, out.stop))
}

/// Continues `prompt` as `options` say.
///
/// # Errors
/// When the prompt is empty or has an id outside the vocabulary, or a setting is out of range.
pub fn continue_prompt<R: Real>(
    forward: &mut dyn Model<R>,
    prompt: &[u32],
    options: &Options<'_>,
    observer: &mut Observer<'_, R>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Generation> {
    let mut sampler = Sampler::new(options.sampling)?;
    let mut logits = feed(forward, prompt, options.chunk, observer, on_event)?;
    let mut out =
        Generation { tokens: Vec::new(), stop: Stop::Length, logprobs: vec![], broken: vec![] };
    let mut seen = prompt.to_vec();
    while out.tokens.len() < options.max_new {
        let state = classify(&logits);
        if state != LogitState::Fine {
            out.broken.push((out.tokens.len(), state));
        }
        let next = sampler.choose(&logits, &seen);
        if let Some(n) = options.logprobs {
            out.logprobs.push(logprobs(&logits, next, n));
        }
        if options.eos.contains(&next) {
            out.stop = Stop::Eos(next);
            break;
        }
        out.tokens.push(next);
        seen.push(next);
        on_event(Event::Token(next));
        if out.tokens.len() < options.max_new {
            logits = values(&forward.step(&[next], observer)?);
        }
    }
    Ok(out)
}

/// Feeds a prompt in calls of at most `chunk` tokens (0: in one) and returns the last token's
/// logits, \[vocab\].
///
/// # Errors
/// When the prompt is empty or has an id outside the vocabulary.
pub fn feed<R: Real>(
    forward: &mut dyn Model<R>,
    prompt: &[u32],
    chunk: usize,
    observer: &mut Observer<'_, R>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Vec<f64>> {
    if prompt.is_empty() {
        return Err(Error::Request("the prompt is empty: there is no token to run".into()));
    }
    // All of it before any of it is run.
    forward.check(prompt)?;
    let chunk = if chunk == 0 { prompt.len() } else { chunk };
    let mut last = Vec::new();
    let mut done = 0;
    for part in prompt.chunks(chunk) {
        let logits = forward.step(part, observer)?;
        last = values(&logits[logits.len().saturating_sub(forward.vocab())..]);
        done += part.len();
        on_event(Event::Prompt(done));
    }
    Ok(last)
}

fn values<R: Real>(x: &[R]) -> Vec<f64> {
    x.iter().map(|v| v.value()).collect()
}

/// The `n` most likely tokens and the chosen one. NaN sorts last.
fn logprobs(logits: &[f64], token: u32, n: usize) -> Logprobs {
    let all = log_softmax(logits);
    let mut ids: Vec<u32> = (0..all.len() as u32).collect();
    let key = |id: u32| {
        let x = all[id as usize];
        if x.is_nan() { f64::NEG_INFINITY } else { x }
    };
    let order = |a: &u32, b: &u32| key(*b).total_cmp(&key(*a)).then(a.cmp(b));
    let n = n.min(ids.len());
    if n > 0 && n < ids.len() {
        ids.select_nth_unstable_by(n - 1, order);
    }
    ids.truncate(n);
    ids.sort_unstable_by(order);
    let best = ids.into_iter().map(|id| (id, all[id as usize])).collect();
    Logprobs { token, logprob: all[token as usize], best }
}
