//! Restarts: a command that gets the switches in its environment and says whether the output is right.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command as Process, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Set, State, Suspects};

/// The command of a restart.
#[derive(Clone, Debug)]
pub struct Command {
    /// For `sh -c`.
    pub line: String,
    /// After so long it is stopped, and says nothing.
    pub timeout: Duration,
    /// How often each restart is repeated.
    pub repeats: usize,
}

/// Restarts with `on`: right when the command exits with 0 every time, wrong when it does so with 1 any time. Both
/// together is the second value: the fault comes and goes.
///
/// # Errors
/// When there is no shell.
pub fn run(command: &Command, suspects: &Suspects, on: &Set) -> anyhow::Result<(State, bool)> {
    let environment = suspects.environment(on);
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..command.repeats.max(1) {
        let mut process = Process::new("sh");
        process.arg("-c").arg(&command.line).envs(environment.iter().map(|(n, v)| (n, v)));
        // The text is assay's; what the command prints is for whoever watches.
        process.stdin(Stdio::null()).stdout(std::io::stderr()).process_group(0);
        let child =
            process.spawn().with_context(|| format!("`{}` cannot be started", command.line))?;
        match ended(child, command.timeout) {
            Some(0) => right += 1,
            Some(1) => wrong += 1,
            _ => {}
        }
    }
    let state = match (right, wrong) {
        (0, 0) => State::Inconclusive,
        (_, 0) if right == command.repeats.max(1) => State::Right,
        (_, 0) => State::Inconclusive,
        _ => State::Wrong,
    };
    Ok((state, right > 0 && wrong > 0))
}

/// The exit code, if it ends by itself in time; else it is stopped with all that it started.
fn ended(mut child: Child, timeout: Duration) -> Option<i32> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) if start.elapsed() < timeout => sleep(Duration::from_millis(20)),
            _ => break,
        }
    }
    let group = format!("-{}", child.id());
    let _ = Process::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.kill();
    let _ = child.wait();
    None
}
