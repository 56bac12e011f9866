//! The judge's power and its silence, measured on the reference itself as the subject: catalogued
//! faults are caught and named, legitimate conventions in any order of summation pass.

#![expect(clippy::print_stdout, reason = "the measured shares are the point")]

use std::sync::Arc;
use std::time::Instant;

use assay_reference::ops::{self, Choice, Edit, Op, Scope, Setup, Tile, Visitor};
use assay_reference::policy::{Accumulator, Order};
use assay_reference::{Case, Dtype, Tensor};
use assay_tests::subject;
use assay_verify::families::{self, Generated};
use assay_verify::judge::{Judgement, Observation, Options, Unseen, Verdict, judge};

const OPS: [&str; 3] = ["matmul", "attention", "gptq_dequant"];
/// Cases above this many elements cost more than they tell here.
const LARGEST: usize = 12_000;
/// Cases on which a fault is shown.
const SHOWN: usize = 2;

fn small_cases(op: &str) -> Vec<Generated> {
    let size = |g: &Generated| g.case.tensors.values().map(Tensor::len).sum::<usize>();
    let mut cases = families::cases(op, 5);
    cases.retain(|g| size(g) <= LARGEST);
    cases.sort_by_key(size);
    assert!(cases.len() >= 5, "{op}: {}", cases.len());
    cases
}

fn base<O: Op>(case: &Case) -> Setup<O> {
    subject::setup(case, "defaults")
}

/// What the subject stores: over f32, or by exact emulation of its accumulator.
fn stored<O: Op>(setup: &Setup<O>) -> Tensor {
    if setup.policy.acc.is_exact() {
        subject::output::<O, f64>(setup)
    } else {
        subject::output::<O, f32>(setup)
    }
}

fn observe(g: &Generated, output: Tensor) -> Observation {
    subject::observe(&Arc::new(g.case.clone()), output, &g.label, g.structured)
}

fn judged<O: Op>(runs: &[Observation]) -> Judgement {
    subject::judged(O::NAME, runs, Scope::Kernel)
}

/// How a fault fared.
struct Outcome {
    fault: String,
    key: String,
    /// `None` where no case shows it.
    named: Option<Vec<String>>,
}

struct Faults;

impl Visitor for Faults {
    type Out = Vec<Outcome>;

    fn visit<O: Op>(self) -> Vec<Outcome> {
        let cases = small_cases(O::NAME);
        let sound: Vec<Tensor> = cases.iter().map(|g| stored(&base::<O>(&g.case))).collect();
        let mut ids: Vec<(&'static str, String)> = Vec::new();
        for g in &cases {
            let s = base::<O>(&g.case);
            for f in O::faults(&s.params, &s.tensors) {
                if !ids.contains(&(f.slug, f.key.clone())) {
                    ids.push((f.slug, f.key));
                }
            }
        }
        ids.into_iter().map(|(slug, key)| outcome::<O>(&cases, &sound, slug, key)).collect()
    }
}

/// The fault on the first cases that show it, and the others sound.
fn outcome<O: Op>(cases: &[Generated], sound: &[Tensor], slug: &str, key: String) -> Outcome {
    let mut runs = Vec::new();
    for (g, right) in cases.iter().zip(sound) {
        let mut s = base::<O>(&g.case);
        let faults = O::faults(&s.params, &s.tensors);
        let Some(fault) = faults.iter().find(|f| f.slug == slug && f.key == key) else { continue };
        (fault.edit)(&mut s);
        let output = stored(&s);
        if output.bytes() != right.bytes() && runs.len() < SHOWN {
            runs.push(observe(g, output));
        }
    }
    let named = (!runs.is_empty()).then(|| {
        let findings = judged::<O>(&runs).verdict.findings();
        findings.into_iter().map(|f| f.name).collect()
    });
    Outcome { fault: format!("{}.{slug}", O::NAME), key, named }
}

#[test]
fn catalogued_faults_are_caught_and_named() {
    for op in OPS {
        let all = ops::visit(op, Faults).expect("an op");
        let shown: Vec<&Outcome> = all.iter().filter(|o| o.named.is_some()).collect();
        let names = |o: &Outcome| o.named.clone().unwrap_or_default();
        let caught = shown.iter().filter(|o| !names(o).is_empty()).count();
        let right = shown.iter().filter(|o| names(o).first() == Some(&o.fault)).count();
        println!(
            "{op}: {} faults, {} change an output, {caught} caught, {right} named right",
            all.len(),
            shown.len()
        );
        for o in shown.iter().filter(|o| names(o).first() != Some(&o.fault)) {
            println!("  {} ({}): {:?}", o.fault, o.key, names(o));
        }
        assert!(caught * 100 >= 95 * shown.len(), "{op}: {caught} of {} caught", shown.len());
        assert!(right * 100 >= 80 * shown.len(), "{op}: {right} of {} named", shown.len());
        assert!(shown.len() * 10 >= 7 * all.len(), "{op}: the cases show {} only", shown.len());
    }
}

const ORDERS: [Option<(Order, bool)>; 4] = [
    None,
    Some((Order::Sequential, false)),
    Some((Order::Lanes(4), false)),
    Some((Order::Split(5), true)),
];

/// All combinations of the common choices that a kernel may make.
fn conventions<O: Op>(params: &O::Params) -> Vec<(String, Vec<Edit<O>>)> {
    let mut all = vec![(String::new(), Vec::new())];
    for knob in O::knobs(params) {
        let mut next = Vec::new();
        for (label, edits) in &all {
            let common = |c: &Choice<O>| !c.framework_only && !c.rare;
            for (i, choice) in knob.choices.iter().enumerate().filter(|(_, c)| common(c)) {
                let (mut label, mut edits): (String, Vec<Edit<O>>) = (label.clone(), edits.clone());
                if i > 0 {
                    let space = if label.is_empty() { "" } else { " " };
                    label += &format!("{space}{}={}", knob.name, choice.value);
                }
                edits.push(choice.edit.clone());
                next.push((label, edits));
            }
        }
        all = next;
    }
    all
}

struct Legitimate;

impl Visitor for Legitimate {
    type Out = usize;

