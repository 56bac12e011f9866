//! The command line: parse, then run.

mod audit;
mod bisect;
mod check;
mod device_probe;
mod diff;
mod doctor;
mod exec;
mod gate;
mod kernels;
mod list;
mod make_model;
mod power;
mod probe;
mod progress;
mod replay;
mod resources;
mod run;
mod template;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use assay_reference::arith::fenv::DefaultEnv;
use assay_reference::arith::isa::Isa;
use assay_reference::machine;
use clap::{Args, Parser, Subcommand};

use crate::report;

/// Exit code: everything verified passed.
pub const PASS: u8 = 0;
/// Exit code: findings.
pub const FINDINGS: u8 = 1;
/// Exit code: bad usage or unreadable input.
pub const BAD_INPUT: u8 = 2;
/// Exit code: nothing could be verified.
pub const SKIPPED: u8 = 3;

/// Decides whether the kernels that serve a Qwen model compute the right numbers, and names the
/// fault when they do not.
#[derive(Debug, Parser)]
#[command(
    name = "assay",
    version,
    arg_required_else_help = true,
    after_help = "\
Exit codes: 0 pass, 1 findings, 2 bad usage or unreadable input, 3 nothing could be verified.

Examples:
  assay bisect MODEL --trace T            every suspect of a wrong service: what is convicted, what is cleared
  assay audit MODEL                       what is wrong with a checkpoint, in seconds
  assay check                             the HIP kernels on the built-in emulator
  assay check --mutants                   the same kernels broken on purpose: every one must be caught
  assay exec -- python -m assay_taps.exec --op rms_norm --with torch
                                          an op of torch on your device, through the same suite
  assay probe http://HOST:8000 --model M  a running server against the reference, from outside
  assay diff MODEL TRACE                  a recorded forward against the reference, op by op
  assay run MODEL --prompt 'The sky is'   the reference forward, greedy
  assay run MODEL --chat '1+1?'           the same, through the model's chat template"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Threads to use; results do not depend on it [default: all cores]
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Audit a checkpoint without running it: files, config, tensors, quantisation, tokenizer
    Audit(audit::AuditArgs),
    /// From a wrong service to a named fault: every suspect with its experiment, all of them run
    Bisect(Box<bisect::BisectArgs>),
    /// Check the HIP kernels on the emulator
    Check(check::CheckArgs),
    /// Check a program of yours: torch, vLLM's kernels, anything that speaks the protocol of docs/exec.md
    Exec(exec::ExecArgs),
    /// Run the reference forward on a checkpoint
    Run(Box<run::RunArgs>),
    /// Diff a recorded trace against the reference, op by op, on the trace's own inputs
    Diff(diff::DiffArgs),
    /// Print what the chat template makes of a conversation, and compare with a captured prompt or a server
    Template(template::TemplateArgs),
    /// Probe a running server from outside: its log-probabilities against the reference forward
    Probe(Box<probe::ProbeArgs>),
    /// Measure what the suite catches and how often it raises a false alarm, beside other criteria
    Power(power::PowerArgs),
    /// Ask a ledger whether the kernels that a service needs passed, as they are now
    Gate(gate::GateArgs),
    /// Examine this machine: driver, toolchain, libraries and Python that would mislead a service
    Doctor(doctor::DoctorArgs),
    /// Measure the arithmetic of a device, or of the emulator, with small probe kernels
    DeviceProbe(device_probe::ProbeArgs),
    /// Repeat the judgement of a saved case, or run a kernel on it
    Replay(replay::ReplayArgs),
    /// Write a synthetic checkpoint of any released shape: for benchmarks, and for trying commands without a download
    MakeModel(make_model::MakeModelArgs),
    /// Compile the kernels with hipcc and list their registers, shared memory and spills
    Kernels(resources::KernelsArgs),
    /// List ops, their variants, kernels, presets, mutants or finding codes
    List(list::ListArgs),
}

/// Where the JSON report goes.
#[derive(Debug, Args)]
struct JsonArgs {
    /// Write a JSON report to this file; `-` is standard output (text then goes to standard error)
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

impl JsonArgs {
    /// Whether standard output belongs to the JSON report.
    fn takes_stdout(&self) -> bool {
        self.json.as_deref() == Some(std::path::Path::new("-"))
    }

