//! JSON read leniently: what is wrong is said, and what can be read is used.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use assay_reference::checkpoint::with_duplicates;
use serde_json::{Map, Value};

/// A JSON object, in the file's order.
pub(super) type Object = Map<String, Value>;

/// The largest file that is read (released ones have less than 1 MB; a value takes up to thirty times
/// its text).
const MAX_BYTES: u64 = 4 << 20;

/// What a file holds.
#[derive(Debug)]
pub(super) enum Doc {
    /// An object, and the keys that occur twice in it (the last value is kept, as most readers do).
    Object(Object, Vec<String>),
    /// There is no such file.
    Absent,
    /// It cannot be read, and why.
    Damaged(String),
}

/// Reads the object in `path`.
pub(super) fn read(path: &Path) -> Doc {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => return Doc::Absent,
        Err(e) => return Doc::Damaged(format!("cannot be read: {e}")),
    };
    if !meta.is_file() {
        return Doc::Damaged("is not a regular file".to_owned());
    }
    if meta.len() > MAX_BYTES {
        return Doc::Damaged(format!(
            "has {} bytes, which no such file of a checkpoint has (at most {MAX_BYTES})",
            meta.len()
        ));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) => return Doc::Damaged(format!("cannot be read: {e}")),
    };
    match with_duplicates(BufReader::new(file.take(MAX_BYTES))) {
        Ok((Value::Object(object), duplicates)) => Doc::Object(object, duplicates),
        Ok(_) => Doc::Damaged("holds no JSON object".to_owned()),
        Err(e) => Doc::Damaged(format!("is not valid JSON: {e}")),
    }
}
