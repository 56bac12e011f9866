//! Ledgers on disk: read with bounded memory, rewritten whole under a lock.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::chain::MAX_FILE;
use super::{Entry, Ledger, LedgerError};

impl Ledger {
    /// Reads a ledger.
    ///
    /// # Errors
    /// [`LedgerError::Missing`] when there is none, and those of [`Ledger::parse`].
    pub fn read(path: &Path) -> Result<Ledger, LedgerError> {
        let failed = || LedgerError::io("read", path);
        let about = fs::metadata(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => LedgerError::Missing(path.to_owned()),
            _ => failed()(e),
        })?;
        let too_large = || LedgerError::TooLarge {
            path: path.to_owned(),
            what: format!("is larger than {MAX_FILE} bytes"),
        };
        // To open a pipe would wait for its writer.
        if !about.is_file() {
            return Err(failed()(std::io::Error::other("is not a file")));
        }
        if about.len() > MAX_FILE as u64 {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(failed())?;
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(failed())?;
        if bytes.len() > MAX_FILE {
            return Err(too_large());
        }
        Ledger::parse(&bytes, path)
    }
}

/// The file itself: the one that a symbolic link points to.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{suffix}"))
}

/// Holds the lock of a ledger until it is dropped. Its file stays: to remove it would let two writers
/// hold two locks.
fn lock(path: &Path) -> Result<File, LedgerError> {
    let path = beside(path, "lock");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.map_err(LedgerError::io("opened", &path))?;
    file.lock().map_err(LedgerError::io("locked", &path))?;
    Ok(file)
}

/// Checks, before the work is done, that entries can be appended to the ledger.
///
/// # Errors
/// When the ledger is damaged, or its folder cannot be written.
pub fn check_writable(path: &Path) -> Result<(), LedgerError> {
    let path = &real(path);
    let _lock = lock(path)?;
    read_or_new(path)?;
    let part = beside(path, "part");
    File::create(&part)
        .and_then(|_| fs::remove_file(&part))
        .map_err(LedgerError::io("written", path))
}

fn read_or_new(path: &Path) -> Result<Ledger, LedgerError> {
    match Ledger::read(path) {
        Err(LedgerError::Missing(_)) => Ok(Ledger::new()),
        other => other,
    }
}

/// Appends entries to a ledger, which is made if there is none, and returns it as it is now. Writers
/// wait for each other; a reader sees the ledger before or after, and after an error it is as it was.
///
/// # Errors
/// When the ledger is damaged or cannot be written.
pub fn append(
    path: &Path,
    entries: impl IntoIterator<Item = Entry>,
) -> Result<Ledger, LedgerError> {
    let path = &real(path);
    let _lock = lock(path)?;
    let mut ledger = read_or_new(path)?;
    for entry in entries {
        ledger.push(entry, path)?;
    }
    let part = beside(path, "part");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&part)?;
        file.write_all(&ledger.to_bytes())?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&part);
        LedgerError::io("written", path)(e)
    })?;
    // The rename itself survives a crash only when the folder is synced; not all file systems can.
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(ledger)
}
