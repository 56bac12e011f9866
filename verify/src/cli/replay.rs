//! `assay replay`, and what `assay check --save` writes for it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;

use super::{JsonArgs, check, read_source, say};
use crate::judge::{Judgement, Unseen};
use crate::ledger::Evidence;
use crate::replay::{Bench, Replay, Trial, capture, shrink};
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
    let mut replay = Replay::read(&args.file)?;
    let reports = reports(args, &mut replay)
        .with_context(|| format!("{}: cannot be replayed", args.file.display()))?;
    let found = reports.iter().find_map(|r| r.judgement.verdict.findings().into_iter().next());
    let mut said = text::check(&reports);
    if let Some(wanted) = &replay.finding {
        said += &match &found {
            Some(f) if f.name == *wanted => format!("\nas it was saved: {wanted}\n"),
            Some(f) => format!("\nnot as it was saved: {wanted} then, {} now\n", f.name),
            None => format!("\nnot as it was saved: {wanted} then, no finding now\n"),
        };
    }
    args.json.say(&said);
    let (code, result) = check::outcome(&reports);
    if let Some(path) = &args.json.json {
        let body = ReplayBody { saved_for: replay.finding, kernels: reports };
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("replay", result, None, seconds, body))?;
    }
    Ok(code)
}

/// A report for each output in the file, or for the kernel that is asked for.
fn reports(args: &ReplayArgs, replay: &mut Replay) -> anyhow::Result<Vec<KernelReport>> {
    let name = args.kernel.clone().or_else(|| replay.kernel.clone());
    if args.kernel.is_some() || args.source.is_some() || args.rerun {
        let name = name.as_ref().context("no kernel is named in the file: --kernel does")?;
        let trial = rerun(args, name, replay)?;
        replay.set_outputs(trial.outputs);
        if !trial.judgement.verdict.is_pass() {
            return Ok(vec![report(replay, Some(name), None, trial.judgement)]);
        }
    }
    if replay.case.outputs.is_empty() {
        let reason = "the file holds no output: the kernel did not complete. `--rerun` runs the source \
                      in the file, `--kernel NAME` a kernel";
        return Ok(vec![report(replay, name.as_ref(), None, Judgement::skipped(reason))]);
    }
    let judged = replay.judge(Unseen::Applicable)?.into_iter();
    Ok(judged.map(|(output, j)| report(replay, name.as_ref(), Some(&output), j)).collect())
}

fn report(
    replay: &Replay,
    kernel: Option<&String>,
    output: Option<&str>,
    judgement: Judgement,
) -> KernelReport {
    let several = replay.case.outputs.len() > 1;
    let suffix = output.filter(|_| several).map_or(String::new(), |o| format!(" {o}"));
    let stored = output.and_then(|o| replay.case.outputs.get(o));
    KernelReport {
        kernel: format!("{}{suffix}", kernel.map_or("-", String::as_str)),
        op: replay.case.op.clone(),
        cases: 1,
        outside: Vec::new(),
        evidence: Evidence::of(&[replay.generated()], &[stored.into_iter().collect()]),
        judgement,
    }
}

/// Runs a kernel on the case.
fn rerun(args: &ReplayArgs, name: &String, replay: &Replay) -> anyhow::Result<Trial> {
    let kernel = check::selected(std::slice::from_ref(name))?.remove(0);
    ensure!(
        kernel.op == replay.case.op,
        "kernel {} computes {}, and this is a case of {}",
        kernel.name,
        kernel.op,
        replay.case.op
    );
    let source = match &args.source {
        Some(path) => read_source(path)?,
        None if args.rerun => replay.source.clone().context(
            "--rerun needs a source in the file, which has none; name one with --source",
        )?,
        None => kernel.source.to_string(),
    };
    let bench = Bench::emulated(kernel, &source, replay.matrix)?;
    bench.try_case(&replay.generated(), &replay.options, replay.checked)
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
            replay.set_outputs(trial.outputs);
            replay.finding = Some(wanted.clone());
        }
    }
    // `gemm_bf16 [mmac]` without the brackets.
    let build = report.kernel.replace(" [", "-").replace(']', "");
    let path = folder.join(format!("{build}-{wanted}.safetensors"));
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
