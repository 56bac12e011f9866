//! The header of a safetensors file: parsed and held against the length of the file.
//!
//! Layout: 8 bytes of header length (little-endian), that many bytes of JSON, then the tensors'
//! bytes without gaps. Source: <https://github.com/huggingface/safetensors#format>.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::{list, plural};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::byte_len;

/// Bytes of the header's length.
const PREFIX: usize = 8;
/// The longest header that readers of the format accept.
pub(super) const MAX_HEADER: u64 = 100_000_000;
/// The most dimensions of a tensor.
pub(super) const MAX_RANK: usize = 8;
/// The key of the free-form string map.
pub(super) const METADATA: &str = "__metadata__";
/// How a Git LFS pointer begins, which stands for a file that was never downloaded.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// A header that fits its file.
pub(super) struct Header {
    /// The `__metadata__` map; empty when there is none.
    pub(super) metadata: BTreeMap<String, String>,
    /// Tensors by name, with their bytes' position in the file.
    pub(super) entries: BTreeMap<String, Entry>,
    /// Bytes of all tensors together.
    pub(super) data_bytes: usize,
}

/// One tensor of a header.
pub(super) struct Entry {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) range: Range<usize>,
}

/// Parses the header of `file` (the whole file) and checks it against the file's length.
pub(super) fn parse(file: &[u8], path: &Path) -> Result<Header> {
    let (json, start) = header_text(file, path)?;
    let raw: Raw = serde_json::from_str(json)
        .map_err(|e| Error::file(path, format!("the header is not valid: {e}")))?;

    let mut entries = BTreeMap::new();
    for (name, raw) in raw.entries {
        let entry = entry(&name, raw).map_err(|what| Error::tensor(path, escaped(&name), what))?;
        entries.insert(name, entry);
    }
    let data_bytes = check_layout(&entries, path)?;
    check_length(&entries, file.len(), start, data_bytes, path)?;
    for entry in entries.values_mut() {
        entry.range = start + entry.range.start..start + entry.range.end;
    }
    Ok(Header { metadata: raw.metadata, entries, data_bytes })
}

/// Why a tensor name cannot be used, if so.
pub(super) fn bad_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("a tensor's name must not be empty"),
        METADATA => Some("this name is reserved for the metadata"),
        _ if name.chars().any(char::is_control) => Some("a tensor's name holds control characters"),
        _ => None,
    }
}

/// The header's text and the offset of the data behind it.
fn header_text<'a>(file: &'a [u8], path: &Path) -> Result<(&'a str, usize)> {
    let fail = |what: String| Err(Error::file(path, what));
    if file.starts_with(LFS_POINTER) {
        return fail(
            "is a Git LFS pointer and not the weights themselves: download it, e.g. with `git \
             lfs pull`"
                .into(),
        );
    }
    let Some((prefix, rest)) = file.split_first_chunk::<PREFIX>() else {
        return fail(format!(
            "expected at least {PREFIX} bytes (the header's length), file has {}: download it \
             again",
            file.len()
        ));
    };
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER {
        return fail(format!(
            "the first 8 bytes state a header of {length} bytes, more than the format's limit of \
             {MAX_HEADER}: this is not a safetensors file, or its beginning is damaged"
        ));
    }
    let Some(json) = usize::try_from(length).ok().and_then(|n| rest.get(..n)) else {
        let expected = length + PREFIX as u64;
        return fail(format!(
            "expected {expected} bytes or more (a header of {length}), file has {}: {} bytes of \
             the header itself are missing; download it again",
            file.len(),
            expected - file.len() as u64
        ));
    };
    if json.first() != Some(&b'{') {
        return fail(format!(
            "the header of {length} bytes does not begin with \
             `{{`: this is not a safetensors file, or its beginning is damaged"
        ));
    }
    match std::str::from_utf8(json) {
        Ok(text) => Ok((text, PREFIX + json.len())),
        Err(e) => fail(format!("the header is not UTF-8 text: {e}")),
    }
}

/// Checks one tensor on its own: name, dtype, and shape against the bytes given to it. The range is
/// still relative to the data.
fn entry(name: &str, raw: RawEntry) -> Result<Entry, String> {
    if let Some(why) = bad_name(name) {
        return Err(why.to_owned());
    }
    let dtype = Dtype::from_safetensors(&raw.dtype).ok_or_else(|| {
        format!(
            "its dtype `{}` is not supported; assay reads BF16, F16, F32, F64, F8_E4M3, I32, U32, \
             I64, U8 and BOOL",
            raw.dtype.escape_debug()
        )
    })?;
    let [start, end] = raw.data_offsets;
    let Some(stored) = end.checked_sub(start) else {
        return Err(format!("its data_offsets [{start}, {end}] run backwards"));
    };
    let too_big =
        || format!("shape {:?} of {dtype} has more bytes than can be addressed", raw.shape.0);
    let shape: Vec<usize> = raw
        .shape
        .0
        .iter()
        .map(|&d| usize::try_from(d))
        .collect::<Result<_, _>>()
        .map_err(|_| too_big())?;
    // An empty tensor's other dimensions are bounded as well, so that no later product overflows.
    let bounded: Vec<usize> = shape.iter().map(|&d| d.max(1)).collect();
    byte_len(dtype, &bounded).filter(|&n| isize::try_from(n).is_ok()).ok_or_else(too_big)?;
    let needed = byte_len(dtype, &shape).ok_or_else(too_big)?;
    if needed as u64 != stored {
        return Err(format!(
            "shape {shape:?} of {dtype} needs {needed} bytes, but data_offsets [{start}, {end}] \
             give it {stored}"
        ));
    }
    let offset = |n: u64| {
        usize::try_from(n)
            .map_err(|_| format!("its data_offsets [{start}, {end}] are out of range"))
    };
    Ok(Entry { dtype, shape, range: offset(start)?..offset(end)? })
}

