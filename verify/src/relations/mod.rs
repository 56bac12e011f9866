//! Metamorphic relations: what two outputs of one subject must have to do with each other, whatever the
//! oracle says.
//!
//! A relation is data: a case, a changed case, and a demand on the outputs. Most demands are for equal
//! bits, because the change is one that exact arithmetic and every order of summation commute with: a
//! scaling by a power of two, a permutation of rows, keys of the future. Where rounding may differ, as
//! when the terms of a sum are permuted, the difference is held to the bounds of both outputs.

mod attention;
mod composites;
mod demand;
mod edit;
mod elementwise;
mod linear;
mod moe;
mod rope;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use assay_reference::ops::Scope;
use assay_reference::{Case, Error, Result};

pub use demand::Demand;

use crate::finding::Finding;
use crate::judge::Observation;
use crate::subject::Subject;

/// What kind of relation it is; each has a finding of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A factor of a power of two on an input is one on the output.
    Scale,
    /// A permutation of the input is one of the output, or changes nothing.
    Permutation,
    /// What comes later does not change what came before.
    Causality,
    /// A row alone has the bits that it has in a batch.
    Batch,
    /// Averages of one value are that value.
    Constant,
    /// A rotation keeps the norm of each pair.
    Norm,
    /// Rotated queries and keys depend on the distance of their positions only.
    RelativePosition,
    /// A common shift of all scores changes nothing.
    Shift,
    /// The operands may be exchanged.
    Commutativity,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 9] = [
        Kind::Scale,
        Kind::Permutation,
        Kind::Causality,
        Kind::Batch,
        Kind::Constant,
        Kind::Norm,
        Kind::RelativePosition,
        Kind::Shift,
        Kind::Commutativity,
    ];

    /// The finding's name.
    pub fn finding(self) -> &'static str {
        match self {
            Kind::Scale => "relation.scale",
            Kind::Permutation => "relation.permutation",
            Kind::Causality => "relation.causality",
            Kind::Batch => "relation.batch_invariance",
            Kind::Constant => "relation.constant_value",
            Kind::Norm => "relation.pair_norm",
            Kind::RelativePosition => "relation.relative_position",
            Kind::Shift => "relation.shift",
            Kind::Commutativity => "relation.commutativity",
        }
    }
}

/// One relation.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Its kind.
    pub kind: Kind,
    /// What is changed and what is demanded: `v times 8 gives the output times 8`.
    pub what: String,
    /// The case.
    pub base: Case,
    /// The changed case.
    pub changed: Case,
    /// What the outputs must fulfil.
    pub demand: Demand,
}

/// The relations of an op, drawn from a seed, within the contracts of its kernels; empty where it has
/// none.
pub fn of(op: &str, seed: u64) -> Vec<Relation> {
    match op {
        "attention" => attention::relations(seed),
        "matmul" => linear::matmul(seed),
        "gptq_dequant" | "awq_dequant" | "ct_dequant" | "fp8_dequant" => linear::dequant(op, seed),
        "gptq_gemm" | "awq_gemm" | "ct_gemm" | "fp8_gemm" => linear::gemm(op, seed),
        "rms_norm" => rows::rms_norm(seed),
        "softmax" => rows::softmax(seed),
        "argmax" => rows::argmax(seed),
        "embedding" => rows::embedding(seed),
        "rope" => rope::relations(seed),
        "silu_mul" => elementwise::silu_mul(seed),
        "add" => elementwise::add(seed),
        "all_reduce" => elementwise::all_reduce(seed),
        "all_gather" => elementwise::all_gather(seed),
        "moe_route" => moe::route(seed),
        "moe_experts" => moe::experts(seed),
        "add_rms_norm" => composites::add_rms_norm(seed),
        "qk_norm_rope" => composites::qk_norm_rope(seed),
        "attention_paged" => composites::attention_paged(seed),
        "kv_store" => composites::kv_store(seed),
        _ => Vec::new(),
    }
}

/// What a subject claims, which decides which relations it must fulfil.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// Whether a row alone has the bits that it has in a batch.
    pub batch_invariant: bool,
    /// Whose conventions are legitimate.
    pub scope: Scope,
}

/// Runs a subject on the relations of its op whose cases it takes: one finding a kind that does not
/// hold, or whose cases it cannot run though it takes them.
///
/// # Errors
/// When an output is not the op's.
pub fn check(subject: &dyn Subject, seed: u64, claims: Claims) -> Result<Vec<Finding>> {
    check_all(subject, &of(subject.op(), seed), claims)
}

/// The same on given relations of the subject's op.
///
/// # Errors
/// As [`check`].
pub fn check_all(
    subject: &dyn Subject,
    relations: &[Relation],
    claims: Claims,
) -> Result<Vec<Finding>> {
    let mut findings: Vec<Finding> = Vec::new();
    for relation in relations {
        let name = relation.kind.finding();
        let claimed = relation.kind != Kind::Batch || claims.batch_invariant;
        let taken = subject.takes(&relation.base) && subject.takes(&relation.changed);
        if !claimed || !taken || findings.iter().any(|f| f.name == name) {
            continue;
        }
        let broken = match relation.broken(subject, claims.scope) {
            // Of the subject's own run: what was seen of its other cases is not lost for it.
            Err(e @ Error::Request(_)) => Some(e.to_string()),
            other => other?,
        };
        if let Some(broken) = broken {
            findings.push(Finding::new(name, format!("{}: {broken}", relation.what)));
        }
    }
    Ok(findings)
}

impl Relation {
    /// How a subject breaks the relation, if it does.
    ///
    /// # Errors
    /// When the subject cannot run a case.
    pub fn broken(&self, subject: &dyn Subject, scope: Scope) -> Result<Option<String>> {
        let run = |case: &Case, which: &str| {
            Ok::<_, assay_reference::Error>(Observation {
                case: Arc::new(case.clone()),
                output: subject.run(case)?,
                label: format!("{} ({which})", self.what),
                structured: false,
            })
        };
        let changed = run(&self.changed, "changed")?;
        if !self.demand.compares() {
            return self.demand.broken(&changed, &changed, scope);
        }
        self.demand.broken(&run(&self.base, "base")?, &changed, scope)
    }
}
