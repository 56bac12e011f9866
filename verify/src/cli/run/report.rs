//! The run's part of the JSON report (docs/json_report.md).

use std::collections::BTreeMap;
use std::path::PathBuf;

use assay_reference::checkpoint::Tokenizer;
use assay_reference::qwen::generate::{Generation, Stop};
use assay_reference::qwen::sample::{LogitState, Sampling};
use serde::Serialize;

use super::prompts::Prompt;

/// What `assay run` reports.
#[derive(Debug, Serialize)]
pub(super) struct Body {
    pub(super) preset: &'static str,
    pub(super) basis: &'static str,
    pub(super) tp: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reduce: Option<&'static str>,
    /// Prompt tokens in a call; 0 is all of them.
    pub(super) chunk: usize,
    pub(super) sampling: How,
    /// In the prompts' order.
    pub(super) runs: Vec<One>,
}

/// How tokens were chosen.
#[derive(Debug, Serialize)]
pub(super) struct How {
    greedy: bool,
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    repetition_penalty: f64,
}

impl From<Sampling> for How {
    fn from(s: Sampling) -> How {
        How {
            greedy: s.is_greedy(),
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            repetition_penalty: s.repetition_penalty,
        }
    }
}

/// One prompt's run.
#[derive(Debug, Serialize)]
pub(super) struct One {
    prompt: Option<String>,
    prompt_ids: Vec<u32>,
    pub(super) ids: Vec<u32>,
    text: Option<String>,
    stop: Option<StopReason>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) logprobs: Vec<Choice>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top: Vec<Logit>,
    broken: Vec<Broken>,
    /// New tokens that the tokenizer does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    undecodable: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trace: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum StopReason {
    Eos { token: u32 },
    Length,
}

/// A token with the log probability of the plain softmax; null where that is not finite.
#[derive(Debug, Serialize)]
pub(super) struct Choice {
    pub(super) token: u32,
    pub(super) text: Option<String>,
    pub(super) logprob: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) best: Vec<Choice>,
}

/// A token's logit; null where that is not finite.
#[derive(Debug, Serialize)]
pub(super) struct Logit {
    pub(super) token: u32,
    pub(super) text: Option<String>,
    pub(super) logit: f64,
}

/// A step whose logits are broken.
#[derive(Debug, Serialize)]
struct Broken {
    step: usize,
    logits: String,
}

impl Broken {
    fn of(step: usize, state: LogitState) -> Option<Broken> {
        state.trouble().map(|logits| Broken { step, logits })
    }
}

impl One {
    /// A run that generated nothing.
    pub(super) fn of_logits(prompt: &Prompt, top: Vec<Logit>, state: LogitState) -> One {
        One {
            prompt: prompt.text.clone(),
            prompt_ids: prompt.ids.clone(),
            ids: Vec::new(),
            text: None,
            stop: None,
            logprobs: Vec::new(),
            top,
            broken: Broken::of(0, state).into_iter().collect(),
            undecodable: Vec::new(),
            trace: None,
        }
    }

    pub(super) fn of_generation(
        prompt: &Prompt,
        out: Generation,
        text: Option<String>,
        tokenizer: Option<&Tokenizer>,
    ) -> One {
        let name = |id: u32| tokenizer.and_then(|t| t.decode(&[id]).ok());
        let choice = |token, logprob, best| Choice { token, text: name(token), logprob, best };
        let logprobs = out.logprobs.into_iter().map(|step| {
            let best = step.best.into_iter().map(|(id, x)| choice(id, x, Vec::new()));
            choice(step.token, step.logprob, best.collect())
        });
        let unknown = |id: &u32| tokenizer.is_some_and(|t| t.token(*id).is_none());
        One {
            prompt: prompt.text.clone(),
            prompt_ids: prompt.ids.clone(),
            undecodable: out.tokens.iter().copied().filter(unknown).collect(),
            ids: out.tokens,
            text,
            stop: Some(match out.stop {
                Stop::Eos(token) => StopReason::Eos { token },
                Stop::Length => StopReason::Length,
            }),
            logprobs: logprobs.collect(),
            top: Vec::new(),
            broken: out.broken.into_iter().filter_map(|(i, s)| Broken::of(i, s)).collect(),
            trace: None,
        }
    }

    pub(super) fn is_broken(&self) -> bool {
        !self.broken.is_empty() || !self.undecodable.is_empty()
    }

    pub(super) fn stopped_by(&self) -> String {
        match &self.stop {
            Some(StopReason::Eos { token }) => format!("end token {token}"),
            Some(StopReason::Length) | None => "length".into(),
        }
    }

    /// A sentence for each way in which logits are broken.
    pub(super) fn findings(&self) -> Vec<String> {
        let mut kinds: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for b in &self.broken {
            let kind = b.logits.split(" (").next().unwrap_or_default();
            kinds.entry(kind).or_default().push(b.step);
        }
        let sentence = |(kind, steps): (&str, Vec<usize>)| {
            let (first, n) = (steps[0], steps.len());
            format!(
                "the logits are {kind} at step {first}{}: the text means nothing; record a trace \
                 and diff it to find the op",
                if n > 1 { format!(" and {} more", n - 1) } else { String::new() }
            )
        };
        let mut all: Vec<String> = kinds.into_iter().map(sentence).collect();
        if let Some(first) = self.undecodable.first() {
            all.push(format!(
                "the model chose token {first}, which its tokenizer does not have ({} of {} new \
                 tokens): the head has more rows than there are tokens, and a sound model never \
                 picks those",
                self.undecodable.len(),
                self.ids.len()
            ));
        }
        all
    }
}
