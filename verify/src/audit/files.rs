//! The weight files: which there are, which there should be, and the tensors in them.

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use assay_reference::{Dtype, Tensor};

use super::found::{Found, list, plural, quoted};
use super::header::{self, Entry, Header};
use super::index::{self, Index, Outcome};
use super::names::{Entries, INDEX};
use super::pick::{partial, with_index, without_index};
use super::sample;

/// A weight file.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Bytes of the file.
    pub(super) len: u64,
    /// Where the data begin.
    start: u64,
    /// Bytes of its tensors, by its header.
    data: u64,
    /// Whether its header could be read.
    readable: bool,
}

/// A tensor as the header of a file has it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) shard: usize,
    pub(super) entry: Entry,
}

/// The weight files of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) shards: Vec<Shard>,
    pub(super) tensors: BTreeMap<String, Held>,
    /// Tensors that the index places in a file that is missing or unreadable.
    pub(super) lost: BTreeSet<String>,
    /// The sha256 that a Git LFS pointer names, by file.
    pub(super) pointers: BTreeMap<String, String>,
    /// Files that lie there under another name than the index gives them: theirs by the index's.
    renamed: BTreeMap<String, String>,
}

impl Files {
    /// Reads the headers of all weight files in `dir`.
    pub(super) fn read(dir: &Path, entries: &Entries, out: &mut Found) -> Files {
        let mut files = Files::default();
        let (index, names) = match index::read(&dir.join(INDEX)) {
            Outcome::Index(index) => {
                let names = with_index(&index, entries, &mut files.renamed, out);
                (Some(index), names)
            }
            Outcome::Absent => (None, without_index(entries, false, out)),
            Outcome::Damaged(why) => {
                out.add("index.damaged", INDEX, why);
                (None, without_index(entries, true, out))
            }
        };
        // A tensor that two files hold is one finding, with all such tensors.
        let mut twice: Vec<(String, String)> = Vec::new();
        for name in names {
            files.add(dir, &name, entries, &mut twice, out);
        }
        if let Some((first, file)) = twice.first() {
            let other = &files.shards[files.tensors[first].shard].name;
            let what = format!(
                "{} in {} and in {}: {}",
                plural(twice.len(), "tensor"),
                quoted(other),
                quoted(file),
                list(twice.iter().map(|(n, _)| n.as_str()))
            );
            out.add("index.duplicate", file, what);
        }
        if let Some(index) = &index {
            files.against(index, out);
        }
        partial(dir, entries, out);
        files
    }

    fn add(
        &mut self,
        dir: &Path,
        name: &str,
        entries: &Entries,
        twice: &mut Vec<(String, String)>,
        out: &mut Found,
    ) {
        let path = dir.join(name);
        let Some(len) = entries.get(name).and_then(|e| e.1) else { return };
        let header = header::read(&path, len);
        for (kind, what) in &header.problems {
            out.add(kind, name, what.clone());
        }
        if let Some(what) = sample::holes(&path, len) {
            out.add("file.holes", name, what);
        }
        let Header { start, entries, readable, pointer, .. } = header;
        if let Some(sha) = pointer {
            self.pointers.insert(name.to_owned(), sha);
        }
        let shard = self.shards.len();
        let data = entries.values().map(|e| e.data_offsets[1]).max().unwrap_or(0);
        for (tensor, entry) in entries {
            match self.tensors.entry(tensor) {
                Slot::Occupied(slot) => twice.push((slot.key().clone(), name.to_owned())),
                Slot::Vacant(slot) => {
                    slot.insert(Held { shard, entry });
                }
            }
        }
        self.shards.push(Shard { name: name.to_owned(), path, len, start, data, readable });
    }

