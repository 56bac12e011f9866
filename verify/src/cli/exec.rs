//! `assay exec`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use assay_reference::Dtype;
use assay_reference::ops::{self, Scope};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{FINDINGS, HtmlArgs, JsonArgs, JunitArgs, PASS, check, progress, replay, say};
use crate::finding::Finding;
use crate::judge::{Judgement, Verdict};
use crate::ledger::{self, Evidence};
use crate::report::{Envelope, html, junit, text, write_json};
use crate::subject::exec::{self, Checked, Hello, Program, Session, Settings, Started};
use crate::suite::KernelReport;

/// What to run.
#[derive(Debug, Args)]
#[command(after_help = "\
The program reads cases on standard input and writes outputs to standard output (docs/exec.md). It may be
anything; verify/python has one for what Python can call (PYTHONPATH=verify/python):

  assay exec --dtype bf16 -- python -m assay_taps.exec --op matmul --with torch --device cuda
  assay exec --framework -- python -m assay_taps.exec --op attention --with torch --function eager
  assay exec --quick -- python -m assay_taps.exec --op rms_norm --with mykernels:my_rms_norm

One report for each op and dtype. Exit codes: 0 pass, 1 findings, 2 bad usage, 3 nothing could be verified:
a program that takes no case, or says that its device is missing, is skipped and never passes.")]
pub(super) struct ExecArgs {
    /// Only this op; may be repeated [default: all that the program offers]
    #[arg(long, value_name = "OP")]
    op: Vec<String>,
    /// Only this dtype; may be repeated [default: all that the program offers]. f32 gets the values of the
    /// bf16 and f16 cases in f32
    #[arg(long, value_enum, value_name = "DTYPE")]
    dtype: Vec<Stored>,
    /// The conventions of a framework's eager ops are legitimate too: every intermediate stored [default: as
    /// the program claims]
    #[arg(long)]
    framework: bool,
    /// They are not, whatever the program claims
    #[arg(long, conflicts_with = "framework")]
    as_kernel: bool,
    /// Other bits for the same case are no finding
    #[arg(long)]
    allow_nondeterminism: bool,
    /// A row alone must have the bits that it has in a batch: few libraries promise that
    #[arg(long)]
    batch_invariant: bool,
    /// Seconds that the program has for a case
    #[arg(long, value_name = "S", default_value_t = 120.0)]
    timeout: f64,
    /// Seconds that the program has to start: libraries to load, kernels to compile
    #[arg(long, value_name = "S", default_value_t = 300.0)]
    start_timeout: f64,
    /// Seed of the cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only small cases, which together show every fault; no list of unseen faults unless some are refused; no evidence for a ledger
    #[arg(long, conflicts_with = "ledger")]
    quick: bool,
    /// Pass the program's standard error on as it comes; else its end is shown when something is wrong
    #[arg(long)]
    show_stderr: bool,
    /// Append an entry for each report to this ledger, for `assay gate` with backend "process" (docs/ledger.md)
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Save the smallest failing case of each failing report to this folder, for `assay replay`
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    junit: JunitArgs,
    #[command(flatten)]
    html: HtmlArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How outputs are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stored {
    Bf16,
    F16,
    F32,
}

impl Stored {
    fn dtype(self) -> Dtype {
        match self {
            Stored::Bf16 => Dtype::Bf16,
            Stored::F16 => Dtype::F16,
            Stored::F32 => Dtype::F32,
        }
    }
}

#[derive(Serialize)]
struct ExecBody {
    /// What the program said of itself; null when it did not start.
    program: Option<Hello>,
    argv: Vec<String>,
    scope: &'static str,
    kernels: Vec<KernelReport>,
}

/// Longest time limit: a year.
const MAX_SECONDS: f64 = 31_536_000.0;

fn seconds(flag: &str, value: f64) -> anyhow::Result<Duration> {
    ensure!(
        value > 0.0 && value <= MAX_SECONDS,
        "{flag}: expected seconds above 0 and at most {MAX_SECONDS}, got {value}"
    );
    Ok(Duration::from_secs_f64(value))
}

pub(super) fn run(args: &ExecArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    args.junit.check()?;
    args.html.check()?;
    if let Some(path) = &args.ledger {
        ledger::check_writable(path)?;
    }
    if let Some(folder) = &args.save {
        replay::prepare(folder)?;
    }
    let ops = known(&args.op)?;
    let program = Program {
        command: args.command.clone(),
        start: seconds("--start-timeout", args.start_timeout)?,
        answer: seconds("--timeout", args.timeout)?,
        pass_stderr: args.show_stderr,
    };
    let line = program.line();
    let mut session = match Session::start(program)? {
        Started::Ready(session) => *session,
        Started::Unsupported(reason) => {
            let judgement = Judgement::skipped(format!("the program says: {reason}"));
            return finish(args, start, None, vec![alone(&ops, judgement)]);
        }
        Started::Not(finding) => {
            return finish(args, start, None, vec![alone(&ops, failed(finding))]);
        }
    };
    let hello = session.hello().clone();
    let ops = offered(&line, &hello, ops)?;
    let checked = check_all(args, &mut session, &hello, &ops)?;
    let reports: Vec<KernelReport> = checked.iter().map(|c| c.report.clone()).collect();
    let scope = scope(args, &hello);
    let code = finish(args, start, Some(hello), reports)?;
    if let Some(folder) = &args.save {
        save(folder, &checked, scope)?;
    }
    if let Some(path) = &args.ledger {
        let entries = exec::entries(&mut session, &checked, scope, args.seed)?;
        let added = entries.len();
        let ledger = ledger::append(path, entries)?;
        let (of, head) = (ledger.entries().len(), ledger.head());
        let text = format!("{}: {added} entries added, {of} in all, head {head}\n", path.display());
        args.json.say(&text);
    }
    if let Some(note) = session.close() {
        say(&format!("note: {note}\n"), true);
    }
    Ok(code)
}

/// A report for each op and dtype. A dtype that is asked for and not offered is skipped.
fn check_all(
    args: &ExecArgs,
    session: &mut Session,
    hello: &Hello,
    ops: &[&'static str],
) -> anyhow::Result<Vec<Checked>> {
    let stored = |d: &Dtype| matches!(d, Dtype::Bf16 | Dtype::F16 | Dtype::F32);
    let mut dtypes: Vec<Dtype> = args.dtype.iter().map(|d| d.dtype()).collect();
    if dtypes.is_empty() {
        dtypes = hello.dtypes.iter().copied().filter(stored).collect();
    }
    dtypes.sort_unstable();
    dtypes.dedup();
    ensure!(
        !dtypes.is_empty(),
        "{} offers no dtype of bf16, f16 and f32, which are the ones that are checked",
        hello.name
    );
    let settings = Settings {
        seed: args.seed,
        scope: scope(args, hello),
        quick: args.quick,
        deterministic: !args.allow_nondeterminism,
        batch_invariant: args.batch_invariant,
    };
    let jobs: Vec<(&str, Dtype)> =
        ops.iter().flat_map(|op| dtypes.iter().map(|d| (*op, *d))).collect();
    let steps = jobs.iter().map(|(op, d)| exec::cases(op, *d, args.seed, args.quick).len()).sum();
    let bar = progress::bar(steps);
    progress::show_searches(&bar);
    let mut all = Vec::new();
    for (op, dtype) in jobs {
        if !hello.dtypes.contains(&dtype) {
            let has: Vec<String> = hello.dtypes.iter().map(Dtype::to_string).collect();
            let reason = format!("{} does not take {dtype}, only {}", hello.name, has.join(", "));
            let kernel = format!("{}/{op}/{dtype}", hello.name);
            all.push(Checked::skipped(report(kernel, op.into(), Judgement::skipped(reason))));
            continue;
        }
        bar.set_message(format!("{op} {dtype}"));
        all.push(exec::check(session, (op, dtype), &settings, &|| bar.inc(1))?);
    }
    bar.finish_and_clear();
    Ok(all)
}

/// Whose conventions are legitimate: as asked, else as the program claims.
fn scope(args: &ExecArgs, hello: &Hello) -> Scope {
    if args.framework || (hello.framework && !args.as_kernel) {
        Scope::Framework
    } else {
        Scope::Kernel
    }
}

/// The ops of these names.
fn known(names: &[String]) -> anyhow::Result<Vec<&'static str>> {
    let find = |name: &String| match ops::NAMES.iter().find(|n| *n == name) {
        Some(op) => Ok(*op),
        None => bail!("--op: unknown op `{name}`; known are {}", ops::NAMES.join(", ")),
    };
    names.iter().map(find).collect()
}

/// The ops to check: those asked for, all of which must be offered, or all that are offered and known.
fn offered(
    line: &str,
    hello: &Hello,
    wanted: Vec<&'static str>,
) -> anyhow::Result<Vec<&'static str>> {
    let list = hello.ops.join(", ");
    if let Some(op) = wanted.iter().find(|op| !hello.ops.iter().any(|o| o == *op)) {
        bail!("--op {op}: `{line}` does not offer it, only {list}");
    }
    let mut ops = wanted;
    if ops.is_empty() {
        let is_offered = |op: &&&str| hello.ops.iter().any(|o| o == **op);
        ops = ops::NAMES.iter().filter(is_offered).copied().collect();
    }
    ensure!(!ops.is_empty(), "`{line}` offers no op that assay knows, only {list}");
    ops.dedup();
    Ok(ops)
}

