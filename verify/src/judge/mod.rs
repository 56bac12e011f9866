//! The judge: verification is classification.
//!
//! A subject's outputs are compared with the oracle under every allowed convention; the conventions
//! that explain every case give a pass. If none does, every catalogued fault is tried on top of the
//! conventions, and the one that explains the output names the bug. The judge sees cases and output
//! bytes only.

mod accept;
mod baseline;
mod bias;
pub mod drift;
mod evidence;
mod explain;
mod faults;
mod known;
mod longer;
mod near;
mod observed;
mod outputs;
pub mod panel;
mod pattern;
mod picture;
mod progress;
mod search;
mod separate;
mod sieve;
mod unseen;

use std::sync::Arc;

use assay_reference::ops::{self, Erased, Scope};
use assay_reference::qwen::Preset;
use assay_reference::{Case, Dtype, Error, Result, Tensor};
use serde::Serialize;

pub use accept::{Metrics, lambda};
pub use known::Known;
pub use near::near;
pub use outputs::judge_all;
pub use picture::{BINS, Histogram, Picture};
pub use progress::{Searching, watch};

use crate::families::Generated;
use crate::finding::Finding;

/// One run of a subject on a case.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The inputs.
    pub case: Arc<Case>,
    /// What the subject stored.
    pub output: Tensor,
    /// What tells this run from others, for messages.
    pub label: String,
    /// Whether only hard radii apply: structured families, where errors are not random.
    pub structured: bool,
}

/// How to judge.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Whose conventions are legitimate.
    pub scope: Scope,
    /// Which unseen faults to list with a pass.
    pub unseen: Unseen,
    /// The only conventions allowed, instead of all that are legitimate.
    pub preset: Option<&'static Preset>,
    /// What earlier calls of the ops ended with: tried first, and added to.
    pub known: Option<&'a Known>,
}

/// Which catalogued faults that the cases cannot see are listed with a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// None are looked for.
    Nothing,
    /// Those that apply to the cases' shapes, or would to a longer sequence: for recordings, whose
    /// shapes are what they are.
    Applicable,
    /// All of the catalogue, and what else could pass as the accepted convention.
    Catalogue,
    /// The same, and the pairs of faults that could be called by each other's name.
    Pairs,
}

/// What cases cannot tell from an accepted convention.
#[derive(Clone, Debug, Default)]
struct Hidden {
    faults: Vec<String>,
    indistinct: Vec<String>,
    fault_pairs: Vec<String>,
}

/// The outcome for a subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// Every output is explained by a legitimate convention.
    Pass {
        /// Conventions that explain all cases, the simplest first; the others coincide with it here.
        conventions: Vec<String>,
        /// Catalogued faults that these cases cannot see.
        unseen_faults: Vec<String>,
        /// Other variants that these cases cannot tell from the accepted convention, though others
        /// could: `defaults ~ probs=stored`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        indistinct: Vec<String>,
        /// Pairs of faults that these cases would call by each other's name, where that was asked.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        fault_pairs: Vec<String>,
    },
    /// A named fault explains what no convention does.
    Fail {
        /// The findings, most telling first.
        findings: Vec<Finding>,
    },
    /// Nothing explains the output.
    Unexplained {
        /// What the error looks like.
        pattern: String,
    },
    /// The inputs leave the result too uncertain.
    IllConditioned {
        /// Where.
        #[serde(rename = "where")]
        where_: String,
    },
    /// Nothing was verified.
    Skipped {
        /// Why, and what would be needed.
        reason: String,
    },
}

impl Verdict {
    /// `pass`, `FAIL`, ... A pass is a bare one only if the cases can see everything catalogued.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Pass { unseen_faults, indistinct, .. }
                if !unseen_faults.is_empty() || !indistinct.is_empty() =>
            {
                "pass, limited"
            }
            Verdict::Pass { .. } => "pass",
            Verdict::Fail { .. } => "FAIL",
            Verdict::Unexplained { .. } => "UNEXPLAINED",
            Verdict::IllConditioned { .. } => "ill-conditioned",
            Verdict::Skipped { .. } => "skipped",
        }
    }

    /// Whether the subject passed.
    pub fn is_pass(&self) -> bool {
        matches!(self, Verdict::Pass { .. })
    }

    /// The findings of any verdict.
    pub fn findings(&self) -> Vec<Finding> {
        match self {
            Verdict::Fail { findings } => findings.clone(),
            Verdict::Unexplained { pattern } => vec![Finding::new("unexplained", pattern)],
            Verdict::IllConditioned { where_ } => vec![Finding::new("ill_conditioned", where_)],
            Verdict::Pass { .. } | Verdict::Skipped { .. } => Vec::new(),
        }
    }
}

