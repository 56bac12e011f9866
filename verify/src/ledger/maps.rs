//! What a process runs: the files that it mapped as code, by their content.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::LedgerError;

/// A file that a process mapped as code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappedObject {
    /// Where it was.
    pub path: PathBuf,
    /// sha256 of its content.
    pub sha256: String,
}

/// The files that the process `pid` has mapped executable, the program itself among them, by path.
/// Code without a file (a just-in-time compiler's) is not among them.
///
/// # Errors
/// When the process is not there or not ours, or when a file was removed or replaced since it was
/// mapped: then what runs is not what is on disk.
pub fn mapped_objects(pid: u32) -> Result<Vec<MappedObject>, LedgerError> {
    let maps = PathBuf::from(format!("/proc/{pid}/maps"));
    let text = std::fs::read_to_string(&maps).map_err(LedgerError::io("read", &maps))?;
    let mut paths: Vec<PathBuf> = text.lines().filter_map(code_file).map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    paths
        .into_iter()
        .map(|path| {
            if path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)") {
                let gone =
                    "was removed or replaced after the process mapped it: restart the process";
                return Err(LedgerError::io("hashed", &path)(std::io::Error::other(gone)));
            }
            // As the process sees it: it may run in a container.
            let seen = root.join(path.strip_prefix("/").unwrap_or(&path));
            Ok(MappedObject { sha256: hash_file(&seen)?, path })
        })
        .collect()
}

/// The file of an executable mapping: `7f00-7f01 r-xp 00000000 08:01 1234   /usr/lib/libc.so.6`.
fn code_file(line: &str) -> Option<&str> {
    let mut rest = line;
    let mut fields = [""; 5];
    for field in &mut fields {
        let (head, tail) = rest.trim_start_matches(' ').split_once(' ')?;
        (*field, rest) = (head, tail);
    }
    let path = rest.trim_start_matches(' ');
    // Anonymous files and devices hold no shared objects.
    let object = path.starts_with('/')
        && !["/memfd:", "/dev/", "/SYSV"].iter().any(|other| path.starts_with(other));
    (fields[1].contains('x') && object).then_some(path)
}

/// sha256 of a file, read in pieces.
///
/// # Errors
/// When it cannot be read.
pub(super) fn hash_file(path: &Path) -> Result<String, LedgerError> {
    let mut hash = Sha256::new();
    let mut file = File::open(path).map_err(LedgerError::io("read", path))?;
    std::io::copy(&mut file, &mut hash).map_err(LedgerError::io("read", path))?;
    Ok(format!("{:x}", hash.finalize()))
}

/// One key for a set of objects: sha256 over name and content of each, sorted. Folders do not enter:
/// the same libraries elsewhere are the same code.
pub fn objects_key(objects: &[MappedObject]) -> String {
    let name = |o: &MappedObject| o.path.file_name().unwrap_or_default().to_owned();
    let mut all: Vec<_> = objects.iter().map(|o| (name(o), &o.sha256)).collect();
    all.sort();
    let mut hash = Sha256::new();
    for (name, sha256) in all {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_encoded_bytes());
        hash.update(sha256);
    }
    format!("{:x}", hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_files_are_read_from_a_line_of_maps() {
        let line = "7f2a-7f2b r-xp 00026000 08:01 1234                       /usr/lib/my lib.so.6";
        assert_eq!(code_file(line), Some("/usr/lib/my lib.so.6"));
        for other in [
            "7f2a-7f2b r--p 00026000 08:01 1234                       /usr/lib/libc.so.6",
            "7ffd-7ffe r-xp 00000000 00:00 0                          [vdso]",
            "7f2a-7f2b rwxp 00000000 00:01 99                         /memfd:jit (deleted)",
            "7f2a-7f2b r-xp 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(code_file(other), None, "{other}");
        }
    }

    #[test]
    fn this_process_maps_its_own_program() {
        let objects = mapped_objects(std::process::id()).expect("our own process");
        let program = std::env::current_exe().and_then(|p| p.canonicalize()).expect("a path");
        let own = objects.iter().find(|o| o.path == program).expect("the program itself");
        // An independent hash of the same bytes: read at once.
        let bytes = std::fs::read(&program).expect("the program");
        assert_eq!(own.sha256, assay_hip::sha256(bytes));
        assert!(objects.iter().any(|o| o.path.to_string_lossy().contains(".so")), "{objects:?}");

        let key = objects_key(&objects);
        let mut moved = objects.clone();
        moved.reverse();
        moved[0].path = Path::new("/elsewhere").join(moved[0].path.file_name().expect("a name"));
        assert_eq!(objects_key(&moved), key, "folders and order do not matter");
        moved[0].sha256 = assay_hip::sha256("another build");
        assert_ne!(objects_key(&moved), key);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let error = mapped_objects(u32::MAX).expect_err("no such process");
        assert!(error.to_string().contains("/proc/4294967295/maps"), "{error}");
    }
}
