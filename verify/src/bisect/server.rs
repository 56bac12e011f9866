//! What a probe of the running server found, as far as a bisect needs it.

use super::Given;
use super::report::{Evidence, Outcome, Row};

/// What a probe says of one suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Right, and by what it was seen.
    Right(String),
    /// Wrong, and why.
    Wrong(Vec<Evidence>),
    /// Not told, and what would be needed.
    Unknown(String),
}

/// A probe's findings, by suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEvidence {
    /// The server's address.
    pub url: String,
    /// The state of its logits: finite, constant, collapsed.
    pub logits: Answer,
    /// Prompts on both sides of sizes at which engines choose another kernel.
    pub lengths: Answer,
    /// Its token ids and prompts against the checkpoint's tokenizer and template.
    pub template: Answer,
    /// Its log-probabilities against legitimate forwards, and the wrong forward that explains them.
    pub forward: Answer,
}

impl Answer {
    /// The outcome of a suspect's row.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Answer::Right(by) => Outcome::Cleared { by: by.clone(), limits: Vec::new() },
            Answer::Wrong(evidence) => Outcome::Convicted { evidence: evidence.clone() },
            Answer::Unknown(needs) => Outcome::NotTestable { needs: needs.clone() },
        }
    }
}

fn asked(given: &Given<'_>, of: impl Fn(&ServerEvidence) -> &Answer, needs: &str) -> Outcome {
    match given.server {
        Some(server) => of(server).outcome(),
        None => Outcome::NotTestable { needs: needs.into() },
    }
}

/// Dispatch boundaries.
pub(super) fn lengths(given: &Given<'_>) -> Row {
    Row::new(
        "dispatch boundaries",
        "the same service with prompts of 1, 8, 9, 24, 25, 49, 50, 51, 64 tokens",
        "a minute of the server",
        asked(
            given,
            |s| &s.lengths,
            "the running server, probed at lengths on both sides of its thresholds",
        ),
    )
}

/// The server's log-probabilities.
pub(super) fn answers(given: &Given<'_>) -> Row {
    Row::new(
        "the server's log-probabilities",
        "teacher-forced log-probabilities against legitimate forwards of the reference",
        "a minute of the server, a forward here",
        asked(given, |s| &s.forward, "the running server, with logprobs"),
    )
}
