//! JUnit XML, which CI systems show: one suite a kernel (or op), one case for what was judged.
//!
//! The form is that of <https://github.com/testmoapp/junitxml>: `testsuites`, `testsuite`, `testcase`
//! with `failure` or `skipped`, and `system-out` for what a pass says.

use std::fmt::Write as _;
use std::path::Path;

use super::json::write_text;
use crate::diff::DiffReport;
use crate::judge::{Judgement, Verdict};
use crate::mutants::{EditReport, Kind};
use crate::suite::KernelReport;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It passed; what is to be said of it.
    Passed(String),
    /// Type, first line, and text of each failure.
    Failed(Vec<[String; 3]>),
    /// Why nothing was verified.
    Skipped(String),
}

/// One case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCase {
    /// The suite that it belongs to: cases of one suite follow each other.
    pub suite: String,
    /// Its name.
    pub name: String,
    /// How it ended.
    pub ended: Ended,
}

fn ended(j: &Judgement) -> Ended {
    match &j.verdict {
        Verdict::Skipped { reason } => Ended::Skipped(reason.clone()),
        Verdict::Pass { conventions, unseen_faults, .. } => {
            let mut text = format!("conventions: {}\n", conventions.join(" = "));
            if !unseen_faults.is_empty() {
                text +=
                    &format!("faults that these cases cannot see: {}\n", unseen_faults.join(", "));
            }
            Ended::Passed(text)
        }
        other => {
            let failure = |f: crate::finding::Finding| {
                let first = f.text.lines().next().unwrap_or_default().to_string();
                [format!("{} {}", f.code, f.name), first, f.text]
            };
            Ended::Failed(other.findings().into_iter().map(failure).collect())
        }
    }
}

/// The cases of `assay check`.
pub fn check(reports: &[KernelReport]) -> Vec<TestCase> {
    let case = |r: &KernelReport| TestCase {
        suite: r.kernel.clone(),
        name: format!("{}: {} cases of {}", r.op, r.cases, r.evidence.families.join(", ")),
        ended: ended(&r.judgement),
    };
    reports.iter().map(case).collect()
}

/// The cases of `assay diff`: a suite for each op.
pub fn diff(report: &DiffReport) -> Vec<TestCase> {
    let mut ops: Vec<&str> = Vec::new();
    for n in &report.nodes {
        if !ops.contains(&n.op.as_str()) {
            ops.push(&n.op);
        }
    }
    let of = |op: &str| {
        let nodes: Vec<_> = report.nodes.iter().filter(|n| n.op == op).collect();
        nodes.into_iter().map(|n| TestCase {
            suite: n.op.clone(),
            name: n.probe.clone(),
            ended: ended(&n.judgement),
        })
    };
    ops.into_iter().flat_map(of).collect()
}

/// The cases of `assay check --mutants`: a suite for each kernel. A mutant passes when it is caught.
pub fn mutants(reports: &[EditReport]) -> Vec<TestCase> {
    let case = |r: &EditReport| {
        let (suite, name) = r.name.split_once('.').unwrap_or(("edits", &r.name));
        let named = r.named.as_deref().unwrap_or("nothing");
        let ended = match (r.kind, r.is_good()) {
            (Kind::Mutant, true) => Ended::Passed(format!("caught as {named}\n")),
            (Kind::Control, true) => Ended::Passed("passes, as it should\n".into()),
            (Kind::Mutant, false) => {
                let text = "a kernel broken on purpose passes".to_string();
                Ended::Failed(vec![["missed".into(), text.clone(), text]])
            }
            (Kind::Control, false) => {
                let text = format!("a legitimate rewrite is called {named}");
                Ended::Failed(vec![["false alarm".into(), text.clone(), text]])
            }
        };
        TestCase { suite: suite.into(), name: name.into(), ended }
    };
    reports.iter().map(case).collect()
}

