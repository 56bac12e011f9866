//! GPTQ: the description, the packed tensors, and the two held against each other.

use assay_reference::checkpoint::{Gptq, GptqFormat, Quantization};
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

use crate::support::{Model, assert_says, float};

const Q0: &str = "model.layers.0.self_attn.q_proj";
const DOWN1: &str = "model.layers.1.mlp.down_proj";

#[track_caller]
fn with(field: &str, value: Value) -> String {
    let mut model = Model::gptq();
    model.set_quant(field, value);
    model.config_error()
}

fn quantization(model: &Model) -> Gptq {
    match model.read_config().unwrap().quantization.expect("quantised") {
        Quantization::Gptq(gptq) => gptq,
        other => panic!("{other} is not GPTQ"),
    }
}

#[test]
fn a_quantised_checkpoint_opens_without_warnings() {
    let checkpoint = Model::gptq().open().unwrap();
    assert_eq!(checkpoint.warnings().join("\n"), "");
    let expected = Gptq {
        bits: 4,
        group_size: Some(8),
        sym: true,
        desc_act: false,
        format: GptqFormat::V1,
        modules: None,
        excluded: Default::default(),
    };
    assert_eq!(checkpoint.config().quantization, Some(Quantization::Gptq(expected)));
    assert_eq!(checkpoint.tensor(&format!("{DOWN1}.qweight")).unwrap().shape(), [3, 16]);
    assert_eq!(checkpoint.names().filter(|n| n.ends_with(".g_idx")).count(), 14);
    checkpoint.scan_finite().unwrap();
}

#[test]
fn formats_are_told_apart() {
    let mut model = Model::gptq();
    model.set_quant("checkpoint_format", json!("gptq_v2"));
    assert_eq!(quantization(&model).format, GptqFormat::V2);
    model.set_quant("format", json!("gptq"));
    assert_says(
        &model.config_error(),
        &["quantization_config.", "checkpoint_format", "`format`", "differ by one"],
    );
    model.set_quant("checkpoint_format", Value::Null).set_quant("format", Value::Null);
    assert_eq!(quantization(&model).format, GptqFormat::V1, "the format before there were two");
    assert_says(&with("checkpoint_format", json!("marlin")), &["`marlin`", "gptq and gptq_v2"]);
}

#[test]
fn other_methods_and_widths_are_refused_by_name() {
    assert_says(
        &with("quant_method", json!("bitsandbytes")),
        &["`quantization_config.quant_method` is `bitsandbytes`", "assay reads gptq, awq"],
    );
    assert_says(&with("quant_method", Value::Null), &["quant_method` is missing"]);
    assert_says(&with("method", json!("gptaq")), &["method` is `gptaq`"]);
    assert_says(&with("method", json!("awq")), &["quant_method` says `gptq`", "says `awq`"]);
    assert_says(
        &with("bits", json!(5)),
        &["`quantization_config.bits` is 5", "supported at 2, 3, 4, 8 bits"],
    );
    assert_says(&with("bits", json!("4")), &["must be an integer", "\"4\""]);
    assert_says(&with("group_size", json!(0)), &["group_size` is 0", "-1"]);
    assert_says(&with("group_size", json!(-2)), &["must be an integer from -1"]);
    for field in ["bits", "group_size", "sym", "desc_act"] {
        assert_says(
            &with(field, Value::Null),
            &[&format!("{field}` is missing"), "does not guess"],
        );
    }
    assert_says(&with("pack_dtype", json!("int16")), &["`int16`", "int32"]);
    assert_says(&with("lm_head", json!(true)), &["lm_head` asks for a quantised lm_head"]);
    assert_says(
        &with("dynamic", json!({ "x": { "bits": 8 } })),
        &["dynamic` asks for settings of single layers"],
    );
    assert_says(&with("dynamic", json!({ "-:(": {} })), &["dynamic` has `-:(`", "no regular"]);
    assert_says(&with("strange", json!(1)), &["strange` is not a field of GPTQ that assay knows"]);
    let mut model = Model::gptq();
    model
        .set_quant("dynamic", json!({}))
        .set_quant("lm_head", json!(false))
        .set_quant("meta", json!({ "a": 1 }));
    model.read_config().unwrap();
}

