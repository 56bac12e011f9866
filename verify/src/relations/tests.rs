//! The reference fulfils every relation; what breaks one is found.

use assay_reference::ops::{self, Erased, Op, Scope, Tile};
use assay_reference::{Case, Result, Tensor};

use super::{Claims, Kind, check, of};
use crate::subject::Subject;

const CLAIMS: Claims = Claims { batch_invariant: true, scope: Scope::Kernel };

/// The reference in f32, with a catalogued fault or without.
struct Reference {
    op: &'static str,
    fault: Option<&'static str>,
}

impl Subject for Reference {
    fn op(&self) -> &str {
        self.op
    }

    fn run(&self, case: &Case) -> Result<Tensor> {
        let (mut setup, outputs) = Erased::open(case)?;
        let faults = Erased::faults(&setup.params, &setup.tensors);
        if let Some(fault) = faults.iter().find(|f| self.fault == Some(f.slug)) {
            (fault.edit)(&mut setup);
        }
        let rounding = Erased::rounding(&setup.params, &setup.policy, 0);
        let out = setup.eval::<f32>(&Tile::ALL).swap_remove(0).data;
        let out: Vec<f64> = out.iter().map(|x| rounding.round(f64::from(*x))).collect();
        Ok(Tensor::from_f64(rounding.dtype, &outputs[0].shape, &out))
    }
}

#[test]
fn the_reference_fulfils_every_relation() {
    for op in ops::NAMES {
        let found = check(&Reference { op, fault: None }, 2, CLAIMS).expect("runs");
        assert_eq!(found, Vec::new(), "{op}");
    }
}

#[test]
fn what_breaks_a_relation_is_found() {
    for (op, fault, kind) in [
        ("attention", "mask_missing", Kind::Causality),
        ("attention", "mask_upper_left", Kind::Batch),
        ("attention", "probs_truncated", Kind::Constant),
        ("attention", "kv_head_modulo", Kind::Permutation),
        ("matmul", "bias_by_row", Kind::Batch),
        ("rope", "attention_factor_ignored", Kind::Norm),
        ("rope", "pairing_adjacent", Kind::Norm),
        ("argmax", "last_dropped", Kind::Permutation),
        ("silu_mul", "operands_swapped", Kind::Scale),
        ("add", "block_dropped", Kind::Commutativity),
        ("all_reduce", "rank_dropped", Kind::Commutativity),
        ("all_gather", "ranks_reversed", Kind::Permutation),
        ("moe_route", "first_chosen", Kind::Permutation),
        ("moe_experts", "last_expert_dropped", Kind::Permutation),
        ("gptq_gemm", "bias_by_row", Kind::Batch),
    ] {
        let found = check(&Reference { op, fault: Some(fault) }, 1, CLAIMS).expect("runs");
        let names: Vec<&str> = found.iter().map(|f| f.name.as_str()).collect();
        assert!(names.contains(&kind.finding()), "{op} {fault}: {names:?}");
    }
}

#[test]
fn a_subject_that_claims_no_batch_invariance_is_not_held_to_it() {
    let subject = Reference { op: "matmul", fault: Some("bias_by_row") };
    let claims = Claims { batch_invariant: false, ..CLAIMS };
    let found = check(&subject, 1, claims).expect("runs");
    assert!(found.iter().all(|f| f.name != Kind::Batch.finding()), "{found:?}");
}

#[test]
fn every_op_has_relations() {
    for op in ops::NAMES {
        assert!(!of(op, 1).is_empty(), "{op}");
    }
}
