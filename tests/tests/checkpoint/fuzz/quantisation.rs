//! `quantization_config` in config.json, and `quantize_config.json`.

use serde_json::{Map, Value, json};

use super::values;
use crate::support::Model;

/// A description as quantisers write it.
fn description() -> Map<String, Value> {
    let Value::Object(fields) = json!({
        "quant_method": "gptq", "bits": 4, "group_size": 8, "sym": true, "desc_act": false,
        "checkpoint_format": "gptq", "damp_percent": 0.01, "pack_dtype": "int32",
        "lm_head": false, "meta": { "quantizer": ["gptqmodel:4.0.0"] },
    }) else {
        unreachable!("an object literal")
    };
    fields
}

/// Fields that say how stored weights are read.
const MEANING: [&str; 4] = ["bits", "group_size", "sym", "desc_act"];

/// Reads the config under a description in either place; an error must name the file and the field.
fn check(
    model: &mut Model,
    fields: &Map<String, Value>,
    beside: bool,
    field: &str,
) -> Option<Value> {
    let file = model.path().join("quantize_config.json");
    if beside {
        model.config.remove("quantization_config");
        std::fs::write(&file, Value::Object(fields.clone()).to_string()).expect("writable");
    } else {
        let _ = std::fs::remove_file(&file);
        model.config.insert("quantization_config".into(), Value::Object(fields.clone()));
    }
    match model.read_config() {
        Ok(config) => {
            let mut plain = config.clone();
            plain.quantization = None;
            model.config.remove("quantization_config");
            let _ = std::fs::remove_file(&file);
            assert_eq!(plain, model.read_config().expect("a valid config"), "{field}");
            Some(json!(format!("{:?}", config.quantization.expect("described"))))
        }
        Err(e) => {
            let text = model.message(Err(e));
            let name = if beside { "DIR/quantize_config.json: " } else { "DIR/config.json: " };
            // Sizes that the described packing cannot hold are the config's.
            let place = text.starts_with(name) || text.contains("must be multiples of");
            assert!(place && text.contains(field), "{field}: {text}");
            None
        }
    }
}

/// Each field with each value: refused by name, or read as another quantisation if the field means
/// something, or as the same one if it means nothing.
#[test]
fn each_field_with_each_value_is_refused_by_name_or_read() {
    let mut model = Model::qwen3();
    let original = description();
    for beside in [false, true] {
        let right = check(&mut model, &original, beside, "").expect("valid");
        let others = [
            "checkpoint_format",
            "format",
            "method",
            "modules_in_block_to_quantize",
            "dynamic",
            "is_marlin_format",
            "act_group_aware",
            "unheard_of",
        ];
        let fields: Vec<&str> = original.keys().map(String::as_str).chain(others).collect();
        let mut accepted = 0;
        for field in fields {
            for value in values() {
                let mut changed = original.clone();
                changed.insert(field.into(), value.clone());
                let Some(read) = check(&mut model, &changed, beside, field) else { continue };
                accepted += 1;
                if MEANING.contains(&field) {
                    assert_eq!(read == right, original[field] == value, "{field} = {value}");
                    let fits = if field.contains('s') && value.is_boolean() {
                        true
                    } else {
                        value.is_i64()
                    };
                    assert!(fits, "{field} = {value} is of another type");
                } else if !["checkpoint_format", "format", "modules_in_block_to_quantize"]
                    .contains(&field)
                {
                    assert_eq!(read, right, "{field} = {value}");
                }
            }
            let mut without = original.clone();
            if without.remove(field).is_some() {
                let read = check(&mut model, &without, beside, field);
                assert!(read.is_none() || !MEANING.contains(&field), "{field} is never guessed");
            }
        }
        assert!(accepted > 100, "{accepted}");
    }
}

/// The two places must agree.
#[test]
fn places_that_disagree_are_refused_by_name() {
    for (field, value) in [
        ("group_size", json!(16)),
        ("sym", json!(false)),
        ("desc_act", json!(true)),
        ("checkpoint_format", json!("gptq_v2")),
    ] {
        let mut model = Model::qwen3();
        model.set("quantization_config", Value::Object(description()));
        let mut beside = description();
        model.file("quantize_config.json", Value::Object(beside.clone()).to_string());
        model.read_config().expect("the same twice");
        beside.insert(field.into(), value);
        model.file("quantize_config.json", Value::Object(beside).to_string());
        let text = model.config_error();
        assert!(text.contains(field) && text.contains("quantize_config.json"), "{text}");
    }
}

#[test]
fn broken_descriptions_are_refused_with_the_file() {
    let model = Model::qwen3();
    for broken in ["", "[]", "4", "{", "{\"bits\": 4, \"bits\": 4}", &"{\"a\":".repeat(50_000)] {
        model.file("quantize_config.json", broken);
        let text = model.config_error();
        assert!(text.starts_with("DIR/quantize_config.json: "), "{text}");
    }
}
