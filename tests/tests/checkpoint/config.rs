//! config.json: both spellings are read, nothing is guessed, nothing that counts is overlooked.

use assay_reference::Dtype;
use assay_reference::checkpoint::{Architecture, Config, GenerationConfig};
use assay_reference::ops::rope::Scaling;
use serde_json::{Value, json};

use crate::support::{Model, assert_says};

/// The error after setting one field of a Qwen3 config.
#[track_caller]
fn qwen3_with(field: &str, value: Value) -> String {
    let mut model = Model::qwen3();
    model.set(field, value);
    model.config_error()
}

#[track_caller]
fn qwen3_without(field: &str) -> String {
    let mut model = Model::qwen3();
    model.unset(field);
    model.config_error()
}

/// A Qwen3 config as transformers 5 spells it.
fn version_5() -> Model {
    let mut model = Model::qwen3();
    model
        .unset("rope_theta")
        .set("rope_parameters", json!({ "rope_theta": 1e6, "rope_type": "default" }))
        .unset("torch_dtype")
        .set("dtype", json!("bfloat16"))
        .set("layer_types", json!(["full_attention", "full_attention"]))
        .set("sliding_window", Value::Null)
        .set("pad_token_id", Value::Null);
    model
}

#[test]
fn both_spellings_give_the_same_config() {
    let mut old = Model::qwen3();
    old.set("rope_scaling", Value::Null).set("sliding_window", Value::Null);
    let old = old.read_config().unwrap();
    assert_eq!(old, version_5().read_config().unwrap());
    assert_eq!(old.architecture, Architecture::Qwen3);
    assert_eq!((old.hidden_size, old.intermediate_size, old.vocab_size), (16, 24, 32));
    assert_eq!((old.num_attention_heads, old.num_key_value_heads, old.head_dim), (4, 2, 8));
    assert_eq!((old.q_rows(), old.kv_rows()), (32, 16));
    assert_eq!((old.rms_norm_eps, old.rope_theta), (1e-6, 1e6));
    assert_eq!((old.tie_word_embeddings, old.attention_bias), (true, false));
    assert_eq!((old.dtype, old.max_position_embeddings), (Dtype::Bf16, 64));
    assert_eq!((old.eos_token_ids, old.quantization), (vec![2], None));
}

#[test]
fn everything_that_transformers_writes_is_read() {
    // The full dictionaries of transformers 5 and 4, defaults included.
    let mut five = version_5();
    for (field, value) in [
        ("_name_or_path", json!("")),
        ("chunk_size_feed_forward", json!(0)),
        ("id2label", json!({ "0": "LABEL_0", "1": "LABEL_1" })),
        ("is_encoder_decoder", json!(false)),
        ("label2id", json!({ "LABEL_0": 0, "LABEL_1": 1 })),
        ("output_attentions", json!(false)),
        ("output_hidden_states", json!(false)),
        ("problem_type", Value::Null),
        ("return_dict", json!(true)),
        ("use_cache", json!(true)),
    ] {
        five.set(field, value);
    }
    five.read_config().unwrap();
    for (field, value) in [
        ("add_cross_attention", json!(false)),
        ("cross_attention_hidden_size", Value::Null),
        ("do_sample", json!(false)),
        ("is_decoder", json!(false)),
        ("mlp_bias", json!(false)),
        ("pruned_heads", json!({})),
        ("partial_rotary_factor", json!(1.0)),
        ("temperature", json!(1.0)),
        ("tie_encoder_decoder", json!(false)),
        ("top_k", json!(50)),
        ("torchscript", json!(false)),
        ("use_mrope", json!(false)),
    ] {
        five.set(field, value);
    }
    five.read_config().unwrap();
}

#[test]
fn what_changes_numbers_is_never_defaulted() {
    let text = {
        let mut model = Model::qwen3();
        model.unset("rope_theta");
        model.config_error()
    };
    assert_says(
        &text,
        &[
            "DIR/config.json",
            "`rope_theta` is missing",
            "rope_parameters.rope_theta",
            "does not guess it",
            "1000000",
            "10000",
            "5000000",
        ],
    );
    assert_says(&qwen3_with("rope_theta", Value::Null), &["`rope_theta` is missing"]);
    assert_says(
        &qwen3_without("rms_norm_eps"),
        &["does not guess it: known values are 1e-6", "1e-5"],
    );
    assert_says(&qwen3_without("tie_word_embeddings"), &["does not guess it", "true", "false"]);
    assert_says(&qwen3_without("num_key_value_heads"), &["does not guess it", "k_proj's rows"]);
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ] {
        assert_says(&qwen3_without(field), &[&format!("`{field}` is missing")]);
    }
    assert_says(&qwen3_without("hidden_act"), &["`hidden_act` is missing", "silu"]);
    assert_says(
        &qwen3_without("architectures"),
        &["`architectures` is missing", "Qwen3ForCausalLM"],
    );
    assert_says(&qwen3_without("torch_dtype"), &["is missing", "dtype", "bfloat16"]);
}

