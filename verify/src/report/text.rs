//! Text for people.

use std::collections::{BTreeMap, BTreeSet};

pub use super::audit::{audit, finding as audit_finding};
pub use super::bisect::{bisect, switches};
pub use super::gate::{comparisons, decisions};
pub use super::probe::probe;

use assay_reference::arith::math;

use super::Table;
use crate::diff::{DiffReport, NodeReport, RANKS};
use crate::finding::Finding;
use crate::forward;
use crate::judge::{Judgement, Verdict};
use crate::mutants::{EditReport, Kind};
use crate::suite::KernelReport;

/// Characters of a trace's notes that are shown.
const MOST_NOTES: usize = 1000;

/// The table of `assay check` and what is to be said below it.
pub fn check(reports: &[KernelReport]) -> String {
    let mut table =
        Table::new(&["kernel", "op", "cases", "runs", "worst/budget", "convention", "verdict"]);
    for r in reports {
        let j = &r.judgement;
        table.row([
            r.kernel.clone(),
            r.op.clone(),
            r.cases.to_string(),
            j.runs.to_string(),
            worst(j),
            convention(&j.verdict),
            j.verdict.word().into(),
        ]);
    }
    let mut out = table.render();
    for r in reports {
        for o in &r.outside {
            let kernel = &r.kernel;
            out +=
                &format!("\n{kernel}: {} cases are outside its contract: {}", o.cases, o.contract);
        }
        if !r.outside.is_empty() {
            out += "\n";
        }
        out += &details(&r.kernel, &r.judgement.verdict);
        out += &limits(&r.kernel, &r.judgement.verdict);
        if !r.judgement.ill_conditioned.is_empty() {
            let list = r.judgement.ill_conditioned.join(", ");
            out += &format!("\n{}: too uncertain to be evidence: {list}\n", r.kernel);
        }
    }
    out
}

/// Most pairs that are printed of a kind.
const PRINTED: usize = 12;

/// What a pass leaves open.
fn limits(subject: &str, verdict: &Verdict) -> String {
    let Verdict::Pass { unseen_faults, indistinct, fault_pairs, .. } = verdict else {
        return String::new();
    };
    let mut out = String::new();
    if !unseen_faults.is_empty() {
        let list = unseen_faults.join(", ");
        out += &format!("\n{subject}: faults that these cases cannot see: {list}\n");
    }
    for (pairs, what) in [
        (indistinct, "not distinguishable by these cases"),
        (fault_pairs, "caught, but may be called by each other's name"),
    ] {
        for pair in pairs.iter().take(PRINTED) {
            out += &format!("\n{subject}: {what}: {pair}");
        }
        if pairs.len() > PRINTED {
            out += &format!("\n{subject}: and {} more, which --json lists", pairs.len() - PRINTED);
        }
        if !pairs.is_empty() {
            out += "\n";
        }
    }
    out
}

/// The table of `assay check --mutants`.
pub fn mutants(reports: &[EditReport]) -> String {
    let mut table = Table::new(&["edit", "kind", "outcome", "named", ""]);
    for r in reports {
        let (kind, outcome, note) = match r.kind {
            Kind::Mutant => (
                "mutant",
                if r.caught { "caught" } else { "MISSED" },
                match &r.expected {
                    _ if r.right => "right".to_string(),
                    _ if r.is_nameless() => "not in the catalogue".to_string(),
                    expected => format!("expected {}", expected.as_deref().unwrap_or("a name")),
                },
            ),
            Kind::Control => (
                "control",
                if r.caught { "FALSE ALARM" } else { "pass" },
                r.conventions.first().cloned().unwrap_or_default(),
            ),
        };
        let named = r.named.clone().unwrap_or_else(|| "-".into());
        table.row([r.name.clone(), kind.into(), outcome.into(), named, note]);
    }
    let mut out = table.render();
    for r in reports.iter().filter(|r| r.kind == Kind::Control && r.caught) {
        out += &findings(&r.name, &r.findings);
    }
    let only: Vec<&EditReport> = reports.iter().filter(|r| r.only_sanitize).collect();
    if !only.is_empty() {
        out += "\ncaught only with every access checked, since the results pass:\n";
    }
    for r in only {
        out += &format!("    {} ({})\n", r.name, r.named.as_deref().unwrap_or("-"));
    }
    let of = |kind: Kind| reports.iter().filter(move |r| r.kind == kind);
    let (mutants, controls) = (of(Kind::Mutant).count(), of(Kind::Control).count());
    let caught = of(Kind::Mutant).filter(|r| r.caught).count();
    let named = of(Kind::Mutant).filter(|r| r.right).count();
    let share = 100.0 * named as f64 / mutants.max(1) as f64;
    let passed = of(Kind::Control).filter(|r| !r.caught).count();
    out += &format!(
        "\n{caught} of {mutants} mutants caught, {named} named right ({share:.1} %); \
         {passed} of {controls} controls pass\n"
    );
    out
}