fn failed(finding: Finding) -> Judgement {
    let verdict = Verdict::Fail { findings: vec![finding] };
    Judgement { verdict, ..Judgement::skipped("") }
}

fn report(kernel: String, op: String, judgement: Judgement) -> KernelReport {
    let (outside, evidence) = (Vec::new(), Evidence::default());
    KernelReport { kernel, op, cases: 0, outside, evidence, judgement }
}

/// The only report of a program that did not start.
fn alone(ops: &[&str], judgement: Judgement) -> KernelReport {
    let op = if ops.is_empty() { "-".into() } else { ops.join(", ") };
    report("program".into(), op, judgement)
}

/// Text, HTML, JUnit and JSON; the exit code.
fn finish(
    args: &ExecArgs,
    start: Instant,
    hello: Option<Hello>,
    reports: Vec<KernelReport>,
) -> anyhow::Result<u8> {
    let (code, result) = check::outcome(&reports);
    let elapsed = start.elapsed().as_secs_f64();
    let what = hello.as_ref().map_or_else(String::new, |h| {
        let details: Vec<String> = h.details.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let details =
            if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
        let scope = match (scope(args, h), args.framework) {
            (Scope::Kernel, _) => "",
            (Scope::Framework, true) => ", under a framework's conventions",
            (Scope::Framework, false) => ", under a framework's conventions, as it claims",
        };
        format!("{} {} on {}{details}{scope}", h.name, h.version, h.device)
    });
    let conclusion = match code {
        PASS => "all pass",
        FINDINGS => "findings",
        _ => "nothing could be verified, or not all",
    };
    let title = if what.is_empty() { String::new() } else { format!("{what}\n\n") };
    args.json.say(&format!(
        "{title}{}\n{conclusion} (seed {}, {elapsed:.1} s)\n",
        text::check(&reports),
        args.seed
    ));
    if code == FINDINGS && args.save.is_none() {
        args.json.say("`--save FOLDER` keeps the smallest failing case for `assay replay`\n");
    }
    args.html.write(|| {
        html::exec(&reports, format!("{what}, seed {}, {elapsed:.1} s", args.seed)).render()
    })?;
    args.junit.write("assay exec", start, || junit::check(&reports))?;
    if let Some(path) = &args.json.json {
        let argv = args.command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        let framework =
            hello.as_ref().map_or(args.framework, |h| scope(args, h) == Scope::Framework);
        let scope = if framework { "framework" } else { "kernel" };
        let body = ExecBody { program: hello, argv, scope, kernels: reports };
        write_json(path, &Envelope::new("exec", result, Some(args.seed), elapsed, body))?;
    }
    Ok(code)
}

/// Saves the smallest case that shows each failing report's first finding.
fn save(folder: &Path, checked: &[Checked], scope: Scope) -> anyhow::Result<()> {
    for c in checked {
        let findings = c.report.judgement.verdict.findings();
        let Some(first) = findings.first() else { continue };
        let Some(replay) = c.smallest(scope)? else {
            let text = "no single case shows it: `--seed` repeats the whole check";
            say(&format!("{}: {} is not saved: {text}\n", c.report.kernel, first.name), true);
            continue;
        };
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let name: String =
            format!("{}-{}.safetensors", c.report.kernel, first.name).chars().map(plain).collect();
        let path = folder.join(name);
        replay.write(&path)?;
        say(&format!("{}: {}\n", path.display(), replay.label), true);
    }
    Ok(())
}
