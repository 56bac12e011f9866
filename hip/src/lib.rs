//! HIP kernels for Qwen models and what is needed to run them: on the CPU with the
//! emulator ([`emu`]), or on a device with feature `hip`.
//!
//! [`kernels()`] lists the kernels. Each has a typed `launch` in its module under
//! [`kernels`](mod@kernels), checks its contract before touching a device, and returns the
//! outputs with a [`LaunchReport`].

#[cfg(not(target_os = "linux"))]
compile_error!("the kernel emulator needs Linux: it works on ELF symbols, mmap and signals");

mod admit;
mod backend;
mod cells;
pub mod code_object;
mod contract;
#[cfg(feature = "hip")]
mod device;
mod edits;
pub mod emu;
pub mod engine;
mod error;
mod finding;
mod identity;
#[path = "../kernels/mod.rs"]
pub mod kernels;
mod matrix;
mod options;
pub mod probe;
pub mod vendor;

pub use admit::{Admission, Admit, Admitted, Refusal};
pub use backend::{Backend, Launched};
pub use cells::Cells;
#[cfg(feature = "hip")]
pub use device::HipDevice;
pub use edits::{Mutant, Replacement, SourceEdit, mutate};
pub use error::Error;
pub use finding::{Divergence, LaunchReport, LaunchStatus, MemoryFinding, Severity, Site};
pub use identity::{BackendKind, Identity, sha256};
pub use kernels::{Kernel, kernel, kernels};
pub use matrix::{Arch, Matrix};
pub use options::LaunchOptions;
