//! Descriptions of a quantisation that the data contradict.

use std::fs;

use assay_reference::Tensor;
use assay_reference::ops::Tensors;
use assay_tests::damage::Copy;
use serde_json::{Map, Value, json};

use super::{FILE, found, qwen3};

const DOWN: &str = "model.layers.1.mlp.down_proj";

/// A GPTQ checkpoint (4 bits, v1, symmetric, groups of 32, desc_act) with one description.
fn gptq(edit: impl FnOnce(&mut Map<String, Value>)) -> Copy {
    let copy = Copy::of("checkpoints/gptq-qwen3");
    fs::remove_file(copy.file("quantize_config.json")).expect("removed");
    copy.json("config.json", |c| {
        edit(c["quantization_config"].as_object_mut().expect("an object"))
    });
    copy
}

fn set(field: &'static str, value: Value) -> impl Fn(&mut Map<String, Value>) {
    move |q| {
        q.insert(field.into(), value.clone());
    }
}

#[test]
fn one_description_is_enough() {
    found(&gptq(|_| {}), &[], &[]);
}

#[test]
fn fields_that_the_data_contradict() {
    let label = |q: &mut Map<String, Value>| {
        set("checkpoint_format", json!("gptq_v2"))(q);
        q.remove("format");
    };
    found(&gptq(label), &["A455"], &["stored zero point is 7", "gptq (v1)"]);
    found(&gptq(set("desc_act", json!(false))), &["A456"], &["not in order"]);
    found(&gptq(set("group_size", json!(64))), &["A454"], &["groups of 32"]);
    found(&gptq(set("group_size", json!(-1))), &["A454"], &["groups of 32"]);
    found(&gptq(set("bits", json!(8))), &["A453"], &["4-bit values"]);
    found(&gptq(set("quant_method", json!("awq"))), &["A452"], &["along the inputs"]);
    found(&gptq(set("bits", json!("four"))), &["A45B"], &["bits"]);
}

/// A label that is wrong on data whose zero points vary: the codes tell.
#[test]
fn an_asymmetric_layer_under_the_wrong_label() {
    let copy = gptq(|q| {
        set("checkpoint_format", json!("gptq_v2"))(q);
        q.remove("format");
        set("sym", json!(false))(q);
    });
    // Codes and zero points of each group move together, so that the layer is asymmetric and its weights stay.
    copy.tensors(FILE, |t| {
        let names: Vec<String> = t.keys().filter(|n| n.ends_with(".qzeros")).cloned().collect();
        for name in names {
            shift(t, name.trim_end_matches(".qzeros"));
        }
    });
    found(&copy, &["A455"], &["codes lie"]);
}

/// Moves codes and zero point of every second column up by two, where no code leaves its range.
fn shift(t: &mut Tensors, layer: &str) {
    let [w, z, g] = ["qweight", "qzeros", "g_idx"].map(|p| t[&format!("{layer}.{p}")].clone());
    let (rows, n, groups) = (w.rows(), w.cols(), z.rows());
    let mut codes: Vec<u32> = (0..w.len()).map(|i| w.get_i64(i) as u32).collect();
    let mut zeros: Vec<u32> = (0..z.len()).map(|i| z.get_i64(i) as u32).collect();
    for group in 0..groups {
        for c in 0..n {
            let inputs: Vec<usize> =
                (0..g.len()).filter(|k| g.get_i64(*k) == group as i64).collect();
            let at = |k: usize| ((k / 8) * n + c, 4 * (k % 8));
            let most = inputs.iter().map(|k| codes[at(*k).0] >> at(*k).1 & 15).max().unwrap_or(15);
            let up = (15 - most).min((c % 4) as u32);
            for k in &inputs {
                codes[at(*k).0] += up << at(*k).1;
            }
            zeros[group * z.cols() + c / 8] += up << (4 * (c % 8));
        }
    }
    let tensor = |shape: &[usize], values: &[u32]| {
        Tensor::from_i32(shape, &values.iter().map(|v| *v as i32).collect::<Vec<_>>())
    };
    t.insert(format!("{layer}.qweight"), tensor(&[rows, n], &codes));
    t.insert(format!("{layer}.qzeros"), tensor(&[groups, z.cols()], &zeros));
}

#[test]
fn data_that_the_description_does_not_allow() {
    let edit = |copy: &Copy, part: &str, value: i32| {
        copy.tensors(FILE, |t| {
            let name = format!("{DOWN}.{part}");
            let old = &t[&name];
            let mut values: Vec<i32> = (0..old.len()).map(|i| old.get_i64(i) as i32).collect();
            values[0] = value;
            let new = Tensor::from_i32(old.shape(), &values);
            t.insert(name, new);
        });
    };
    let copy = gptq(|_| {});
    edit(&copy, "g_idx", 16);
    found(&copy, &["A457"], &[DOWN, "group 16"]);
    let copy = gptq(|_| {});
    copy.tensors(FILE, |t| {
        let name = format!("{DOWN}.g_idx");
        let zeros = Tensor::from_i32(t[&name].shape(), &vec![0; t[&name].len()]);
        t.insert(name, zeros);
    });
    found(&copy, &["A45C"], &[DOWN, "group 0 has 512 of 512 input rows, where 32 belong to it"]);
    let copy = gptq(|_| {});
    edit(&copy, "qzeros", 0x7777_7776);
    found(&copy, &["A45A"], &[DOWN, "vary"]);
    let copy = gptq(set("sym", json!(false)));
    edit(&copy, "qzeros", 0x7777_777f);
    found(&copy, &["A458"], &[DOWN, "1 stored zero points are 15", "16 or 0"]);
}

#[test]
fn descriptions_that_are_missing_or_too_many() {
    let copy = Copy::of("checkpoints/gptq-qwen3");
    copy.json("quantize_config.json", |q| q["group_size"] = json!(128));
    found(&copy, &["A459"], &["group_size is 32", "128"]);
    let copy = gptq(|_| {});
    copy.json("config.json", |c| {
        c.remove("quantization_config");
    });
    found(&copy, &["A450"], &["qweight"]);
    let copy = Copy::of("checkpoints/awq-qwen3");
    fs::remove_file(copy.file("quantize_config.json")).expect("removed");
    copy.json("config.json", |c| c["quantization_config"]["quant_method"] = json!("gptq"));
    found(&copy, &["A452"], &["along the outputs"]);
    let copy = qwen3();
    let description = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false});
    copy.json("config.json", |c| {
        c.insert("quantization_config".into(), description);
    });
    found(&copy, &["A451"], &["no tensor"]);
}

/// What lies beyond the end of a file says nothing of its description.
#[test]
fn zero_points_that_are_not_there_contradict_nothing() {
    let copy = gptq(|_| {});
    copy.bytes(FILE, |b| b.truncate(b.len() - 20_000));
    found(&copy, &["A400"], &["20000 bytes are missing", &format!("{DOWN}.qzeros")]);
}
