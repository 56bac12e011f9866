//! Configs that the tensors contradict, and those of released models.

use std::fs;

use assay_tests::damage::Copy;
use assay_verify::audit::Options;
use serde_json::{Map, Value, json};

use super::{found, found_with, qwen2, qwen3};

const CONFIG: &str = "config.json";

#[track_caller]
fn edited(edit: impl FnOnce(&mut Map<String, Value>), codes: &[&str], said: &[&str]) {
    let copy = qwen3();
    copy.json(CONFIG, edit);
    found(&copy, codes, said);
}

/// The config of somebody's Qwen3-32B: Qwen2ForCausalLM, and no head_dim.
#[test]
fn a_config_that_lost_its_head_dim() {
    let copy = qwen3();
    copy.json(CONFIG, |c| {
        c["architectures"] = json!(["Qwen2ForCausalLM"]);
        c["model_type"] = json!("qwen2");
        c.remove("head_dim");
    });
    let said = [
        "hidden_size / num_attention_heads = 192 / 4 = 48",
        "512 rows = 4 heads x 128",
        "it must be 128",
        "Qwen3ForCausalLM",
    ];
    found(&copy, &["A430", "A431"], &said);
    // Without norms of q and k the rows alone tell.
    let copy = qwen2();
    copy.json(CONFIG, |c| {
        c.remove("head_dim");
    });
    found(&copy, &["A431"], &["192 / 4 = 48", "512 rows = 4 heads x 128"]);
    edited(|c| c["head_dim"] = json!(64), &["A431"], &["is 64"]);
}

#[test]
fn sizes_that_the_tensors_contradict() {
    for (field, value, code, said) in [
        ("num_attention_heads", 8, "A432", "must be 4"),
        ("num_key_value_heads", 4, "A433", "must be 2"),
        ("hidden_size", 256, "A434", "must be 192"),
        ("intermediate_size", 256, "A435", "drops 64"),
        ("vocab_size", 300, "A436", "must be 320"),
        ("num_hidden_layers", 3, "A437", "must be 2"),
        ("num_hidden_layers", 1, "A437", "must be 2"),
    ] {
        edited(|c| c[field] = json!(value), &[code], &[field, said]);
        let copy = qwen2();
        copy.json(CONFIG, |c| c[field] = json!(value));
        found(&copy, &[code], &[field, said]);
    }
    let copy = Copy::of("checkpoints/moe-qwen3");
    copy.json(CONFIG, |c| {
        let name = if c.contains_key("num_experts") { "num_experts" } else { "num_local_experts" };
        c[name] = json!(c[name].as_u64().map(|n| n + 2));
    });
    found(&copy, &["A443"], &["experts"]);
    edited(|c| c["tie_word_embeddings"] = json!(false), &["A438"], &["lm_head.weight"]);
}

#[test]
fn fields_that_must_not_be_guessed() {
    for field in [
        "rms_norm_eps",
        "num_key_value_heads",
        "hidden_act",
        "vocab_size",
        "dtype",
        "tie_word_embeddings",
    ] {
        let edit = |c: &mut Map<String, Value>| {
            c.remove(field);
        };
        edited(edit, &["A439"], &[field]);
    }
}

#[test]
fn the_rotation_in_both_spellings() {
    let remove = |c: &mut Map<String, Value>| {
        c.remove("rope_parameters");
    };
    edited(remove, &["A43A"], &["10000"]);
    edited(
        |c| {
            c.insert("rope_theta".into(), json!(10000.0));
        },
        &["A43B"],
        &["10000", "1000000"],
    );
    let scaled = |c: &mut Map<String, Value>| {
        c.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": 4.0}));
    };
    edited(scaled, &["A43B"], &["linear"]);
    // The old spelling alone is right.
    let old = |c: &mut Map<String, Value>| {
        c.remove("rope_parameters");
        c.insert("rope_theta".into(), json!(1_000_000));
    };
    edited(old, &[], &[]);
}

#[test]
fn dtypes_json_and_values_that_cannot_be() {
    edited(|c| c["dtype"] = json!("float16"), &["A43C"], &["bfloat16"]);
    edited(|c| c["hidden_act"] = json!("gelu"), &["A43F"], &["gelu"]);
    let copy = qwen3();
    copy.bytes(CONFIG, |b| {
        b.splice(1..1, *b"\"hidden_size\": 192, ");
    });
    found(&copy, &["A43D"], &["hidden_size"]);
    let copy = qwen3();
    copy.bytes(CONFIG, |b| b.truncate(b.len() / 2));
    found(&copy, &["A43E"], &[CONFIG]);
    let copy = qwen3();
    fs::remove_file(copy.file(CONFIG)).expect("removed");
    found(&copy, &["A440"], &[]);
}

/// Six faults in one folder: none hides another.
#[test]
fn independent_faults_do_not_hide_one_another() {
    let copy = qwen2();
    copy.bytes("model-00002-of-00002.safetensors", |b| b.truncate(b.len() - 100));
    copy.json(CONFIG, |c| {
        c.remove("head_dim");
        c.remove("rope_theta");
        c["intermediate_size"] = json!(256);
        c["eos_token_id"] = json!(100_000);
    });
    copy.json("generation_config.json", |c| {
        c.remove("eos_token_id");
    });
    copy.json("model.safetensors.index.json", |i| i["metadata"]["total_size"] = json!(1));
    found(&copy, &["A400", "A410", "A431", "A435", "A43A", "A462"], &[]);
}

#[test]
fn a_name_that_promises_another_model() {
    let place = tempfile::tempdir().expect("a folder");
    let named = place.path().join("Qwen3-0.6B-GPTQ-Int4");
    fs::rename(qwen3().path(), &named).or_else(|_| copy_to(&named)).expect("a copy");
    let said = ["Qwen3-0.6B was released with 1024", "promises 0.6B", "https://"];
    found_with(&named, Options::default(), &["A441", "A442"], &said);
}

fn copy_to(target: &std::path::Path) -> std::io::Result<()> {
    fs::create_dir_all(target)?;
    let copy = qwen3();
    for entry in fs::read_dir(copy.path())? {
        let entry = entry?;
        fs::copy(entry.path(), target.join(entry.file_name()))?;
    }
    Ok(())
}
