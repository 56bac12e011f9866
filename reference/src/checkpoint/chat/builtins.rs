//! Filters and tests that minijinja has otherwise than jinja2.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{json, python, strings, time};

/// Adds them, and the functions that transformers adds.
pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", |v: Value| python::text(&v));
    env.add_filter("capitalize", |v: Value| strings::capitalize(&python::text(&v)));
    env.add_filter("trim", trim);
    env.add_filter("list", list);
    env.add_filter("join", join);
    env.remove_filter("pprint");
    env.add_test("iterable", |v: Value| !v.is_none() && v.try_iter().is_ok());
    env.add_test("sequence", |v: Value| {
        v.is_undefined() || matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: String| time::strftime_now(&format));
    env.remove_global("debug");
}

/// The marker by which the engine tells a template's own refusal from a failure.
pub(super) const RAISED: &str = "the template refuses this conversation: ";

fn raise_exception(message: Value) -> Result<Value, Error> {
    let what = format!("{RAISED}{}", python::text(&message));
    Err(Error::new(ErrorKind::InvalidOperation, what))
}

fn iterable(value: &Value) -> Result<(), Error> {
    if value.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none cannot be iterated over"));
    }
    Ok(())
}

fn list(state: &mut State, value: Value) -> Result<Value, Error> {
    iterable(&value)?;
    let mut out = Vec::new();
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        out.push(item);
    }
    Ok(Value::from(out))
}

/// `join(d='', attribute=None)`
fn join(
    state: &mut State,
    value: Value,
    separator: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    iterable(&value)?;
    let keyword: Option<Value> = kwargs.get("d")?;
    let attribute: Option<String> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let separator = separator.or(keyword).map_or_else(String::new, |d| python::text(&d));
    let mut out = String::new();
    for (i, mut item) in value.try_iter()?.enumerate() {
        if let Some(path) = &attribute {
            for name in path.split('.') {
                item = item.get_attr(name)?;
            }
        }
        let item = python::text(&item);
        state.consume_fuel(((separator.len() + item.len()) / 64) as u64 + 1)?;
        out.push_str(if i > 0 { &separator } else { "" });
        out.push_str(&item);
    }
    Ok(out.into())
}

fn trim(state: &mut State, value: Value, chars: Option<Value>) -> Result<Value, Error> {
    let text = Value::from(python::text(&value));
    let args: Vec<Value> = chars.into_iter().filter(|c| !c.is_none()).collect();
    strings::method(state, &text, "strip", &args)
}
