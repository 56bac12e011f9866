//! Which weight files there should be, which there are, and which are to be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::found::{Found, list, plural, quoted};
use super::index::Index;
use super::names::{self, Entries, INDEX, Kind, SINGLE};

/// Downloads that were not finished: those in the folder; and those that a downloader keeps elsewhere, which are
/// left-overs of an earlier try when every file is whole.
pub(super) fn partial(dir: &Path, entries: &Entries, out: &mut Found) {
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
pub(super) fn with_index(
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
pub(super) fn without_index(entries: &Entries, damaged: bool, out: &mut Found) -> Vec<String> {
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