#[test]
fn head_dim_follows_a_rule_only_in_qwen2() {
    assert_says(
        &qwen3_without("head_dim"),
        &["`head_dim` is missing", "released models have 128", "q_proj's rows"],
    );
    let mut model = Model::qwen2();
    assert_eq!(model.read_config().unwrap().head_dim, 8);
    model.unset("head_dim");
    assert_eq!(model.read_config().unwrap().head_dim, 4);
    model.set("hidden_size", json!(18));
    assert_says(&model.config_error(), &["`head_dim` is missing", "18 is not a multiple of", "4"]);
    assert_says(&qwen3_with("head_dim", json!(7)), &["`head_dim` is 7", "even"]);
}

#[test]
fn biases_follow_the_architecture() {
    let mut model = Model::qwen2();
    let config = model.read_config().unwrap();
    assert!(config.attention_bias && config.has_bias("self_attn.k_proj"));
    assert!(!config.has_bias("self_attn.o_proj") && !config.has_bias("mlp.up_proj"));
    model.set("attention_bias", json!(false));
    assert_says(&model.config_error(), &["`attention_bias` is false", "always has biases"]);
    let mut model = Model::qwen3();
    model.set("attention_bias", json!(true));
    let config = model.read_config().unwrap();
    assert!(config.has_bias("self_attn.q_proj") && config.has_bias("self_attn.o_proj"));
}

#[test]
fn two_spellings_that_contradict_each_other_are_named() {
    let mut model = Model::qwen3();
    model.set("rope_parameters", json!({ "rope_theta": 1e4, "rope_type": "default" }));
    assert_says(
        &model.config_error(),
        &[
            "`rope_theta` is 1000000",
            "`rope_parameters.rope_theta` is 10000",
            "one of the two is wrong",
        ],
    );
    model.set("rope_parameters", json!({ "rope_theta": 1e6, "rope_type": "default" }));
    model.read_config().unwrap();
    model.set("dtype", json!("float16"));
    assert_says(&model.config_error(), &["`dtype` is `float16`", "`torch_dtype` is `bfloat16`"]);
    let text = qwen3_with("model_type", json!("qwen2"));
    assert_says(&text, &["`model_type` is `qwen2`", "Qwen3ForCausalLM", "qwen3"]);
}

#[test]
fn rope_scalings_are_read_in_both_spellings_or_refused_by_name() {
    let linear = Scaling::Linear { factor: 4.0 };
    for field in ["rope_scaling", "rope_parameters"] {
        for key in ["rope_type", "type"] {
            let mut model = Model::qwen3();
            model.set(field, json!({ key: "linear", "factor": 4.0 }));
            assert_eq!(model.read_config().unwrap().rope_scaling, linear);
            let text = qwen3_with(field, json!({ key: "llama3", "factor": 4.0 }));
            assert_says(&text, &[&format!("`{field}."), "`llama3`", "default, linear, dynamic"]);
        }
        let text = qwen3_with(field, json!({ "rope_type": "yarn", "factor": 4.0 }));
        assert_says(&text, &[&format!("`{field}.original_max_position_embeddings` is missing")]);
        assert_says(&qwen3_with(field, json!("yarn")), &["must be an object", "\"yarn\""]);
        let text = qwen3_with(field, json!({ "rope_type": "default", "factor": 4.0 }));
        assert_says(&text, &[&format!("`{field}.factor` is not a field of rope type `default`")]);
        let text = qwen3_with(field, json!({ "partial_rotary_factor": 0.5 }));
        assert_says(&text, &[&format!("`{field}.partial_rotary_factor` is 0.5")]);
    }
    let mut model = Model::qwen3();
    model.set("rope_scaling", json!({ "rope_type": "default" }));
    assert_eq!(model.read_config().unwrap().rope_scaling, Scaling::Default);
}

