//! What to ask, as far as somebody cares; the rest is chosen here.

use anyhow::{bail, ensure};
use assay_reference::checkpoint::tokenizer::check_ids;
use serde_json::{Value, json};

use super::Model;
use super::ask::{LENGTHS, Questions, until};

/// Tokens of the longest prompt.
pub const TOKENS: u32 = 96;
/// Tokens that are generated where decoding is looked at.
pub const GENERATE: u16 = 12;
/// Times that one request is repeated.
pub const REPEATS: u16 = 3;
/// Requests at the same time.
pub const BATCH: u16 = 8;
/// Seconds after which no more is asked.
pub const MAX_SECONDS: u64 = 900;

/// What the default prompt says, again and again up to its length.
const TEXT: &str = "A model that answers is not yet a model that is right. The capital of France is Paris, 12 + 30 = 42, \
    and water boils at 100 degrees. 一个会回答的模型不一定正确。Numbers decide: compare every position, then ask again. ";

/// What is wanted; `Default` is what a probe asks by itself.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Text of the longest prompt.
    pub prompt: Option<String>,
    /// Token ids of the longest prompt, instead.
    pub ids: Vec<u32>,
    /// Tokens of the longest prompt, at most.
    pub tokens: usize,
    /// Prompt lengths; empty is [`LENGTHS`].
    pub lengths: Vec<usize>,
    /// Tokens to generate where decoding is looked at.
    pub generate: usize,
    /// Times that one request is repeated.
    pub repeats: usize,
    /// Requests at a time in the batch.
    pub batch: usize,
    /// A conversation, as an array of messages.
    pub messages: Option<Value>,
    /// The model's name at the server.
    pub served_model: Option<String>,
    /// Seconds after which no more is asked.
    pub max_seconds: u64,
}

impl Default for Wishes {
    fn default() -> Wishes {
        Wishes {
            prompt: None,
            ids: Vec::new(),
            tokens: TOKENS as usize,
            lengths: Vec::new(),
            generate: GENERATE.into(),
            repeats: REPEATS.into(),
            batch: BATCH.into(),
            messages: None,
            served_model: None,
            max_seconds: MAX_SECONDS,
        }
    }
}

impl Wishes {
    /// The questions to a server of `model`.
    ///
    /// # Errors
    /// When the prompt cannot be made of this model's tokens.
    pub fn questions(self, model: &Model<'_>) -> anyhow::Result<Questions> {
        let ids = self.token_ids(model)?;
        ensure!(!self.lengths.contains(&0), "--lengths: 0 is no length of a prompt");
        let read_back = |n: usize| {
            let tokenizer = model.tokenizer?;
            let text = tokenizer.decode(&ids[..n]).ok()?;
            (tokenizer.encode(&text).ok()? == ids[..n]).then_some(text)
        };
        let texts = (0..=ids.len()).map(|n| if n == 0 { None } else { read_back(n) }).collect();
        let own = || Some(json!([{ "role": "user", "content": "1+1?" }]));
        let messages = self.messages.or_else(|| model.templates.and_then(|_| own()));
        Ok(Questions {
            texts,
            lengths: if self.lengths.is_empty() { LENGTHS.to_vec() } else { self.lengths },
            generate: self.generate,
            repeats: self.repeats,
            batch: self.batch,
            messages,
            served_model: self.served_model,
            until: until(self.max_seconds),
            ids,
        })
    }

    /// Token ids of the longest prompt.
    fn token_ids(&self, model: &Model<'_>) -> anyhow::Result<Vec<u32>> {
        let config = model.checkpoint.config();
        let most = config.max_position_embeddings.saturating_sub(16).max(2);
        let wanted = self.tokens.min(most);
        let ids = match (&self.ids[..], model.tokenizer, &self.prompt) {
            ([], Some(t), text) => {
                let mut text = text.clone().unwrap_or_else(|| TEXT.into());
                let own = t.encode(&text)?;
                // A prompt of the user's is asked as it is, unless it is longer.
                if self.prompt.is_none() {
                    text = text.repeat(wanted.div_ceil(own.len().max(1)) + 1);
                }
                t.encode(&text)?
            }
            ([], None, Some(_)) => {
                let dir = model.checkpoint.dir().display();
                bail!("{dir}: there is no tokenizer for --prompt: give --ids")
            }
            // Spread over the vocabulary; every one below it.
            ([], None, None) => {
                (0..wanted).map(|i| ((i * 7919 + 13) % config.vocab_size) as u32).collect()
            }
            (ids, ..) => ids.to_vec(),
        };
        let ids: Vec<u32> = ids.into_iter().take(wanted).collect();
        check_ids(&ids, config.vocab_size)?;
        Ok(ids)
    }
}
