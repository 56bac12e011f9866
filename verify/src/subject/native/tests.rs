//! Natives against hand-made examples ([`by_hand`]), against the judge, and against the reference's faults.

mod by_hand;

use std::collections::BTreeSet;
use std::sync::Arc;

use assay_reference::arith::Ball;
use assay_reference::ops::{self, Op, Scope, Tile, Visitor};
use assay_reference::{Case, Tensor};

use super::cases::cases;
use super::*;
use crate::families;
use crate::judge::{Judgement, Observation, Options, Unseen, judge, lambda};

fn judged(native: &Native, cases: &[Case]) -> Judgement {
    let observe = |c: &Case| Observation {
        output: native.run(c).expect("runs"),
        case: Arc::new(c.clone()),
        label: format!("{} {}", c.params, c.dtype),
        structured: false,
    };
    let runs: Vec<Observation> = cases.iter().map(observe).collect();
    let options =
        Options { scope: Scope::Framework, unseen: Unseen::Nothing, preset: None, known: None };
    judge(native.op, &runs, options).expect("judges")
}

/// The knobs that the reference offers for a case, with their values.
struct Offered<'a>(&'a Case);

impl Visitor for Offered<'_> {
    type Out = Vec<(&'static str, Vec<&'static str>)>;

    fn visit<O: Op>(self) -> Self::Out {
        let params = self.0.params::<O>().expect("params");
        let values = |k: ops::Knob<O>| (k.name, k.choices.iter().map(|c| c.value).collect());
        O::knobs(&params).into_iter().map(values).collect()
    }
}

/// Every choice of every knob by itself and all last choices together, each with the next chain.
fn legitimate(op: &'static str, case: &Case) -> Vec<Native> {
    let offered = ops::visit(op, Offered(case)).expect("an op");
    let mut all = vec![Native::new(op)];
    for (knob, values) in &offered {
        all.extend(values[1..].iter().map(|v| Native::new(op).with(knob, v)));
    }
    let last = |n: Native, (k, v): &(&str, Vec<&str>)| n.with(k, v[v.len() - 1]);
    all.push(offered.iter().fold(Native::new(op), last));
    let chains = Native::legitimate_chains(op);
    // Steps without a common divisor, so that every pair comes in the end.
    let n = all.len().max(chains.len());
    (0..n).map(|i| all[i % all.len()].clone().chained(chains[5 * i % chains.len()])).collect()
}

