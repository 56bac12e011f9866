//! JSON files read strictly: limited in size, no duplicate keys, every error with the file's name. And one reader that
//! lists duplicate keys and goes on, for who says what is wrong with a file.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::checkpoint::ensure_file;
use crate::error::{Error, Result};

/// A JSON object, in the file's order.
pub(super) type Object = Map<String, Value>;

/// The largest JSON file read: the index of the largest released model has about 10 MB.
const MAX_BYTES: u64 = 256 << 20;

/// Reads the object in `path`.
pub(super) fn read(path: &Path) -> Result<Object> {
    ensure_file(path)?;
    let file = File::open(path).map_err(Error::io(path))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::file(
            path,
            format!("has more than {MAX_BYTES} bytes, which no JSON file of a checkpoint has"),
        ));
    }
    parse(&bytes, path)
}

/// Reads the object in `path`, or `None` when there is no such file.
pub(super) fn read_optional(path: &Path) -> Result<Option<Object>> {
    match read(path) {
        Ok(object) => Ok(Some(object)),
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Parses a JSON object; `origin` is named in errors.
pub(super) fn parse(bytes: &[u8], origin: &Path) -> Result<Object> {
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let value = Values { duplicates: None }
        .deserialize(&mut from)
        .and_then(|value| from.end().map(|()| value));
    match value {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(Error::file(
            origin,
            format!("must hold a JSON object but holds {}", describe(&other)),
        )),
        Err(e) => Err(Error::file(origin, format!("is not valid JSON: {e}"))),
    }
}

/// A value as an error message shows it: its type and, when short, its text.
pub(super) fn describe(value: &Value) -> String {
    let kind = match value {
        Value::Null => return "null".to_owned(),
        Value::Bool(_) => "the boolean",
        Value::Number(_) => "the number",
        Value::String(_) => "the string",
        Value::Array(_) => "the array",
        Value::Object(_) => "the object",
    };
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return format!("{kind} {text}");
    }
    let head: String = text.chars().take(50).collect();
    format!("{kind} {head}...")
}

/// Reads a JSON value and lists keys that one object has twice (at most 20; the last value is kept, as most readers do).
///
/// # Errors
/// When it is no JSON.
pub fn with_duplicates(from: impl Read) -> serde_json::Result<(Value, Vec<String>)> {
    let mut duplicates = Vec::new();
    let mut from = serde_json::Deserializer::from_reader(from);
    let value = Values { duplicates: Some(&mut duplicates) }.deserialize(&mut from)?;
    from.end()?;
    Ok((value, duplicates))
}

/// The most duplicates that are listed.
const LISTED: usize = 20;

/// Reads a value. A key that an object has twice is listed, or refused where there is no list: serde_json keeps the last
/// value, other readers the first.
struct Values<'a> {
    duplicates: Option<&'a mut Vec<String>>,
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
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

    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Value, E> {
        Number::from_f64(v).map(Value::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        let mut duplicates = self.duplicates;
        while let Some(item) =
            seq.next_element_seed(Values { duplicates: duplicates.as_deref_mut() })?
        {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let mut duplicates = self.duplicates;
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                match &mut duplicates {
                    None => {
                        return Err(A::Error::custom(format!(
                            "the key `{}` occurs twice, and readers differ in which value they take",
                            key.escape_debug()
                        )));
                    }
                    Some(list) if list.len() < LISTED => list.push(key.clone()),
                    Some(_) => {}
                }
            }
            let value = map.next_value_seed(Values { duplicates: duplicates.as_deref_mut() })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse(text.as_bytes(), Path::new("x.json")).unwrap_err().to_string()
    }

    #[test]
    fn duplicate_keys_are_refused_at_any_depth() {
        assert!(error(r#"{"a": 1, "a": 2}"#).contains("`a` occurs twice"));
        assert!(error(r#"{"o": [{"b": 1, "b": 1}]}"#).contains("`b` occurs twice"));
    }

    #[test]
    fn duplicate_keys_are_listed_where_that_is_asked_for_and_the_last_value_is_kept() {
        let (value, twice) =
            with_duplicates(&br#"{"a": 1, "o": [{"b": 1, "b": 2}], "a": 3}"#[..]).unwrap();
        assert_eq!(value.to_string(), r#"{"a":3,"o":[{"b":2}]}"#);
        assert_eq!(twice, ["b", "a"]);
        assert!(with_duplicates(&b"{} {}"[..]).is_err());
    }

    #[test]
    fn what_is_not_an_object_is_refused_with_its_type() {
        assert_eq!(error("[1]"), "x.json: must hold a JSON object but holds the array [1]");
        assert!(error("{\"a\": NaN}").contains("is not valid JSON"));
        assert!(error(&"[".repeat(100_000)).contains("recursion limit"));
    }

    #[test]
    fn values_and_their_order_are_kept() {
        let text = r#"{"z":[null,true,-1,18446744073709551615,1e-6,"s"],"a":{}}"#;
        let object = parse(text.as_bytes(), Path::new("x.json")).unwrap();
        assert_eq!(Value::Object(object).to_string(), text);
    }
}
