//! The page: a table of verdicts, then each subject with its evidence.

use std::fmt::Write;

use super::charts::{heat_map, histogram};
use super::escape;
use crate::judge::{Judgement, Verdict};
use crate::report::text::{convention, worst};

/// One subject of the report.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Kernel or probe.
    pub name: &'a str,
    /// The op.
    pub op: &'a str,
    /// What was found.
    pub judgement: &'a Judgement,
}

impl Row<'_> {
    /// Style class of the verdict.
    fn class(&self) -> &'static str {
        match self.judgement.verdict {
            Verdict::Pass { .. } => "pass",
            Verdict::Fail { .. } | Verdict::Unexplained { .. } => "fail",
            Verdict::IllConditioned { .. } | Verdict::Skipped { .. } => "unknown",
        }
    }
}

/// A report of subjects.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// `assay check`.
    pub title: &'a str,
    /// What was checked, how: one line.
    pub subtitle: String,
    /// A figure in front of the table; may be empty.
    pub chart: String,
    /// The subjects in order.
    pub rows: Vec<Row<'a>>,
}

impl Page<'_> {
    /// The whole file.
    pub fn render(&self) -> String {
        let count = |class| self.rows.iter().filter(|r| r.class() == class).count();
        let (pass, fail, unknown) = (count("pass"), count("fail"), count("unknown"));
        let state = match (fail, unknown) {
            (0, 0) => "pass",
            (0, _) => "unknown",
            _ => "fail",
        };
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{title}: {fail} of {all} fail</title>\n<style>{style}</style>\n</head>\n<body>\n\
             <header class=\"{state}\"><h1>{title}</h1><p class=\"counts\">{pass} pass, {fail} fail, \
             {unknown} could not be judged</p><p>{subtitle}</p></header>\n<main>\n",
            title = escape(self.title),
            all = self.rows.len(),
            style = include_str!("page.css"),
            subtitle = escape(&self.subtitle),
        );
        out += &self.chart;
        out += &self.table();
        let mut order: Vec<&Row<'_>> = self.rows.iter().collect();
        order.sort_by_key(|r| r.class() != "fail");
        for row in order {
            out += &section(row);
        }
        out + &foot()
    }

    fn table(&self) -> String {
        let mut out = String::from(
            "<table><thead><tr><th>subject</th><th>op</th><th>runs</th><th>bit-equal</th>\
             <th>worst/budget</th><th>convention</th><th>verdict</th></tr></thead>\n<tbody>\n",
        );
        for r in &self.rows {
            let j = r.judgement;
            let named = j.verdict.findings().first().map(|f| f.name.clone());
            let _ = writeln!(
                out,
                "<tr class=\"{}\"><td><a href=\"#{}\">{}</a></td><td>{}</td><td>{}</td><td>{:.2} %</td>\
                 <td>{}</td><td>{}</td><td>{}{}</td></tr>",
                r.class(),
                id(r.name),
                escape(r.name),
                escape(r.op),
                j.runs,
                100.0 * j.equal_share,
                escape(&worst(j)),
                escape(&convention(&j.verdict)),
                escape(j.verdict.word()),
                named.map_or(String::new(), |n| format!(": {}", escape(&n))),
            );
        }
        out + "</tbody></table>\n"
    }
}

/// An anchor for a name.
fn id(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn section(row: &Row<'_>) -> String {
    let j = row.judgement;
    let open = if row.class() == "pass" { "" } else { " open" };
    let mut out = format!(
        "<details id=\"{}\" class=\"{}\"{open}><summary>{} <b>{}</b></summary>\n",
        id(row.name),
        row.class(),
        escape(row.name),
        escape(j.verdict.word()),
    );
    for f in j.verdict.findings() {
        let _ = writeln!(
            out,
            "<article><h3><code>{}</code> {}</h3><p>{}</p></article>",
            escape(&f.code),
            escape(&f.name),
            escape(&f.text)
        );
    }
    match &j.verdict {
        Verdict::Skipped { reason } => {
            let _ = writeln!(out, "<p>Skipped: {}</p>", escape(reason));
        }
        Verdict::Pass { unseen_faults, indistinct, .. }
            if !unseen_faults.is_empty() || !indistinct.is_empty() =>
        {
            let list = escape(&[&unseen_faults[..], indistinct].concat().join(", "));
            let _ = writeln!(out, "<p>Not distinguishable by these cases: {list}</p>");
        }
        _ => {}
    }
    if !j.ill_conditioned.is_empty() {
        let list = escape(&j.ill_conditioned.join(", "));
        let _ = writeln!(out, "<p>Too uncertain to be evidence: {list}</p>");
    }
    if j.runs > 0 {
        let _ = writeln!(
            out,
            "<figure>{}<figcaption>{} elements of {} runs by error, in budgets; above 1 is outside (logarithmic)\
             </figcaption></figure>",
            histogram(&j.histogram),
            j.histogram.iter().sum::<usize>(),
            j.runs,
        );
    }
    if let Some(picture) = &j.picture {
        let _ = writeln!(
            out,
            "<figure>{}<figcaption>{}: output {:?}, worst error by place{}</figcaption></figure>",
            heat_map(picture),
            escape(&picture.label),
            picture.shape,
            if row.class() == "fail" { ", under the closest convention" } else { "" },
        );
    }
    out + "</details>\n"
}

/// What every page ends with.
pub(super) fn foot() -> String {
    format!(
        "</main>\n<footer>assay {}</footer>\n<script>{}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
        include_str!("page.js"),
    )
}
