//! The tensors against the config: all there, all read, each in its shape and dtype.

use assay_reference::checkpoint::{Checkpoint, Kind, expected};
use assay_reference::{Dtype, Tensor};
use serde_json::json;

use crate::support::{Model, assert_says, float};

const Q0: &str = "model.layers.0.self_attn.q_proj.weight";

#[test]
fn whole_checkpoints_open_and_every_tensor_is_expected_once() {
    for model in [Model::qwen2(), Model::qwen3(), Model::gptq()] {
        let checkpoint = model.open().unwrap();
        assert_eq!(checkpoint.warnings().join("\n"), "");
        assert_eq!(checkpoint.dir(), model.path());
        checkpoint.scan_finite().unwrap();
        let mut names: Vec<&str> = checkpoint.names().collect();
        names.sort_unstable();
        assert_eq!(names, model.tensors.keys().collect::<Vec<_>>());
        for e in checkpoint.expected() {
            assert_eq!(checkpoint.tensor(&e.name).unwrap(), model.tensors[&e.name]);
        }
        assert_eq!(expected(checkpoint.config()), checkpoint.expected());
    }
}

#[test]
fn the_order_is_the_forwards_and_the_kinds_say_the_dtypes() {
    let checkpoint = Model::qwen3().open().unwrap();
    let names: Vec<&str> = checkpoint.names().take(9).collect();
    let layer = "model.layers.0.";
    assert_eq!(names[0], "model.embed_tokens.weight");
    assert_eq!(
        names[1..].iter().map(|n| n.strip_prefix(layer).unwrap()).collect::<Vec<_>>(),
        [
            "input_layernorm.weight",
            "self_attn.q_proj.weight",
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
            "self_attn.o_proj.weight",
            "post_attention_layernorm.weight",
        ]
    );
    assert!(Kind::Float.allows(Dtype::F64) && !Kind::Float.allows(Dtype::I32));
    assert!(Kind::Scales.allows(Dtype::Bf16) && !Kind::Scales.allows(Dtype::F32));
    assert!(Kind::Packed.allows(Dtype::I32) && !Kind::Packed.allows(Dtype::I64));
}

#[test]
fn a_missing_tensor_is_named_with_its_shape() {
    let mut model = Model::qwen2();
    model.take("model.layers.1.self_attn.k_proj.bias");
    let text = model.error();
    assert_says(
        &text,
        &[
            "DIR: tensor `model.layers.1.self_attn.k_proj.bias`: is missing",
            "Qwen2ForCausalLM",
            "[16]",
        ],
    );
    model.take("model.norm.weight");
    assert_says(&model.error(), &["1 other tensor missing as well: `model.norm.weight`"]);
    let mut model = Model::qwen2();
    model.take("lm_head.weight");
    assert_says(&model.error(), &["`lm_head.weight`", "tie_word_embeddings must be true"]);
}

#[test]
fn q_projs_rows_tell_the_head_dim() {
    let mut model = Model::qwen3();
    model.set("head_dim", json!(4));
    assert_says(
        &model.error(),
        &[
            "DIR/model.safetensors",
            Q0,
            "expected shape [16, 16]",
            "found [32, 16]",
            "32 rows",
            "num_attention_heads 4",
            "imply head_dim 8",
            "gives 4",
        ],
    );
    // The known damage: a Qwen3 whose config became Qwen2's and lost head_dim.
    let mut model = Model::qwen3();
    model
        .unset("head_dim")
        .set("architectures", json!(["Qwen2ForCausalLM"]))
        .set("model_type", json!("qwen2"));
    assert_says(&model.error(), &["imply head_dim 8", "this is Qwen3ForCausalLM"]);
    let mut model = Model::qwen3();
    model.put(Q0, float(Dtype::Bf16, &[30, 16]));
    assert_says(&model.error(), &["30 rows are no multiple of num_attention_heads 4"]);
    let mut model = Model::gptq();
    model.set("head_dim", json!(16));
    assert_says(&model.error(), &["q_proj.qweight", "imply head_dim 8", "gives 16"]);
}

#[test]
fn other_wrong_shapes_name_both() {
    let mut model = Model::qwen3();
    model.set("vocab_size", json!(40));
    assert_says(
        &model.error(),
        &["`model.embed_tokens.weight`", "[40, 16]", "[32, 16]", "vocab_size is 40"],
    );
    let mut model = Model::qwen3();
    model.put("model.norm.weight", float(Dtype::Bf16, &[1, 16]));
    assert_says(&model.error(), &["`model.norm.weight`", "[16]", "[1, 16]"]);
    let mut model = Model::qwen3();
    model.put(Q0, float(Dtype::Bf16, &[]));
    assert_says(&model.error(), &[Q0, "found []"]);
}

#[test]
fn a_wrong_dtype_names_both() {
    let mut model = Model::qwen3();
    model.put("model.norm.weight", Tensor::from_i32(&[16], &[1; 16]));
    assert_says(
        &model.error(),
        &["`model.norm.weight`", "expected a floating-point dtype", "found i32"],
    );
}

#[test]
fn a_float_dtype_other_than_the_configs_is_a_warning() {
    let mut model = Model::qwen3();
    model.put("model.norm.weight", float(Dtype::F32, &[16]));
    let checkpoint = model.open().unwrap();
    assert_says(
        &checkpoint.warnings().join("\n"),
        &["1 tensor not stored as bf16", "`model.norm.weight`"],
    );
}

