//! `config.json` and `generation_config.json`.

use std::path::Path;
use std::sync::LazyLock;

use assay_reference::checkpoint::Config;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

use super::{cases, reading, values};
use crate::support::Model;

type Object = Map<String, Value>;

fn object(value: Value) -> Object {
    let Value::Object(object) = value else { unreachable!("an object literal") };
    object
}

/// Valid configs, between them with every field that is read and both spellings.
fn valid() -> &'static [Object] {
    static ALL: LazyLock<Vec<Object>> = LazyLock::new(make_valid);
    &ALL
}

fn make_valid() -> Vec<Object> {
    let mut window = Model::qwen2().config;
    window.insert("use_sliding_window".into(), json!(true));
    window.insert("max_window_layers".into(), json!(1));
    let mut typed = window.clone();
    typed.insert("layer_types".into(), json!(["full_attention", "sliding_attention"]));
    let mut five = Model::qwen3().config;
    for old in ["rope_theta", "torch_dtype"] {
        five.remove(old);
    }
    five.insert("dtype".into(), json!("bfloat16"));
    five.insert(
        "rope_parameters".into(),
        json!({ "rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0,
                "original_max_position_embeddings": 16, "beta_fast": 16.0, "beta_slow": 2.0,
                "truncate": false, "attention_factor": 1.25 }),
    );
    let mut scaled = Model::qwen3().config;
    scaled.insert("rope_scaling".into(), json!({ "type": "linear", "factor": 2.0 }));
    scaled.insert(
        "rope_parameters".into(),
        json!({ "rope_theta": 1e6, "rope_type": "linear", "factor": 2.0 }),
    );
    scaled.insert("attention_bias".into(), json!(true));
    vec![Model::qwen2().config, Model::qwen3().config, window, typed, five, scaled, moe()]
}

fn moe() -> Object {
    let mut config = Model::qwen3().config;
    for (field, value) in object(json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4,
        "num_experts_per_tok": 2, "norm_topk_prob": true, "moe_intermediate_size": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [0], "router_aux_loss_coef": 0.001,
        "output_router_logits": false,
    })) {
        config.insert(field, value);
    }
    config
}

/// Fields of v4 and v5 that a config may gain.
const OTHERS: &[&str] = &[
    "dtype",
    "torch_dtype",
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "layer_types",
    "attention_bias",
    "num_experts",
    "num_local_experts",
    "mlp_only_layers",
    "quantization_config",
    "sliding_window",
    "tie_encoder_decoder",
    "unheard_of",
    "",
];

/// What became of a config: its reading is the second one's, or the error names the file and one of
/// the fields.
fn check(config: &Object, fields: &[&str]) -> bool {
    let text = Value::Object(config.clone()).to_string();
    match Config::parse(&text, Path::new("DIR/config.json")) {
        Ok(read) => {
            let second = reading::read(config, &read);
            assert_eq!(Some(&read), second.as_ref(), "{fields:?} of {text}");
            assert_eq!(read.quantization, None, "{text}");
            true
        }
        Err(e) => {
            let error = e.to_string();
            assert!(error.starts_with("DIR/config.json: "), "{error}");
            assert!(!error.contains('\n') && error.chars().count() < 1200, "{error}");
            assert!(fields.iter().any(|f| error.contains(f)), "{fields:?}: {error} of {text}");
            false
        }
    }
}

#[test]
fn valid_configs_are_read_alike_twice() {
    for config in valid() {
        assert!(check(config, &[]));
    }
}

/// Each field of each config set to each value, removed, or added.
#[test]
fn each_field_with_each_value_is_refused_by_name_or_read_right() {
    let (mut accepted, mut refused) = (0, 0);
    for config in valid() {
        let fields: Vec<String> =
            config.keys().cloned().chain(OTHERS.iter().map(|f| f.to_string())).collect();
        for field in &fields {
            let mut one = |changed: &Object| {
                if check(changed, &[field]) { accepted += 1 } else { refused += 1 }
            };
            let mut without = config.clone();
            without.remove(field);
            one(&without);
            for value in values() {
                let mut changed = config.clone();
                changed.insert(field.clone(), value);
                one(&changed);
            }
        }
    }
    // Harmless fields accept anything, a few values are right ones; most are refused.
    assert!(accepted > 500 && refused > 10_000, "{accepted} accepted, {refused} refused");
}