/// Checks that the tensors cover the data without gap or overlap; gives the data's length.
fn check_layout(entries: &BTreeMap<String, Entry>, path: &Path) -> Result<usize> {
    let mut order: Vec<(&str, &Range<usize>)> =
        entries.iter().map(|(name, e)| (name.as_str(), &e.range)).collect();
    order.sort_by_key(|(_, r)| (r.start, r.end));

    let mut covered = 0;
    let mut previous: Option<(&str, &Range<usize>)> = None;
    for (name, range) in order {
        if range.start > covered {
            return Err(Error::tensor(
                path,
                name,
                format!(
                    "its data_offsets begin at {}, but the tensors before it end at {covered}: \
                     bytes {covered} to {} of the data belong to no tensor, so the header does \
                     not describe this file",
                    range.start, range.start
                ),
            ));
        }
        if range.start < covered {
            let (other, r) = previous.unwrap_or((name, range));
            return Err(Error::tensor(
                path,
                name,
                format!(
                    "its data_offsets [{}, {}] overlap [{}, {}] of `{other}`: the header does \
                     not describe this file",
                    range.start, range.end, r.start, r.end
                ),
            ));
        }
        covered = range.end;
        previous = Some((name, range));
    }
    Ok(covered)
}

/// Checks the file's length: 8 + header + data, exactly.
fn check_length(
    entries: &BTreeMap<String, Entry>,
    have: usize,
    start: usize,
    data: usize,
    path: &Path,
) -> Result<()> {
    let Some(expected) = start.checked_add(data) else {
        return Err(Error::file(
            path,
            format!("the header states {data} bytes of data, more than can be addressed"),
        ));
    };
    let sum = format!("8 + a header of {} + {data} of tensors", start - PREFIX);
    if have < expected {
        // Subtraction is safe: the header lies within the file.
        let present = have - start;
        let beyond =
            || entries.iter().filter(|(_, e)| e.range.end > present).map(|(n, _)| n.as_str());
        return Err(Error::file(
            path,
            format!(
                "expected {expected} bytes ({sum}), file has {have}: {} bytes are missing; {} in \
                 whole or in part beyond the end: {}. Download the file again, and compare its \
                 hash",
                expected - have,
                match beyond().count() {
                    1 => "1 tensor lies".to_owned(),
                    n => format!("{n} tensors lie"),
                },
                list(beyond())
            ),
        ));
    }
    if have > expected {
        return Err(Error::file(
            path,
            format!(
                "expected {expected} bytes ({sum}; {}), file has {have}: {} bytes too many \
                 follow the last tensor. Download the file again, and compare its hash",
                plural(entries.len(), "tensor"),
                have - expected
            ),
        ));
    }
    Ok(())
}

fn escaped(name: &str) -> String {
    name.escape_debug().to_string()
}

/// The header as JSON has it.
struct Raw {
    metadata: BTreeMap<String, String>,
    entries: BTreeMap<String, RawEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Dims,
    data_offsets: [u64; 2],
}

/// A shape, with the number of dimensions limited while it is read.
struct Dims(Vec<u64>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Raw, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut metadata = None;
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        let Strings(strings) = map.next_value()?;
                        if metadata.replace(strings).is_some() {
                            return Err(A::Error::custom("`__metadata__` occurs twice"));
                        }
                        continue;
                    }
                    let shown = escaped(&name);
                    let value = map
                        .next_value::<RawEntry>()
                        .map_err(|e| A::Error::custom(format!("tensor `{shown}`: {e}")))?;
                    match entries.entry(name) {
                        Slot::Vacant(slot) => slot.insert(value),
                        Slot::Occupied(_) => {
                            return Err(A::Error::custom(format!("tensor `{shown}` occurs twice")));
                        }
                    };
                }
                Ok(Raw { metadata: metadata.unwrap_or_default(), entries })
            }
        }
        deserializer.deserialize_map(V)
    }
}

/// A map of strings without duplicate keys.
struct Strings(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strings, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Strings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`__metadata__` as an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut strings = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    let shown = escaped(&key);
                    if strings.insert(key, value).is_some() {
                        return Err(A::Error::custom(format!(
                            "the metadata key `{shown}` occurs twice"
                        )));
                    }
                }
                Ok(Strings(strings))
            }
        }
        deserializer.deserialize_map(V)
    }
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Dims, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a shape (an array of non-negative integers)")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Vec::with_capacity(2);
                while let Some(d) = seq.next_element()? {
                    if dims.len() == MAX_RANK {
                        return Err(A::Error::custom(format!(
                            "its shape has more than {MAX_RANK} dimensions"
                        )));
                    }
                    dims.push(d);
                }
                Ok(Dims(dims))
            }
        }
        deserializer.deserialize_seq(V)
    }
}