/// What the judge refuses of every `step`th legitimate implementation.
#[track_caller]
fn all_pass(ops: &[&'static str], step: usize) {
    let mut refused = Vec::new();
    for op in ops {
        for (i, case) in cases(op).iter().enumerate() {
            for native in legitimate(op, case).into_iter().skip(i % step).step_by(step) {
                let verdict = judged(&native, std::slice::from_ref(case)).verdict;
                if !verdict.is_pass() {
                    refused
                        .push(format!("{native:?} on {} {}: {verdict:?}", case.params, case.dtype));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{} refused\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn legitimate_implementations_pass() {
    all_pass(&["embedding", "add", "silu_mul", "all_reduce", "all_gather", "argmax"], 2);
    all_pass(&["rms_norm", "softmax", "rope", "matmul", "attention", "moe_route"], 8);
    all_pass(&["gptq_dequant", "awq_dequant", "ct_dequant", "fp8_dequant", "kv_store"], 5);
    all_pass(&["add_rms_norm", "qk_norm_rope", "attention_paged"], 11);
    all_pass(&["moe_experts", "gptq_gemm", "awq_gemm", "ct_gemm", "fp8_gemm"], 13);
}

#[test]
#[ignore = "a minute: all conventions and chains; cargo test -p assay-verify --lib native -- --ignored"]
fn all_legitimate_implementations_pass() {
    all_pass(ops::NAMES, 1);
}

/// Compares natives' faults with the reference's edits of the same name.
#[derive(Default)]
struct Report {
    /// Faults that the natives lack.
    missing: BTreeSet<String>,
    /// Where the two do not compute the same.
    differ: Vec<String>,
    /// Faults that changed an output somewhere.
    visible: BTreeSet<String>,
    /// Faults that were tried.
    tried: BTreeSet<String>,
}

struct Agree<'a> {
    case: &'a Case,
    label: &'a str,
    report: &'a mut Report,
}

fn same(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

impl Visitor for Agree<'_> {
    type Out = ();

    fn visit<O: Op>(self) {
        let (case, op, report) = (self.case, O::NAME, self.report);
        let (base, _) = O::open(case).expect("a case of the op");
        let right = Native::new(op).run(case).expect("runs").to_f64();
        for fault in O::faults(&base.params, &case.tensors) {
            let id = format!("{op}.{} ({})", fault.slug, fault.key);
            if !implements(op, fault.slug, &fault.key) {
                report.missing.insert(id);
                continue;
            }
            let mut setup = base.clone();
            (fault.edit)(&mut setup);
            let want = setup.eval::<f64>(&Tile::ALL).remove(0).data;
            let output = O::rounding(&setup.params, &setup.policy, 0);
            // f32 takes another side of a rounding inside the op now and then.
            setup.policy.lambda = lambda();
            let balls = setup.eval::<Ball<24>>(&Tile::ALL).remove(0).data;
            let allowed = |i: usize, g: f64| {
                let (v, r) = (balls[i].v, balls[i].radius(setup.policy.lambda));
                let room = 2.0 * output.ulp(v);
                output.round(v - r) - room <= g && g <= output.round(v + r) + room
            };
            let cols = O::open(case).expect("a case of the op").1[0].cols();
            let tied = if fault.slug == "activations_int8" {
                rows_with_ties(&case.tensors["x"])
            } else {
                BTreeSet::new()
            };
            let got = match Native::new(op).broken(fault.slug, &fault.key).run(case) {
                Ok(t) => t.to_f64(),
                Err(e) => {
                    report.differ.push(format!("{id}: {e}"));
                    continue;
                }
            };
            report.tried.insert(id.clone());
            if got.iter().zip(&right).any(|(a, b)| !same(*a, *b)) {
                report.visible.insert(id.clone());
            }
            // An overflow of f32 is an infinity, which f64 does not see.
            let want: Vec<f64> = want.iter().map(|w| f64::from(*w as f32)).collect();
            let finite = want.iter().filter(|x| x.is_finite());
            let scale = finite.fold(0.0, |m: f64, x| m.max(x.abs()));
            // Libraries' powf differ by an ulp, which a position of 9001 multiplies.
            let near = if op == "rope" { 1e-3 } else { 2e-5 };
            let off = |(i, (g, w)): &(usize, (&f64, &f64))| {
                let r = output.round(**w);
                !same(**g, r)
                    && ((**g - r).abs() > 2.0 * output.ulp(r) + near * scale || (**g - r).is_nan())
                    && !allowed(*i, **g)
                    && !tied.contains(&(i / cols))
            };
            let outside: Vec<_> = got.iter().zip(&want).enumerate().filter(off).collect();
            if let Some((i, (g, w))) = outside.first() {
                report.differ.push(format!(
                    "{id} on {}: {} of {} differ, first at {i}: native {g}, reference {w}",
                    self.label,
                    outside.len(),
                    want.len()
                ));
            }
        }
    }
}

/// Rows of activations that hold one which INT8, by the row or by blocks of 32, has to round at the
/// middle between two integers: f32 and f64 need not agree there.
fn rows_with_ties(x: &Tensor) -> BTreeSet<usize> {
    let (values, k) = (x.to_f64(), x.shape()[1]);
    let tie = |part: &[f64]| {
        let most = part.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let scaled = part.iter().map(|v| 127.0 * v / most);
        scaled.into_iter().any(|s| (s.abs().fract() - 0.5).abs() < 127.0 / f64::from(1 << 22))
    };
    let rows = values.chunks(k).enumerate();
    rows.filter(|(_, row)| tie(row) || row.chunks(32).any(tie)).map(|(r, _)| r).collect()
}

/// Where the two sides differ for a reason.
const KNOWN: &[(&str, &str)] = &[
    // The reference multiplies what is missing by 0, which a NaN or an infinity survives; a kernel that
    // does not visit it has none.
    ("k_tail_dropped", "reference NaN"),
    ("k_limit", "reference NaN"),
    ("k_range_dropped", "reference NaN"),
    ("k_strided", "reference NaN"),
    // Dynamic scaling: wrong positions give a wrong base too; the reference shifts the angles only.
    ("position_offset", "dynamic"),
    ("position_double_counted", "dynamic"),
    ("first_position_for_all", "dynamic"),
    ("position_wraps", "dynamic"),
    // The square of a gate beyond 2e19 overflows f32, and infinity by infinity is NaN.
    ("tanh_pade", "native NaN"),
    // A query whose only key is lost: 0 / 0 in a kernel; the reference leaves it that key.
    ("newest_key_dropped", "native NaN"),
    ("diagonal_key_dropped", "native NaN"),
    ("first_key_dropped", "native NaN"),
    // Scores of 9e4, which f32 knows to a percent only.
    ("attention", "key bias"),
    // fmax leaves a NaN out, so that what is not divided by a sum stays finite; the reference's maximum is NaN.
    ("softmax.maximum_not_subtracted", "reference NaN"),
    ("softmax.unnormalised", "reference NaN"),
    ("attention.maximum_floor", "reference NaN"),
    ("moe_route.sigmoid", "reference NaN"),
    ("moe_route.smallest_chosen", "reference NaN"),
    // The smallest probabilities of peaked logits are 0 in f32: ties among them, and 0 / 0 when normalised.
    ("moe_route.smallest_chosen", "native NaN"),
    // A row of zeros, or of squares that underflow f32, by its root without eps is 0 x infinity.
    ("wrong_eps (0e0)", "native NaN"),
    // A sum that overflows f32 is an infinity, which a store toward zero keeps.
    ("truncating_store", "native inf"),
];

/// Faults that need data with ties, NaN, infinities, subnormals, or scores beyond e^88 or all negative, which
/// `cases` does not have, or that only a second output shows. The families have them.
const INVISIBLE: &[&str] = &[
    "ties_away_store",
    "finite_mask",
    "masked_nan",
    "nan_ignored",
    "last_dropped",
    "straddle",
    "maximum_from_zero",
    "maximum_floor",
    "maximum_not_subtracted",
    "subnormals_flushed",
    "residual_normalised",
    "residual_not_updated",
];

#[track_caller]
fn faults_agree(cases: Vec<(String, Case)>) {
    let mut report = Report::default();
    for (label, case) in &cases {
        ops::visit(&case.op, Agree { case, label, report: &mut report });
    }
    report.differ.retain(|d| !KNOWN.iter().any(|(slug, how)| d.contains(slug) && d.contains(how)));
    let mut unseen: Vec<_> = report.tried.difference(&report.visible).collect();
    unseen.retain(|id| !INVISIBLE.iter().any(|slug| id.contains(slug)));
    assert!(
        report.differ.is_empty() && report.missing.is_empty() && unseen.is_empty(),
        "{} differ\n{}\nno native: {:#?}\nchanged nothing: {unseen:#?}",
        report.differ.len(),
        report.differ.join("\n"),
        report.missing
    );
}

/// Both sides were written apart: where they name a fault alike they must compute alike.
#[test]
fn faults_are_what_the_reference_says() {
    let labelled = |c: Case| (format!("{} {}", c.params, c.dtype), c);
    let all = ops::NAMES.iter().filter(|op| has(op)).flat_map(|op| cases(op)).map(labelled);
    faults_agree(all.collect());
}

#[test]
#[ignore = "minutes: every family's cases; cargo test --release -- --ignored family_faults"]
fn family_faults_are_what_the_reference_says() {
    let all = ops::NAMES.iter().filter(|op| has(op)).flat_map(|op| families::cases(op, 7));
    faults_agree(all.map(|g| (g.label.clone(), g.case)).collect());
}

/// Judges every fault of the catalogue on a case by itself.
struct Named<'a> {
    case: &'a Case,
    /// Faults that passed, and those that were caught under another name.
    report: &'a mut [Vec<String>; 2],
}

impl Visitor for Named<'_> {
    type Out = ();

    fn visit<O: Op>(self) {
        let (base, _) = O::open(self.case).expect("a case of the op");
        let right = Native::new(O::NAME).run(self.case).expect("runs");
        for fault in O::faults(&base.params, &self.case.tensors) {
            let native = Native::new(O::NAME).broken(fault.slug, &fault.key);
            let id = format!("{} {} ({})", O::NAME, fault.slug, fault.key);
            if native.run(self.case).is_ok_and(|o| o.bytes() == right.bytes()) {
                continue;
            }
            let verdict = judged(&native, std::slice::from_ref(self.case)).verdict;
            let text = format!("{verdict:?}");
            if verdict.is_pass() {
                self.report[0].push(id);
            } else if !text.contains(fault.slug) {
                self.report[1]
                    .push(format!("{id}: {}", text.chars().take(300).collect::<String>()));
            }
        }
    }
}

#[test]
#[ignore = "minutes: the judge on every fault; cargo test -p assay-verify --lib native -- --ignored"]
fn no_fault_passes_that_changes_the_output() {
    let mut report = [Vec::new(), Vec::new()];
    for case in ops::NAMES.iter().flat_map(|op| cases(op)) {
        ops::visit(&case.op, Named { case: &case, report: &mut report });
    }
    let [passed, others] = report;
    assert!(passed.is_empty(), "passed: {passed:#?}\ncaught as another: {others:#?}");
}

#[test]
fn unknown_choices_are_refused() {
    let c = &cases("add")[0];
    assert!(Native::new("add").with("knob", "value").run(c).is_err());
    assert!(Native::new("add").broken("no_such_fault", "").run(c).is_err());
    assert!(Native::new("softmax").run(c).is_err());
    assert!(implements("attention", "window_honoured", "window 8"));
    assert!(!implements("attention", "window_honoured", ""));
}
