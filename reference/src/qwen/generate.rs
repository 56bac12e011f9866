//! Greedy decoding.

use crate::error::Result;
use crate::ops::Basis;
use crate::ops::argmax::argmax;
use crate::qwen::forward::{Forward, Observer};

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An end-of-sequence token was chosen; it is not part of the output.
    Eos(u32),
    /// The requested number of tokens was reached.
    Length,
}

/// Continues `prompt` by at most `max_new` tokens, the most likely one each time (ties: the lowest
/// id; NaN wins, see [`argmax`](mod@crate::ops::argmax)). `on_token` sees each new token.
///
/// # Errors
/// When the prompt is empty or has an id outside the vocabulary.
pub fn generate<R: Basis>(
    forward: &mut Forward<'_, R>,
    prompt: &[u32],
    max_new: usize,
    eos: &[u32],
    observer: &mut Observer<'_, R>,
    mut on_token: impl FnMut(u32),
) -> Result<(Vec<u32>, Stop)> {
    let mut out = Vec::new();
    let mut logits = forward.step(prompt, observer)?;
    while out.len() < max_new {
        let vocab = logits.len() / if out.is_empty() { prompt.len() } else { 1 };
        let last: Vec<f64> = logits[logits.len() - vocab..].iter().map(|x| x.value()).collect();
        let next = argmax(&last) as u32;
        if eos.contains(&next) {
            return Ok((out, Stop::Eos(next)));
        }
        out.push(next);
        on_token(next);
        if out.len() < max_new {
            logits = forward.step(&[next], observer)?;
        }
    }
    Ok((out, Stop::Length))
}
