//! The HTML report: one self-contained file, for sharing.

mod bisect;
mod charts;
mod growth;
mod page;

pub use bisect::bisect;
pub use page::{Page, Row};

use crate::diff::DiffReport;
use crate::suite::KernelReport;

/// The page of `assay check`.
pub fn check(reports: &[KernelReport], subtitle: String) -> Page<'_> {
    let rows = reports.iter().map(|r| Row { name: &r.kernel, op: &r.op, judgement: &r.judgement });
    Page { title: "assay check", subtitle, chart: String::new(), rows: rows.collect() }
}

/// The page of `assay exec`.
pub fn exec(reports: &[KernelReport], subtitle: String) -> Page<'_> {
    Page { title: "assay exec", ..check(reports, subtitle) }
}

/// The page of `assay diff`.
pub fn diff(report: &DiffReport, subtitle: String) -> Page<'_> {
    let rows = report.nodes.iter();
    let rows = rows.map(|n| Row { name: &n.probe, op: &n.op, judgement: &n.judgement });
    let chart = growth::chart(&report.growth);
    Page { title: "assay diff", subtitle, chart, rows: rows.collect() }
}

/// Text as it may stand in HTML, in an attribute too.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn text_cannot_leave_its_element() {
        assert_eq!(
            super::escape("<script>'a' & \"b\""),
            "&lt;script&gt;&#39;a&#39; &amp; &quot;b&quot;"
        );
    }
}
