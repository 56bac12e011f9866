//! The header of a safetensors file, read leniently and without its data.
//!
//! Layout: 8 bytes of header length (little-endian), that many bytes of JSON, then the tensors' bytes
//! without gaps. Source: <https://github.com/huggingface/safetensors#format>.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use self::layout::{layout, lengths};
use super::found::{list, quoted};

mod layout;

/// The longest header that readers of the format accept.
const MAX_HEADER: u64 = 100_000_000;
/// The most tensors of a file; the largest released model has 91,991 in all.
const MAX_TENSORS: usize = 1 << 19;
/// The most dimensions of a tensor.
const MAX_RANK: usize = 8;

/// One tensor of a header.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    /// As the header spells it: `BF16`.
    pub(super) dtype: Box<str>,
    pub(super) shape: Box<[u64]>,
    /// Begin and end, from the start of the data.
    pub(super) data_offsets: [u64; 2],
}

/// What is wrong: the finding's name, and the sentence.
pub(super) type Problem = (&'static str, String);

/// What could be read of a file.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// Where the data begin in the file.
    pub(super) start: u64,
    pub(super) entries: BTreeMap<String, Entry>,
    pub(super) problems: Vec<Problem>,
    /// Whether the entries can be relied on.
    pub(super) readable: bool,
    /// The sha256 that a Git LFS pointer names.
    pub(super) pointer: Option<String>,
}

impl Header {
    fn unreadable(name: &'static str, what: impl Into<String>) -> Header {
        Header { problems: vec![(name, what.into())], ..Header::default() }
    }
}

/// Reads the header of the file at `path`, which has `length` bytes.
pub(super) fn read(path: &Path, length: u64) -> Header {
    match open(path, length) {
        Ok(header) => header,
        Err(e) => Header::unreadable("file.header_damaged", format!("cannot be read: {e}")),
    }
}

fn open(path: &Path, length: u64) -> std::io::Result<Header> {
    if length == 0 {
        return Ok(Header::unreadable("file.truncated", "has 0 bytes"));
    }
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(512).read_to_end(&mut head)?;
    if let Some(header) = pointer(&head, length) {
        return Ok(header);
    }
    let number = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let brace = |at: usize| head.get(at) == Some(&b'{');
    let Some(stated) = number(0) else {
        let what = format!("has {length} bytes, less than the 8 of a header's length");
        return Ok(Header::unreadable("file.truncated", what));
    };
    if stated == 0 {
        return zero_head(&mut file, length, number(8).filter(|_| brace(16)), brace(8));
    }
    let end = stated.saturating_add(8);
    if !brace(8) || stated > MAX_HEADER {
        return Ok(Header::unreadable("file.header_damaged", strange(&head, stated)));
    }
    if end > length {
        let what = format!(
            "has {length} bytes, and its header alone {stated}: {} bytes of the header are missing",
            end - length
        );
        return Ok(Header::unreadable("file.truncated", what));
    }
    Ok(parse(&mut file, 8, stated, length))
}

/// What the first bytes say about a file that is no safetensors file.
fn strange(head: &[u8], stated: u64) -> String {
    let text = String::from_utf8_lossy(&head[..head.len().min(60)]).to_ascii_lowercase();
    let kind =
        if text.trim_start().starts_with("<!doctype") || text.trim_start().starts_with("<html") {
            "; it is a web page (a login or an error) that was saved in place of the file"
        } else if head.starts_with(b"GGUF") {
            "; it is a GGUF file"
        } else if head.starts_with(b"PK") {
            "; it is a zip archive, as PyTorch's pickled weights are"
        } else if head.starts_with(&[0x1f, 0x8b]) {
            "; it is gzip-compressed: it was stored as it came through the network"
        } else {
            ""
        };
    format!(
        "its first 8 bytes state a header of {stated} bytes, and no `{{` follows where one begins, or it is over the format's limit of {MAX_HEADER}{kind}"
    )
}

