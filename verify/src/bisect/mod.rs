//! From a symptom to a named fault: every suspect with its experiment, all of them run.
//!
//! A service whose numbers are wrong has a dozen suspects, and two independent faults hide one another: repairing one
//! leaves the service wrong. So nothing stops at the first hit. Suspects stand in the order of what their experiment
//! costs; each ends cleared, convicted with evidence, or not testable with what would be needed. A config that the
//! tensors contradict is convicted and replaced by theirs ([`mend`]), so that what lies behind it can still be judged.

mod audited;
mod kernels;
pub mod mend;
mod report;
pub mod server;
pub mod switches;
mod symptom;
mod text;
mod trace;

use std::path::Path;

use assay_hip::engine::Kernels;
use assay_reference::trace::Trace;
use serde::Serialize;

pub use self::report::{Bisect, Evidence, Outcome, Row};
pub use self::server::{Server, ServerEvidence, Source};
pub use self::text::Prompt;
use crate::audit::{self, Audit, Code, Options};
use crate::diff::engine;

/// What there is to go by, beside the checkpoint.
#[derive(Default)]
pub struct Given<'a> {
    /// A recorded forward of the engine.
    pub trace: Option<&'a Trace>,
    /// Kernels to run the model on, and the prompt.
    pub kernels: Option<(&'a Kernels, &'a engine::Prompt)>,
    /// The running server, or what it answered to a probe.
    pub server: Option<Server<'a>>,
    /// What the service answered.
    pub answer: Option<&'a str>,
    /// A conversation, and the prompt that the service made of it.
    pub prompt: Option<&'a Prompt>,
    /// Read every weight.
    pub data: bool,
    /// Hash every file.
    pub hash: bool,
}

/// Runs every experiment that `given` allows on the checkpoint in `dir`. `step` hears (done, of, what).
///
/// # Errors
/// When `dir` holds nothing of a checkpoint, or an experiment cannot be carried out for a reason that is none of
/// its suspect's.
pub fn bisect(
    dir: &Path,
    given: &Given<'_>,
    step: &mut dyn FnMut(usize, usize, &str),
) -> anyhow::Result<Bisect> {
    let options = Options { hash: given.hash, data: given.data };
    let mut bytes = |done: u64, total: u64, what: &str| {
        step((done >> 20) as usize, (total >> 20) as usize, what);
    };
    let (audit, fixed) = audit::with_config(dir, options, &mut bytes)?;
    let mut rows = audited::rows(&audit, options);
    let model = mend::open(dir, &audit, fixed);
    let model = model.as_ref().map_err(String::as_str);
    let probed = ServerEvidence::of(model, given.server, step);
    let probed = probed.as_ref();
    rows.push(text::row(dir, given.prompt, probed));
    rows.push(symptom::row(model, given, probed));
    rows.push(server::boundary_row(probed));
    rows.push(server::forward_row(probed));
    rows.push(kernels::row(model, given.kernels, step));
    rows.extend(trace::rows(model, given.trace, step)?);
    let mended = model.map(|m| m.changes.clone()).unwrap_or_default();
    Ok(Bisect::new(dir, rows, mended, &audit))
}

/// Kinds of findings of a bisect's own.
pub(crate) const CODES: &[Code] = &[
    Code {
        code: "A500",
        name: "logits.not_finite",
        why: "NaN and infinities spread: every token after them is id 0, or whatever the sampler makes of them",
        served: "`!!!!` (token 0), an error 500 when log-probabilities are asked for",
        advice: "Look at the first op whose output is not finite: its inputs are the reproducer",
    },
    Code {
        code: "A501",
        name: "logits.constant",
        why: "All tokens are equally likely: the head, or what it reads, is constant",
        served: "One token for ever, or noise",
        advice: "Look at lm_head and the final norm: unwritten output, zero weights, a kernel without code for this device",
    },
    Code {
        code: "A502",
        name: "logits.collapsed",
        why: "The same token leads at every position, where it does not in a right forward",
        served: "One token for ever",
        advice: "Look at the ops below; a constant residual stream does this, and a norm that loses its input",
    },
    Code {
        code: "A503",
        name: "answer.collapsed",
        why: "The answer is one token over and over: logits that are NaN, constant, or led by one token",
        served: "As seen",
        advice: "Record logits (a trace, or a probe of the server): they tell NaN from constant from wrong",
    },
    Code {
        code: "A504",
        name: "answer.repeats",
        why: "The answer repeats itself: wrong positions, a lost cache, or a temperature of 0 with a small model",
        served: "As seen",
        advice: "Ask the same of the reference (assay run MODEL --chat ...): if it repeats too, it is the model",
    },
    Code {
        code: "A505",
        name: "trace.shape",
        why: "The engine computes in other shapes than the model has: it read another config, or cut the weights",
        served: "Noise, or a shape error",
        advice: "Compare the engine's own config (head_dim, heads, intermediate_size) with the checkpoint's",
    },
    Code {
        code: "A506",
        name: "trace.other_model",
        why: "The recording is of another model than the checkpoint: nothing else can be compared",
        served: "Not a fault of numbers",
        advice: "Give the checkpoint that the engine loaded, or record again",
    },
    Code {
        code: "A510",
        name: "switch.guilty",
        why: "With this switch on the output is wrong, and right with it off",
        served: "Wrong while the switch is on",
        advice: "Leave it off, and check that kernel alone: a trace of both runs, then assay diff",
    },
    Code {
        code: "A511",
        name: "switch.together",
        why: "Only with all of these switches on is the output wrong; each alone is right",
        served: "Wrong while all of them are on",
        advice: "Leave one of them off; look at what one writes and another reads (layouts of weights and caches)",
    },
    Code {
        code: "A512",
        name: "switch.not_among_them",
        why: "The output is wrong with every custom kernel off: the fault lies elsewhere",
        served: "Wrong whatever the switches",
        advice: "Run assay bisect MODEL with a trace: files, config, and ops that no switch reaches",
    },
    Code {
        code: "A513",
        name: "switch.unstable",
        why: "The same switches gave right and wrong: the fault is not deterministic, or the test is not",
        served: "Differs from run to run",
        advice: "Repeat with --repeats; look for races, uninitialised memory, graph capture",
    },
];

/// A kind of finding by its name, of an audit or of a bisect.
fn code(name: &str) -> Option<&'static Code> {
    audit::codes().chain(CODES).find(|c| c.name == name)
}

/// Every kind of finding of a bisect's own.
pub fn codes() -> impl Iterator<Item = &'static Code> {
    CODES.iter()
}

/// What was changed to be able to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Changes(pub Vec<String>);

impl Changes {
    /// Whether anything was changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// `1 op`, `2 ops`.
fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// How the rows of the audit, of use to whoever has no more than one, are limited.
fn unchecked(audit: &Audit, words: &[&str]) -> Vec<String> {
    let of = |u: &&String| words.iter().any(|w| u.contains(w));
    audit.unchecked.iter().filter(of).cloned().collect()
}