    fn visit<O: Op>(self) -> usize {
        let cases = small_cases(O::NAME);
        let params = base::<O>(&cases[0].case).params;
        let mut tried = 0;
        for (label, edits) in conventions::<O>(&params) {
            for order in ORDERS {
                let run = |g: &Generated| {
                    let mut s = base::<O>(&g.case);
                    edits.iter().for_each(|e| e(&mut s));
                    if let Some((order, fma)) = order {
                        s.policy.acc = Accumulator { dtype: Dtype::F32, order, fma };
                    }
                    observe(g, stored(&s))
                };
                let judgement = judged::<O>(&cases.iter().map(run).collect::<Vec<_>>());
                let Verdict::Pass { conventions, .. } = &judgement.verdict else {
                    panic!("{} `{label}` {order:?}: {:#?}", O::NAME, judgement);
                };
                let label = if label.is_empty() { "defaults" } else { &label };
                let own = conventions.iter().any(|c| c == label);
                assert!(own, "{} `{label}` {order:?} is called {conventions:?}", O::NAME);
                tried += 1;
            }
        }
        tried + rare::<O>(&cases, &params)
    }
}

/// Each rare choice by itself: it passes, by its own name if no common convention coincides with it.
fn rare<O: Op>(cases: &[Generated], params: &O::Params) -> usize {
    let mut tried = 0;
    for knob in O::knobs(params) {
        for choice in knob.choices.iter().filter(|c| c.rare) {
            let run = |g: &Generated| {
                let mut s = base::<O>(&g.case);
                (choice.edit)(&mut s);
                observe(g, stored(&s))
            };
            let judgement = judged::<O>(&cases.iter().map(run).collect::<Vec<_>>());
            let what = format!("{} {}={}", O::NAME, knob.name, choice.value);
            assert!(judgement.verdict.is_pass(), "{what}: {judgement:#?}");
            tried += 1;
        }
    }
    tried
}

#[test]
fn legitimate_conventions_in_any_order_raise_no_alarm() {
    for op in OPS {
        let tried = ops::visit(op, Legitimate).expect("an op");
        println!("{op}: {tried} legitimate subjects pass");
        assert!(tried >= ORDERS.len());
    }
}

/// Seconds of the plain oracle, of a pass, of a pass with its unseen faults, and of a failure that
/// nothing explains.
struct Cost;

impl Visitor for Cost {
    type Out = [f64; 4];

    fn visit<O: Op>(self) -> [f64; 4] {
        let cases = families::cases(O::NAME, 1);
        let seconds = |f: &mut dyn FnMut()| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        };
        let oracle = seconds(&mut || {
            for g in &cases {
                std::hint::black_box(base::<O>(&g.case).eval::<f64>(&Tile::ALL));
            }
        });
        let sound: Vec<Observation> =
            cases.iter().map(|g| observe(g, stored(&base::<O>(&g.case)))).collect();
        let verdict = |runs: &[Observation], unseen: Unseen, passes: bool| {
            let options = Options { scope: Scope::Kernel, unseen, preset: None };
            seconds(&mut || {
                let judgement = judge(O::NAME, runs, options).expect("runs of the op");
                assert_eq!(judgement.verdict.is_pass(), passes, "{judgement:#?}");
            })
        };
        let pass = verdict(&sound, Unseen::Nothing, true);
        let unseen = verdict(&sound, Unseen::Catalogue, true);
        // A gain that differs from element to element.
        let broken: Vec<Observation> = sound
            .into_iter()
            .map(|mut run| {
                run.output = run.output.map(|i, y| y * (1.0 + 0.05 * (i * 7 % 5) as f64));
                run
            })
            .collect();
        [oracle, pass, unseen, verdict(&broken, Unseen::Nothing, false)]
    }
}

#[test]
#[ignore = "timings: cargo test --release -p assay-tests --test judge_power cost -- --ignored --nocapture"]
fn the_cost_of_a_verdict() {
    println!("| op | oracle, s | pass | with unseen faults | unexplained failure |");
    println!("|---|---|---|---|---|");
    for op in OPS {
        let [oracle, rest @ ..] = ops::visit(op, Cost).expect("an op");
        let shown = rest.map(|s| format!("{s:.2} ({:.0} x)", s / oracle)).join(" | ");
        println!("| {op} | {oracle:.2} | {shown} |");
    }
}
