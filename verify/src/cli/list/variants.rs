//! `assay list variants`.

use std::time::Instant;

use assay_reference::ops;
use serde::Serialize;

use super::super::JsonArgs;
use crate::report::{Envelope, Table, write_json};
use crate::variants::{self, Variant};

#[derive(Debug, Serialize)]
struct Body {
    variants: Vec<Variant>,
}

/// Prints the variants of an op, or of all.
pub(super) fn run(op: Option<&str>, json: &JsonArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    json.check()?;
    let variants = match op {
        None => variants::all(),
        Some(op) => variants::of(op).ok_or_else(|| {
            anyhow::anyhow!(
                "--op {op}: there is no such op; there are {}, {}",
                ops::NAMES.join(", "),
                variants::FORWARD
            )
        })?,
    };
    json.say(&text(&variants));
    if let Some(path) = &json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("list", "pass", None, seconds, Body { variants }))?;
    }
    Ok(())
}

fn text(variants: &[Variant]) -> String {
    let mut t = Table::new(&["kind", "op", "name", "code", "keys", "description", "source"]);
    for v in variants {
        let mut name = v.name.clone();
        match (v.default, v.framework_only) {
            (Some(true), _) => name += " (default)",
            (_, Some(true)) => name += " (framework)",
            _ => {}
        }
        t.row([
            v.kind.name().to_string(),
            v.op.to_string(),
            name,
            v.code.unwrap_or("-").to_string(),
            v.keys.len().to_string(),
            v.description.clone(),
            v.source.to_string(),
        ]);
    }
    t.render()
}
