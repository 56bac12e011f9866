//! The suite's own version: evidence counts only for the suite that gave it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use assay_reference::ops::{self, Op, Visitor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::evidence::update;
use crate::families;

/// What an op was checked with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Version of assay.
    pub assay: String,
    /// sha256 of the op's cases under seed 1 and of its catalogue of conventions and faults: a case or
    /// a fault more is another suite.
    pub cases: String,
}

impl Suite {
    /// This build's suite for an op.
    pub fn of(op: &str) -> Suite {
        static KNOWN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
        let known = || KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = known().get(op).cloned();
        let cases = found.unwrap_or_else(|| {
            let made = hash(op);
            known().insert(op.into(), made.clone());
            made
        });
        Suite { assay: env!("CARGO_PKG_VERSION").into(), cases }
    }
}

fn hash(op: &str) -> String {
    let mut hash = Sha256::new();
    for text in ops::visit(op, Catalogue).unwrap_or_default() {
        line(&mut hash, &text);
    }
    for g in families::cases(op, 1).into_iter().chain(families::f32_cases(op, 1)) {
        let case = &g.case;
        let text = format!("{} {} {} {}", g.label, g.structured, case.params, case.dtype);
        line(&mut hash, &text);
        for (name, tensor) in &case.tensors {
            line(&mut hash, name);
            update(&mut hash, tensor);
        }
    }
    format!("{:x}", hash.finalize())
}

/// Text with its length, so that no two lists hash alike.
fn line(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

struct Catalogue;

impl Visitor for Catalogue {
    type Out = Vec<String>;

    fn visit<O: Op>(self) -> Vec<String> {
        let mut lines = Vec::new();
        for (params, tensors) in families::kernel_examples::<O>(O::NAME) {
            lines.extend(O::knobs(&params).iter().map(|knob| format!("{knob:?}")));
            let faults = O::faults(&params, &tensors);
            lines.extend(faults.iter().map(|f| format!("{} {} {}", f.code, f.slug, f.key)));
        }
        lines
    }
}
