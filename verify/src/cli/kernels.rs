//! Running models on this crate's kernels: which, and where.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use assay_hip::Matrix;
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
    /// With --backend emu: build the kernels as for hardware with these matrix instructions
    #[arg(long, value_enum, requires = "backend")]
    matrix: Option<Instructions>,
}

/// Matrix instructions of the hardware that a kernel is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Instructions {
    /// None: the vector unit alone
    None,
    /// AMD's MFMA (gfx90a)
    Mfma,
    /// Hygon's MMAC (gfx928, gfx936, gfx938)
    Mmac,
}

impl From<Instructions> for Matrix {
    fn from(it: Instructions) -> Matrix {
        match it {
            Instructions::None => Matrix::None,
            Instructions::Mfma => Matrix::Mfma,
            Instructions::Mmac => Matrix::Mmac,
        }
    }
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
        if self == OnKernels::Hip && replaced.matrix.is_some() {
            bail!("--matrix is for the emulator: on a device the architecture decides");
        }
        match self {
            OnKernels::Emu => {
                let matrix = replaced.matrix.map_or(Matrix::None, Matrix::from);
                Ok(Kernels::emulated(&sources, matrix)?)
            }
            OnKernels::Hip => Ok(Kernels::device()?),
        }
    }
}