#[test]
fn sliding_windows_count_by_layer_and_are_refused_when_unclear() {
    let windows = |fields: &[(&str, Value)]| {
        let mut model = Model::qwen3();
        fields.iter().for_each(|(field, value)| {
            model.set(field, value.clone());
        });
        model.read_config().unwrap().windows
    };
    assert_eq!(windows(&[]), [None, None], "set, but not used");
    let used = ("use_sliding_window", json!(true));
    let from = |n: usize| ("max_window_layers", json!(n));
    assert_eq!(windows(&[used.clone(), from(2)]), [None, None]);
    assert_eq!(windows(&[used.clone(), from(1)]), [None, Some(4096)]);
    let types = json!(["full_attention", "sliding_attention"]);
    assert_eq!(
        windows(&[used.clone(), from(1), ("layer_types", types.clone())]),
        [None, Some(4096)]
    );
    let text = qwen3_with("layer_types", types);
    assert_says(&text, &["`layer_types` says that layer 1 slides", "use_sliding_window"]);
    let text = qwen3_with("layer_types", json!(["full_attention"]));
    assert_says(&text, &["lists 1 layers", "num_hidden_layers is 2"]);
    let text = qwen3_without("use_sliding_window");
    assert_says(&text, &["`sliding_window` is set", "`use_sliding_window` is missing"]);
    let mut model = Model::qwen3();
    model.set("use_sliding_window", json!(true)).unset("max_window_layers");
    assert_says(&model.config_error(), &["`max_window_layers` is missing"]);
}

#[test]
fn other_models_are_refused_by_name_with_what_is_supported() {
    for class in ["LlamaForCausalLM", "Qwen2Model", "Qwen2VLForConditionalGeneration"] {
        let text = qwen3_with("architectures", json!([class]));
        assert_says(&text, &[class, "supported are Qwen2ForCausalLM", "Qwen3ForCausalLM"]);
    }
    assert_says(
        &qwen3_with("architectures", json!("x")),
        &["must be an array of strings", "\"x\""],
    );
    assert_says(
        &qwen3_with("num_experts", json!(128)),
        &["`num_experts` asks for a mixture of experts"],
    );
    assert_says(&qwen3_with("hidden_act", json!("gelu")), &["`hidden_act` is `gelu`", "silu"]);
}

#[test]
fn fields_that_change_numbers_and_unknown_fields_are_refused_by_name() {
    assert_says(
        &qwen3_with("final_logit_softcapping", json!(30.0)),
        &["`final_logit_softcapping`", "soft-capped"],
    );
    assert_says(&qwen3_with("logits_scaling", json!(8.0)), &["`logits_scaling` is 8.0", "only 1"]);
    assert_says(&qwen3_with("use_mrope", json!(true)), &["`use_mrope`", "multimodal RoPE"]);
    assert_says(&qwen3_with("mlp_bias", json!(true)), &["`mlp_bias`", "biases in the MLP"]);
    assert_says(
        &qwen3_with("dual_chunk_attention_config", json!({ "chunk_size": 262144 })),
        &["`dual_chunk_attention_config`"],
    );
    let mut model = Model::qwen3();
    model.set("magic_offset", json!(1)).set("another", json!("x"));
    assert_says(&model.config_error(), &["does not know", "`another`", "`magic_offset`"]);
}

#[test]
fn types_and_ranges_are_checked() {
    for bad in [
        json!("192"),
        json!(-1),
        json!(0),
        json!(1e30),
        json!(16.5),
        json!(16.0),
        json!([16]),
        json!(true),
    ] {
        let text = qwen3_with("hidden_size", bad.clone());
        assert_says(&text, &["`hidden_size` must be an integer from 1 to 1048576", "but is the"]);
    }
    assert_says(&qwen3_with("num_key_value_heads", json!(3)), &["is 3", "does not divide", "4"]);
    for bad in [json!(0.0), json!(-1e-6), json!(1.0)] {
        assert_says(&qwen3_with("rms_norm_eps", bad), &["`rms_norm_eps` must be positive"]);
    }
    assert_says(&qwen3_with("rms_norm_eps", json!("1e-6")), &["must be a number", "\"1e-6\""]);
    for bad in [json!(0), json!(1), json!(-1e6), json!(1e300)] {
        assert_says(&qwen3_with("rope_theta", bad), &["`rope_theta` must be a number above 1"]);
    }
    assert_says(
        &qwen3_with("tie_word_embeddings", json!(1)),
        &["must be true or false", "number 1"],
    );
    assert_says(
        &qwen3_with("torch_dtype", json!("int8")),
        &["`torch_dtype` is `int8`", "bfloat16"],
    );
    for bad in [json!(32), json!(-1), json!([2, 99]), json!("2"), json!(2.5)] {
        assert_says(&qwen3_with("eos_token_id", bad), &["`eos_token_id`", "below vocab_size 32"]);
    }
    let mut model = Model::qwen3();
    model
        .set("architectures", json!(["Qwen3MoeForCausalLM"]))
        .set("model_type", json!("qwen3_moe"))
        .set("num_experts", json!(4096))
        .set("num_experts_per_tok", json!(8))
        .set("norm_topk_prob", json!(true))
        .set("decoder_sparse_step", json!(1))
        .set("moe_intermediate_size", json!(8))
        .set("num_hidden_layers", json!(33));
    assert_says(&model.config_error(), &["`num_experts` is 4096 in each of 33 layers", "131072"]);
    let long = qwen3_with("hidden_size", json!("9".repeat(1000)));
    assert!(long.len() < 400, "a long value is cut: {long}");
}

