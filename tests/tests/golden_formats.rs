//! Every golden layer of every weight format is dequantised to the bits of the library that made it,
//! under a named convention.

use std::path::{Path, PathBuf};

use assay_reference::checkpoint::Shard;
use assay_reference::ops::awq_dequant::{self, AwqDequant};
use assay_reference::ops::ct_dequant::{self, CtDequant};
use assay_reference::ops::fp8_dequant::{self, Fp8Dequant};
use assay_reference::ops::gptq_dequant::{self, Format, GptqDequant};
use assay_reference::ops::{Op, Setup, Tensors, Tile};
use assay_reference::{Dtype, Tensor};

struct Layer {
    name: String,
    shard: Shard,
}

impl Layer {
    /// The layers of a folder, `count` of them.
    fn all(folder: &str, count: usize) -> Vec<Layer> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(folder);
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&root)
            .expect("a golden folder")
            .map(|e| e.expect("an entry").path())
            .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
            .collect();
        paths.sort();
        assert_eq!(paths.len(), count, "layers in golden/{folder}");
        let open = |path: PathBuf| Layer {
            name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
            shard: Shard::open(&path).expect("a golden layer"),
        };
        paths.into_iter().map(open).collect()
    }

    fn meta(&self, key: &str) -> &str {
        self.shard.metadata().get(key).map_or("", String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.meta(key).parse().ok()
    }

    /// The op's arguments.
    fn tensors<O: Op>(&self) -> Tensors {
        let known = |name: &&str| O::ARGS.iter().any(|a| a.name == *name);
        let names = self.shard.names().filter(known);
        names.map(|n| (n.to_owned(), self.shard.tensor(n).expect("a tensor"))).collect()
    }

    /// The library's matrices, with their dtypes.
    fn dequantised(&self) -> Vec<(Dtype, Tensor)> {
        let names = ["dequant_bf16", "dequant_f16", "dequant_f32"];
        let found = names.iter().filter_map(|n| self.shard.tensor(n).ok());
        let found: Vec<_> = found.map(|t| (t.dtype(), t)).collect();
        assert!(!found.is_empty(), "{} has no matrix to compare with", self.name);
        found
    }
}

/// Elements of the f32 evaluation, stored under a convention, that differ from `want`.
fn differing<O: Op>(
    params: &O::Params,
    tensors: &Tensors,
    convention: &[(&str, &str)],
    want: &Tensor,
) -> usize {
    let policy = O::policy(want.dtype());
    let mut setup = Setup::<O> { params: params.clone(), policy, tensors: tensors.clone() };
    let knobs = O::knobs(params);
    for (knob, value) in convention {
        let knob = knobs.iter().find(|k| k.name == *knob).expect("a knob");
        let choice = knob.choices.iter().find(|c| c.value == *value).expect("a value");
        (choice.edit)(&mut setup);
    }
    let spec = O::check(&setup.params, tensors).expect("checked").remove(0);
    assert_eq!(spec.shape, want.shape());
    let got = setup.eval::<f32>(&Tile::ALL).remove(0).data;
    let stored = got.into_iter().map(|x| setup.policy.output.round(f64::from(x)));
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    stored.zip(want.to_f64()).filter(|(a, b)| !same(*a, *b)).count()
}

#[test]
fn gptq_layers_of_every_width_are_gptqmodels_bits() {
    for layer in Layer::all("gptq", 30) {
        let bits: u32 = layer.number("bits").expect("bits");
        let v1 = layer.meta("checkpoint_format") == "gptq";
        let format = if v1 { Format::V1 } else { Format::V2 };
        let size = layer.number("group_size").expect("a size");
        let params = gptq_dequant::Params::new(format, size).with_bits(bits);
        let tensors = layer.tensors::<GptqDequant>();
        // Files with the largest stored value need gptqmodel's own arithmetic: whole words, and at 3
        // bits decoded values.
        let zeros = &tensors["qzeros"];
        let largest = |i: usize, field: usize| {
            let bit = field * bits as usize;
            let row = i * zeros.cols();
            (bit..bit + bits as usize).all(|b| zeros.get_i64(row + b / 32) >> (b % 32) & 1 == 1)
        };
        let fields = zeros.cols() * 32 / bits as usize;
        let wraps = v1 && (0..zeros.rows()).any(|i| (0..fields).any(|f| largest(i, f)));
        let wrap = if bits == 3 { "modulo" } else { "word" };
        for (dtype, want) in layer.dequantised() {
            let mut convention = vec![("scale", "stored")];
            if wraps {
                assert!(differing::<GptqDequant>(&params, &tensors, &convention, &want) > 0);
                convention.push(("wrap", wrap));
            }
            let n = differing::<GptqDequant>(&params, &tensors, &convention, &want);
            assert_eq!(n, 0, "{} {dtype} under {convention:?}", layer.name);
        }
    }
}

#[test]
fn awq_layers_are_gptqmodels_bits() {
    for layer in Layer::all("awq", 6) {
        let params = awq_dequant::Params::new(layer.number("group_size").expect("a size"));
        let tensors = layer.tensors::<AwqDequant>();
        for (dtype, want) in layer.dequantised() {
            let n = differing::<AwqDequant>(&params, &tensors, &[("scale", "stored")], &want);
            assert_eq!(n, 0, "{} {dtype}", layer.name);
        }
    }
}

#[test]
fn compressed_layers_are_the_librarys_bits() {
    for layer in Layer::all("compressed", 9) {
        let bits = layer.number("num_bits").expect("bits");
        let params = ct_dequant::Params::new(bits, layer.number("group_size").unwrap_or(-1));
        let tensors = layer.tensors::<CtDequant>();
        assert_eq!(tensors.contains_key("weight_zero_point"), layer.meta("symmetric") == "false");
        for (dtype, want) in layer.dequantised() {
            let n = differing::<CtDequant>(&params, &tensors, &[("scale", "stored")], &want);
            assert_eq!(n, 0, "{} {dtype}", layer.name);
        }
    }
}

#[test]
fn fp8_layers_are_transformers_bits() {
    for layer in Layer::all("fp8", 5) {
        let (n, k) = layer.meta("weight_block_size").split_once(',').expect("two sizes");
        let block = [n, k].map(|s| s.parse().expect("a size"));
        let params = fp8_dequant::Params::new(block);
        let tensors = layer.tensors::<Fp8Dequant>();
        for (dtype, want) in layer.dequantised() {
            let n = differing::<Fp8Dequant>(&params, &tensors, &[], &want);
            assert_eq!(n, 0, "{} {dtype}", layer.name);
        }
    }
}
