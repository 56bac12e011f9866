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
use super::names::{self, Entries, INDEX, Kind, SINGLE};
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
        let data: u64 = self.shards.iter().map(|s| s.data).sum();
        let whole: u64 = self.shards.iter().map(|s| s.len).sum();
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

/// Downloads that were not finished: those in the folder; and those that a downloader keeps elsewhere, which are
/// left-overs of an earlier try when every file is whole.
fn partial(dir: &Path, entries: &Entries, out: &mut Found) {
    let whole = !out.any(&["file.", "index."]);
    for (name, (kind, len)) in entries {
        if *kind == Kind::Partial {
            let bytes = len.unwrap_or(0);
            let what = format!("the name says an unfinished download ({bytes} bytes so far)");
            out.add("file.partial_download", name, what);
        }
    }
    for path in names::elsewhere(dir) {
        let path = path.display();
        if whole {
            out.note(format!("{path}: a left-over of a download; every weight file is whole"));
        } else {
            out.add("file.partial_download", path.to_string(), "a downloader's unfinished file");
        }
    }
}

/// Whether `found` is the shard `wanted` under another ending.
fn is_renamed(found: &str, wanted: &str) -> bool {
    let stem = wanted.strip_suffix(".safetensors").unwrap_or(wanted);
    found != wanted && !found.ends_with(".safetensors") && found.starts_with(stem)
}

/// The files to read where there is an index; files under another name go into `renamed`.
fn with_index(
    index: &Index,
    entries: &Entries,
    renamed: &mut BTreeMap<String, String>,
    out: &mut Found,
) -> Vec<String> {
    let odd: Vec<&String> = entries
        .iter()
        .filter(|(_, e)| e.0 == Kind::Odd && e.1.is_some())
        .map(|(name, _)| name)
        .take(1000)
        .collect();
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, file) in &index.places {
        places.entry(file).or_default().push(tensor);
    }
    let mut names = BTreeSet::new();
    for file in index.files() {
        let how = match entries.get(file) {
            Some((_, Some(_))) => {
                names.insert(file.to_owned());
                continue;
            }
            Some((_, None)) => "is a link to nothing",
            None => "is not in the folder",
        };
        if let Some(found) = odd.iter().find(|o| is_renamed(o, file)) {
            let what = format!("is what the index calls {}", quoted(file));
            out.add("file.odd_name", found.as_str(), what);
            names.insert((*found).clone());
            renamed.insert(file.to_owned(), (*found).clone());
            continue;
        }
        let of = places.get(file).map_or(&[][..], Vec::as_slice);
        let tensors = plural(of.len(), "tensor");
        let what = format!("{how}; the index places {tensors} in it: {}", list(of.iter().copied()));
        out.add("file.missing_shard", file, what);
    }
    for name in odd.iter().filter(|o| !names.contains(**o)) {
        let what = "looks like a weight file, and no engine looks for this name";
        out.add("file.odd_name", name.as_str(), what);
    }
    let shards = entries.iter().filter(|(_, e)| e.0 == Kind::Shard && e.1.is_some());
    strays(shards.map(|(n, _)| n.as_str()).filter(|n| !names.contains(*n)), out);
    names.into_iter().collect()
}

/// Weight files that nothing names.
fn strays<'a>(names: impl Iterator<Item = &'a str>, out: &mut Found) {
    for name in names {
        if name == SINGLE || name.starts_with("model-") {
            out.add(
                "file.stray",
                name,
                "is in the folder, and the checkpoint's other files do not name it",
            );
        } else {
            out.note(format!("{} is not read: nothing names it", quoted(name)));
        }
    }
}

/// The files to read where there is no index.
fn without_index(entries: &Entries, damaged: bool, out: &mut Found) -> Vec<String> {
    let of = |kind: Kind| {
        let is = move |(_, e): &(&String, &(Kind, Option<u64>))| e.0 == kind && e.1.is_some();
        entries.iter().filter(is).map(|(n, _)| n.clone()).collect::<Vec<String>>()
    };
    let (shards, odd) = (of(Kind::Shard), of(Kind::Odd));
    for name in &odd {
        out.add(
            "file.odd_name",
            name,
            "looks like a weight file, and no engine looks for this name",
        );
    }
    if shards.iter().any(|s| s == SINGLE) {
        strays(shards.iter().map(String::as_str).filter(|s| *s != SINGLE), out);
        return vec![SINGLE.to_owned()];
    }
    let all = if shards.is_empty() { odd } else { shards };
    if all.is_empty() {
        let pickled = entries.keys().any(|n| n.starts_with("pytorch_model") && n.ends_with(".bin"));
        let what = match pickled {
            true => {
                "there is no *.safetensors file, only pickled PyTorch weights, which assay does not read: convert them"
            }
            false => "there is no *.safetensors file",
        };
        out.add("file.no_weights", SINGLE, what);
        return all;
    }
    if damaged {
        // Said already.
    } else if all.len() > 1 || names::numbering(&all[0]).is_some() {
        let what = format!(
            "there are {} and no index: {}",
            plural(all.len(), "weight file"),
            list(all.iter().map(String::as_str))
        );
        out.add("index.missing", INDEX, what);
    } else {
        out.note(format!("{} is read; engines look for {SINGLE}", quoted(&all[0])));
    }
    let numbers: BTreeSet<(usize, usize)> =
        all.iter().filter_map(|n| names::numbering(n)).collect();
    let most = numbers.iter().map(|n| n.1).max().unwrap_or(0).min(10_000);
    let absent: Vec<String> = (1..=most)
        .filter(|i| !numbers.contains(&(*i, most)))
        .map(|i| format!("{i} of {most}"))
        .collect();
    if !absent.is_empty() {
        let what = format!(
            "by the numbers in the names, {} not in the folder: {}",
            plural(absent.len(), "file"),
            list(absent.iter().map(String::as_str))
        );
        out.add("file.missing_shard", "*.safetensors", what);
    }
    all
}