/// Numbers on both sides of the right one.
#[test]
fn neighbours_of_right_numbers_are_refused_by_name_or_read_right() {
    for config in valid() {
        for (field, value) in config {
            let Some(n) = value.as_i64() else { continue };
            for other in [n - 1, n + 1, n * 2, n / 2, -n, n + 65536, n << 32] {
                let mut changed = config.clone();
                changed.insert(field.clone(), json!(other));
                check(&changed, &[field]);
                changed.insert(field.clone(), json!(other as f64 + 0.5));
                check(&changed, &[field]);
            }
        }
    }
}

/// Every pair of fields with each other's values.
#[test]
fn swapped_fields_are_refused_by_name_or_read_right() {
    for config in valid() {
        let fields: Vec<String> = config.keys().cloned().collect();
        for (i, a) in fields.iter().enumerate() {
            for b in &fields[i + 1..] {
                let mut changed = config.clone();
                changed.insert(a.clone(), config[b].clone());
                changed.insert(b.clone(), config[a].clone());
                check(&changed, &[a, b]);
            }
        }
    }
}

/// Fields of a scaling, one level down.
#[test]
fn fields_of_rope_objects_are_refused_by_name_or_read_right() {
    for (config, outer) in valid()
        .iter()
        .flat_map(|c| ["rope_parameters", "rope_scaling"].map(|name| (c.clone(), name)))
    {
        let Some(Value::Object(inner)) = config.get(outer).cloned() else { continue };
        let more = [
            "mscale",
            "mscale_all_dim",
            "partial_rotary_factor",
            "low_freq_factor",
            "type",
            "truncate",
        ];
        for field in inner.keys().map(String::as_str).chain(more) {
            for value in values() {
                let mut changed = config.clone();
                changed[outer][field] = value;
                check(&changed, &[field, outer]);
            }
            let mut changed = config.clone();
            changed[outer].as_object_mut().expect("an object").remove(field);
            check(&changed, &[field, outer]);
        }
    }
}

/// Two spellings of one thing that disagree: never one silently.
#[test]
fn spellings_that_disagree_are_refused() {
    for (field, value, names) in [
        ("dtype", json!("float16"), ["`dtype`", "`torch_dtype`"]),
        (
            "rope_parameters",
            json!({ "rope_theta": 1e4 }),
            ["`rope_theta`", "`rope_parameters.rope_theta`"],
        ),
        (
            "rope_scaling",
            json!({ "rope_theta": 1e4 }),
            ["`rope_theta`", "`rope_scaling.rope_theta`"],
        ),
        ("num_local_experts", json!(8), ["`num_experts`", "`num_local_experts`"]),
        ("model_type", json!("qwen2"), ["`model_type`", "`architectures`"]),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            ["`layer_types`", "use_sliding_window"],
        ),
    ] {
        let mut config = moe();
        config.insert(field.into(), value);
        let text = Value::Object(config).to_string();
        let error = Config::parse(&text, Path::new("config.json")).expect_err(field).to_string();
        assert!(names.iter().all(|n| error.contains(n)), "{error}");
    }
}

