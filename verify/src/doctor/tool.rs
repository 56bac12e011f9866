//! Programs of the machine, run with a time limit.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Machine;

/// Most of an output that is kept.
const MOST: u64 = 1 << 20;

/// What a program answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tool {
    /// There is no such program.
    Missing,
    /// It was ended after the time limit.
    TimedOut,
    /// It ran.
    Ran {
        /// Whether its exit status was 0.
        success: bool,
        /// Standard output.
        out: String,
        /// Standard error.
        err: String,
    },
}

impl Tool {
    /// Its standard output, if it succeeded.
    pub fn output(&self) -> Option<&str> {
        match self {
            Tool::Ran { success: true, out, .. } => Some(out),
            _ => None,
        }
    }

    /// Why there is no output, in one line.
    pub fn failure(&self) -> String {
        match self {
            Tool::Missing => "is not installed".into(),
            Tool::TimedOut => "did not end in time".into(),
            Tool::Ran { err, out, .. } => {
                let last = |s: &str| s.lines().rfind(|l| !l.trim().is_empty()).map(str::to_owned);
                last(err).or_else(|| last(out)).unwrap_or_else(|| "failed without a word".into())
            }
        }
    }
}

/// Runs a program with the machine's environment and nothing on standard input.
pub(super) fn run(machine: &Machine, program: &str, args: &[&str]) -> Tool {
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(&machine.env);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else { return Tool::Missing };
    fn read(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                // What comes after the limit is read and dropped, so that the program is not blocked.
                let _ = from.by_ref().take(MOST).read_to_end(&mut bytes);
                let _ = std::io::copy(&mut from, &mut std::io::sink());
            }
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let (out, err) = (read(child.stdout.take()), read(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < machine.limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                // Its own children may hold the pipes open: what they wrote is not waited for.
                return Tool::TimedOut;
            }
        }
    };
    let text = |t: std::thread::JoinHandle<String>| t.join().unwrap_or_default();
    Tool::Ran { success: status.success(), out: text(out), err: text(err) }
}
