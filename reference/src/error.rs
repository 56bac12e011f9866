//! The error type of the crate: every variant names the file or op, the expectation and what was found.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with input.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file was read but its content is not what its format says.
    #[error("{path}: {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, what was expected, and what to do.
        what: String,
    },
    /// A tensor in a file is not what is needed.
    #[error("{path}: tensor `{tensor}`: {what}")]
    Tensor {
        /// The file (or folder) that should hold the tensor.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong and what was expected.
        what: String,
    },
    /// An op was given arguments outside its contract.
    #[error("{op}: argument `{arg}`: {what}")]
    Arg {
        /// The op.
        op: &'static str,
        /// The argument.
        arg: String,
        /// The expectation and what was given.
        what: String,
    },
    /// A case, trace or request that makes no sense.
    #[error("{0}")]
    Request(String),
}

impl Error {
    /// An [`Error::Io`] at `path`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { path, source }
    }

    /// An [`Error::File`].
    pub fn file(path: impl AsRef<Path>, what: impl Into<String>) -> Error {
        Error::File { path: path.as_ref().to_path_buf(), what: what.into() }
    }

    /// An [`Error::Tensor`].
    pub fn tensor(
        path: impl AsRef<Path>,
        tensor: impl Into<String>,
        what: impl Into<String>,
    ) -> Error {
        Error::Tensor {
            path: path.as_ref().to_path_buf(),
            tensor: tensor.into(),
            what: what.into(),
        }
    }

    /// An [`Error::Arg`].
    pub fn arg(op: &'static str, arg: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Arg { op, arg: arg.into(), what: what.into() }
    }
}
