//! The `assay` binary as its users meet it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The binary beside this test, built once when it is not there or older than the library.
///
/// # Panics
/// When it cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        // target/<profile>/deps/<test>
        let profile = test.ancestors().nth(2).expect("target/<profile>");
        let target = profile.parent().expect("target");
        let release = profile.ends_with("release");
        let binary = profile.join(format!("assay{}", std::env::consts::EXE_SUFFIX));
        // Newer than this test: made from the same sources. Else ask cargo, which builds it only when
        // it is out of date (`cargo test` makes the binaries of no other package).
        let modified = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
        if modified(&binary).is_some_and(|m| Some(m) > modified(&test)) {
            return binary;
        }
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--offline",
            "--package",
            "assay-verify",
            "--bin",
            "assay",
        ]);
        build.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        if release {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the assay binary builds");
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
