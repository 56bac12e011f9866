//! The index and the shards must say the same.

use std::fs;

use assay_reference::checkpoint::{Checkpoint, Files};
use serde_json::{Value, json};

use crate::support::{Model, Tensors, assert_says};

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A Qwen3 in two shards, and its index.
fn sharded() -> (Model, Value) {
    let model = Model::qwen3();
    let second = |name: &str| name.starts_with("model.layers.1.") || name == "model.norm.weight";
    let (b, a): (Tensors, Tensors) =
        model.tensors.clone().into_iter().partition(|(name, _)| second(name));
    let map: serde_json::Map<String, Value> = model
        .tensors
        .keys()
        .map(|n| (n.clone(), json!(if second(n) { SECOND } else { FIRST })))
        .collect();
    let total: usize = model.tensors.values().map(|t| t.bytes().len()).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    model.write_config().shard(FIRST, &a).shard(SECOND, &b);
    (model, index)
}

#[track_caller]
fn error(model: &Model, index: &Value) -> String {
    model.file(INDEX, index.to_string());
    model.message(Files::open(model.path()).map(|_| ()))
}

#[test]
fn a_sharded_checkpoint_opens_and_names_each_tensors_file() {
    let (model, index) = sharded();
    model.file(INDEX, index.to_string());
    let checkpoint = Checkpoint::open(model.path()).unwrap();
    assert_eq!(checkpoint.warnings(), &[] as &[String]);
    let files = checkpoint.files();
    assert_eq!(files.shards().len(), 2);
    assert_eq!(files.path_of("model.norm.weight"), model.path().join(SECOND));
    assert_eq!(files.path_of("model.embed_tokens.weight"), model.path().join(FIRST));
    assert_eq!(files.names().count(), model.tensors.len());
    for (name, tensor) in &model.tensors {
        assert_eq!(&checkpoint.tensor(name).unwrap(), tensor, "{name}");
    }
}

#[test]
fn a_missing_shard_is_named() {
    let (model, index) = sharded();
    fs::remove_file(model.path().join(SECOND)).unwrap();
    assert_says(
        &error(&model, &index),
        &[
            "DIR/model.safetensors.index.json",
            "1 shard that the folder does not hold",
            SECOND,
            "12 tensors",
        ],
    );
}

#[test]
fn a_tensor_that_is_not_where_the_index_says_is_named() {
    let (model, mut index) = sharded();
    index["weight_map"]["model.norm.weight"] = json!(FIRST);
    assert_says(
        &error(&model, &index),
        &["`model.norm.weight`", &format!("places it in `{FIRST}`, but `{SECOND}` holds it")],
    );
    index["weight_map"]["model.norm.weight"] = json!(SECOND);
    index["weight_map"]["ghost"] = json!(FIRST);
    assert_says(&error(&model, &index), &["`ghost`", "no shard holds it"]);
}

