//! Python's `json.dumps`, which transformers' `tojson` filter is.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use serde_json::Value as Json;

use super::python;

/// A template value of a JSON value, keys in their order.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::from(items.iter().map(from_json).collect::<Vec<Value>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v)))),
    }
}

struct Style {
    ensure_ascii: bool,
    /// What one level is indented by; without it everything is on one line.
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    state: &State,
    value: Value,
    given: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let argument = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let keyword: Option<Value> = kwargs.get(name)?;
        Ok(keyword.or_else(|| given.get(at).cloned()).filter(|v| !v.is_none()))
    };
    let indent = match argument(1, "indent")? {
        None => None,
        Some(v) if v.as_str().is_some() => v.as_str().map(str::to_owned),
        Some(v) => Some(" ".repeat(usize::try_from(i64::try_from(v)?.max(0)).unwrap_or(0).min(64))),
    };
    let (mut item, mut key) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(separators) = argument(2, "separators")? {
        let pair: Vec<Value> = separators.try_iter()?.collect();
        match pair.as_slice() {
            [i, k] if i.as_str().is_some() && k.as_str().is_some() => {
                (item, key) = (i.to_string(), k.to_string());
            }
            _ => return Err(invalid("tojson: separators must be two strings")),
        }
    }
    let style = Style {
        ensure_ascii: argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        indent,
        item,
        key,
        sort_keys: argument(3, "sort_keys")?.is_some_and(|v| v.is_true()),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write(state, &value, &style, 0, &mut out)?;
    Ok(Value::from(out))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

fn write(
    state: &State,
    value: &Value,
    style: &Style,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    state.consume_fuel(1)?;
    if depth > 200 {
        return Err(invalid("tojson: the value is nested more than 200 deep"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => string(value.as_str().unwrap_or_default(), style, out),
        ValueKind::Seq => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let items = items.iter().map(|v| (None, v));
            container(state, ['[', ']'], items.collect(), style, depth, out)?;
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                pairs.push((key.clone(), value.get_item(&key)?));
            }
            let mut named = Vec::with_capacity(pairs.len());
            for (k, v) in &pairs {
                named.push((Some(key_text(k)?), v));
            }
            if style.sort_keys {
                named.sort_by(|a, b| a.0.cmp(&b.0));
            }
            container(state, ['{', '}'], named, style, depth, out)?;
        }
        kind => {
            return Err(invalid(format!("tojson: a value of type {kind} has no JSON form")));
        }
    }
    Ok(())
}

fn container(
    state: &State,
    brackets: [char; 2],
    items: Vec<(Option<String>, &Value)>,
    style: &Style,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    out.push(brackets[0]);
    let newline = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    let empty = items.is_empty();
    for (i, (key, value)) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        newline(out, depth + 1);
        if let Some(key) = key {
            string(&key, style, out);
            out.push_str(&style.key);
        }
        write(state, value, style, depth + 1, out)?;
    }
    if !empty {
        newline(out, depth);
    }
    out.push(brackets[1]);
    Ok(())
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(x) if x.is_nan() => "NaN".into(),
        Ok(x) if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        Ok(x) => python::float(x),
        Err(_) => value.to_string(),
    }
}

/// A dict's key as JSON's only kind of key.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(invalid(format!("tojson: a key of type {kind} has no JSON form"))),
    }
}

fn string(text: &str, style: &Style, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            // DEL is ASCII and stays as it is.
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if style.ensure_ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
