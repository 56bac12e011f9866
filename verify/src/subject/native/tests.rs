//! Natives against hand-made examples, against the judge, and against the reference's faults.

use std::sync::Arc;

use assay_reference::ops::{self, Op, Scope, Setup, Tile, Visitor};
use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

use super::*;
use crate::families::{self, Generated};
use crate::judge::{Judgement, Observation, Options, Unseen, judge};

fn case(op: &str, params: Value, dtype: Dtype, tensors: Vec<(&str, Tensor)>) -> Case {
    Case {
        op: op.into(),
        params,
        dtype,
        tensors: tensors.into_iter().map(|(k, t)| (k.to_string(), t)).collect(),
        outputs: Default::default(),
        family: "by hand".into(),
        seed: 0,
    }
}

fn bf(shape: &[usize], v: &[f64]) -> Tensor {
    Tensor::from_f64(Dtype::Bf16, shape, v)
}

#[track_caller]
fn gives(native: &Native, case: &Case, want: &[f64]) {
    let got = native.run(case).expect("runs").to_f64();
    assert_eq!(got, want, "{native:?}");
}

#[test]
fn matmul_by_hand() {
    let x = bf(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]);
    let w = bf(&[2, 3], &[1.0, 0.0, -1.0, 2.0, 2.0, 2.0]);
    let tensors = vec![("x", x), ("weight", w), ("bias", bf(&[2], &[10.0, 20.0]))];
    let c = case("matmul", json!({}), Dtype::Bf16, tensors);
    let right = Native::new("matmul");
    gives(&right, &c, &[8.0, 32.0, 5.0, 27.0]);
    gives(&right.clone().broken("bias_dropped", ""), &c, &[-2.0, 12.0, -5.0, 7.0]);
    gives(&right.clone().broken("bias_by_row", ""), &c, &[8.0, 22.0, 15.0, 27.0]);
    gives(&right.clone().broken("k_tail_dropped", "tile 2"), &c, &[11.0, 26.0, 9.0, 19.0]);
    gives(&right.clone().broken("k_range_repeated", "last 2"), &c, &[5.0, 38.0, 1.0, 35.0]);
    gives(&right.clone().broken("k_strided", "even"), &c, &[10.0, 24.0, 10.0, 21.0]);
    // Memory 1 0 | -1 2 | 2 2 as [K, N].
    gives(&right.broken("weight_transposed", ""), &c, &[15.0, 30.0, 16.5, 29.0]);
}

#[test]
fn gptq_by_hand() {
    // Column n of word 0 holds q = 0..8 shifted by n; zeros 7 stored (8 in v1) and 3 (4).
    let word = |n: u32| (0..8).fold(0u32, |w, j| w | ((j + n) % 16) << (4 * j)) as i32;
    let words: Vec<i32> = (0..8).map(word).collect();
    let scales: Vec<f64> = (0..8).map(|n| 0.5 + n as f64).collect();
    let tensors = vec![
        ("qweight", Tensor::from_i32(&[1, 8], &words)),
        ("qzeros", Tensor::from_i32(&[1, 1], &[0x7777_7737])),
        ("scales", Tensor::from_f64(Dtype::F16, &[1, 8], &scales)),
    ];
    let params = json!({ "format": "v1", "group_size": -1 });
    let c = case("gptq_dequant", params, Dtype::Bf16, tensors);
    let zero = |n: usize| if n == 1 { 4.0 } else { 8.0 };
    let want = |k: usize, n: usize| ((k + n) as f64 - zero(n)) * scales[n];
    let all: Vec<f64> = (0..64).map(|i| want(i / 8, i % 8)).collect();
    gives(&Native::new("gptq_dequant"), &c, &all);
    let v2: Vec<f64> = (0..64).map(|i| want(i / 8, i % 8) + scales[i % 8]).collect();
    gives(&Native::new("gptq_dequant").broken("zero_without_plus_one", ""), &c, &v2);
}

#[test]
fn attention_by_hand() {
    // Equal scores: means of what is seen.
    let d = 4;
    let tensors = vec![
        ("q", bf(&[2, 1, d], &[0.0; 8])),
        ("k", bf(&[4, 1, d], &[1.0; 16])),
        ("v", bf(&[4, 1, d], &(0..16).map(|i| (i / 4 * 12) as f64).collect::<Vec<_>>())),
    ];
    let c = case("attention", json!({ "scale": 0.5 }), Dtype::Bf16, tensors);
    let rows = |a: f64, b: f64| [[a; 4], [b; 4]].concat();
    let right = Native::new("attention");
    gives(&right, &c, &rows(12.0, 18.0));
    for online in [1, 2, 3] {
        let chain = Chain { online: Some(online), ..Chain::PLAIN };
        gives(&right.clone().chained(chain), &c, &rows(12.0, 18.0));
    }
    gives(&right.clone().broken("mask_upper_left", ""), &c, &rows(0.0, 6.0));
    gives(&right.clone().broken("future_key_visible", ""), &c, &rows(18.0, 18.0));
    gives(&right.clone().broken("window_honoured", "window 2"), &c, &rows(18.0, 30.0));
    gives(&right.clone().broken("diagonal_key_dropped", ""), &c, &rows(6.0, 12.0));
    gives(&right.clone().broken("newest_key_dropped", ""), &c, &rows(12.0, 12.0));
    gives(&right.broken("splits_averaged", "2"), &c, &rows(15.0, 18.0));
}

/// The cases of an op that are quick to judge.
fn small(op: &str, elements: usize) -> Vec<Generated> {
    let size = |g: &Generated| g.case.tensors.values().map(Tensor::len).sum::<usize>();
    families::cases(op, 7).into_iter().filter(|g| size(g) <= elements).collect()
}

