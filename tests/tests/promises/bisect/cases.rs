//! How often `assay bisect` is right, on recordings that transformers made (golden/README.md): single faults,
//! constants with values of no list, faults of no list, and two faults at once.

#![expect(clippy::print_stdout, reason = "the table of the long run is its point")]

use std::time::Instant;

use assay_reference::trace::Trace;
use assay_tests::damage::Copy;
use assay_tests::golden;
use assay_verify::bisect::{Bisect, Evidence};
use serde_json::{Map, Value};

use super::of;

/// A finding that must be there.
struct Expected {
    name: String,
    /// What the place must contain: a probe, a file.
    place: String,
    /// Of an unexplained op.
    op: String,
    /// The form of a wrong forward: `k` of a bias, `1e4` of a base.
    key: String,
    /// A constant, and the largest relative error of its estimate.
    value: Option<(f64, f64)>,
}

struct Case {
    kind: String,
    name: String,
    checkpoint: String,
    trace: String,
    detail: String,
    damage: Vec<Value>,
    expected: Vec<Expected>,
}

fn text(of: &Value, key: &str) -> String {
    of[key].as_str().unwrap_or_default().to_string()
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}

impl Expected {
    fn of(e: &Value) -> Expected {
        let value = e["value"].as_f64().map(|v| (v, e["within"].as_f64().expect("how near")));
        Expected {
            name: text(e, "name"),
            place: text(e, "where"),
            op: text(e, "op"),
            key: String::new(),
            value,
        }
    }

    /// Whether this evidence is the finding, with its form, place and value.
    fn is(&self, e: &Evidence) -> bool {
        let keyed = self.key.is_empty() || e.what.starts_with(&format!("{}: ", self.key));
        let near = self.value.is_none_or(|(value, within)| {
            estimate(&e.what).is_some_and(|got| (got / value - 1.0).abs() <= within)
        });
        let op = self.op.is_empty() || e.r#where.contains(&format!("[{},", self.op));
        e.name == self.name && e.r#where.contains(&self.place) && op && keyed && near
    }

    /// Whether the evidence names another forward, and says that this one explains the recording as well.
    fn is_as_good(&self, e: &Evidence) -> bool {
        let rival = match self.key.as_str() {
            "" => self.name.clone(),
            key => format!("{} ({key})", self.name),
        };
        e.what.split_once("Equally good here: ").is_some_and(|(_, list)| list.contains(&rival))
    }

    fn told(&self) -> String {
        let place = if self.place.is_empty() { &self.key } else { &self.place };
        let value = self.value.map_or(String::new(), |(v, _)| format!(" {v:e}"));
        format!("{} {place}{value}", self.name).trim_end().to_string()
    }
}

/// The value that a finding gives for a constant (`eps is 3e-6 instead of 1e-6`) or a factor.
fn estimate(what: &str) -> Option<f64> {
    let number = match what.split_once(" instead of") {
        Some((head, _)) => head.rsplit(' ').next()?,
        None => what.split_once("multiplied by ")?.1.split(' ').next()?,
    };
    number.trim_end_matches(['.', ',', ';']).parse().ok()
}

/// The cases of a golden list of single faults, whose traces are in `folder`.
fn singles(file: &str, folder: &str) -> Vec<Case> {
    let all = golden::json(file);
    let case = |f: &Value| Case {
        kind: "single".into(),
        name: format!("{folder}/{}", text(f, "name")),
        checkpoint: text(f, "checkpoint"),
        trace: format!("{folder}/{}", text(f, "name")),
        detail: text(f, "detail"),
        damage: Vec::new(),
        expected: vec![Expected {
            name: text(f, "expected_fault"),
            place: list(f, "expected_probes")
                .first()
                .map_or("", |p| p.as_str().expect("a probe"))
                .into(),
            op: String::new(),
            key: text(f, "key"),
            value: None,
        }],
    };
    list(&all, "faults").iter().map(case).collect()
}

/// The cases of golden/bisect_cases.json of one kind.
fn cases(kind: &str) -> Vec<Case> {
    let all = golden::json("bisect_cases.json");
    let case = |c: &Value| Case {
        kind: text(c, "kind"),
        name: format!("bisect/{}", text(c, "name")),
        checkpoint: text(c, "checkpoint"),
        trace: text(c, "trace"),
        detail: text(c, "detail"),
        damage: list(c, "damage").to_vec(),
        expected: list(c, "expected").iter().map(Expected::of).collect(),
    };
    list(&all, "cases").iter().filter(|c| c["kind"] == kind).map(case).collect()
}

/// Does to a copy of a checkpoint what a case says.
fn damage(copy: &Copy, edit: &Value) {
    let file = text(edit, "file");
    if let Some(new) = edit["rename"].as_str() {
        std::fs::rename(copy.file(&file), copy.file(new)).expect("another name");
    }
    let Some(values) = edit["set"].as_object() else { return };
    copy.json(&file, |map| {
        let map: &mut Map<String, Value> = match edit["in"].as_str() {
            Some(part) => map[part].as_object_mut().expect("an object"),
            None => map,
        };
        map.extend(values.clone());
    });
}

fn report(case: &Case) -> Bisect {
    let trace: Trace = golden::trace(&case.trace);
    if case.damage.is_empty() {
        return of(&golden::path("checkpoints").join(&case.checkpoint), Some(&trace));
    }
    let copy = Copy::of(&format!("checkpoints/{}", case.checkpoint));
    case.damage.iter().for_each(|edit| damage(&copy, edit));
    of(copy.path(), Some(&trace))
}

