//! Builds of a kernel that store the same bits are judged once: a judgement is a function of the runs
//! and the options alone, and MFMA and MMAC builds differ in where registers lie and not in what they
//! add.

use std::sync::{Arc, Mutex, PoisonError};

use assay_reference::Tensor;
use sha2::{Digest, Sha256};

use crate::judge::{Judgement, Observation, Options, judge};

type Key = [u8; 32];

/// The latest judgement, with everything that it was made from, hashed.
static LATEST: Mutex<Option<(Key, Judgement)>> = Mutex::new(None);

/// As [`judge`]; the latest judgement again where it was of the same runs.
pub(super) fn judge_once(
    op: &str,
    runs: &[Observation],
    options: Options,
) -> assay_reference::Result<Judgement> {
    let key = key(op, runs, options);
    let latest = || LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, judgement)) = latest().as_ref().filter(|(known, _)| *known == key) {
        return Ok(judgement.clone());
    }
    let judgement = judge(op, runs, options)?;
    *latest() = Some((key, judgement.clone()));
    Ok(judgement)
}

fn key(op: &str, runs: &[Observation], options: Options) -> Key {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(format!("{op} {options:?}").as_bytes());
    for (i, run) in runs.iter().enumerate() {
        add(format!("{} {}", run.label, run.structured).as_bytes());
        add_tensor(&mut add, "output", &run.output);
        // Runs on one case follow each other and share it.
        if i > 0 && Arc::ptr_eq(&run.case, &runs[i - 1].case) {
            add(b"the same case");
            continue;
        }
        let case = &run.case;
        let (op, family, dtype) = (&case.op, &case.family, case.dtype);
        add(format!("{op} {family} {dtype} {} {}", case.seed, case.params).as_bytes());
        case.tensors.iter().for_each(|(name, tensor)| add_tensor(&mut add, name, tensor));
    }
    hash.finalize().into()
}

fn add_tensor(add: &mut impl FnMut(&[u8]), name: &str, tensor: &Tensor) {
    add(format!("{name} {} {:?}", tensor.dtype(), tensor.shape()).as_bytes());
    add(tensor.bytes());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use assay_reference::ops::Scope;

    use super::*;
    use crate::families;
    use crate::judge::Unseen;
    use crate::subject::Subject;
    use crate::subject::native::Native;

    /// Whatever a judgement depends on makes it another one: the latest is never handed on.
    #[test]
    fn a_judgement_is_kept_for_the_very_same_runs_only() {
        let options =
            Options { scope: Scope::Kernel, unseen: Unseen::Nothing, preset: None, known: None };
        let right: Vec<Observation> = families::power_cases("add", 1)
            .into_iter()
            .take(2)
            .map(|g| Observation {
                output: Native::new("add").run(&g.case).expect("runs"),
                case: Arc::new(g.case),
                label: g.label,
                structured: g.structured,
            })
            .collect();
        let mut wrong_bit = right.clone();
        let first = wrong_bit[0].output.to_f64()[0];
        wrong_bit[0].output = wrong_bit[0].output.map(|i, y| if i == 0 { first + 1e3 } else { y });
        let mut other_case = right.clone();
        let mut case = (*other_case[1].case).clone();
        let a = case.tensors["a"].map(|_, x| x + 64.0);
        case.tensors.insert("a".into(), a);
        other_case[1].case = Arc::new(case);
        let mut structured = right.clone();
        structured.iter_mut().for_each(|run| run.structured = !run.structured);
        let mut label = right.clone();
        label[0].label.push('!');
        let framework = Options { scope: Scope::Framework, ..options };
        for (runs, options) in [
            (&right, options),
            (&wrong_bit, options),
            (&right, options),
            (&other_case, options),
            (&structured, options),
            (&label, options),
            (&right, framework),
            (&right, options),
        ] {
            let once = judge_once("add", runs, options).expect("runs of the op");
            assert_eq!(once, judge("add", runs, options).expect("runs of the op"));
        }
        let passes = |runs| judge_once("add", runs, options).expect("runs").verdict.is_pass();
        assert!(passes(&right) && !passes(&wrong_bit) && !passes(&other_case));
    }
}
