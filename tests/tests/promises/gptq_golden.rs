//! Every 4-bit layer that gptqmodel quantised (for the other widths and formats see
//! `tests/tests/golden_formats.rs`) is dequantised to gptqmodel's own bits, under a named
//! convention, and a zero point read in the wrong format is named.

use std::path::PathBuf;
use std::sync::Arc;

use assay_reference::checkpoint::Shard;
use assay_reference::ops::gptq_dequant::GptqDequant;
use assay_reference::ops::{Scope, Tensors};
use assay_reference::{Case, Dtype, Tensor};
use assay_tests::{golden, subject};
use assay_verify::judge::Verdict;
use serde_json::json;

/// A golden layer: its case for an output dtype, and gptqmodel's matrix.
struct Layer {
    name: String,
    format: &'static str,
    shard: Shard,
}

impl Layer {
    fn all() -> Vec<Layer> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(golden::path("gptq"))
            .expect("golden/gptq")
            .map(|e| e.expect("an entry").path())
            .filter(|p| {
                let name = p.file_name().expect("a name").to_string_lossy();
                name.ends_with(".safetensors")
                    && name.contains("-4bit-")
                    && !name.contains("-zeros")
            })
            .collect();
        paths.sort();
        assert_eq!(paths.len(), 17, "the layers that golden/README.md names");
        paths
            .into_iter()
            .map(|path| {
                let shard = Shard::open(&path).expect("a golden layer");
                let format = match shard.metadata()["checkpoint_format"].as_str() {
                    "gptq" => "v1",
                    "gptq_v2" => "v2",
                    other => panic!("unknown format {other}"),
                };
                let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                Layer { name, format, shard }
            })
            .collect()
    }

    /// Whether zeros are stored that only word arithmetic reads right.
    fn wraps(&self) -> bool {
        self.format == "v1" && self.name.ends_with("-wrap")
    }

    fn case(&self, dtype: Dtype, format: &str) -> Arc<Case> {
        let tensors: Tensors = ["qweight", "qzeros", "scales", "g_idx"]
            .map(|n| (n.to_string(), self.shard.tensor(n).expect("a part of the layer")))
            .into();
        let group_size: i64 = self.shard.metadata()["group_size"].parse().expect("an integer");
        Arc::new(Case {
            op: "gptq_dequant".into(),
            params: json!({ "format": format, "group_size": group_size }),
            dtype,
            tensors,
            outputs: Tensors::new(),
            family: "golden".into(),
            seed: 0,
        })
    }

    /// What gptqmodel's TorchLinear dequantises the layer to.
    fn dequantised(&self, dtype: Dtype) -> Tensor {
        let t = self.shard.tensor(&format!("dequant_{dtype}")).expect("gptqmodel's matrix");
        assert_eq!(t.dtype(), dtype);
        t
    }
}

const DTYPES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

/// gptqmodel's convention: the scale is cast to the model's dtype before the product.
fn convention(layer: &Layer, dtype: Dtype) -> &'static str {
    match (dtype, layer.wraps()) {
        (Dtype::F16, false) => "defaults",
        (Dtype::F16, true) => "wrap=word",
        (_, false) => "scale=stored",
        (_, true) => "scale=stored wrap=word",
    }
}

#[test]
fn gptqmodels_matrices_are_reproduced_bit_by_bit() {
    for layer in Layer::all() {
        for dtype in DTYPES {
            let case = layer.case(dtype, layer.format);
            let setup = subject::setup::<GptqDequant>(&case, convention(&layer, dtype));
            let want = layer.dequantised(dtype);
            assert!(subject::output::<_, f64>(&setup) == want, "{} {dtype} over f64", layer.name);
            assert!(subject::output::<_, f32>(&setup) == want, "{} {dtype} over f32", layer.name);
        }
    }
}

