//! The stored zero points: which format they are of, whether they wrap, whether they are symmetric.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use assay_reference::checkpoint::GptqFormat;
use assay_reference::checkpoint::zeros::StoredZeros;
use assay_reference::ops::packed::{Reading, values};

use super::{Described, layers};
use crate::audit::files::Files;
use crate::audit::found::{Found, list, plural};

/// Bytes of a layer's zero points that are read when not all are.
const SAMPLE: u64 = 1 << 17;
/// The most that are read of one layer.
const MOST: u64 = 64 << 20;
/// Packed bytes of a layer whose codes are compared with its zero points, when not all are.
const SMALL: u64 = 4 << 20;
/// Layers whose codes are compared, when not all are.
const CODES: usize = 4;

/// One layer's zero points by value.
struct Tally<'a> {
    path: &'a str,
    counts: Vec<u64>,
}

impl Tally<'_> {
    /// The value that all have.
    fn single(&self) -> Option<u64> {
        let mut stored =
            self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(v, _)| v as u64);
        stored.next().filter(|_| stored.next().is_none())
    }
}

/// Checks all layers with zero points.
pub(super) fn check(
    described: &Described,
    bits: u32,
    gptq: bool,
    files: &Files,
    full: bool,
    out: &mut Found,
) {
    let limit = if full { MOST } else { SAMPLE };
    let tallies: Vec<Tally<'_>> = layers(files, ".qzeros")
        .filter_map(|path| Some(Tally { path, counts: tally(files, path, bits, limit)? }))
        .collect();
    if tallies.is_empty() {
        return;
    }
    let middle = 1u64 << (bits - 1);
    if !gptq {
        let varies = |t: &&Tally<'_>| t.single() != Some(middle);
        symmetry(
            described,
            described.zero_point == Some(false),
            "zero_point",
            &tallies,
            varies,
            out,
        );
        return;
    }
    let label = match described.format.as_deref() {
        Some("gptq_v2") => GptqFormat::V2,
        _ => GptqFormat::V1,
    };
    let stored = |format: GptqFormat| middle - u64::from(format == GptqFormat::V1);
    let other = if label == GptqFormat::V1 { GptqFormat::V2 } else { GptqFormat::V1 };
    let contradicting: Vec<&str> =
        tallies.iter().filter(|t| t.single() == Some(stored(other))).map(|t| t.path).collect();
    let name = |f: GptqFormat| if f == GptqFormat::V1 { "gptq (v1)" } else { "gptq_v2" };
    let place = described.place("checkpoint_format");
    if !contradicting.is_empty() {
        let what = format!(
            "says {}, but in {} of {} layers every stored zero point is {}, as {} stores a symmetric one: {}",
            name(label),
            contradicting.len(),
            tallies.len(),
            stored(other),
            name(other),
            list(contradicting.iter().copied())
        );
        out.add("quant.format", place, what);
    } else if let Some(what) = by_codes(files, bits, label, name, full, out) {
        out.add("quant.format", place, what);
    }
    let varies = |t: &&Tally<'_>| ![stored(label), stored(other)].map(Some).contains(&t.single());
    symmetry(described, described.sym == Some(true), "sym", &tallies, varies, out);
    wraps(files, label, &tallies, bits, full, out);
}

