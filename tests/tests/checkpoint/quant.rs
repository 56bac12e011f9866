//! AWQ, compressed-tensors and FP8: the descriptions, the tensors, and the two held against each other.

use assay_reference::checkpoint::Quantization;
use assay_reference::{Dtype, Tensor};
use serde_json::{Value, json};

use crate::support::{LINEARS, Model, assert_says, float};

const Q0: &str = "model.layers.0.self_attn.q_proj";
const DOWN1: &str = "model.layers.1.mlp.down_proj";

/// A Qwen3 whose linear layers are what `parts` makes of outputs and inputs.
fn model(description: Value, parts: impl Fn(usize, usize) -> Vec<(&'static str, Tensor)>) -> Model {
    let mut m = Model::qwen3();
    m.set("quantization_config", description);
    for layer in 0..2 {
        for (name, n, k) in LINEARS {
            let path = format!("model.layers.{layer}.{name}");
            m.tensors.remove(&format!("{path}.weight"));
            for (part, tensor) in parts(n, k) {
                m.put(&format!("{path}.{part}"), tensor);
            }
        }
    }
    m
}

fn words(shape: &[usize], word: u32) -> Tensor {
    Tensor::from_i32(shape, &vec![word as i32; shape.iter().product()])
}

fn awq() -> Model {
    let description = json!({
        "quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": true, "version": "gemm",
        "modules_to_not_convert": null,
    });
    model(description, |n, k| {
        vec![
            ("qweight", words(&[k, n / 8], 0x1234_5678)),
            ("qzeros", words(&[k / 8, n / 8], 0x7777_8888)),
            ("scales", float(Dtype::F16, &[k / 8, n])),
        ]
    })
}

fn compressed(symmetric: bool) -> Model {
    let description = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": null, "version": "0.19.0",
        "sparsity_config": {}, "transform_config": {},
        "config_groups": { "group_0": {
            "targets": ["Linear"], "input_activations": null, "output_activations": null,
            "weights": {
                "num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group",
                "group_size": 8, "actorder": "weight", "dynamic": false, "observer": "minmax",
            },
        } },
    });
    model(description, |n, k| {
        let mut parts = vec![
            ("weight_packed", words(&[n, k / 8], 0x1234_5678)),
            ("weight_scale", float(Dtype::Bf16, &[n, k / 8])),
            ("weight_shape", Tensor::from_i32(&[2], &[n as i32, k as i32])),
        ];
        if !symmetric {
            parts.push(("weight_zero_point", words(&[n.div_ceil(8), k / 8], 0x7777_7777)));
        }
        parts
    })
}

fn fp8() -> Model {
    let description = json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [16, 8],
        "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
    });
    model(description, |n, k| {
        let scales = [n.div_ceil(16), k.div_ceil(8)];
        vec![
            ("weight", float(Dtype::F8E4m3, &[n, k])),
            ("weight_scale_inv", float(Dtype::Bf16, &scales)),
        ]
    })
}

#[track_caller]
fn refused(mut m: Model, field: &str, value: Value, words: &[&str]) {
    m.set_quant(field, value);
    assert_says(&m.config_error(), words);
}

/// Sets a field of the weights' scheme.
fn set_weights(m: &mut Model, field: &str, value: Value) {
    m.config["quantization_config"]["config_groups"]["group_0"]["weights"][field] = value;
}

#[test]
fn each_opens_without_warnings() {
    for m in [awq(), compressed(true), compressed(false), fp8()] {
        let checkpoint = m.open().unwrap();
        assert_eq!(checkpoint.warnings().join("\n"), "");
        checkpoint.scan_finite().unwrap();
    }
}

#[test]
fn awq_fields_are_read_or_refused() {
    refused(awq(), "bits", json!(8), &["`quantization_config.bits` is 8", "AWQ", "4 bits"]);
    refused(awq(), "version", json!("gemv"), &["version` is `gemv`", "only gemm"]);
    refused(awq(), "format", json!("marlin"), &["format` is `marlin`"]);
    refused(awq(), "version", Value::Null, &["version` is missing", "gemm"]);
    refused(awq(), "zero_point", Value::Null, &["zero_point` is missing"]);
    refused(awq(), "sym", json!(true), &["sym` is true", "`zero_point`"]);
    refused(awq(), "desc_act", json!(true), &["desc_act` asks for rows in the order"]);
    refused(awq(), "lm_head", json!(true), &["a quantised lm_head"]);
    refused(awq(), "pack_dtype", json!("int16"), &["`int16`", "int32"]);
    refused(awq(), "modules_to_not_convert", json!(["mlp.*"]), &["`mlp.*`", "pattern"]);
    refused(awq(), "strange", json!(1), &["strange` is not a field of AWQ"]);
    let mut m = awq();
    m.set_quant("group_size", json!(7));
    assert_says(&m.config_error(), &["is 32 x 16", "groups of one size"]);
    let mut m = awq();
    m.set_quant("group_size", json!(4));
    assert_says(&m.error(), &["imply group_size 8", "gives 4"]);
}

