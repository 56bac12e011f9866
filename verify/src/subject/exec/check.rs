//! The families of an op through a child, judged as those of a kernel are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use assay_hip::{LaunchOptions, Matrix};
use assay_reference::ops::Scope;
use assay_reference::{Case, Dtype, Error, Tensor};

use super::{Answer, Session, cases};
use crate::families::Generated;
use crate::finding::Finding;
use crate::judge::{Judgement, Observation, Options, Unseen, Verdict, judge_all};
use crate::ledger::Evidence;
use crate::relations::{self, Claims};
use crate::replay::Replay;
use crate::subject::Subject;
use crate::suite::{self, KernelReport, Outside};

/// Work of a case, in multiply-adds, that is asked twice at most.
const REPEATED: usize = 6_000_000;
/// Labels and contracts that are listed of a kind.
const LISTED: usize = 8;

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of the cases.
    pub seed: u64,
    /// Whose conventions are legitimate.
    pub scope: Scope,
    /// Only the small cases that together show every fault, and nothing about what they cannot show unless some are
    /// refused.
    pub quick: bool,
    /// Whether other bits for the same case are a finding.
    pub deterministic: bool,
    /// Whether a row alone must have the bits that it has in a batch.
    pub batch_invariant: bool,
}

/// What a check found, and what it ran.
pub struct Checked {
    /// The outcome; its `kernel` is `NAME/OP/DTYPE`.
    pub report: KernelReport,
    /// Each case that was answered or failed.
    ran: Vec<Ran>,
}

/// A case that a child took.
struct Ran {
    case: Generated,
    outputs: Vec<(&'static str, Tensor)>,
    /// Findings of it alone, that the outputs do not show.
    findings: Vec<Finding>,
}

/// Runs every case of an op in a dtype and judges the outputs. `step` is called for each case.
///
/// # Errors
/// When a child that is started again is another one, or a case cannot be judged.
pub fn check(
    session: &mut Session,
    (op, dtype): (&str, Dtype),
    settings: &Settings,
    step: &dyn Fn(),
) -> anyhow::Result<Checked> {
    session.renew();
    let kernel = format!("{}/{op}/{dtype}", session.hello().name);
    let all = cases::cases(op, dtype, settings.seed, settings.quick);
    let mut ran: Vec<Ran> = Vec::new();
    let mut refused: Vec<String> = Vec::new();
    let mut not_run = 0;
    for g in all {
        step();
        let mut findings = Vec::new();
        let outputs = match session.ask(&g.case, &g.label)? {
            Answer::Outputs(outputs) => outputs,
            Answer::Unsupported(what) => {
                refused.push(what);
                continue;
            }
            Answer::GivenUp => {
                not_run += 1;
                continue;
            }
            Answer::Failed(finding) => {
                ran.push(Ran { case: g, outputs: Vec::new(), findings: vec![finding] });
                continue;
            }
        };
        if settings.deterministic && suite::work(&g.case) <= REPEATED {
            match session.ask(&g.case, &format!("{} (again)", g.label))? {
                Answer::Outputs(again) => findings.extend(other_bits(&g.label, &outputs, &again)),
                Answer::Failed(finding) => findings.push(finding),
                Answer::Unsupported(what) => {
                    let text = format!("{}: taken once, then refused: {what}", g.label);
                    findings.push(Finding::new("not_deterministic", text));
                }
                Answer::GivenUp => {}
            }
        }
        ran.push(Ran { case: g, outputs, findings });
    }
    let mut findings = grouped(ran.iter().flat_map(|r| &r.findings));
    let all = refused.is_empty() && not_run == 0;
    let mut judgement = judged(op, &ran, settings, all)?;
    if findings.is_empty() && judgement.verdict.is_pass() {
        findings = related(session, (op, dtype), settings)?;
    }
    if not_run > 0
        && let Some(last) = findings.last_mut()
    {
        last.text += &format!("\n    given up: {not_run} cases were not run");
    }
    if !findings.is_empty() {
        // What the outputs show beside comes after: it may be of the same cause.
        findings.extend(judgement.verdict.findings());
        judgement.verdict = Verdict::Fail { findings };
    } else if ran.is_empty() {
        judgement = Judgement::skipped(match refused.first() {
            Some(what) => format!("none of {} cases is taken. The first: {what}", refused.len()),
            None => format!("the suite has no case of {op} in {dtype}"),
        });
    }
    let cases: Vec<Generated> = ran.iter().map(|r| r.case.clone()).collect();
    let plain: Vec<Vec<&Tensor>> =
        ran.iter().map(|r| r.outputs.iter().map(|(_, t)| t).collect()).collect();
    let report = KernelReport {
        kernel,
        op: op.into(),
        cases: cases.len(),
        outside: outside(&refused),
        evidence: Evidence::of(&cases, &plain),
        judgement,
    };
    Ok(Checked { report, ran })
}

impl Checked {
    /// Of a report about nothing that was run.
    pub fn skipped(report: KernelReport) -> Checked {
        Checked { report, ran: Vec::new() }
    }

