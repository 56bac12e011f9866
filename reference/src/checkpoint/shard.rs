//! One safetensors file: mapped from disk, or parsed from bytes in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::{Advice, UncheckedAdvice};

use super::header;
pub use super::writer::{to_bytes, write};
use super::{list, plural};
use crate::error::{Error, Result};
use crate::tensor::{Store, Tensor};

/// The tensors and the metadata of one safetensors file. The tensors share the file's bytes.
#[derive(Clone)]
pub struct Shard {
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
    file_bytes: u64,
    data_bytes: u64,
}

impl Shard {
    /// Maps `path` and checks its header against its length; no tensor is copied.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened or mapped, [`Error::File`] or [`Error::Tensor`]
    /// when it is not exactly what its header says: truncated, too long, with gaps, overlaps,
    /// duplicate names, an unsupported dtype, or a shape that does not fit its bytes.
    pub fn open(path: &Path) -> Result<Shard> {
        let meta = std::fs::metadata(path).map_err(Error::io(path))?;
        if !meta.is_file() {
            return Err(Error::file(path, "is not a file; expected a safetensors file"));
        }
        if meta.len() == 0 {
            return Err(Error::file(
                path,
                "expected a safetensors file, file has 0 bytes: download it again",
            ));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let map = map(&file).map_err(Error::io(path))?;
        Shard::build(Arc::new(Mapped(map)), path)
    }

    /// Parses a safetensors blob; `origin` is what errors name as its file.
    ///
    /// # Errors
    /// As [`Shard::open`], without the file system's.
    pub fn parse(bytes: Vec<u8>, origin: &Path) -> Result<Shard> {
        Shard::build(Arc::new(bytes), origin)
    }

    fn build(store: Arc<dyn Store>, path: &Path) -> Result<Shard> {
        let file = store.bytes();
        let file_bytes = file.len() as u64;
        let header = header::parse(file, path)?;
        let mut tensors = BTreeMap::new();
        for (name, e) in header.entries {
            let tensor = Tensor::from_store(e.dtype, e.shape, store.clone(), e.range)
                .map_err(|err| Error::tensor(path, &name, err.to_string()))?;
            tensors.insert(name, tensor);
        }
        Ok(Shard {
            path: path.to_path_buf(),
            tensors,
            metadata: header.metadata,
            file_bytes,
            data_bytes: header.data_bytes as u64,
        })
    }

    /// The file, or the origin given to [`Shard::parse`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors by name, sorted.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// The header's `__metadata__`; empty when there is none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor called `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`Error::Tensor`] when there is none, with the names that there are.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.get(name).cloned().ok_or_else(|| {
            Error::tensor(
                &self.path,
                name.escape_debug().to_string(),
                format!(
                    "is not in the file, which holds {}{}{}",
                    plural(self.tensors.len(), "tensor"),
                    if self.tensors.is_empty() { "" } else { ": " },
                    list(self.names())
                ),
            )
        })
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of the tensors, without the header.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({}, {})", self.path.display(), plural(self.tensors.len(), "tensor"))
    }
}

/// A mapped file.
struct Mapped(Mmap);

impl Store for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(unix)]
    #[expect(unsafe_code, reason = "advice that drops pages is unsafe by nature; see the argument")]
    fn release(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // Only whole pages: what lies beside belongs to other tensors.
        let page = PAGE;
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if start < end {
            // SAFETY: the mapping is of a file and never written, so that a page that is dropped is read
            // from the file again, with the same bytes. Advice may fail; then the memory stays.
            let _ = unsafe {
                self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }

    #[cfg(unix)]
    fn read_ahead(&self, range: Range<usize>) {
        // Advice may fail; then reading waits.
        let _ = self.0.advise_range(Advice::WillNeed, range.start, range.len());
    }
}

/// Bytes of a page, or a multiple of it on every system.
#[cfg(unix)]
const PAGE: usize = 1 << 16;

/// Maps the whole file for reading.
#[expect(unsafe_code, reason = "mapping a file is unsafe by nature; see the safety argument")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is private to this crate, read-only, and only ever seen as `&[u8]` within the
    // length it was created with; every bit pattern is a valid byte, and no code relies on two
    // reads giving the same value for memory safety (ranges are checked against the map's length,
    // which is fixed, and not against bytes of the file that are read twice). What remains is
    // another process that truncates the file while it is mapped, which the system answers with a
    // signal: checkpoints are not written in place, and our own writer replaces files by renaming,
    // which leaves the mapped one intact.
    unsafe { Mmap::map(file) }
}