#[test]
fn awq_without_zero_points_notes_others_than_8() {
    let mut m = awq();
    m.set_quant("zero_point", json!(false));
    assert_says(&m.open().unwrap().warnings().join("\n"), &["zero_point is false", "is 8"]);
    for layer in 0..2 {
        for (name, n, k) in LINEARS {
            let path = format!("model.layers.{layer}.{name}.qzeros");
            m.put(&path, words(&[k / 8, n / 8], 0x8888_8888));
        }
    }
    assert_eq!(m.open().unwrap().warnings().join("\n"), "");
}

#[test]
fn compressed_fields_are_read_or_refused() {
    let c = || compressed(true);
    refused(c(), "format", json!("dense"), &["format` is `dense`", "pack-quantized"]);
    refused(c(), "quantization_status", json!("frozen"), &["`frozen`"]);
    refused(c(), "ignore", json!([]), &["ignore` does not name lm_head"]);
    refused(c(), "ignore", json!(["lm_head", "re:("]), &["re:(", "regular expression"]);
    refused(c(), "ignore", json!(["lm_head", "Linear"]), &["leaves every layer out"]);
    refused(c(), "kv_cache_scheme", json!({ "num_bits": 8 }), &["quantised key and value cache"]);
    refused(c(), "sparsity_config", json!({ "format": "24" }), &["sparse weights"]);
    refused(c(), "config_groups", json!({}), &["has 0 groups"]);
    refused(c(), "strange", json!(1), &["strange` is not a field of compressed-tensors"]);
    for (field, value, say) in [
        ("num_bits", json!(3), "is 3"),
        ("type", json!("float"), "`float`"),
        ("strategy", json!("tensor"), "`tensor`"),
        ("strategy", json!("channel"), "`channel`"),
        ("group_size", Value::Null, "is missing"),
        ("symmetric", Value::Null, "is missing"),
        ("dynamic", json!(true), "fixed scales"),
        ("actorder", json!("sideways"), "must be null"),
        ("block_structure", json!([8, 8]), "scales for blocks"),
        ("strange", json!(1), "not a field"),
    ] {
        let mut m = c();
        set_weights(&mut m, field, value);
        let text = m.config_error();
        assert_says(&text, &["config_groups.group_0.weights.", say]);
    }
    for (field, value) in [("targets", json!(["re:.*q_proj"])), ("input_activations", json!({}))] {
        let mut m = c();
        m.config["quantization_config"]["config_groups"]["group_0"][field] = value;
        assert_says(&m.config_error(), &["config_groups.group_0.", field]);
    }
}

#[test]
fn compressed_tensors_are_held_against_the_description() {
    let mut m = compressed(true);
    m.put(&format!("{Q0}.weight_shape"), Tensor::from_i32(&[2], &[16, 32]));
    assert_says(&m.error(), &["states a weight of [16, 32]", "implies [32, 16]"]);
    let mut m = compressed(false);
    m.take(&format!("{Q0}.weight_zero_point"));
    assert_says(&m.error(), &[&format!("`{Q0}.weight_zero_point`"), "is missing", "[4, 2]"]);
    let mut m = compressed(true);
    set_weights(&mut m, "actorder", json!("group"));
    assert_says(&m.error(), &["weight_g_idx`", "is missing"]);
    for layer in 0..2 {
        for (name, _, k) in LINEARS {
            let index: Vec<i32> = (0..k as i32).map(|i| i % (k as i32 / 8)).collect();
            let path = format!("model.layers.{layer}.{name}.weight_g_idx");
            m.put(&path, Tensor::from_i32(&[k], &index));
        }
    }
    assert_eq!(m.open().unwrap().warnings().join("\n"), "");
    m.put(&format!("{Q0}.weight_g_idx"), Tensor::from_i32(&[16], &[2; 16]));
    assert_says(&m.error(), &["input row 0 has group 2", "from 0 to 1"]);
    let mut m = compressed(true);
    set_weights(&mut m, "group_size", json!(4));
    assert_says(&m.error(), &["imply group_size 8", "gives 4"]);
}

