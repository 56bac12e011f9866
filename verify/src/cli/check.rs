//! `assay check`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use assay_hip::vendor::{self, Vendor};
use assay_hip::{Backend, Kernel, Matrix};
use clap::{Args, ValueEnum};
use rayon::prelude::*;
use serde::Serialize;

use super::kernels::Instructions;
use super::{
    FINDINGS, HtmlArgs, JsonArgs, JunitArgs, PASS, SKIPPED, progress, read_source, replay,
};
use crate::families::Values;
use crate::judge::Verdict;
use crate::ledger::{self, Entry};
use crate::mutants::{self, Edit, EditReport};
use crate::replay::Bench;
use crate::report::{Envelope, html, junit, text, write_json};
use crate::suite::{self, KernelReport, Profile};

/// What to check.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Only this kernel; may be repeated (see `assay list kernels`)
    #[arg(long, value_name = "NAME")]
    kernel: Vec<String>,
    /// Where the kernels run
    #[arg(long, alias = "subject", value_enum, default_value_t = Subject::Emu)]
    backend: Subject,
    /// Each case once with every access checked and once plain: no last bits of exp, no repeats, no list
    /// of unseen faults; no evidence for a ledger
    #[arg(long, conflicts_with_all = ["mutant", "mutants", "full", "pairs", "ledger"])]
    quick: bool,
    /// Larger cases with every access checked and repeated too, and the pairs of --pairs
    #[arg(long, conflicts_with_all = ["mutant", "mutants"])]
    full: bool,
    /// Check this source file instead of the kernel's own; it must define the same launcher
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mutant", "mutants"])]
    source: Option<PathBuf>,
    /// Only builds with these matrix instructions; by default every build that a source has is checked
    #[arg(long, value_enum, conflicts_with = "mutant")]
    matrix: Option<Instructions>,
    /// Seed of the cases, of the thread order and of --sample
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Check one source mutant or control (see `assay list mutants`)
    #[arg(long, value_name = "NAME", conflicts_with = "mutants")]
    mutant: Option<String>,
    /// Check all source mutants and controls; exit 0 only if every mutant is caught and every control passes
    #[arg(long)]
    mutants: bool,
    /// With --mutants: only this many of them, drawn by the seed
    #[arg(long, value_name = "N", requires = "mutants", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// Also list the pairs of faults that the cases would call by each other's name
    #[arg(long, conflicts_with_all = ["mutant", "mutants"])]
    pairs: bool,
    /// Check every access of every case, whatever its size: races, bounds, uninitialised reads, barriers
    #[arg(long, conflicts_with_all = ["mutant", "mutants", "quick", "full", "pairs"])]
    sanitize: bool,
    /// Append an entry for each kernel to this ledger, which `assay gate` reads (docs/ledger.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mutant", "mutants"])]
    ledger: Option<PathBuf>,
    /// Save the smallest failing case of each failing kernel to this folder, shrunk, for `assay replay`
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["mutant", "mutants"])]
    save: Option<PathBuf>,
    /// With --save: keep the case as the suite made it
    #[arg(long, requires = "save")]
    no_shrink: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    junit: JunitArgs,
    #[command(flatten)]
    html: HtmlArgs,
}

/// What runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// The embedded emulator
    Emu,
    /// A HIP device; needs a build with feature `hip`
    Hip,
    /// The matrix products of rocBLAS on a HIP device
    Rocblas,
    /// The matrix products of hipBLASLt on a HIP device
    Hipblaslt,
}

impl Subject {
    fn vendor(self) -> Option<Vendor> {
        match self {
            Subject::Rocblas => Some(Vendor::RocBlas),
            Subject::Hipblaslt => Some(Vendor::HipBlasLt),
            Subject::Emu | Subject::Hip => None,
        }
    }
}

#[derive(Serialize)]
struct CheckBody {
    kernels: Vec<KernelReport>,
}

#[derive(Serialize)]
struct MutantsBody {
    edits: Vec<EditReport>,
}

