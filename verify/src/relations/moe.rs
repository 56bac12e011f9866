//! Relations of `moe_route` and `moe_experts`.

use assay_reference::Case;

use super::edit::{by_columns, by_rows, gather, same, turned, with};
use super::{Demand, Kind, Relation};
use crate::families::relation_cases;

/// Tokens in another order, and the last one alone.
fn tokens(case: &Case, names: &[&str], cols: usize) -> Vec<Relation> {
    let t = case.tensors[names[0]].shape()[0];
    let take = |rows: &[usize], what: &str| {
        let mut changed = case.clone();
        for name in names {
            changed = with(&changed, name, |x| gather(x, 0, rows));
        }
        Relation {
            kind: Kind::Batch,
            what: what.into(),
            base: case.clone(),
            changed,
            demand: Demand::Equal { pairs: by_rows(rows, cols), by: 1.0 },
        }
    };
    vec![
        take(&turned(t), "tokens in another order permute the output"),
        take(&[t - 1], "a token alone has the bits that it has in the batch"),
    ]
}

pub(super) fn route(seed: u64) -> Vec<Relation> {
    let case = relation_cases::moe_route(seed);
    let logits = &case.tensors["logits"];
    let (rows, e) = (logits.rows(), logits.cols());
    let order = turned(e);
    let mut out = tokens(&case, &["logits"], e);
    out.push(Relation {
        kind: Kind::Permutation,
        what: "experts in another order permute their weights".into(),
        base: case.clone(),
        changed: with(&case, "logits", |t| gather(t, 1, &order)),
        demand: Demand::Near { pairs: by_columns(rows, &order) },
    });
    out.push(Relation {
        kind: Kind::Shift,
        what: "logits plus 64 give the same weights".into(),
        base: case.clone(),
        // Logits are multiples of 1/8 in f32: the shift is exact.
        changed: with(&case, "logits", |t| t.map(|_, x| x + 64.0)),
        demand: Demand::Equal { pairs: same(rows * e), by: 1.0 },
    });
    out
}

pub(super) fn experts(seed: u64) -> Vec<Relation> {
    let case = relation_cases::moe_experts(seed);
    let h = case.tensors["x"].cols();
    let mut out = tokens(&case, &["x", "routing"], h);
    out.push(reordered(&case, h));
    out
}

/// Experts in another order, with their routing weights.
fn reordered(case: &Case, h: usize) -> Relation {
    let (t, e) = (case.tensors["routing"].rows(), case.tensors["routing"].cols());
    let order = turned(e);
    let mut changed = with(case, "routing", |r| gather(r, 1, &order));
    for (to, from) in order.iter().enumerate() {
        for module in ["gate_proj", "up_proj", "down_proj"] {
            let name = |e: usize| format!("experts.{e}.{module}.weight");
            changed.tensors.insert(name(to), case.tensors[&name(*from)].clone());
        }
    }
    Relation {
        kind: Kind::Permutation,
        what: "experts in another order, with their weights, give the same sum".into(),
        base: case.clone(),
        changed,
        demand: Demand::Near { pairs: same(t * h) },
    }
}
