//! The prompt: what the service made of a conversation against what the model's template makes of it.

use std::path::Path;

use super::ServerEvidence;
use super::report::{Evidence, Outcome, Row};
use crate::template::Comparison;

/// The rendered conversation beside what the service used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Compared.
    Compared(Vec<Comparison>),
    /// The model's own files do not render it, and why.
    NotRendered(String),
}

/// The row of the prompt: what was captured, and what the server says of conversations.
pub(super) fn row(dir: &Path, prompt: Option<&Prompt>, server: Option<&ServerEvidence>) -> Row {
    let mut seen: Vec<Outcome> = Vec::new();
    seen.extend(prompt.map(|p| match p {
        Prompt::Compared(comparisons) => compared(comparisons),
        Prompt::NotRendered(why) => Outcome::NotTestable {
            needs: format!("a template and a tokenizer that render this conversation: {why}"),
        },
    }));
    seen.extend(server.map(|s| s.template.outcome()));
    let outcome = seen.into_iter().reduce(both).unwrap_or_else(|| Outcome::NotTestable {
        needs: format!(
            "a conversation and the prompt that the service made of it (--messages F --captured F), or a server with /tokenize (--server URL); `assay template {} --messages F` prints what it must be",
            dir.display()
        ),
    });
    Row::new(
        "prompt as the service renders it",
        "bytes and ids against the model's own template and tokenizer",
        "seconds, and one line of the server's log",
        outcome,
    )
}

/// Two looks at the same suspect: what either of them shows counts.
fn both(a: Outcome, b: Outcome) -> Outcome {
    use Outcome::{Cleared, Convicted, NotTestable};
    match (a, b) {
        (Convicted { evidence: a }, Convicted { evidence: b }) => {
            Convicted { evidence: [a, b].concat() }
        }
        (one @ Convicted { .. }, _) | (_, one @ Convicted { .. }) => one,
        (Cleared { by: a, limits: x }, Cleared { by: b, limits: y }) => {
            Cleared { by: format!("{a}; {b}"), limits: [x, y].concat() }
        }
        (Cleared { by, mut limits }, NotTestable { needs })
        | (NotTestable { needs }, Cleared { by, mut limits }) => {
            limits.push(needs);
            Cleared { by, limits }
        }
        (NotTestable { needs: a }, NotTestable { needs: b }) => {
            NotTestable { needs: format!("{a}; {b}") }
        }
    }
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