#[test]
fn tensors_that_nothing_reads_are_listed() {
    let mut model = Model::qwen3();
    model.put("model.layers.0.self_attn.q_proj.bias", float(Dtype::Bf16, &[32]));
    assert_says(
        &model.error(),
        &[
            "holds 1 tensor that Qwen3ForCausalLM never reads",
            "`model.layers.0.self_attn.q_proj.bias`",
            "a bias left out",
        ],
    );
    let mut model = Model::qwen3();
    model.set("num_hidden_layers", json!(1));
    let text = model.error();
    assert_says(
        &text,
        &["holds 11 tensors", "and 6 more", "the files hold 2 layers, num_hidden_layers is 1"],
    );
    let mut model = Model::qwen3();
    model.set("num_hidden_layers", json!(3));
    assert_says(
        &model.error(),
        &["`model.layers.2.input_layernorm.weight`", "the files hold 2 layers"],
    );
    let mut model = Model::qwen3();
    model.put("model.layers.18446744073709551615.x", float(Dtype::Bf16, &[1]));
    assert_says(&model.error(), &["never reads", "model.layers.18446744073709551615.x"]);
    let mut model = Model::qwen2();
    for layer in 0..2 {
        for norm in ["q_norm", "k_norm"] {
            model.put(
                &format!("model.layers.{layer}.self_attn.{norm}.weight"),
                float(Dtype::Bf16, &[8]),
            );
        }
    }
    assert_says(&model.error(), &["holds 4 tensors", "q_norm", "this is Qwen3ForCausalLM"]);
}

#[test]
fn a_qwen2_under_the_name_of_qwen3_is_recognised() {
    let mut model = Model::qwen2();
    model.set("architectures", json!(["Qwen3ForCausalLM"])).set("model_type", json!("qwen3"));
    assert_says(&model.error(), &["q_norm.weight", "is missing", "this is Qwen2ForCausalLM"]);
}

#[test]
fn a_tied_head_may_be_stored_only_if_it_is_the_embedding() {
    let mut model = Model::qwen3();
    model.put("lm_head.weight", model.tensors["model.embed_tokens.weight"].clone());
    let checkpoint = model.open().unwrap();
    assert_says(&checkpoint.warnings().join("\n"), &["`lm_head.weight` repeats the embedding"]);
    let other =
        model.tensors["model.embed_tokens.weight"].map(|i, x| if i == 500 { 9.0 } else { x });
    model.put("lm_head.weight", other);
    assert_says(
        &model.error(),
        &[
            "`lm_head.weight`",
            "tie_word_embeddings is true",
            "differs from `model.embed_tokens.weight`",
        ],
    );
}

#[test]
fn stored_frequencies_are_harmless() {
    let mut model = Model::qwen3();
    model.put("model.layers.0.self_attn.rotary_emb.inv_freq", float(Dtype::F32, &[4]));
    assert_says(&model.open().unwrap().warnings().join("\n"), &["inv_freq", "rope_theta"]);
}

#[test]
fn a_tensor_that_is_not_there_is_an_error_that_knows_about_tying() {
    let checkpoint = Model::qwen3().open().unwrap();
    let text = checkpoint.tensor("lm_head.weight").unwrap_err().to_string();
    assert_says(&text, &["`lm_head.weight`", "tied to `model.embed_tokens.weight`"]);
    assert!(checkpoint.tensor("nothing").is_err());
}

#[test]
fn values_that_are_not_finite_are_found_with_their_place() {
    for (dtype, value, word) in [
        (Dtype::Bf16, f64::NAN, "NaN"),
        (Dtype::F32, f64::NEG_INFINITY, "an infinity"),
        (Dtype::F16, f64::INFINITY, "an infinity"),
        (Dtype::F64, f64::NAN, "NaN"),
    ] {
        let mut model = Model::qwen3();
        let bad = float(dtype, &[32, 16]).to_f64();
        let bad: Vec<f64> = bad
            .iter()
            .enumerate()
            .map(|(i, &x)| if i == 37 || i == 99 { value } else { x })
            .collect();
        model.put(Q0, Tensor::from_f64(dtype, &[32, 16], &bad));
        let norm: Vec<f64> = (0..16).map(|i| if i == 3 { f64::NAN } else { 1.0 }).collect();
        model.put("model.norm.weight", Tensor::from_f64(Dtype::Bf16, &[16], &norm));
        let checkpoint = model.open().unwrap();
        let text = model.message(checkpoint.scan_finite());
        assert_says(
            &text,
            &[
                "DIR/model.safetensors",
                Q0,
                word,
                "element 37 (index [2, 5])",
                "2 of its 512 values",
                "1 other tensor as well: `model.norm.weight`",
            ],
        );
    }
}

#[test]
fn a_truncated_shard_is_refused_when_opening() {
    let model = Model::qwen3();
    model.open().unwrap();
    let path = model.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    let text = model.message(Checkpoint::open(model.path()).map(|_| ()));
    assert_says(&text, &["DIR/model.safetensors", "100 bytes are missing", "beyond the end"]);
}
