//! Which tensor lives in which shard: `model.safetensors.index.json`, or a single
//! `model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::json::{self, Object, describe};
use super::shard::Shard;
use super::{ensure_folder, list, plural};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Name of the index.
pub const INDEX: &str = "model.safetensors.index.json";
/// Name of the only shard of a checkpoint without an index.
pub const SINGLE: &str = "model.safetensors";

/// The shards of a checkpoint, mapped, and the place of every tensor.
pub struct Files {
    dir: PathBuf,
    shards: Vec<Shard>,
    owner: BTreeMap<String, usize>,
    warnings: Vec<String>,
}

impl Files {
    /// Maps every shard in `dir` and holds the index against what the shards contain.
    ///
    /// # Errors
    /// When there are no weights; when the index is malformed, or names a file that is missing or
    /// outside the folder; when a tensor is in another shard than the index says, in two shards or
    /// in none, or is not in the index; when `total_size` is neither the bytes of the tensors nor
    /// of the files; and everything that [`Shard::open`] refuses.
    pub fn open(dir: &Path) -> Result<Files> {
        ensure_folder(dir)?;
        let present = safetensors_in(dir)?;
        let index_path = dir.join(INDEX);
        let files = match json::read_optional(&index_path)? {
            Some(object) => Files::indexed(dir, &Index::parse(&object, index_path)?, &present)?,
            None => Files::single(dir, &present)?,
        };
        Ok(files.with_strays(&present))
    }

    fn single(dir: &Path, present: &BTreeSet<String>) -> Result<Files> {
        if !present.contains(SINGLE) {
            return Err(Error::file(dir, no_weights(dir, present)));
        }
        let shard = Shard::open(&dir.join(SINGLE))?;
        let owner = shard.names().map(|n| (n.to_owned(), 0)).collect();
        Ok(Files { dir: dir.to_path_buf(), shards: vec![shard], owner, warnings: Vec::new() })
    }

    fn indexed(dir: &Path, index: &Index, present: &BTreeSet<String>) -> Result<Files> {
        let named = index.files();
        let missing: Vec<&str> = named
            .keys()
            .copied()
            .filter(|f| !present.contains(*f) && !dir.join(f).is_file())
            .collect();
        if !missing.is_empty() {
            let tensors: usize = missing.iter().map(|f| named[f]).sum();
            return Err(Error::file(
                &index.path,
                format!(
                    "names {} that the folder does not hold: {} ({} of the checkpoint); download \
                     the missing files",
                    plural(missing.len(), "shard"),
                    list(missing.iter().copied()),
                    plural(tensors, "tensor")
                ),
            ));
        }
        if present.contains(SINGLE) && !named.contains_key(SINGLE) {
            return Err(Error::file(
                &index.path,
                format!(
                    "does not name `{SINGLE}`, which lies beside it; transformers would read \
                     that file and other engines the index: remove the one that is out of date"
                ),
            ));
        }
        let shards: Vec<Shard> =
            named.keys().map(|f| Shard::open(&dir.join(f))).collect::<Result<_>>()?;
        let names: Vec<&str> = named.keys().copied().collect();
        let owner = owners(&shards, &names)?;
        index.check_places(&owner, &names)?;
        let mut files = Files { dir: dir.to_path_buf(), shards, owner, warnings: Vec::new() };
        files.check_total(index)?;
        Ok(files)
    }

    /// Holds the index's `total_size` against the tensors' bytes.
    fn check_total(&mut self, index: &Index) -> Result<()> {
        let data: u64 = self.shards.iter().map(Shard::data_bytes).sum();
        let whole: u64 = self.shards.iter().map(Shard::file_bytes).sum();
        match index.total_size {
            Some(total) if total == data => {}
            Some(total) if total == whole => self.warnings.push(format!(
                "{}: total_size {total} counts the files with their headers, as GPTQModel writes \
                 it; the tensors have {data} bytes",
                index.path.display()
            )),
            Some(total) => {
                return Err(Error::file(
                    &index.path,
                    format!(
                        "metadata.total_size is {total}, but the tensors of the {} have {data} \
                         bytes (the files {whole}): the index and the shards do not belong \
                         together, or tensors were removed or converted; download the checkpoint \
                         again",
                        plural(self.shards.len(), "shard")
                    ),
                ));
            }
            None => self.warnings.push(format!(
                "{}: metadata.total_size is missing, so the tensors' total size could not be \
                 checked",
                index.path.display()
            )),
        }
        Ok(())
    }

    fn with_strays(mut self, present: &BTreeSet<String>) -> Files {
        let read: BTreeSet<&Path> = self.shards.iter().map(Shard::path).collect();
        let strays: Vec<&str> = present
            .iter()
            .map(String::as_str)
            .filter(|f| !read.contains(self.dir.join(f).as_path()))
            .collect();
        if !strays.is_empty() {
            self.warnings.push(format!(
                "{}: {} not read, because nothing names them: {}",
                self.dir.display(),
                plural(strays.len(), "safetensors file"),
                list(strays.iter().copied())
            ));
        }
        self
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The shards, sorted by file name.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// What is odd but does not change the numbers: stray files, a `total_size` of another meaning.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.owner.keys().map(String::as_str)
    }

