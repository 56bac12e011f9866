//! tokenizer.json, read for its ids alone: no text becomes tokens here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The longest file that is read; Qwen's has 11 MB.
const MAX_BYTES: u64 = 128 << 20;

/// What the file says of its ids.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// The highest id.
    pub(super) highest: u64,
    /// Ids of the added tokens, special ones among them, by text.
    pub(super) added: BTreeMap<String, u64>,
}

/// What there is.
pub(super) enum Outcome {
    Absent,
    /// Why it cannot be used.
    Damaged(String),
    Tokens(Tokens),
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u64,
    content: String,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocab,
}

/// Reads the file at `path`.
pub(super) fn read(path: &Path) -> Outcome {
    // Asked before it is opened: to open a pipe would wait for its writer.
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => return Outcome::Damaged("is not a regular file".to_owned()),
        Ok(m) if m.len() > MAX_BYTES => {
            return Outcome::Damaged(format!("has {} bytes, which no tokenizer has", m.len()));
        }
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Outcome::Absent,
        Err(e) => return Outcome::Damaged(format!("cannot be read: {e}")),
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) => return Outcome::Damaged(format!("cannot be read: {e}")),
    };
    let reader = BufReader::new(file.take(MAX_BYTES));
    match serde_json::from_reader::<_, Document>(reader) {
        Ok(document) => {
            let mut tokens = Tokens { highest: document.model.vocab.0, ..Tokens::default() };
            for added in document.added_tokens {
                tokens.highest = tokens.highest.max(added.id);
                tokens.added.insert(added.content, added.id);
            }
            Outcome::Tokens(tokens)
        }
        Err(e) => Outcome::Damaged(format!("is no tokenizer: {e}")),
    }
}

/// The highest id of a vocabulary: a map from token to id (BPE), or a list in order (Unigram).
struct Vocab(u64);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Vocab, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut highest = 0;
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u64>()? {
                    highest = highest.max(id);
                }
                Ok(Vocab(highest))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocab, A::Error> {
                let mut count = 0u64;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Vocab(count.saturating_sub(1)))
            }
        }
        from.deserialize_any(V)
    }
}
