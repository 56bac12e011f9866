//! Nothing is registered by halves: each op has its knobs, faults, families, golden data and kernel,
//! or a stated reason for having none that still holds; each code is documented.

use std::collections::{BTreeMap, BTreeSet};

use assay_reference::ops::{self, Erased, Op, Visitor};
use assay_reference::qwen::Plan;
use assay_reference::qwen::Preset;
use assay_tests::golden;
use assay_verify::{families, finding, mutants, relations};

const NO_KNOBS: &[(&str, &str)] = &[
    ("embedding", "a copy"),
    ("add", "one addition and one rounding: nothing to choose"),
    ("all_gather", "a copy"),
];

const NO_KERNEL: &[(&str, &str)] = &[
    ("awq_gemm", "not written for the device yet"),
    ("ct_dequant", "not written for the device yet"),
    ("ct_gemm", "not written for the device yet"),
    ("fp8_dequant", "not written for the device yet"),
    ("fp8_gemm", "not written for the device yet"),
    ("add", "not written for the device yet"),
    ("moe_route", "not written for the device yet"),
    ("moe_experts", "not written for the device yet"),
    ("all_reduce", "a collective: the communication library's"),
    ("all_gather", "a collective: the communication library's"),
];

const NO_GOLDEN: &[(&str, &str)] = &[
    ("softmax", "recorded traces hold attention as a whole"),
    ("all_reduce", "split models are compared with the whole one"),
    ("all_gather", "split models are compared with the whole one"),
    ("add_rms_norm", "its parts have some, and it has their bits composed"),
    ("qk_norm_rope", "its parts have some, and it has their bits composed"),
    ("attention_paged", "attention has some, and it has its bits on gathered keys"),
    ("kv_store", "a copy: compared with a loop over the slots"),
];

/// What an op has.
#[derive(Debug)]
struct Parts {
    examples: usize,
    knobs: usize,
    faults: usize,
    summary: &'static str,
    args: usize,
}

struct Count;

impl Visitor for Count {
    type Out = Parts;

    fn visit<O: Op>(self) -> Parts {
        let examples = families::examples::<O>();
        let mut parts = Parts {
            examples: examples.len(),
            knobs: 0,
            faults: 0,
            summary: O::SUMMARY,
            args: O::ARGS.len(),
        };
        for (params, tensors) in examples {
            O::check(&params, &tensors).unwrap_or_else(|e| panic!("{}'s example: {e}", O::NAME));
            parts.knobs += O::knobs(&params).len();
            parts.faults += O::faults(&params, &tensors).len();
        }
        parts
    }
}

fn parts(op: &str) -> Parts {
    ops::visit(op, Count).expect("a registered op")
}

/// Every op has the thing, or a reason not to; no reason outlives its cause.
#[track_caller]
fn has_or_says_why(what: &str, has: impl Fn(&str) -> bool, reasons: &[(&str, &str)]) {
    for op in ops::NAMES {
        let reason = reasons.iter().find(|(name, _)| name == op);
        match (has(op), reason) {
            (false, None) => panic!("`{op}` has no {what} and no stated reason"),
            (true, Some((_, why))) => panic!("`{op}` has {what}; the reason `{why}` is stale"),
            _ => {}
        }
    }
    for (name, why) in reasons {
        assert!(ops::NAMES.contains(name) && !why.is_empty(), "a reason for `{name}`");
    }
}

#[test]
fn every_op_is_described() {
    for op in ops::NAMES {
        let p = parts(op);
        assert!(p.examples > 0 && p.args > 0 && !p.summary.is_empty(), "{op}: {p:?}");
    }
}

#[test]
fn every_op_has_knobs_and_faults() {
    has_or_says_why("knobs", |op| parts(op).knobs > 0, NO_KNOBS);
    has_or_says_why("faults", |op| parts(op).faults > 0, &[]);
}

#[test]
fn every_op_has_families_and_a_kernel() {
    has_or_says_why("families", |op| !families::power_cases(op, 1).is_empty(), &[]);
    let has_kernel = |op: &str| assay_hip::kernels().iter().any(|k| k.op == op);
    has_or_says_why("kernel", has_kernel, NO_KERNEL);
    for k in assay_hip::kernels() {
        assert!(ops::NAMES.contains(&k.op), "{} implements an unknown op {}", k.name, k.op);
        assert!(!families::cases(k.op, 1).is_empty(), "{} would be checked on nothing", k.name);
        assert!(k.mutants.len() >= 5 && !k.controls.is_empty(), "{}: too few edits", k.name);
    }
}

/// What an op is put to beside the elementwise rule, by the column of the table in docs/tests.md.
fn fits(op: &str, test: &str) -> bool {
    let small = || families::power_cases(op, 1);
    let structured = |family: &str| small().iter().any(|g| g.case.family == family && g.structured);
    let has_kernel = assay_hip::kernels().iter().any(|k| k.op == op);
    match test {
        "exact" | "special" => structured(test),
        // What only copies or compares has no store that could lean.
        "bias" => families::kernel_examples::<Erased>(op).iter().any(|(params, tensors)| {
            let faults = Erased::faults(params, tensors);
            faults.iter().any(|f| f.slug.ends_with("truncating_store"))
        }),
        "metamorphic" => !relations::of(op, 1).is_empty(),
        "memory" | "repeat" => has_kernel,
        // Those of the linear layers and of whole vocabularies are large: a test of the families that is
        // run by name draws them.
        "boundaries" if op.ends_with("_gemm") || op == "argmax" => true,
        "boundaries" => has_kernel || families::cases(op, 1).len() > small().len(),
        other => panic!("docs/tests.md has a column `{other}`"),
    }
}

