//! Builds of a kernel by the matrix instructions that they use.
//!
//! On a device the architecture decides, through the compiler's macros; on the emulator each build
//! is compiled and checked by itself (`assay_matrix.h`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// The matrix instructions of a build.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Matrix {
    /// None: everything on the vector unit.
    #[default]
    None,
    /// AMD's MFMA, those of gfx90a.
    Mfma,
    /// Hygon's MMAC.
    Mmac,
}

/// An architecture of devices, as far as kernels and their compilers must know it.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    /// `gfx928`.
    pub name: &'static str,
    /// Its instructions of 16 x 16 x 16 on bf16, where they are public; `assay_matrix.h` has the same.
    pub matrix: Matrix,
    /// Made by Hygon: only the hipcc of its DTK knows it.
    pub dtk_only: bool,
}

impl Arch {
    /// All that are known, in the order of their names. Others are taken for AMD's without matrix
    /// instructions.
    pub const ALL: &'static [Arch] = &[
        Arch { name: "gfx906", matrix: Matrix::None, dtk_only: false },
        // MFMA, but on bf16 only in an older form.
        Arch { name: "gfx908", matrix: Matrix::None, dtk_only: false },
        Arch { name: "gfx90a", matrix: Matrix::Mfma, dtk_only: false },
        Arch { name: "gfx926", matrix: Matrix::None, dtk_only: true },
        Arch { name: "gfx928", matrix: Matrix::Mmac, dtk_only: true },
        Arch { name: "gfx92a", matrix: Matrix::None, dtk_only: true },
        Arch { name: "gfx936", matrix: Matrix::Mmac, dtk_only: true },
        Arch { name: "gfx938", matrix: Matrix::Mmac, dtk_only: true },
        Arch { name: "gfx942", matrix: Matrix::Mfma, dtk_only: false },
        Arch { name: "gfx946", matrix: Matrix::None, dtk_only: true },
    ];

    /// The one of this name; features may follow it: `gfx928:sramecc+:xnack-`.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Arch> {
        let name = name.split(':').next();
        Self::ALL.iter().find(|arch| Some(arch.name) == name)
    }
}

/// The header with which a source states that it has matrix paths.
const HEADER: &str = "#include \"assay_matrix.h\"";

impl Matrix {
    /// All of them, [`Matrix::None`] first.
    pub const ALL: [Self; 3] = [Self::None, Self::Mfma, Self::Mmac];

    /// The builds of a kernel source: all if it includes `assay_matrix.h`, else the plain one.
    #[must_use]
    pub fn builds(source: &str) -> &'static [Self] {
        if source.contains(HEADER) { &Self::ALL } else { &[Self::None] }
    }

    /// `none`, `mfma`, `mmac`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mfma => "mfma",
            Self::Mmac => "mmac",
        }
    }

    /// The build that a compiler makes for an architecture: `gfx90a:sramecc+:xnack-`, or the
    /// emulator's `x86_64:mmac`.
    #[must_use]
    pub fn of_arch(arch: &str) -> Self {
        if let Some(known) = Arch::named(arch) {
            return known.matrix;
        }
        let part = arch.split(':').nth(1);
        Self::ALL.into_iter().find(|m| Some(m.name()) == part).unwrap_or_default()
    }

    /// The emulator's architecture with these instructions: `x86_64`, `x86_64:mmac`.
    #[must_use]
    pub fn emulated_arch(self) -> String {
        match self {
            Self::None => std::env::consts::ARCH.to_owned(),
            other => format!("{}:{other}", std::env::consts::ARCH),
        }
    }

    /// How a report calls this build of a kernel: `gemm_bf16`, `gemm_bf16 [mmac]`.
    #[must_use]
    pub fn label(self, kernel: &str) -> String {
        match self {
            Self::None => kernel.to_owned(),
            other => format!("{kernel} [{other}]"),
        }
    }

    /// What tells the emulator's compiler.
    pub(crate) fn flag(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Mfma => Some("-DASSAY_EMU_MATRIX_MFMA"),
            Self::Mmac => Some("-DASSAY_EMU_MATRIX_MMAC"),
        }
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
