//! Panels: what every legitimate convention allows on a case, evaluated once for many subjects.
//!
//! The judge evaluates the conventions for each subject that it is shown; where hundreds of subjects
//! answer the same cases, as when the suite's power is measured, a panel keeps the intervals. It has
//! the judge's rule: a subject passes when one convention allows all elements of all its cases and the
//! errors of the unstructured cases do not lean to one side.

use std::sync::Arc;

use assay_reference::ops::{Erased, Fault, Op, OutSpec, Scope, Tile};
use assay_reference::{Case, Dtype, Error, Result, Rounding, Tensor};

use super::accept::{Arithmetic, allows};
use super::bias::Lean;
use super::observed::Run;
use super::search::{Convention, conventions, label};
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
    /// The least and the most that each element may be stored as.
    intervals: Vec<(f64, f64)>,
    /// The oracle before the output's rounding.
    exact: Vec<f64>,
    output: Rounding,
}

impl Panel {
    /// Evaluates the conventions that `scope` allows on the first output of a case. `structured` asks
    /// for hard radii.
    ///
    /// # Errors
    /// When the op is unknown or the case is not the op's.
    pub fn new(case: &Arc<Case>, structured: bool, scope: Scope) -> Result<Panel> {
        Panel::build(case, None, structured, scope, None)
    }

    /// A panel for each output of a case: each has its own verdict.
    ///
    /// # Errors
    /// As [`Panel::new`].
    pub fn outputs(case: &Arc<Case>, structured: bool, scope: Scope) -> Result<Vec<Panel>> {
        let (_, specs) = Erased::open(case)?;
        let of = |spec: &OutSpec| Panel::build(case, Some(spec.name), structured, scope, None);
        specs.iter().map(of).collect()
    }

    /// The same for the conventions named, such as `edge=f32 scale=stored`; empty is the defaults.
    ///
    /// # Errors
    /// As [`Panel::new`].
    pub fn of(case: &Arc<Case>, structured: bool, scope: Scope, only: &[&str]) -> Result<Panel> {
        Panel::build(case, None, structured, scope, Some(only))
    }

    fn build(
        case: &Arc<Case>,
        output: Option<&str>,
        structured: bool,
        scope: Scope,
        only: Option<&[&str]>,
    ) -> Result<Panel> {
        let (_, specs) = Erased::open(case)?;
        let named = specs.into_iter().find(|s| output.is_none_or(|name| s.name == name));
        let spec = named.ok_or_else(|| {
            Error::Request(format!("{} has no output {}", case.op, output.unwrap_or("at all")))
        })?;
        let blank = vec![0.0; spec.shape.iter().product()];
        let observation = Observation {
            case: case.clone(),
            output: Tensor::from_f64(case.dtype, &spec.shape, &blank),
            label: String::new(),
            structured,
        };
        let options = Options { scope, unseen: Unseen::Nothing, preset: None, known: None };
        let run = Run::<Erased>::new(&observation, output, options)?;
        let mut all: Vec<Convention<Erased>> = conventions(std::slice::from_ref(&run), options);
        if let Some(only) = only {
            all.retain(|c| only.contains(&c.label.as_str()));
            if all.len() != only.len() {
                let known: Vec<String> =
                    conventions(std::slice::from_ref(&run), options).iter().map(label).collect();
                let what = format!("expected conventions among {known:?}, got {only:?}");
                return Err(Error::Request(format!("{}: {what}", case.op)));
            }
        }
        let (mut entries, mut entry_of): (Vec<Entry>, Vec<usize>) = (Vec::new(), Vec::new());
        for convention in &all {
            let setup = run.setup(&convention.edits);
            let (expected, output) = (run.expect(&setup, &Tile::ALL), run.rounding(&setup));
            let entry = Entry {
                intervals: (0..expected.v.len()).map(|i| expected.interval(i, output)).collect(),
                exact: run.values(&setup, &Tile::ALL),
                output,
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
                observed.iter().enumerate().all(|(i, o)| allows(e.intervals[i], *o))
            })
            .collect();
        self.entry_of.iter().map(|&e| entries[e]).collect()
    }
}

