//! Libraries of kernels: whether each has code for the devices that are here. One without falls back
//! to something slower, or answers zeros.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::devices::{gfx_names, list};
use super::{Check, Machine, folders};

/// Libraries that carry device code, by the beginning of their file names.
const CARRIERS: &[&str] = &[
    "librocblas",
    "libhipblaslt",
    "libMIOpen",
    "libmigraphx",
    "librccl",
    "libtorch_hip",
    "libaotriton",
    "libflash_attention",
    "liblightop",
    "libaiter",
];
/// Folders of tuned kernels beside their library, whose file names hold the arch.
const TUNED: &[&str] = &["rocblas/library", "hipblaslt/library"];
/// The target prefix of an AMD code object's entry in a fat binary.
const ENTRY: &[u8] = b"amdgcn-amd-amdhsa--gfx";
/// Most entries of a folder that are looked at.
const MOST: usize = 20_000;

pub(super) fn checks(machine: &Machine, archs: &BTreeSet<String>) -> Vec<Check> {
    const NAME: &str = "libraries";
    let found = carriers(machine);
    if found.is_empty() {
        return vec![Check::absent(
            NAME,
            "no library with device code in LD_LIBRARY_PATH or ROCm's folder",
        )];
    }
    let mut checks = Vec::new();
    for path in found {
        let has = match archs_of(&path) {
            Ok(has) => has,
            Err(e) => {
                checks.push(Check::warning(
                    NAME,
                    format!("{}: {e}", path.display()),
                    "see who may read it",
                ));
                continue;
            }
        };
        let name = path.display();
        if has.is_empty() {
            let found = format!(
                "{name}: no code object in it that can be read: it has none, or they are compressed"
            );
            checks.push(Check::absent(NAME, found));
            continue;
        }
        let missing: BTreeSet<String> = archs.difference(&has).cloned().collect();
        checks.push(if missing.is_empty() {
            Check::ok(NAME, format!("{name} has code for {}", list(&has)))
        } else {
            Check::bad(
                NAME,
                format!("{name} has code for {} and not for {}", list(&has), list(&missing)),
                "a kernel that is missing answers hipErrorNoBinaryForGpu, zeros, or a slow path: install the \
                 build of your DTK for this device, or turn this library off in the engine",
            )
        });
    }
    checks
}

/// Files that may carry device code, each once.
fn carriers(machine: &Machine) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = Vec::new();
    if let Some(rocm) = machine.rocm() {
        places.push(rocm.join("lib"));
        places.extend(TUNED.iter().map(|t| rocm.join("lib").join(t)));
    }
    let named = machine.var("LD_LIBRARY_PATH").unwrap_or_default();
    places.extend(named.split(':').filter(|p| !p.is_empty()).map(PathBuf::from));
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for place in places {
        let tuned = TUNED.iter().any(|t| place.ends_with(t));
        if tuned && place.is_dir() && seen.insert(place.clone()) {
            all.push(place);
            continue;
        }
        for entry in std::fs::read_dir(&place).into_iter().flatten().flatten().take(MOST) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let carries = CARRIERS.iter().any(|c| name.starts_with(c)) && name.contains(".so");
            // Links to one file are one library.
            let Ok(file) = entry.path().canonicalize() else { continue };
            if carries && file.is_file() && seen.insert(file.clone()) {
                all.push(file);
            }
        }
    }
    all
}

/// The architectures that a library, or a folder of tuned kernels, has code for.
fn archs_of(path: &Path) -> std::io::Result<BTreeSet<String>> {
    if path.is_dir() {
        let mut names = BTreeSet::new();
        let mut look = vec![path.to_path_buf()];
        while let Some(folder) = look.pop() {
            for entry in std::fs::read_dir(&folder)?.flatten().take(MOST) {
                names.extend(gfx_names(&entry.file_name().to_string_lossy()));
            }
            look.extend(folders(&folder));
        }
        return Ok(names);
    }
    let mut file = File::open(path)?;
    let mut names = BTreeSet::new();
    // Blocks that overlap by the longest entry.
    let keep = ENTRY.len() + 8;
    let mut block = vec![0u8; 1 << 20];
    let mut held = 0;
    loop {
        let n = file.read(&mut block[held..])?;
        if n == 0 {
            break;
        }
        let filled = held + n;
        entries(&block[..filled], &mut names);
        let from = filled.saturating_sub(keep);
        block.copy_within(from..filled, 0);
        held = filled - from;
    }
    Ok(names)
}

fn entries(bytes: &[u8], names: &mut BTreeSet<String>) {
    let starts = bytes.windows(ENTRY.len()).enumerate().filter(|(_, w)| *w == ENTRY);
    for (i, _) in starts {
        let from = i + ENTRY.len() - 3;
        let end = (from + 11).min(bytes.len());
        names.extend(gfx_names(&String::from_utf8_lossy(&bytes[from..end])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_across_blocks() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("librocblas.so.4");
        let mut bytes = vec![b'x'; (1 << 20) - 10];
        bytes.extend_from_slice(b"hipv4-amdgcn-amd-amdhsa--gfx928:sramecc+ ");
        bytes.extend_from_slice(&vec![0; 1 << 20]);
        bytes.extend_from_slice(b"hipv4-amdgcn-amd-amdhsa--gfx90a");
        std::fs::write(&path, bytes).expect("written");
        let names: Vec<String> = archs_of(&path).expect("read").into_iter().collect();
        assert_eq!(names, ["gfx90a", "gfx928"]);
    }
}
