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
    /// AMD's MFMA, as of gfx90a.
    Mfma,
    /// Hygon's MMAC, as of gfx928, gfx936 and gfx938.
    Mmac,
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
        let mut parts = arch.split(':');
        match parts.next() {
            Some("gfx90a" | "gfx942") => Self::Mfma,
            Some("gfx928" | "gfx936" | "gfx938") => Self::Mmac,
            _ => {
                let part = parts.next();
                Self::ALL.into_iter().find(|m| Some(m.name()) == part).unwrap_or_default()
            }
        }
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
