//! Checkpoints: safetensors shards, their index, `config.json` and the tokenizer.
//!
//! A checkpoint is read as strictly as it can be, because a damaged or misread one runs and prints
//! plausible text. Every tensor the architecture needs must be there with the shape and dtype that
//! the config implies, every tensor in the files must be read by something, every file must have
//! the length its own header states, and a config field that changes numbers is either understood
//! or refused. Nothing is guessed.
//!
//! - [`shard`]: one safetensors file or blob, mapped or in memory, and the writer;
//! - [`index`]: which tensor lives in which shard;
//! - [`config`]: `config.json`, `generation_config.json` and the quantisation's description;
//! - [`mod@expected`]: the tensors that an architecture needs;
//! - [`weights`]: [`Checkpoint`], all of the above held against each other;
//! - [`zeros`]: whether GPTQ data are of the format that they are labelled with;
//! - [`tokenizer`]: text to token ids and back;
//! - [`chat`]: conversations to text, by the model's chat template.

pub mod chat;
pub mod config;
pub mod expected;
mod header;
pub mod index;
mod json;
pub mod shard;
pub mod tokenizer;
pub mod weights;
mod writer;
pub mod zeros;

pub use chat::{ChatRequest, ChatTemplates};
pub use config::{
    Architecture, Awq, CompressedTensors, Config, Exclusions, Fp8, GenerationConfig, Gptq,
    GptqFormat, Ignored, Quantization,
};
pub use expected::{Expected, Kind, expected};
pub use index::Files;
pub use json::with_duplicates;
pub use shard::{Shard, to_bytes, write};
pub use tokenizer::Tokenizer;
pub use weights::Checkpoint;
pub use writer::{Slot, header_of};

use std::path::Path;

use crate::error::{Error, Result};

/// Checks that `dir` is a folder.
pub(crate) fn ensure_folder(dir: &Path) -> Result<()> {
    match std::fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(Error::file(
            dir,
            "is not a folder; give the folder that holds config.json and the weights",
        )),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::file(
            dir,
            "there is no such folder; give the one that holds config.json and the weights",
        )),
        Err(e) => Err(Error::io(dir)(e)),
    }
}

/// Checks that `path` is a file: to open a pipe would wait for its writer.
pub(crate) fn ensure_file(path: &Path) -> Result<()> {
    if std::fs::metadata(path).map_err(Error::io(path))?.is_file() {
        return Ok(());
    }
    Err(Error::file(path, "is not a regular file"))
}

/// At most five of `names`, quoted, and how many more there are.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 5;
    let mut names = names.into_iter();
    let shown: Vec<String> =
        names.by_ref().take(SHOWN).map(|n| format!("`{}`", n.escape_debug())).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
