//! The catalogue of FP8 dequantisation faults.

use super::{Codes, Fp8Dequant, Lookup, Params, Scaling};
use crate::ops::{Fault, Setup, Tensors, store_faults};

type S = Setup<Fp8Dequant>;

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<Fp8Dequant>> {
    let mut faults = lookup_faults(params, tensors);
    for (code, slug, detail, scaling) in [
        (
            "A1F3",
            "scale_divided",
            "the weight is divided by weight_scale_inv instead of multiplied",
            Scaling::Divided,
        ),
        ("A1F4", "scale_ignored", "the scales are not applied", Scaling::Ignored),
    ] {
        let edit = move |s: &mut S| s.params.scaling = scaling;
        faults.push(Fault::new(code, slug, detail, edit));
    }
    for (code, slug, detail, codes) in [
        ("A1F5", "read_as_e5m2", "the bytes are read as e5m2 instead of e4m3", Codes::E5m2),
        ("A1F6", "nan_as_480", "the NaN codes 0x7f and 0xff are read as 480", Codes::NanAs480),
        (
            "A1FC",
            "read_as_fnuz",
            "the bytes are read as e4m3fnuz, so that each value is half of what it is",
            Codes::E4m3Fnuz,
        ),
        (
            "A240",
            "code_subnormals_flushed",
            "codes of subnormal numbers, below 2^-6, are read as 0",
            Codes::Flushed,
        ),
        (
            "A241",
            "saturated_at_240",
            "values above 240 become 240, the largest of e4m3fnuz",
            Codes::Saturated,
        ),
    ] {
        let edit = move |s: &mut S| s.params.codes = codes;
        faults.push(Fault::new(code, slug, detail, edit));
    }
    faults.extend(store_faults(["A1F7", "A1F8"]));
    faults
}

/// Scales of other blocks.
fn lookup_faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Fp8Dequant>> {
    let mut faults = Vec::new();
    let Some(scale) = tensors.get("weight_scale_inv").filter(|s| s.shape().len() == 2) else {
        return faults;
    };
    let &[rows, columns] = scale.shape() else { return faults };
    let mut push = |code, slug, detail: String, lookup, key| {
        let edit = move |s: &mut S| s.params.lookup = lookup;
        faults.push(Fault::new(code, slug, detail, edit).keyed(key));
    };
    for (blocks, lookup, axis) in [(rows, Lookup::NextRow, "N"), (columns, Lookup::NextColumn, "K")]
    {
        if blocks > 1 {
            let detail = format!("the scale of the next block along {axis} is used");
            push("A1F0", "scale_block_off_by_one", detail, lookup, axis);
        }
    }
    let sizes = tensors.get("weight").map_or([0, 0], |w| [w.rows(), w.cols()]);
    for (axis, lookup, name) in [(0, Lookup::PartialRow, "N"), (1, Lookup::PartialColumn, "K")] {
        let block = params.block[axis].max(1);
        if [rows, columns][axis] > 1 && sizes[axis] % block != 0 {
            let detail = format!("the last block along {name} has the scale of the one before");
            push("A23B", "partial_group_scale", detail, lookup, name);
        }
    }
    if rows > 1 && columns > 1 {
        let detail = "the memory of weight_scale_inv is read as transposed".to_owned();
        push("A1F1", "scale_transposed", detail, Lookup::Transposed, "");
    }
    if rows > 1 || columns > 1 {
        let [n, k] = params.block.map(|b| b.div_ceil(2));
        let detail = format!("blocks are taken as {n} x {k}");
        push("A1F2", "block_size", detail, Lookup::HalfBlock, "");
    }
    faults
}
