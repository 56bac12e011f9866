//! A header's tensors against one another, and against the length of the file.

use std::collections::BTreeMap;

use assay_reference::Dtype;

use super::{Entry, MAX_RANK, Problem};
use crate::audit::found::{list, plural, quoted};

impl Entry {
    /// Bytes that shape and dtype need; `None` when unknown or beyond 2^64.
    fn needs(&self) -> Option<u64> {
        let size = match &*self.dtype {
            "F8_E5M2" | "I8" | "F8_E8M0" => 1,
            "I16" | "U16" => 2,
            "U64" => 8,
            known => Dtype::from_safetensors(known)?.size() as u64,
        };
        self.shape.iter().try_fold(size, |n, d| n.checked_mul(*d))
    }
}

/// Shapes against the bytes given to them, and the bytes against one another.
pub(super) fn layout(entries: &BTreeMap<String, Entry>, problems: &mut Vec<Problem>) {
    let mut say = |what: String| problems.push(("file.layout", what));
    let misfit = |e: &Entry| {
        let stored = e.data_offsets[1].checked_sub(e.data_offsets[0]);
        stored.is_none() || e.needs().is_some_and(|n| Some(n) != stored) || e.shape.len() > MAX_RANK
    };
    let misfits: Vec<&String> = entries.iter().filter(|(_, e)| misfit(e)).map(|(n, _)| n).collect();
    if let Some(first) = misfits.first() {
        let e = &entries[*first];
        say(format!(
            "{} whose shape does not fit its bytes: {}; the first is {} {:?} at {:?}",
            plural(misfits.len(), "tensor"),
            list(misfits.iter().map(|n| n.as_str())),
            quoted(&e.dtype),
            &e.shape[..e.shape.len().min(MAX_RANK)],
            e.data_offsets
        ));
        return;
    }
    let mut order: Vec<(&String, [u64; 2])> =
        entries.iter().map(|(n, e)| (n, e.data_offsets)).filter(|(_, o)| o[0] < o[1]).collect();
    order.sort_by_key(|(_, o)| *o);
    let mut covered = (0, None::<&String>);
    for (name, [begin, end]) in order {
        let before = covered.1.map_or("the start".to_owned(), |n| quoted(n));
        if begin > covered.0 {
            say(format!(
                "{} begins at byte {begin} of the data, {before} ends at {}: the bytes between belong to no tensor",
                quoted(name),
                covered.0
            ));
            return;
        }
        if begin < covered.0 {
            say(format!(
                "{} and {before} share bytes {begin} to {}",
                quoted(name),
                covered.0.min(end)
            ));
            return;
        }
        covered = (end, Some(name));
    }
}

/// The file's length: header and data, exactly.
pub(super) fn lengths(
    entries: &BTreeMap<String, Entry>,
    start: u64,
    length: u64,
    problems: &mut Vec<Problem>,
) {
    let data = entries.values().map(|e| e.data_offsets[1]).max().unwrap_or(0);
    let expected = start.saturating_add(data);
    if length < expected {
        let present = length - start;
        let beyond: Vec<(&String, &Entry)> =
            entries.iter().filter(|(_, e)| e.data_offsets[1] > present).collect();
        let wholly = beyond.iter().filter(|(_, e)| e.data_offsets[0] >= present).count();
        problems.push((
            "file.truncated",
            format!(
                "has {length} bytes, and its header describes {expected}: {} bytes are missing; {} beyond the end ({wholly} wholly): {}",
                expected - length,
                match beyond.len() {
                    1 => "1 tensor lies".to_owned(),
                    n => format!("{n} tensors lie"),
                },
                list(beyond.iter().map(|(n, _)| n.as_str()))
            ),
        ));
    }
    if length > expected {
        problems.push((
            "file.too_long",
            format!(
                "has {length} bytes, and its header describes {expected}: {} bytes follow the last tensor",
                length - expected
            ),
        ));
    }
}
