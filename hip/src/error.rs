//! Everything that can keep a kernel from being run.

use std::path::PathBuf;

use crate::admit::Refusal;

/// Why a kernel could not be compiled or launched. What a launched kernel did wrong is
/// not an error but a [`MemoryFinding`](crate::MemoryFinding).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No C++ compiler for the emulator.
    #[error(
        "no C++ compiler found (tried {tried}): the kernel emulator needs one; install g++ or \
         clang++ (Debian: apt-get install g++), or name one in CXX"
    )]
    NoCompiler {
        /// The commands tried.
        tried: String,
    },
    /// The compiler rejected a kernel source.
    #[error("{compiler} rejects the kernel source:\n{diagnostics}")]
    Compile {
        /// The compiler's command.
        compiler: String,
        /// Its first lines of output.
        diagnostics: String,
    },
    /// A compiled kernel module could not be loaded.
    #[error("cannot load the compiled kernel {path}: {reason}")]
    Load {
        /// The shared object.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel source defines no such launcher.
    #[error("the kernel source defines no launcher `extern \"C\" int {launcher}(...)`")]
    NoLauncher {
        /// The function looked for.
        launcher: String,
    },
    /// A file of the module cache could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Device memory could not be had.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// The buffer.
        what: String,
        /// Its size.
        bytes: usize,
    },
    /// Kernels that a serving path needs and may not launch.
    #[error("not admitted:\n{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    NotAdmitted(Vec<Refusal>),
    /// A model that no engine of these kernels runs.
    #[error("the engine cannot run this model: {0}")]
    Unsupported(String),
    /// hipcc is missing, or does not compile a kernel.
    #[error("{0}")]
    Hipcc(String),
    /// A launch of the engine that did not end well.
    #[error("{kernel} at {probe}: {what}")]
    Launch {
        /// The kernel.
        kernel: &'static str,
        /// What it was to compute.
        probe: String,
        /// What happened.
        what: String,
    },
    /// The arguments are within the contract, and nothing was to be launched.
    #[error("nothing was launched: only the contract was asked for")]
    NotLaunched,
    /// An argument breaks the kernel's contract. Nothing was launched.
    #[error("{kernel}: {argument}: expected {expected}, got {given}")]
    Argument {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        argument: &'static str,
        /// What the contract asks.
        expected: String,
        /// What was passed.
        given: String,
    },
    /// The case is not one of this kernel's op.
    #[error(transparent)]
    Case(#[from] assay_reference::Error),
    /// The text that a source edit replaces does not occur exactly once.
    #[error("edit {edit}: its anchor occurs {occurrences} times in the kernel source, not once")]
    Anchor {
        /// The edit's name.
        edit: String,
        /// How often the anchor occurs.
        occurrences: usize,
    },
    /// The record of what was verified does not admit the kernel.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no HIP device, or this build can't use one.
    #[error("no HIP device: {reason}")]
    NoDevice {
        /// What the runtime said, or that the feature is off.
        reason: String,
    },
    /// A vendor's library is not installed, or lacks a function.
    #[error("no {library}: {reason}")]
    NoLibrary {
        /// `rocBLAS` or `hipBLASLt`.
        library: &'static str,
        /// What was tried, and what to install.
        reason: String,
    },
    /// A vendor's library answered an error.
    #[error("{call} answered {status}")]
    Library {
        /// The library's function.
        call: &'static str,
        /// The status by the library's own name, with its number.
        status: String,
    },
    /// The HIP runtime failed.
    #[error("{call} failed with HIP error {code} ({name})")]
    Hip {
        /// The runtime function.
        call: &'static str,
        /// Its `hipError_t`.
        code: i32,
        /// The same by name.
        name: String,
    },
}

impl Error {
    pub(crate) fn memory(what: &str, bytes: usize) -> Self {
        Self::Memory { what: what.to_owned(), bytes }
    }

    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
