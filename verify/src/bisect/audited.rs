//! Suspects that need no forward: what an audit says of each.

use super::report::{Evidence, Outcome, Row};
use super::unchecked;
use crate::audit::{Audit, Blind, Options};

/// A suspect, its experiment and cost, and how the names of its findings begin.
struct Suspect {
    suspect: &'static str,
    experiment: &'static str,
    cost: &'static str,
    prefixes: &'static [&'static str],
    /// Words of what an audit says that it did not check.
    limits: &'static [&'static str],
}

const SUSPECTS: &[Suspect] = &[
    Suspect {
        suspect: "files",
        experiment: "lengths against headers and index, names, missing and partial files",
        cost: "seconds, headers only",
        prefixes: &["file.", "index."],
        limits: &["hashes"],
    },
    Suspect {
        suspect: "tensors",
        experiment: "every tensor that the architecture needs, its shape and dtype, none unread",
        cost: "seconds, headers only",
        prefixes: &["tensor.", "data."],
        limits: &["values of the weights", "tensors against"],
    },
    Suspect {
        suspect: "config against the tensors",
        experiment: "head_dim, heads, widths, layers, tie, dtype, rotation against shapes",
        cost: "seconds",
        prefixes: &["config."],
        limits: &[],
    },
    Suspect {
        suspect: "config against released models",
        experiment: "each field against the published config of this name; parameters against the name",
        cost: "seconds",
        prefixes: &["release.", "name."],
        limits: &["release"],
    },
    Suspect {
        suspect: "quantisation metadata",
        experiment: "method, bits, groups, v1 or v2, g_idx and zero points against the data",
        cost: "seconds",
        prefixes: &["quant."],
        limits: &["quant", "packed", "zero point"],
    },
    Suspect {
        suspect: "tokenizer and end tokens",
        experiment: "ids against the head's rows; end tokens of three files",
        cost: "seconds",
        prefixes: &["tokenizer.", "eos.", "generation_config."],
        limits: &["tokenizer"],
    },
    Suspect {
        suspect: "chat template",
        experiment: "there, one, renderable, its special tokens known to the tokenizer",
        cost: "seconds",
        prefixes: &["template."],
        limits: &["template"],
    },
];

/// A row for each, from one audit.
pub(super) fn rows(audit: &Audit, options: Options) -> Vec<Row> {
    SUSPECTS.iter().map(|s| row(s, audit, options)).collect()
}

fn row(s: &Suspect, audit: &Audit, options: Options) -> Row {
    let evidence: Vec<Evidence> = audit
        .findings
        .iter()
        .filter(|i| s.prefixes.iter().any(|p| i.name.starts_with(p)))
        .map(Evidence::from)
        .collect();
    let outcome = if !evidence.is_empty() {
        Outcome::Convicted { evidence }
    } else if let Some(needs) = blind(s, audit) {
        Outcome::NotTestable { needs }
    } else {
        let by = match s.suspect {
            "files" if options.hash => "every length and hash is as stated".into(),
            "files" => "every length is as stated".into(),
            "tensors" if options.data => format!("{} tensors, every value read", audit.tensors),
            "tensors" => format!("{} tensors, as the architecture needs them", audit.tensors),
            _ => "nothing contradicts it".into(),
        };
        Outcome::Cleared { by, limits: unchecked(audit, s.limits) }
    };
    Row::new(s.suspect, s.experiment, s.cost, outcome)
}

/// What a suspect lacks to be tested at all.
fn blind(s: &Suspect, audit: &Audit) -> Option<String> {
    let why = |subject: Blind| {
        audit
            .blind
            .iter()
            .find(|(b, _)| *b == subject)
            .map(|(_, text)| format!("a checkpoint of which this does not hold: {text}"))
    };
    match s.suspect {
        "config against released models" if audit.release.is_none() => Some(
            "a folder that is called like a released model: no published config of this name is known".into(),
        ),
        "tensors" => why(Blind::Tensors),
        "quantisation metadata" => why(Blind::Quantisation),
        "tokenizer and end tokens" | "chat template" => {
            why(Blind::Tokenizer).map(|_| "tokenizer.json in the folder".into())
        }
        _ => None,
    }
}
