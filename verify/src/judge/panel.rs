//! Panels: what every legitimate convention allows on a case, evaluated once for many subjects.
//!
//! The judge evaluates the conventions for each subject that it is shown; where hundreds of subjects
//! answer the same cases, as when the suite's power is measured, a panel keeps the intervals. It has
//! the judge's rule: a subject passes when one convention allows all elements of all its cases and the
//! errors of the unstructured cases do not lean to one side.

use std::sync::Arc;

use assay_reference::ops::{Erased, Fault, Op, OutSpec, Scope, Tile};
use assay_reference::{Case, Dtype, Error, Result, Rounding, Tensor};

use super::accept::{Arithmetic, Expected, inside};
use super::bias::Lean;
use super::search::{Convention, Run, conventions, label};
use super::{Observation, Options, Unseen};

/// A catalogued fault, by what tells it from others in every case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId {
    /// Name within the op.
    pub slug: String,
    /// Tells faults of one slug apart. May be empty.
    pub key: String,
    /// Finding code.
    pub code: String,
}

/// What is allowed on one case.
#[derive(Debug)]
pub struct Panel {
    labels: Vec<String>,
    /// The entry of each convention: conventions that coincide here share one.
    entry_of: Vec<usize>,
    entries: Vec<Entry>,
    faults: Vec<FaultId>,
    spec: OutSpec,
    dtype: Dtype,
    /// Whether the bias test leaves the case out.
    unbiased: bool,
}

#[derive(Debug)]
struct Entry {
    expected: Expected,
    /// The oracle before the output's rounding.
    exact: Vec<f64>,
    output: Rounding,
}

impl Panel {
    /// Evaluates the conventions that `scope` allows on a case. `structured` asks for hard radii.
    ///
    /// # Errors
    /// When the op is unknown or the case is not the op's.
    pub fn new(case: &Arc<Case>, structured: bool, scope: Scope) -> Result<Panel> {
        Panel::build(case, structured, scope, None)
    }

    /// The same for the conventions named, such as `edge=f32 scale=stored`; empty is the defaults.
    ///
    /// # Errors
    /// As [`Panel::new`].
    pub fn of(case: &Arc<Case>, structured: bool, scope: Scope, only: &[&str]) -> Result<Panel> {
        Panel::build(case, structured, scope, Some(only))
    }

    fn build(
        case: &Arc<Case>,
        structured: bool,
        scope: Scope,
        only: Option<&[&str]>,
    ) -> Result<Panel> {
        let (_, mut outputs) = Erased::open(case)?;
        let spec = outputs.swap_remove(0);
        let blank = vec![0.0; spec.shape.iter().product()];
        let observation = Observation {
            case: case.clone(),
            output: Tensor::from_f64(case.dtype, &spec.shape, &blank),
            label: String::new(),
            structured,
        };
        let options = Options { scope, unseen: Unseen::Nothing, preset: None };
        let run = Run::<Erased>::new(&observation, None, options)?;
        let mut all: Vec<Convention<Erased>> = conventions(&run, options);
        if let Some(only) = only {
            all.retain(|c| only.contains(&c.label.as_str()));
            if all.len() != only.len() {
                let known: Vec<String> = conventions(&run, options).iter().map(label).collect();
                let what = format!("expected conventions among {known:?}, got {only:?}");
                return Err(Error::Request(format!("{}: {what}", case.op)));
            }
        }
        let (mut entries, mut entry_of): (Vec<Entry>, Vec<usize>) = (Vec::new(), Vec::new());
        for convention in &all {
            let setup = run.setup(&convention.edits);
            let entry = Entry {
                expected: run.expect(&setup, &Tile::ALL),
                exact: run.values(&setup, &Tile::ALL),
                output: run.rounding(&setup),
            };
            let known = entries.iter().position(|e| e.coincides(&entry));
            entry_of.push(known.unwrap_or(entries.len()));
            if known.is_none() {
                entries.push(entry);
            }
        }
        let dtype = entries.first().map_or(case.dtype, |e| e.output.dtype);
        let catalogue = Erased::faults(&run.base.params, &run.base.tensors);
        let id = |f: &Fault<Erased>| FaultId {
            slug: f.slug.into(),
            key: f.key.clone(),
            code: f.code.into(),
        };
        Ok(Panel {
            labels: all.into_iter().map(|c| c.label).collect(),
            entry_of,
            entries,
            faults: catalogue.iter().map(id).collect(),
            unbiased: structured || run.arithmetic == Arithmetic::F64,
            spec,
            dtype,
        })
    }

