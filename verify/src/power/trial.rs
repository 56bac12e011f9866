//! One trial: the cases of one seed, the subjects that answer them, and the counts.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use assay_reference::{Case, Error, Result};
use rayon::prelude::*;

use super::criteria::{self, Compared};
use super::rows::{CRITERIA, ConventionRow, FaultRow, Missed};
use super::subjects::{SCOPE, choices};
use crate::families::{COINCIDE, Coincide, Generated, Values};
use crate::judge::panel::{self, Answer, FaultId, Panel};
use crate::subject::native::{Chain, Native};

/// What a subject stored: every output by name.
pub type Stored = Vec<(&'static str, Vec<f64>)>;

/// Runs a subject on a case.
pub type Run<'a> = dyn Fn(&Native, &Case) -> Result<Stored> + Sync + 'a;

/// The cases of a seed with their panels.
pub(super) struct Trial<'a> {
    op: &'static str,
    run: &'a Run<'a>,
    seed: u64,
    cases: Vec<Arc<Case>>,
    /// The outputs of all cases, those of a case together.
    seen: Vec<Seen>,
    families: Vec<String>,
}

/// One output of a case.
struct Seen {
    case: usize,
    panel: Panel,
    family: usize,
    /// The reference of the criteria, where it is finite.
    right: Option<Vec<f64>>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(
        op: &'static str,
        seed: u64,
        generated: Vec<Generated>,
        run: &'a Run<'a>,
    ) -> Result<Trial<'a>> {
        let mut families: Vec<String> = generated.iter().map(|g| g.case.family.clone()).collect();
        families.sort();
        families.dedup();
        let cases: Vec<Arc<Case>> = generated.iter().map(|g| Arc::new(g.case.clone())).collect();
        let panels: Vec<Vec<Panel>> = cases
            .par_iter()
            .zip(&generated)
            .map(|(case, g)| Panel::outputs(case, g.structured, SCOPE))
            .collect::<Result<_>>()?;
        let case_of: Vec<usize> =
            panels.iter().enumerate().flat_map(|(i, p)| vec![i; p.len()]).collect();
        let mut panels: Vec<Panel> = panels.into_iter().flatten().collect();
        panel::align(&mut panels);
        let seen = panels
            .into_iter()
            .zip(case_of)
            .map(|(panel, case)| {
                let family = families.iter().position(|f| *f == cases[case].family).unwrap_or(0);
                let right = Some(panel.right()).filter(|r| r.iter().all(|x| x.is_finite()));
                Seen { case, panel, family, right }
            })
            .collect();
        Ok(Trial { op, run, seed, cases, seen, families })
    }

    pub(super) fn labels(&self) -> &[String] {
        self.seen.first().map_or(&[], |s| s.panel.labels())
    }

    fn native(&self, chain: Chain, label: &str, fault: Option<&FaultId>) -> Native {
        Native {
            op: self.op,
            chain,
            conventions: choices(label),
            fault: fault.map(|f| (f.slug.clone(), f.key.clone())),
        }
    }

    /// What a subject stores on a case: one output for each of the case's panels.
    fn stored(&self, native: &Native, case: usize) -> Result<Vec<Vec<f64>>> {
        let mut outputs = (self.run)(native, &self.cases[case])?;
        let mut take = |seen: &Seen| {
            let spec = seen.panel.spec();
            let at = outputs.iter().position(|(name, _)| *name == spec.name);
            let values = at.map(|i| outputs.swap_remove(i).1);
            values.filter(|v| v.len() == spec.shape.iter().product::<usize>()).ok_or_else(|| {
                let what = format!("no output `{}` of shape {:?}", spec.name, spec.shape);
                Error::Request(format!("native `{}`: {what}", self.op))
            })
        };
        self.seen.iter().filter(|s| s.case == case).map(&mut take).collect()
    }

    fn answers(&self, native: &Native) -> Result<Vec<Answer>> {
        let all: Vec<Vec<Vec<f64>>> = (0..self.cases.len())
            .into_par_iter()
            .map(|case| self.stored(native, case))
            .collect::<Result<_>>()?;
        let flat = self.seen.iter().zip(all.into_iter().flatten());
        Ok(flat.map(|(s, observed)| Answer::new(&s.panel, observed)).collect())
    }

    /// Refuses an op that has no subject.
    pub(super) fn probe(&self, chain: Chain) -> Result<()> {
        self.answers(&self.native(chain, "", None)).map(|_| ())
    }

    /// Runs legitimate subjects, at most `most`, drawn by the seed; returns a row for each convention.
    pub(super) fn legitimate(&self, chains: &[Chain], most: usize) -> Vec<ConventionRow> {
        let labels = self.labels();
        let n = labels.len() * chains.len();
        let mut drawn = Values::new(self.seed, "power legitimate").permutation(n);
        drawn.truncate(most);
        let runs: Vec<(usize, Result<(u64, ConventionRow)>)> = drawn
            .into_par_iter()
            .map(|i| {
                let (convention, chain) = (i / chains.len(), chains[i % chains.len()]);
                let native = self.native(chain, &labels[convention], None);
                let answers = self.answers(&native);
                (convention, answers.map(|a| (print(&a), self.judged(convention, &a))))
            })
            .collect();
        let mut rows: Vec<ConventionRow> = labels.iter().map(|l| ConventionRow::new(l)).collect();
        let mut prints = Vec::new();
        for (convention, outcome) in runs {
            match outcome {
                Err(e) => rows[convention].missing = Some(e.to_string()),
                // A convention or an order may change nothing in a trial: then it is another's run.
                Ok((print, _)) if prints.contains(&print) => rows[convention].repeated += 1,
                Ok((print, row)) => {
                    prints.push(print);
                    rows[convention].add(row);
                }
            }
        }
        rows
    }

    /// The row of one legitimate subject.
    fn judged(&self, convention: usize, answers: &[Answer]) -> ConventionRow {
        let mut row = ConventionRow::new(&self.labels()[convention]);
        let alarm = self.outcome(answers, |_| true).is_caught();
        let named = answers.iter().all(|a| a.accepted[convention]);
        row.misnamed = usize::from(!alarm && !named);
        row.total.count(alarm, self.flagged(answers, |_| true));
        for (f, name) in self.families.iter().enumerate() {
            let own = |s: &Seen| s.family == f;
            let cell = row.families.entry(name.clone()).or_default();
            cell.count(self.outcome(answers, own).is_caught(), self.flagged(answers, own));
        }
        row
    }

    /// Runs faulty subjects: in even trials under the defaults, in odd ones on top of a convention
    /// drawn by the seed, in both with a chain drawn by it.
    pub(super) fn faulty(
        &self,
        index: usize,
        chains: &[Chain],
        faults: &[FaultId],
    ) -> Result<Vec<FaultRow>> {
        let mut draw = Values::new(self.seed, "power fault");
        let chain = chains[draw.below(chains.len())];
        let drawn = if index.is_multiple_of(2) { 0 } else { draw.below(self.labels().len()) };
        let mut bases = Vec::new();
        for label in [drawn, 0] {
            let label = &self.labels()[label];
            bases.push((label, self.answers(&self.native(chain, label, None))?));
        }
        Ok(faults.par_iter().map(|id| self.fault(id, chain, &bases)).collect())
    }

    /// The fault on top of the first convention under which it does something, and something that no
    /// legitimate implementation does.
    fn fault(&self, id: &FaultId, chain: Chain, bases: &[(&String, Vec<Answer>)]) -> FaultRow {
        let mut row = FaultRow::new(id);
        let coincides = |label: &str| {
            let own = |c: &&Coincide| c.op == self.op && c.slug == id.slug;
            let choice = |c: &Coincide| c.under.is_some_and(|choice| label.contains(choice));
            COINCIDE.iter().filter(own).any(choice)
        };
        for (label, right) in bases.iter().filter(|(label, _)| !coincides(label)) {
            let native = self.native(chain, label, Some(id));
            let mut answers = right.clone();
            let mut shown = vec![false; self.seen.len()];
            for case in 0..self.cases.len() {
                let own = (0..self.seen.len()).filter(|i| self.seen[*i].case == case);
                let can = |i: usize| id.slug == "gain" || has(&self.seen[i].panel, id);
                if !own.clone().any(can) {
                    continue;
                }
                let stored = match self.stored(&native, case) {
                    Ok(stored) => stored,
                    Err(e) => {
                        row.missing = Some(e.to_string());
                        return row;
                    }
                };
                for (i, observed) in own.zip(stored) {
                    shown[i] = !same(&observed, &right[i].observed);
                    if shown[i] {
                        answers[i] = Answer::new(&self.seen[i].panel, observed);
                    }
                }
            }
            if shown.contains(&true) {
                self.count(&mut row, &answers, &shown, label.is_empty());
                if !row.is_caught() {
                    row.missed.push(self.missed(label, chain, &shown));
                }
                return row;
            }
        }
        row.not_shown += 1;
        row.total.count(false, None);
        row.missed.push(self.missed("", chain, &[]));
        row
    }

    /// What repeats a trial.
    fn missed(&self, convention: &str, chain: Chain, shown: &[bool]) -> Missed {
        let mut families: Vec<String> = Vec::new();
        for (seen, _) in self.seen.iter().zip(shown).filter(|(_, shown)| **shown) {
            families.push(self.families[seen.family].clone());
        }
        families.dedup();
        let chain = format!("{chain:?}");
        Missed { seed: self.seed, convention: convention.into(), chain, shown: families }
    }

    /// Counts a trial in which a fault shows. The criteria are asked where the subject has the
    /// convention of their reference: elsewhere they may flag that.
    fn count(&self, row: &mut FaultRow, answers: &[Answer], shown: &[bool], defaults: bool) {
        let outcome = self.outcome(answers, |_| true);
        row.by_bias += usize::from(outcome == panel::Outcome::Biased);
        let flagged = |of: &dyn Fn(&Seen) -> bool| {
            if defaults { self.flagged(answers, of) } else { None }
        };
        row.total.count(outcome.is_caught(), flagged(&|_| true));
        for (f, name) in self.families.iter().enumerate() {
            let own = |s: &Seen| s.family == f;
            if self.seen.iter().zip(shown).any(|(s, shown)| own(s) && *shown) {
                let caught = self.outcome(answers, own).is_caught();
                row.families.entry(name.clone()).or_default().count(caught, flagged(&own));
            }
        }
    }

    /// The judge's rule on each output apart: the worst of them.
    fn outcome(&self, answers: &[Answer], of: impl Fn(&Seen) -> bool) -> panel::Outcome {
        let mut names: Vec<&str> = self.seen.iter().map(|s| s.panel.spec().name).collect();
        names.sort_unstable();
        names.dedup();
        let mut out = panel::Outcome::Explained(0);
        for name in names {
            let chosen: Vec<(&Panel, &Answer)> = self
                .seen
                .iter()
                .zip(answers)
                .filter(|(s, _)| of(s) && s.panel.spec().name == name)
                .map(|(s, a)| (&s.panel, a))
                .collect();
            match panel::judge(chosen.into_iter()) {
                panel::Outcome::Explained(_) => {}
                panel::Outcome::Refused => return panel::Outcome::Refused,
                panel::Outcome::Biased => out = panel::Outcome::Biased,
            }
        }
        out
    }

    /// Whether each criterion flags one of the cases; `None` when no case has a finite reference.
    fn flagged(&self, answers: &[Answer], of: impl Fn(&Seen) -> bool) -> Option<[bool; CRITERIA]> {
        let mut out: Option<[bool; CRITERIA]> = None;
        for (seen, answer) in self.seen.iter().zip(answers).filter(|(s, _)| of(s)) {
            let Some(right) = &seen.right else { continue };
            let compared = Compared {
                op: self.op,
                dtype: seen.panel.dtype(),
                output: &answer.observed,
                right,
            };
            let flags = out.get_or_insert([false; CRITERIA]);
            for (flag, criterion) in flags.iter_mut().zip(&criteria::ALL) {
                *flag = *flag || !(criterion.accepts)(&compared);
            }
        }
        out
    }
}

fn has(panel: &Panel, id: &FaultId) -> bool {
    panel.faults().iter().any(|f| f.slug == id.slug && f.key == id.key)
}

fn same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

/// A hash of a subject's outputs, the same on every machine.
fn print(answers: &[Answer]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for a in answers {
        a.observed.iter().for_each(|x| x.to_bits().hash(&mut hasher));
    }
    hasher.finish()
}
