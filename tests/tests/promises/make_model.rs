//! `assay make-model` writes checkpoints that the readers take: seeded, in shards, sparse, shortened; whole or not at all.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use assay_reference::checkpoint::{Checkpoint, Config, Files};
use assay_reference::{Dtype, Tensor};
use assay_tests::cli::{self, Run};
use assay_tests::damage::entries;
use assay_tests::golden;
use assay_verify::audit::{Options, audit};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A config of three small layers, in the current spelling and with every field that speaks of single layers.
fn config() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 1, "vocab_size": 97,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": false, "max_position_embeddings": 64, "dtype": "bfloat16", "eos_token_id": 96,
        "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2,
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
    })
}

/// A place with `my.json`.
fn place() -> TempDir {
    let place = tempfile::tempdir().expect("a folder");
    fs::write(place.path().join("my.json"), config().to_string()).expect("written");
    place
}

fn line(place: &Path, args: &[&str], dir: &str) -> Vec<OsString> {
    let mut all = vec![OsString::from("make-model")];
    all.extend(args.iter().map(OsString::from));
    all.push(place.join(dir).into());
    all
}

/// `assay make-model --config my.json ARGS.. DIR`.
fn own(place: &Path, args: &[&str], dir: &str) -> Vec<OsString> {
    let file = place.join("my.json");
    let args = [&["--config", file.to_str().expect("UTF-8")], args].concat();
    line(place, &args, dir)
}

#[track_caller]
fn made(line: Vec<OsString>) -> Run {
    let run = cli::assay(line);
    assert_eq!(run.code, 0, "{run:#?}");
    run
}

/// The bytes of every file of a folder.
fn bytes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |(name, _)| {
        let bytes = fs::read(dir.join(&name)).expect("a file");
        (name, bytes)
    };
    entries(dir).into_iter().map(read).collect()
}

/// The tensors of a folder, without its config.
fn tensors(dir: &Path) -> BTreeMap<String, Tensor> {
    let files = Files::open(dir).expect("weights");
    let names: Vec<String> = files.names().map(str::to_owned).collect();
    names.into_iter().map(|n| (n.clone(), files.get(&n).cloned().expect("a tensor"))).collect()
}

#[test]
fn what_is_written_opens_runs_and_is_sound() {
    let place = place();
    for (dtype, stored) in [("bf16", Dtype::Bf16), ("f16", Dtype::F16), ("f32", Dtype::F32)] {
        let dir = place.path().join(dtype);
        let run = made(own(place.path(), &["--dtype", dtype], dtype));
        assert!(run.stdout.contains("seed 0") && run.stdout.contains("no tokenizer"), "{run:#?}");
        let checkpoint = Checkpoint::open(&dir).expect("a checkpoint");
        assert_eq!(checkpoint.warnings().len(), 0, "{:?}", checkpoint.warnings());
        assert_eq!(Config::open(&dir).expect("a config").dtype, stored);
        let report = audit(&dir, Options { data: true, hash: false }, &mut |_, _, _| {});
        let report = report.expect("an audit");
        assert_eq!(report.findings, [], "{dtype}");
        let ids = ["--ids", "1,2,3,4,5,6,7,8,9,10", "--generate", "3", "--json", "-"];
        let run = cli::assay([&["run", dir.to_str().expect("UTF-8")], &ids[..]].concat());
        assert_eq!(run.code, 0, "{run:#?}");
    }
}

#[test]
fn every_architecture_and_either_spelling_is_made() {
    let place = tempfile::tempdir().expect("a folder");
    for name in ["tiny-qwen3", "moe-qwen3", "moe-norm-qwen3", "window-qwen2", "linear-qwen3"] {
        let file = golden::path("checkpoints").join(name).join("config.json");
        made(line(place.path(), &["--config", file.to_str().expect("UTF-8")], name));
        let dir = place.path().join(name);
        Checkpoint::open(&dir).expect("a checkpoint");
        let report = audit(&dir, Options { data: true, hash: false }, &mut |_, _, _| {});
        assert_eq!(report.expect("an audit").findings, [], "{name}");
    }
}

#[test]
fn equal_seeds_give_equal_bytes_on_any_number_of_threads() {
    let place = place();
    let at = |dir: &str| bytes(&place.path().join(dir));
    made(own(place.path(), &["--threads", "1"], "one"));
    made(own(place.path(), &["--threads", "3"], "three"));
    made(own(place.path(), &["--seed", "1"], "other"));
    assert_eq!(at("one"), at("three"));
    assert_eq!(at("one").keys().collect::<Vec<_>>(), ["config.json", "model.safetensors"]);
    let (one, other) = (tensors(&place.path().join("one")), tensors(&place.path().join("other")));
    for (name, tensor) in &one {
        assert_ne!(tensor.bytes(), other[name].bytes(), "{name}");
        let same = one.iter().find(|(n, t)| *n != name && t.bytes() == tensor.bytes());
        assert!(same.is_none(), "{name} is {same:?}");
    }
}

