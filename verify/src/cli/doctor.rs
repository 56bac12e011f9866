//! `assay doctor`.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::{FINDINGS, JsonArgs, PASS, SKIPPED, progress};
use crate::doctor::{Check, Machine, State, examine};
use crate::report::{Envelope, write_json};

/// How to examine this machine.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The Python of the service, whose packages are tried
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: String,
    /// Longest time in seconds for any one program that is tried
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Serialize)]
struct DoctorBody {
    checks: Vec<Check>,
}

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let mut machine = Machine::this(&args.python);
    machine.limit = Duration::from_secs(args.limit);
    let bar = progress::bar(4);
    let checks = examine(&machine, &mut |what| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let bad = checks.iter().filter(|c| c.state == State::Bad).count();
    let tried = checks.iter().filter(|c| c.state != State::NotApplicable).count();
    let (code, result) = match (bad, tried) {
        (1.., _) => (FINDINGS, "findings"),
        (0, 0) => (SKIPPED, "skipped"),
        (0, _) => (PASS, "pass"),
    };
    let mut text = String::new();
    // What is wrong comes last, where a terminal ends.
    let mut sorted: Vec<&Check> = checks.iter().collect();
    sorted.sort_by_key(|c| match c.state {
        State::NotApplicable => 0,
        State::Ok => 1,
        State::Warning => 2,
        State::Bad => 3,
    });
    for c in sorted {
        let word = match c.state {
            State::Ok => "ok",
            State::Warning => "warning",
            State::Bad => "BAD",
            State::NotApplicable => "n/a",
        };
        text += &format!("{word:<8} {:<22} {}\n", c.name, c.found);
        if !c.advice.is_empty() {
            text += &format!("{:<31} -> {}\n", "", c.advice);
        }
    }
    let conclusion = match code {
        FINDINGS => format!("{bad} of {tried} checks are bad"),
        SKIPPED => "nothing here to check: no device, no toolchain, no Python that serves".into(),
        _ => format!("nothing is bad in {tried} checks"),
    };
    args.json.say(&format!("{text}\n{conclusion}\n"));
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("doctor", result, None, seconds, DoctorBody { checks }))?;
    }
    Ok(code)
}
