//! The matrix: rows, and what they say together.

use std::path::Path;

use serde::Serialize;

use super::{Changes, plural};
use crate::audit::{Audit, Item};
use crate::finding::Finding;

/// Why a suspect is convicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Stable code, `A431`.
    pub code: String,
    /// Stable name, `config.head_dim`.
    pub name: String,
    /// File and field, or the probes.
    pub r#where: String,
    /// What is wrong, with the numbers.
    pub what: String,
    /// What to do.
    pub advice: String,
}

impl From<&Item> for Evidence {
    fn from(item: &Item) -> Evidence {
        Evidence {
            code: item.code.into(),
            name: item.name.into(),
            r#where: item.r#where.clone(),
            what: item.what.clone(),
            advice: item.advice.into(),
        }
    }
}

impl Evidence {
    /// A finding of a bisect's own kinds.
    pub(super) fn own(name: &str, place: impl Into<String>, what: impl Into<String>) -> Evidence {
        let known = super::code(name);
        let (code, advice) = known.map_or(("", ""), |c| (c.code, c.advice));
        Evidence {
            code: code.into(),
            name: name.into(),
            r#where: place.into(),
            what: what.into(),
            advice: advice.into(),
        }
    }

    /// What the judge found at some probes.
    pub(super) fn found(finding: &Finding, place: String, advice: String) -> Evidence {
        let Finding { code, name, text } = finding.clone();
        Evidence { code, name, r#where: place, what: text, advice }
    }

    /// Whether nobody knows what it is.
    pub fn is_unexplained(&self) -> bool {
        ["unexplained", "ill_conditioned"].contains(&self.name.as_str())
    }
}

/// How an experiment ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Outcome {
    /// It was tested and is right, within the limits.
    Cleared {
        /// By what.
        by: String,
        /// What the experiment could not have seen.
        limits: Vec<String>,
    },
    /// It is wrong.
    Convicted {
        /// Why; several faults can be there at once.
        evidence: Vec<Evidence>,
    },
    /// It was not tested, which clears nothing.
    NotTestable {
        /// What would be needed.
        needs: String,
    },
}

impl Outcome {
    /// `Cleared`, `CONVICTED`, `not testable`.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Cleared { .. } => "cleared",
            Outcome::Convicted { .. } => "CONVICTED",
            Outcome::NotTestable { .. } => "not testable",
        }
    }

    /// The evidence of a conviction.
    pub fn evidence(&self) -> &[Evidence] {
        match self {
            Outcome::Convicted { evidence } => evidence,
            _ => &[],
        }
    }
}

/// One suspect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The suspect.
    pub suspect: &'static str,
    /// What was done about it.
    pub experiment: &'static str,
    /// What the experiment costs.
    pub cost: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Row {
    pub(super) fn new(
        suspect: &'static str,
        experiment: &'static str,
        cost: &'static str,
        outcome: Outcome,
    ) -> Row {
        Row { suspect, experiment, cost, outcome }
    }
}

/// The report of a bisect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bisect {
    /// The folder of the model.
    pub model: String,
    /// What is wrong, in one line.
    pub headline: String,
    /// What happened, in one paragraph.
    pub story: String,
    /// What to do, in this order.
    pub actions: Vec<String>,
    /// What was changed in a copy of the config to be able to go on.
    #[serde(skip_serializing_if = "Changes::is_empty")]
    pub mended: Changes,
    /// Every suspect, the cheapest experiment first.
    pub suspects: Vec<Row>,
}

/// The most faults that the headline and the story tell; the rows have all.
const TOLD: usize = 6;

impl Bisect {
    pub(super) fn new(dir: &Path, suspects: Vec<Row>, mended: Changes, audit: &Audit) -> Bisect {
        let model = dir.display().to_string();
        let mut bisect = Bisect {
            model,
            headline: String::new(),
            story: String::new(),
            actions: Vec::new(),
            mended,
            suspects,
        };
        bisect.headline = bisect.one_line();
        bisect.story = bisect.paragraph(audit);
        bisect.actions = bisect.what_to_do();
        bisect
    }

    /// All evidence, in the order of the rows.
    pub fn evidence(&self) -> impl Iterator<Item = &Evidence> {
        self.suspects.iter().flat_map(|r| r.outcome.evidence())
    }

    /// Symptoms are evidence that something is wrong, not of what.
    fn causes(&self) -> impl Iterator<Item = (&Row, &Evidence)> {
        let all =
            self.suspects.iter().flat_map(|r| r.outcome.evidence().iter().map(move |e| (r, e)));
        all.filter(|(_, e)| !is_symptom(&e.name))
    }

