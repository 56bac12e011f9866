//! Damaged files, indices and tensors.

use std::fs;

use assay_reference::{Dtype, Tensor};
use assay_tests::damage::Copy;
use assay_tests::golden;
use assay_verify::audit::Options;
use serde_json::json;

use super::{FILE, found, found_in_data, found_with, look, qwen2, qwen3};

const SECOND: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const NORM: &str = "model.layers.1.post_attention_layernorm.weight";
const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

/// The tensors of a safetensors file in the order of their bytes: name, begin and end in the file.
fn places(bytes: &[u8]) -> Vec<(String, usize, usize)> {
    let n = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + n]).expect("a header");
    let of = |v: &serde_json::Value| 8 + n + v.as_u64().expect("an offset") as usize;
    let mut all: Vec<(String, usize, usize)> = header
        .as_object()
        .expect("an object")
        .iter()
        .filter(|(name, _)| *name != "__metadata__")
        .map(|(name, e)| (name.clone(), of(&e["data_offsets"][0]), of(&e["data_offsets"][1])))
        .collect();
    all.sort_by_key(|p| p.1);
    all
}

/// Index and headers are intact; two tensors begin behind the end, where loaders that map the file see zeros.
#[test]
fn a_shard_that_ends_before_its_last_two_tensors() {
    let copy = qwen2();
    let mut gone = Vec::new();
    copy.bytes(SECOND, |b| {
        let all = places(b);
        gone.extend(all[all.len() - 2..].iter().map(|p| p.0.clone()));
        b.truncate(all[all.len() - 2].1);
    });
    found(&copy, &["A400"], &[SECOND, "2 tensors lie", "2 wholly", &gone[0], &gone[1]]);
}

#[test]
fn a_shard_that_ends_within_a_tensor_or_its_header() {
    let copy = qwen2();
    copy.bytes(SECOND, |b| b.truncate(b.len() - 100));
    found(&copy, &["A400"], &["100 bytes are missing", "1 tensor lies"]);
    let copy = qwen3();
    copy.bytes(FILE, |b| b.truncate(500));
    found(&copy, &["A400"], &["of the header are missing"]);
    let copy = qwen3();
    copy.bytes(FILE, Vec::clear);
    found(&copy, &["A400"], &["0 bytes"]);
}

#[test]
fn a_shard_under_another_name() {
    for name in [format!("{SECOND}?download=true"), "model-00002-of-00002.safatensors?dow".into()] {
        let copy = qwen2();
        fs::rename(copy.file(SECOND), copy.file(&name)).expect("renamed");
        found(&copy, &["A405"], &[&name, SECOND]);
    }
}

#[test]
fn zero_bytes_at_the_beginning_of_a_shard() {
    let copy = qwen2();
    copy.bytes(SECOND, |b| {
        b.splice(..0, [0; 8]);
    });
    found(&copy, &["A407"], &[SECOND, "put before"]);
    let copy = qwen2();
    copy.bytes(SECOND, |b| b[..8].fill(0));
    found(&copy, &["A407"], &[SECOND, "overwritten"]);
}

#[test]
fn zero_bytes_within_a_weight() {
    for (at_end, said) in [(false, "at its beginning"), (true, "at its end")] {
        let copy = qwen3();
        copy.bytes(FILE, |b| {
            let (_, begin, end) = places(b).into_iter().find(|p| p.0 == DOWN).expect("a tensor");
            let at = if at_end { end - 8 } else { begin };
            b[at..at + 8].fill(0);
        });
        found(&copy, &[], &[]);
        found_in_data(&copy, &["A428"], &[DOWN, "(8 bytes)", said]);
    }
}

#[test]
fn a_shard_that_is_not_there() {
    let copy = qwen2();
    fs::remove_file(copy.file(SECOND)).expect("removed");
    found(&copy, &["A402"], &[SECOND, "down_proj"]);
}

#[test]
fn no_weights_at_all() {
    let copy = qwen3();
    fs::remove_file(copy.file(FILE)).expect("removed");
    found(&copy, &["A40C"], &[]);
}

#[test]
fn what_stands_in_place_of_a_shard() {
    let copy = qwen2();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 1086008\n";
    copy.bytes(SECOND, |b| *b = pointer.into());
    found(&copy, &["A403"], &[SECOND, "1086008"]);
    let copy = qwen2();
    copy.bytes(SECOND, |b| *b = b"<!DOCTYPE html><html><body>Sign in</body></html>".to_vec());
    found(&copy, &["A406"], &[SECOND, "web page"]);
    let copy = qwen3();
    copy.bytes(FILE, |b| b[40] = b'{');
    found(&copy, &["A406"], &[FILE]);
}