    /// The index against what the files hold.
    fn against(&mut self, index: &Index, out: &mut Found) {
        if !index.twice().is_empty() {
            let twice = list(index.twice().iter().map(String::as_str));
            out.add("index.misplaced", INDEX, format!("places tensors in two files: {twice}"));
        }
        let readable: BTreeSet<&str> =
            self.shards.iter().filter(|s| s.readable).map(|s| s.name.as_str()).collect();
        let mut lost = BTreeSet::new();
        let mut wrong: Vec<(&str, &str, Option<&str>)> = Vec::new();
        for (tensor, file) in &index.places {
            let real = self.renamed.get(&**file).map_or(&**file, String::as_str);
            match self.tensors.get(tensor).map(|h| self.shards[h.shard].name.as_str()) {
                Some(holder) if holder == real => {}
                None if !readable.contains(real) => {
                    lost.insert(tensor.clone());
                }
                holder => wrong.push((tensor, file, holder)),
            }
        }
        if let Some((tensor, file, holder)) = wrong.first() {
            let holder =
                holder.map_or("no file holds it".into(), |h| format!("{} does", quoted(h)));
            let what = format!(
                "{} not where the index says: {}; it places {} in {}, but {holder}",
                plural(wrong.len(), "tensor"),
                list(wrong.iter().map(|w| w.0)),
                quoted(tensor),
                quoted(file)
            );
            out.add("index.misplaced", INDEX, what);
        }
        let unlisted = || self.tensors.keys().filter(|t| !index.places.contains_key(*t));
        if unlisted().next().is_some() {
            let what = format!(
                "does not list {} that the files hold: {}",
                plural(unlisted().count(), "tensor"),
                list(unlisted().map(String::as_str))
            );
            out.add("index.unlisted", INDEX, what);
        }
        self.total(index, &lost, out);
        self.lost = lost;
    }

    fn total(&self, index: &Index, lost: &BTreeSet<String>, out: &mut Found) {
        let sum = |of: fn(&Shard) -> u64| self.shards.iter().map(of).fold(0, u64::saturating_add);
        let (data, whole) = (sum(|s| s.data), sum(|s| s.len));
        let Some(total) = index.total_size else {
            out.note(format!(
                "{INDEX}: metadata.total_size is missing, so that the total could not be checked"
            ));
            return;
        };
        if !lost.is_empty() {
            out.unchecked(format!(
                "{INDEX}: metadata.total_size, because files are missing or unreadable"
            ));
        } else if total == whole && total != data {
            out.note(format!(
                "{INDEX}: metadata.total_size {total} counts the files with their headers, as GPTQModel writes it"
            ));
        } else if total != data {
            let by = total.abs_diff(data);
            let what = format!(
                "metadata.total_size is {total}, the tensors of the {} have {data} bytes: {by} {}",
                plural(self.shards.len(), "file"),
                if total > data { "are missing" } else { "too many" }
            );
            out.add("index.total_size", INDEX, what);
        }
    }

    /// Whether the names are those of a model without its head: `layers.0.mlp...`.
    pub(super) fn without_prefix(&self) -> bool {
        let any = |prefix: &str| self.tensors.keys().any(|n| n.starts_with(prefix));
        any("layers.") && !any("model.")
    }

    /// The shape of a tensor.
    pub(super) fn shape(&self, name: &str) -> Option<&[u64]> {
        self.tensors.get(name).map(|h| &*h.entry.shape)
    }

    /// The dtype of a tensor; `None` as well for one that assay does not read.
    pub(super) fn dtype(&self, name: &str) -> Option<Dtype> {
        Dtype::from_safetensors(&self.tensors.get(name)?.entry.dtype)
    }

    /// The file of a tensor, as findings name it.
    pub(super) fn place(&self, name: &str) -> String {
        let file = self.tensors.get(name).map(|h| self.shards[h.shard].name.as_str());
        file.map_or(name.to_owned(), |f| format!("{f}: {name}"))
    }

    /// Where the bytes of a tensor are: the file, the position of the first byte, and how many there are
    /// in the file (fewer than the header says when it is truncated).
    pub(super) fn bytes_of(&self, name: &str) -> Option<(&Path, u64, u64)> {
        let held = self.tensors.get(name)?;
        let shard = &self.shards[held.shard];
        let [begin, end] = held.entry.data_offsets;
        let (begin, end) = (shard.start.checked_add(begin)?, shard.start.checked_add(end)?);
        Some((&shard.path, begin, end.min(shard.len).saturating_sub(begin)))
    }

    /// A whole tensor, when it is there and has at most `limit` bytes.
    pub(super) fn tensor(&self, name: &str, limit: u64) -> Option<Tensor> {
        let (path, at, len) = self.bytes_of(name)?;
        if len > limit {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(at)).ok()?;
        file.read_exact(&mut bytes).ok()?;
        let shape =
            self.shape(name)?.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<_>>()?;
        Tensor::from_bytes(self.dtype(name)?, shape, bytes).ok()
    }
}
