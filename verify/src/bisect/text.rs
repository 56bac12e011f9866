//! The prompt: what the service made of a conversation against what the model's template makes of it.

use std::path::Path;

use super::ServerEvidence;
use super::report::{Evidence, Outcome, Row};
use super::server::Answer;
use crate::template::Comparison;

/// Comparisons of the rendered conversation with what the service used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt(pub Vec<Comparison>);

/// The row of the prompt.
pub(super) fn row(dir: &Path, prompt: Option<&Prompt>, server: Option<&ServerEvidence>) -> Row {
    let outcome = match (prompt, server.map(|s| &s.template)) {
        (Some(Prompt(comparisons)), _) if !comparisons.is_empty() => compared(comparisons),
        (_, Some(answer)) if !matches!(answer, Answer::Unknown(_)) => answer.outcome(),
        _ => Outcome::NotTestable {
            needs: format!(
                "a conversation and the prompt that the service made of it (--messages F --captured F); `assay template {} --messages F` prints what it must be",
                dir.display()
            ),
        },
    };
    Row::new(
        "prompt as the service renders it",
        "bytes and ids against the model's own template and tokenizer",
        "seconds, and one line of the server's log",
        outcome,
    )
}

fn compared(comparisons: &[Comparison]) -> Outcome {
    let evidence: Vec<Evidence> =
        comparisons.iter().filter_map(|c| c.finding.as_ref()).map(Evidence::from).collect();
    if !evidence.is_empty() {
        return Outcome::Convicted { evidence };
    }
    let of: Vec<String> =
        comparisons.iter().map(|c| format!("{}: the same {}", c.with, c.of)).collect();
    Outcome::Cleared { by: of.join("; "), limits: Vec::new() }
}
