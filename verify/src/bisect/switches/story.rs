//! What a search of the switches says.

use serde::Serialize;

use super::{Found, Set, State, Step, Suspects};
use crate::bisect::report::Evidence;

/// A restart, for people and machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restart {
    /// Switches that were on.
    pub on: Vec<String>,
    /// What it showed; `None` is the one to do next.
    pub state: Option<State>,
    /// The environment, `NAME=VALUE`.
    pub environment: Vec<String>,
}

/// The report of a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `vllm`, `sglang`.
    pub engine: String,
    /// What is wrong, in one line.
    pub headline: String,
    /// The guilty switches.
    pub findings: Vec<Evidence>,
    /// Restarts, in order; the last one may be the next to do.
    pub restarts: Vec<Restart>,
    /// Switches that are on in the failing service: the suspects.
    pub suspects: Vec<String>,
    /// Switches that are off there, and no suspects.
    pub off: Vec<String>,
    /// Suspects of which nothing could be said.
    pub not_testable: Vec<String>,
    /// What no switch tells.
    pub notes: Vec<String>,
}

fn restart(suspects: &Suspects, on: &Set, state: Option<State>) -> Restart {
    let pairs = suspects.environment(on);
    Restart {
        on: suspects.names(on).into_iter().map(str::to_owned).collect(),
        state,
        environment: pairs.into_iter().map(|(n, v)| format!("{n}={v}")).collect(),
    }
}

impl Report {
    fn new(engine: &str, suspects: &Suspects, steps: &[Step]) -> Report {
        let names = |all: &[super::Switch]| all.iter().map(|s| s.name.clone()).collect();
        Report {
            engine: engine.into(),
            headline: String::new(),
            findings: Vec::new(),
            restarts: steps.iter().map(|s| restart(suspects, &s.on, Some(s.state))).collect(),
            suspects: names(&suspects.on),
            off: names(&suspects.off),
            not_testable: Vec::new(),
            notes: suspects.notes.clone(),
        }
    }

    /// The search goes on with restart `on`.
    pub fn next(engine: &str, suspects: &Suspects, steps: &[Step], on: &Set) -> Report {
        let mut report = Report::new(engine, suspects, steps);
        report.restarts.push(restart(suspects, on, None));
        report.headline = format!("restart {} is next", report.restarts.len());
        report
    }

    /// The search has ended. `unstable`: restarts that were right and wrong.
    pub fn ended(engine: &str, suspects: &Suspects, found: &Found, unstable: &[Set]) -> Report {
        let mut report = Report::new(engine, suspects, &found.steps);
        for on in unstable {
            let what = format!("with {} on, repeats were right and wrong", list(suspects, on));
            report.findings.push(Evidence::own("switch.unstable", list(suspects, on), what));
        }
        let alone = |cause: &super::Cause| cause.switches.len() == 1 && cause.or_among.is_empty();
        for cause in &found.causes {
            report.findings.push(told(suspects, cause, alone(cause)));
        }
        if found.all_off == Some(State::Wrong) {
            let what = format!("all {} are off, and the output is wrong", suspects.on.len());
            report.findings.push(Evidence::own("switch.not_among_them", "every switch off", what));
        }
        report.not_testable =
            suspects.names(&found.hidden).into_iter().map(str::to_owned).collect();
        report.headline = match (found.all_off, found.all_on) {
            (Some(State::Wrong), _) => {
                "wrong with every switch off: the fault is not among them".into()
            }
            (Some(State::Inconclusive), _) => {
                "the restart with every switch off told nothing: without it no search".into()
            }
            (_, Some(State::Right)) => {
                "right with every switch on: none is guilty, as far as this test shows it".into()
            }
            (_, Some(State::Inconclusive)) => {
                "the restart with every switch on told nothing: without it no search".into()
            }
            _ => {
                let of = |c: &super::Cause| {
                    list(suspects, &c.switches.union(&c.or_among).copied().collect())
                };
                let guilty: Vec<String> = found.causes.iter().map(of).collect();
                format!("guilty: {}", guilty.join("; "))
            }
        };
        report
    }
}

fn told(suspects: &Suspects, cause: &super::Cause, alone: bool) -> Evidence {
    let names = list(suspects, &cause.switches);
    if !cause.or_among.is_empty() {
        let what = format!(
            "{}one of {}: restarts between them told nothing",
            if names.is_empty() { String::new() } else { format!("{names}, and ") },
            list(suspects, &cause.or_among)
        );
        return Evidence::own("switch.guilty", list(suspects, &cause.or_among), what);
    }
    let concerns: Vec<String> = cause
        .switches
        .iter()
        .map(|&i| format!("{} ({})", suspects.on[i].name, suspects.on[i].concerns))
        .collect();
    if alone {
        let what = format!("wrong with {} on, right without", concerns.join(", "));
        Evidence::own("switch.guilty", names, what)
    } else {
        let what = format!("wrong with all of {} on, right when one is off", concerns.join(", "));
        Evidence::own("switch.together", names, what)
    }
}

fn list(suspects: &Suspects, set: &Set) -> String {
    suspects.names(set).join(", ")
}