    /// Checks that the report can be written, before the work is done.
    fn check(&self) -> anyhow::Result<()> {
        self.json.as_deref().map_or(Ok(()), report::check_writable)
    }

    /// Prints text for people to the stream that is theirs.
    fn say(&self, text: &str) {
        say(text, self.takes_stdout());
    }
}

/// Where the JUnit report goes.
#[derive(Debug, Args)]
struct JunitArgs {
    /// Write a JUnit XML report to this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

impl JunitArgs {
    /// Checks that the report can be written, before the work is done.
    fn check(&self) -> anyhow::Result<()> {
        self.junit.as_deref().map_or(Ok(()), report::check_writable)
    }

    /// Writes the cases of `command`, if a report is wanted.
    fn write(
        &self,
        command: &str,
        start: std::time::Instant,
        cases: impl FnOnce() -> Vec<report::junit::TestCase>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.junit else { return Ok(()) };
        report::junit::write(path, command, start.elapsed().as_secs_f64(), &cases())
    }
}

/// Where the HTML report goes.
#[derive(Debug, Args)]
struct HtmlArgs {
    /// Write an HTML report to this file: one self-contained page, for sharing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl HtmlArgs {
    /// Checks that the report can be written, before the work is done.
    fn check(&self) -> anyhow::Result<()> {
        match self.html.as_deref() {
            Some(path) if path == std::path::Path::new("-") => {
                anyhow::bail!("--html needs a file: standard output has the text")
            }
            path => path.map_or(Ok(()), crate::report::check_writable),
        }
    }

    /// Writes the page, if one was asked for.
    fn write(&self, page: impl FnOnce() -> String) -> anyhow::Result<()> {
        self.html.as_deref().map_or(Ok(()), |path| crate::report::write_text(path, &page()))
    }
}

/// Prints to standard output or standard error; a reader that went away is not an error.
fn say(text: &str, to_stderr: bool) {
    let _ = if to_stderr {
        std::io::stderr().write_all(text.as_bytes())
    } else {
        std::io::stdout().write_all(text.as_bytes())
    };
}

/// The largest kernel source that is read, far above any by hand.
const MAX_SOURCE: u64 = 4 << 20;

/// The text of a kernel source, from a file or a pipe.
///
/// # Errors
/// When it cannot be read, is not UTF-8, or is larger than [`MAX_SOURCE`].
fn read_source(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(MAX_SOURCE + 1).read_to_string(&mut text));
    let read = read.with_context(|| format!("{}: cannot be read", path.display()))?;
    if read as u64 > MAX_SOURCE {
        anyhow::bail!("{}: has more than {MAX_SOURCE} bytes: no kernel source", path.display());
    }
    Ok(text)
}

/// Parses the arguments, runs the command and returns the process's exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { BAD_INPUT } else { PASS });
        }
    };
    if let Err(what) = Isa::select_from_env() {
        say(&format!("assay: {what}\n"), true);
        return ExitCode::from(BAD_INPUT);
    }
    machine::prepare();
    match dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            say(&format!("assay: {}\n", chain(&e)), true);
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// An error and its causes; a cause that its error's text already holds is not repeated.
fn chain(e: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in e.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text += if text.is_empty() { "" } else { ": " };
            text += &cause;
        }
    }
    text
}

/// More than any machine's cores.
const MOST_THREADS: usize = 1024;

fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    if cli.threads == Some(0) {
        anyhow::bail!("--threads must be at least 1");
    }
    if cli.threads.is_some_and(|n| n > MOST_THREADS) {
        anyhow::bail!("--threads must be at most {MOST_THREADS}");
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(cli.threads.unwrap_or(0))
        // A host library built with fast-math may have set flushing for new threads.
        .start_handler(|_| std::mem::forget(DefaultEnv::enter()))
        .build()?;
    pool.install(|| match cli.command {
        Command::Audit(args) => audit::run(&args),
        Command::Bisect(args) => bisect::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Exec(args) => exec::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Template(args) => template::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Power(args) => power::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::DeviceProbe(args) => device_probe::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::MakeModel(args) => make_model::run(&args),
        Command::Kernels(args) => resources::run(&args),
        Command::List(args) => list::run(&args),
    })
}