#[test]
fn shards_and_their_index_hold_the_same_tensors() {
    let place = place();
    made(own(place.path(), &[], "single"));
    let report = place.path().join("report.json");
    let json = ["--shard-size", "10KB", "--json", report.to_str().expect("UTF-8")];
    made(own(place.path(), &json, "several"));
    let dir = place.path().join("several");
    Checkpoint::open(&dir).expect("a checkpoint");
    let (one, all) = (tensors(&place.path().join("single")), tensors(&dir));
    assert!(one.keys().eq(all.keys()));
    assert!(one.iter().all(|(name, t)| t.bytes() == all[name].bytes()));
    let report: Value = serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
    let weights: Vec<(String, u64)> =
        entries(&dir).into_iter().filter(|(n, _)| n.ends_with(".safetensors")).collect();
    assert!(weights.len() > 2 && weights[0].0.starts_with("model-00001-of-0000"), "{weights:?}");
    let parameters: usize = one.values().map(Tensor::len).sum();
    let expected = json!({
        "command": "make_model", "result": "pass", "seed": 0, "dir": dir, "shape": place.path().join("my.json"),
        "architecture": "Qwen2ForCausalLM", "layers": 3, "dtype": "bf16", "sparse": false, "parameters": parameters,
        "bytes": weights.iter().map(|(_, n)| n).sum::<u64>(), "shards": weights.len(),
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&report[field], value, "{field}");
    }
}

#[test]
fn a_tensor_of_many_blocks_is_the_same_whatever_its_neighbours() {
    // 12 MB in f32: three blocks and a part, and no block of it begins where one of the other file does.
    let place = tempfile::tempdir().expect("a folder");
    let mut wide = config();
    wide["vocab_size"] = json!(125_001);
    fs::write(place.path().join("my.json"), wide.to_string()).expect("written");
    made(own(place.path(), &["--dtype", "f32", "--layers", "1"], "one"));
    made(own(place.path(), &["--dtype", "f32", "--layers", "1", "--shard-size", "1MB"], "many"));
    let (one, many) = (tensors(&place.path().join("one")), tensors(&place.path().join("many")));
    assert!(one.iter().all(|(name, t)| t.bytes() == many[name].bytes()));
    let head = &one["lm_head.weight"];
    let (first, last) = (head.get(0), head.get(head.len() - 1));
    assert!(first != 0.0 && last != 0.0 && first != last);
}

#[test]
fn the_first_layers_are_those_of_the_whole() {
    let place = place();
    made(own(place.path(), &[], "whole"));
    for n in [1usize, 2] {
        let dir = format!("first{n}");
        made(own(place.path(), &["--layers", &n.to_string()], &dir));
        let dir = place.path().join(dir);
        let config = fs::read(dir.join("config.json")).expect("a config");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        assert_eq!(config["num_hidden_layers"], n);
        assert_eq!(config["layer_types"].as_array().map(Vec::len), Some(n));
        assert_eq!(config["max_window_layers"], n);
        Checkpoint::open(&dir).expect("a checkpoint");
        let (whole, part) = (tensors(&place.path().join("whole")), tensors(&dir));
        assert!(part.len() < whole.len());
        assert!(part.iter().all(|(name, t)| t.bytes() == whole[name].bytes()));
    }
}

#[test]
fn a_sparse_32b_has_its_length_and_takes_no_space() {
    use std::os::unix::fs::MetadataExt;
    let place = tempfile::tempdir().expect("a folder");
    let run = made(line(place.path(), &["qwen/qwen3-32b", "--sparse"], "x"));
    assert!(run.stdout.contains("32.76B parameters") && run.stdout.contains("65.5"), "{run:#?}");
    let dir = place.path().join("x");
    let files = Files::open(&dir).expect("weights");
    Config::open(&dir).expect("a config");
    let read = |n: &str| files.get(n).expect("a tensor").shape().to_vec();
    assert_eq!(read("model.layers.63.mlp.down_proj.weight"), [5120, 25_600]);
    assert_eq!(read("lm_head.weight"), [151_936, 5120]);
    let about = |name: &str| fs::metadata(dir.join(name)).expect("a file");
    let (mut length, mut stored) = (0, 0);
    for (name, _) in entries(&dir).iter().filter(|(n, _)| n.ends_with(".safetensors")) {
        let about = about(name);
        assert!(about.len() < 5_001_000_000, "{name}");
        length += about.len();
        stored += about.blocks() * 512;
    }
    assert!((65_524_246_528..65_524_400_000).contains(&length), "{length}");
    assert!(stored < 10 << 20, "{stored}");
}

