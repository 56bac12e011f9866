//! The environment in which transformers renders a template, with limits.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value as Json};

use super::builtins::{self, RAISED};
use super::source::Named;
use super::{dialect, json, python};
use crate::error::{Error, Result};

/// Steps that a template may take: an instruction costs one, and so do 64 bytes that it makes. A
/// conversation of a thousand messages needs some hundred thousand, and has bytes to pay with.
const FUEL: u64 = 500_000;
/// Steps more for each byte of the variables.
const FUEL_A_BYTE: u64 = 16;
/// Calls within calls.
const DEPTH: usize = 200;
/// Bytes of the longest rendering: far beyond any context window.
const LONGEST: usize = 64 << 20;

/// The longest that a rendering may take. The steps bound all work but one: minijinja joins lists
/// lazily and without counting, so that a list doubled a hundred times is walked for ever.
const TIME: Duration = Duration::from_secs(20);
/// Bytes of stack for the calls within calls.
const STACK: usize = 64 << 20;

/// Renders a template.
pub(super) fn render(template: &Named, variables: &Map<String, Json>) -> Result<String> {
    render_within(template, variables, TIME)
}

/// Renders in a thread of its own, which is left behind when it takes too long.
fn render_within(
    template: &Named,
    variables: &Map<String, Json>,
    time: Duration,
) -> Result<String> {
    let (send, receive) = mpsc::channel();
    let (theirs, given) = (template.clone(), variables.clone());
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || send.send(render_here(&theirs, &given)))
        .map_err(Error::io(&template.origin))?;
    receive.recv_timeout(time).unwrap_or_else(|_| {
        let what = format!(
            "chat template `{}` takes more than {time:?} for this conversation: it loops, or is \
             hostile",
            template.name
        );
        Err(Error::file(&template.origin, what))
    })
}

fn render_here(template: &Named, variables: &Map<String, Json>) -> Result<String> {
    let fail = |what: String| Err(Error::file(&template.origin, what));
    let source = dialect::rewrite(&template.text);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let Ok(syntax) = syntax else { return fail("the template syntax is not available".into()) };
    let mut env = Environment::new();
    env.set_syntax(syntax);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_unknown_method_callback(python::method);
    env.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Into::into),
        None => out.write_str(&python::text(value)).map_err(Into::into),
    });
    env.set_recursion_limit(DEPTH);
    let given: usize = variables.iter().map(|(k, v)| k.len() + size(v)).sum();
    env.set_fuel(Some(FUEL + FUEL_A_BYTE * given as u64));
    builtins::add(&mut env);

    let name = format!("chat template `{}`", template.name);
    let compiled = match env.template_from_str(&source) {
        Ok(compiled) => compiled,
        Err(e) => return fail(format!("{name} is not a valid jinja2 template: {}", reason(&e))),
    };
    let variables = json::from_json(&Json::Object(variables.clone()));
    let mut out = Bounded { bytes: Vec::new(), full: false };
    let result = compiled.render_captured_to(variables, &mut out).map(|_| ());
    if out.full {
        return fail(format!("{name} writes more than {LONGEST} bytes: it is broken or hostile"));
    }
    match result {
        Ok(()) => String::from_utf8(out.bytes)
            .or_else(|_| fail(format!("{name} writes what is not UTF-8"))),
        Err(e) if e.kind() == ErrorKind::OutOfFuel => fail(format!(
            "{name} takes more than {} steps for this conversation: it loops, or is hostile",
            FUEL + FUEL_A_BYTE * given as u64
        )),
        Err(e) if e.detail().is_some_and(|d| d.starts_with(RAISED)) => {
            let line = e.line().map_or(String::new(), |l| format!(" (line {l})"));
            fail(format!("{name}{line}: {}", e.detail().unwrap_or_default()))
        }
        Err(e) => fail(format!("{name} fails on this conversation: {}", reason(&e))),
    }
}

/// An error of the engine with those that caused it, on one line.
fn reason(e: &minijinja::Error) -> String {
    let mut out = e.detail().map_or_else(|| e.kind().to_string(), str::to_owned);
    if let Some(line) = e.line() {
        out = format!("{out} (line {line})");
    }
    let mut cause = std::error::Error::source(e);
    while let Some(e) = cause {
        out = format!("{out}: {e}");
        cause = e.source();
    }
    out.replace('\n', " ")
}

/// About how many bytes a value has.
fn size(value: &Json) -> usize {
    8 + match value {
        Json::String(s) => s.len(),
        Json::Array(items) => items.iter().map(size).sum(),
        Json::Object(map) => map.iter().map(|(k, v)| k.len() + size(v)).sum(),
        _ => 0,
    }
}

/// Bytes up to [`LONGEST`].
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + buf.len() > LONGEST {
            self.full = true;
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list is walked by a thread that stays behind; it ends with the tests.
    #[test]
    fn a_template_that_outruns_the_step_count_is_given_up() {
        let text = "{% set ns = namespace(s=[1]) %}{% for i in range(200) %}\
                    {% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}";
        let template = Named { name: "t".into(), text: text.into(), origin: "x.jinja".into() };
        let time = Duration::from_millis(300);
        let error = render_within(&template, &Map::new(), time).unwrap_err().to_string();
        assert_eq!(
            error,
            "x.jinja: chat template `t` takes more than 300ms for this conversation: it loops, or \
             is hostile"
        );
    }
}