#[test]
fn downloads_that_were_not_finished() {
    let copy = qwen2();
    fs::write(copy.file(&format!("{SECOND}.aria2")), b"x").expect("written");
    found(&copy, &["A404"], &["aria2"]);
    // A downloader's own left-over tells something only where a file is not whole.
    let copy = qwen2();
    let cache = copy.file(".cache/huggingface/download");
    fs::create_dir_all(&cache).expect("a folder");
    fs::write(cache.join("abc.incomplete"), b"x").expect("written");
    found(&copy, &[], &[]);
    copy.bytes(SECOND, |b| b.truncate(b.len() - 100));
    found(&copy, &["A400", "A404"], &["abc.incomplete"]);
}

#[test]
fn a_hash_that_is_another() {
    let copy = qwen3();
    let name = copy.file(&format!("{FILE}.sha256"));
    fs::write(&name, format!("{}  {FILE}\n", "ab".repeat(32))).expect("written");
    found(&copy, &[], &[]);
    let options = Options { hash: true, data: false };
    found_with(copy.path(), options, &["A40B"], &[FILE, "abab"]);
    // What huggingface_hub records of a download into a folder: revision, etag, time. The hash is the golden
    // manifest's.
    fs::remove_file(&name).expect("removed");
    let cache = copy.file(".cache/huggingface/download");
    fs::create_dir_all(&cache).expect("a folder");
    let hash = golden_hash("checkpoints/tiny-qwen3/model.safetensors");
    let record = |hash: &str| {
        let text = format!("0123\n{hash}\n1.5\n");
        fs::write(cache.join(format!("{FILE}.metadata")), text).expect("written");
    };
    record(&hash);
    let report = look(copy.path(), options);
    assert_eq!(report.findings, []);
    assert_eq!(report.hashes[0].expected.as_ref().map(|e| &e.sha256), Some(&hash));
    record(&"cd".repeat(32));
    found_with(copy.path(), options, &["A40B"], &[FILE, "cdcd"]);
}

fn golden_hash(path: &str) -> String {
    let manifest = golden::json("manifest.json");
    let fixtures = manifest["fixtures"].as_object().expect("fixtures").values();
    let mut files = fixtures.flat_map(|f| f["files"].as_array().expect("files"));
    let file = files.find(|f| f["path"] == path).expect("a file of the manifest");
    file["sha256"].as_str().expect("a hash").to_owned()
}

#[test]
fn an_index_that_does_not_fit() {
    let copy = qwen2();
    copy.json(INDEX, |i| i["metadata"]["total_size"] = json!(2_000_000));
    found(&copy, &["A410"], &["2000000"]);
    let copy = qwen2();
    copy.json(INDEX, |i| {
        i["weight_map"].as_object_mut().expect("a map").remove(DOWN);
    });
    found(&copy, &["A411"], &[DOWN]);
    let copy = qwen2();
    copy.json(INDEX, |i| {
        let other = match i["weight_map"][DOWN].as_str() {
            Some(SECOND) => "model-00001-of-00002.safetensors",
            _ => SECOND,
        };
        i["weight_map"][DOWN] = json!(other);
    });
    found(&copy, &["A412"], &[DOWN]);
    let copy = qwen2();
    fs::remove_file(copy.file(INDEX)).expect("removed");
    found(&copy, &["A413"], &[]);
    let copy = qwen2();
    copy.bytes(INDEX, |b| b.truncate(b.len() / 2));
    found(&copy, &["A414"], &[]);
    let copy = qwen2();
    fs::copy(copy.file(SECOND), copy.file(FILE)).expect("copied");
    found(&copy, &["A416"], &[FILE]);
}

#[test]
fn a_tensor_in_two_shards() {
    let copy = qwen2();
    let mut first = None;
    copy.tensors("model-00001-of-00002.safetensors", |t| {
        first = t.get("model.layers.0.input_layernorm.weight").cloned()
    });
    let first = first.expect("a tensor of the first shard");
    copy.tensors(SECOND, |t| {
        t.insert("model.layers.0.input_layernorm.weight".into(), first);
    });
    found(&copy, &["A415", "A410"], &["input_layernorm"]);
}

#[test]
fn data_that_the_header_does_not_describe() {
    let copy = qwen3();
    copy.bytes(FILE, |b| b.extend([0; 16]));
    found(&copy, &["A401"], &["16 bytes follow"]);
    let copy = qwen3();
    copy.header(FILE, |h| {
        let twin = h["model.layers.0.post_attention_layernorm.weight"]["data_offsets"].clone();
        h[NORM]["data_offsets"] = twin;
    });
    found(&copy, &["A408"], &["share bytes"]);
}