    fn with(&self, word: &str) -> Vec<&'static str> {
        self.suspects.iter().filter(|r| r.outcome.word() == word).map(|r| r.suspect).collect()
    }

    fn one_line(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for (_, e) in self.causes() {
            let name = format!("{} at {}", e.name, e.r#where);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let more = names.len().saturating_sub(TOLD);
        names.truncate(TOLD);
        let list = names.join("; ");
        match (names.len() + more, more) {
            (0, _) if self.evidence().next().is_some() => {
                "wrong, and no suspect that could be tested explains it".into()
            }
            (0, _) => "nothing convicted".into(),
            (1, _) => format!("one fault: {list}"),
            (n, 0) => format!("{n} findings: {list}"),
            (n, more) => format!("{n} findings: {list}; and {more} more"),
        }
    }

    fn paragraph(&self, audit: &Audit) -> String {
        let mut text = String::new();
        let kind = audit.architecture.as_deref().unwrap_or("a model that is not understood");
        text += &format!("{} is {kind}. ", self.model);
        for e in self.evidence().filter(|e| is_symptom(&e.name)) {
            text += &format!("The symptom: {}. ", sentence(&e.what));
        }
        let convicted: Vec<&Row> =
            self.suspects.iter().filter(|r| !r.outcome.evidence().is_empty()).collect();
        let mut told = 0;
        for row in &convicted {
            let causes: Vec<&Evidence> =
                row.outcome.evidence().iter().filter(|e| !is_symptom(&e.name)).collect();
            for e in causes {
                if told < TOLD {
                    let and = if told == 0 { "" } else { "Independently of that, " };
                    let what = sentence(&e.what);
                    text += &format!("{and}{} ({} {}): {what}. ", e.r#where, e.code, e.name);
                }
                told += 1;
            }
        }
        if told > TOLD {
            text += &format!("{} more are listed below. ", plural(told - TOLD, "finding"));
        }
        if told > 1 {
            text += "Repairing one of them leaves the others: repair all, then run this again. ";
        }
        if !self.mended.is_empty() {
            text += &format!(
                "To see what lies behind it, the rest was judged with {}. ",
                self.mended.0.join("; ")
            );
        }
        let (cleared, untested) = (self.with("cleared"), self.with("not testable"));
        if !cleared.is_empty() {
            text += &format!("Cleared: {}. ", cleared.join(", "));
        }
        if told == 0 && self.evidence().next().is_none() {
            text += "Nothing is convicted: what was tested is right, for the inputs that it was tested on. ";
        }
        if !untested.is_empty() {
            text += &format!(
                "Not testable with what was given, and so not cleared: {}.",
                untested.join(", ")
            );
        }
        text.trim_end().to_string()
    }

    fn what_to_do(&self) -> Vec<String> {
        let mut actions: Vec<String> = Vec::new();
        let mut add = |text: String| {
            if !text.is_empty() && !actions.contains(&text) {
                actions.push(text);
            }
        };
        for (_, e) in self.causes() {
            add(format!("{} {}, {}: {}", e.code, e.name, e.r#where, e.advice));
        }
        let caused = self.causes().next().is_some();
        for e in self.evidence().filter(|e| is_symptom(&e.name) && !caused) {
            add(format!("{} {}: {}", e.code, e.name, e.advice));
        }
        if caused {
            add("Then run this command again: what is repaired must be cleared, and a second fault may show".into());
        }
        for row in &self.suspects {
            if let Outcome::NotTestable { needs } = &row.outcome {
                add(format!("To test {}: {needs}", row.suspect));
            }
        }
        actions
    }
}

/// Names of findings that say that something is wrong and not what.
fn is_symptom(name: &str) -> bool {
    const SERVER: &[&str] = &[
        "server.logits_not_finite",
        "server.logits_constant",
        "server.collapsed",
        "server.wrong",
        "server.unlikely_tokens",
    ];
    SERVER.contains(&name) || name.starts_with("logits.") || name.starts_with("answer.")
}

/// The beginning of a text, up to where its figures begin, without its full stop.
fn sentence(text: &str) -> String {
    const LONGEST: usize = 260;
    let first = text.split(". ").next().unwrap_or(text).trim_end_matches('.');
    let mut short: String = first.chars().take(LONGEST).collect();
    if short.len() < first.len() {
        short += "...";
    }
    short
}
