//! The files of a checkpoint's folder by what their names say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Name of the index.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// Name of the only shard of a checkpoint without an index.
pub(super) const SINGLE: &str = "model.safetensors";

/// Endings that downloaders give to what is not complete.
const PARTIAL: [&str; 7] =
    [".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download", ".tmp"];
/// Endings of files beside a shard that are none.
const BESIDE: [&str; 8] =
    [".json", ".sha256", ".sha256sum", ".md5", ".metadata", ".lock", ".asc", ".etag"];

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `*.safetensors`
    Shard,
    /// A shard under a name that no engine looks for.
    Odd,
    /// A download that was not finished.
    Partial,
    /// Anything else.
    Other,
}

/// The entries of the folder: length by name, following links; `None` for a link to nothing.
pub(super) type Entries = BTreeMap<String, (Kind, Option<u64>)>;

/// The most entries that are read.
const MOST: usize = 100_000;

/// Lists `dir`.
///
/// # Errors
/// When it is no folder, or holds nothing of a checkpoint.
pub(super) fn list(dir: &Path) -> anyhow::Result<Entries> {
    let meta = std::fs::metadata(dir).with_context(|| {
        format!("{}: there is no such folder; give the one that holds config.json", dir.display())
    })?;
    if !meta.is_dir() {
        bail!("{}: is not a folder; give the one that holds config.json", dir.display());
    }
    let mut entries = Entries::new();
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())?.take(MOST) {
        let entry = entry.with_context(|| dir.display().to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let length = match std::fs::metadata(entry.path()) {
            Ok(meta) if meta.is_file() => Some(meta.len()),
            Ok(_) => continue,
            Err(_) => None,
        };
        let kind = kind(&name);
        entries.insert(name, (kind, length));
    }
    let of_a_checkpoint = |(name, (kind, _)): (&String, &(Kind, Option<u64>))| {
        *kind != Kind::Other || name.ends_with("config.json") || name == INDEX
    };
    if !entries.iter().any(of_a_checkpoint) {
        bail!(
            "{}: holds neither config.json nor *.safetensors: nothing of a checkpoint to audit",
            dir.display()
        );
    }
    Ok(entries)
}

fn kind(name: &str) -> Kind {
    let lower = name.to_ascii_lowercase();
    if PARTIAL.iter().any(|p| lower.ends_with(p)) {
        return Kind::Partial;
    }
    if name.ends_with(".safetensors") {
        return Kind::Shard;
    }
    let beside = BESIDE.iter().any(|b| lower.ends_with(b));
    // `model-00004-of-00005.safatensors?download=true`, `model.safetensors (1)`, `model-00001-of-00002`
    let like = lower.contains("safetensor") || lower.contains(".safe") || is_numbered(&lower);
    if like && !beside { Kind::Odd } else { Kind::Other }
}

/// Whether a name has `-00004-of-00005` in it.
fn is_numbered(name: &str) -> bool {
    numbering(name).is_some() && !name.ends_with(".bin") && !name.ends_with(".gguf")
}

/// 4 and 5 of `model-00004-of-00005.safetensors`.
pub(super) fn numbering(name: &str) -> Option<(usize, usize)> {
    let (before, after) = name.split_once("-of-")?;
    let number: String = before.chars().rev().take_while(char::is_ascii_digit).collect();
    let number: String = number.chars().rev().collect();
    let of: String = after.chars().take_while(char::is_ascii_digit).collect();
    Some((number.parse().ok()?, of.parse().ok()?))
}

/// Folders beside and above, in which downloaders keep what is not complete: those of huggingface_hub
/// (a local folder's, and its cache's) and of ModelScope.
pub(super) fn elsewhere(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let cached = dir.parent().is_some_and(|p| p.ends_with("snapshots"));
    let folders = [".cache/huggingface/download", "._____temp", "../../blobs"];
    for folder in &folders[..if cached { 3 } else { 2 }] {
        let folder = dir.join(folder);
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten().take(MOST) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let temporary = folder.ends_with("._____temp") && kind(&name) != Kind::Other;
            if name.ends_with(".incomplete") || temporary {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_is() {
        for (name, expected) in [
            ("model-00008-of-000008.safetensors", Kind::Shard),
            ("model-00004-of-00005.safatensors?download=true", Kind::Odd),
            ("model-00004-of-00005.safetensors?download=true", Kind::Odd),
            ("model.safetensors (1)", Kind::Odd),
            ("model-00004-of-00005", Kind::Odd),
            ("model.safetensors.part", Kind::Partial),
            ("model-00001-of-00002.safetensors.aria2", Kind::Partial),
            ("model.safetensors.index.json", Kind::Other),
            ("model.safetensors.sha256", Kind::Other),
            ("pytorch_model-00001-of-00002.bin", Kind::Other),
            ("tokenizer.json", Kind::Other),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
        assert_eq!(numbering("model-00008-of-000008.safetensors"), Some((8, 8)));
        assert_eq!(numbering("model.safetensors"), None);
    }
}
