//! `assay power`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use assay_reference::{Case, ops};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{FINDINGS, JsonArgs, PASS, progress};
use crate::power::criteria::{Cited, cited};
use crate::power::simulate::{self, Judged, Simulation};
use crate::power::{self, OpPower, Settings, chart, own, subjects, text};
use crate::report::{Envelope, check_writable, write_json, write_text};
use crate::subject::native::Native;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct PowerArgs {
    /// Only this op; may be repeated (see `assay list ops`). Lists every fault and convention
    #[arg(long, value_name = "NAME")]
    op: Vec<String>,
    /// Only faults of this name, `slug` or `op.slug`; may be repeated
    #[arg(long, value_name = "NAME")]
    fault: Vec<String>,
    /// Seeds that every fault is tried on [default: 6 to 20, by what the op costs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    trials: Option<u32>,
    /// Legitimate subjects an op, at least
    #[arg(long, value_name = "N", default_value_t = 2000)]
    legitimate: u32,
    /// Seed of the cases and of what is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// What is measured
    #[arg(long, value_enum, default_value_t = Subject::Native)]
    subject: Subject,
    /// Exit 0 although some faults or conventions have no independent subject
    #[arg(long)]
    allow_missing: bool,
    /// Instead: simulate a set-up for which others have published or measured such figures
    #[arg(long, value_enum, value_name = "SETUP", conflicts_with_all = ["op", "fault", "svg"])]
    simulate: Option<Setup>,
    /// Write a chart to this file
    #[arg(long, value_name = "PATH")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
}

/// What answers the cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// Implementations written apart from the reference
    Native,
    /// The reference itself: shares its misreadings, so no evidence; for an op without a native subject
    Reference,
}

/// A simulated set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Setup {
    /// A linear layer over 4-bit weights: M 16, N 256, K 2048
    Int4Gemm,
    /// One token's attention over 4096 keys
    DecodeAttention,
}

#[derive(Serialize)]
struct PowerBody {
    criteria: Vec<Cited>,
    /// One-sided exact (Clopper and Pearson), in percent.
    confidence: u8,
    ops: Vec<OpPower>,
}

#[derive(Serialize)]
struct SimulationBody {
    criteria: Vec<Cited>,
    simulation: Simulation,
}

pub(super) fn run(args: &PowerArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    if let Some(setup) = args.simulate {
        return simulated(args, setup, start);
    }
    if let Some(path) = &args.svg {
        check_writable(path)?;
    }
    let chosen = selected(&args.op)?;
    let faults = faults(&args.fault, &chosen)?;
    let settings = Settings {
        trials: args.trials.map(|n| n as usize),
        legitimate: args.legitimate as usize,
        faults,
        seed: args.seed,
    };
    const STEPS: usize = 1000;
    let bar = progress::bar(chosen.len() * STEPS);
    let mut measured = Vec::new();
    for (i, op) in chosen.iter().enumerate() {
        bar.set_message(*op);
        bar.set_position((i * STEPS) as u64);
        let step = |share: f64| bar.set_position(((i as f64 + share) * STEPS as f64) as u64);
        measured.push(match args.subject {
            Subject::Native => power::measure(op, &settings, &native, &step),
            Subject::Reference => power::measure(op, &settings, &own::run, &step),
        }?);
    }
    bar.finish_and_clear();
    let good = |op: &OpPower| {
        if args.allow_missing { op.is_good_but_for_missing() } else { op.is_good() }
    };
    let code = if measured.iter().all(good) { PASS } else { FINDINGS };
    let seconds = start.elapsed().as_secs_f64();
    args.json.say(&format!(
        "{} (seed {}, {seconds:.1} s)\n",
        text::power(&measured, !args.op.is_empty()).trim_end(),
        args.seed
    ));
    if args.subject == Subject::Reference {
        args.json.say("the reference was its own subject: this is no evidence of what is right\n");
    }
    if let Some(path) = &args.svg {
        write_text(path, &chart::power(&measured, args.seed))?;
    }
    if let Some(path) = &args.json.json {
        let body = PowerBody { criteria: cited(), confidence: 95, ops: measured };
        let result = if code == PASS { "pass" } else { "findings" };
        write_json(path, &Envelope::new("power", result, Some(args.seed), seconds, body))?;
    }
    Ok(code)
}

/// What a native subject stores.
fn native(subject: &Native, case: &Case) -> assay_reference::Result<power::Stored> {
    let outputs = subject.outputs(case)?;
    Ok(outputs.into_iter().map(|(name, t)| (name, t.to_f64())).collect())
}

fn selected(names: &[String]) -> anyhow::Result<Vec<&'static str>> {
    if names.is_empty() {
        return Ok(ops::NAMES.to_vec());
    }
    let find =
        |name: &String| {
            ops::NAMES.iter().copied().find(|op| op == name).with_context(|| {
                format!("unknown op `{name}`; known are {}", ops::NAMES.join(", "))
            })
        };
    names.iter().map(find).collect()
}

/// The slugs asked for, each of which some chosen op has.
fn faults(names: &[String], chosen: &[&'static str]) -> anyhow::Result<Vec<String>> {
    let mut out = Vec::new();
    for name in names {
        let (op, slug) = name.split_once('.').map_or((None, name.as_str()), |(o, s)| (Some(o), s));
        let known = chosen
            .iter()
            .filter(|o| op.is_none_or(|op| op == **o))
            .any(|o| subjects::faults(o).unwrap_or_default().iter().any(|f| f.slug == slug));
        if !known {
            bail!("no fault `{name}` in {}; `assay list ops` names them", chosen.join(", "));
        }
        out.push(slug.to_string());
    }
    Ok(out)
}

fn simulated(args: &PowerArgs, setup: Setup, start: Instant) -> anyhow::Result<u8> {
    let seeds = args.trials.unwrap_or(12) as usize;
    let simulation = match setup {
        Setup::Int4Gemm => simulate::int4_gemm(args.seed, seeds, Judged::All),
        Setup::DecodeAttention => simulate::decode_attention(args.seed, seeds, Judged::All),
    }?;
    let seconds = start.elapsed().as_secs_f64();
    args.json.say(&format!(
        "{}(seed {}, {seeds} seeds from it, {seconds:.1} s)\n",
        text::simulation(&simulation),
        args.seed
    ));
    // The judge's row must be: silent on the correct subject, loud on all others.
    let own = simulation.row("assay").unwrap_or_default();
    let good = own.iter().enumerate().all(|(i, t)| if i == 0 { t.hits == 0 } else { t.is_all() });
    if let Some(path) = &args.json.json {
        let result = if good { "pass" } else { "findings" };
        let body = SimulationBody { criteria: cited(), simulation };
        write_json(path, &Envelope::new("simulation", result, Some(args.seed), seconds, body))?;
    }
    Ok(if good { PASS } else { FINDINGS })
}
