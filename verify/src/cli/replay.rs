//! `assay replay`, and what `assay check --save` writes for it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;

use super::{JsonArgs, check, say};
use crate::judge::{Judgement, Unseen};
use crate::ledger::Evidence;
use crate::replay::{Bench, Replay, capture, shrink};
use crate::report::{Envelope, text, write_json};
use crate::suite::KernelReport;

/// What to replay.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// A saved case: what `assay check --save` wrote, or any case file (docs/case_format.md)
    file: PathBuf,
    /// Run this kernel on it instead of judging the saved output
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Compile this source for the kernel instead of its built-in one
    #[arg(long, value_name = "FILE", conflicts_with = "rerun")]
    source: Option<PathBuf>,
    /// Compile and run the kernel source in the file: only for files that you trust
    #[arg(long, conflicts_with = "kernel")]
    rerun: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Serialize)]
struct ReplayBody {
    /// The finding that the case was saved for.
    saved_for: Option<String>,
    kernels: Vec<KernelReport>,
}

pub(super) fn run(args: &ReplayArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let replay = Replay::read(&args.file)?;
    let report = judged(args, &replay)
        .with_context(|| format!("{}: cannot be replayed", args.file.display()))?;
    let found = report.judgement.verdict.findings();
    let mut said = text::check(std::slice::from_ref(&report));
    if let Some(wanted) = &replay.finding {
        said += &match found.first().map(|f| &f.name) {
            Some(name) if name == wanted => format!("\nas it was saved: {wanted}\n"),
            Some(name) => format!("\nnot as it was saved: {wanted} then, {name} now\n"),
            None => format!("\nnot as it was saved: {wanted} then, no finding now\n"),
        };
    }
    args.json.say(&said);
    let (code, result) = check::outcome(std::slice::from_ref(&report));
    if let Some(path) = &args.json.json {
        let body = ReplayBody { saved_for: replay.finding, kernels: vec![report] };
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("replay", result, None, seconds, body))?;
    }
    Ok(code)
}

/// The judgement of the saved output, or of the kernel that is asked for.
fn judged(args: &ReplayArgs, replay: &Replay) -> anyhow::Result<KernelReport> {
    let name = args.kernel.as_ref().or(replay.kernel.as_ref());
    let report = |judgement, output: Option<&_>| KernelReport {
        kernel: name.cloned().unwrap_or_else(|| "-".into()),
        op: replay.case.op.clone(),
        cases: 1,
        evidence: Evidence::of(&[replay.generated()], &[output]),
        judgement,
    };
    if args.kernel.is_none() && args.source.is_none() && !args.rerun {
        let Some(output) = replay.output() else {
            let reason = "the file holds no output: the kernel did not complete. `--rerun` runs \
                          the source in the file, `--kernel NAME` a kernel";
            return Ok(report(Judgement::skipped(reason), None));
        };
        return Ok(report(replay.judge(output, Unseen::Applicable)?, Some(output)));
    }
    let name = name.context("--source needs --kernel: the file names none")?;
    let kernel = check::selected(std::slice::from_ref(name))?.remove(0);
    ensure!(
        kernel.op == replay.case.op,
        "kernel {} computes {}, and this is a case of {}",
        kernel.name,
        kernel.op,
        replay.case.op
    );
    let source = match &args.source {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("{}: cannot be read", path.display()))?,
        None if args.rerun => replay.source.clone().context(
            "--rerun needs a source in the file, which has none; name one with --source",
        )?,
        None => kernel.source.to_string(),
    };
    let bench = Bench::emulated(kernel, &source)?;
    let trial = bench.try_case(&replay.generated(), &replay.options, replay.checked)?;
    let output = trial.output.as_ref();
    let judgement = match output.filter(|_| trial.judgement.verdict.is_pass()) {
        Some(output) => replay.judge(output, Unseen::Applicable)?,
        None => trial.judgement,
    };
    Ok(report(judgement, output))
}

/// Saves the smallest case that shows a failing report's first finding, shrunk if `smaller`, as
/// `FOLDER/KERNEL-FINDING.safetensors`. Says what it did, on standard error.
pub(super) fn save<'a>(
    folder: &Path,
    report: &KernelReport,
    bench: impl FnOnce() -> anyhow::Result<Bench<'a>>,
    seed: u64,
    smaller: bool,
) -> anyhow::Result<()> {
    let Some(wanted) = report.judgement.verdict.findings().first().map(|f| f.name.clone()) else {
        return Ok(());
    };
    if wanted == "compile_error" {
        return Ok(()); // nothing ran
    }
    let bench = bench()?;
    let Some(mut replay) = capture(&bench, &wanted, seed)? else {
        let text = "no single case shows it: `--seed` repeats the whole check";
        say(&format!("{}: {wanted} is not saved: {text}\n", report.kernel), true);
        return Ok(());
    };
    let mut note = String::new();
    if smaller {
        let (options, checked) = (replay.options.clone(), replay.checked);
        let shrunk = shrink(&replay.generated(), |g| {
            // A case beyond the kernel's contract is not one that fails.
            bench
                .try_case(g, &options, checked)
                .is_ok_and(|t| t.finding().as_ref() == Some(&wanted))
        });
        if let Some(shrunk) = shrunk {
            let trial = bench.try_case(&shrunk.case, &options, checked)?;
            note = format!(", shrunk in {} launches", shrunk.tried);
            replay = bench.replay(&shrunk.case, &options, checked);
            replay.set_output(trial.output);
            replay.finding = Some(wanted.clone());
        }
    }
    let path = folder.join(format!("{}-{wanted}.safetensors", report.kernel));
    replay.write(&path)?;
    let shapes: Vec<String> =
        replay.case.tensors.iter().map(|(name, t)| format!("{name} {:?}", t.shape())).collect();
    say(&format!("{}: {} ({}){note}\n", path.display(), replay.label, shapes.join(", ")), true);
    Ok(())
}

/// Makes the folder for saved cases.
///
/// # Errors
/// When it cannot be made or is no folder.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{}: the folder cannot be made", folder.display()))?;
    let probe = folder.join(".assay.part");
    if let Err(e) = std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe)) {
        bail!("{}: cases cannot be saved there: {e}", folder.display());
    }
    Ok(())
}