/// Gives panels of one op the same conventions, in the same order. The knobs of an op may depend on a
/// case's params: a choice of a knob that a case does not have, or whose default it is there, changes
/// nothing on that case.
pub fn align(panels: &mut [Panel]) {
    let mut union: Vec<String> = Vec::new();
    for label in panels.iter().flat_map(|p| &p.labels) {
        if !union.contains(label) {
            union.push(label.clone());
        }
    }
    // As within a panel: by the number of choices.
    union.sort_by_key(|label| label.split_whitespace().count());
    for panel in panels {
        let index = |label: &String| {
            let knows = |word: &&str| panel.labels.iter().any(|l| l.split(' ').any(|w| w == *word));
            let own: Vec<&str> = label.split_whitespace().filter(knows).collect();
            panel.labels.iter().position(|l| *l == own.join(" "))
        };
        // Two values of one knob never meet in a label, so that every restriction is one.
        let entry_of = union.iter().map(|l| panel.entry_of[index(l).unwrap_or(0)]).collect();
        panel.entry_of = entry_of;
        panel.labels.clone_from(&union);
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
        let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits();
        let intervals = self.intervals.iter().zip(&other.intervals);
        self.output == other.output
            && self.exact.iter().zip(&other.exact).all(|(a, b)| same(a, b))
            && intervals.into_iter().all(|(a, b)| same(&a.0, &b.0) && same(&a.1, &b.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;
    use crate::judge::judge as full;
    use crate::power::{own, subjects};
    use crate::subject::native::Native;

    const SCOPE: Scope = Scope::Kernel;

    /// The judge itself and a panel, on the same subject.
    fn both(op: &'static str, native: &Native) -> Option<(bool, bool)> {
        let (mut runs, mut panels, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for g in families::power_cases(op, 4).into_iter().take(6) {
            let case = Arc::new(g.case);
            let (_, y) = own::run(native, &case).ok()?.swap_remove(0);
            let panel = Panel::new(&case, g.structured, SCOPE).expect("a case of the op");
            let output = Tensor::from_f64(panel.dtype(), &panel.spec().shape, &y);
            runs.push(Observation { case, output, label: g.label, structured: g.structured });
            answers.push(Answer::new(&panel, y));
            panels.push(panel);
        }
        align(&mut panels);
        for (panel, answer) in panels.iter().zip(&mut answers) {
            answer.accepted = panel.accepts(&answer.observed);
        }
        let options = Options { scope: SCOPE, unseen: Unseen::Nothing, preset: None, known: None };
        let passes = full(op, &runs, options).expect("runs of the op").verdict.is_pass();
        Some((passes, !judge(panels.iter().zip(&answers)).is_caught()))
    }

    #[test]
    fn panels_and_the_judge_agree() {
        let mut faulty = 0;
        for op in ["silu_mul", "rms_norm"] {
            let sound = Native::new(op);
            assert_eq!(both(op, &sound), Some((true, true)), "{op}");
            for id in subjects::faults(op).expect("an op") {
                let native = sound.clone().broken(&id.slug, &id.key);
                if let Some((judge, panel)) = both(op, &native) {
                    faulty += 1;
                    assert_eq!(judge, panel, "{op}.{} ({})", id.slug, id.key);
                }
            }
        }
        assert!(faulty >= 10, "{faulty}");
    }

    #[test]
    fn aligned_panels_share_conventions_whose_choices_a_case_lacks() {
        let panel = |labels: &[&str], entry_of: &[usize]| Panel {
            labels: labels.iter().map(|l| (*l).to_string()).collect(),
            entry_of: entry_of.to_vec(),
            entries: Vec::new(),
            faults: Vec::new(),
            spec: OutSpec { name: "output", shape: vec![1] },
            dtype: Dtype::Bf16,
            unbiased: false,
        };
        let mut panels = [
            panel(&["", "a=2", "b=2", "a=2 b=2"], &[0, 1, 2, 3]),
            panel(&["", "a=1", "c=2", "a=1 c=2"], &[0, 1, 2, 3]),
        ];
        align(&mut panels);
        let labels = ["", "a=2", "b=2", "a=1", "c=2", "a=2 b=2", "a=1 c=2"];
        assert_eq!(panels[0].labels, labels);
        assert_eq!(panels[1].labels, labels);
        assert_eq!(panels[0].entry_of, [0, 1, 2, 0, 0, 3, 0]);
        assert_eq!(panels[1].entry_of, [0, 0, 0, 1, 2, 0, 3]);
    }
}