/// Text for an attribute or an element. What XML 1.0 has no character for becomes U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // Kept through an attribute's normalisation.
            '\n' => out += "&#10;",
            '\t' => out += "&#9;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c < ' ' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn counts(cases: &[&TestCase]) -> String {
    let failures = cases.iter().filter(|c| matches!(c.ended, Ended::Failed(_))).count();
    let skipped = cases.iter().filter(|c| matches!(c.ended, Ended::Skipped(_))).count();
    format!("tests=\"{}\" failures=\"{failures}\" errors=\"0\" skipped=\"{skipped}\"", cases.len())
}

/// The XML of a command's cases, which took `seconds` together.
pub fn render(command: &str, seconds: f64, cases: &[TestCase]) -> String {
    let all: Vec<&TestCase> = cases.iter().collect();
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_string();
    let name = escape(command);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "<testsuites name=\"{name}\" {} time=\"{seconds:.3}\">", counts(&all));
    for suite in all.chunk_by(|a, b| a.suite == b.suite) {
        let name = escape(&suite[0].suite);
        let _ = writeln!(out, "  <testsuite name=\"{name}\" {}>", counts(suite));
        suite.iter().for_each(|case| out += &element(command, case));
        out += "  </testsuite>\n";
    }
    out + "</testsuites>\n"
}

fn element(command: &str, case: &TestCase) -> String {
    let class = escape(&format!("{command}.{}", case.suite).replace(' ', "."));
    let mut out = format!("    <testcase classname=\"{class}\" name=\"{}\">\n", escape(&case.name));
    match &case.ended {
        Ended::Passed(text) => {
            let _ = writeln!(out, "      <system-out>{}</system-out>", escape(text));
        }
        Ended::Skipped(reason) => {
            let _ = writeln!(out, "      <skipped message=\"{}\"/>", escape(reason));
        }
        Ended::Failed(failures) => {
            for [kind, first, text] in failures {
                let (kind, first, text) = (escape(kind), escape(first), escape(text));
                let _ = writeln!(
                    out,
                    "      <failure type=\"{kind}\" message=\"{first}\">{text}</failure>"
                );
            }
        }
    }
    out + "    </testcase>\n"
}