    /// The smallest case that alone shows the first finding, with its outputs; `None` when no single case
    /// does.
    ///
    /// # Errors
    /// When a case cannot be judged.
    pub fn smallest(&self, scope: Scope) -> anyhow::Result<Option<Replay>> {
        let findings = self.report.judgement.verdict.findings();
        let Some(wanted) = findings.first().map(|f| f.name.clone()) else { return Ok(None) };
        let mut ran: Vec<&Ran> = self.ran.iter().collect();
        ran.sort_by_key(|r| r.case.case.tensors.values().map(Tensor::len).sum::<usize>());
        for r in ran {
            let alone = || -> anyhow::Result<Judgement> {
                let settings = Settings {
                    seed: 0,
                    scope,
                    quick: true,
                    deterministic: true,
                    batch_invariant: false,
                };
                judged(&self.report.op, std::slice::from_ref(r), &settings, true)
            };
            let shows = |findings: &[Finding]| findings.iter().any(|f| f.name == wanted);
            if !shows(&r.findings) && !shows(&alone()?.verdict.findings()) {
                continue;
            }
            let mut replay = Replay {
                case: r.case.case.clone(),
                label: r.case.label.clone(),
                structured: r.case.structured,
                kernel: None,
                source: None,
                matrix: Matrix::None,
                checked: false,
                options: LaunchOptions::default(),
                finding: Some(wanted),
            };
            replay.set_outputs(r.outputs.iter().map(|(n, t)| (n.to_string(), t.clone())));
            return Ok(Some(replay));
        }
        Ok(None)
    }

