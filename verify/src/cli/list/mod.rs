//! `assay list`.

mod variants;

use assay_reference::ops::{self, Op, Visitor};
use assay_reference::qwen::preset::PRESETS;
use clap::{Args, ValueEnum};

use super::{JsonArgs, PASS, say};
use crate::families;
use crate::finding;
use crate::mutants::{self, Kind};
use crate::report::Table;

/// What to list.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Kind of thing
    #[arg(value_enum, default_value_t = What::Kernels)]
    what: What,
    /// Of variants, those of this op [default: of all ops]
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum What {
    /// HIP kernels and the ops that they implement
    Kernels,
    /// Ops with their arguments, points, conventions and number of faults
    Ops,
    /// Families of cases, and which faults each separates from every convention
    Families,
    /// Conventions and faults of every op, with meaning and source
    Variants,
    /// Named sets of rounding conventions
    Presets,
    /// Source mutants and controls
    Mutants,
    /// Finding codes
    Findings,
}

struct Describe;

impl Visitor for Describe {
    type Out = String;

    fn visit<O: Op>(self) -> String {
        let mut out = format!("{}: {}\n", O::NAME, O::SUMMARY);
        for a in O::ARGS {
            let optional = if a.optional { " (optional)" } else { "" };
            out += &format!("  argument    {}: {}{optional}\n", a.name, a.doc);
        }
        if !O::POINTS.is_empty() {
            out += &format!("  points      {}\n", O::POINTS.join(", "));
        }
        let examples = families::examples::<O>();
        for knob in examples.first().map(|(params, _)| O::knobs(params)).unwrap_or_default() {
            out += &format!("  convention  {knob:?}\n");
        }
        let mut slugs: Vec<&str> = Vec::new();
        for fault in examples.iter().flat_map(|(params, tensors)| O::faults(params, tensors)) {
            if !slugs.contains(&fault.slug) {
                slugs.push(fault.slug);
            }
        }
        out += &format!("  faults      {}\n", slugs.join(", "));
        out
    }
}

fn families_of(op: &str) -> String {
    let mut out = format!("{op}\n");
    for f in families::describe(op) {
        out += &format!("  {:<8}  {}\n", f.name, f.description);
        let list = if f.separates.is_empty() { "-".into() } else { f.separates.join(", ") };
        out += &format!("            separates {list}\n");
    }
    out
}

pub(super) fn run(args: &ListArgs) -> anyhow::Result<u8> {
    if args.what != What::Variants && (args.op.is_some() || args.json.json.is_some()) {
        anyhow::bail!("--op and --json go with `assay list variants` only");
    }
    let text = match args.what {
        What::Variants => {
            variants::run(args.op.as_deref(), &args.json)?;
            return Ok(PASS);
        }
        What::Ops => ops::NAMES.iter().filter_map(|op| ops::visit(op, Describe)).collect(),
        What::Kernels => {
            let mut t = Table::new(&["kernel", "op", "mutants", "controls"]);
            for k in assay_hip::kernels() {
                let counts = [k.mutants.len().to_string(), k.controls.len().to_string()];
                t.row([k.name.to_string(), k.op.to_string()].into_iter().chain(counts));
            }
            t.render()
        }
        What::Families => ops::NAMES.iter().map(|op| families_of(op)).collect(),
        What::Presets => {
            let mut t = Table::new(&["preset", "stored as", "meaning"]);
            for p in PRESETS {
                t.row([p.name.to_string(), p.dtype.to_string(), p.summary.to_string()]);
            }
            t.render()
        }
        What::Mutants => {
            let mut t = Table::new(&["edit", "kind", "expected"]);
            for e in mutants::edits()? {
                let kind = if e.kind == Kind::Mutant { "mutant" } else { "control" };
                t.row([e.name, kind.into(), e.expected.unwrap_or_else(|| "pass".into())]);
            }
            t.render()
        }
        What::Findings => {
            let mut t = Table::new(&["code", "name"]);
            for (code, name) in finding::all_codes() {
                t.row([code, name]);
            }
            t.render()
        }
    };
    say(&text, false);
    Ok(PASS)
}
