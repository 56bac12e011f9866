//! `assay bisect --switches`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::bisect::switches::{self, Command, Halt, Report, SHIPPED, Set, State, Step, Suspects};
use crate::cli::run::prompts::read_text;
use crate::cli::{FINDINGS, JsonArgs, PASS, SKIPPED, say};
use crate::report::{Envelope, text, write_json};

/// Which switches, and how a restart is tested.
#[derive(Debug, Args)]
pub(super) struct SwitchArgs {
    /// Instead of a model: environment switches of an engine on a DCU as suspects
    #[arg(long)]
    pub(super) switches: bool,
    /// The engine whose switches are suspects
    #[arg(long, value_name = "NAME", default_value = "vllm", requires = "switches")]
    engine: String,
    /// Another list of switches (TOML, as verify/src/bisect/switches/switches.toml)
    #[arg(long, value_name = "FILE", requires = "switches")]
    switch_list: Option<PathBuf>,
    /// A switch that is on in the failing service although neither its default nor this environment says so
    #[arg(long, value_name = "NAME", requires = "switches")]
    with: Vec<String>,
    /// What the restarts so far showed, in order; prints the next one
    #[arg(
        long,
        value_name = "STATES",
        value_delimiter = ',',
        requires = "switches",
        conflicts_with = "run"
    )]
    seen: Vec<Seen>,
    /// A command for `sh -c` that restarts the service with its environment and tests it: exit 0 right, 1 wrong
    #[arg(long, value_name = "CMD", requires = "switches")]
    run: Option<String>,
    /// With --run: seconds after which a restart is stopped, and tells nothing
    #[arg(long, value_name = "S", default_value_t = 1800, requires = "run", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    restart_timeout: u64,
    /// With --run: how often each restart is repeated, for faults that come and go
    #[arg(long, value_name = "N", default_value_t = 1, requires = "run", value_parser = clap::value_parser!(u64).range(1..=100))]
    repeats: u64,
}

/// What a restart showed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Seen {
    /// The output was right
    Right,
    /// The output was wrong
    Wrong,
    /// Neither could be told
    Inconclusive,
}

impl From<Seen> for State {
    fn from(seen: Seen) -> State {
        match seen {
            Seen::Right => State::Right,
            Seen::Wrong => State::Wrong,
            Seen::Inconclusive => State::Inconclusive,
        }
    }
}

pub(super) fn run(args: &SwitchArgs, json: &JsonArgs, start: Instant) -> anyhow::Result<u8> {
    let (list, origin) = match &args.switch_list {
        Some(path) => (read_text(path)?, path.display().to_string()),
        None => (SHIPPED.to_string(), "the list of assay".to_string()),
    };
    let set = |name: &str| std::env::var(name).ok();
    let suspects = Suspects::read(&list, &origin, &args.engine, &set, &args.with)?;
    if suspects.on.is_empty() {
        bail!(
            "no switch of {} is on: set those that the failing service sets, or name them with --with",
            args.engine
        );
    }
    let (mut steps, mut unstable): (Vec<Step>, Vec<Set>) = (Vec::new(), Vec::new());
    let mut seen = args.seen.iter();
    let mut test = |on: &Set| -> Result<State, Halt> {
        let state = match (&args.run, seen.next()) {
            (Some(line), _) => {
                let timeout = Duration::from_secs(args.restart_timeout);
                let repeats = usize::try_from(args.repeats).unwrap_or(1);
                let command = Command { line: line.clone(), timeout, repeats };
                say(&format!("restart {}: {} on\n", steps.len() + 1, shown(&suspects, on)), true);
                let (state, both) = switches::run(&command, &suspects, on).map_err(Halt::Failed)?;
                if both {
                    unstable.push(on.clone());
                }
                state
            }
            (None, Some(seen)) => State::from(*seen),
            (None, None) => return Err(Halt::Next(on.clone())),
        };
        steps.push(Step { on: on.clone(), state });
        Ok(state)
    };
    let report = match switches::search(&suspects.masters(), &mut test) {
        Ok(found) => Report::ended(&args.engine, &suspects, &found, &unstable),
        Err(Halt::Next(on)) => Report::next(&args.engine, &suspects, &steps, &on),
        Err(Halt::Failed(e)) => return Err(e).context("--run"),
    };
    let left = seen.count();
    if left > 0 {
        bail!(
            "--seen has {left} more states than the search has restarts: it ended with {}",
            report.headline
        );
    }
    json.say(&text::switches(&report));
    let told = report
        .restarts
        .iter()
        .filter(|r| r.state.is_some_and(|s| s != State::Inconclusive))
        .count();
    let asked = args.run.is_some() || !args.seen.is_empty();
    let (code, result) = match report.findings.is_empty() {
        false => (FINDINGS, "findings"),
        true if asked && told < 2 => (SKIPPED, "skipped"),
        true => (PASS, "pass"),
    };
    if let Some(path) = &json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("bisect_switches", result, None, seconds, report))?;
    }
    Ok(code)
}

fn shown(suspects: &Suspects, on: &Set) -> String {
    match on.len() {
        0 => "none".into(),
        n if n == suspects.on.len() => "all".into(),
        n => format!("{n} of {}", suspects.on.len()),
    }
}
