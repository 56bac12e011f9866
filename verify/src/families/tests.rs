//! What all families promise: valid cases, told apart by their labels, the same for a seed, on which a
//! right implementation passes.

use std::collections::BTreeSet;
use std::sync::Arc;

use assay_reference::ops::{self, Erased, Op, OutSpec, Scope, Tensors, Tile};
use assay_reference::{Case, Dtype, Tensor};

use super::{
    COINCIDE, Generated, cases, describe, examples_of, power_cases, separates, within_contracts,
};
use crate::judge::{Observation, Options, Unseen, Verdict, judge_output, shown};

fn valid_and_told_apart(op: &str, all: &[Generated]) {
    assert!(!all.is_empty(), "{op} has no cases");
    let mut labels = BTreeSet::new();
    for g in all {
        Erased::open(&g.case).unwrap_or_else(|e| panic!("{op} {}: {e}", g.label));
        assert!(labels.insert(&g.label), "{op}: {} is there twice", g.label);
    }
    let names: BTreeSet<&str> = all.iter().map(|g| g.case.family.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["exact", "outlier", "special", "unit"]), "{op}");
}

#[test]
fn small_cases_are_valid_and_told_apart() {
    ops::NAMES.iter().for_each(|op| valid_and_told_apart(op, &power_cases(op, 3)));
}

#[test]
#[ignore = "draws some 30 million values: cargo test -p assay-verify --lib families -- --ignored"]
fn all_cases_are_valid_and_told_apart() {
    ops::NAMES.iter().for_each(|op| valid_and_told_apart(op, &cases(op, 3)));
}

/// What a pass of a kernel does not list as unseen is what the kernel does not take.
#[test]
fn only_examples_that_every_kernel_refuses_are_left_out() {
    let mut left_out = 0;
    for kernel in assay_hip::kernels() {
        for (params, tensors) in examples_of(kernel.op) {
            if within_contracts(kernel.op, &params, &tensors) {
                continue;
            }
            let (op, family, outputs) = (kernel.op.into(), "unit".into(), Tensors::new());
            let case = Case { op, params, dtype: Dtype::Bf16, tensors, outputs, family, seed: 0 };
            let refused = kernel.accepts(&case);
            let refused_by_name = matches!(refused, Err(assay_hip::Error::Argument { .. }));
            assert!(refused_by_name, "{}: {} {refused:?}", kernel.name, case.params);
            left_out += 1;
        }
    }
    assert!(left_out > 10, "{left_out}");
}

#[test]
fn a_seed_gives_the_same_cases_and_another_one_others() {
    let values = |seed: u64| power_cases("rms_norm", seed).into_iter().map(|g| g.case.tensors);
    assert!(values(3).eq(values(3)));
    assert!(!values(3).eq(values(4)));
}

/// What the reference stores in f32, by output.
fn right(g: &Generated) -> Vec<(&'static str, Tensor)> {
    let (setup, outputs) = Erased::open(&g.case).expect("a valid case");
    let out = setup.eval::<f32>(&Tile::ALL);
    let stored = |(i, spec): (usize, OutSpec)| {
        let rounding = Erased::rounding(&setup.params, &setup.policy, i);
        let data: Vec<f64> = out[i].data.iter().map(|x| rounding.round(f64::from(*x))).collect();
        (spec.name, Tensor::from_f64(rounding.dtype, &spec.shape, &data))
    };
    outputs.into_iter().enumerate().map(stored).collect()
}

#[test]
fn the_reference_in_f32_passes_on_small_cases() {
    let size = |g: &Generated| g.case.tensors.values().map(Tensor::len).sum::<usize>();
    for op in ops::NAMES {
        for g in power_cases(op, 5).into_iter().filter(|g| size(g) < 3_000) {
            for (name, output) in right(&g) {
                let run = Observation {
                    case: Arc::new(g.case.clone()),
                    output,
                    label: g.label.clone(),
                    structured: g.structured,
                };
                let options = Options {
                    scope: Scope::Kernel,
                    unseen: Unseen::Nothing,
                    preset: None,
                    known: None,
                };
                let verdict = judge_output(op, name, &[run], options).expect("a run").verdict;
                let vague = matches!(verdict, Verdict::IllConditioned { .. })
                    && ["beyond f16", "tied"].iter().any(|w| g.label.contains(w));
                assert!(verdict.is_pass() || vague, "{op} {}: {verdict:?}", g.label);
            }
        }
    }
}

/// The faults that examples of an op have and that no family of it says that it separates; each family
/// is held to what it says.
fn unstated(op: &str) -> BTreeSet<&'static str> {
    let all = power_cases(op, 1);
    let mut catalogue: BTreeSet<&str> = BTreeSet::new();
    for (params, tensors) in examples_of(op) {
        let params = Erased::parse(op, &params).expect("params of the op");
        catalogue.extend(Erased::faults(&params, &tensors).iter().map(|f| f.slug));
    }
    for info in describe(op) {
        let mut own = all.clone();
        own.retain(|g| g.case.family == info.name);
        assert!(!own.is_empty(), "{op} has no family {}", info.name);
        let separated = separates(op, &own).expect("cases of the op");
        let wrong: Vec<_> = info.separates.iter().filter(|s| !separated.contains(s)).collect();
        assert!(wrong.is_empty(), "{op} {} does not separate {wrong:?}", info.name);
        catalogue.retain(|slug| !info.separates.contains(slug));
    }
    catalogue
}

/// Each op's families together show its whole catalogue, and each shows what it says.
fn families_separate_what_they_say(ops: impl Iterator<Item = &'static &'static str>) {
    for op in ops {
        let own = COINCIDE.iter().filter(|c| c.op == *op && c.under.is_none());
        let never: BTreeSet<&str> = own.map(|c| c.slug).collect();
        assert_eq!(unstated(op), never, "{op}: what no family says that it separates");
    }
}

/// Ops whose cases cost more to evaluate under all conventions.
const SLOW: [&str; 6] =
    ["attention", "attention_paged", "gptq_gemm", "awq_gemm", "ct_gemm", "fp8_gemm"];

#[test]
fn families_of_most_ops_separate_what_they_say() {
    families_separate_what_they_say(ops::NAMES.iter().filter(|op| !SLOW.contains(op)));
}

#[test]
#[ignore = "20 s: cargo test -p assay-verify --lib families -- --ignored"]
fn families_of_every_op_separate_what_they_say() {
    families_separate_what_they_say(ops::NAMES.iter());
}

/// Prints what no family shows, for whoever adds a fault.
#[test]
#[ignore = "a listing: cargo test -p assay-verify --lib what_families_show -- --ignored --nocapture"]
#[expect(clippy::print_stdout, reason = "the listing is the point")]
fn what_families_show() {
    for op in ops::NAMES {
        let all = power_cases(op, 1);
        let start = std::time::Instant::now();
        let shown = shown(op, &all, Scope::Kernel).expect("cases of the op");
        let hidden: Vec<&str> =
            shown.iter().filter(|s| !s.shown).map(|s| s.name.as_str()).collect();
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{op}: {} cases, {} faults, {seconds:.1} s, hidden {hidden:?}",
            all.len(),
            shown.len()
        );
        for family in ["exact", "outlier", "special", "unit"] {
            let own: Vec<Generated> =
                all.iter().filter(|g| g.case.family == family).cloned().collect();
            let by_family = separates(op, &own);
            println!("    {family}: {:?}", by_family);
        }
    }
}