/// The table of `assay diff`.
pub fn diff(report: &DiffReport, all: bool) -> String {
    let mut table = Table::new(&["probe", "op", "equal", "worst/budget", "convention", "verdict"]);
    for n in &report.nodes {
        let j = &n.judgement;
        let quiet = j.verdict.is_pass() && !all;
        if !quiet {
            table.row([
                n.probe.clone(),
                n.kernel.unwrap_or(&n.op).to_string(),
                format!("{:.2} %", 100.0 * j.equal_share),
                worst(j),
                convention(&j.verdict),
                j.verdict.word().into(),
            ]);
        }
    }
    let failing = report.findings();
    let mut out = String::new();
    if all || !failing.is_empty() || report.judged() < report.nodes.len() {
        out += &table.render();
    }
    for n in &report.nodes {
        let place = n.kernel.map_or(n.probe.clone(), |kernel| format!("{} ({kernel})", n.probe));
        out += &details(&place, &n.judgement.verdict);
    }
    out += "\n";
    if let Some(preset) = report.preset {
        out += &equal_by_op(report, preset);
    } else {
        out += &conventions_by_op(report);
    }
    out += &summary(report);
    out += &growth(report);
    out
}

/// The accumulated error beside the introduced one, with a bar on a logarithmic scale from 1e-8 to 1.
fn growth(report: &DiffReport) -> String {
    if report.growth.is_empty() {
        return String::new();
    }
    let heading = ["output", "accumulated", "legitimate", "introduced", ""];
    let mut table = Table::new(&heading);
    for g in &report.growth {
        let decades = math::ln(g.accumulated.max(1e-8)) / std::f64::consts::LN_10 + 8.0;
        let marks = if g.accumulated.is_nan() { 27 } else { (3.0 * decades.min(9.0)) as usize };
        let over = if g.accumulated <= g.legitimate { "" } else { " above" };
        table.row([
            g.probe.clone(),
            format!("{:.2e}", g.accumulated),
            format!("{:.2e}", g.legitimate),
            g.introduced
                .map_or("-".into(), |x| if x > 1e6 { ">1e6".into() } else { format!("{x:.3}") }),
            format!("{}{over}", "#".repeat(marks)),
        ]);
    }
    format!(
        "\nthe error by layer: accumulated, relative rms from the reference's own forward of the nearest convention; legitimate, how far\nother conventions and orders are from that; introduced, the worst op of the layer on its own inputs, of its budget\n{}",
        table.render()
    )
}

/// What of each op equals the reference under a preset, bit by bit.
fn equal_by_op(report: &DiffReport, preset: &str) -> String {
    let mut by_op: BTreeMap<&str, (usize, usize, f64, usize)> = BTreeMap::new();
    for n in report.nodes.iter().filter(|n| n.judgement.elements > 0) {
        let (calls, elements, equal, failing) = by_op.entry(&n.op).or_default();
        *calls += 1;
        *elements += n.judgement.elements;
        *equal += n.judgement.equal_share * n.judgement.elements as f64;
        *failing += usize::from(!n.judgement.verdict.is_pass());
    }
    let mut table = Table::new(&["op", "calls", "elements", "bit-equal", "calls not explained"]);
    for (op, (calls, elements, equal, failing)) in by_op {
        table.row([
            op.to_string(),
            calls.to_string(),
            elements.to_string(),
            format!("{:.3} %", 100.0 * equal / elements as f64),
            failing.to_string(),
        ]);
    }
    format!("under preset {preset}, on the trace's own inputs:\n{}\n", table.render())
}

fn summary(report: &DiffReport) -> String {
    let judged = report.nodes.iter().filter(|n| n.op != RANKS);
    let (forward, ops): (Vec<&NodeReport>, Vec<&NodeReport>) =
        judged.partition(|n| n.op == forward::NAME);
    let free_running = (!forward.is_empty()).then(|| {
        let passed = forward.iter().filter(|n| n.judgement.verdict.is_pass()).count();
        format!("{passed} of {} recorded outputs are what a right forward computes", forward.len())
    });
    let op_by_op = (!ops.is_empty()).then(|| by_op(&ops));
    let mut text = [op_by_op, free_running].into_iter().flatten().collect::<Vec<_>>().join("\n");
    text += "\n";
    text += &coverage(report);
    if !report.notes.is_empty() {
        let shown: String = report.notes.chars().take(MOST_NOTES).collect();
        let more = if shown.len() < report.notes.len() { " ..." } else { "" };
        text += &format!("the trace says: {}{more}\n", shown.escape_debug());
    }
    text
}

