//! Python's `str` and `repr` of values, and the methods of lists and dicts.

use std::fmt::Write;

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::strings;

/// `repr` of a float: the shortest digits that read back, in scientific notation below 1e-4 and
/// from 1e16.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    // Rust's `{:e}` has the same shortest digits: `-1.25e-7`.
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `str(value)`; empty for undefined, as jinja2 prints it.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.to_string(),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0);
            out
        }
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value, out: &mut String, depth: usize) {
    // Values nest no deeper than the JSON that they come from, or the expression that made them.
    if depth > 200 {
        out.push_str("...");
        return;
    }
    let items = |open: &str, close: &str, out: &mut String, each: &[Value]| {
        out.push_str(open);
        for (i, item) in each.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            repr(item, out, depth + 1);
        }
        out.push_str(close);
    };
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float));
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq if value.len().is_some() => {
            let each: Vec<Value> = value.try_iter().map(Iterator::collect).unwrap_or_default();
            match (value.is_tuple(), each.len()) {
                (true, 1) => items("(", ",)", out, &each),
                (true, _) => items("(", ")", out, &each),
                (false, _) => items("[", "]", out, &each),
            }
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(&key, out, depth + 1);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1);
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// A string in quotes, what cannot be printed escaped. (Characters that Unicode has not assigned
/// are printed as they are; Python escapes them.)
fn quoted(s: &str, out: &mut String) {
    let quote = if s.contains('\'') && !s.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in s.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if printable(c) => out.push(c),
            c => {
                let n = c as u32;
                let _ = match n {
                    0..=0xff => write!(out, "\\x{n:02x}"),
                    0x100..=0xffff => write!(out, "\\u{n:04x}"),
                    _ => write!(out, "\\U{n:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Whether Python prints it: not a control, format or private character, nor a space but U+0020.
fn printable(c: char) -> bool {
    if c.is_control() || (strings::is_space(c) && c != ' ') {
        return false;
    }
    !matches!(c as u32,
        0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x890..=0x891 | 0x8e2 | 0x180e
        | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff
        | 0xfff0..=0xfffb | 0xfffe..=0xffff | 0x110bd | 0x110cd | 0x13430..=0x1343f
        | 0x1bca0..=0x1bca3 | 0x1d173..=0x1d17a | 0xe0000..=0xe00ff | 0xe01f0..=0x10ffff)
}

/// `value.method(args)` for strings, lists, tuples and dicts. Methods that change a value are
/// refused, as by jinja2's immutable sandbox.
pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => strings::method(state, value, name, args),
        ValueKind::Map if value.as_object().is_some() => dict(state, value, name, args),
        ValueKind::Seq => list(state, value, name, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn changes(name: &str) -> Error {
    let what = format!("`{name}` would change its value, which templates must not");
    Error::new(ErrorKind::InvalidOperation, what)
}

/// A list of the pairs, keys or values: Python's views print otherwise, but iterate like it.
fn dict(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "items" => {
            let () = from_args(args)?;
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                state.consume_fuel(1)?;
                pairs.push(Value::from(Tuple::from([key.clone(), value.get_item(&key)?])));
            }
            Ok(Value::from(pairs))
        }
        "update" | "pop" | "popitem" | "clear" | "setdefault" => Err(changes(name)),
        "copy" => Ok(value.clone()),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn list(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "append" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" | "clear" => {
            Err(changes(name))
        }
        "copy" => Ok(value.clone()),
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(Value::from).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("{what} is not in the list"))
            })
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
