//! JSON read leniently: what is wrong is said, and what can be read is used.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

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
    let mut duplicates = Vec::new();
    let mut from = serde_json::Deserializer::from_reader(BufReader::new(file.take(MAX_BYTES)));
    let value = Lenient { duplicates: &mut duplicates }
        .deserialize(&mut from)
        .and_then(|value| from.end().map(|()| value));
    match value {
        Ok(Value::Object(object)) => Doc::Object(object, duplicates),
        Ok(_) => Doc::Damaged("holds no JSON object".to_owned()),
        Err(e) => Doc::Damaged(format!("is not valid JSON: {e}")),
    }
}

/// The most duplicates that are listed.
const LISTED: usize = 20;

/// Reads a value and notes keys that occur twice.
struct Lenient<'a> {
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Lenient<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Lenient<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let duplicates = self.duplicates;
        while let Some(item) = seq.next_element_seed(Lenient { duplicates: &mut *duplicates })? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let duplicates = self.duplicates;
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) && duplicates.len() < LISTED {
                duplicates.push(key.clone());
            }
            let value = map.next_value_seed(Lenient { duplicates: &mut *duplicates })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}