/// Spellings that Python's json writes and JSON does not know, in place of each value.
#[test]
fn what_is_not_json_is_refused_with_the_file() {
    for config in valid() {
        for field in config.keys() {
            let mut marked = config.clone();
            marked.insert(field.clone(), json!("@"));
            let text = Value::Object(marked).to_string();
            for spelling in [
                "NaN",
                "-NaN",
                "Infinity",
                "-Infinity",
                "1e999",
                "01",
                "0x10",
                "+1",
                ".5",
                "1.",
                "None",
                "True",
                "'x'",
                "",
            ] {
                let broken = text.replace("\"@\"", spelling);
                let error =
                    Config::parse(&broken, Path::new("DIR/config.json")).expect_err(spelling);
                let error = error.to_string();
                assert!(
                    error.starts_with("DIR/config.json: ") && error.contains("JSON"),
                    "{error}"
                );
            }
            // A key twice, with any value: readers differ in which they take.
            let twice = text.replace("\"@\"", &format!("{},{}:1", config[field], json!(field)));
            let error = Config::parse(&twice, Path::new("DIR/config.json")).expect_err("twice");
            assert!(error.to_string().contains(&format!("`{field}` occurs twice")), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// Several fields at once, each with any value.
    #[test]
    fn several_changes_are_refused_by_name_or_read_right(
        which in any::<Index>(),
        edits in prop::collection::vec((any::<Index>(), any::<Index>(), any::<bool>()), 1..5),
    ) {
        let all = valid();
        let original = &all[which.index(all.len())];
        let mut names: Vec<String> = original.keys().cloned().collect();
        names.extend(OTHERS.iter().map(|f| f.to_string()));
        let (mut config, pool, mut changed) = (original.clone(), values(), Vec::new());
        for (field, value, remove) in edits {
            let field = &names[field.index(names.len())];
            if remove {
                config.remove(field);
            } else {
                config.insert(field.clone(), pool[value.index(pool.len())].clone());
            }
            changed.push(field.as_str());
        }
        check(&config, &changed);
    }

    /// Bytes of the text changed at random: never a panic, and what is accepted is what the text says.
    #[test]
    fn a_damaged_text_is_refused_or_read_right(
        which in any::<Index>(),
        edits in prop::collection::vec((any::<Index>(), any::<u8>(), 0usize..3), 1..4),
    ) {
        let all = valid();
        let mut bytes = Value::Object(all[which.index(all.len())].clone()).to_string().into_bytes();
        for (at, byte, how) in edits {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        let Ok(text) = String::from_utf8(bytes) else { return Ok(()) };
        match Config::parse(&text, Path::new("DIR/config.json")) {
            Ok(read) => {
                let object = serde_json::from_str::<Object>(&text).expect("it was read");
                let second = reading::read(&object, &read);
                prop_assert_eq!(second, Some(read), "{}", text);
            }
            Err(e) => prop_assert!(e.to_string().starts_with("DIR/config.json: "), "{}", e),
        }
    }
}

/// generation_config.json: its ids win, and nothing else of it counts.
#[test]
fn a_generation_config_is_refused_by_name_or_its_ids_are_read() {
    let model = Model::qwen3();
    let plain = model.read_config().expect("a valid config");
    let mut accepted = 0;
    for value in values() {
        for field in ["eos_token_id", "temperature", "top_k", "unheard_of"] {
            model.file("generation_config.json", json!({ field: value }).to_string());
            match model.read_config() {
                Ok(mut config) => {
                    let named = reading::ids(Some(&value).filter(|v| !v.is_null()));
                    let ids = named.filter(|ids| !ids.is_empty() && field == "eos_token_id");
                    assert_eq!(config.eos_token_ids, ids.unwrap_or(vec![2]), "{value}");
                    config.eos_token_ids.clone_from(&plain.eos_token_ids);
                    assert_eq!(config, plain);
                    accepted += 1;
                }
                Err(e) => {
                    let text = model.message(Err(e));
                    assert!(
                        text.starts_with("DIR/generation_config.json: `eos_token_id`"),
                        "{text}"
                    );
                    assert_eq!(field, "eos_token_id");
                }
            }
        }
    }
    assert!(accepted > 3 * 60, "{accepted}");
    for broken in ["", "[]", "{", "{\"eos_token_id\": NaN}", "\u{feff}{}", &"[".repeat(100_000)] {
        model.file("generation_config.json", broken);
        let text = model.config_error();
        assert!(text.starts_with("DIR/generation_config.json: "), "{text}");
    }
}