/// What the ops' own inputs say.
fn by_op(nodes: &[&NodeReport]) -> String {
    let passed = nodes.iter().filter(|n| n.judgement.verdict.is_pass()).count();
    let skipped =
        nodes.iter().filter(|n| matches!(n.judgement.verdict, Verdict::Skipped { .. })).count();
    let mut text = format!("{passed} of {} ops pass on the trace's own inputs", nodes.len());
    if skipped > 0 {
        text += &format!(", {skipped} could not be judged");
    }
    let worst = nodes
        .iter()
        .filter(|n| n.judgement.verdict.is_pass())
        .max_by(|a, b| a.judgement.worst.total_cmp(&b.judgement.worst));
    if let Some(n) = worst {
        text +=
            &format!("; worst error of those {:.3} of its budget ({})", n.judgement.worst, n.probe);
    }
    let introduced = |n: &&&NodeReport| match &n.judgement.verdict {
        Verdict::Unexplained { .. } => true,
        Verdict::Fail { findings } => findings.iter().all(|f| f.name != "inconsistent_recording"),
        _ => false,
    };
    if let Some(n) = nodes.iter().find(introduced) {
        text += &format!(
            "\nfirst op that introduces an error: {}; ops that pass downstream of it only inherit it",
            n.probe
        );
    }
    text
}

/// By op, the catalogued faults that no call's recorded inputs could have shown: for those a pass says
/// nothing.
pub(crate) fn coverage(report: &DiffReport) -> String {
    let mut by_op: BTreeMap<&str, Option<BTreeSet<&str>>> = BTreeMap::new();
    for n in &report.nodes {
        if let Verdict::Pass { unseen_faults, .. } = &n.judgement.verdict {
            let here: BTreeSet<&str> = unseen_faults.iter().map(String::as_str).collect();
            let all = by_op.entry(&n.op).or_default();
            *all = Some(match all.take() {
                Some(seen) => seen.intersection(&here).copied().collect(),
                None => here,
            });
        }
    }
    let limited = by_op.into_iter().filter_map(|(op, f)| Some((op, f.filter(|f| !f.is_empty())?)));
    limited
        .map(|(op, faults)| {
            let list = without_repeats(&faults);
            format!("{op}: pass, limited: not distinguishable by these cases: {list}\n")
        })
        .collect()
}

/// `rope.wrong_theta (1e3), rope.wrong_theta (1e4)` as `rope.wrong_theta (1e3; 1e4)`.
fn without_repeats(faults: &BTreeSet<&str>) -> String {
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for fault in faults {
        let (name, key) = fault.split_once(" (").unwrap_or((fault, ""));
        keys.entry(name).or_default().extend(key.strip_suffix(')'));
    }
    let one = |(name, keys): (&str, Vec<&str>)| match keys[..] {
        [] => name.to_string(),
        _ => format!("{name} ({})", keys.join("; ")),
    };
    keys.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// `conventions: rms_norm normalised=stored; rope table=stored product=stored; ...`
fn conventions_by_op(report: &DiffReport) -> String {
    let mut seen: Vec<String> = Vec::new();
    for n in &report.nodes {
        if let Verdict::Pass { conventions, .. } = &n.judgement.verdict
            && conventions.first().is_some_and(|c| c != "defaults")
        {
            let text = format!("{} {}", n.op, conventions[0]);
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
    }
    if seen.is_empty() {
        String::new()
    } else {
        format!("conventions found: {}\n", seen.join("; "))
    }
}

pub(super) fn worst(j: &Judgement) -> String {
    if j.runs == 0 {
        "-".into()
    } else if j.worst > 1e6 {
        ">1e6".into()
    } else {
        format!("{:.3}", j.worst)
    }
}

pub(super) fn convention(verdict: &Verdict) -> String {
    let Verdict::Pass { conventions, .. } = verdict else { return "-".into() };
    match conventions.len() {
        0 | 1 => conventions.first().cloned().unwrap_or_default(),
        n => format!("{} (= {} more)", conventions[0], n - 1),
    }
}

fn details(subject: &str, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Skipped { reason } => format!("\n{subject}: skipped: {reason}\n"),
        other => findings(subject, &other.findings()),
    }
}

fn findings(subject: &str, findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|f| format!("\n{subject}: {} {}\n    {}\n", f.code, f.name, f.text))
        .collect()
}
