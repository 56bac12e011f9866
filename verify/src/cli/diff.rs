//! `assay diff`.

use std::path::PathBuf;
use std::time::Instant;

use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::Preset;
use assay_reference::trace::Trace;
use clap::Args;

use super::{FINDINGS, HtmlArgs, JsonArgs, JunitArgs, PASS, SKIPPED, progress, say};
use crate::diff::{self, DiffOptions};
use crate::report::{Envelope, html, junit, text, write_json};

/// What to diff.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// Folder of the checkpoint: config.json and safetensors
    model: PathBuf,
    /// Folder of the trace: manifest.json and safetensors (docs/trace_format.md)
    trace: PathBuf,
    /// Allow only this preset's conventions (see `assay list presets`) [default: every legitimate one]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Also judge layer outputs and logits as a free-running forward, and name what is wrong with the
    /// whole model [default: only when no op's inputs were recorded]
    #[arg(long)]
    forward: bool,
    /// Show every op, not only those that do not pass
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    junit: JunitArgs,
    #[command(flatten)]
    html: HtmlArgs,
}

pub(super) fn run(args: &DiffArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    args.junit.check()?;
    args.html.check()?;
    let checkpoint = Checkpoint::open(&args.model)?;
    for warning in checkpoint.warnings() {
        say(&format!("warning: {warning}\n"), true);
    }
    let preset = args.preset.as_deref().map(Preset::named).transpose()?;
    let trace = Trace::open(&args.trace)?;
    let bar = progress::bar(0);
    let report = diff::diff(
        &checkpoint,
        &trace,
        DiffOptions { preset, unseen: true, forward: args.forward },
        &mut |i, n, probe| {
            bar.set_length(n as u64);
            bar.set_position(i as u64);
            bar.set_message(probe.to_string());
        },
    )?;
    bar.finish_and_clear();
    args.json.say(&text::diff(&report, args.all));
    args.junit.write("assay diff", start, || junit::diff(&report))?;
    let (code, result) = if !report.findings().is_empty() {
        (FINDINGS, "findings")
    } else if report.judged() == 0 {
        (SKIPPED, "skipped")
    } else {
        (PASS, "pass")
    };
    args.html.write(|| {
        let line = format!("{} against {}", args.trace.display(), args.model.display());
        html::diff(&report, line).render()
    })?;
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("diff", result, None, seconds, report))?;
    }
    Ok(code)
}
