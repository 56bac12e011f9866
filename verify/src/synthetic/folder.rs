//! The folder that a checkpoint is written to: whole or as it was.
//!
//! Files are written into a hidden folder inside it, which is removed whatever happens, and take their names at the
//! end, config.json last. So what was interrupted has no config.json, and no command takes it for a checkpoint.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use assay_reference::checkpoint::index::{INDEX, SINGLE};
use tempfile::TempDir;

pub(super) const CONFIG: &str = "config.json";

#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// Where the files are until all are whole.
    staging: Option<TempDir>,
    /// Whether the folder was made here, and is removed again when nothing came of it.
    made: bool,
}

impl Folder {
    /// Makes the folder, or takes one that is empty; with `force` any.
    ///
    /// # Errors
    /// When its parent is missing, it is no folder, is not empty, or cannot be written to.
    pub(super) fn prepare(dir: &Path, force: bool) -> anyhow::Result<Folder> {
        let shown = dir.display();
        let made = match fs::metadata(dir) {
            Ok(about) if about.is_dir() => {
                let mut entries =
                    fs::read_dir(dir).with_context(|| format!("{shown}: cannot be read"))?;
                if entries.next().is_some() && !force {
                    bail!(
                        "{shown}: is not empty; give a new folder, or --force to replace the config.json and the \
                         weights in it"
                    );
                }
                false
            }
            Ok(_) => bail!("{shown}: is not a folder"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                fs::create_dir(dir).map_err(|e| match e.kind() {
                    ErrorKind::NotFound => {
                        anyhow::anyhow!(
                            "{shown}: cannot be made: the folder above it does not exist"
                        )
                    }
                    _ => anyhow::anyhow!("{shown}: cannot be made: {e}"),
                })?;
                true
            }
            Err(e) => bail!("{shown}: {e}"),
        };
        let mut folder = Folder { dir: dir.to_path_buf(), staging: None, made };
        let staging = tempfile::Builder::new().prefix(".make-model-").tempdir_in(dir);
        folder.staging = Some(staging.with_context(|| format!("{shown}: cannot be written to"))?);
        Ok(folder)
    }

    /// Where to write the file that will be called `name`.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.staging.as_ref().map_or(&*self.dir, |s| s.path()).join(name)
    }

    /// Gives the files their names; `files` are all of them but config.json, which is the last. What there is of another
    /// checkpoint's config, index and weights is removed.
    ///
    /// # Errors
    /// When a file cannot be replaced; then none of the new ones is left.
    pub(super) fn commit(mut self, files: &[String]) -> anyhow::Result<()> {
        let mut moved = Vec::new();
        let result = self.replace(files, &mut moved);
        if result.is_err() {
            // The first error is the one to report.
            for file in moved {
                let _ = fs::remove_file(file);
            }
            return result;
        }
        self.made = false;
        if let Ok(folder) = File::open(&self.dir) {
            // Makes the renames durable where folders can be synced.
            let _ = folder.sync_all();
        }
        Ok(())
    }

    fn replace(&self, files: &[String], moved: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        let cannot = |path: &Path| format!("{}: cannot be replaced", path.display());
        // Without its config first: half of one and half of another is no checkpoint.
        let mut stale = vec![self.dir.join(CONFIG), self.dir.join(INDEX)];
        for entry in fs::read_dir(&self.dir).with_context(|| cannot(&self.dir))? {
            let entry = entry.with_context(|| cannot(&self.dir))?;
            if is_shard(&entry.file_name().to_string_lossy()) {
                stale.push(entry.path());
            }
        }
        for path in stale {
            match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).with_context(|| cannot(&path));
                }
                _ => {}
            }
        }
        for file in files.iter().map(String::as_str).chain([CONFIG]) {
            let path = self.dir.join(file);
            fs::rename(self.place(file), &path).with_context(|| cannot(&path))?;
            moved.push(path);
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.staging.take());
        if self.made {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// `model.safetensors`, and `model-00001-of-00002.safetensors` with any digits.
fn is_shard(name: &str) -> bool {
    let numbers = name.strip_prefix("model-").and_then(|n| n.strip_suffix(".safetensors"));
    let digits = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    name == SINGLE
        || numbers.and_then(|n| n.split_once("-of-")).is_some_and(|(a, b)| digits(a) && digits(b))
}

#[cfg(test)]
mod tests {
    use super::is_shard;

    #[test]
    fn shards_are_known_by_their_names() {
        for name in ["model.safetensors", "model-00001-of-00017.safetensors"] {
            assert!(is_shard(name), "{name}");
        }
        for name in
            ["model-a-of-b.safetensors", "adapter_model.safetensors", "model.safetensors.old"]
        {
            assert!(!is_shard(name), "{name}");
        }
    }
}
