//! The text of an audit.

use crate::audit::{Audit, Item};

/// Columns of the text.
const WIDTH: usize = 110;

/// What is wrong and what to do, the most decisive first; then notes, and what was not checked.
pub fn audit(report: &Audit) -> String {
    let mut out = match report.findings.len() {
        0 => format!("{}: nothing found\n", report.model),
        1 => format!("{}: 1 finding\n", report.model),
        n => format!("{}: {n} findings, the most decisive first\n", report.model),
    };
    for item in &report.findings {
        out += "\n";
        out += &finding(item);
    }
    out += "\n";
    let size = format!("{:.2} GB", report.bytes as f64 / 1e9);
    let kind = report.architecture.as_deref().unwrap_or("architecture not understood");
    let parameters =
        report.parameters.map_or(String::new(), |n| format!(", {:.3}B parameters", n as f64 / 1e9));
    out += &format!(
        "{kind}{parameters}; {} weight files, {} tensors, {size}\n",
        report.shards, report.tensors
    );
    for hash in &report.hashes {
        let verdict = match &hash.expected {
            Some(e) if e.sha256 == hash.sha256 => format!("as {} says", e.source),
            Some(e) => format!("NOT as {} says", e.source),
            None => "nothing to compare with".to_owned(),
        };
        out += &format!("{}  {}  {verdict}\n", hash.sha256, hash.file);
    }
    for note in &report.notes {
        out += &wrapped("note: ", note);
    }
    for what in &report.unchecked {
        out += &wrapped("not checked: ", what);
    }
    out
}

/// One finding.
pub fn finding(item: &Item) -> String {
    let mut out = format!("{} {}  {}\n", item.code, item.name, item.r#where);
    for (label, text) in [
        ("    what:   ", item.what.as_str()),
        ("    do:     ", item.advice),
        ("    served: ", item.served),
        ("    why:    ", item.why),
    ] {
        out += &wrapped(label, text);
    }
    out
}

/// `text` behind `label`, in lines of at most [`WIDTH`], further lines indented to its column.
pub(super) fn wrapped(label: &str, text: &str) -> String {
    let indent = " ".repeat(label.len());
    let mut out = String::new();
    let mut line = label.to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH
            && line.trim_end() != label.trim_end()
        {
            out += line.trim_end();
            out += "\n";
            line.clone_from(&indent);
        }
        line += word;
        line += " ";
    }
    out += line.trim_end();
    out + "\n"
}
