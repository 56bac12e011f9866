//! Programs of the machine, run with a time limit.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::Machine;

/// Most of an output that is kept.
const MOST: usize = 1 << 20;
/// How long the pipes of a program that ended may stay open.
const SETTLE: Duration = Duration::from_millis(500);

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
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let Ok(mut child) = command.spawn() else { return Tool::Missing };
    let (out, err) = (Output::of(child.stdout.take()), Output::of(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < machine.limit => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => {
                // The group too: hipcc and many tools are scripts, whose children do the work.
                let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                let _ = group.map(|group| kill_process_group(group, Signal::KILL));
                let _ = child.kill();
                let _ = child.wait();
                return Tool::TimedOut;
            }
        }
    };
    // A daemon that it left behind may hold the pipes open: it is not waited for.
    let until = Instant::now() + SETTLE;
    Tool::Ran { success: status.success(), out: out.text(until), err: err.text(until) }
}

/// What comes out of a pipe, read by a thread of its own.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Output {
    fn of(from: Option<impl Read + Send + 'static>) -> Output {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (end, ended) = channel();
        let kept = bytes.clone();
        std::thread::spawn(move || {
            let mut from = from;
            let mut block = [0u8; 4096];
            while let Some(n) =
                from.as_mut().and_then(|f| f.read(&mut block).ok()).filter(|n| *n > 0)
            {
                // What comes after the limit is read and dropped, so that the program is not blocked.
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MOST.saturating_sub(kept.len()).min(n);
                kept.extend_from_slice(&block[..room]);
            }
            let _ = end.send(());
        });
        Output { bytes, ended }
    }

    /// All that was written, or what was by then.
    fn text(&self, until: Instant) -> String {
        let _ = self.ended.recv_timeout(until.saturating_duration_since(Instant::now()));
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
