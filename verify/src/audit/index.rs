//! `model.safetensors.index.json`, read leniently.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::found::quoted;

/// The longest index that is read; that of the largest released model has 9 MB.
const MAX_BYTES: u64 = 64 << 20;
/// The most tensors, and the most files.
const MAX_TENSORS: usize = 1 << 19;
const MAX_FILES: usize = 10_000;

/// The index as its file has it.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// File by tensor.
    pub(super) places: BTreeMap<String, Arc<str>>,
    /// Bytes of all tensors, as stated.
    pub(super) total_size: Option<u64>,
    has_map: bool,
    twice: Vec<String>,
    files: BTreeSet<Arc<str>>,
}

/// What there is.
pub(super) enum Outcome {
    Absent,
    /// Why it cannot be used.
    Damaged(String),
    Index(Index),
}

impl Index {
    /// The files that it names.
    pub(super) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|f| &**f)
    }

    /// Tensors that it places twice.
    pub(super) fn twice(&self) -> &[String] {
        &self.twice
    }
}

/// Reads the index at `path`.
pub(super) fn read(path: &Path) -> Outcome {
    // Asked before it is opened: to open a pipe would wait for its writer.
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => return Outcome::Damaged("is not a regular file".to_owned()),
        Ok(m) if m.len() > MAX_BYTES => {
            let what = format!("has {} bytes, which no index has (at most {MAX_BYTES})", m.len());
            return Outcome::Damaged(what);
        }
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Outcome::Absent,
        Err(e) => return Outcome::Damaged(format!("cannot be read: {e}")),
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) => return Outcome::Damaged(format!("cannot be read: {e}")),
    };
    let mut index = Index::default();
    let mut from = serde_json::Deserializer::from_reader(BufReader::new(file.take(MAX_BYTES)));
    if let Err(e) = (Top(&mut index)).deserialize(&mut from).and_then(|()| from.end()) {
        return Outcome::Damaged(format!("is not a valid index: {e}"));
    }
    if !index.has_map || index.places.is_empty() {
        return Outcome::Damaged("has no `weight_map`, or an empty one".to_owned());
    }
    Outcome::Index(index)
}

/// The outer object.
struct Top<'a>(&'a mut Index);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "weight_map" => {
                    self.0.has_map = true;
                    map.next_value_seed(Places(&mut *self.0))?;
                }
                "metadata" => {
                    let metadata = map.next_value::<Option<Metadata>>()?;
                    let total = metadata.and_then(|m| m.total_size).unwrap_or(Value::Null);
                    self.0.total_size = total.as_u64().or_else(|| whole(&total));
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[derive(serde::Deserialize)]
struct Metadata {
    total_size: Option<Value>,
}

/// An integer that was written as a float.
fn whole(v: &Value) -> Option<u64> {
    const EXACT: f64 = (1u64 << 53) as f64;
    v.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=EXACT).contains(x)).map(|x| x as u64)
}

/// The map from tensor to file.
struct Places<'a>(&'a mut Index);

impl<'de> DeserializeSeed<'de> for Places<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Places<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensor to file name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((tensor, file)) = map.next_entry::<String, String>()? {
            // A name that leaves the folder is not followed.
            if file.is_empty() || file.contains(['/', '\\', '\0']) || file == ".." {
                let what =
                    format!("tensor {}: {} is no plain file name", quoted(&tensor), quoted(&file));
                return Err(A::Error::custom(what));
            }
            if self.0.places.len() >= MAX_TENSORS || self.0.files.len() > MAX_FILES {
                let what = format!("more than {MAX_TENSORS} tensors or {MAX_FILES} files");
                return Err(A::Error::custom(what));
            }
            let known = self.0.files.get(file.as_str()).cloned();
            let file = known.unwrap_or_else(|| {
                let file: Arc<str> = file.into();
                self.0.files.insert(file.clone());
                file
            });
            if let Some(first) = self.0.places.insert(tensor.clone(), file.clone())
                && first != file
            {
                self.0.twice.push(tensor);
            }
        }
        Ok(())
    }
}