/// What would choose other tokens and is not read; off, and 1 for factors, is no choice.
#[test]
fn a_generation_config_that_samples_otherwise_is_refused() {
    let model = Model::qwen3();
    let open = |text: &str| {
        model.file("generation_config.json", text);
        GenerationConfig::open(model.path())
    };
    let off = r#"{"num_beams": 1, "typical_p": 1.0, "no_repeat_ngram_size": 0, "top_h": null,
        "suppress_tokens": [], "top_k": 20}"#;
    assert_eq!(open(off).expect("nothing is on").sampling.top_k, 20);
    for (field, value) in [
        ("num_beams", "4"),
        ("no_repeat_ngram_size", "3"),
        ("suppress_tokens", "[5]"),
        ("top_h", "0.4"),
    ] {
        let text = open(&format!(r#"{{"{field}": {value}}}"#)).expect_err("refused").to_string();
        let named = format!("generation_config.json: `{field}` is {value}");
        assert!(text.contains(&named), "{text}");
    }
}

#[test]
fn the_generation_configs_eos_wins() {
    let model = Model::qwen3();
    model.file("generation_config.json", r#"{"eos_token_id": [5, 2], "temperature": 0.6}"#);
    assert_eq!(model.read_config().unwrap().eos_token_ids, [5, 2]);
    for without in [r#"{"eos_token_id": null}"#, r#"{"eos_token_id": []}"#, "{}"] {
        model.file("generation_config.json", without);
        assert_eq!(model.read_config().unwrap().eos_token_ids, [2]);
    }
    model.file("generation_config.json", r#"{"eos_token_id": 32}"#);
    assert_says(&model.config_error(), &["DIR/generation_config.json", "below vocab_size 32"]);
    let mut model = Model::qwen3();
    model.set("eos_token_id", Value::Null);
    assert!(model.read_config().unwrap().eos_token_ids.is_empty());
}

#[test]
fn a_missing_or_broken_file_says_so() {
    let model = Model::qwen3();
    let read = || model.message(Config::open(model.path()).map(|_| ()));
    assert_says(&read(), &["DIR/config.json", "there is no config"]);
    model.file("config.json", "{\"a\": ");
    assert_says(&read(), &["DIR/config.json", "is not valid JSON"]);
    model.file("config.json", r#"{"rope_theta": 1e4, "rope_theta": 1e6}"#);
    assert_says(&read(), &["`rope_theta` occurs twice"]);
    model.file("config.json", b"\xff\xfe");
    assert_says(&read(), &["is not valid JSON"]);
    let gone = model.message(Config::open(&model.path().join("gone")).map(|_| ()));
    assert_says(&gone, &["no such folder"]);
}

proptest::proptest! {
    #[test]
    fn no_value_of_any_field_panics(field in 0usize..22, pick in 0usize..14) {
        let values = [
            json!(null), json!(true), json!(0), json!(-1), json!(u64::MAX), json!(i64::MIN),
            json!(1e300), json!(1e-300), json!(0.5), json!("x"), json!([]), json!([[{}]]),
            json!({}), json!({ "rope_type": 1, "bits": "4" }),
        ];
        let mut model = Model::gptq();
        let name = model.config.keys().nth(field).cloned().unwrap_or_else(|| "unknown".into());
        model.set(&name, values[pick].clone());
        let text = Value::Object(model.config.clone()).to_string();
        let _ = Config::parse(&text, std::path::Path::new("config.json"));
    }
}
