//! How `generation_config.json` wants tokens to be chosen.

use std::path::Path;

use super::fields::Fields;
use crate::checkpoint::json;
use crate::error::Result;
use crate::qwen::sample::Sampling;

/// The settings of `generation_config.json`, with transformers' defaults where it names none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Sampling settings. `do_sample` is false where the file does not say.
    pub sampling: Sampling,
    /// At most so many new tokens, if it says so.
    pub max_new_tokens: Option<usize>,
    /// Whether there is such a file.
    pub exists: bool,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `dir`, if there is one.
    ///
    /// # Errors
    /// When the file cannot be read, or a setting is of a wrong type or out of range.
    pub fn open(dir: &Path) -> Result<GenerationConfig> {
        let path = dir.join("generation_config.json");
        // What transformers takes for a setting that is not named.
        let defaults = Sampling { top_k: 50, ..Sampling::GREEDY };
        let Some(object) = json::read_optional(&path)? else {
            return Ok(GenerationConfig {
                sampling: defaults,
                max_new_tokens: None,
                exists: false,
            });
        };
        let f = Fields::new(&path, "", &object);
        let sampling = Sampling {
            do_sample: f.flag("do_sample")?.unwrap_or(false),
            temperature: f.real("temperature")?.unwrap_or(defaults.temperature),
            top_k: f.integer("top_k", 0..=1 << 24)?.map_or(defaults.top_k, |k| k as usize),
            top_p: f.real("top_p")?.unwrap_or(defaults.top_p),
            min_p: f.real("min_p")?.unwrap_or(defaults.min_p),
            repetition_penalty: f.real("repetition_penalty")?.unwrap_or(1.0),
            seed: 0,
        };
        sampling.check().map_err(|e| crate::Error::file(&path, e.to_string()))?;
        let max_new_tokens = f.integer("max_new_tokens", 1..=1 << 30)?.map(|n| n as usize);
        Ok(GenerationConfig { sampling, max_new_tokens, exists: true })
    }
}
