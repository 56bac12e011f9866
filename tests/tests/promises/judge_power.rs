//! The judge names what it catches, and is silent on what is legitimate. How often it catches, for every
//! op, is what `assay power` measures; here its machinery runs on a part, so that it cannot rot.

#![expect(clippy::print_stdout, reason = "the measured shares are the point")]

use std::sync::Arc;
use std::time::Instant;

use assay_reference::ops::{self, Op, Scope, Setup, Tile, Visitor};
use assay_reference::{Case, Tensor};
use assay_tests::subject;
use assay_verify::families::{self, Generated};
use assay_verify::judge::panel::{self, Answer, Panel};
use assay_verify::judge::{Judgement, Observation, Options, Unseen, Verdict, judge};
use assay_verify::power::{self, Settings, Stored};
use assay_verify::subject::Subject as _;
use assay_verify::subject::native::Native;

const OPS: [&str; 3] = ["matmul", "attention", "gptq_dequant"];
/// Cases above this many elements cost more than they tell here.
const LARGEST: usize = 12_000;
/// Cases on which a fault is shown.
const SHOWN: usize = 2;

fn small_cases(op: &str) -> Vec<Generated> {
    let size = |g: &Generated| g.case.tensors.values().map(Tensor::len).sum::<usize>();
    let mut cases = families::power_cases(op, 5);
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

/// Every how many-eth fault of the catalogue.
struct Faults(usize);

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
        let some = ids.into_iter().step_by(self.0);
        some.map(|(slug, key)| outcome::<O>(&cases, &sound, slug, key)).collect()
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
fn a_part_of_the_catalogued_faults_is_caught_and_named() {
    caught_and_named(4);
}

#[test]
#[ignore = "a minute: cargo test -p assay-tests judge_power::all_catalogued -- --ignored"]
fn all_catalogued_faults_are_caught_and_named() {
    caught_and_named(1);
}

fn caught_and_named(every: usize) {
    for op in OPS {
        let all = ops::visit(op, Faults(every)).expect("an op");
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

/// What a native subject stores.
fn native(subject: &Native, case: &Case) -> assay_reference::Result<Stored> {
    let outputs = subject.outputs(case)?;
    Ok(outputs.into_iter().map(|(name, t)| (name, t.to_f64())).collect())
}

/// Subjects that share nothing with the reference: one trial of every fault of two ops, and their
/// conventions in all orders of summation.
#[test]
fn native_subjects_are_caught_and_legitimate_ones_raise_no_alarm() {
    for op in ["gptq_dequant", "rms_norm"] {
        let settings = Settings { trials: Some(1), legitimate: 30, faults: Vec::new(), seed: 5 };
        let out = power::measure(op, &settings, &native, &|_| {}).expect("cases of the op");
        println!("{op}: {:?} {:?}", out.detection.suite, out.alarms.suite);
        let missed: Vec<String> =
            out.faults.iter().filter(|f| !f.is_caught()).map(|f| f.name()).collect();
        assert!(out.is_good(), "{op}: missed {missed:?}, {} alarms", out.alarms.suite.hits);
        assert!(out.conventions.iter().all(|c| c.misnamed == 0), "{op}: a convention is misnamed");
        assert!(out.alarms.suite.trials >= 30 && out.faults.len() >= 20);
    }
}

/// A kernel may round the dequantised weight to bf16 or keep it in f32. Either passes under its own
/// name, and what a limit wide enough for both would let through is still caught in both.
#[test]
fn known_conventions_keep_the_bound_tight() {
    let cases: Vec<Generated> = families::power_cases("gptq_gemm", 3)
        .into_iter()
        .filter(|g| g.case.family == "unit")
        .take(3)
        .collect();
    assert_eq!(cases.len(), 3);
    // The judge's rule without the search for the fault's name.
    let build = |g: &Generated| {
        Panel::new(&Arc::new(g.case.clone()), g.structured, Scope::Kernel).expect("a gptq_gemm")
    };
    let mut panels: Vec<Panel> = cases.iter().map(build).collect();
    panel::align(&mut panels);
    for (convention, other) in [("defaults", "edge=f32"), ("edge=f32", "defaults")] {
        let sound = match convention {
            "defaults" => Native::new("gptq_gemm"),
            _ => Native::new("gptq_gemm").with("edge", "f32"),
        };
        let observed = |subject: &Native, change: &dyn Fn(&mut Case)| -> Vec<Observation> {
            let answer = |g: &Generated| {
                let mut seen = g.case.clone();
                change(&mut seen);
                observe(g, subject.run(&seen).expect("a native gptq_gemm"))
            };
            cases.iter().map(answer).collect()
        };
        let same = |_: &mut Case| {};
        let runs = observed(&sound, &same);
        let verdict = subject::judged("gptq_gemm", &runs, Scope::Kernel).verdict;
        let Verdict::Pass { conventions, .. } = verdict else {
            panic!("{convention} does not pass: {verdict:#?}");
        };
        assert!(conventions.iter().any(|c| c == convention), "{convention}: {conventions:?}");
        assert!(!conventions.iter().any(|c| c == other), "{convention}: {conventions:?}");
        let gain = sound.clone().broken("gain", "1.02");
        let narrow = sound.clone().broken("accumulator_bf16", "every 32");
        for (what, runs) in [
            ("gain", observed(&gain, &same)),
            ("bf16 accumulator", observed(&narrow, &same)),
            ("one nibble bit", observed(&sound, &flip_a_bit)),
        ] {
            let answers: Vec<Answer> = panels
                .iter()
                .zip(&runs)
                .map(|(panel, run)| Answer::new(panel, run.output.to_f64()))
                .collect();
            let outcome = panel::judge(panels.iter().zip(&answers));
            assert!(outcome.is_caught(), "{convention}: {what} passes");
        }
    }
}

/// Flips the lowest bit of the first nibble that the layer holds.
fn flip_a_bit(case: &mut Case) {
    let old = &case.tensors["qweight"];
    let mut words: Vec<i32> = (0..old.len()).map(|i| old.get_i64(i) as i32).collect();
    words[0] ^= 1;
    let flipped = Tensor::from_i32(old.shape(), &words);
    case.tensors.insert("qweight".into(), flipped);
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
            let options = Options { scope: Scope::Kernel, unseen, preset: None, known: None };
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
#[ignore = "timings: cargo test --release -p assay-tests judge_power::the_cost -- --ignored --nocapture"]
fn the_cost_of_a_verdict() {
    println!("| op | oracle, s | pass | with unseen faults | unexplained failure |");
    println!("|---|---|---|---|---|");
    for op in OPS {
        let [oracle, rest @ ..] = ops::visit(op, Cost).expect("an op");
        let shown = rest.map(|s| format!("{s:.2} ({:.0} x)", s / oracle)).join(" | ");
        println!("| {op} | {oracle:.2} | {shown} |");
    }
}
