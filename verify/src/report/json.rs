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

/// What a symbolic link points to, so that the link stays one; also where nothing is there yet.
fn real(target: &Path) -> PathBuf {
    if let Ok(path) = std::fs::canonicalize(target) {
        return path;
    }
    match std::fs::read_link(target) {
        Ok(to) => target.parent().unwrap_or(Path::new("")).join(to),
        Err(_) => target.to_owned(),
    }
}

/// Whether `target` is a file, or nothing yet. What else there is, as `/dev/null` or a pipe, is written to
/// and stays what it is: a rename would put a file in its place.
fn replaceable(target: &Path) -> bool {
    std::fs::metadata(target).map_or(true, |about| about.is_file())
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
    if !replaceable(target) {
        return Ok(());
    }
    let partial = partial(&real(target));
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

/// Writes text to a file, whole or not at all, to what is no file, as a pipe, or to standard output for
/// `-`.
///
/// # Errors
/// When it cannot be written.
pub fn write_text(target: &Path, text: &str) -> anyhow::Result<()> {
    if target == Path::new("-") {
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    if !replaceable(target) {
        let open = std::fs::File::options().write(true).open(target);
        return open
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| cannot(target, &e));
    }
    let real = real(target);
    let partial = partial(&real);
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, &real)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&partial);
        cannot(target, &e)
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_a_link_and_what_is_no_file_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        check_writable(&link).and_then(|()| write_text(&link, "new")).expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), "new");
        assert!(std::fs::symlink_metadata(&link).expect("the link").is_symlink());
        std::fs::remove_file(&file).expect("removed");
        write_text(&link, "again").expect("written where the link points to");
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), "again");
        assert!(std::fs::symlink_metadata(&link).expect("the link").is_symlink());

        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        check_writable(&socket).expect("not known yet");
        let e = write_text(&socket, "new").expect_err("a socket cannot be opened").to_string();
        assert!(e.contains("socket: the report cannot be written"), "{e}");
        let left = std::fs::read_dir(dir.path()).expect("the folder").count();
        assert!(std::fs::metadata(&socket).is_ok_and(|about| !about.is_file()) && left == 3);
    }
}