    /// The conventions' labels: `knob=value` for each choice that is not the default; the defaults,
    /// whose label is empty, come first.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The catalogue of faults on this case.
    pub fn faults(&self) -> &[FaultId] {
        &self.faults
    }

    /// The output's shape and name.
    pub fn spec(&self) -> &OutSpec {
        &self.spec
    }

    /// The oracle under the first convention, rounded once: what other criteria compare with.
    pub fn right(&self) -> Vec<f64> {
        let first = &self.entries[self.entry_of[0]];
        first.exact.iter().map(|y| first.output.round(*y)).collect()
    }

    /// Stored dtype of the output.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Whether each convention allows every element of an output.
    ///
    /// # Panics
    /// When the output has another number of elements.
    pub fn accepts(&self, observed: &[f64]) -> Vec<bool> {
        let entries: Vec<bool> = self
            .entries
            .iter()
            .map(|e| {
                assert_eq!(observed.len(), e.exact.len(), "an output of the case's shape");
                observed.iter().enumerate().all(|(i, o)| inside(*o, &e.expected, i))
            })
            .collect();
        self.entry_of.iter().map(|&e| entries[e]).collect()
    }
}

/// A subject's output on a panel's case, with what the panel says of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The output's elements.
    pub observed: Vec<f64>,
    /// [`Panel::accepts`] of them.
    pub accepted: Vec<bool>,
}

impl Answer {
    /// An output with its acceptance.
    pub fn new(panel: &Panel, observed: Vec<f64>) -> Answer {
        let accepted = panel.accepts(&observed);
        Answer { observed, accepted }
    }
}

/// The outcome for a subject on a set of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The convention of this index explains every case.
    Explained(usize),
    /// No single convention explains every case.
    Refused,
    /// One does, but the errors lean to one side.
    Biased,
}

impl Outcome {
    /// Whether the subject does not pass.
    pub fn is_caught(self) -> bool {
        !matches!(self, Outcome::Explained(_))
    }
}

/// Judges a subject by its answers to cases of one op, whose panels list the same conventions.
pub fn judge<'a>(answers: impl Iterator<Item = (&'a Panel, &'a Answer)> + Clone) -> Outcome {
    let all = |c: usize| answers.clone().all(|(_, a)| a.accepted[c]);
    let Some((panel, _)) = answers.clone().next() else { return Outcome::Explained(0) };
    let Some(alive) = (0..panel.labels.len()).find(|&c| all(c)) else { return Outcome::Refused };
    let mut lean = Lean::default();
    for (panel, answer) in answers.filter(|(p, _)| !p.unbiased) {
        let entry = &panel.entries[panel.entry_of[alive]];
        lean.add(&entry.exact, &answer.observed, panel.spec.cols(), entry.output);
    }
    if lean.finding().is_some() { Outcome::Biased } else { Outcome::Explained(alive) }
}

impl Entry {
    fn coincides(&self, other: &Entry) -> bool {
        let same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        self.output == other.output
            && same(&self.exact, &other.exact)
            && same(&self.expected.v, &other.expected.v)
            && same(&self.expected.lo, &other.expected.lo)
            && same(&self.expected.hi, &other.expected.hi)
    }
}
