//! Relations of `silu_mul`, `add`, `all_reduce` and `all_gather`.

use assay_reference::Case;

use super::edit::{by_columns, gather, same, scaled, times, turned, with};
use super::{Demand, Kind, Relation};
use crate::families::relation_cases;

/// Two inputs exchanged.
pub(super) fn exchanged(case: &Case, [a, b]: [&str; 2]) -> Relation {
    let mut changed = case.clone();
    let first = case.tensors[a].clone();
    changed.tensors.insert(a.into(), case.tensors[b].clone());
    changed.tensors.insert(b.into(), first);
    Relation {
        kind: Kind::Commutativity,
        what: format!("{a} and {b} may be exchanged"),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: same(case.tensors[a].len()), by: 1.0 },
    }
}

/// All inputs times `by`.
fn all_scaled(case: &Case, names: &[&str], by: f64) -> Relation {
    let mut changed = case.clone();
    for name in names {
        changed = with(&changed, name, times(by));
    }
    Relation {
        kind: Kind::Scale,
        what: format!("all inputs times {by} give the output times {by}"),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: same(case.tensors[names[0]].len()), by },
    }
}

/// Columns of all inputs in another order: elements do not depend on their place.
fn columns(case: &Case, names: &[&str]) -> Relation {
    let first = &case.tensors[names[0]];
    let order = turned(first.cols());
    let mut changed = case.clone();
    for name in names {
        changed = with(&changed, name, |t| gather(t, 1, &order));
    }
    Relation {
        kind: Kind::Permutation,
        what: "columns in another order permute the output".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: by_columns(first.rows(), &order), by: 1.0 },
    }
}

pub(super) fn silu_mul(seed: u64) -> Vec<Relation> {
    let case = relation_cases::silu_mul(seed);
    let n = case.tensors["up"].len();
    let up = scaled(&case, "up", 8.0, n);
    vec![up, scaled(&case, "up", -1.0, n), columns(&case, &["gate", "up"])]
}

pub(super) fn add(seed: u64) -> Vec<Relation> {
    let case = relation_cases::add(seed);
    let both = ["a", "b"];
    vec![
        exchanged(&case, both),
        all_scaled(&case, &both, -1.0),
        all_scaled(&case, &both, 4.0),
        columns(&case, &both),
    ]
}

pub(super) fn all_reduce(seed: u64) -> Vec<Relation> {
    let case = relation_cases::all_reduce(seed);
    let both = ["part.0", "part.1"];
    vec![exchanged(&case, both), all_scaled(&case, &both, -2.0), columns(&case, &both)]
}

pub(super) fn all_gather(seed: u64) -> Vec<Relation> {
    let case = relation_cases::all_gather(seed);
    let [a, b] = ["part.0", "part.1"].map(|p| case.tensors[p].cols());
    let rows = case.tensors["part.0"].rows();
    let mut changed = case.clone();
    let first = case.tensors["part.0"].clone();
    changed.tensors.insert("part.0".into(), case.tensors["part.1"].clone());
    changed.tensors.insert("part.1".into(), first);
    let order: Vec<usize> = (a..a + b).chain(0..a).collect();
    vec![Relation {
        kind: Kind::Permutation,
        what: "two ranks exchanged exchange their columns".into(),
        base: case,
        changed,
        demand: Demand::Equal { pairs: by_columns(rows, &order), by: 1.0 },
    }]
}
