//! Source edits of a kernel: mutants, which must be found, and controls, which must pass.

use serde::Deserialize;

use crate::error::Error;
use crate::matrix::Matrix;

/// Text of a kernel source and what takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Replacement {
    /// Occurs exactly once in the source.
    pub anchor: String,
    /// What takes its place.
    pub replacement: String,
}

/// A named edit of a kernel source.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SourceEdit {
    /// Unique among the kernel's edits.
    pub name: String,
    /// The place that the edit is about.
    #[serde(flatten)]
    pub at: Replacement,
    /// What has to change with it.
    #[serde(default)]
    pub also: Vec<Replacement>,
    /// The build that it is about.
    #[serde(default)]
    pub matrix: Matrix,
    /// What the edited kernel does, in words.
    pub description: String,
}

/// A kernel with one bug.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Mutant {
    /// The bug.
    #[serde(flatten)]
    pub edit: SourceEdit,
    /// The fault (`op.slug`) or memory finding (`memory.slug`) that must name it.
    pub expect: String,
}

/// All edits of a kernel, as `mutants.toml` lists them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Edits {
    #[serde(rename = "mutant", default)]
    pub(crate) mutants: Vec<Mutant>,
    #[serde(rename = "control", default)]
    pub(crate) controls: Vec<SourceEdit>,
}

/// Applies an edit to a kernel source.
///
/// # Errors
/// [`Error::Anchor`] when an anchor does not occur exactly once in `source`.
pub fn mutate(source: &str, edit: &SourceEdit) -> Result<String, Error> {
    let replacements = std::iter::once(&edit.at).chain(&edit.also);
    for Replacement { anchor, .. } in replacements.clone() {
        let occurrences = source.matches(anchor.as_str()).count();
        if occurrences != 1 {
            return Err(Error::Anchor { edit: edit.name.clone(), occurrences });
        }
    }
    let apply = |text: String, r: &Replacement| text.replacen(&r.anchor, &r.replacement, 1);
    Ok(replacements.fold(source.to_owned(), apply))
}
