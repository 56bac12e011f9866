//! The methods of Python's `str`. Positions count characters.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// White space as Python has it: Unicode's, and four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// Pays for `bytes` of a result before it is made.
fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64)
}

pub(super) fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let s = value.as_str().unwrap_or_default();
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
            let s = if name == "rstrip" { s } else { s.trim_start_matches(cut) };
            Ok(if name == "lstrip" { s } else { s.trim_end_matches(cut) }.into())
        }
        "split" | "rsplit" => split(s, name == "rsplit", args),
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Ok(lines(s, keep.unwrap_or(false)).into_iter().collect())
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            if sep.is_empty() {
                return Err(wrong(format!("{name}: the separator is empty")));
            }
            let back = name == "rpartition";
            let at = if back { s.rfind(sep) } else { s.find(sep) };
            let parts = match at {
                Some(i) => [&s[..i], sep, &s[i + sep.len()..]],
                None if back => ["", "", s],
                None => [s, "", ""],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(s.strip_prefix(prefix).unwrap_or(s).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(s.strip_suffix(suffix).unwrap_or(s).into())
        }
        "startswith" | "endswith" => affix(s, name, args),
        "find" | "rfind" | "index" | "rindex" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let found = part(s, start, end).and_then(|(within, before)| {
                let at = if name.starts_with('r') { within.rfind(what) } else { within.find(what) };
                at.map(|i| before + within[..i].chars().count())
            });
            match found {
                Some(i) => Ok(Value::from(i)),
                None if name.ends_with("find") => Ok(Value::from(-1)),
                None => Err(wrong(format!("{name}: the substring is not there"))),
            }
        }
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            Ok(Value::from(s.matches(what).count()))
        }
        "title" => Ok(title(s).into()),
        "capitalize" => Ok(capitalize(s).into()),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Ok(s.chars().map(swap).collect::<String>().into())
        }
        "center" | "ljust" | "rjust" | "zfill" => pad(state, s, name, args),
        "casefold" => Ok(s.to_lowercase().replace('ß', "ss").into()),
        "isspace" => Ok(Value::from(!s.is_empty() && s.chars().all(is_space))),
        "isdigit" => {
            let digit = |c: char| c.is_numeric() && !is_fraction(c);
            Ok(Value::from(!s.is_empty() && s.chars().all(digit)))
        }
        "join" => join(state, s, args),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Numeric, but not a digit: fractions, Roman numerals and the like.
fn is_fraction(c: char) -> bool {
    matches!(c as u32, 0xbc..=0xbe | 0x2150..=0x218b | 0x3007 | 0x3021..=0x3029)
}

/// The characters from `start` to `end` as Python slices, and how many lie before them; `None`
/// when `start` lies beyond the end.
fn part(s: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    if start.is_none() && end.is_none() {
        return Some((s, 0));
    }
    let n = s.chars().count() as i64;
    let place = |i: i64| if i < 0 { (n + i).max(0) } else { i };
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(n)).min(n));
    if start > end {
        return None;
    }
    let byte = |i: i64| s.char_indices().nth(i as usize).map_or(s.len(), |(b, _)| b);
    Some((&s[byte(start)..byte(end)], start as usize))
}

fn affix(s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((s, _)) = part(s, start, end) else { return Ok(Value::from(false)) };
    let test = |what: &Value| -> Result<bool, Error> {
        let what = what.as_str().ok_or_else(|| {
            wrong(format!("{name} takes a string or a tuple of strings, not {}", what.kind()))
        })?;
        Ok(if name == "startswith" { s.starts_with(what) } else { s.ends_with(what) })
    };
    if what.kind() != ValueKind::Seq || !what.is_tuple() {
        return test(what).map(Value::from);
    }
    for item in what.try_iter()? {
        if test(&item)? {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// `split` and `rsplit`: at a separator, or at runs of white space without empty parts.
fn split(s: &str, back: bool, args: &[Value]) -> Result<Value, Error> {
    let (sep, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|m| usize::try_from(m).ok());
    let pieces = most.map_or(usize::MAX, |m| m.saturating_add(1));
    let mut parts: Vec<&str> = match sep {
        Some("") => return Err(wrong("split: the separator is empty")),
        Some(sep) if back => s.rsplitn(pieces, sep).collect(),
        Some(sep) => s.splitn(pieces, sep).collect(),
        None => words(s, back, most.unwrap_or(usize::MAX)),
    };
    if back {
        parts.reverse();
    }
    Ok(parts.into_iter().collect())
}

/// Words, of which the last one found keeps what follows after `most` cuts; from the end if `back`.
fn words(s: &str, back: bool, most: usize) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = if back { s.trim_end_matches(is_space) } else { s.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let cut = if back { rest.rfind(is_space) } else { rest.find(is_space) };
        match cut {
            Some(_) if out.len() == most => {
                out.push(rest);
                return out;
            }
            Some(i) if back => {
                let after = i + rest[i..].chars().next().map_or(1, char::len_utf8);
                out.push(&rest[after..]);
                rest = rest[..i].trim_end_matches(is_space);
            }
            Some(i) => {
                out.push(&rest[..i]);
                rest = rest[i..].trim_start_matches(is_space);
            }
            None => {
                out.push(rest);
                rest = "";
            }
        }
    }
    out
}

/// `splitlines`: at every line boundary of Python, of which `\r\n` is one.
fn lines(s: &str, keep: bool) -> Vec<&str> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut out = Vec::new();
    let mut rest = s;
    while let Some(i) = rest.find(ends) {
        let long = if rest[i..].starts_with("\r\n") {
            2
        } else {
            rest[i..].chars().next().map_or(1, char::len_utf8)
        };
        out.push(&rest[..if keep { i + long } else { i }]);
        rest = &rest[i + long..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// Upper case for a word's first letter. (The four digraphs with a title case of their own, such
/// as U+01C5, become upper case.)
fn titled(c: char) -> String {
    let mut upper = c.to_uppercase();
    let first: String = upper.next().into_iter().collect();
    // `ß` becomes `Ss`.
    first + &upper.flat_map(char::to_lowercase).collect::<String>()
}

/// `title`: a letter is lower case after another letter, else upper.
fn title(s: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.push_str(&titled(c));
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

/// `capitalize`: the first character upper case, the rest lower.
pub(super) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let first = chars.next().map(titled).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

fn pad(state: &State, s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let fill = match fill.map(|f| (f.chars().next(), f.chars().count())) {
        None if name == "zfill" => '0',
        None => ' ',
        Some((Some(c), 1)) if name != "zfill" => c,
        Some(_) => return Err(wrong(format!("{name}: the fill must be one character"))),
    };
    let n = s.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(n);
    charge(state, missing.saturating_mul(4))?;
    let run = |n: usize| fill.to_string().repeat(n);
    // CPython's rounding of an odd margin.
    let left = missing / 2 + (missing & width.unsigned_abs() as usize & 1);
    let sign = if name == "zfill" && s.starts_with(['+', '-']) { 1 } else { 0 };
    Ok(match name {
        "ljust" => s.to_owned() + &run(missing),
        "center" => run(left) + s + &run(missing - left),
        _ => s[..sign].to_owned() + &run(missing) + &s[sign..],
    }
    .into())
}

fn join(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let (items,): (&Value,) = from_args(args)?;
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        charge(state, s.len())?;
        let item = item.as_str().ok_or_else(|| {
            wrong(format!("join takes strings, but item {i} is of type {}", item.kind()))
        })?;
        out.push_str(if i > 0 { s } else { "" });
        out.push_str(item);
    }
    Ok(out.into())
}
