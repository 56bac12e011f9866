//! Names and source lines of a compiled module: which LDS variable lies where, and
//! which line of the kernel an address belongs to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, SymbolKind};

use super::ffi::LdsSymbol;
use crate::error::Error;

/// What the compiler was told the kernel source is called.
pub(super) const SOURCE_FILE: &str = "kernel.hip";

const ANCHOR: &str = "assay_emu_anchor";

/// The `__shared__` variables of a module.
pub(super) struct SharedVariables {
    /// Offsets relative to the anchor.
    pub(super) places: Vec<LdsSymbol>,
    /// The variables' own names, in the same order.
    pub(super) names: Vec<String>,
    /// Bytes of the kernel that declares most.
    pub(super) most_bytes: usize,
}

impl SharedVariables {
    /// Reads them from the symbol table of the shared object at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let load = |reason: String| Error::Load { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        let file = object::File::parse(&*bytes).map_err(|e| load(e.to_string()))?;
        let mut anchor = None;
        let mut found = Vec::new();
        let mut by_kernel: BTreeMap<String, usize> = BTreeMap::new();
        for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Tls) {
            let name = symbol.name().unwrap_or_default();
            if name.contains(ANCHOR) {
                anchor = Some(symbol.address());
            } else if !name.contains("assay_emu") && symbol.size() > 0 {
                let bytes = symbol.size() as usize;
                let full = full_name(name);
                let (kernel, own) = full.rsplit_once("::").unwrap_or(("", &full));
                *by_kernel.entry(kernel.to_owned()).or_insert(0) += bytes;
                found.push((symbol.address(), bytes, own.to_owned()));
            }
        }
        let anchor = anchor.ok_or_else(|| load(format!("it has no symbol {ANCHOR}")))?;
        found.sort();
        found.dedup();
        let place = |&(address, bytes, _): &(u64, usize, String)| LdsSymbol {
            offset: address as i64 - anchor as i64,
            bytes,
        };
        let places = found.iter().map(place).collect();
        Ok(Self {
            places,
            names: found.into_iter().map(|(_, _, name)| name).collect(),
            most_bytes: by_kernel.into_values().max().unwrap_or(0),
        })
    }

    /// The variables that a source line mentions.
    pub(super) fn mentioned_in(&self, line: &str) -> Option<String> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut names: Vec<&str> = line
            .split(|c: char| !is_word(c))
            .filter(|word| self.names.iter().any(|name| name == word))
            .collect();
        names.sort_unstable();
        names.dedup();
        (!names.is_empty()).then(|| names.join(" or "))
    }
}

/// The mangled `kernel(unsigned short const*)::tile` as it was written.
fn full_name(mangled: &str) -> String {
    let demangled = cpp_demangle::Symbol::new(mangled).ok().and_then(|s| s.demangle().ok());
    demangled.unwrap_or_else(|| mangled.to_owned())
}

/// Maps addresses of a module to lines of the kernel source.
pub(super) struct Lines(Option<addr2line::Loader>);

impl Lines {
    pub(super) fn open(path: &PathBuf) -> Self {
        Self(addr2line::Loader::new(path).ok())
    }

    /// The line of the kernel source that made the call returning to `pc`; for code
    /// inlined from a header, the line that uses it.
    pub(super) fn line(&self, pc: u64) -> Option<u32> {
        let mut frames = self.0.as_ref()?.find_frames(pc.checked_sub(1)?).ok()?;
        while let Ok(Some(frame)) = frames.next() {
            if let Some(location) = frame.location
                && location.file.is_some_and(|file| file.ends_with(SOURCE_FILE))
            {
                return location.line;
            }
        }
        None
    }
}