#[test]
fn the_table_of_the_seven_tests_is_true() {
    let path = golden::path("../docs/tests.md");
    let text = std::fs::read_to_string(&path).expect("docs/tests.md");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|c| c.trim().to_string()).collect()
    };
    let mut lines = text.lines().skip_while(|l| !l.starts_with("| op |"));
    let header = cells(lines.next().expect("a table of ops"));
    assert_eq!(header.len(), 8, "seven tests");
    let rows: Vec<Vec<String>> =
        lines.skip(1).take_while(|l| l.starts_with('|')).map(cells).collect();
    let ops: Vec<&str> = rows.iter().map(|r| r[0].as_str()).collect();
    assert_eq!(ops, ops::NAMES, "one row an op, in the order of their registration");
    for row in &rows {
        for (test, cell) in header.iter().zip(row).skip(1) {
            let reason = cell.strip_prefix("no recipe (").and_then(|c| c.strip_suffix(')'));
            let stated = reason.is_some_and(|n| text.contains(&format!("\n{n}. ")));
            assert!(cell == "yes" || stated, "{}, {test}: `{cell}` gives no reason", row[0]);
            assert_eq!(fits(&row[0], test), cell == "yes", "{}: {test}", row[0]);
        }
    }
}

#[test]
fn every_op_has_golden_data() {
    let mut covered: BTreeSet<&str> =
        BTreeSet::from(["gptq_dequant", "awq_dequant", "ct_dequant", "fp8_dequant", "argmax"]);
    for layers in ["gptq", "awq", "compressed", "fp8"] {
        assert!(golden::path(layers).is_dir(), "golden/{layers}");
    }
    assert!(golden::path("generations.json").is_file());
    let preset = Preset::named("f32").expect("a preset");
    for (checkpoint, trace) in [
        ("tiny-qwen2", "bf16"),
        ("tiny-qwen3", "f64"),
        ("gptq-qwen3", "bf16"),
        ("awq-qwen3", "bf16"),
        ("ct-qwen3", "bf16"),
        ("fp8-qwen3", "bf16"),
        ("moe-qwen3", "f16"),
    ] {
        let plan = Plan::new(golden::checkpoint(checkpoint).config(), preset.angle);
        let trace = golden::trace(&format!("{checkpoint}/{trace}"));
        covered.extend(plan.nodes.iter().filter(|n| trace.get(&n.probe).is_some()).map(|n| n.op));
    }
    has_or_says_why("golden data", |op| covered.contains(op), NO_GOLDEN);
}

#[test]
fn every_faulty_recording_has_a_known_name() {
    let known: BTreeSet<String> = finding::all_codes().into_iter().map(|(_, name)| name).collect();
    let faults = golden::json("faults.json");
    for f in faults["faults"].as_array().expect("an array") {
        let name = f["expected_fault"].as_str().expect("a name");
        assert!(known.contains(name), "{name} is no finding");
    }
}

/// A code is one fault: a composite's parts keep their codes under the composite's name.
#[test]
fn finding_codes_are_unique() {
    let (mut by_code, mut by_name) = (BTreeMap::new(), BTreeMap::new());
    let slug = |name: &str| name.split_once('.').map_or(name, |(_, slug)| slug).to_string();
    for (code, name) in finding::all_codes() {
        let shape = code.len() == 4
            && code.starts_with('A')
            && code[1..].chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
        assert!(shape, "`{code}` is not of the form A1B2");
        let known = by_code.entry(code.clone()).or_insert_with(|| slug(&name));
        assert_eq!(*known, slug(&name), "{code} is two faults");
        if let Some(other) = by_name.insert(name.clone(), code.clone()) {
            panic!("{name} has the codes {other} and {code}");
        }
    }
}

#[test]
fn every_finding_is_documented() {
    let path = golden::path("../docs/findings.md");
    let text = std::fs::read_to_string(&path).expect("docs/findings.md");
    let mut documented: Vec<(String, String)> = Vec::new();
    for line in text.lines().filter(|l| l.starts_with("| A") || l.starts_with("| `A")) {
        let cells: Vec<&str> = line.split('|').map(|c| c.trim().trim_matches('`')).collect();
        assert!(cells.len() >= 4 && !cells[3].is_empty(), "a row without a meaning: {line}");
        documented.push((cells[1].into(), cells[2].into()));
    }
    let mut known = finding::all_codes();
    known.sort();
    documented.sort();
    let missing: Vec<_> = known.iter().filter(|c| !documented.contains(c)).collect();
    let stale: Vec<_> = documented.iter().filter(|c| !known.contains(c)).collect();
    assert!(missing.is_empty() && stale.is_empty(), "missing {missing:?}, stale {stale:?}");
    assert_eq!(known.len(), documented.len(), "a code is documented twice");
}

#[test]
fn every_mutant_applies_and_expects_a_known_finding() {
    let known: BTreeSet<String> = finding::all_codes().into_iter().map(|(_, name)| name).collect();
    let edits = mutants::edits().expect("every anchor occurs exactly once");
    let mut names = BTreeSet::new();
    for e in &edits {
        assert!(names.insert(&e.name), "{} is there twice", e.name);
        assert_ne!(e.source, e.kernel.source, "{} changes nothing", e.name);
        match (&e.expected, e.kind) {
            (Some(name), mutants::Kind::Mutant) => {
                assert!(known.contains(name), "{} expects `{name}`", e.name);
            }
            (None, mutants::Kind::Control) => {}
            other => panic!("{}: {other:?}", e.name),
        }
    }
    assert!(edits.len() >= 340, "{} edits", edits.len());
}
