//! Text to token ids and back, by the model's own `tokenizer.json`.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A model's tokenizer.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir`.
    ///
    /// # Errors
    /// [`Error::File`] when the file is missing (token ids can be given instead) or malformed.
    pub fn open(dir: &Path) -> Result<Tokenizer> {
        let path = dir.join("tokenizer.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::file(
                    path,
                    "there is no tokenizer, so text cannot be turned into tokens: download \
                     tokenizer.json, or give token ids with --ids",
                ));
            }
            Err(e) => return Err(Error::io(path)(e)),
        };
        let unreadable = |e: tokenizers::Error| {
            Error::file(
                &path,
                format!("is not a tokenizer that can be read: {e}; download it again"),
            )
        };
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(unreadable)?;
        // A file may carry the truncation and padding of some training run; a prompt gets neither.
        inner.with_truncation(None).map_err(unreadable)?;
        inner.with_padding(None);
        Ok(Tokenizer { path, inner })
    }

    /// Token ids of `text`. Special tokens in the text (`<|im_start|>`) become their single id, and
    /// those that the tokenizer itself adds are added, as transformers does by default.
    ///
    /// # Errors
    /// [`Error::Request`] for an empty prompt, [`Error::File`] when the tokenizer fails or gives no
    /// token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, true)
    }

    /// Token ids of a rendered chat template, which wrote its special tokens itself: none is added.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>> {
        self.ids(text, false)
    }

    fn ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        if text.is_empty() {
            return Err(Error::Request(
                "the prompt is empty: a forward needs at least one token".to_owned(),
            ));
        }
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|e| Error::file(&self.path, format!("cannot encode the prompt: {e}")))?;
        let ids = encoding.get_ids().to_vec();
        if ids.is_empty() {
            return Err(Error::file(
                &self.path,
                "turns this prompt into no token at all: its normalizer removed everything",
            ));
        }
        Ok(ids)
    }

    /// Text of `ids`, special tokens included. Bytes that are not whole UTF-8 (a character split
    /// over tokens) show as U+FFFD.
    ///
    /// # Errors
    /// [`Error::File`] for an id that the tokenizer does not have: the model's head has more rows.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some((i, id)) =
            ids.iter().enumerate().find(|(_, id)| self.inner.id_to_token(**id).is_none())
        {
            return Err(Error::file(
                &self.path,
                format!(
                    "token {i} has id {id}, but the tokenizer knows {} tokens: the head has more \
                     rows than there are tokens, and a model that picks one of those is wrong",
                    self.len()
                ),
            ));
        }
        self.inner
            .decode(ids, false)
            .map_err(|e| Error::file(&self.path, format!("cannot decode the tokens: {e}")))
    }

    /// The token of one id as the vocabulary spells it, or `None` when there is none.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Number of tokens, added ones included.
    pub fn len(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.path.display(), self.len())
    }
}

/// Checks that `ids` can be fed to a model whose embedding has `vocab_size` rows.
///
/// # Errors
/// [`Error::Request`] when there is no id, or one beyond the embedding.
pub fn check_ids(ids: &[u32], vocab_size: usize) -> Result<()> {
    if ids.is_empty() {
        return Err(Error::Request(
            "there are no token ids: a forward needs at least one token".to_owned(),
        ));
    }
    match ids.iter().position(|&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(i) => Err(Error::Request(format!(
            "token {i} has id {}, but the embedding has {vocab_size} rows (ids 0 to {}): the ids \
             belong to another model or tokenizer",
            ids[i],
            vocab_size.saturating_sub(1)
        ))),
    }
}