    /// The tensor called `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.shards[*self.owner.get(name)?].get(name)
    }

    /// The file that holds `name`; the folder when none does.
    pub fn path_of(&self, name: &str) -> &Path {
        self.owner.get(name).map_or(self.dir.as_path(), |&i| self.shards[i].path())
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = plural(self.shards.len(), "shard");
        write!(f, "Files({}, {shards}, {})", self.dir.display(), plural(self.owner.len(), "tensor"))
    }
}

/// The index as its file has it.
struct Index {
    path: PathBuf,
    /// File name by tensor name.
    places: BTreeMap<String, String>,
    total_size: Option<u64>,
}

impl Index {
    fn parse(object: &Object, path: PathBuf) -> Result<Index> {
        let Some(map) = object.get("weight_map") else {
            return Err(Error::file(
                &path,
                "has no `weight_map`; expected one from tensor to file name",
            ));
        };
        let Value::Object(map) = map else {
            return Err(Error::file(
                &path,
                format!("`weight_map` must be an object, but is {}", describe(map)),
            ));
        };
        let mut places = BTreeMap::new();
        for (tensor, file) in map {
            let Some(file) = file.as_str().filter(|f| is_plain(f)) else {
                return Err(Error::tensor(
                    &path,
                    tensor.escape_debug().to_string(),
                    format!(
                        "its file must be the plain name of a .safetensors file in the same \
                         folder, but is {}",
                        describe(file)
                    ),
                ));
            };
            places.insert(tensor.clone(), file.to_owned());
        }
        if places.is_empty() {
            return Err(Error::file(&path, "`weight_map` lists no tensor"));
        }
        let total_size = match object.get("metadata").and_then(|m| m.get("total_size")) {
            None | Some(Value::Null) => None,
            Some(v) => Some(integer(v).ok_or_else(|| {
                let what = describe(v);
                Error::file(
                    &path,
                    format!("metadata.total_size must be a number of bytes, but is {what}"),
                )
            })?),
        };
        Ok(Index { path, places, total_size })
    }

    /// The files, sorted, and how many tensors the index places in each.
    fn files(&self) -> BTreeMap<&str, usize> {
        let mut files = BTreeMap::new();
        for file in self.places.values() {
            *files.entry(file.as_str()).or_insert(0) += 1;
        }
        files
    }

    /// Checks that every tensor is where the index says, and that the index lists every tensor.
    fn check_places(&self, owner: &BTreeMap<String, usize>, names: &[&str]) -> Result<()> {
        for (tensor, file) in &self.places {
            let found = owner.get(tensor).map(|&i| names[i]);
            if found == Some(file.as_str()) {
                continue;
            }
            let found = match found {
                Some(other) => format!("`{other}` holds it"),
                None => "no shard holds it".to_owned(),
            };
            return Err(Error::tensor(
                &self.path,
                tensor.escape_debug().to_string(),
                format!(
                    "the index places it in `{file}`, but {found}: the index and the shards do \
                     not belong together; download them again"
                ),
            ));
        }
        let unlisted =
            || owner.keys().map(String::as_str).filter(|n| !self.places.contains_key(*n));
        match unlisted().count() {
            0 => Ok(()),
            n => Err(Error::file(
                &self.path,
                format!(
                    "does not list {} that the shards hold: {}; engines that follow the index \
                     never read them, others do",
                    plural(n, "tensor"),
                    list(unlisted())
                ),
            )),
        }
    }
}

/// The shard of each tensor; an error when two hold the same one.
fn owners(shards: &[Shard], names: &[&str]) -> Result<BTreeMap<String, usize>> {
    let mut owner = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        for name in shard.names() {
            if let Some(first) = owner.insert(name.to_owned(), i) {
                return Err(Error::tensor(
                    shard.path(),
                    name,
                    format!(
                        "is in `{}` as well, and engines differ in which of the two they read: \
                         remove one",
                        names[first]
                    ),
                ));
            }
        }
    }
    Ok(owner)
}

/// An integer, also when written as a float without a fraction.
fn integer(v: &Value) -> Option<u64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    v.as_u64().or_else(|| {
        v.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=EXACT).contains(x)).map(|x| x as u64)
    })
}

/// Whether `name` is a plain file name that cannot leave its folder.
fn is_plain(name: &str) -> bool {
    name.len() > ".safetensors".len()
        && name.ends_with(".safetensors")
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
}

/// Names of the safetensors files in `dir`.
fn safetensors_in(dir: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let name = entry.map_err(Error::io(dir))?.file_name();
        if let Some(name) = name.to_str().filter(|n| n.ends_with(".safetensors")) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// What to say about a folder with neither an index nor `model.safetensors`.
fn no_weights(dir: &Path, present: &BTreeSet<String>) -> String {
    let none = format!("holds neither `{SINGLE}` nor `{INDEX}`");
    if present.iter().any(|f| f.contains("-of-")) {
        return format!(
            "{none}, but {}: {}; download the index, without which a missing shard cannot be \
             noticed",
            plural(present.len(), "shard"),
            list(present.iter().map(String::as_str))
        );
    }
    if !present.is_empty() {
        return format!(
            "{none}, but other safetensors files: {}; rename the model's to `{SINGLE}`",
            list(present.iter().map(String::as_str))
        );
    }
    if ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|f| dir.join(f).exists()) {
        return format!(
            "{none}, but pickled PyTorch weights, which assay does not read: convert them to \
             safetensors"
        );
    }
    format!("{none}: there are no weights to read")
}
