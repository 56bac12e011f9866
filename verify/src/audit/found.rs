//! What an audit has found so far, and its report.

use std::collections::BTreeMap;
use std::path::Path;

use assay_reference::checkpoint::Config;
use serde::Serialize;

use super::codes;
use super::files::Files;
use super::hash::Hash;
use super::tensors;

/// A finding of an audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Item {
    /// Stable code, `A431`.
    pub code: &'static str,
    /// Stable name, `config.head_dim`.
    pub name: &'static str,
    /// File, and the field or tensor in it.
    pub r#where: String,
    /// What is wrong, with the numbers.
    pub what: String,
    /// Why it matters.
    pub why: &'static str,
    /// How it would look when served.
    pub served: &'static str,
    /// What to do.
    pub advice: &'static str,
    #[serde(skip)]
    rank: usize,
}

impl Item {
    /// A finding with a name of [`codes`](super::codes()).
    ///
    /// # Panics
    /// When there is no such name (a programming error).
    pub(crate) fn new(name: &str, place: impl Into<String>, what: impl Into<String>) -> Item {
        let (rank, code) =
            codes::named(name).unwrap_or_else(|| panic!("`{name}` has no code: add it to codes"));
        let codes::Code { code, name, why, served, advice } = *code;
        let (place, what) = (clean(&place.into(), 400), clean(&what.into(), 2000));
        Item { code, name, r#where: place, what, why, served, advice, rank }
    }
}

/// What an audit can fail to look at altogether, so that no finding of it says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind {
    /// The tensors that the architecture needs.
    Tensors,
    /// The packed tensors against their description.
    Quantisation,
    /// The tokenizer, and with it the end tokens and the template's special tokens.
    Tokenizer,
}

/// The report of an audit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Audit {
    /// The folder.
    pub model: String,
    /// What is wrong, the most decisive first.
    pub findings: Vec<Item>,
    /// What is odd and changes nothing by itself.
    pub notes: Vec<String>,
    /// What was not checked, and why.
    pub unchecked: Vec<String>,
    /// Those of them that leave a whole subject unchecked.
    #[serde(skip)]
    pub blind: Vec<(Blind, String)>,
    /// The released model that the config was compared with, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The architecture, as tensors and config together say.
    pub architecture: Option<String>,
    /// Weight files that were read.
    pub shards: usize,
    /// Tensors in them.
    pub tensors: usize,
    /// Bytes of the weight files.
    pub bytes: u64,
    /// Parameters of the architecture; a packed weight counts as many as it stands for.
    pub parameters: Option<u64>,
    /// With `--hash`: the files' hashes.
    pub hashes: Vec<Hash>,
}

/// Collects findings.
#[derive(Debug)]
pub(super) struct Found {
    model: String,
    items: Vec<Item>,
    notes: Vec<String>,
    unchecked: Vec<String>,
    blind: Vec<(Blind, String)>,
    /// The released model that the config was compared with.
    pub(super) release: Option<String>,
    /// What was not kept, by kind: names of findings, `notes`, `not checked`.
    more: BTreeMap<String, usize>,
}

/// The most findings of one kind that are listed: a folder can hold any number of damaged files.
const MOST: usize = 50;

impl Found {
    pub(super) fn new(dir: &Path) -> Found {
        let model = dir.display().to_string();
        let (items, notes, unchecked, blind) = Default::default();
        Found { model, items, notes, unchecked, blind, release: None, more: BTreeMap::new() }
    }

    /// Adds a finding.
    pub(super) fn add(&mut self, name: &str, place: impl Into<String>, what: impl Into<String>) {
        if self.items.iter().filter(|i| i.name == name).count() < MOST {
            self.items.push(Item::new(name, place, what));
        } else {
            self.left_out(name);
        }
    }

    /// Adds what is odd and changes nothing by itself.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        if self.notes.len() < MOST {
            self.notes.push(clean(&text.into(), 2000));
        } else {
            self.left_out("notes");
        }
    }

    /// Adds what was not checked, and why.
    pub(super) fn unchecked(&mut self, text: impl Into<String>) {
        if self.unchecked.len() < MOST {
            self.unchecked.push(clean(&text.into(), 2000));
        } else {
            self.left_out("lines about what was not checked");
        }
    }

    /// Adds that a whole subject was not checked, and why.
    pub(super) fn blind(&mut self, subject: Blind, text: impl Into<String>) {
        let text = text.into();
        self.unchecked(text.as_str());
        self.blind.push((subject, text));
    }

    fn left_out(&mut self, kind: &str) {
        *self.more.entry(kind.to_owned()).or_default() += 1;
    }

    /// Whether something was found whose name begins with one of `prefixes`.
    pub(super) fn any(&self, prefixes: &[&str]) -> bool {
        self.items.iter().any(|i| prefixes.iter().any(|p| i.name.starts_with(p)))
    }

    pub(super) fn finish(
        mut self,
        files: &Files,
        config: Option<&Config>,
        hashes: Vec<Hash>,
    ) -> Audit {
        self.items.sort_by_key(|i| i.rank);
        self.notes.extend(
            self.more
                .iter()
                .map(|(kind, n)| format!("and {n} more {kind} than the {MOST} that are listed")),
        );
        Audit {
            model: self.model,
            findings: self.items,
            notes: self.notes,
            unchecked: self.unchecked,
            blind: self.blind,
            release: self.release,
            architecture: config.map(|c| c.architecture.to_string()),
            shards: files.shards.len(),
            tensors: files.tensors.len(),
            bytes: files.shards.iter().map(|s| s.len).sum(),
            parameters: config.map(|c| tensors::parameters(c).0),
            hashes,
        }
    }
}

/// A text with what a file put into it: without control characters, and of a bounded length.
fn clean(text: &str, longest: usize) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut out: String = text.chars().take(longest).map(shown).collect();
    if text.chars().nth(longest).is_some() {
        out += "...";
    }
    out
}

/// At most five of `names`, quoted, and how many more there are.
pub(crate) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 5;
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(SHOWN).map(quoted).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A name from a file, without control characters and of a bounded length.
pub(super) fn quoted(name: &str) -> String {
    const LONGEST: usize = 120;
    let text: String = name.chars().take(LONGEST).collect();
    let more = if text.len() < name.len() { "..." } else { "" };
    format!("`{}{more}`", text.escape_debug())
}

/// `1 tensor`, `2 tensors`.
pub(super) fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
