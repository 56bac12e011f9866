//! What exactly would run: a kernel's identity on a backend, by content and not by name.

use std::fmt::{self, Write as _};

use object::{Object, ObjectSection, SectionFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::backend::Backend;
use crate::error::Error;
use crate::kernels::Kernel;
use crate::probe::Probe;

/// What runs a kernel. Evidence from one kind says nothing of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendKind {
    /// The emulator of this crate, on the CPU.
    Emu,
    /// A HIP device.
    Hip,
    /// Another process, with code of its own: never what this crate launches.
    Process,
}

impl BackendKind {
    /// `emu`, `hip`, `process`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Emu => "emu",
            Self::Hip => "hip",
            Self::Process => "process",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What decides a kernel's bits on a backend. Two launches of one identity run the same machine code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Kernel name.
    pub kernel: String,
    /// What runs it.
    pub backend: BackendKind,
    /// `x86_64` for the emulator, `x86_64:mmac` for a build with matrix instructions there, what
    /// the runtime calls the device's architecture (`gfx906`) for a device.
    pub arch: String,
    /// sha256 of the source, 64 hexadecimal digits.
    pub source: String,
    /// sha256 of the machine code: of what the emulator's compiler made and a loader maps, or of
    /// the device code that was built in.
    pub code: String,
    /// The compiler that made the code, by its own words.
    pub toolchain: String,
    /// What runs the code: the emulator, or the HIP runtime, its driver and the device.
    pub runtime: String,
}

/// sha256 as 64 hexadecimal digits.
#[must_use]
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(Sha256::digest(bytes.as_ref()).as_slice())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String can't fail
        text
    })
}

/// Not part of [`loaded_code`]: a hash over the whole file, debug information included.
const BUILD_ID: &str = ".note.gnu.build-id";

/// sha256 of what a loader maps of a shared object: name, address, size and content of every
/// allocated section. Debug information, which holds the path that it was compiled in, is left out,
/// so that equal compilations give equal hashes. `None` when `file` is no ELF object.
pub(crate) fn loaded_code(file: &[u8]) -> Option<String> {
    let object = object::File::parse(file).ok()?;
    let mut hash = Sha256::new();
    for section in object.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else { return None };
        let name = section.name_bytes().ok()?;
        if sh_flags & u64::from(object::elf::SHF_ALLOC) == 0 || name == BUILD_ID.as_bytes() {
            continue;
        }
        // Empty for sections that the loader fills with zeros.
        let data = section.data().ok()?;
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        for number in [section.address(), section.size(), data.len() as u64] {
            hash.update(number.to_le_bytes());
        }
        hash.update(data);
    }
    Some(hex(hash.finalize().as_slice()))
}

/// sha256 of the device code in an object file that hipcc made: its section `.hip_fatbin`.
#[cfg(feature = "hip")]
pub(crate) fn device_code(file: &[u8]) -> Option<String> {
    let object = object::File::parse(file).ok()?;
    let section = object.section_by_name(".hip_fatbin")?;
    Some(sha256(section.data().ok()?))
}

impl Backend {
    /// What runs kernels here.
    #[must_use]
    pub fn kind(&self) -> BackendKind {
        match self {
            // The contract is the same everywhere, and nothing can be admitted by it.
            Self::Emulated(_) | Self::Contract => BackendKind::Emu,
            #[cfg(feature = "hip")]
            Self::Device(_) => BackendKind::Hip,
            Self::Library(library) => library.kind(),
        }
    }

    /// What a launch of `kernel` on this backend runs.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Load`] when the compiled module's file is gone or is none, and
    /// [`Error::NoLauncher`] for a kernel that was not built in for the device.
    pub fn identity(&self, kernel: &Kernel) -> Result<Identity, Error> {
        self.identity_of(kernel.name, kernel.source)
    }

    /// The same of a probe; its name in it is `probe.NAME`, so that it never stands for a kernel.
    ///
    /// # Errors
    /// As for [`Backend::identity`].
    pub fn probe_identity(&self, probe: &Probe) -> Result<Identity, Error> {
        self.identity_of(&format!("probe.{}", probe.name), probe.source)
    }

    #[cfg_attr(not(feature = "hip"), allow(unused_variables, reason = "a device has one source"))]
    fn identity_of(&self, name: &str, source: &str) -> Result<Identity, Error> {
        match self {
            Self::Emulated(module) => Ok(Identity {
                kernel: name.to_owned(),
                backend: BackendKind::Emu,
                arch: module.matrix().emulated_arch(),
                source: sha256(module.source()),
                code: module.code_sha256()?,
                toolchain: module.toolchain().to_owned(),
                runtime: concat!("assay emulator ", env!("CARGO_PKG_VERSION")).to_owned(),
            }),
            #[cfg(feature = "hip")]
            Self::Device(device) => Ok(Identity {
                kernel: name.to_owned(),
                backend: BackendKind::Hip,
                arch: device.arch().to_owned(),
                source: sha256(source),
                code: match name.strip_prefix("probe.") {
                    Some(probe) => crate::probe::device_object(probe),
                    None => crate::kernels::device_object(name),
                }
                .and_then(device_code)
                .ok_or_else(|| Error::NoLauncher { launcher: name.to_owned() })?,
                toolchain: env!("ASSAY_HIPCC_VERSION").to_owned(),
                runtime: device.runtime(),
            }),
            Self::Library(library) => library.identity(name),
            Self::Contract => Err(Error::NotLaunched),
        }
    }
}
