//! The reference itself as the subject: outputs under a convention or with a fault.

use std::sync::Arc;

use assay_reference::ops::{Basis, Op, Scope, Setup, Tile};
use assay_reference::{Case, Tensor};
use assay_verify::judge::{Judgement, Observation, Options, Unseen, judge};

/// The setup of a case under a convention given as `knob=value knob=value`; `defaults` and the empty
/// string are the defaults.
///
/// # Panics
/// When the case is not the op's, or the op has no such knob or value.
#[track_caller]
pub fn setup<O: Op>(case: &Case, convention: &str) -> Setup<O> {
    let params = case.params::<O>().expect("params of the op");
    let policy = O::policy(case.dtype);
    let mut setup = Setup::<O> { params, policy, tensors: case.tensors.clone() };
    let wanted = convention.split_whitespace().filter(|w| *w != "defaults");
    let wanted: Vec<(&str, &str)> =
        wanted.map(|w| w.split_once('=').expect("knob=value")).collect();
    let knobs = O::knobs(&setup.params);
    for (knob, value) in wanted {
        let knob = knobs.iter().find(|k| k.name == knob).expect("a knob of the op");
        let choice = knob.choices.iter().find(|c| c.value == value).expect("a value of the knob");
        (choice.edit)(&mut setup);
    }
    setup
}

/// What a subject of this setup stores when it computes over `R`.
///
/// # Panics
/// When the op refuses the tensors.
#[track_caller]
pub fn output<O: Op, R: Basis>(setup: &Setup<O>) -> Tensor {
    let spec = O::check(&setup.params, &setup.tensors).expect("a checked case").remove(0);
    let out = setup.eval::<R>(&Tile::ALL).remove(0).data;
    let stored: Vec<f64> = out.iter().map(|x| setup.policy.output.round(x.value())).collect();
    Tensor::from_f64(setup.policy.output.dtype, &spec.shape, &stored)
}

/// An observation of `output` on `case`.
pub fn observe(case: &Arc<Case>, output: Tensor, label: &str, structured: bool) -> Observation {
    Observation { case: case.clone(), output, label: label.into(), structured }
}

/// The judgement of runs, with what they cannot see left out.
///
/// # Panics
/// When a run is not of the op.
#[track_caller]
pub fn judged(op: &str, runs: &[Observation], scope: Scope) -> Judgement {
    judge(op, runs, Options { scope, unseen: Unseen::Nothing, preset: None, known: None })
        .expect("runs of the op")
}