#[test]
fn layers_left_out_by_an_expression_are_stored_as_floats() {
    let mut model = Model::gptq();
    model.set_quant("dynamic", json!({ "-:.*mlp\\.up_proj": {}, "-:self_attn": {} }));
    let gptq = quantization(&model);
    // From the start of the name, as Python's re.match.
    assert!(!gptq.covers("model.layers.3.mlp.up_proj"));
    assert!(gptq.covers("model.layers.3.self_attn.q_proj"));
    assert_says(&model.error(), &["`model.layers.0.mlp.up_proj.weight`: is missing"]);
}

#[test]
fn layers_left_out_are_stored_as_floats() {
    let mut model = Model::gptq();
    model.set_quant(
        "modules_in_block_to_quantize",
        json!([["self_attn.q_proj", "self_attn.k_proj"], ["mlp.up_proj"]]),
    );
    let gptq = quantization(&model);
    assert!(gptq.covers("mlp.up_proj") && !gptq.covers("mlp.down_proj"));
    assert_says(&model.error(), &["`model.layers.0.self_attn.v_proj.weight`: is missing"]);
    assert_says(
        &with("modules_in_block_to_quantize", json!(["mlp.left_proj"])),
        &["names `mlp.left_proj`", "mlp.down_proj"],
    );
    assert_says(&with("modules_in_block_to_quantize", json!([])), &["names no layer"]);
    assert_says(
        &with("modules_in_block_to_quantize", json!([1])),
        &["must be an array of the layers' names"],
    );
}

#[test]
fn layers_that_cannot_be_packed_are_refused() {
    let mut model = Model::gptq();
    model.set("intermediate_size", json!(20));
    assert_says(&model.config_error(), &["`mlp.gate_proj` is 20 x 16", "multiples of 8"]);
}

#[test]
fn quantize_config_is_read_alone_and_held_against_config_json() {
    let mut model = Model::gptq();
    let inner = model.config.remove("quantization_config").unwrap();
    let outer = json!({
        "bits": 4, "group_size": 8, "damp_percent": 0.01, "desc_act": false, "static_groups": false,
        "sym": true, "true_sequential": true, "model_name_or_path": null, "model_file_base_name": "model",
    });
    model.file("quantize_config.json", outer.to_string());
    assert_eq!(quantization(&model).group_size, Some(8));
    model.open().unwrap();

    model.set("quantization_config", inner);
    model.open().unwrap();
    for (field, value, words) in [
        (
            "group_size",
            json!(16),
            "`group_size` is 8, but `quantization_config.group_size` in config.json is 16",
        ),
        ("desc_act", json!(true), "`desc_act` is false, but"),
        ("sym", json!(false), "`sym` is true, but"),
        ("checkpoint_format", json!("gptq_v2"), "`checkpoint_format` is v1, but"),
    ] {
        let old = model.config["quantization_config"][field].clone();
        model.set_quant(field, value);
        assert_says(&model.config_error(), &["DIR/quantize_config.json", words, "engines differ"]);
        model.set_quant(field, old);
    }
    let awq = r#"{"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": true, "version": "gemm"}"#;
    model.file("quantize_config.json", awq);
    assert_says(
        &model.config_error(),
        &["DIR/quantize_config.json", "`quant_method` is that of AWQ", "that of GPTQ"],
    );
}

#[test]
fn a_wrong_group_size_is_told_from_the_scales() {
    let mut model = Model::gptq();
    model.set_quant("group_size", json!(4));
    let text = model.error();
    assert_says(
        &text,
        &[
            &format!("`{Q0}.qzeros`"),
            "expected shape [4, 4]",
            "found [2, 4]",
            "imply group_size 8",
            "gives 4",
        ],
    );
    model.set_quant("group_size", json!(-1));
    assert_says(&model.error(), &["imply group_size 8", "gives -1"]);
}

