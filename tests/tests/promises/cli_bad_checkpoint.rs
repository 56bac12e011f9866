//! A damaged checkpoint is refused before anything runs: one paragraph that names the file and the
//! tensor, exit code 2, whatever the command.

use assay_reference::{Dtype, Tensor};
use assay_tests::damage::{Copy, entries};
use assay_tests::{cli, golden};
use serde_json::json;

const FILE: &str = "model.safetensors";
const NORM: &str = "model.layers.1.post_attention_layernorm.weight";

/// Both commands that read a checkpoint refuse this one, and leave it as it is.
#[track_caller]
fn refused(copy: &Copy, named: &[&str]) {
    let before = entries(copy.path());
    let out = tempfile::tempdir().expect("a temporary folder");
    let trace = out.path().join("trace");
    let model = copy.path().as_os_str();
    let run = ["--ids", "1,2", "--generate", "1", "--trace"].map(AsRef::as_ref);
    cli::refused(["run".as_ref(), model].into_iter().chain(run).chain([trace.as_os_str()]), named);
    let json = out.path().join("report.json");
    let recorded = golden::path("traces/tiny-qwen3/bf16");
    let diff = ["diff".as_ref(), model, recorded.as_os_str(), "--json".as_ref(), json.as_os_str()];
    cli::refused(diff, named);
    assert_eq!(entries(copy.path()), before);
    assert!(entries(out.path()).is_empty(), "something was written: {:?}", entries(out.path()));
}

fn tiny() -> Copy {
    Copy::of("checkpoints/tiny-qwen3")
}

#[test]
fn a_truncated_shard() {
    let copy = Copy::of("checkpoints/tiny-qwen2");
    copy.bytes("model-00002-of-00002.safetensors", |b| b.truncate(b.len() - 100));
    refused(&copy, &["model-00002-of-00002.safetensors"]);
}

#[test]
fn bytes_after_the_last_tensor() {
    let copy = tiny();
    copy.bytes(FILE, |b| b.extend([0; 16]));
    refused(&copy, &[FILE]);
}

#[test]
fn a_header_longer_than_the_file() {
    for length in [u64::MAX, 1 << 40, 3_000_000] {
        let copy = tiny();
        copy.bytes(FILE, |b| b[..8].copy_from_slice(&length.to_le_bytes()));
        refused(&copy, &[FILE]);
    }
}

#[test]
fn a_file_too_short_for_a_header() {
    for n in [0, 7, 8, 20] {
        let copy = tiny();
        copy.bytes(FILE, |b| b.truncate(n));
        refused(&copy, &[FILE]);
    }
}

#[test]
fn overlapping_offsets() {
    let copy = tiny();
    copy.header(FILE, |h| {
        let twin = h["model.layers.0.post_attention_layernorm.weight"]["data_offsets"].clone();
        h[NORM]["data_offsets"] = twin;
    });
    refused(&copy, &[FILE, "post_attention_layernorm.weight"]);
}

#[test]
fn offsets_outside_the_file() {
    for offsets in [json!([1u64 << 40, (1u64 << 40) + 384]), json!([384, 0]), json!([-384, 0])] {
        let copy = tiny();
        copy.header(FILE, |h| h[NORM]["data_offsets"] = offsets);
        refused(&copy, &[FILE]);
    }
}

#[test]
fn offsets_that_do_not_fit_the_shape() {
    let copy = tiny();
    copy.header(FILE, |h| h[NORM]["shape"] = json!([191]));
    refused(&copy, &[FILE, NORM]);
}

#[test]
fn a_dtype_that_is_unknown_or_no_floating_point() {
    for (dtype, shape) in [("F8_E5M2", 384), ("F8_E4M3", 384), ("I32", 96), ("Q4", 192)] {
        let copy = tiny();
        copy.header(FILE, |h| {
            h[NORM]["dtype"] = json!(dtype);
            h[NORM]["shape"] = json!([shape]);
        });
        refused(&copy, &[FILE, NORM]);
    }
}

#[test]
fn a_shape_that_the_config_contradicts() {
    let copy = tiny();
    copy.tensors(FILE, |t| {
        let norm = t[NORM].reshape(&[2, 96]).expect("the same elements");
        t.insert(NORM.into(), norm);
    });
    refused(&copy, &[FILE, NORM, "192"]);
}

#[test]
fn a_missing_tensor() {
    let copy = tiny();
    copy.tensors(FILE, |t| {
        t.remove(NORM);
    });
    refused(&copy, &[NORM]);
}

#[test]
fn a_tensor_that_nothing_reads() {
    let copy = tiny();
    copy.tensors(FILE, |t| {
        let bias = Tensor::from_f64(Dtype::Bf16, &[512], &[0.5; 512]);
        t.insert("model.layers.0.self_attn.q_proj.bias".into(), bias);
    });
    refused(&copy, &[FILE, "model.layers.0.self_attn.q_proj.bias"]);
}

#[test]
fn a_weight_that_is_not_finite_stops_a_run() {
    let copy = tiny();
    copy.tensors(FILE, |t| {
        let norm = t[NORM].map(|i, v| if i == 7 { f64::NAN } else { v });
        t.insert(NORM.into(), norm);
    });
    let args = ["run".as_ref(), copy.path().as_os_str(), "--ids".as_ref(), "1".as_ref()];
    cli::refused(args, &[FILE, NORM]);
}

#[test]
fn a_config_that_is_no_json() {
    let copy = tiny();
    copy.bytes("config.json", |b| b.truncate(b.len() / 2));
    refused(&copy, &["config.json"]);
}

#[test]
fn a_config_without_what_must_not_be_guessed() {
    for field in ["rms_norm_eps", "head_dim", "num_key_value_heads", "hidden_act", "vocab_size"] {
        let copy = tiny();
        copy.json("config.json", |c| {
            c.remove(field);
        });
        let run = cli::assay(
            ["run".as_ref(), copy.path().as_os_str()]
                .into_iter()
                .chain(["--ids", "1", "--generate", "1"].map(AsRef::as_ref)),
        );
        // head_dim has a rule of its own: the weights' shapes may settle it.
        if run.code != 0 {
            refused(&copy, &["config.json", field]);
        } else {
            assert_eq!(field, "head_dim", "{run:#?}");
        }
    }
}

#[test]
fn an_architecture_that_is_not_known() {
    let copy = tiny();
    copy.json("config.json", |c| {
        c["architectures"] = json!(["LlamaForCausalLM"]);
        c["model_type"] = json!("llama");
    });
    refused(&copy, &["config.json", "LlamaForCausalLM"]);
}

#[test]
fn a_folder_that_is_not_there() {
    let nowhere = golden::path("checkpoints/no-such-model");
    for args in [vec!["run", "--ids", "1"], vec!["diff"]] {
        let trace = golden::path("traces/tiny-qwen3/bf16");
        let mut all: Vec<std::ffi::OsString> = args.iter().map(Into::into).collect();
        all.insert(1, nowhere.clone().into());
        if args[0] == "diff" {
            all.push(trace.into());
        }
        cli::refused(all, &["no-such-model"]);
    }
}

#[test]
fn a_folder_without_weights() {
    let copy = tiny();
    std::fs::remove_file(copy.file(FILE)).expect("removed");
    refused(&copy, &["safetensors"]);
}