#[test]
fn fp8_fields_are_read_or_refused() {
    refused(fp8(), "fmt", json!("e5m2"), &["fmt` is `e5m2`", "only e4m3"]);
    refused(fp8(), "activation_scheme", json!("static"), &["`static`", "only dynamic"]);
    refused(fp8(), "activation_scheme", Value::Null, &["activation_scheme` is missing"]);
    refused(fp8(), "scale_fmt", json!("ue8m0"), &["`ue8m0`"]);
    refused(fp8(), "weight_block_size", Value::Null, &["weight_block_size` is missing"]);
    refused(fp8(), "weight_block_size", json!([128]), &["two positive sizes"]);
    refused(fp8(), "weight_block_size", json!([0, 128]), &["two positive sizes"]);
    refused(fp8(), "ignored_layers", json!(["mlp"]), &["lists other modules than"]);
    refused(fp8(), "dequantize", json!(true), &["a conversion at load"]);
    refused(fp8(), "strange", json!(1), &["strange` is not a field of FP8"]);
    let mut m = fp8();
    m.put(&format!("{Q0}.weight_scale_inv"), float(Dtype::Bf16, &[2, 1]));
    assert_says(&m.error(), &["weight_scale_inv`", "expected shape [2, 2]"]);
    let mut m = fp8();
    m.put(&format!("{Q0}.weight"), float(Dtype::Bf16, &[32, 16]));
    assert_says(&m.error(), &["expected f8e4m3", "found bf16"]);
    let mut m = fp8();
    m.put(&format!("{DOWN1}.weight_scale_inv"), float(Dtype::F64, &[1, 3]));
    assert_says(&m.error(), &["expected f16, bf16 or f32", "found f64"]);
}

#[test]
fn nan_in_codes_and_scales_is_found() {
    let mut m = fp8();
    let codes = Tensor::from_bytes(Dtype::F8E4m3, vec![32, 16], vec![0xff; 512]).unwrap();
    m.put(&format!("{Q0}.weight"), codes);
    let text = m.message(m.open().unwrap().scan_finite());
    assert_says(&text, &[&format!("`{Q0}.weight`"), "NaN at element 0", "512 of its 512"]);
    let mut m = compressed(true);
    let name = format!("{Q0}.weight_scale");
    m.put(&name, Tensor::from_f64(Dtype::Bf16, &[32, 2], &[f64::INFINITY; 64]));
    assert_says(&m.message(m.open().unwrap().scan_finite()), &[&name, "an infinity"]);
}

#[test]
fn layers_left_out_are_floats_by_path() {
    let mut m = fp8();
    let list = json!(["lm_head", "model.layers.1.mlp.down_proj", "mlp.gate"]);
    m.set_quant("modules_to_not_convert", list);
    assert_says(&m.error(), &[&format!("`{DOWN1}.weight`"), "found f8e4m3"]);
    m.take(&format!("{DOWN1}.weight_scale_inv"));
    m.put(&format!("{DOWN1}.weight"), float(Dtype::Bf16, &[16, 24]));
    let quant = m.open().unwrap().config().quantization.clone().expect("quantised");
    assert!(!quant.covers(DOWN1) && quant.covers("model.layers.0.mlp.down_proj"));
    assert!(quant.covers("model.layers.0.mlp.gate_proj"));
    assert!(!quant.covers("model.layers.0.mlp.gate"), "a router");
    assert!(quant.covers("model.layers.0.mlp.experts.17.gate_proj"));

    let mut m = compressed(true);
    m.set_quant("ignore", json!(["lm_head", "re:.*mlp.gate$", DOWN1]));
    let quant = m.read_config().unwrap().quantization.expect("quantised");
    assert!(matches!(quant, Quantization::CompressedTensors(_)));
    assert!(!quant.covers(DOWN1) && !quant.covers("model.layers.0.mlp.gate"));
    assert!(quant.covers("model.layers.0.mlp.gate_proj"));
}

#[test]
fn tensors_of_another_format_are_recognised() {
    let mut m = awq();
    m.config["quantization_config"] = Model::gptq().config["quantization_config"].clone();
    assert_says(&m.error(), &["as in AWQ's files"]);
    let mut m = Model::gptq();
    m.config["quantization_config"] = awq().config["quantization_config"].clone();
    assert_says(&m.error(), &["as in GPTQ's files"]);
    let mut m = fp8();
    m.config["quantization_config"] = compressed(true).config["quantization_config"].clone();
    assert_says(&m.error(), &["compressed-tensors", ".weight_packed", ".weight_scale_inv"]);
    let mut m = fp8();
    m.unset("quantization_config");
    assert_says(&m.error(), &["f8e4m3", "floating-point dtype (bf16"]);
}

#[test]
fn gptq_widths_have_their_words() {
    let mut m = Model::gptq();
    for (bits, fits) in [(2, false), (3, false), (8, true)] {
        m.set_quant("bits", json!(bits));
        let config = m.read_config();
        assert_eq!(config.is_ok(), fits, "{bits} bits");
        if let Ok(config) = config {
            let parts = config.quantization.expect("quantised").parts([32, 16]);
            assert_eq!(parts[0].2, [4, 32], "four to a word");
        }
    }
    m.set_quant("bits", json!(3));
    assert_says(&m.config_error(), &["32 3-bit values into three words", "multiples of 32"]);
}