#[test]
fn one_group_and_a_last_short_group_are_right() {
    let gptq = Gptq {
        bits: 4,
        group_size: None,
        sym: true,
        desc_act: false,
        format: GptqFormat::V1,
        modules: None,
        excluded: Default::default(),
    };
    assert_eq!(gptq.groups(4096), 1);
    assert_eq!(Gptq { group_size: Some(128), ..gptq }.groups(4096 + 8), 33);
}

#[test]
fn packed_tensors_have_their_dtypes() {
    let mut model = Model::gptq();
    model.put(&format!("{Q0}.qweight"), float(Dtype::F32, &[2, 32]));
    assert_says(&model.error(), &[&format!("`{Q0}.qweight`"), "expected i32", "found f32"]);
    let mut model = Model::gptq();
    model.put(&format!("{Q0}.scales"), float(Dtype::F32, &[2, 32]));
    assert_says(&model.error(), &[&format!("`{Q0}.scales`"), "expected f16 or bf16", "found f32"]);
    let mut model = Model::gptq();
    model.take(&format!("{Q0}.g_idx"));
    assert_says(&model.error(), &[&format!("`{Q0}.g_idx`"), "is missing", "[16]"]);
}

#[test]
fn group_indices_are_checked() {
    for bad in [2, -1, i32::MIN, i32::MAX] {
        let mut model = Model::gptq();
        let mut index: Vec<i32> = (0..16).map(|k| k / 8).collect();
        index[5] = bad;
        model.put(&format!("{Q0}.g_idx"), Tensor::from_i32(&[16], &index));
        assert_says(
            &model.error(),
            &[&format!("`{Q0}.g_idx`"), &format!("input row 5 has group {bad}"), "from 0 to 1"],
        );
    }
    let mut model = Model::gptq();
    let shuffled: Vec<i32> = (0..16).map(|k| k % 2).collect();
    model.put(&format!("{Q0}.g_idx"), Tensor::from_i32(&[16], &shuffled));
    assert_says(&model.open().unwrap().warnings().join("\n"), &[Q0, "desc_act is false"]);
    model.set_quant("desc_act", json!(true));
    assert_eq!(model.open().unwrap().warnings().join("\n"), "");
    model.put(&format!("{Q0}.g_idx"), Tensor::from_i32(&[16], &[0; 16]));
    assert_says(&model.open().unwrap().warnings().join("\n"), &[Q0, "more rows than group_size"]);
}

#[test]
fn spare_biases_must_be_zero() {
    let mut model = Model::gptq();
    model.put(&format!("{DOWN1}.bias"), Tensor::from_f64(Dtype::F16, &[16], &[0.0; 16]));
    assert_says(
        &model.open().unwrap().warnings().join("\n"),
        &["all are zero", &format!("`{DOWN1}.bias`")],
    );
    model.put(&format!("{DOWN1}.bias"), float(Dtype::F16, &[16]));
    assert_says(
        &model.error(),
        &[
            "1 tensor that Qwen3ForCausalLM never reads",
            &format!("`{DOWN1}.bias`"),
            "a bias left out",
        ],
    );
}

#[test]
fn packed_weights_without_a_description_are_recognised() {
    let mut model = Model::gptq();
    model.unset("quantization_config");
    let text = model.error();
    assert_says(
        &text,
        &[
            &format!("`{Q0}.weight`"),
            "is missing",
            "packed weights (.qweight)",
            "quantization_config",
        ],
    );
    let mut model = Model::qwen3();
    model
        .config
        .insert("quantization_config".into(), Model::gptq().config["quantization_config"].clone());
    assert_says(&model.error(), &[&format!("`{Q0}.qweight`"), "no tensor is packed"]);
}
