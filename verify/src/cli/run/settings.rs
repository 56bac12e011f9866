//! How tokens are chosen: greedily, or as generation_config.json and the flags say.

use std::path::Path;

use assay_reference::checkpoint::GenerationConfig;
use assay_reference::checkpoint::config::changes_greedy;
use assay_reference::qwen::Sampling;
use clap::Args;

use crate::cli::say;

/// Tokens to generate when nothing else is said.
const GENERATE: usize = 32;

/// Flags of sampling.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Draw tokens, with the settings of generation_config.json and, where it has none, transformers' (temperature 1, top-k 50, top-p 1)
    #[arg(long)]
    sample: bool,
    /// Divide the logits by T; 0 is greedy
    #[arg(long, value_name = "T", requires = "sample", allow_negative_numbers = true)]
    temperature: Option<f64>,
    /// Keep the K largest logits; 0 keeps all
    #[arg(long, value_name = "K", requires = "sample")]
    top_k: Option<usize>,
    /// Keep the most likely tokens that make up probability P; 1 keeps all
    #[arg(long, value_name = "P", requires = "sample", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Keep tokens with at least P times the largest probability; 0 keeps all
    #[arg(long, value_name = "P", requires = "sample", allow_negative_numbers = true)]
    min_p: Option<f64>,
    /// Divide (negative: multiply) the logits of tokens that were seen by R; works without --sample too
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repetition_penalty: Option<f64>,
    /// Seed of the draws, for each prompt anew
    #[arg(long, value_name = "N", default_value_t = 0, requires = "sample")]
    seed: u64,
}

/// What the flags and the file come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) sampling: Sampling,
    pub(super) generate: usize,
}

impl Settings {
    pub(super) fn new(
        model: &Path,
        args: &SamplingArgs,
        generate: Option<usize>,
    ) -> anyhow::Result<Settings> {
        let mut sampling = Sampling::GREEDY;
        let mut most = GENERATE;
        if args.sample {
            let config = GenerationConfig::open(model)?;
            sampling = Sampling { do_sample: true, seed: args.seed, ..config.sampling };
            most = config.max_new_tokens.unwrap_or(most);
        }
        if !args.sample {
            for (name, value) in changes_greedy(model)? {
                let flag = match (name.as_str(), args.repetition_penalty) {
                    ("repetition_penalty", Some(_)) => continue,
                    ("repetition_penalty", None) => "; give --repetition-penalty to apply it",
                    _ => "",
                };
                let what = format!(
                    "warning: generation_config.json sets {name} to {value}, which transformers \
                     applies to greedy text too; here it is not applied{flag}\n"
                );
                say(&what, true);
            }
        }
        let set = |value: Option<f64>, field: &mut f64| *field = value.unwrap_or(*field);
        set(args.temperature, &mut sampling.temperature);
        set(args.top_p, &mut sampling.top_p);
        set(args.min_p, &mut sampling.min_p);
        set(args.repetition_penalty, &mut sampling.repetition_penalty);
        sampling.top_k = args.top_k.unwrap_or(sampling.top_k);
        sampling.check()?;
        Ok(Settings { sampling, generate: generate.unwrap_or(most) })
    }

    /// The seed, where it matters.
    pub(super) fn seed(&self) -> Option<u64> {
        (!self.sampling.is_greedy()).then_some(self.sampling.seed)
    }

    /// What people should know of it.
    pub(super) fn line(&self) -> Option<String> {
        let s = &self.sampling;
        self.seed().map(|seed| {
            format!(
                "[sampled: temperature {}, top-k {}, top-p {}, min-p {}, repetition penalty {}, \
                 seed {seed}]\n",
                s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty
            )
        })
    }
}