/// What came of a case.
struct Outcome {
    /// Expected findings that are there.
    named: usize,
    /// Of these, those that are said to be as good as the name that leads.
    as_good: usize,
    /// Findings that are none of the expected.
    false_names: Vec<String>,
    found: Vec<String>,
    seconds: f64,
}

impl Outcome {
    fn right(&self, case: &Case) -> bool {
        self.named == case.expected.len() && self.false_names.is_empty()
    }
}

fn place(e: &Evidence) -> String {
    let mut place = e.r#where.split(" [").next().unwrap_or_default().to_string();
    if place.contains('/') {
        place = place.rsplit('/').next().unwrap_or_default().to_string();
    }
    format!("{} {place}", e.name)
}

/// A stretch of the forward that no wrong forward explains, with an op in it that is expected to be unexplained.
fn follows(case: &Case, e: &Evidence) -> bool {
    let layer = |probe: &str| probe.split('.').nth(1).map(str::to_owned);
    let stretch = e.r#where.ends_with(".mlp_residual");
    let of = |x: &Expected| x.name == "unexplained" && layer(&x.place) == layer(&e.r#where);
    e.name == "unexplained" && stretch && case.expected.iter().any(of)
}

fn outcome(case: &Case) -> Outcome {
    let begin = Instant::now();
    let report = report(case);
    let seconds = begin.elapsed().as_secs_f64();
    let all: Vec<&Evidence> = report.evidence().collect();
    let named = |x: &&Expected| all.iter().any(|e| x.is(e));
    let as_good = |x: &&Expected| !named(x) && all.iter().any(|e| x.is_as_good(e));
    // That the logits are wrong is said beside the cause.
    let expected = |e: &Evidence| {
        e.name.starts_with("logits.")
            || follows(case, e)
            || case.expected.iter().any(|x| x.is(e) || x.is_as_good(e))
    };
    let good = case.expected.iter().filter(as_good).count();
    Outcome {
        named: case.expected.iter().filter(named).count() + good,
        as_good: good,
        false_names: all.iter().filter(|e| !expected(e)).map(|e| place(e)).collect(),
        found: all.iter().map(|e| format!("{}: {}", place(e), e.what)).collect(),
        seconds,
    }
}

/// Runs the cases and prints a line of the table for each; those that did not come out right are told in full.
fn run(cases: &[Case]) -> Vec<Outcome> {
    let line = |case: &Case| {
        let o = outcome(case);
        let word = match (o.right(case), o.as_good) {
            (true, 0) => "named",
            (true, _) => "as good",
            _ => "WRONG",
        };
        let told = |all: Vec<String>| all.join(", ");
        println!(
            "| {} | {} | {} | {} | {} | {:.1} |",
            case.name,
            case.detail,
            told(case.expected.iter().map(Expected::told).collect()),
            word,
            told(o.false_names.clone()),
            o.seconds
        );
        if !o.right(case) {
            eprintln!("{} ({}):", case.name, case.kind);
            o.found.iter().for_each(|f| eprintln!("    {f}"));
        }
        o
    };
    cases.iter().map(line).collect()
}

fn right(cases: &[Case], outcomes: &[Outcome]) -> usize {
    cases.iter().zip(outcomes).filter(|(c, o)| o.right(c)).count()
}

#[test]
#[ignore = "many minutes: every case, with its time; cargo test -p assay-tests --test promises bisect::cases -- --ignored --nocapture"]
fn forty_singles_five_unexplained_and_ten_pairs() {
    let mut single = cases("continuous");
    single.extend(singles("faults.json", "faults"));
    single.extend(singles("forward_faults.json", "forward-faults"));
    let (unknown, pairs) = (cases("unexplained"), cases("pair"));
    assert!(single.len() >= 40 && unknown.len() >= 5 && pairs.len() >= 10);
    println!("| case | what was done | expected | outcome | false names | seconds |");
    println!("|---|---|---|---|---|---|");
    let all = [&pairs, &unknown, &single];
    let outcomes = all.map(|cases| run(cases));
    for (cases, outcomes) in all.iter().zip(&outcomes) {
        let sum = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
        println!(
            "{}: {} of {} right, {} of them as one of several equally good; {} false names; {:.0} s",
            cases[0].kind,
            right(cases, outcomes),
            cases.len(),
            sum(|o| o.as_good),
            sum(|o| o.false_names.len()),
            outcomes.iter().map(|o| o.seconds).sum::<f64>()
        );
    }
    let rights: Vec<usize> = all.iter().zip(&outcomes).map(|(c, o)| right(c, o)).collect();
    // 9 of 10, all, and 38 of 40.
    assert!(10 * rights[0] >= 9 * pairs.len(), "pairs: {} of {}", rights[0], pairs.len());
    assert_eq!(rights[1], unknown.len(), "unexplained");
    assert!(20 * rights[2] >= 19 * single.len(), "singles: {} of {}", rights[2], single.len());
}

#[test]
fn a_value_of_no_list_an_op_of_no_list_and_two_faults_end_with_their_names() {
    let quick = ["bisect/case-22", "bisect/case-11", "bisect/case-17"];
    let kinds = ["continuous", "unexplained", "pair"];
    let all: Vec<Case> =
        kinds.into_iter().flat_map(cases).filter(|c| quick.contains(&c.name.as_str())).collect();
    let outcomes = run(&all);
    assert_eq!((all.len(), right(&all, &outcomes)), (3, 3));
}
