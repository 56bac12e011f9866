//! Compiling kernel sources for the emulator, on demand, with the host's C++ compiler.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::module::Module;
use super::symbols::SOURCE_FILE;
use crate::error::Error;
use crate::matrix::Matrix;

/// How much a compiled kernel checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Full speed. Finds what faults, what is left unwritten, and misuse of barriers and
    /// wave operations.
    Plain,
    /// Every access is checked: races, uninitialised LDS and overlapping stores too, and
    /// bounds to the byte. Some ten to twenty times slower.
    Checked,
}

/// What a kernel may include, by the path it includes it as.
const HEADERS: [(&str, &str); 10] = [
    ("assay_bf16.h", include_str!("../../include/assay_bf16.h")),
    ("assay_matrix.h", include_str!("../../include/assay_matrix.h")),
    ("assay_fp8.h", include_str!("../../include/assay_fp8.h")),
    ("hip/hip_runtime.h", include_str!("../../emu/include/hip/hip_runtime.h")),
    ("assay_emu/abi.h", include_str!("../../emu/include/assay_emu/abi.h")),
    ("assay_emu/math.h", include_str!("../../emu/include/assay_emu/math.h")),
    ("assay_emu/wave.h", include_str!("../../emu/include/assay_emu/wave.h")),
    ("assay_emu/matrix.h", include_str!("../../emu/include/assay_emu/matrix.h")),
    ("assay_emu/atomics.h", include_str!("../../emu/include/assay_emu/atomics.h")),
    ("assay_emu/checks.h", include_str!("../../emu/include/assay_emu/checks.h")),
];

/// The arithmetic flags make the bits independent of the host: no contraction to FMA, no
/// reassociation. Line tables serve the findings.
const FLAGS: [&str; 12] = [
    "-x",
    "c++",
    "-std=c++17",
    "-g1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-w",
    "-Iinclude",
];

/// How many lines of a failed compilation are kept.
const DIAGNOSTIC_LINES: usize = 12;

/// The host's C++ compiler and the cache of what it compiled.
///
/// A module is looked up by a hash of the source, the headers, the flags and the
/// compiler's version, and compiled when it is not there. Processes may share the cache.
#[derive(Clone, Debug)]
pub struct Compiler {
    command: String,
    version: String,
    cache: PathBuf,
    matrix: Matrix,
}

impl Compiler {
    /// Finds a compiler: `$CXX` if it is set, else c++, g++ or clang++. The cache is `$ASSAY_CACHE_DIR`,
    /// else `assay` in the user's cache directory, else in the temporary directory.
    ///
    /// # Errors
    /// [`Error::NoCompiler`] if none of them runs.
    pub fn find() -> Result<Self, Error> {
        let named = std::env::var("CXX").ok().filter(|name| !name.is_empty());
        let usual = || ["c++", "g++", "clang++"].map(str::to_owned).to_vec();
        let candidates = named.map_or_else(usual, |name| vec![name]);
        let found = candidates.iter().find_map(|command| Some((command, version(command)?)));
        let (command, version) =
            found.ok_or_else(|| Error::NoCompiler { tried: candidates.join(", ") })?;
        let matrix = Matrix::None;
        Ok(Self { command: command.clone(), version, cache: default_cache(), matrix })
    }

    /// Keeps compiled modules in `directory` instead.
    #[must_use]
    pub fn with_cache(self, directory: impl Into<PathBuf>) -> Self {
        Self { cache: directory.into(), ..self }
    }

    /// Compiles for hardware with these matrix instructions; without this, for one with none.
    #[must_use]
    pub fn with_matrix(self, matrix: Matrix) -> Self {
        Self { matrix, ..self }
    }

    /// The first line that the compiler says of its version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Compiles a kernel source, unless the cache has it, and loads it.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's first lines, [`Error::Io`] when the cache
    /// can't be written, [`Error::Load`] when the result can't be loaded.
    pub fn compile(&self, source: &str, mode: Mode) -> Result<Module, Error> {
        let flags = self.flags(mode);
        let path = self.cache.join(format!("{}.so", self.key(source, &flags)));
        if !path.exists() {
            self.build(source, &flags, &path)?;
        }
        Module::load(&path, source, mode, self.matrix, &self.version)
    }

    fn is_clang(&self) -> bool {
        self.version.contains("clang")
    }

