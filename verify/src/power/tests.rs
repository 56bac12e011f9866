//! What is counted, on subjects whose figures are known beforehand.

use assay_reference::{Case, Error, Result};

use super::{OpPower, Settings, Stored, measure, own};
use crate::subject::native::Native;

fn settings() -> Settings {
    Settings { trials: Some(2), legitimate: 6, faults: Vec::new(), seed: 3 }
}

fn measured(run: &(dyn Fn(&Native, &Case) -> Result<Stored> + Sync)) -> OpPower {
    measure("silu_mul", &settings(), run, &|_| {}).expect("cases of silu_mul")
}

#[test]
fn the_reference_as_its_own_subject_is_caught_and_silent() {
    let out = measure("add", &settings(), &own::run, &|_| {}).expect("cases of add");
    assert!(out.is_good(), "{:#?}", out.faults.iter().find(|f| !f.is_caught()));
    assert!(out.alarms.suite.trials >= 6 && out.upper95 < 0.4);
    assert!(out.faults.len() >= 5 && out.conventions.len() == 1);
    assert!(out.faults.iter().all(|f| f.total.suite.trials >= 2 && !f.families.is_empty()));
}

/// A fault that the subject does not have is not caught, whatever the cases are.
#[test]
fn a_fault_that_shows_nowhere_counts_as_missed() {
    let sound = |n: &Native, c: &Case| own::run(&Native { fault: None, ..n.clone() }, c);
    let out = measured(&sound);
    assert!(out.faults.iter().all(|f| f.not_shown == f.total.suite.trials && !f.is_caught()));
    assert_eq!(out.detection.suite.hits, 0);
    assert!(!out.is_good() && out.conventions.iter().all(|c| c.total.suite.hits == 0));
}

#[test]
fn what_no_subject_has_is_missing_and_not_good() {
    let none = |n: &Native, c: &Case| match &n.fault {
        Some(_) => Err(Error::Request("not implemented".into())),
        None => own::run(n, c),
    };
    let out = measured(&none);
    assert!(out.faults.iter().all(|f| f.missing.as_deref() == Some("not implemented")));
    assert!(!out.is_good() && out.is_good_but_for_missing());
    let nothing = |_: &Native, _: &Case| Err(Error::Request("no subject".into()));
    let out = measured(&nothing);
    assert_eq!(out.missing.as_deref(), Some("no subject"));
    assert!(!out.is_good());
}

/// Subjects that call themselves legitimate and are not raise alarms, in the suite and in a criterion.
#[test]
fn an_alarm_is_counted() {
    let loud = |n: &Native, c: &Case| {
        own::run(n, c).map(|all| {
            all.into_iter().map(|(name, y)| (name, y.iter().map(|y| 1.5 * y).collect())).collect()
        })
    };
    let out = measured(&loud);
    assert_eq!(out.alarms.suite.hits, out.alarms.suite.trials);
    assert!(out.alarms.criteria.iter().filter(|t| t.hits > 0).count() >= 5);
    assert!(out.upper95 == 1.0 && !out.is_good() && !out.is_good_but_for_missing());
}

#[test]
fn the_figures_do_not_depend_on_the_threads() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| measured(&own::run))
    };
    assert_eq!(on(1), on(3));
}
