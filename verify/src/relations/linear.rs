//! Relations of `matmul`, of the dequantisations, and of the linear layers over quantised weights.

use assay_reference::Case;

use super::edit::{by_columns, by_rows, gather, same, scaled, turned, with};
use super::{Demand, Kind, Relation};
use crate::families::relation_cases;

pub(super) fn matmul(seed: u64) -> Vec<Relation> {
    let [case, biased] = relation_cases::matmul(seed);
    let outputs_of = |case: &Case| case.tensors["weight"].shape()[0];
    let (m, n) = (case.tensors["x"].shape()[0], outputs_of(&case));
    let mut out = vec![
        scaled(&case, "x", 8.0, m * n),
        scaled(&case, "weight", 0.25, m * n),
        terms(&case),
        outputs(&biased),
    ];
    out.extend(rows_of_x(&biased, outputs_of(&biased)));
    out
}

/// Tokens are independent of each other: alone, and in another order.
fn rows_of_x(case: &Case, n: usize) -> Vec<Relation> {
    let m = case.tensors["x"].shape()[0];
    let order = turned(m);
    vec![
        Relation {
            kind: Kind::Batch,
            what: "a row alone has the bits that it has in the batch".into(),
            base: case.clone(),
            changed: with(case, "x", |x| gather(x, 0, &[m - 1])),
            demand: Demand::Equal { pairs: by_rows(&[m - 1], n), by: 1.0 },
        },
        Relation {
            kind: Kind::Batch,
            what: "rows in another order permute the output".into(),
            base: case.clone(),
            changed: with(case, "x", |x| gather(x, 0, &order)),
            demand: Demand::Equal { pairs: by_rows(&order, n), by: 1.0 },
        },
    ]
}

/// The terms of the sum in another order.
fn terms(case: &Case) -> Relation {
    let (m, k) = (case.tensors["x"].shape()[0], case.tensors["x"].cols());
    let n = case.tensors["weight"].shape()[0];
    let order = turned(k);
    let changed = with(case, "x", |x| gather(x, 1, &order));
    Relation {
        kind: Kind::Permutation,
        what: "the terms of the sum in another order give the same sum".into(),
        base: case.clone(),
        changed: with(&changed, "weight", |w| gather(w, 1, &order)),
        demand: Demand::Near { pairs: same(m * n) },
    }
}

/// The rows of the weight, and the bias, in another order.
fn outputs(case: &Case) -> Relation {
    let (m, n) = (case.tensors["x"].shape()[0], case.tensors["weight"].shape()[0]);
    let order = turned(n);
    let mut changed = case.clone();
    for name in ["weight", "bias"] {
        changed = with(&changed, name, |t| gather(t, 0, &order));
    }
    Relation {
        kind: Kind::Permutation,
        what: "outputs in another order permute the output".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: by_columns(m, &order), by: 1.0 },
    }
}

/// The tensor of the scales.
fn scales(op: &str) -> &'static str {
    match op.split('_').next() {
        Some("ct") => "weight_scale",
        Some("fp8") => "weight_scale_inv",
        _ => "scales",
    }
}

/// Scales times a power of two are the weights times it: nothing else is rounded.
pub(super) fn dequant(op: &str, seed: u64) -> Vec<Relation> {
    let (case, n) = relation_cases::layer(op, seed);
    vec![scaled(&case, scales(op), 2.0, n), scaled(&case, scales(op), 0.5, n)]
}

pub(super) fn gemm(op: &str, seed: u64) -> Vec<Relation> {
    let (mut case, outputs) = relation_cases::layer(op, seed);
    let n = outputs / case.tensors["x"].shape()[0];
    let mut out = rows_of_x(&case, n);
    // A bias does not scale.
    case.tensors.remove("bias");
    out.push(scaled(&case, "x", 4.0, outputs));
    out.push(scaled(&case, scales(op), 2.0, outputs));
    out
}
