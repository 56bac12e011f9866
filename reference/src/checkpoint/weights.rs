//! A whole checkpoint: config and weights, held against each other.

mod check;
mod hints;
mod scan;

use std::fmt;
use std::path::Path;

use super::config::Config;
use super::expected::{Expected, expected};
use super::index::Files;
use super::plural;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A checkpoint in which every tensor the architecture needs is there, in its shape, and every
/// tensor there is read.
pub struct Checkpoint {
    config: Config,
    files: Files,
    expected: Vec<Expected>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`: reads the config, maps the shards, and checks names, shapes,
    /// dtypes, leftovers and the group indices of quantised layers. Weights are not read; see
    /// [`Checkpoint::scan_finite`].
    ///
    /// # Errors
    /// Everything that [`Config::open`] and [`Files::open`] refuse; [`Error::Tensor`] for a tensor
    /// that is missing, of another shape or dtype than the config implies, or a group index out of
    /// range; [`Error::File`] for tensors that nothing reads. `lm_head.weight` of a tied model is
    /// accepted when it equals the embedding, `rotary_emb.inv_freq` always, and the bias of a
    /// quantised layer whose architecture has none when it is zero.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let config = Config::open(dir)?;
        let files = Files::open(dir)?;
        check::check_size(&config, &files)?;
        let expected = expected(&config);
        let mut warnings = files.warnings().to_vec();
        warnings.extend(check::check(&config, &files, &expected)?);
        Ok(Checkpoint { config, files, expected, warnings })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        self.files.dir()
    }

    /// The config.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The files and every tensor in them.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// What is odd but does not change the reference's numbers, one sentence each. Show them:
    /// engines may be misled by what this crate only notes.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The tensors that the architecture reads, in the forward's order; all of them are there.
    pub fn expected(&self) -> &[Expected] {
        &self.expected
    }

    /// Names of the tensors that the architecture reads, in the forward's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.expected.iter().map(|e| e.name.as_str())
    }

    /// The tensor called `name`, sharing the mapped file.
    ///
    /// # Errors
    /// [`Error::Tensor`] when no file holds it.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.files.get(name).cloned().ok_or_else(|| {
            let hint = match name {
                "lm_head.weight" if self.config.tie_word_embeddings => {
                    "; the head of this model is tied to `model.embed_tokens.weight`"
                }
                _ => "",
            };
            Error::tensor(
                self.dir(),
                name.escape_debug().to_string(),
                format!("is not in the checkpoint{hint}"),
            )
        })
    }

    /// Reads every floating-point tensor and looks for NaN and infinities, in parallel.
    ///
    /// # Errors
    /// [`Error::Tensor`] for the first tensor (in the forward's order) that holds any, with the
    /// first element, their count, and the other tensors that do.
    pub fn scan_finite(&self) -> Result<()> {
        scan::finite(&self.files, &self.expected)
    }

    /// The same of the tensor called `name`, of which `most` bytes at most are in memory at a time.
    ///
    /// # Errors
    /// [`Error::Tensor`] when it holds any.
    pub fn scan_finite_of(&self, name: &str, most: usize) -> Result<()> {
        scan::finite_one(&self.files, name, most)
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = plural(self.expected.len(), "tensor");
        write!(f, "Checkpoint({}, {}, {tensors})", self.dir().display(), self.config.architecture)
    }
}
