//! The page of a bisect: the first screen says what is wrong and what to do.

use std::fmt::Write;

use super::escape;
use super::page::foot;
use crate::bisect::{Bisect, Outcome, Row};

/// The whole page.
pub fn bisect(report: &Bisect) -> String {
    let convicted = report.evidence().next().is_some();
    let untested = report.suspects.iter().any(|r| matches!(r.outcome, Outcome::NotTestable { .. }));
    let state = if convicted {
        "fail"
    } else if untested {
        "unknown"
    } else {
        "pass"
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>assay bisect: {headline}</title>\n<style>{style}</style>\n</head>\n<body>\n\
         <header class=\"{state}\"><h1>What is wrong</h1><p class=\"counts\">{headline}</p>\
         <p>assay bisect {model}</p></header>\n<main>\n<p>{story}</p>\n",
        style = include_str!("page.css"),
        headline = escape(&report.headline),
        model = escape(&report.model),
        story = escape(&report.story),
    );
    if !report.actions.is_empty() {
        out += "<h2>What to do</h2>\n<ol>\n";
        for action in &report.actions {
            let _ = writeln!(out, "<li>{}</li>", escape(action));
        }
        out += "</ol>\n";
    }
    out += "<h2>Every suspect</h2>\n<table><thead><tr><th>suspect</th><th>experiment</th><th>cost</th>\
            <th>verdict</th></tr></thead>\n<tbody>\n";
    for row in &report.suspects {
        let _ = writeln!(
            out,
            "<tr class=\"{}\"><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td>{}</td></tr>",
            class(row),
            id(row.suspect),
            escape(row.suspect),
            escape(row.experiment),
            escape(row.cost),
            escape(row.outcome.word()),
        );
    }
    out += "</tbody></table>\n";
    let mut order: Vec<&Row> = report.suspects.iter().collect();
    order.sort_by_key(|r| class(r) != "fail");
    for row in order {
        out += &section(row);
    }
    out + &foot()
}

fn class(row: &Row) -> &'static str {
    match row.outcome {
        Outcome::Cleared { .. } => "pass",
        Outcome::Convicted { .. } => "fail",
        Outcome::NotTestable { .. } => "unknown",
    }
}

fn id(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn section(row: &Row) -> String {
    let open = if class(row) == "fail" { " open" } else { "" };
    let mut out = format!(
        "<details id=\"{}\" class=\"{}\"{open}><summary>{} <b>{}</b></summary>\n<p>{}; {}</p>\n",
        id(row.suspect),
        class(row),
        escape(row.suspect),
        escape(row.outcome.word()),
        escape(row.experiment),
        escape(row.cost),
    );
    match &row.outcome {
        Outcome::Cleared { by, limits } => {
            let _ = writeln!(out, "<p>Seen: {}</p>", escape(by));
            for limit in limits {
                let _ = writeln!(out, "<p>Limit: {}</p>", escape(limit));
            }
        }
        Outcome::NotTestable { needs } => {
            let _ = writeln!(out, "<p>Needs: {}</p>", escape(needs));
        }
        Outcome::Convicted { evidence } => {
            for e in evidence {
                let _ = writeln!(
                    out,
                    "<article><h3><code>{}</code> {} <small>{}</small></h3><p>{}</p><p>To do: {}</p></article>",
                    escape(&e.code),
                    escape(&e.name),
                    escape(&e.r#where),
                    escape(&e.what),
                    escape(&e.advice),
                );
            }
        }
    }
    out + "</details>\n"
}