pub(super) fn run(args: &CheckArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    args.junit.check()?;
    if let Some(path) = &args.ledger {
        ledger::check_writable(path)?;
    }
    if let Some(folder) = &args.save {
        replay::prepare(folder)?;
    }
    args.html.check()?;
    if args.html.html.is_some() && (args.mutants || args.mutant.is_some()) {
        bail!("--html reports a check of kernels, not of mutants");
    }
    if (args.mutants || args.mutant.is_some()) && args.backend != Subject::Emu {
        bail!("mutants are compiled for the emulator: leave --backend out");
    }
    let kernels = subjects(args)?;
    if args.mutants {
        let edits: Vec<Edit> = mutants::edits()?
            .into_iter()
            .filter(|e| kernels.iter().any(|k| k.name == e.kernel.name))
            .filter(|e| args.matrix.is_none_or(|m| Matrix::from(m) == e.matrix))
            .collect();
        if edits.is_empty() {
            bail!(
                "no mutant is of these kernels and this --matrix; `assay list mutants` names them"
            );
        }
        return run_edits(args, sample(edits, args), start);
    }
    if let Some(name) = &args.mutant {
        let edit = mutants::edits()?.into_iter().find(|e| e.name == *name).with_context(|| {
            format!("there is no mutant or control `{name}`; `assay list mutants` names them")
        })?;
        let report = mutants::check(&edit, args.seed)?;
        let findings = report.findings.clone();
        let code = finish_edits(args, vec![report], start)?;
        for f in findings {
            args.json.say(&format!("\n{} {}\n    {}\n", f.code, f.name, f.text));
        }
        return Ok(code);
    }
    run_kernels(args, &kernels, start)
}

/// The kernels to check, functions of vendors' libraries included.
fn subjects(args: &CheckArgs) -> anyhow::Result<Vec<&'static Kernel>> {
    if let Some(vendor) = args.backend.vendor() {
        let own: Vec<&Kernel> =
            vendor::subjects().iter().filter(|s| s.vendor == vendor).map(|s| &s.kernel).collect();
        if let Some(name) = args.kernel.iter().find(|n| !own.iter().any(|k| k.name == **n)) {
            let known: Vec<&str> = own.iter().map(|k| k.name).collect();
            bail!("{} has no subject `{name}`; known are {}", vendor.name(), known.join(", "));
        }
        let wanted =
            |k: &&Kernel| args.kernel.is_empty() || args.kernel.iter().any(|n| n == k.name);
        return Ok(own.into_iter().filter(wanted).collect());
    }
    if args.kernel.is_empty() {
        return selected(&[]);
    }
    let mut kernels = Vec::new();
    for name in &args.kernel {
        match vendor::subject(name) {
            Some(subject) if args.backend == Subject::Hip => kernels.push(&subject.kernel),
            Some(_) => bail!("{name} is a library's: it runs on a device, with --backend hip"),
            None => kernels.extend(selected(std::slice::from_ref(name))?),
        }
    }
    Ok(kernels)
}

pub(super) fn selected(names: &[String]) -> anyhow::Result<Vec<&'static Kernel>> {
    if names.is_empty() {
        return Ok(assay_hip::kernels().iter().collect());
    }
    let known = || assay_hip::kernels().iter().map(|k| k.name).collect::<Vec<_>>().join(", ");
    names
        .iter()
        .map(|n| {
            assay_hip::kernel(n)
                .with_context(|| format!("unknown kernel `{n}`; known are {}", known()))
        })
        .collect()
}

/// A kernel as it is checked.
struct Build<'a> {
    kernel: &'static Kernel,
    source: &'a str,
    matrix: Matrix,
}