fn judged(native: &Native, cases: &[Generated], scope: Scope) -> Judgement {
    let observe = |g: &Generated| Observation {
        output: native.run(&g.case).expect("runs"),
        case: Arc::new(g.case.clone()),
        label: g.label.clone(),
        structured: g.structured,
    };
    let runs: Vec<Observation> = cases.iter().map(observe).collect();
    judge(native.op, &runs, Options { scope, unseen: Unseen::Nothing, preset: None })
        .expect("judges")
}

/// Every choice of every knob by itself, and all non-default choices together, each with the next of the
/// chains.
fn legitimate(op: &'static str) -> Vec<Native> {
    let chains = Native::legitimate_chains(op);
    let mut all = vec![Native::new(op)];
    for (knob, values) in knobs(op).into_iter().filter(|(k, _)| *k != "partials") {
        all.extend(values[1..].iter().map(|v| Native::new(op).with(knob, v)));
    }
    let others = knobs(op).into_iter().filter(|(k, _)| *k != "partials");
    let last = others.fold(Native::new(op), |n, (k, v)| n.with(k, v[v.len() - 1]));
    all.push(last);
    let n = all.len().max(chains.len());
    (0..n).map(|i| all[i % all.len()].clone().chained(chains[i % chains.len()])).collect()
}

#[track_caller]
fn all_pass(op: &'static str, elements: usize) {
    let cases = small(op, elements);
    assert!(!cases.is_empty());
    let mut failures = Vec::new();
    for native in legitimate(op) {
        let j = judged(&native, &cases, Scope::Framework);
        let explained = match &j.verdict {
            crate::judge::Verdict::Pass { conventions, .. } => {
                let want: Vec<String> =
                    native.conventions.iter().map(|(k, v)| format!("{k}={v}")).collect();
                want.is_empty() || !conventions.is_empty()
            }
            _ => false,
        };
        if !explained {
            failures.push(format!("{native:?}: {:?}", j.verdict));
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn legitimate_matmuls_pass() {
    all_pass("matmul", 2500);
}

#[test]
fn legitimate_gptq_dequants_pass() {
    all_pass("gptq_dequant", 600);
}

#[test]
fn legitimate_attentions_pass() {
    all_pass("attention", 16_000);
}

/// Compares a native fault with the reference's edit of the same name, on one case.
struct Agree<'a> {
    case: &'a Generated,
    report: &'a mut Report,
}

#[derive(Default)]
struct Report {
    /// Faults that the natives lack.
    missing: Vec<String>,
    /// Where the two do not compute the same.
    differ: Vec<String>,
    /// Faults that changed an output somewhere.
    visible: std::collections::BTreeSet<String>,
    /// Faults that were tried.
    tried: std::collections::BTreeSet<String>,
}

impl Visitor for Agree<'_> {
    type Out = ();

    fn visit<O: Op>(self) {
        let case = &self.case.case;
        let params = case.params::<O>().expect("params");
        let op = O::NAME;
        let right = Native::new(op).run(case).expect("runs").to_f64();
        for fault in O::faults(&params, &case.tensors) {
            let id = format!("{op}.{} ({})", fault.slug, fault.key);
            if !implements(op, fault.slug, &fault.key) {
                self.report.missing.push(id);
                continue;
            }
            let mut setup = Setup::<O> {
                params: params.clone(),
                policy: O::policy(case.dtype),
                tensors: case.tensors.clone(),
            };
            (fault.edit)(&mut setup);
            let want = setup.eval::<f64>(&Tile::ALL).remove(0).data;
            let output = setup.policy.output;
            let got = match Native::new(op).broken(fault.slug, &fault.key).run(case) {
                Ok(t) => t.to_f64(),
                Err(e) => {
                    self.report.differ.push(format!("{id}: {e}"));
                    continue;
                }
            };
            self.report.tried.insert(id.clone());
            let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
            if got.iter().zip(&right).any(|(a, b)| !same(*a, *b)) {
                self.report.visible.insert(id.clone());
            }
            let scale = want.iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
            let off = |(g, w): &(&f64, &f64)| {
                let r = output.round(**w);
                !same(**g, r) && !((**g - r).abs() <= 2.0 * output.ulp(r) + 2e-5 * scale)
            };
            let outside: Vec<_> =
                got.iter().zip(&want).enumerate().filter(|(_, p)| off(p)).collect();
            if let Some((i, (g, w))) = outside.first() {
                self.report.differ.push(format!(
                    "{id} on {}: {} of {} differ, first at {i}: native {g}, reference {w}",
                    self.case.label,
                    outside.len(),
                    want.len()
                ));
            }
        }
    }
}

/// Both sides were written apart: where they name a fault alike they must compute alike.
#[track_caller]
fn faults_agree(op: &str, elements: usize) {
    let mut report = Report::default();
    for case in &small(op, elements) {
        ops::visit(op, Agree { case, report: &mut report });
    }
    let unseen: Vec<_> = report.tried.difference(&report.visible).collect();
    report.missing.sort();
    report.missing.dedup();
    assert!(
        report.differ.is_empty() && report.missing.is_empty() && unseen.is_empty(),
        "{} differ\n{}\nno native: {:#?}\nchanged nothing: {unseen:#?}",
        report.differ.len(),
        report.differ.join("\n"),
        report.missing
    );
}

#[test]
#[ignore = "being looked into: see the report"]
fn matmul_faults_agree() {
    faults_agree("matmul", 5000);
}

#[test]
fn gptq_dequant_faults_agree() {
    faults_agree("gptq_dequant", 2000);
}

#[test]
#[ignore = "being looked into: see the report"]
fn attention_faults_agree() {
    faults_agree("attention", 40_000);
}
