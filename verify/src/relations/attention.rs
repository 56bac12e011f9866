//! Relations of `attention`.

use assay_reference::{Case, Tensor};

use super::edit::{by_columns, by_rows, gather, same, scaled, turned, with};
use super::{Demand, Kind, Relation};
use crate::families::relation_cases;

pub(super) fn relations(seed: u64) -> Vec<Relation> {
    let [chunk, single] = relation_cases::attention(seed);
    let mut out = vec![
        constant(&chunk),
        scaled(&chunk, "v", 8.0, chunk.tensors["q"].len()),
        past(&chunk),
        last_alone(&chunk),
        heads(&chunk),
        keys(&single),
    ];
    out.push(constant(&single));
    out
}

/// [T, H, D] of a tensor.
fn sizes(t: &Tensor) -> [usize; 3] {
    [t.shape()[0], t.shape()[1], t.shape()[2]]
}

/// Weights sum to 1: v = 1 gives 1, in whatever way they are rounded.
fn constant(case: &Case) -> Relation {
    Relation {
        kind: Kind::Constant,
        what: "v of ones gives ones".into(),
        base: case.clone(),
        changed: with(case, "v", |v| v.map(|_, _| 1.0)),
        demand: Demand::Bounded,
    }
}

/// Other queries, keys and values from the last position on leave all earlier ones as they were.
fn past(case: &Case) -> Relation {
    let [t, hq, d] = sizes(&case.tensors["q"]);
    let last = |t: &Tensor| {
        let from = (t.shape()[0] - 1) * t.shape()[1] * t.shape()[2];
        t.map(move |i, x| if i < from { x } else { 3.0 - 2.0 * x })
    };
    let mut changed = case.clone();
    for name in ["q", "k", "v"] {
        changed = with(&changed, name, last);
    }
    Relation {
        kind: Kind::Causality,
        what: "another last position leaves the earlier ones as they are".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: same((t - 1) * hq * d), by: 1.0 },
    }
}

/// The last query alone over the same keys.
fn last_alone(case: &Case) -> Relation {
    let [t, hq, d] = sizes(&case.tensors["q"]);
    Relation {
        kind: Kind::Batch,
        what: "the last query alone has the bits that it has in the chunk".into(),
        base: case.clone(),
        changed: with(case, "q", |q| gather(q, 0, &[t - 1])),
        demand: Demand::Equal { pairs: by_rows(&[t - 1], hq * d), by: 1.0 },
    }
}

/// kv heads in another order, with their query heads.
fn heads(case: &Case) -> Relation {
    let ([t, hq, d], [_, hkv, _]) = (sizes(&case.tensors["q"]), sizes(&case.tensors["k"]));
    let group = hq / hkv;
    let kv: Vec<usize> = (0..hkv).rev().collect();
    let q: Vec<usize> = kv.iter().flat_map(|h| (0..group).map(move |i| h * group + i)).collect();
    let mut changed = with(case, "q", |t| gather(t, 1, &q));
    for name in ["k", "v"] {
        changed = with(&changed, name, |t| gather(t, 1, &kv));
    }
    let columns: Vec<usize> = q.iter().flat_map(|h| (0..d).map(move |i| h * d + i)).collect();
    Relation {
        kind: Kind::Permutation,
        what: "kv heads in another order, with their query heads, permute the output".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: by_columns(t, &columns), by: 1.0 },
    }
}

/// One query sees all keys: their order does not matter, up to rounding.
fn keys(case: &Case) -> Relation {
    let order = turned(case.tensors["k"].shape()[0]);
    let mut changed = case.clone();
    for name in ["k", "v"] {
        changed = with(&changed, name, |t| gather(t, 0, &order));
    }
    Relation {
        kind: Kind::Permutation,
        what: "keys and values in another order give one query the same output".into(),
        base: case.clone(),
        changed,
        demand: Demand::Near { pairs: same(case.tensors["q"].len()) },
    }
}
