//! The text of a probe.

use super::Table;
use super::audit::{finding, wrapped};
use crate::server::{Group, Report, State};

/// Requests that are listed.
const SHOWN: usize = 12;

/// What a server was found to be: findings and what explains them first, then the evidence.
pub fn probe(report: &Report, subject: &str, all: bool) -> String {
    let state = match report.state {
        State::NotFinite => "its logits are NaN or infinite",
        State::Constant => "its logits are the same for every token",
        State::Collapsed => "its logits have collapsed to one token",
        State::Wrong => "finite and wrong",
        State::Right if report.findings.is_empty() => "right",
        State::Right => "right where it was compared, with findings",
        State::Unknown => "nothing could be compared",
    };
    let mut out = format!("{subject}: {state} ({}, {})\n", report.model, report.dtype);
    for item in &report.findings {
        out += "\n";
        out += &finding(item);
    }
    for (i, e) in report.explanations.iter().enumerate() {
        out += "\n";
        let label = if i == 0 { "explained by: " } else { "equally good: " };
        out += &wrapped(label, &format!("{} {}: {}", e.code, e.name, e.text));
    }
    out += "\n";
    out += &evidence(report, all);
    for what in &report.offers {
        out += &wrapped("offers: ", what);
    }
    for note in &report.notes {
        out += &wrapped("note: ", note);
    }
    for what in &report.not_tested {
        out += &wrapped("not tested: ", what);
    }
    out
}

fn evidence(report: &Report, all: bool) -> String {
    let Some(overall) = report.overall else { return String::new() };
    let wrong: Vec<&Group> = report.groups.iter().filter(|g| !g.right()).collect();
    let mut out = String::new();
    let shown: Vec<&Group> = match all {
        true => report.groups.iter().collect(),
        false => wrong.iter().copied().take(SHOWN).collect(),
    };
    if !shown.is_empty() {
        let mut table = Table::new(&[
            "request", "path", "prompt", "compared", "nats off", "allowed", "times", "verdict",
        ]);
        for g in &shown {
            table.row(vec![
                g.name.clone(),
                g.path.to_owned(),
                g.prompt.to_string(),
                g.compared.to_string(),
                format!("{:.2e}", g.distance),
                format!("{:.2e}", g.allowed),
                if g.ratio < 1e4 { format!("{:.3}", g.ratio) } else { "> 10000".to_owned() },
                if g.right() { "right" } else { "WRONG" }.to_owned(),
            ]);
        }
        out += &table.render();
        out += "\n";
    }
    out += &format!(
        "{} log-probabilities of {} requests: {:.2e} nats from the reference (root mean square), at most {:.2e} allowed; {} of {} groups right\n",
        overall.compared,
        report.groups.len(),
        overall.distance,
        overall.allowed,
        report.groups.len() - wrong.len(),
        report.groups.len()
    );
    if report.hypotheses > 0 {
        out += &format!("{} wrong forwards were tried as explanations\n", report.hypotheses);
    }
    out
}
