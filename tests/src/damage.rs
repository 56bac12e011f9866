//! Copies of golden folders, damaged on purpose.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assay_reference::checkpoint::{Shard, write};
use assay_reference::ops::Tensors;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::golden;

/// A copy of a golden checkpoint or trace.
#[derive(Debug)]
pub struct Copy {
    dir: TempDir,
}

impl Copy {
    /// Of a folder of `golden/`: `checkpoints/tiny-qwen3`.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn of(folder: &str) -> Copy {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for entry in fs::read_dir(golden::path(folder)).expect("a golden folder") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), dir.path().join(entry.file_name())).expect("a copy");
        }
        Copy { dir }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// One of its files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Rewrites a file's bytes.
    ///
    /// # Panics
    /// When it is missing.
    pub fn bytes(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.file(name)).expect("the file");
        edit(&mut bytes);
        fs::write(self.file(name), bytes).expect("the file again");
    }

    /// Edits a JSON file.
    ///
    /// # Panics
    /// When it is not a JSON object.
    pub fn json(&self, name: &str, edit: impl FnOnce(&mut Map<String, Value>)) {
        self.bytes(name, |bytes| {
            let mut map = serde_json::from_slice(bytes).expect("a JSON object");
            edit(&mut map);
            *bytes = serde_json::to_vec(&map).expect("JSON");
        });
    }

    /// Edits a safetensors header and leaves the data as they are.
    ///
    /// # Panics
    /// When it is not a safetensors file.
    pub fn header(&self, name: &str, edit: impl FnOnce(&mut Map<String, Value>)) {
        self.bytes(name, |bytes| {
            let n = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
            let mut map = serde_json::from_slice(&bytes[8..8 + n]).expect("a header");
            edit(&mut map);
            let mut header = serde_json::to_vec(&map).expect("JSON");
            header.resize(header.len().next_multiple_of(8), b' ');
            let mut out = (header.len() as u64).to_le_bytes().to_vec();
            out.extend(header);
            out.extend(&bytes[8 + n..]);
            *bytes = out;
        });
    }

    /// Edits the tensors of a sound safetensors file.
    ///
    /// # Panics
    /// When it is not one.
    pub fn tensors(&self, name: &str, edit: impl FnOnce(&mut Tensors)) {
        let path = self.file(name);
        let shard = Shard::open(&path).expect("a safetensors file");
        let mut tensors: Tensors =
            shard.names().map(|n| (n.to_string(), shard.tensor(n).expect("a tensor"))).collect();
        edit(&mut tensors);
        let metadata: BTreeMap<String, String> =
            shard.metadata().iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        write(&path, &tensors, &metadata).expect("the file again");
    }
}

/// Names and sizes of a folder's entries, to see that nothing was left behind.
///
/// # Panics
/// When the folder cannot be read.
pub fn entries(dir: &Path) -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = fs::read_dir(dir)
        .expect("a folder")
        .map(|e| {
            let e = e.expect("an entry");
            (e.file_name().to_string_lossy().into_owned(), e.metadata().expect("metadata").len())
        })
        .collect();
    all.sort();
    all
}