/// The builds to check. On a device the architecture decides, so that there is one of each kernel.
fn builds<'a>(
    args: &CheckArgs,
    kernels: &[&'static Kernel],
    source: Option<&'a str>,
) -> anyhow::Result<Vec<Build<'a>>> {
    let wanted = args.matrix.map(Matrix::from);
    if args.backend != Subject::Emu {
        if wanted.is_some() {
            bail!("--matrix is for the emulator: on a device the architecture decides");
        }
        let plain =
            |k: &&'static Kernel| Build { kernel: k, source: k.source, matrix: Matrix::None };
        return Ok(kernels.iter().map(plain).collect());
    }
    let mut out = Vec::new();
    for &kernel in kernels {
        let source = source.unwrap_or(kernel.source);
        let own = Matrix::builds(source).iter().filter(|m| wanted.is_none_or(|w| w == **m));
        out.extend(own.map(|&matrix| Build { kernel, source, matrix }));
    }
    if out.is_empty() {
        bail!(
            "no such build: a source has matrix paths when it includes \"assay_matrix.h\"; those of \
             gemm_bf16 and attention_prefill_d128 do"
        );
    }
    Ok(out)
}

fn run_kernels(
    args: &CheckArgs,
    kernels: &[&'static Kernel],
    start: Instant,
) -> anyhow::Result<u8> {
    let source = args.source.as_deref().map(read_source).transpose()?;
    if source.is_some() && kernels.len() != 1 {
        bail!("--source needs exactly one --kernel, whose launcher the file defines");
    }
    if args.backend != Subject::Emu && source.is_some() {
        bail!(
            "--source is compiled for the emulator: a device runs the kernels that were built in"
        );
    }
    let builds = builds(args, kernels, source.as_deref())?;
    let profile = match args {
        _ if args.quick => Profile::Power,
        _ if args.full => Profile::Full,
        _ if args.sanitize => Profile::Sanitize,
        _ if args.pairs => Profile::Pairs,
        _ => Profile::Standard,
    };
    let bar = progress::bar(builds.iter().map(|b| suite::steps(b.kernel, args.seed)).sum());
    progress::show_searches(&bar);
    let mut reports = Vec::new();
    for &Build { kernel, source, matrix } in &builds {
        bar.set_message(matrix.label(kernel.name));
        let step = || bar.inc(1);
        reports.push(match args.backend {
            Subject::Emu => {
                suite::check_kernel(kernel, (source, matrix), args.seed, profile, &step)?
            }
            _ => match vendor::subject(kernel.name) {
                Some(subject) => suite::check_vendor(subject, args.seed, profile, &step)?,
                None => suite::check_device(kernel, args.seed, profile, &step)?,
            },
        });
    }
    bar.finish_and_clear();
    let (code, result) = outcome(&reports);
    let seconds = start.elapsed().as_secs_f64();
    let hypotheses: usize = reports.iter().map(|r| r.judgement.hypotheses).sum();
    let conclusion = match code {
        PASS => "all pass",
        FINDINGS => "findings",
        _ => "nothing could be verified",
    };
    args.json.say(&format!(
        "{}\n{conclusion} (seed {}, {hypotheses} hypotheses, {seconds:.1} s)\n",
        text::check(&reports),
        args.seed
    ));
    args.html.write(|| {
        let subject =
            args.source.as_ref().map_or("built-in sources".into(), |s| s.display().to_string());
        let line =
            format!("{subject}, seed {}, {hypotheses} hypotheses, {seconds:.1} s", args.seed);
        html::check(&reports, line).render()
    })?;
    if code == FINDINGS {
        save(args, &builds, &reports)?;
    }
    args.junit.write("assay check", start, || junit::check(&reports))?;
    if let Some(path) = &args.ledger {
        record(path, args, &builds, &reports)?;
    }
    if let Some(path) = &args.json.json {
        let body = CheckBody { kernels: reports };
        write_json(path, &Envelope::new("check", result, Some(args.seed), seconds, body))?;
    }
    Ok(code)
}

/// Saves a case of each failing kernel, or says how to.
fn save(args: &CheckArgs, builds: &[Build<'_>], reports: &[KernelReport]) -> anyhow::Result<()> {
    let Some(folder) = &args.save else {
        args.json.say("`--save FOLDER` keeps the smallest failing case for `assay replay`\n");
        return Ok(());
    };
    for (&Build { kernel, source, matrix }, report) in builds.iter().zip(reports) {
        let bench = || match args.backend {
            Subject::Emu => Bench::emulated(kernel, source, matrix),
            _ => match vendor::subject(kernel.name) {
                Some(subject) => Bench::vendor(subject),
                None => Bench::device(kernel),
            },
        };
        replay::save(folder, report, bench, args.seed, !args.no_shrink)?;
    }
    Ok(())
}

/// Appends an entry for each report that verified something.
fn record(
    path: &std::path::Path,
    args: &CheckArgs,
    builds: &[Build<'_>],
    reports: &[KernelReport],
) -> anyhow::Result<()> {
    let mut entries = Vec::new();
    for (&Build { kernel, source, matrix }, report) in builds.iter().zip(reports) {
        if matches!(report.judgement.verdict, Verdict::Skipped { .. }) {
            continue;
        }
        let identity = match args.backend {
            Subject::Emu => ledger::emulated(kernel, source, matrix)?,
            _ => match vendor::subject(kernel.name) {
                Some(subject) => vendor::open(subject.vendor)?.identity(kernel)?,
                None => Backend::device()?.identity(kernel)?,
            },
        };
        entries.extend(Entry::of(report, identity, args.seed));
    }
    let added = entries.len();
    let ledger = ledger::append(path, entries)?;
    let (of, head) = (ledger.entries().len(), ledger.head());
    args.json
        .say(&format!("{}: {added} entries added, {of} in all, head {head}\n", path.display()));
    Ok(())
}

/// Exit code and result: findings first; a kernel that was not verified is never a pass.
pub(super) fn outcome(reports: &[KernelReport]) -> (u8, &'static str) {
    let failing = |v: &Verdict| matches!(v, Verdict::Fail { .. } | Verdict::Unexplained { .. });
    if reports.iter().any(|r| failing(&r.judgement.verdict)) {
        (FINDINGS, "findings")
    } else if reports.iter().all(|r| r.judgement.verdict.is_pass()) {
        (PASS, "pass")
    } else {
        (SKIPPED, "skipped")
    }
}

/// The edits drawn by the seed, in their order.
fn sample(edits: Vec<Edit>, args: &CheckArgs) -> Vec<Edit> {
    let Some(n) = args.sample else { return edits };
    let mut chosen = Values::new(args.seed, "sample of mutants").permutation(edits.len());
    chosen.truncate(n as usize);
    let keep = |i: &usize| chosen.contains(i);
    edits.into_iter().enumerate().filter(|(i, _)| keep(i)).map(|(_, e)| e).collect()
}

fn run_edits(args: &CheckArgs, edits: Vec<Edit>, start: Instant) -> anyhow::Result<u8> {
    let bar = progress::bar(edits.len());
    let reports: Vec<EditReport> = edits
        .par_iter()
        .map(|edit| {
            bar.set_message(edit.name.clone());
            let report = mutants::check(edit, args.seed);
            bar.inc(1);
            report
        })
        .collect::<anyhow::Result<_>>()?;
    bar.finish_and_clear();
    finish_edits(args, reports, start)
}

fn finish_edits(args: &CheckArgs, reports: Vec<EditReport>, start: Instant) -> anyhow::Result<u8> {
    let seconds = start.elapsed().as_secs_f64();
    let good = reports.iter().all(EditReport::is_good);
    args.json.say(&text::mutants(&reports));
    args.junit.write("assay check --mutants", start, || junit::mutants(&reports))?;
    if let Some(path) = &args.json.json {
        let result = if good { "pass" } else { "findings" };
        let body = MutantsBody { edits: reports };
        write_json(path, &Envelope::new("mutants", result, Some(args.seed), seconds, body))?;
    }
    Ok(if good { PASS } else { FINDINGS })
}