    /// A case that was answered: asked again, it loads what the op needs.
    pub(super) fn answered(&self) -> Option<&Generated> {
        self.ran.iter().find(|r| !r.outputs.is_empty()).map(|r| &r.case)
    }
}

/// The judgement of what was answered; `all`: these are the cases that were asked. The small ones show every fault
/// together, and fewer of them do not.
fn judged(op: &str, ran: &[Ran], settings: &Settings, all: bool) -> anyhow::Result<Judgement> {
    let mut first = Vec::new();
    let mut others: Vec<(&'static str, Vec<Observation>)> = Vec::new();
    for r in ran {
        let case = Arc::new(r.case.case.clone());
        for (i, (name, output)) in r.outputs.iter().enumerate() {
            let (case, output) = (case.clone(), output.clone());
            let label = r.case.label.clone();
            let run = Observation { case, output, label, structured: r.case.structured };
            match others.iter_mut().find(|(known, _)| known == name) {
                _ if i == 0 => first.push(run),
                Some((_, runs)) => runs.push(run),
                None => others.push((*name, vec![run])),
            }
        }
    }
    let unseen = if settings.quick && all { Unseen::Nothing } else { Unseen::Catalogue };
    let options = Options { scope: settings.scope, unseen, preset: None, known: None };
    Ok(judge_all(op, &first, &others, options)?)
}

type Outputs = [(&'static str, Tensor)];

/// A finding when two answers to one case differ in their bits.
fn other_bits(label: &str, first: &Outputs, again: &Outputs) -> Option<Finding> {
    let (name, a, b) = first
        .iter()
        .zip(again)
        .map(|((name, a), (_, b))| (name, a, b))
        .find(|(_, a, b)| a.bytes() != b.bytes())?;
    let size = a.dtype().size();
    let pairs = || a.bytes().chunks(size).zip(b.bytes().chunks(size)).map(|(a, b)| a != b);
    let (n, at) = (pairs().filter(|other| *other).count(), pairs().position(|other| other)?);
    let text = format!(
        "{label}: asked twice, {n} of {} elements of {name} differ, the first at {at}: {}, then {}",
        a.len(),
        a.get(at),
        b.get(at)
    );
    Some(Finding::new("not_deterministic", text))
}

/// One finding a name, that also lists the other cases.
fn grouped<'a>(all: impl Iterator<Item = &'a Finding>) -> Vec<Finding> {
    let mut groups: Vec<(Finding, Vec<&str>)> = Vec::new();
    for finding in all {
        match groups.iter_mut().find(|(first, _)| first.name == finding.name) {
            Some((_, more)) => more.push(finding.text.split(": ").next().unwrap_or_default()),
            None => groups.push((finding.clone(), Vec::new())),
        }
    }
    let joined = |(mut finding, more): (Finding, Vec<&str>)| {
        if !more.is_empty() {
            let rest = more.len().saturating_sub(LISTED);
            let rest = if rest > 0 { format!(", and {rest} more") } else { String::new() };
            let list = more[..more.len().min(LISTED)].join(", ");
            finding.text += &format!("\n    {} more cases: {list}{rest}", more.len());
        }
        finding
    };
    groups.into_iter().map(joined).collect()
}

/// Refusals by what they say.
fn outside(refused: &[String]) -> Vec<Outside> {
    let mut by_text: BTreeMap<&str, usize> = BTreeMap::new();
    refused.iter().for_each(|what| *by_text.entry(what).or_default() += 1);
    let mut all: Vec<Outside> = by_text
        .into_iter()
        .map(|(contract, cases)| Outside { contract: contract.into(), cases })
        .collect();
    all.sort_by_key(|o| std::cmp::Reverse(o.cases));
    let cases = all.drain(LISTED.min(all.len())..).map(|o| o.cases).sum();
    if cases > 0 {
        all.push(Outside { contract: "other reasons".into(), cases });
    }
    all
}

/// The relations that the child breaks.
fn related(
    session: &mut Session,
    (op, dtype): (&str, Dtype),
    settings: &Settings,
) -> anyhow::Result<Vec<Finding>> {
    let subject = Asked {
        op,
        session: Mutex::new(session),
        known: Mutex::default(),
        trouble: Mutex::default(),
    };
    let claims = Claims { batch_invariant: settings.batch_invariant, scope: settings.scope };
    let relations = cases::relations(op, dtype, settings.seed);
    let broken = relations::check_all(&subject, &relations, claims);
    // A case that could not be asked is none that the child does not take.
    if let Some(error) = subject.trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let broken = broken?;
    let known = subject.known.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = known.into_iter().filter_map(|(_, answer)| match answer {
        Answer::Failed(finding) => Some(finding),
        _ => None,
    });
    let failed: Vec<Finding> = failed.collect();
    let mut findings = grouped(failed.iter());
    findings.extend(broken);
    Ok(findings)
}

/// A child as a subject. What it takes is known when it has answered.
struct Asked<'a> {
    op: &'a str,
    session: Mutex<&'a mut Session>,
    known: Mutex<Vec<(Case, Answer)>>,
    /// The first reason for which a case could not be asked.
    trouble: Mutex<Option<anyhow::Error>>,
}

impl Asked<'_> {
    /// `None` when it could not be asked.
    fn answer(&self, case: &Case) -> Option<Answer> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = known.iter().find(|(asked, _)| asked == case) {
            return Some(answer.clone());
        }
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        match session.ask(case, "a case of a relation") {
            Ok(answer) => {
                known.push((case.clone(), answer.clone()));
                Some(answer)
            }
            Err(error) => {
                let mut first = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(error);
                None
            }
        }
    }
}

impl Subject for Asked<'_> {
    fn op(&self) -> &str {
        self.op
    }

    fn takes(&self, case: &Case) -> bool {
        matches!(self.answer(case), Some(Answer::Outputs(_)))
    }

    fn run(&self, case: &Case) -> assay_reference::Result<Tensor> {
        let none = |what: String| Error::Request(format!("the child has no output: {what}"));
        match self.answer(case) {
            Some(Answer::Outputs(outputs)) if !outputs.is_empty() => Ok(outputs[0].1.clone()),
            Some(other) => Err(none(format!("{other:?}"))),
            None => Err(none("the case could not be asked".into())),
        }
    }
}
