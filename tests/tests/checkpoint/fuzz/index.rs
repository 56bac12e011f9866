//! `model.safetensors.index.json`.

use assay_reference::checkpoint::Files;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::{cases, values};
use crate::support::{Model, Tensors};

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A few tensors in two shards, and their index.
fn sharded() -> (Model, Value) {
    let mut model = Model::qwen3();
    model.tensors.retain(|name, _| name.contains("norm"));
    let second = |name: &str| name.contains("layers.1.");
    let (b, a): (Tensors, Tensors) =
        model.tensors.clone().into_iter().partition(|(n, _)| second(n));
    let map: serde_json::Map<String, Value> = model
        .tensors
        .keys()
        .map(|n| (n.clone(), json!(if second(n) { SECOND } else { FIRST })))
        .collect();
    let total: usize = model.tensors.values().map(|t| t.bytes().len()).sum();
    model.shard(FIRST, &a).shard(SECOND, &b);
    (model, json!({ "metadata": { "total_size": total }, "weight_map": map }))
}

/// Opens the folder under an index: an error that names a file of it, or every tensor as it was.
/// Says whether it was accepted.
fn open(model: &Model, index: impl AsRef<[u8]>) -> Result<(), String> {
    model.file(INDEX, index);
    match Files::open(model.path()) {
        Ok(files) => {
            assert_eq!(files.names().count(), model.tensors.len());
            for (name, t) in &model.tensors {
                assert_eq!(files.get(name), Some(t), "{name}");
            }
            Ok(())
        }
        Err(e) => {
            let text = model.message(Err(e));
            assert!(text.starts_with("DIR/model"), "{text}");
            Err(text)
        }
    }
}

const FILES: &[&str] = &[
    FIRST,
    SECOND,
    "model.safetensors",
    "model-00003-of-00002.safetensors",
    "",
    ".",
    "..",
    ".safetensors",
    "../model-00001-of-00002.safetensors",
    "./model-00001-of-00002.safetensors",
    "/etc/passwd",
    "/etc/x.safetensors",
    "C:x.safetensors",
    "a/../model-00001-of-00002.safetensors",
    "..\\x.safetensors",
    "%2e%2e%2fx.safetensors",
    "x.safetensors\u{0}",
    "model-00001-of-00002.safetensors ",
    "MODEL-00001-OF-00002.SAFETENSORS",
    "config.json",
];

/// Every file name for one tensor: only its own is accepted.
#[test]
fn a_wrong_file_is_refused_with_the_tensor_or_the_file() {
    let (model, index) = sharded();
    open(&model, index.to_string()).expect("a valid index");
    let name = "model.layers.1.input_layernorm.weight";
    for file in FILES {
        let mut wrong = index.clone();
        wrong["weight_map"][name] = json!(file);
        let outcome = open(&model, wrong.to_string());
        if *file == SECOND {
            outcome.expect("its own file");
            continue;
        }
        let text = outcome.expect_err(file);
        assert!(text.starts_with(&format!("DIR/{INDEX}")), "{text}");
        assert!(text.contains(name) || text.contains(&*file.escape_debug().to_string()), "{text}");
    }
}

/// Hostile values in every place of the index.
#[test]
fn values_of_every_type_are_refused_or_change_nothing() {
    let (model, index) = sharded();
    for value in values() {
        for place in
            ["/weight_map", "/metadata", "/metadata/total_size", "/weight_map/model.norm.weight"]
        {
            let mut wrong = index.clone();
            *wrong.pointer_mut(place).expect("a place") = value.clone();
            let outcome = open(&model, wrong.to_string());
            if place.starts_with("/weight_map") {
                let text = outcome.expect_err("not a map of files");
                assert!(text.contains("weight_map") || text.contains("tensor `"), "{text}");
            }
        }
        let mut more = index.clone();
        more["unknown"] = value.clone();
        open(&model, more.to_string()).expect("other fields are free");
    }
}

/// total_size: the tensors' bytes or the files', nothing else.
#[test]
fn a_total_size_that_lies_is_refused() {
    let (model, index) = sharded();
    let right = index["metadata"]["total_size"].as_u64().expect("a number");
    let size = |f: &str| std::fs::metadata(model.path().join(f)).expect("a shard").len();
    let whole = size(FIRST) + size(SECOND);
    for lie in [0, 1, right - 1, right + 1, whole - 1, whole + 1, u64::MAX, 1 << 53] {
        let mut wrong = index.clone();
        wrong["metadata"]["total_size"] = json!(lie);
        let text = open(&model, wrong.to_string()).expect_err("a lie");
        assert!(text.contains(INDEX) && text.contains(&lie.to_string()), "{text}");
    }
}

proptest! {
    #![proptest_config(cases(150))]

    /// Bytes of the index changed at random: refused, or the same tensors.
    #[test]
    fn a_damaged_index_is_refused_or_gives_the_same_tensors(
        edits in prop::collection::vec((any::<Index>(), any::<u8>(), 0usize..3), 1..4),
    ) {
        let (model, index) = sharded();
        let mut bytes = index.to_string().into_bytes();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        let _ = open(&model, bytes);
    }

    /// Tensors moved, removed and added.
    #[test]
    fn a_rearranged_index_is_refused_or_gives_the_same_tensors(
        edits in prop::collection::vec((any::<Index>(), 0..FILES.len() + 2), 1..4),
    ) {
        let (model, mut index) = sharded();
        let map = index["weight_map"].as_object_mut().expect("a map");
        let right = map.clone();
        let names: Vec<String> = map.keys().cloned().collect();
        for (which, to) in edits {
            let name = &names[which.index(names.len())];
            match to.checked_sub(2) {
                None if to == 0 => { map.remove(name); }
                None => { map.insert(format!("{name}x"), json!(FIRST)); }
                Some(file) => { map.insert(name.clone(), json!(FILES[file])); }
            }
        }
        let same = *map == right;
        prop_assert_eq!(open(&model, index.to_string()).is_ok(), same);
    }
}

#[test]
fn a_deep_or_endless_index_is_refused() {
    let (model, _) = sharded();
    for text in [
        "[".repeat(100_000),
        "{\"weight_map\":".repeat(100_000),
        format!("{{\"weight_map\":{{\"a\":{}", "[".repeat(100_000)),
        "\u{feff}{}".into(),
        "{\"weight_map\": {\"a\": \"x.safetensors\"}} {}".into(),
        "{\"weight_map\": NaN}".into(),
        String::new(),
    ] {
        let error = open(&model, text).expect_err("refused");
        assert!(error.starts_with(&format!("DIR/{INDEX}")) && error.len() < 1000, "{error}");
    }
}