/// Writes the XML to a file, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, command: &str, seconds: f64, cases: &[TestCase]) -> anyhow::Result<()> {
    write_text(path, &render(command, seconds, cases))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A strict reader of the XML that is written here: elements, attributes, text, the five entities and
    /// decimal references; anything else is an error. Gives (depth, name, attributes, text).
    fn parse(xml: &str) -> Result<Vec<Node>, String> {
        let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
        let mut rest = xml.strip_prefix(declaration).ok_or("no declaration")?;
        let (mut open, mut nodes): (Vec<usize>, Vec<Node>) = (Vec::new(), Vec::new());
        while !rest.trim_start().is_empty() {
            let (text, after) = rest.split_once('<').ok_or("text after the last element")?;
            match open.last() {
                Some(&i) => nodes[i].text += &unescape(text)?,
                None if text.trim().is_empty() => {}
                None => return Err(format!("text outside: {text}")),
            }
            let (tag, after) = after.split_once('>').ok_or("an open tag")?;
            rest = after;
            if let Some(name) = tag.strip_prefix('/') {
                let i = open.pop().ok_or("a stray end")?;
                if nodes[i].name != name {
                    return Err(format!("{name} closes {}", nodes[i].name));
                }
                continue;
            }
            if open.is_empty() && !nodes.is_empty() {
                return Err("two roots".into());
            }
            let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
            let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
            let mut node = Node { depth: open.len(), name: name.into(), ..Node::default() };
            while !attributes.trim().is_empty() {
                let (key, value) = attributes.trim_start().split_once("=\"").ok_or("a value")?;
                let (value, more) = value.split_once('"').ok_or("a closing quote")?;
                if !key.chars().all(|c| c.is_ascii_lowercase()) || value.contains('<') {
                    return Err(format!("attribute {key}"));
                }
                if node.attributes.iter().any(|(k, _)| k == key) {
                    return Err(format!("attribute {key} twice"));
                }
                node.attributes.push((key.into(), unescape(value)?));
                attributes = more;
            }
            nodes.push(node);
            if !empty {
                open.push(nodes.len() - 1);
            }
        }
        if open.is_empty() { Ok(nodes) } else { Err("an element is not closed".into()) }
    }

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Node {
        depth: usize,
        name: String,
        attributes: Vec<(String, String)>,
        text: String,
    }

    impl Node {
        fn get(&self, key: &str) -> &str {
            self.attributes.iter().find(|(k, _)| k == key).map_or("", |(_, v)| v)
        }
    }

    fn unescape(text: &str) -> Result<String, String> {
        let mut parts = text.split('&');
        let mut out = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let (entity, more) = part.split_once(';').ok_or("a bare ampersand")?;
            out.push(match entity {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "#10" => '\n',
                "#9" => '\t',
                other => return Err(format!("entity {other}")),
            });
            out += more;
        }
        let legal = |c: char| {
            matches!(c, '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
                || c >= '\u{10000}'
        };
        if out.chars().all(legal) { Ok(out) } else { Err("a character that XML lacks".into()) }
    }

    fn cases() -> Vec<TestCase> {
        let case = |suite: &str, name: &str, ended| TestCase {
            suite: suite.into(),
            name: name.into(),
            ended,
        };
        let hostile = "a < b && \"c\" > 'd' ]]> \u{1b}[31m\u{0}\u{ffff}\n\tend é";
        vec![
            case("gemm", "matmul", Ended::Passed("conventions: defaults\n".into())),
            case("gemm", hostile, Ended::Failed(vec![[hostile, hostile, hostile].map(Into::into)])),
            case("att & co", "attention", Ended::Skipped("no device: \"why\" <none>".into())),
        ]
    }

    #[test]
    fn hostile_text_comes_back_as_it_was() {
        let nodes = parse(&render("assay check", 1.25, &cases())).expect("well-formed");
        let clean = "a < b && \"c\" > 'd' ]]> \u{fffd}[31m\u{fffd}\u{fffd}\n\tend é";
        let failure = nodes.iter().find(|n| n.name == "failure").expect("a failure");
        assert_eq!((failure.get("message"), failure.text.as_str()), (clean, clean));
        let names: Vec<(usize, &str)> = nodes.iter().map(|n| (n.depth, n.name.as_str())).collect();
        let expected = [
            (0, "testsuites"),
            (1, "testsuite"),
            (2, "testcase"),
            (3, "system-out"),
            (2, "testcase"),
            (3, "failure"),
            (1, "testsuite"),
            (2, "testcase"),
            (3, "skipped"),
        ];
        assert_eq!(names, expected);
        let count = |n: &Node| ["tests", "failures", "skipped"].map(|k| n.get(k).to_string());
        assert_eq!(count(&nodes[0]), ["3", "1", "1"]);
        assert_eq!(count(&nodes[1]), ["2", "1", "0"]);
        assert_eq!(nodes[6].get("name"), "att & co");
        assert_eq!(nodes[8].get("message"), "no device: \"why\" <none>");
    }

    /// The strict reader is strict: what it lets through is worth something.
    #[test]
    fn the_reader_refuses_broken_xml() {
        let good = render("assay check", 0.0, &cases());
        for (from, to) in [
            ("&lt;", "<"),
            ("&amp;", "&"),
            ("</testcase>", ""),
            ("</testsuites>", "</testsuite>"),
            ("<?xml", "<xml"),
            ("&quot;", "\""),
        ] {
            assert!(good.contains(from), "{from}");
            assert!(parse(&good.replacen(from, to, 1)).is_err(), "{from} as {to}");
        }
    }

    #[test]
    fn a_failing_judgement_keeps_the_text_of_its_findings() {
        let mut judgement = Judgement::skipped("");
        let finding = crate::finding::Finding::new("unexplained", "column 3 <off>\nmore");
        judgement.verdict = Verdict::Fail { findings: vec![finding] };
        let expected = ["A001 unexplained", "column 3 <off>", "column 3 <off>\nmore"];
        assert_eq!(ended(&judgement), Ended::Failed(vec![expected.map(Into::into)]));
    }
}
