//! How `generation_config.json` wants tokens to be chosen.

use std::path::Path;

use super::fields::Fields;
use super::known::is_off;
use crate::checkpoint::json;
use crate::error::Result;
use crate::qwen::sample::Sampling;

/// Fields that change which tokens are chosen, unless they are off.
const REFUSED: &[&str] = &[
    "bad_words_ids",
    "begin_suppress_tokens",
    "dola_layers",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "min_length",
    "min_new_tokens",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "penalty_alpha",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "top_h",
    "watermarking_config",
];

/// The same, and 1 is off too.
const REFUSED_FACTORS: &[&str] =
    &["encoder_repetition_penalty", "guidance_scale", "num_beam_groups", "num_beams", "typical_p"];

/// Refuses what would give other tokens and is not read.
fn check_rest(f: &Fields<'_>) -> Result<()> {
    let is_on = |name: &&'static str| f.value(name).filter(|v| !is_off(v));
    let factor = |name: &&'static str| is_on(name).filter(|v| v.as_f64() != Some(1.0));
    let set = REFUSED.iter().find_map(|n| is_on(n).map(|v| (n, v)));
    match set.or_else(|| REFUSED_FACTORS.iter().find_map(|n| factor(n).map(|v| (n, v)))) {
        None => Ok(()),
        Some((name, value)) => Err(f.error(
            name,
            format!(
                "is {value}, which assay does not apply when it samples: other tokens would be \
                 chosen; remove it from a copy of the file to do without it"
            ),
        )),
    }
}

/// Fields of `generation_config.json` in `dir` that change greedy text in transformers, with their
/// values: a caller that decodes greedily without them should say so.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn changes_greedy(dir: &Path) -> Result<Vec<(String, String)>> {
    let path = dir.join("generation_config.json");
    let Some(object) = json::read_optional(&path)? else { return Ok(Vec::new()) };
    let on = |name: &str, value: &serde_json::Value| {
        let factor = REFUSED_FACTORS.contains(&name) || name == "repetition_penalty";
        let neutral = is_off(value) || factor && value.as_f64() == Some(1.0);
        !neutral && (factor || REFUSED.contains(&name))
    };
    // These act on drawn tokens only.
    let drawn = ["typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"];
    let changes = object.iter().filter(|(n, v)| on(n, v) && !drawn.contains(&n.as_str()));
    Ok(changes.map(|(n, v)| (n.clone(), v.to_string())).collect())
}

/// The settings of `generation_config.json`, with transformers' defaults where it names none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Sampling settings. `do_sample` is false where the file does not say.
    pub sampling: Sampling,
    /// At most so many new tokens, if it says so.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` in `dir`, if there is one.
    ///
    /// # Errors
    /// When the file cannot be read, or a setting is of a wrong type, out of range or not supported.
    pub fn open(dir: &Path) -> Result<GenerationConfig> {
        let path = dir.join("generation_config.json");
        // What transformers takes for a setting that is not named.
        let defaults = Sampling { top_k: 50, ..Sampling::GREEDY };
        let Some(object) = json::read_optional(&path)? else {
            return Ok(GenerationConfig { sampling: defaults, max_new_tokens: None });
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
        check_rest(&f)?;
        let max_new_tokens = f.integer("max_new_tokens", 1..=1 << 30)?.map(|n| n as usize);
        Ok(GenerationConfig { sampling, max_new_tokens })
    }
}