/// Zero points that vary although the description says that they do not.
fn symmetry(
    described: &Described,
    says_so: bool,
    field: &str,
    tallies: &[Tally<'_>],
    varies: impl Fn(&&Tally<'_>) -> bool,
    out: &mut Found,
) {
    let found: Vec<&str> = tallies.iter().filter(varies).map(|t| t.path).collect();
    if says_so && !found.is_empty() {
        let what = format!(
            "says symmetric, but the zero points vary in {} of {} layers: {}",
            found.len(),
            tallies.len(),
            list(found.iter().copied())
        );
        out.add("quant.sym", described.place(field), what);
    }
}

/// In v1 the largest stored value stands for one that does not fit.
fn wraps(
    files: &Files,
    label: GptqFormat,
    tallies: &[Tally<'_>],
    bits: u32,
    full: bool,
    out: &mut Found,
) {
    let largest = (1usize << bits) - 1;
    let found: Vec<&Tally<'_>> = tallies.iter().filter(|t| t.counts[largest] > 0).collect();
    let Some(first) = found.first().filter(|_| label == GptqFormat::V1) else { return };
    let count: u64 = found.iter().map(|t| t.counts[largest]).sum();
    let what = format!(
        "{count} stored zero points are {largest}, which v1 means as {}: engines read {} or 0; in {}: {}{}",
        largest + 1,
        largest + 1,
        plural(found.len(), "layer"),
        list(found.iter().map(|t| t.path)),
        if full { "" } else { " (a sample was read: --data reads all)" }
    );
    out.add("quant.zeros_wrap", files.place(&format!("{}.qzeros", first.path)), what);
}

/// How often each value is stored in the first rows of a layer's zero points; `None` where the file ends before
/// them, which is another finding.
fn tally(files: &Files, path: &str, bits: u32, limit: u64) -> Option<Vec<u64>> {
    let name = format!("{path}.qzeros");
    let &[rows, columns] = files.shape(&name)? else { return None };
    let row = columns.checked_mul(4).filter(|r| (1..=limit).contains(r))?;
    let (file, at, len) = files.bytes_of(&name)?;
    let rows = rows.min(limit / row).min(len / row);
    if rows == 0 {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(rows * row).ok()?];
    let mut file = File::open(file).ok()?;
    file.seek(SeekFrom::Start(at)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    let words: Vec<i64> =
        bytes.as_chunks::<4>().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect();
    let mut counts = vec![0; 1 << bits];
    let columns = usize::try_from(columns).ok()?;
    let reading = Reading::plain(bits);
    for row in words.chunks_exact(columns) {
        for i in 0..values(columns, bits)? {
            *counts.get_mut(reading.value(i, |w| row[w]) as usize)? += 1;
        }
    }
    Some(counts)
}

/// What codes and zero points together say, where the zero points alone do not: see
/// [`StoredZeros`].
fn by_codes(
    files: &Files,
    bits: u32,
    label: GptqFormat,
    name: impl Fn(GptqFormat) -> &'static str,
    full: bool,
    out: &mut Found,
) -> Option<String> {
    let size = |path: &str| files.bytes_of(&format!("{path}.qweight")).map_or(u64::MAX, |b| b.2);
    let mut paths: Vec<&str> = layers(files, ".qzeros").collect();
    paths.sort_by_key(|p| size(p));
    let (limit, count) = if full { (MOST, paths.len()) } else { (SMALL, CODES) };
    let (mut contradict, mut agree, mut lean) = (Vec::new(), 0, 0.0);
    for path in paths.iter().filter(|p| size(p) <= limit).take(count) {
        let part = |part: &str| files.tensor(&format!("{path}.{part}"), limit);
        let (Some(w), Some(z), Some(g)) = (part("qweight"), part("qzeros"), part("g_idx")) else {
            continue;
        };
        let Ok(stored) = StoredZeros::read(bits, &w, &z, &g) else { continue };
        match stored.format {
            Some(format) if format == label => agree += 1,
            Some(_) => {
                lean = stored.lean;
                contradict.push(*path);
            }
            None => {}
        }
    }
    let other = if label == GptqFormat::V1 { GptqFormat::V2 } else { GptqFormat::V1 };
    if contradict.len() > agree {
        return Some(format!(
            "says {}, but codes lie {lean:.2} above the stored zero points on average ({} has 0, gptq (v1) has 1): the data are {}; in {} of {} layers looked at: {}",
            name(label),
            name(GptqFormat::V2),
            name(other),
            contradict.len(),
            contradict.len() + agree,
            list(contradict.iter().copied())
        ));
    }
    if agree == 0 {
        out.unchecked(
            "whether the zero points are of the format that the label names: they do not decide it",
        );
    }
    None
}
