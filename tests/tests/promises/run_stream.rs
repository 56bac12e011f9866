//! A model that is larger than memory runs with one layer of it in memory, to the same bits; and the bits do
//! not depend on the instructions.

use std::process::{Command, Stdio};

use assay_tests::damage::Copy;
use assay_tests::{cli, golden};
use serde_json::Value;

/// What a run gives, without its times.
fn runs(isa: &str, stream: &str, model: &std::path::Path) -> Value {
    let args = ["--ids", "5,3,7,1", "--generate", "3", "--logprobs", "4", "--json", "-"];
    let out = Command::new(cli::binary())
        .arg("run")
        .arg(model)
        .args(args)
        .args(["--stream", stream])
        .env("ASSAY_ISA", isa)
        .output()
        .expect("assay starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    report["runs"].clone()
}

#[test]
fn streamed_and_by_other_instructions_the_bits_are_the_same() {
    for name in ["trained-qwen3", "gptq-qwen3", "moe-qwen3"] {
        let model = golden::path("checkpoints").join(name);
        let whole = runs("", "never", &model);
        assert!(whole[0]["tokens"].is_array() || whole[0]["ids"].is_array(), "{whole:#}");
        assert_eq!(whole, runs("", "always", &model), "{name}");
        assert_eq!(whole, runs("scalar", "always", &model), "{name}");
    }
}

#[test]
fn instructions_that_are_not_there_are_refused() {
    let model = golden::path("checkpoints").join("trained-qwen3");
    let missing = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    for (isa, named) in [("sse9", "avx512"), (missing, "this CPU has no")] {
        let out = Command::new(cli::binary())
            .args(["run", "--ids", "1"])
            .arg(&model)
            .env("ASSAY_ISA", isa)
            .output()
            .expect("assay starts");
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains("ASSAY_ISA") && text.contains(named), "{text}");
    }
}

/// Weights that are not finite are found although they are looked at only when they are used.
#[test]
fn a_nan_is_named_by_a_streamed_run() {
    let copy = Copy::of("checkpoints/tiny-qwen3");
    let name = "model.layers.1.mlp.up_proj.weight";
    copy.tensors("model.safetensors", |tensors| {
        let bad = tensors[name].map(|i, x| if i == 7 { f64::NAN } else { x });
        tensors.insert(name.into(), bad);
    });
    let model = copy.path().to_str().expect("UTF-8");
    let args = ["run", model, "--ids", "1,2", "--stream", "always"];
    for ranks in [&[][..], &["--tp", "2"]] {
        cli::refused(args.iter().chain(ranks), &[name, "NaN at element 7"]);
    }
}

/// 5 GB of holes in the shape of Qwen3-8B with six layers: a layer is 386 MB, the head 1245 MB.
#[test]
fn memory_holds_less_than_a_layer() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("large");
    let model = dir.to_str().expect("UTF-8");
    let made = cli::assay(["make-model", "Qwen3-8B", model, "--sparse", "--layers", "6"]);
    assert_eq!(made.code, 0, "{made:#?}");
    let mut command = Command::new(cli::binary());
    command.args(["run", model, "--ids", "1,2,3", "--generate", "0", "--stream", "always"]);
    let (code, most) = cli::watched(command.stdout(Stdio::null()).stderr(Stdio::null()));
    // Weights of zeros give logits that are all equal.
    assert_eq!(code, 1);
    assert!(most < 400 * 1024, "{most} KiB");
}
