//! The JSON report.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Version of the JSON report's schema.
pub(super) const VERSION: u32 = 1;

/// What every report starts with.
#[derive(Debug, Serialize)]
pub struct Envelope<T> {
    /// Schema version.
    pub assay_report: u32,
    /// Version of assay.
    pub version: &'static str,
    /// `check`, `mutants`, `diff`, `run` or `list`.
    pub command: &'static str,
    /// `pass`, `findings` or `skipped`: the exit code in words.
    pub result: &'static str,
    /// The seed that reproduces the run, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The command's own part.
    #[serde(flatten)]
    pub body: T,
    /// Wall-clock figures: the only part that differs between equal runs.
    pub timings: Timings,
}

/// Wall-clock figures.
#[derive(Debug, Serialize)]
pub struct Timings {
    /// Of the whole command.
    pub seconds: f64,
}

impl<T: Serialize> Envelope<T> {
    /// A report.
    pub fn new(
        command: &'static str,
        result: &'static str,
        seed: Option<u64>,
        seconds: f64,
        body: T,
    ) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Envelope {
            assay_report: VERSION,
            version,
            command,
            result,
            seed,
            body,
            timings: Timings { seconds: (seconds * 1e3).round() / 1e3 },
        }
    }
}

/// The file that a report is written to before it takes its name.
fn partial(target: &Path) -> PathBuf {
    let name = target.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    target.with_file_name(format!(".{name}.part"))
}

fn cannot(target: &Path, e: &std::io::Error) -> anyhow::Error {
    anyhow::anyhow!("{}: the report cannot be written: {e}", target.display())
}

/// Checks that a report can be written to `target`.
///
/// # Errors
/// When it cannot.
pub fn check_writable(target: &Path) -> anyhow::Result<()> {
    if target == Path::new("-") {
        return Ok(());
    }
    if target.is_dir() {
        anyhow::bail!("{}: the report cannot be written: is a folder", target.display());
    }
    let partial = partial(target);
    std::fs::File::create(&partial)
        .and_then(|_| std::fs::remove_file(&partial))
        .map_err(|e| cannot(target, &e))
}

/// Writes a report to a file, whole or not at all, or to standard output for `-`.
///
/// # Errors
/// When it cannot be written.
pub fn write_json<T: Serialize>(target: &Path, report: &T) -> anyhow::Result<()> {
    write_text(target, &(serde_json::to_string_pretty(report)? + "\n"))
}

/// Writes text to a file, whole or not at all, or to standard output for `-`.
///
/// # Errors
/// When it cannot be written.
pub fn write_text(target: &Path, text: &str) -> anyhow::Result<()> {
    if target == Path::new("-") {
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    let partial = partial(target);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, target)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&partial);
        cannot(target, &e)
    })
}
