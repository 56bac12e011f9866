//! Relations of what works on rows: `rms_norm`, `softmax`, `argmax`, `embedding`.

use assay_reference::Case;

use super::edit::{by_columns, by_rows, gather, same, scaled, turned, with};
use super::{Demand, Kind, Relation};
use crate::families::relation_cases;

/// The last row of input `name` alone.
fn alone(case: &Case, name: &str) -> Relation {
    let (rows, cols) = (case.tensors[name].shape()[0], case.tensors[name].cols());
    Relation {
        kind: Kind::Batch,
        what: "a row alone has the bits that it has in the batch".into(),
        base: case.clone(),
        changed: with(case, name, |x| gather(x, 0, &[rows - 1])),
        demand: Demand::Equal { pairs: by_rows(&[rows - 1], cols), by: 1.0 },
    }
}

/// The columns of the inputs `names` in another order, up to the rounding of a sum.
fn columns(case: &Case, names: &[&str]) -> Relation {
    let x = &case.tensors["x"];
    let order = turned(x.cols());
    let mut changed = case.clone();
    for name in names {
        let axis = case.tensors[*name].shape().len() - 1;
        changed = with(&changed, name, |t| gather(t, axis, &order));
    }
    Relation {
        kind: Kind::Permutation,
        what: "columns in another order permute the output".into(),
        base: case.clone(),
        changed,
        demand: Demand::Near { pairs: by_columns(x.rows(), &order) },
    }
}

pub(super) fn rms_norm(seed: u64) -> Vec<Relation> {
    let case = relation_cases::rms_norm(seed);
    let n = case.tensors["x"].len();
    vec![scaled(&case, "weight", 4.0, n), alone(&case, "x"), columns(&case, &["x", "weight"])]
}

pub(super) fn softmax(seed: u64) -> Vec<Relation> {
    let case = relation_cases::softmax(seed);
    let shifted = Relation {
        kind: Kind::Shift,
        what: "scores plus 1000 give the same weights".into(),
        base: case.clone(),
        // Scores are multiples of 1/8 in f32: the shift is exact.
        changed: with(&case, "x", |x| x.map(|_, x| x + 1000.0)),
        demand: Demand::Equal { pairs: same(case.tensors["x"].len()), by: 1.0 },
    };
    vec![shifted, alone(&case, "x"), columns(&case, &["x"])]
}

pub(super) fn argmax(seed: u64) -> Vec<Relation> {
    let case = relation_cases::argmax(seed);
    let v = case.tensors["x"].cols();
    let order = turned(v);
    // Column c holds what was in order[c].
    let mut to = vec![0; v];
    order.iter().enumerate().for_each(|(c, from)| to[*from] = c);
    let moved = Relation {
        kind: Kind::Permutation,
        what: "logits in another order have their largest at its new place".into(),
        base: case.clone(),
        changed: with(&case, "x", |x| gather(x, 1, &order)),
        demand: Demand::Relabelled { to },
    };
    let rows = case.tensors["x"].shape()[0];
    let shifted = Relation {
        kind: Kind::Shift,
        what: "logits plus 64 have the same largest".into(),
        base: case.clone(),
        changed: with(&case, "x", |x| x.map(|_, x| x + 64.0)),
        demand: Demand::Equal { pairs: same(rows), by: 1.0 },
    };
    vec![moved, shifted]
}

pub(super) fn embedding(seed: u64) -> Vec<Relation> {
    let case = relation_cases::embedding(seed);
    let (n, h) = (case.tensors["ids"].len(), case.tensors["weight"].cols());
    let order = turned(n);
    let ids = Relation {
        kind: Kind::Permutation,
        what: "ids in another order permute the rows".into(),
        base: case.clone(),
        changed: with(&case, "ids", |ids| gather(ids, 0, &order)),
        demand: Demand::Equal { pairs: by_rows(&order, h), by: 1.0 },
    };
    vec![ids, scaled(&case, "weight", 2.0, n * h)]
}