#[test]
fn the_other_conventions_differ_where_they_should() {
    for layer in Layer::all() {
        let differing = |dtype, convention: &str| {
            let case = layer.case(dtype, layer.format);
            let setup = subject::setup::<GptqDequant>(&case, convention);
            let (got, want) = (subject::output::<_, f64>(&setup), layer.dequantised(dtype));
            let pairs = got.to_f64().into_iter().zip(want.to_f64());
            pairs.filter(|(a, b)| a != b).count() as f64 / want.len() as f64
        };
        let wrap = if layer.wraps() { "wrap=word" } else { "" };
        let unrounded = differing(Dtype::Bf16, wrap);
        assert!((0.02..0.10).contains(&unrounded), "{}: {unrounded}", layer.name);
        // Nibble by nibble, a borrowed zero point is wrong; without a borrow there is no difference.
        for other in ["", "wrap=modulo"] {
            assert_eq!(differing(Dtype::F16, other) > 0.0, layer.wraps(), "{}", layer.name);
        }
        if !layer.name.ends_with("-wrap") {
            assert_eq!(differing(Dtype::F16, "wrap=word"), 0.0, "{}", layer.name);
        }
    }
}

#[test]
fn the_judge_names_gptqmodels_convention() {
    for layer in Layer::all() {
        for dtype in DTYPES {
            let case = layer.case(dtype, layer.format);
            let run = subject::observe(&case, layer.dequantised(dtype), &layer.name, false);
            let judgement = subject::judged("gptq_dequant", &[run], Scope::Framework);
            let Verdict::Pass { conventions, .. } = &judgement.verdict else {
                panic!("{} {dtype}: {:?}", layer.name, judgement.verdict);
            };
            assert_eq!(conventions[0], convention(&layer, dtype), "{} {dtype}", layer.name);
            assert_eq!(judgement.elements, case.tensors["qweight"].len() * 8);
        }
    }
}

#[test]
fn word_arithmetic_is_no_convention_of_a_kernel() {
    for layer in Layer::all() {
        let case = layer.case(Dtype::Bf16, layer.format);
        let run = subject::observe(&case, layer.dequantised(Dtype::Bf16), &layer.name, false);
        let judgement = subject::judged("gptq_dequant", &[run], Scope::Kernel);
        assert_eq!(judgement.verdict.is_pass(), !layer.wraps(), "{}", layer.name);
    }
}

/// A file declared as the other format: what is right for it is then off by one.
#[test]
fn a_zero_point_read_in_the_wrong_format_is_named() {
    for layer in Layer::all().iter().filter(|l| !l.wraps()) {
        let (declared, fault) = match layer.format {
            "v1" => ("v2", "gptq_dequant.zero_with_plus_one"),
            _ => ("v1", "gptq_dequant.zero_without_plus_one"),
        };
        for dtype in DTYPES {
            let case = layer.case(dtype, declared);
            let run = subject::observe(&case, layer.dequantised(dtype), &layer.name, false);
            let findings =
                subject::judged("gptq_dequant", &[run], Scope::Framework).verdict.findings();
            let names: Vec<&str> = findings.iter().map(|f| f.name.as_str()).collect();
            assert_eq!(names, [fault], "{} {dtype} declared as {declared}", layer.name);
        }
    }
}

/// A reader that takes the file for the other format.
#[test]
fn a_reader_of_the_wrong_format_is_named() {
    for layer in Layer::all().iter().filter(|l| !l.wraps()) {
        let (misread, fault) = match layer.format {
            "v1" => ("v2", "gptq_dequant.zero_without_plus_one"),
            _ => ("v1", "gptq_dequant.zero_with_plus_one"),
        };
        for dtype in DTYPES {
            let (case, wrong) = (layer.case(dtype, layer.format), layer.case(dtype, misread));
            let setup = subject::setup::<GptqDequant>(&wrong, convention(layer, dtype));
            let output = subject::output::<_, f32>(&setup);
            let run = subject::observe(&case, output, &layer.name, false);
            let findings =
                subject::judged("gptq_dequant", &[run], Scope::Framework).verdict.findings();
            let names: Vec<&str> = findings.iter().map(|f| f.name.as_str()).collect();
            assert_eq!(names, [fault], "{} {dtype} read as {misread}", layer.name);
        }
    }
}