#[test]
fn shapes_are_listed_with_their_sizes() {
    let run = made(vec!["make-model".into(), "--list".into(), "--json".into(), "-".into()]);
    let report: Value = serde_json::from_str(&run.stdout).expect("nothing but JSON on stdout");
    assert_eq!(report["command"], "make_model_list");
    let shapes = report["shapes"].as_array().expect("shapes");
    assert!(shapes.len() >= 30);
    let of = |name: &str| shapes.iter().find(|s| s["shape"] == name).expect("a shape");
    assert_eq!(of("Qwen3-32B")["parameters"], 32_762_123_264u64);
    assert_eq!(of("Qwen3-0.6B")["layers"], 28);
    // Billions of weights in their names, and of those of mixtures the experts too.
    assert_eq!(of("Qwen3-30B-A3B")["parameters"].as_u64().map(|n| n / 100_000_000), Some(305));
    assert!(run.stderr.contains("DeepSeek-R1-Distill-Qwen-1.5B"), "{run:#?}");
}

#[test]
fn what_cannot_be_made_is_refused_and_nothing_is_left() {
    let place = place();
    let refused = |line: Vec<OsString>, named: &[&str]| cli::refused(line, named);
    refused(line(place.path(), &["Qwen3-23B"], "x"), &["`Qwen3-23B`", "Qwen3-32B", "--list"]);
    refused(own(place.path(), &["--layers", "4"], "x"), &["--layers 4", "3 layers"]);
    refused(own(place.path(), &["--layers", "0"], "x"), &["--layers 0"]);
    refused(own(place.path(), &[], "above/x"), &["above/x", "folder above"]);
    refused(own(place.path(), &[], "my.json"), &["my.json", "not a folder"]);
    fs::write(place.path().join("odd.json"), "{\"architectures\": [\"LlamaForCausalLM\"]}")
        .expect("written");
    let odd = place.path().join("odd.json").display().to_string();
    refused(line(place.path(), &["--config", &odd], "x"), &["odd.json", "LlamaForCausalLM"]);
    for (text, named) in
        [("[]", "no object"), ("{", "not valid JSON"), ("{\"a\": 1, \"a\": 2}", "`a` occurs twice")]
    {
        fs::write(&odd, text).expect("written");
        refused(line(place.path(), &["--config", &odd], "x"), &["odd.json", named]);
    }
    let packed = golden::path("checkpoints/gptq-qwen3/config.json").display().to_string();
    refused(line(place.path(), &["--config", &packed], "x"), &["config.json", "only plain ones"]);
    for (args, named) in [
        (["--dtype", "f8"], "[possible values: bf16, f16, f32]"),
        (["--shard-size", "0"], "above 0"),
        (["--shard-size", "5 parsecs"], "above 0"),
    ] {
        let run = cli::assay(own(place.path(), &args, "x"));
        assert!(run.code == 2 && run.stderr.contains(named), "{run:#?}");
    }
    let names: Vec<String> = entries(place.path()).into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["my.json", "odd.json"]);
}

#[test]
fn a_model_larger_than_the_disk_is_refused_before_it_is_begun() {
    // 470 GB: where the disk has room for that, nothing is to be seen.
    let place = tempfile::tempdir().expect("a folder");
    let df = Command::new("df").args(["--output=avail", "-k"]).arg(place.path()).output();
    let text = df.ok().and_then(|o| String::from_utf8(o.stdout).ok()).unwrap_or_default();
    let free = text.lines().last().and_then(|l| l.trim().parse::<u64>().ok());
    if free.is_none_or(|kib| kib > 450_000_000) {
        eprintln!("skipped: {free:?} KiB free");
        return;
    }
    cli::refused(line(place.path(), &["Qwen3-235B-A22B"], "x"), &["free", "--sparse", "--layers"]);
    assert_eq!(entries(place.path()), []);
}

#[test]
fn a_folder_that_is_not_empty_is_replaced_only_when_told() {
    let place = place();
    let dir = place.path().join("x");
    made(own(place.path(), &["--shard-size", "10KB"], "x"));
    fs::write(dir.join("tokenizer.json"), "{}").expect("written");
    let before = bytes(&dir);
    cli::refused(own(place.path(), &[], "x"), &["not empty", "--force"]);
    assert_eq!(bytes(&dir), before);
    made(own(place.path(), &["--force"], "x"));
    let names: Vec<String> = entries(&dir).into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    Files::open(&dir).expect("weights");
    assert_eq!(bytes(&dir)["tokenizer.json"], b"{}");
}

/// A limit on the length of files stands for a full disk: the write fails in the middle.
#[test]
fn a_write_that_fails_leaves_what_was_there() {
    let place = place();
    made(own(place.path(), &["--layers", "1"], "old"));
    let before = bytes(&place.path().join("old"));
    for (dir, force) in [("new", ""), ("old", "--force")] {
        let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" make-model --config my.json $2 $1";
        let run = Command::new("sh")
            .args(["-c", script])
            .arg(cli::binary())
            .args([dir, force])
            .current_dir(place.path())
            .output()
            .expect("sh starts");
        let text = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{text}");
        let named = format!("{dir}/model.safetensors: cannot be written");
        assert!(text.starts_with("assay: ") && text.contains(&named), "{text}");
    }
    assert!(!place.path().join("new").exists());
    assert_eq!(bytes(&place.path().join("old")), before);
}