#[test]
fn tensors_that_the_architecture_does_not_have() {
    let copy = qwen3();
    copy.tensors(FILE, |t| {
        t.remove(NORM);
    });
    found(&copy, &["A420"], &[NORM]);
    let copy = qwen3();
    copy.tensors(FILE, |t| {
        let norm = t[NORM].reshape(&[2, 96]).expect("the same elements");
        t.insert(NORM.into(), norm);
    });
    found(&copy, &["A421"], &[NORM, "[2, 96]"]);
    let copy = qwen3();
    copy.header(FILE, |h| {
        h[NORM]["dtype"] = json!("I32");
        h[NORM]["shape"] = json!([96]);
    });
    found(&copy, &["A421"], &[NORM]);
    let copy = qwen3();
    copy.header(FILE, |h| h[NORM]["dtype"] = json!("I16"));
    found(&copy, &["A422"], &[NORM, "I16"]);
    let copy = qwen3();
    copy.tensors(FILE, |t| {
        t.insert(
            "model.layers.0.mlp.extra.weight".into(),
            Tensor::from_f64(Dtype::Bf16, &[2], &[0.5; 2]),
        );
    });
    found(&copy, &["A423"], &["mlp.extra.weight"]);
}

/// A bias that nothing adds, or that is not there, is found in the files: in slow dimensions of k alone it hardly
/// shows in the output.
#[test]
fn a_bias_that_is_dropped() {
    for (name, rows) in [("q", 512), ("k", 256), ("v", 256)] {
        let bias = format!("model.layers.0.self_attn.{name}_proj.bias");
        let copy = qwen3();
        copy.tensors(FILE, |t| {
            let slow = |i: usize| if [60, 61, 124, 125].contains(&(i % 128)) { 100.0 } else { 0.0 };
            let values: Vec<f64> = (0..rows).map(slow).collect();
            t.insert(bias.clone(), Tensor::from_f64(Dtype::Bf16, &[rows], &values));
        });
        found(&copy, &["A424"], &[&bias]);
        let copy = Copy::of("checkpoints/window-qwen2");
        copy.tensors(FILE, |t| {
            t.remove(&bias).expect("Qwen2 has this bias");
        });
        found(&copy, &["A420"], &[&bias]);
    }
}

#[test]
fn values_that_no_weight_has() {
    for (code, edit) in [
        ("A425", (|i, v| if i == 7 { f64::NAN } else { v }) as fn(usize, f64) -> f64),
        ("A426", |_, _| 0.0),
        ("A427", |_, _| 0.25),
    ] {
        let copy = qwen3();
        copy.tensors(FILE, |t| {
            let edited = t[DOWN].map(edit);
            t.insert(DOWN.into(), edited);
        });
        found(&copy, &[], &[]);
        found_in_data(&copy, &[code], &[DOWN]);
    }
}

/// A folder from anywhere may hold a pipe under the name of a file: it is not waited for.
#[test]
fn a_pipe_beside_the_weights_is_not_opened() {
    let copy = qwen3();
    let pipe = copy.file("model.safetensors.sha256");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|s| s.success()) {
        eprintln!("skipped: no mkfifo");
        return;
    }
    // Whoever reads it gets another hash, so that opening it is a finding and no test without end.
    std::thread::spawn(move || fs::write(pipe, "0".repeat(64)));
    found_with(copy.path(), Options { data: false, hash: true }, &[], &[]);
}

/// A scale of zero makes weights of zero, whatever is packed.
#[test]
fn scales_that_are_zero() {
    for (folder, scales) in [
        ("checkpoints/gptq-qwen3", "model.layers.1.mlp.down_proj.scales"),
        ("checkpoints/ct-qwen3", "model.layers.0.mlp.down_proj.weight_scale"),
        ("checkpoints/fp8-qwen3", "model.layers.0.mlp.down_proj.weight_scale_inv"),
    ] {
        let copy = Copy::of(folder);
        copy.tensors(FILE, |t| {
            let edited = t[scales].map(|_, _| 0.0);
            t.insert(scales.into(), edited);
        });
        found_in_data(&copy, &["A426"], &[scales]);
    }
    let copy = Copy::of("checkpoints/gptq-qwen3");
    let scales = "model.layers.1.mlp.down_proj.scales";
    copy.tensors(FILE, |t| {
        let edited = t[scales].map(|i, v| if (100..164).contains(&i) { 0.0 } else { v });
        t.insert(scales.into(), edited);
    });
    found_in_data(&copy, &["A428"], &[scales, "64 zeros"]);
}

#[test]
fn a_stored_head_that_is_not_the_embedding_to_which_it_is_tied() {
    let copy = qwen3();
    copy.tensors(FILE, |t| {
        let head = t["model.embed_tokens.weight"].map(|i, v| if i == 0 { v + 1.0 } else { v });
        t.insert("lm_head.weight".into(), head);
    });
    found(&copy, &["A429"], &["lm_head.weight"]);
    let copy = qwen3();
    copy.tensors(FILE, |t| {
        let head = t["model.embed_tokens.weight"].clone();
        t.insert("lm_head.weight".into(), head);
    });
    found(&copy, &[], &[]);
}
