//! The text of a bisect, and of a search among switches.

use super::Table;
use super::audit::wrapped;
use crate::bisect::switches::{Report, State};
use crate::bisect::{Bisect, Outcome};

/// What is wrong, what to do, the matrix, then the evidence.
pub fn bisect(report: &Bisect) -> String {
    let mut out = format!("{}: {}\n\n", report.model, report.headline);
    out += &wrapped("", &report.story);
    out += "\n";
    if !report.actions.is_empty() {
        out += "What to do:\n";
        for (i, action) in report.actions.iter().enumerate() {
            out += &wrapped(&format!("  {}. ", i + 1), action);
        }
        out += "\n";
    }
    let mut table = Table::new(&["suspect", "verdict", "cost"]);
    for row in &report.suspects {
        table.row([row.suspect.into(), row.outcome.word().into(), row.cost.into()]);
    }
    out += &table.render();
    for row in &report.suspects {
        out += &format!("\n{}: {}\n", row.suspect, row.outcome.word());
        out += &wrapped("    experiment: ", row.experiment);
        match &row.outcome {
            Outcome::Cleared { by, limits } => {
                out += &wrapped("    seen:       ", by);
                for limit in limits {
                    out += &wrapped("    limit:      ", limit);
                }
            }
            Outcome::NotTestable { needs } => out += &wrapped("    needs:      ", needs),
            Outcome::Convicted { evidence } => {
                for e in evidence {
                    out += &wrapped("    ", &format!("{} {}  {}", e.code, e.name, e.r#where));
                    out += &wrapped("        what:   ", &e.what);
                    out += &wrapped("        do:     ", &e.advice);
                }
            }
        }
    }
    out
}

/// The restarts so far, what they say, or the next one.
pub fn switches(report: &Report) -> String {
    let mut out = format!("{}: {}\n", report.engine, report.headline);
    for e in &report.findings {
        out += &format!("\n{} {}  {}\n", e.code, e.name, e.r#where);
        out += &wrapped("    what:   ", &e.what);
        out += &wrapped("    do:     ", &e.advice);
    }
    if !report.restarts.is_empty() {
        out += "\n";
    }
    for (i, r) in report.restarts.iter().enumerate() {
        let state = match r.state {
            Some(State::Right) => "right",
            Some(State::Wrong) => "WRONG",
            Some(State::Inconclusive) => "inconclusive",
            None => "next",
        };
        let on = match r.on.len() {
            0 => "every switch off".to_string(),
            n if n == report.suspects.len() => "every suspect on".to_string(),
            _ => format!("on: {}", r.on.join(", ")),
        };
        out += &wrapped(&format!("restart {}: {state:<14}", i + 1), &on);
        if r.state.is_none() {
            for pair in &r.environment {
                out += &format!("    export {pair}\n");
            }
        }
    }
    if !report.not_testable.is_empty() {
        out += &wrapped(
            "not testable: ",
            &format!("{}: what they hang on is guilty", report.not_testable.join(", ")),
        );
    }
    if !report.off.is_empty() {
        out += &wrapped("off already:  ", &report.off.join(", "));
    }
    for note in &report.notes {
        out += &wrapped("note: ", note);
    }
    out
}
