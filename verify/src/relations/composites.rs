//! Relations of the composites and of the paged cache.

use assay_reference::Tensor;

use super::edit::{by_rows, gather, same, scaled, turned, with};
use super::elementwise::exchanged;
use super::{Demand, Kind, Relation};
use crate::families::relation_cases::first;

pub(super) fn add_rms_norm(seed: u64) -> Vec<Relation> {
    let case = first("add_rms_norm", seed).case;
    let (rows, d) = (case.tensors["a"].shape()[0], case.tensors["a"].cols());
    let mut alone = case.clone();
    for name in ["a", "b"] {
        alone = with(&alone, name, |t| gather(t, 0, &[rows - 1]));
    }
    let alone = Relation {
        kind: Kind::Batch,
        what: "a row alone has the bits that it has in the batch".into(),
        base: case.clone(),
        changed: alone,
        demand: Demand::Equal { pairs: by_rows(&[rows - 1], d), by: 1.0 },
    };
    vec![exchanged(&case, ["a", "b"]), scaled(&case, "weight", 4.0, rows * d), alone]
}

pub(super) fn qk_norm_rope(seed: u64) -> Vec<Relation> {
    let case = first("qk_norm_rope", seed).case;
    let x = &case.tensors["x"];
    vec![scaled(&case, "weight", 4.0, x.len()), super::rope::last_alone(&case)]
}

/// Blocks in other places of the cache, with a table that says so.
pub(super) fn attention_paged(seed: u64) -> Vec<Relation> {
    let case = first("attention_paged", seed).case;
    let n = case.tensors["q"].len();
    let order = turned(case.tensors["k_cache"].shape()[0]);
    let mut changed = with(&case, "block_table", |table| {
        // Block b is now where order[that place] is b; `turned` undoes itself.
        let moved: Vec<i32> =
            (0..table.len()).map(|i| order[table.get_i64(i) as usize] as i32).collect();
        Tensor::from_i32(table.shape(), &moved)
    });
    for name in ["k_cache", "v_cache"] {
        changed = with(&changed, name, |cache| gather(cache, 0, &order));
    }
    let moved = Relation {
        kind: Kind::Permutation,
        what: "blocks in other places of the cache give the same output".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: same(n), by: 1.0 },
    };
    vec![moved, scaled(&case, "v_cache", 8.0, n)]
}

/// Tokens in another order, with their slots.
pub(super) fn kv_store(seed: u64) -> Vec<Relation> {
    let case = first("kv_store", seed).case;
    let order = turned(case.tensors["slot_mapping"].len());
    let mut changed = case.clone();
    for name in ["k", "v", "slot_mapping"] {
        changed = with(&changed, name, |t| gather(t, 0, &order));
    }
    vec![Relation {
        kind: Kind::Permutation,
        what: "tokens in another order, with their slots, leave the same cache".into(),
        base: case.clone(),
        changed,
        demand: Demand::Equal { pairs: same(case.tensors["k_cache"].len()), by: 1.0 },
    }]
}
