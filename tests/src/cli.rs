//! The `assay` binary as its users meet it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The binary beside this test: `cargo test` makes this package's own before it runs the tests, from
/// the same library (`tests/src/main.rs`).
///
/// # Panics
/// When it is not there.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        // target/<profile>/deps/<test>
        let profile = test.ancestors().nth(2).expect("target/<profile>");
        let binary = profile.join(format!("assay-tested{}", std::env::consts::EXE_SUFFIX));
        assert!(binary.exists(), "{}: cargo makes it with the tests", binary.display());
        binary
    })
}

/// How a run of the binary ended.
#[derive(Clone, Debug)]
pub struct Run {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs `assay` with these arguments.
///
/// # Panics
/// When it cannot be started, is killed by a signal, or prints what is not UTF-8.
#[track_caller]
pub fn assay<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let Output { status, stdout, stderr } =
        Command::new(binary()).args(args).output().expect("assay starts");
    Run {
        code: status.code().expect("assay was not killed"),
        stdout: String::from_utf8(stdout).expect("UTF-8 on stdout"),
        stderr: String::from_utf8(stderr).expect("UTF-8 on stderr"),
    }
}

/// Runs `assay` on input that it must refuse: exit code 2, nothing on standard output, one paragraph
/// on standard error that says each of `named`.
///
/// # Panics
/// When it does otherwise.
#[track_caller]
pub fn refused<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>, named: &[&str]) {
    let run = assay(args);
    assert_eq!(run.code, 2, "{run:#?}");
    assert_eq!(run.stdout, "", "{run:#?}");
    let text = run.stderr.strip_prefix("assay: ").unwrap_or_else(|| panic!("{run:#?}"));
    assert!(text.ends_with('\n') && !text.trim_end().contains('\n'), "one paragraph: {run:#?}");
    for banned in ["panicked", "RUST_BACKTRACE", "called `", "Os {"] {
        assert!(!text.contains(banned), "{run:#?}");
    }
    for name in named {
        assert!(text.contains(name), "`{name}` is not named: {run:#?}");
    }
}

/// Runs a command to its end and gives its exit code with the most memory that it held, in KiB: the kernel
/// keeps the highest, and what the process took after the last look is not seen.
///
/// # Panics
/// When it cannot be started, or is killed by a signal.
#[track_caller]
pub fn watched(command: &mut Command) -> (i32, u64) {
    let mut child = command.spawn().expect("assay starts");
    let mut most = 0;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let peak = status.ok().and_then(|status| {
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
            line.split_whitespace().next()?.parse().ok()
        });
        most = most.max(peak.unwrap_or(0));
        if let Some(status) = child.try_wait().expect("its state") {
            return (status.code().expect("assay was not killed"), most);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
