//! Names that earlier calls of an op ended with.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::explain::Key;

/// What an op's earlier calls were explained by. A kernel that is wrong in one layer is mostly wrong in the same
/// way in the others, and a judge tries these names before the catalogue. Judge the calls in one order, or
/// reports depend on threads.
#[derive(Debug, Default)]
pub struct Known(Mutex<BTreeMap<String, Vec<Key>>>);

impl Known {
    /// The names by op, in order.
    pub(super) fn of(&self, op: &str) -> Vec<Key> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(op).cloned().unwrap_or_default()
    }

    pub(super) fn add(&self, op: &str, keys: &[Key]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(op.to_string()).or_default();
        known.extend(keys.iter().cloned());
        known.sort();
        known.dedup();
    }
}
