//! `assay gate`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::{FINDINGS, JsonArgs, PASS};
use crate::ledger::{self, Comparison, Decision, Ledger, Requirements, Status};
use crate::report::{Envelope, text, write_json};

/// What to hold against a ledger.
#[derive(Debug, Args)]
pub(super) struct GateArgs {
    /// The ledger that `assay check --ledger` wrote
    #[arg(required_unless_present = "diff", conflicts_with = "diff")]
    ledger: Option<PathBuf>,
    /// The kernels that a service needs (docs/ledger.md)
    #[arg(long, value_name = "FILE", required_unless_present = "diff", conflicts_with = "diff")]
    require: Option<PathBuf>,
    /// Compare two ledgers: which kernels changed bits, convention or verdict
    #[arg(long, num_args = 2, value_names = ["OLD", "NEW"])]
    diff: Option<Vec<PathBuf>>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Serialize)]
struct GateBody<'a> {
    entries: usize,
    head: &'a str,
    kernels: Vec<Decision>,
}

#[derive(Serialize)]
struct DiffBody {
    kernels: Vec<Comparison>,
}

pub(super) fn run(args: &GateArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let code = |good: bool| if good { (PASS, "pass") } else { (FINDINGS, "findings") };
    if let Some([old, new]) = args.diff.as_deref() {
        let kernels = ledger::compare(&Ledger::read(old)?, &Ledger::read(new)?);
        args.json.say(&text::comparisons(&kernels));
        let (code, result) = code(!kernels.iter().any(Comparison::is_changed));
        let seconds = start.elapsed().as_secs_f64();
        if let Some(path) = &args.json.json {
            let body = DiffBody { kernels };
            write_json(path, &Envelope::new("gate_diff", result, None, seconds, body))?;
        }
        return Ok(code);
    }
    let (Some(ledger), Some(require)) = (&args.ledger, &args.require) else {
        anyhow::bail!("gate needs a ledger and --require, or --diff");
    };
    let ledger = Ledger::read(ledger)?;
    let kernels = ledger::survey(&ledger, &Requirements::read(require)?)?;
    args.json.say(&text::decisions(&kernels));
    let (code, result) = code(kernels.iter().all(|d| d.status == Status::Ok));
    let seconds = start.elapsed().as_secs_f64();
    if let Some(path) = &args.json.json {
        let body = GateBody { entries: ledger.entries().len(), head: ledger.head(), kernels };
        write_json(path, &Envelope::new("gate", result, None, seconds, body))?;
    }
    Ok(code)
}
