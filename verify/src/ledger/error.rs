//! What can be wrong with a ledger.

use std::path::{Path, PathBuf};

/// Why a ledger, or a file about one, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// There is no such file.
    #[error("{}: there is no such ledger; `assay check --ledger` makes one", .0.display())]
    Missing(PathBuf),
    /// The file is not what was written.
    #[error(
        "{}: line {line}: {what}: the ledger was truncated or edited after it was written; restore \
         it from a copy, or move it away and check the kernels again", path.display()
    )]
    Damaged {
        /// The ledger.
        path: PathBuf,
        /// The first line that is wrong, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A later assay wrote it.
    #[error(
        "{}: is a ledger of version {version}, and this build reads version {}: use the assay \
         that wrote it, or a later one", path.display(), super::chain::VERSION
    )]
    Newer {
        /// The ledger.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// Beyond what is read into memory.
    #[error("{}: {what}; start a new ledger and keep this one", path.display())]
    TooLarge {
        /// The ledger.
        path: PathBuf,
        /// Which limit.
        what: String,
    },
    /// The system refuses.
    #[error("{}: cannot be {action}: {source}", path.display())]
    Io {
        /// What was tried, as a participle.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The list of required kernels makes no sense.
    #[error("{}: {what}", path.display())]
    Requirements {
        /// The list.
        path: PathBuf,
        /// What is wrong and what is expected.
        what: String,
    },
}

impl LedgerError {
    pub(super) fn io(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> LedgerError {
        let path = path.to_owned();
        move |source| LedgerError::Io { action, path, source }
    }
}
