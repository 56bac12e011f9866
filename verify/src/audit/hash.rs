//! sha256 of every weight file, and what the folder itself knows of it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::files::Files;
use super::found::Found;

/// The hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hash {
    /// Name of the file.
    pub file: String,
    /// Its sha256 in hexadecimal digits.
    pub sha256: String,
    /// The hash that it should have, and who says so; `None` when nobody does.
    pub expected: Option<Expected>,
}

/// A hash that the folder states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// The sha256.
    pub sha256: String,
    /// Where it is stated.
    pub source: String,
}

/// Hashes every weight file.
pub(super) fn check(
    dir: &Path,
    files: &Files,
    out: &mut Found,
    step: &mut dyn FnMut(u64, u64, &str),
) -> Vec<Hash> {
    let total = files.shards.iter().map(|s| s.len).sum();
    let (mut done, mut hashes) = (0, Vec::new());
    for shard in files.shards.iter().filter(|s| !files.pointers.contains_key(&s.name)) {
        let mut hear = |n: u64| {
            done += n;
            step(done, total, &shard.name);
        };
        let sha256 = match sha256(&shard.path, &mut hear) {
            Ok(sha256) => sha256,
            Err(e) => {
                out.unchecked(format!("{}: its hash, because it cannot be read: {e}", shard.name));
                continue;
            }
        };
        let expected = stated(dir, &shard.name);
        if let Some(e) = expected.as_ref().filter(|e| e.sha256 != sha256) {
            let what = format!("has sha256 {sha256}, and {} says {}", e.source, e.sha256);
            out.add("file.hash", shard.name.clone(), what);
        }
        hashes.push(Hash { file: shard.name.clone(), sha256, expected });
    }
    let unknown = hashes.iter().filter(|h| h.expected.is_none()).count();
    if unknown > 0 {
        out.unchecked(format!(
            "{unknown} of {} hashes: nothing in the folder states them (*.sha256, the hub's cache); compare them with the hub's page",
            hashes.len()
        ));
    }
    hashes
}

fn sha256(path: &Path, hear: &mut dyn FnMut(u64)) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 4 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..n]);
        hear(n as u64);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The text when it is 64 hexadecimal digits.
fn digest(text: &str) -> Option<String> {
    let text = text.trim().trim_matches('"').to_ascii_lowercase();
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())).then_some(text)
}

/// What the folder states of a file's hash: a file beside it, huggingface_hub's record of a download into a local
/// folder (its second line is the etag, which is the sha256 of a large file), or the name in the hub's cache.
fn stated(dir: &Path, name: &str) -> Option<Expected> {
    let from = |sha256: String, source: &str| Expected { sha256, source: source.to_owned() };
    for beside in [format!("{name}.sha256"), format!("{name}.sha256sum")] {
        let found = small(&dir.join(&beside)).and_then(|t| digest(t.split_whitespace().next()?));
        if let Some(found) = found {
            return Some(from(found, &beside));
        }
    }
    for list in ["SHA256SUMS", "sha256sums.txt", "SHA256SUMS.txt", "checksums.sha256"] {
        let line = small(&dir.join(list)).and_then(|t| {
            let of = |l: &str| {
                let (hash, file) = l.split_once(char::is_whitespace)?;
                (file.trim().trim_start_matches('*') == name).then(|| digest(hash))?
            };
            t.lines().find_map(of)
        });
        if let Some(found) = line {
            return Some(from(found, list));
        }
    }
    let record = format!(".cache/huggingface/download/{name}.metadata");
    if let Some(found) = small(&dir.join(&record)).and_then(|t| digest(t.lines().nth(1)?)) {
        return Some(from(found, &record));
    }
    let target = std::fs::read_link(dir.join(name)).ok()?;
    let blob = digest(&target.file_name()?.to_string_lossy())?;
    Some(from(blob, "the name in the hub's cache"))
}

/// A small text file; a pipe would wait for its writer.
fn small(path: &Path) -> Option<String> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let mut text = String::new();
    File::open(path).ok()?.take(1 << 20).read_to_string(&mut text).ok()?;
    Some(text)
}
