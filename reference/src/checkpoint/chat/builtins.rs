//! Filters and tests that minijinja has otherwise than jinja2.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{json, python, strings, time};

/// Adds them, and the functions that transformers adds.
pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", |v: Value| python::text(&v));
    env.add_filter("capitalize", |v: Value| strings::capitalize(&python::text(&v)));
    env.add_filter("trim", trim);
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

fn trim(state: &mut State, value: Value, chars: Option<Value>) -> Result<Value, Error> {
    let text = Value::from(python::text(&value));
    let args: Vec<Value> = chars.into_iter().filter(|c| !c.is_none()).collect();
    strings::method(state, &text, "strip", &args)
}
