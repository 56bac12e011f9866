//! Typed reading of a JSON object's fields, with errors that name the file and the field.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::Value;

use crate::checkpoint::json::{Object, describe};
use crate::error::{Error, Result};

/// An object's fields, and which of them were looked at.
pub(super) struct Fields<'a> {
    path: &'a Path,
    /// Where the object lies in the file, e.g. `quantization_config.`; empty at the top.
    within: &'a str,
    object: &'a Object,
    seen: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(path: &'a Path, within: &'a str, object: &'a Object) -> Fields<'a> {
        Fields { path, within, object, seen: RefCell::default() }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// The field's value; `None` when it is missing or null.
    pub(super) fn value(&self, name: &'static str) -> Option<&'a Value> {
        self.seen.borrow_mut().insert(name);
        self.object.get(name).filter(|v| !v.is_null())
    }

    /// Fields that are set and were never looked at.
    pub(super) fn unseen(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        let seen = self.seen.borrow();
        let names: Vec<(&str, &Value)> = self
            .object
            .iter()
            .map(|(k, v)| (k.as_str(), v))
            .filter(|(k, v)| !v.is_null() && !seen.contains(*k))
            .collect();
        names.into_iter()
    }

    /// An error about the field. What quotes a value of any length is cut in its middle.
    pub(super) fn error(&self, name: &str, what: impl AsRef<str>) -> Error {
        let what = what.as_ref();
        let (head, tail) = (what.char_indices().nth(200), what.char_indices().nth_back(399));
        let what = match (head, tail) {
            (Some((head, _)), Some((tail, _))) if head < tail => {
                format!("{} ... {}", &what[..head], &what[tail..])
            }
            _ => what.to_owned(),
        };
        Error::file(self.path, format!("`{}{}` {what}", self.within, name.escape_debug()))
    }

    fn wrong(&self, name: &str, expected: &str, found: &Value) -> Error {
        self.error(name, format!("must be {expected}, but is {}", describe(found)))
    }

    /// The value, or an error that says why there is no default.
    pub(super) fn need<T>(&self, name: &str, value: Option<T>, why: &str) -> Result<T> {
        value.ok_or_else(|| self.error(name, format!("is missing; {why}")))
    }

    /// An integer within `range`.
    pub(super) fn integer(
        &self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_i64() {
            Some(n) if range.contains(&n) => Ok(Some(n)),
            _ => {
                let expected = format!("an integer from {} to {}", range.start(), range.end());
                Err(self.wrong(name, &expected, value))
            }
        }
    }

    /// A positive count of at most `max`, which must be there.
    pub(super) fn count(&self, name: &'static str, max: i64) -> Result<usize> {
        let n = self.integer(name, 1..=max)?;
        let n =
            self.need(name, n, "assay does not guess it: take it from the original config.json")?;
        // In range: 1 <= n <= max, and every limit here is far below usize's.
        Ok(n as usize)
    }

    /// A finite number.
    pub(super) fn real(&self, name: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() => Ok(Some(x)),
            _ => Err(self.wrong(name, "a number", value)),
        }
    }

    /// A boolean.
    pub(super) fn flag(&self, name: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "true or false", value))
    }

    /// A string.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(name, "a string", value))
    }

    /// An object.
    pub(super) fn object(&self, name: &'static str) -> Result<Option<&'a Object>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(name, "an object", value))
    }

    /// An array of strings.
    pub(super) fn texts(&self, name: &'static str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let texts = value.as_array().and_then(|a| a.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong(name, "an array of strings", value))
    }

    /// An array of integers within `range`.
    pub(super) fn integers(
        &self,
        name: &'static str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<Vec<i64>>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let integer = |v: &Value| v.as_i64().filter(|n| range.contains(n));
        let items = value.as_array().and_then(|a| a.iter().map(integer).collect());
        items.map(Some).ok_or_else(|| {
            let expected =
                format!("an array of integers from {} to {}", range.start(), range.end());
            self.wrong(name, &expected, value)
        })
    }

    /// One token id or an array of them, each below `vocab`; `None` for an empty array.
    pub(super) fn ids(&self, name: &'static str, vocab: usize) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let one = std::slice::from_ref(value);
        let items = value.as_array().map_or(one, Vec::as_slice);
        let id =
            |v: &Value| v.as_u64().filter(|&n| n < vocab as u64).and_then(|n| n.try_into().ok());
        let ids: Option<Vec<u32>> = items.iter().map(id).collect();
        ids.map(|ids| Some(ids).filter(|ids| !ids.is_empty())).ok_or_else(|| {
            self.wrong(
                name,
                &format!("a token id below vocab_size {vocab}, or an array of them"),
                value,
            )
        })
    }
}
