//! A failing case is kept, repeated and made smaller.

use std::path::Path;

use assay_hip::{Kernel, Matrix, kernel, mutate};
use assay_reference::Tensor;

use super::{Bench, Replay, capture, shrink};
use crate::families::Generated;
use crate::judge::{Unseen, Verdict};

/// The source of a mutant or control.
fn edited(kernel: &Kernel, name: &str) -> String {
    let mutants = kernel.mutants.iter().map(|m| &m.edit);
    let edit = mutants.chain(&kernel.controls).find(|e| e.name == name).expect("an edit");
    mutate(kernel.source, edit).expect("its anchor is there")
}

/// Captures and shrinks what a mutant of `name` shows as `finding`.
fn shrunk(kernel_name: &str, name: &str, finding: &str) -> (Replay, Generated) {
    let kernel = kernel(kernel_name).expect("a kernel");
    let bench = Bench::emulated(kernel, &edited(kernel, name), Matrix::None).expect("compiles");
    let replay = capture(&bench, finding, 1).expect("runs").expect("a case shows it");
    assert_eq!(replay.finding.as_deref(), Some(finding));
    let (options, checked) = (replay.options.clone(), replay.checked);
    let of = |g: &Generated| bench.try_case(g, &options, checked).ok().and_then(|t| t.finding());
    let small = shrink(&replay.generated(), |g| of(g).as_deref() == Some(finding))
        .expect("something smaller fails");
    assert!(small.tried <= 301, "{}", small.tried);
    assert_eq!(of(&small.case).as_deref(), Some(finding), "{}", small.case.label);
    // The sound kernel is right on the same case.
    let sound = Bench::emulated(kernel, kernel.source, Matrix::None).expect("compiles");
    let trial = sound.try_case(&small.case, &options, checked).expect("within the contract");
    assert!(trial.finding().is_none(), "{:?}", trial.judgement);
    (replay, small.case)
}

fn shape<'a>(g: &'a Generated, name: &str) -> &'a [usize] {
    g.case.tensors[name].shape()
}

/// The row that a tile's mask forgets needs rows beyond it, and no columns.
#[test]
fn a_lost_k_tail_shrinks_to_one_row_and_column_with_plain_values() {
    let (replay, small) = shrunk("gemm_bf16", "k_tail_dropped", "matmul.k_tail_dropped");
    let [m, n] = [shape(&small, "x")[0], shape(&small, "weight")[0]];
    assert!(m * n <= 2, "{m}x{n}");
    assert!(shape(&small, "x")[1] <= replay.case.tensors["x"].shape()[1]);
    assert!(!small.case.tensors.contains_key("bias"));
    let plain = |name: &str| small.case.tensors[name].to_f64().iter().all(|v| v.abs() <= 3.0);
    assert!(plain("x") && plain("weight"), "{:?}", small.case.tensors);
}

#[test]
fn a_wrong_zero_point_shrinks_to_one_word() {
    let (_, small) =
        shrunk("gptq_dequant", "zero_without_plus_one", "gptq_dequant.zero_without_plus_one");
    assert_eq!(shape(&small, "qweight"), [1, 8]);
}

/// The case says f32, and the kernel stores i32.
#[test]
fn a_failing_argmax_is_captured() {
    let argmax = kernel("argmax").expect("a kernel");
    let bench =
        Bench::emulated(argmax, &edited(argmax, "last_dropped"), Matrix::None).expect("compiles");
    let replay = capture(&bench, "argmax.last_dropped", 1).expect("runs").expect("a case shows it");
    let judged = replay.judge(Unseen::Nothing).expect("judged");
    let findings = judged[0].1.verdict.findings();
    assert_eq!(findings[0].name, "argmax.last_dropped", "{findings:#?}");
}

#[test]
fn a_saved_case_is_read_back_and_judged_as_it_was() {
    let gptq = kernel("gptq_dequant").expect("a kernel");
    let source = edited(gptq, "zero_without_plus_one");
    let bench = Bench::emulated(gptq, &source, Matrix::None).expect("compiles");
    let wanted = "gptq_dequant.zero_without_plus_one";
    let mut replay = capture(&bench, wanted, 2).expect("runs").expect("a case shows it");
    replay.matrix = Matrix::Mmac;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("case.safetensors");
    replay.write(&path).expect("written");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
    let read = Replay::read(&path).expect("read");
    assert_eq!(read, replay);
    assert_eq!(read.source.as_deref(), Some(source.as_str()));
    let judged = read.judge(Unseen::Applicable).expect("judged");
    let names: Vec<&str> = judged.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["output"]);
    let first = judged[0].1.verdict.findings().first().map(|f| f.name.clone());
    assert_eq!(first.as_deref(), Some(wanted));
    // The sound kernel on the same file.
    let sound = Bench::emulated(gptq, gptq.source, Matrix::None).expect("compiles");
    let trial = sound.try_case(&read.generated(), &read.options, read.checked).expect("runs");
    assert!(matches!(trial.judgement.verdict, Verdict::Pass { .. }), "{:?}", trial.judgement);
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_its_key() {
    let mut replay = {
        let g = crate::families::cases("gptq_dequant", 1).pop().expect("cases");
        let gptq = kernel("gptq_dequant").expect("a kernel");
        Bench::emulated(gptq, gptq.source, Matrix::None).expect("compiles").replay(
            &g,
            &Default::default(),
            false,
        )
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("case.safetensors");
    let refused = |path: &Path| format!("{:#}", Replay::read(path).expect_err("refused"));

    let sound = replay.options.clone();
    type Edit = fn(&mut assay_hip::LaunchOptions);
    let edits: [(&str, Edit); 4] = [
        ("fill", |o| o.fill.clear()),
        ("threads", |o| o.threads = 0),
        ("ulps", |o| o.ulps = u32::MAX),
        ("deadline", |o| o.deadline = std::time::Duration::MAX),
    ];
    for (what, edit) in edits {
        replay.options = sound.clone();
        edit(&mut replay.options);
        replay.write(&path).expect("written");
        let error = refused(&path);
        assert!(error.contains("replay.options") && error.contains(what), "{error}");
    }
    let write = |key: &str, text: &str| {
        let more = [(key.to_string(), text.to_string())].into();
        replay.case.write_with(&path, &more).expect("written");
        refused(&path)
    };
    assert!(write("replay.matrix", "wmma").contains("`replay.matrix`: expected `none`, `mfma`"));
    assert!(write("replay.structured", "maybe").contains("`replay.structured`: expected `true`"));
    assert!(write("replay.options", "{\"seed\":").contains("replay.options"));
    std::fs::write(&path, "no safetensors").expect("written");
    assert!(refused(&path).contains("case.safetensors"));
    assert!(replay.case.write_with(&path, &[("op".into(), "x".into())].into()).is_err());

    // An output of another shape, dtype or name than the op gives is no judgement.
    let mut wrong = |name: &str, tensor| {
        replay.set_outputs([(name.to_string(), tensor)]);
        format!("{:#}", replay.judge(Unseen::Nothing).expect_err(name))
    };
    let dtype = crate::families::cases("gptq_dequant", 1).pop().expect("cases").case.dtype;
    assert!(wrong("output", Tensor::from_f64(dtype, &[3], &[0.0; 3])).contains("[3]"));
    assert!(wrong("output", Tensor::from_i32(&[1], &[0])).contains("got i32"));
    assert!(wrong("residual", Tensor::from_f64(dtype, &[1], &[0.0])).contains("it has output"));
}
