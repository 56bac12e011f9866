//! `assay diff`.

use std::path::PathBuf;
use std::time::Instant;

use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::Preset;
use assay_reference::trace::Trace;
use clap::Args;

use super::kernels::{OnKernels, Replaced};
use super::{FINDINGS, HtmlArgs, JsonArgs, JunitArgs, PASS, SKIPPED, progress, say};
use crate::diff::{self, DiffOptions};
use crate::report::{Envelope, html, junit, text, write_json};

/// What to diff.
#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// Folder of the checkpoint: config.json and safetensors
    model: PathBuf,
    /// Folder of the trace: manifest.json and safetensors (docs/trace_format.md)
    #[arg(required_unless_present = "backend")]
    trace: Option<PathBuf>,
    /// Instead of a trace: run the model on this crate's kernels and judge every launch, then the layers
    /// and the logits
    #[arg(long, value_enum, conflicts_with_all = ["trace", "preset", "forward"])]
    backend: Option<OnKernels>,
    /// With --backend: token ids of the prompt [default: 24 spread over the vocabulary]
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "backend")]
    ids: Vec<u32>,
    /// With --backend: tokens of the prompt in a call
    #[arg(long, value_name = "N", default_value_t = 16, requires = "backend")]
    chunk: usize,
    /// With --backend: tokens that are generated behind the prompt, greedily
    #[arg(long, value_name = "N", default_value_t = 4, requires = "backend")]
    generate: usize,
    #[command(flatten)]
    replaced: Replaced,
    /// Allow only this preset's conventions (see `assay list presets`) [default: every legitimate one]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Both modes side by side: also judge layer outputs and logits as a free-running forward, name what is wrong
    /// with the whole model, and show how the error grows by layer [default: only when no op's inputs were recorded]
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
    let bar = progress::bar(0);
    progress::show_searches(&bar);
    let mut step = |i: usize, n: usize, probe: &str| {
        bar.set_length(n as u64);
        bar.set_position(i as u64);
        bar.set_message(probe.to_string());
    };
    let report = match (&args.trace, args.backend) {
        (Some(trace), _) => {
            let options = DiffOptions { preset, unseen: true, forward: args.forward };
            diff::diff(&checkpoint, &Trace::open(trace)?, options, &mut step)?
        }
        (None, on) => {
            let on = on.unwrap_or(OnKernels::Emu);
            let kernels = on.kernels(&args.replaced)?;
            let vocab = checkpoint.config().vocab_size;
            let spread = || (0..24).map(|i| ((i * 37 + 11) % vocab) as u32).collect();
            let ids = if args.ids.is_empty() { spread() } else { args.ids.clone() };
            let prompt = diff::engine::Prompt { ids, chunk: args.chunk, generate: args.generate };
            diff::engine::diff(&checkpoint, &kernels, &prompt, &mut step)?
        }
    };
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
        let what = args.trace.as_ref().map_or("kernels".into(), |t| t.display().to_string());
        let line = format!("{what} against {}", args.model.display());
        html::diff(&report, line).render()
    })?;
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("diff", result, None, seconds, report))?;
    }
    Ok(code)
}
