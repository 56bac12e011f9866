//! Relations of `rope`.

use assay_reference::{Case, Tensor};

use super::edit::{by_rows, gather, scaled, with};
use super::{Demand, Kind, Relation};
use crate::families::relation_cases;

pub(super) fn relations(seed: u64) -> Vec<Relation> {
    let mut out = Vec::new();
    for (case, factor) in relation_cases::rope(seed) {
        let x = &case.tensors["x"];
        let norms = Relation {
            kind: Kind::Norm,
            what: "each pair keeps its norm, times the attention factor".into(),
            base: case.clone(),
            changed: case.clone(),
            demand: Demand::Norms { factor },
        };
        out.extend([norms, scaled(&case, "x", 4.0, x.len()), last_alone(&case)]);
    }
    let case = relation_cases::rope_pair(seed);
    let shift = |by: i32| {
        move |p: &Tensor| {
            let moved: Vec<i32> = (0..p.len()).map(|i| p.get_i64(i) as i32 + by).collect();
            Tensor::from_i32(p.shape(), &moved)
        }
    };
    // Across the powers of two at which tables end, where f32 still holds the angle well.
    for by in [40, 4_090] {
        out.push(Relation {
            kind: Kind::RelativePosition,
            what: format!("a query and a key that both move by {by} positions keep their product"),
            base: case.clone(),
            changed: with(&case, "positions", shift(by)),
            demand: Demand::Products,
        });
    }
    out
}

/// The last token alone.
pub(super) fn last_alone(case: &Case) -> Relation {
    let x = &case.tensors["x"];
    let (t, row) = (x.shape()[0], x.len() / x.shape()[0]);
    let mut changed = case.clone();
    for name in ["x", "positions"] {
        changed = with(&changed, name, |tensor| gather(tensor, 0, &[t - 1]));
    }
    Relation {
        kind: Kind::Batch,
        what: "the last token alone has the bits that it has in the batch".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: by_rows(&[t - 1], row), by: 1.0 },
    }
}