#[test]
fn a_tensor_that_the_index_does_not_list_is_named() {
    let (model, mut index) = sharded();
    index["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
    assert_says(&error(&model, &index), &["does not list 1 tensor", "`model.norm.weight`"]);
}

#[test]
fn a_tensor_in_two_shards_is_named_with_both() {
    let (model, index) = sharded();
    let norm = "model.norm.weight".to_owned();
    let mut first: Tensors = model.tensors.clone();
    first.retain(|name, _| index["weight_map"][name] == FIRST || *name == norm);
    model.shard(FIRST, &first);
    assert_says(&error(&model, &index), &["DIR/", SECOND, FIRST, "`model.norm.weight`", "as well"]);
}

#[test]
fn a_wrong_total_size_is_an_error_with_both_numbers() {
    let (model, mut index) = sharded();
    let right = index["metadata"]["total_size"].as_u64().unwrap();
    index["metadata"]["total_size"] = json!(right + 2);
    let text = error(&model, &index);
    assert_says(&text, &[&format!("total_size is {}", right + 2), &format!("have {right} bytes")]);
    index["metadata"]["total_size"] = json!("many");
    assert_says(&error(&model, &index), &["must be a number of bytes", "\"many\""]);
    index["metadata"]["total_size"] = json!(right as f64);
    model.file(INDEX, index.to_string());
    assert!(Files::open(model.path()).unwrap().warnings().is_empty());
}

#[test]
fn a_total_size_of_whole_files_or_none_is_a_warning() {
    let (model, mut index) = sharded();
    let size = |f: &str| fs::metadata(model.path().join(f)).unwrap().len();
    index["metadata"]["total_size"] = json!(size(FIRST) + size(SECOND));
    model.file(INDEX, index.to_string());
    let files = Files::open(model.path()).unwrap();
    assert_says(&files.warnings().join("\n"), &["counts the files with their headers"]);
    index.as_object_mut().unwrap().remove("metadata");
    model.file(INDEX, index.to_string());
    let files = Files::open(model.path()).unwrap();
    assert_says(&files.warnings().join("\n"), &["total_size is missing"]);
}

#[test]
fn stray_files_are_warned_about() {
    let (model, index) = sharded();
    model.file(INDEX, index.to_string()).shard("adapter.safetensors", &Tensors::new());
    let files = Files::open(model.path()).unwrap();
    assert_says(
        &files.warnings().join("\n"),
        &["1 safetensors file not read", "`adapter.safetensors`"],
    );
}

#[test]
fn an_index_beside_a_single_file_is_ambiguous() {
    let (model, index) = sharded();
    model.shard("model.safetensors", &model.tensors);
    assert_says(&error(&model, &index), &["does not name `model.safetensors`", "out of date"]);
}

#[test]
fn file_names_cannot_leave_the_folder() {
    let (model, mut index) = sharded();
    for name in [
        "../m.safetensors",
        "/m.safetensors",
        "a/m.safetensors",
        "..",
        "",
        "m.bin",
        "a\\m.safetensors",
    ] {
        index["weight_map"]["model.norm.weight"] = json!(name);
        assert_says(&error(&model, &index), &["`model.norm.weight`", "plain name"]);
    }
    index["weight_map"]["model.norm.weight"] = json!(3);
    assert_says(&error(&model, &index), &["plain name", "the number 3"]);
}

#[test]
fn a_malformed_index_is_refused() {
    let (model, _) = sharded();
    assert_says(&error(&model, &json!({})), &["has no `weight_map`"]);
    assert_says(&error(&model, &json!({ "weight_map": [] })), &["must be an object", "array"]);
    assert_says(&error(&model, &json!({ "weight_map": {} })), &["lists no tensor"]);
    assert_says(&error(&model, &json!([])), &["must hold a JSON object"]);
    model.file(INDEX, r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#);
    let text = model.message(Files::open(model.path()).map(|_| ()));
    assert_says(&text, &["`a` occurs twice"]);
}

#[test]
fn a_folder_without_weights_says_what_it_holds_instead() {
    let model = Model::qwen3();
    let text = || model.message(Files::open(model.path()).map(|_| ()));
    assert_says(&text(), &["neither `model.safetensors` nor", "no weights to read"]);
    model.file("pytorch_model.bin", "");
    assert_says(&text(), &["pickled PyTorch weights", "convert"]);
    model.shard("gptq_model-4bit.safetensors", &Tensors::new());
    assert_says(&text(), &["other safetensors files: `gptq_model-4bit.safetensors`", "rename"]);
    model.shard(FIRST, &Tensors::new());
    assert_says(&text(), &[FIRST, "download the index"]);
    let gone = model.message(Files::open(&model.path().join("gone")).map(|_| ()));
    assert_says(&gone, &["DIR/gone", "no such folder"]);
    let file = model.message(Files::open(&model.path().join(FIRST)).map(|_| ()));
    assert_says(&file, &[FIRST, "is not a folder"]);
}