/// A Git LFS pointer: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
fn pointer(head: &[u8], length: u64) -> Option<Header> {
    let text =
        std::str::from_utf8(head).ok().filter(|t| t.starts_with("version https://git-lfs"))?;
    let field =
        |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned());
    let size = field("size ").and_then(|s| s.parse::<u64>().ok());
    let real = size.map_or(String::new(), |s| format!(" of a file of {s} bytes"));
    let what = format!("is a Git LFS pointer of {length} bytes{real}, not the weights");
    let mut header = Header::unreadable("file.lfs_pointer", what);
    header.pointer = field("oid sha256:");
    Some(header)
}

/// A file that begins with 8 zero bytes: put before it, or written over the header's length.
fn zero_head(
    file: &mut File,
    length: u64,
    shifted: Option<u64>,
    overwritten: bool,
) -> std::io::Result<Header> {
    let name = "file.zero_head";
    if let Some(stated) = shifted.filter(|n| n.saturating_add(16) <= length && *n <= MAX_HEADER) {
        let mut header = parse(file, 16, stated, length);
        let what = format!(
            "begins with 8 zero bytes, behind which an intact header of {stated} bytes follows: they were put before the file"
        );
        header.problems.insert(0, (name, what));
        return Ok(header);
    }
    if overwritten {
        file.seek(SeekFrom::Start(8))?;
        let limit = length.saturating_sub(8).min(MAX_HEADER);
        let mut raw = Raw::default();
        let mut from = serde_json::Deserializer::from_reader(BufReader::new(file.take(limit)));
        if raw.read(&mut from).is_ok() {
            let data = raw.entries.values().map(|e| e.data_offsets[1]).max().unwrap_or(0);
            let what = "begins with 8 zero bytes in place of the header's length, behind which the header follows: they were overwritten".to_owned();
            let start = length.saturating_sub(data);
            let (entries, mut problems) = (raw.entries, vec![(name, what)]);
            layout(&entries, &mut problems);
            return Ok(Header { start, entries, problems, readable: true, pointer: None });
        }
    }
    Ok(Header::unreadable(name, "begins with 8 zero bytes, and no header follows"))
}

/// Parses a header of `stated` bytes at `at`, and holds it against the file's length.
fn parse(file: &mut File, at: u64, stated: u64, length: u64) -> Header {
    let mut raw = Raw::default();
    let parsed = file.seek(SeekFrom::Start(at)).map_err(serde_json::Error::io).and_then(|_| {
        let mut from = serde_json::Deserializer::from_reader(BufReader::new(file.take(stated)));
        raw.read(&mut from)?;
        from.end()
    });
    if let Err(e) = parsed {
        return Header::unreadable("file.header_damaged", format!("its header is not valid: {e}"));
    }
    let mut problems = Vec::new();
    if !raw.twice.is_empty() {
        let twice = list(raw.twice.iter().map(String::as_str));
        problems.push(("file.layout", format!("its header lists tensors twice: {twice}")));
    }
    let start = at + stated;
    layout(&raw.entries, &mut problems);
    lengths(&raw.entries, start, length, &mut problems);
    Header { start, entries: raw.entries, problems, readable: true, pointer: None }
}

/// The header as JSON has it.
#[derive(Default)]
struct Raw {
    entries: BTreeMap<String, Entry>,
    twice: Vec<String>,
}

impl Raw {
    fn read<'de, D: Deserializer<'de>>(&mut self, from: D) -> Result<(), D::Error> {
        (&mut *self).deserialize(from)
    }
}

impl<'de> DeserializeSeed<'de> for &mut Raw {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Raw {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry = map
                .next_value::<Entry>()
                .map_err(|e| A::Error::custom(format!("tensor {}: {e}", quoted(&name))))?;
            if self.entries.len() >= MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            match self.entries.entry(name) {
                Slot::Occupied(slot) => self.twice.push(slot.key().clone()),
                Slot::Vacant(slot) => {
                    slot.insert(entry);
                }
            }
        }
        Ok(())
    }
}
