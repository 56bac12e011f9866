//! The catalogue: every convention and every fault of every op and of the forward, with what it means and
//! where it was seen.

use assay_reference::ops::{self, Op, Visitor, sources};
use assay_reference::qwen::variant;
use serde::Serialize;

use crate::families;
use crate::finding;

/// Whether a variant is legitimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Legitimate.
    Convention,
    /// Wrong.
    Fault,
}

impl Kind {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Convention => "convention",
            Kind::Fault => "fault",
        }
    }
}

/// One row of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variant {
    /// Whether it is legitimate.
    pub kind: Kind,
    /// The op, or `forward`.
    pub op: &'static str,
    /// A convention's `knob=value`, a fault's slug.
    pub name: String,
    /// A fault's finding code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Of a convention, whether it is the knob's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,
    /// Of a convention, whether it is legitimate only in a framework's eager forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework_only: Option<bool>,
    /// The keys of a fault with a parameter.
    pub keys: Vec<String>,
    /// What it means; of a fault with a parameter, with the first key's.
    pub description: String,
    /// Where it was seen, or how it was derived and what misses it. Empty when nobody wrote it down,
    /// which a test forbids.
    pub source: &'static str,
}

/// What the whole model is called among the ops.
pub const FORWARD: &str = "forward";

/// All variants of an op or of the forward, conventions first, each once; `None` when there is no such op.
pub fn of(op: &str) -> Option<Vec<Variant>> {
    if op == FORWARD { Some(forward()) } else { ops::visit(op, List) }
}

/// The wrong forwards. Their forms depend on the model.
fn forward() -> Vec<Variant> {
    let row = |e: &variant::Entry| Variant {
        kind: Kind::Fault,
        op: FORWARD,
        name: e.slug.to_string(),
        code: Some(e.code),
        default: None,
        framework_only: None,
        keys: Vec::new(),
        description: e.summary.to_string(),
        source: e.source,
    };
    variant::catalogue().map(row).collect()
}

/// All variants of all ops.
pub fn all() -> Vec<Variant> {
    ops::NAMES.iter().chain([&FORWARD]).filter_map(|op| of(op)).flatten().collect()
}

struct List;

impl Visitor for List {
    type Out = Vec<Variant>;

    fn visit<O: Op>(self) -> Vec<Variant> {
        let mut rows = conventions::<O>();
        rows.extend(faults::<O>());
        rows
    }
}

fn conventions<O: Op>() -> Vec<Variant> {
    let mut rows: Vec<Variant> = Vec::new();
    for knob in families::examples::<O>().iter().flat_map(|(params, _)| O::knobs(params)) {
        for (i, choice) in knob.choices.iter().enumerate() {
            let name = format!("{}={}", knob.name, choice.value);
            if rows.iter().any(|row| row.name == name) {
                continue;
            }
            let known = sources::of_choice(O::NAME, &name);
            rows.push(Variant {
                kind: Kind::Convention,
                op: O::NAME,
                code: None,
                default: Some(i == 0),
                framework_only: Some(choice.framework_only),
                keys: Vec::new(),
                description: known.map_or(String::new(), |c| c.meaning.to_string()),
                source: known.map_or("", |c| c.source),
                name,
            });
        }
    }
    rows
}

fn faults<O: Op>() -> Vec<Variant> {
    let mut rows: Vec<Variant> = Vec::new();
    for fault in finding::catalogue::<O>() {
        let row = rows.iter_mut().find(|r| r.code == Some(fault.code) && r.name == fault.slug);
        match row {
            Some(row) if !row.keys.contains(&fault.key) => row.keys.push(fault.key),
            Some(_) => {}
            None => rows.push(Variant {
                kind: Kind::Fault,
                op: O::NAME,
                name: fault.slug.to_string(),
                code: Some(fault.code),
                default: None,
                framework_only: None,
                keys: Some(fault.key).filter(|key| !key.is_empty()).into_iter().collect(),
                description: fault.detail,
                source: sources::of_fault(fault.code).unwrap_or(""),
            }),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_variant_has_a_description_and_a_source() {
        let rows = all();
        for row in &rows {
            let what = format!("{} {} {}", row.op, row.name, row.code.unwrap_or(""));
            assert!(!row.description.is_empty(), "{what} has no description");
            assert!(!row.source.is_empty(), "{what} has no row in reference/src/ops/sources");
            let keys: BTreeSet<_> = row.keys.iter().collect();
            assert_eq!(keys.len(), row.keys.len(), "{what}: {:?}", row.keys);
        }
        let names: BTreeSet<_> = rows.iter().map(|r| (r.op, &r.name, r.code)).collect();
        assert_eq!(names.len(), rows.len(), "a variant twice");
        assert!(rows.iter().any(|r| r.kind == Kind::Convention) && rows.len() > 300);
    }

    /// No source outlives its variant.
    #[test]
    fn every_source_is_of_a_variant() {
        let rows = all();
        let codes: BTreeSet<_> = rows.iter().filter_map(|r| r.code).collect();
        let stale: Vec<_> = sources::codes().filter(|code| !codes.contains(code)).collect();
        assert!(stale.is_empty(), "{stale:?}");
        for (op, choice) in sources::choices() {
            // A composite of a model split over ranks, or with scales, is not among the examples.
            let there = rows.iter().any(|r| r.op == op && r.name == choice);
            assert!(there || op == "moe_experts", "{op} has no {choice}");
        }
    }
}
