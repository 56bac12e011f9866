//! The kernels, their controls and their mutants against plain f64 arithmetic.
//!
//! A coarse check that each edit does what it says; judging is another crate's work.

mod cases;
mod exact;
mod matrix;
mod probes;

use assay_hip::emu::{Compiler, Mode};
use assay_hip::{Backend, Kernel, LaunchOptions, Launched, Matrix, kernel, kernels, mutate};
use cases::TestCase;
use exact::Exact;

fn compile(source: &str, mode: Mode, matrix: Matrix) -> Backend {
    let compiler = Compiler::find().unwrap().with_cache(env!("CARGO_TARGET_TMPDIR"));
    compiler.with_matrix(matrix).compile(source, mode).unwrap().into()
}

fn run(kernel: &Kernel, backend: &Backend, test: &TestCase) -> Launched {
    let options = LaunchOptions { threads: 2, ..LaunchOptions::default() };
    (kernel.run)(backend, &test.case, &options).unwrap()
}

/// The largest error relative to what `allowed` gives for an element.
fn worst(launched: &Launched, test: &TestCase, allowed: impl Fn(&Exact) -> f64) -> f64 {
    let given: Vec<f64> = launched.outputs.iter().flat_map(|(_, output)| output.to_f64()).collect();
    assert_eq!(given.len(), test.exact.len());
    let errors = given.iter().zip(&test.exact).map(|(given, exact)| {
        let error = (given - exact.value).abs() / (allowed(exact) + 1e-30);
        if error.is_nan() { f64::INFINITY } else { error }
    });
    errors.fold(0.0, f64::max)
}

/// At most 1 for a kernel that accumulates in f32 and rounds once.
fn strict(launched: &Launched, test: &TestCase) -> f64 {
    worst(launched, test, |y| y.value.abs() * test.half_ulp + y.magnitude * test.f32_error)
}

/// At most 1 for a kernel that rounds some more.
fn lenient(launched: &Launched, test: &TestCase) -> f64 {
    worst(launched, test, |y| {
        (2.0 * y.value.abs() + y.magnitude) * test.half_ulp + y.magnitude * test.f32_error
    })
}

#[test]
fn kernels_are_right_to_the_last_bit_that_f32_accumulation_leaves() {
    for kernel in kernels() {
        for mode in [Mode::Plain, Mode::Checked] {
            let backend = compile(kernel.source, mode, Matrix::None);
            for test in cases::of(kernel.name) {
                let launched = run(kernel, &backend, &test);
                assert!(
                    launched.report.is_clean(),
                    "{} {}: {:?}",
                    kernel.name,
                    test.name,
                    launched.report
                );
                let worst = strict(&launched, &test);
                assert!(worst <= 1.0, "{} {}: error {worst}", kernel.name, test.name);
            }
        }
    }
}

#[test]
fn verdicts_hold_when_transcendentals_move_and_subnormals_vanish() {
    for kernel in kernels() {
        let backend = compile(kernel.source, Mode::Plain, Matrix::None);
        for test in cases::of(kernel.name) {
            for (ulps, ftz) in [(1, false), (2, false), (0, true)] {
                let options = LaunchOptions { ulps, ftz, ..LaunchOptions::default() };
                let launched = (kernel.run)(&backend, &test.case, &options).unwrap();
                let worst = strict(&launched, &test);
                assert!(worst <= 1.0, "{} {}: error {worst}", kernel.name, test.name);
            }
        }
    }
}

#[test]
fn the_order_and_number_of_threads_does_not_change_a_bit() {
    for kernel in kernels() {
        let backend = compile(kernel.source, Mode::Plain, Matrix::None);
        for test in cases::of(kernel.name) {
            let expected = run(kernel, &backend, &test).output().bytes().to_vec();
            for (seed, threads) in [(0, 1), (5, 3)] {
                let options = LaunchOptions { seed, threads, ..LaunchOptions::default() };
                let launched = (kernel.run)(&backend, &test.case, &options).unwrap();
                assert_eq!(launched.output().bytes(), expected, "{} {}", kernel.name, test.name);
            }
        }
    }
}

