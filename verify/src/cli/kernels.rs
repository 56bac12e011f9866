//! Running models on this crate's kernels: which, and where.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use assay_hip::engine::Kernels;
use clap::{Args, ValueEnum};

use super::read_source;

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnKernels {
    /// The embedded emulator
    Emu,
    /// A HIP device; needs a build with feature `hip`
    Hip,
}

/// A kernel from another source.
#[derive(Debug, Args)]
pub(super) struct Replaced {
    /// With --backend emu: take this kernel from --source
    #[arg(long, value_name = "NAME", requires = "source", requires = "backend")]
    kernel: Option<String>,
    /// The source file of --kernel; it must define the same launchers
    #[arg(long, value_name = "FILE", requires = "kernel")]
    source: Option<PathBuf>,
}

impl OnKernels {
    /// All kernels there.
    pub(super) fn kernels(self, replaced: &Replaced) -> anyhow::Result<Kernels> {
        let mut sources = BTreeMap::new();
        if let (Some(name), Some(path)) = (&replaced.kernel, &replaced.source) {
            ensure!(self == OnKernels::Emu, "--source is compiled for the emulator");
            if assay_hip::kernel(name).is_none() {
                bail!("unknown kernel `{name}`; `assay list kernels` names them");
            }
            sources.insert(name.as_str(), read_source(path)?);
        }
        match self {
            OnKernels::Emu => Ok(Kernels::emulated(&sources)?),
            OnKernels::Hip => Ok(Kernels::device()?),
        }
    }
}