/// A verdict with its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Runs judged.
    pub runs: usize,
    /// Elements compared under the reported convention.
    pub elements: usize,
    /// Worst error as a fraction of its budget, above 1 is a failure: under the reported convention,
    /// or for a failure under each run's closest one.
    pub worst: f64,
    /// Share of elements equal to the oracle rounded once, bit by bit.
    pub equal_share: f64,
    /// Hypotheses evaluated.
    pub hypotheses: usize,
    /// Runs whose inputs leave too much uncertain: they are no evidence for the pass.
    pub ill_conditioned: Vec<String>,
    /// Elements by the size of their error, under the same conventions as `worst`.
    pub histogram: Histogram,
    /// Where the error of the most telling run sits.
    #[serde(skip)]
    pub picture: Option<Picture>,
}

impl Judgement {
    /// A judgement that verified nothing.
    pub fn skipped(reason: impl Into<String>) -> Judgement {
        Judgement {
            verdict: Verdict::Skipped { reason: reason.into() },
            runs: 0,
            elements: 0,
            worst: 0.0,
            equal_share: 0.0,
            hypotheses: 0,
            ill_conditioned: Vec::new(),
            histogram: Histogram::default(),
            picture: None,
        }
    }
}

/// Judges the runs of one subject, all of the op named `op` and of its first output.
///
/// # Errors
/// When the op is unknown, or a case or output is not the op's.
pub fn judge(op: &str, runs: &[Observation], options: Options) -> Result<Judgement> {
    judge_one(op, None, runs, &[], options)
}

/// Judges runs that hold the op's output of that name: each output of an op has its own verdict.
///
/// # Errors
/// As [`judge`], and when the op has no such output.
pub fn judge_output(
    op: &str,
    output: &str,
    runs: &[Observation],
    options: Options,
) -> Result<Judgement> {
    judge_one(op, Some(output), runs, &[], options)
}

/// Judges runs of `output`, the op's first where `None`. `beside` are the other outputs of the same
/// launches: a fault that would show in them, and does not, is not what is wrong here.
pub(crate) fn judge_one(
    op: &str,
    output: Option<&str>,
    runs: &[Observation],
    beside: &[(&str, &[Observation])],
    options: Options,
) -> Result<Judgement> {
    if !ops::NAMES.contains(&op) {
        return Err(Error::Request(format!("unknown op `{op}`")));
    }
    if runs.is_empty() {
        return Ok(Judgement::skipped("no case was run"));
    }
    if let Some(other) = runs.iter().find(|r| r.case.op != op) {
        let what = format!("a case of `{}` is not one of `{op}`", other.case.op);
        return Err(Error::Request(what));
    }
    // The bound's arithmetic is the subject's: f64 outputs come from f64 arithmetic.
    let f64_runs = runs.iter().filter(|r| r.case.dtype == Dtype::F64).count();
    if f64_runs > 0 && f64_runs < runs.len() {
        return Err(Error::Request("runs of f64 and of narrower dtypes are judged apart".into()));
    }
    search::run::<Erased>(runs, output, beside, options)
}

/// The observed output with every element that the closest convention does not allow replaced by the
/// reference's value under it. The closest is the one that allows most elements.
///
/// # Errors
/// As [`judge`].
pub fn reference_output(run: &Observation, options: Options) -> Result<Tensor> {
    search::corrected::<Erased>(run, options)
}

/// A catalogued fault, and whether cases show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Name within the op: `k_limit`.
    pub slug: &'static str,
    /// With the op and the key: `matmul.k_limit (limit 4096)`.
    pub name: String,
    /// Whether a subject that has it on top of the defaults would pass under no legitimate convention.
    pub shown: bool,
}

/// For each catalogued fault that applies to one of the cases, all of the op named `op`, whether they
/// show it: from the reference alone.
///
/// # Errors
/// When a case is not the op's.
pub fn shown(op: &str, cases: &[Generated], scope: Scope) -> Result<Vec<Shown>> {
    let one = |(key, shown): (explain::Key, bool)| Shown {
        slug: key.1,
        name: separate::name(op, &key),
        shown,
    };
    Ok(unseen::shown(cases, scope)?.into_iter().map(one).collect())
}