#[test]
fn every_anchor_occurs_once_and_every_name_too() {
    for kernel in kernels() {
        let edits = kernel.mutants.iter().map(|mutant| &mutant.edit).chain(&kernel.controls);
        let mut names: Vec<&str> = edits.clone().map(|edit| edit.name.as_str()).collect();
        for edit in edits {
            let edited =
                mutate(kernel.source, edit).unwrap_or_else(|e| panic!("{}: {e}", kernel.name));
            assert_ne!(edited, kernel.source, "{} {}", kernel.name, edit.name);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{}: a name is used twice", kernel.name);
    }
}

#[test]
fn a_quarter_of_the_controls_is_clean_and_legitimate() {
    controls_are_clean(4);
}

#[test]
#[ignore = "minutes of compiling: cargo test -p assay-hip --test kernels -- --ignored"]
fn all_controls_are_clean_and_legitimate() {
    controls_are_clean(1);
}

/// Every `step`-th control of each kernel, of the next kernel from another one on.
fn controls_are_clean(step: usize) {
    // These round where the kernel does not.
    let conventions = [
        "bias_after_rounding",
        "p_bf16",
        "scale_bf16",
        "product_f16",
        "silu_stored",
        "normalised_stored",
        "residual_f32",
        "normed_stored",
        "table_stored",
        "weight_f32",
        "partials_bf16",
    ];
    for (index, kernel) in kernels().iter().enumerate() {
        for control in kernel.controls.iter().skip(index % step).step_by(step) {
            let source = mutate(kernel.source, control).unwrap();
            for mode in [Mode::Plain, Mode::Checked] {
                let backend = compile(&source, mode, control.matrix);
                for test in cases::of(kernel.name) {
                    let launched = run(kernel, &backend, &test);
                    let what = format!("{} {} {}", kernel.name, control.name, test.name);
                    assert!(launched.report.is_clean(), "{what}: {:?}", launched.report);
                    let is_convention = conventions.contains(&control.name.as_str())
                        || rounds_probs(kernel, control.matrix);
                    let measure = if is_convention { lenient } else { strict };
                    let worst = measure(&launched, &test);
                    assert!(worst <= 1.0, "{what}: error {worst}");
                }
            }
        }
    }
}

/// Attention with matrix instructions rounds P to bf16, as their operand.
fn rounds_probs(kernel: &Kernel, matrix: Matrix) -> bool {
    kernel.op == "attention" && matrix != Matrix::None
}

/// Whether the mutant shows as it should on at least one case.
fn is_found(kernel: &Kernel, (source, matrix): (&str, Matrix), expect: &str) -> bool {
    if expect == "attention.masked_nan" {
        return masked_nan_leaks(kernel, (source, matrix));
    }
    let measure = if rounds_probs(kernel, matrix) { lenient } else { strict };
    let memory = expect.starts_with("memory.");
    let backend = compile(source, if memory { Mode::Checked } else { Mode::Plain }, matrix);
    cases::of(kernel.name).iter().any(|test| {
        let launched = run(kernel, &backend, test);
        if memory {
            launched.report.findings.iter().any(|finding| finding.code() == expect)
        } else {
            launched.report.is_clean() && measure(&launched, test) > 1.2
        }
    })
}

#[test]
fn a_part_of_the_mutants_shows() {
    mutants_show(10);
}

#[test]
#[ignore = "minutes of compiling: cargo test -p assay-hip --test kernels -- --ignored"]
fn all_mutants_show() {
    mutants_show(1);
}

/// Every `step`-th mutant of each kernel.
fn mutants_show(step: usize) {
    let mut missed = Vec::new();
    for kernel in kernels() {
        for mutant in kernel.mutants.iter().step_by(step) {
            let source = mutate(kernel.source, &mutant.edit).unwrap();
            if !is_found(kernel, (&source, mutant.edit.matrix), &mutant.expect) {
                missed.push(format!("{} {} ({})", kernel.name, mutant.edit.name, mutant.expect));
            }
        }
    }
    assert!(missed.is_empty(), "not shown: {missed:#?}");
}

#[test]
fn attention_is_right_over_thousands_of_keys() {
    let kernel = kernel("attention_prefill_d128").unwrap();
    let backend = compile(kernel.source, Mode::Plain, Matrix::None);
    let test = cases::long_attention();
    let launched = run(kernel, &backend, &test);
    assert!(launched.report.is_clean(), "{:?}", launched.report);
    let worst = strict(&launched, &test);
    assert!(worst <= 1.0, "error {worst}");
}

#[test]
fn what_is_masked_does_not_reach_attentions_output() {
    let kernel = kernel("attention_prefill_d128").unwrap();
    for &matrix in kernel.builds() {
        assert!(!masked_nan_leaks(kernel, (kernel.source, matrix)), "{matrix}");
    }
}

/// Whether a NaN in the last key and value changes what queries before the last give.
fn masked_nan_leaks(kernel: &Kernel, (source, matrix): (&str, Matrix)) -> bool {
    let backend = compile(source, Mode::Plain, matrix);
    let mut test = cases::of(kernel.name).swap_remove(1);
    let clean = run(kernel, &backend, &test).output().bytes().to_vec();
    // The last key is visible to the last query only.
    for name in ["k", "v"] {
        let tensor = test.case.tensors[name].clone();
        let last_row = tensor.len() - tensor.len() / tensor.shape()[0];
        let poisoned = tensor.map(|i, x| if i < last_row { x } else { f64::NAN });
        test.case.tensors.insert(name.to_owned(), poisoned);
    }
    let poisoned = run(kernel, &backend, &test).output().clone();
    let visible = clean.len() - clean.len() / poisoned.shape()[0];
    assert!(poisoned.to_f64()[visible / 2..].iter().all(|x| x.is_nan()));
    poisoned.bytes()[..visible] != clean[..visible]
}