    fn flags(&self, mode: Mode) -> Vec<&'static str> {
        let mut flags = FLAGS.to_vec();
        // Fused multiply-add as one instruction where there is one. The bits are those of
        // the library call that is used otherwise.
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
            flags.extend(["-mfma", "-mavx2"]);
        }
        if mode == Mode::Checked {
            // A check that is the last call of a kernel would otherwise return past the line that made it.
            flags.push("-fno-optimize-sibling-calls");
        }
        match (mode, self.is_clang()) {
            (Mode::Plain, _) => flags.push("-O3"),
            (Mode::Checked, true) => flags.extend([
                "-O2",
                "-DASSAY_EMU_CHECKED",
                "-fsanitize=thread",
                "-mllvm",
                "-tsan-instrument-read-before-write",
                "-mllvm",
                "-tsan-instrument-func-entry-exit=0",
                "-mllvm",
                "-tsan-instrument-atomics=0", // the emulator's atomics report themselves
                "-fsanitize=array-bounds",
                "-fsanitize-recover=array-bounds",
            ]),
            (Mode::Checked, false) => flags.extend([
                "-O2",
                "-DASSAY_EMU_CHECKED",
                "-fsanitize=thread",
                "--param=tsan-instrument-func-entry-exit=0",
                "-fsanitize=bounds-strict",
                "-fsanitize-recover=bounds-strict",
            ]),
        }
        flags.extend(self.matrix.flag());
        if !self.is_clang() {
            flags.push("-fno-gnu-unique"); // lets the module be unloaded
        }
        flags
    }

    fn key(&self, source: &str, flags: &[&str]) -> String {
        let mut hash = Sha256::new();
        let parts = [self.command.as_str(), &self.version, source].into_iter();
        for part in parts.chain(flags.iter().copied()).chain(HEADERS.map(|(_, text)| text)) {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        hash.finalize()[..16].iter().fold(String::new(), |mut key, byte| {
            let _ = write!(key, "{byte:02x}"); // writing to a String can't fail
            key
        })
    }

    /// Compiles in a directory of its own and moves the result into place at once, so that
    /// nobody ever sees half a file.
    fn build(&self, source: &str, flags: &[&str], target: &Path) -> Result<(), Error> {
        std::fs::create_dir_all(&self.cache).map_err(Error::io("create", &self.cache))?;
        let scratch = tempfile::Builder::new()
            .prefix("compile-")
            .tempdir_in(&self.cache)
            .map_err(Error::io("create a directory in", &self.cache))?;
        let write = |name: &str, text: &str| {
            let path = scratch.path().join(name);
            let parent = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            parent.and_then(|()| std::fs::write(&path, text)).map_err(Error::io("write", path))
        };
        for (name, text) in HEADERS {
            write(&format!("include/{name}"), text)?;
        }
        write(SOURCE_FILE, source)?;
        // Linking is a step of its own, without -fsanitize: that would add its library.
        let compile = flags.iter().copied().chain(["-c", SOURCE_FILE, "-o", "kernel.o"]);
        self.execute(scratch.path(), compile)?;
        let link = ["-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs", "kernel.o", "-o", "kernel.so"];
        self.execute(scratch.path(), link)?;
        std::fs::rename(scratch.path().join("kernel.so"), target)
            .map_err(Error::io("write", target))
    }

    fn execute<'a>(
        &self,
        directory: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let output = Command::new(&self.command)
            .args(arguments)
            .current_dir(directory)
            .env("LC_ALL", "C")
            .output()
            .map_err(Error::io("run", &self.command))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().take(DIAGNOSTIC_LINES).collect();
        Err(Error::Compile { compiler: self.command.clone(), diagnostics: lines.join("\n") })
    }
}

fn version(command: &str) -> Option<String> {
    let output = Command::new(command).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then(|| text.lines().next().unwrap_or_default().to_owned())
}

fn default_cache() -> PathBuf {
    let directory =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    directory("ASSAY_CACHE_DIR").unwrap_or_else(|| {
        directory("XDG_CACHE_HOME")
            .or_else(|| directory("HOME").map(|home| home.join(".cache")))
            .filter(|parent| std::fs::create_dir_all(parent.join("assay")).is_ok())
            .unwrap_or_else(std::env::temp_dir)
            .join("assay")
    })
}
