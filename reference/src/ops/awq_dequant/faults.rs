//! The catalogue of AWQ dequantisation faults.

use super::{AwqDequant, Group, Order, PER_WORD, Packing, Params, ZeroPoint};
use crate::ops::{Fault, Setup, Tensors, slip, store_faults};

type S = Setup<AwqDequant>;

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<AwqDequant>> {
    let mut faults = order_faults();
    let rows = tensors.get("qweight").map_or(0, |q| q.shape()[0]);
    if rows.is_multiple_of(PER_WORD) {
        faults.push(Fault::new(
            "A1D3",
            "packing_axis",
            "qweight is read as packed along K instead of N",
            |s: &mut S| s.params.packing = Packing::AlongK,
        ));
    }
    faults.push(Fault::new(
        "A1D2",
        "zero_plus_one",
        "1 is added to the zero point, as in GPTQ's v1 format",
        |s: &mut S| s.params.zero = ZeroPoint::PlusOne,
    ));
    faults.push(Fault::new(
        "A1D6",
        "zero_assumed_symmetric",
        "the zero point is taken as 8 whatever is stored",
        |s: &mut S| s.params.zero = ZeroPoint::Symmetric,
    ));
    if tensors.get("scales").is_some_and(|s| s.shape()[0] > 1) {
        faults.push(Fault::new(
            "A1D4",
            "scale_group_off_by_one",
            "scale and zero point of the next group are used",
            |s: &mut S| s.params.group = Group::Next,
        ));
        faults.push(Fault::new(
            "A1D5",
            "zero_group_off_by_one",
            "the zero point of the next group is used",
            |s: &mut S| s.params.group = Group::NextZero,
        ));
    }
    faults.push(Fault::new(
        "A1D7",
        "negated",
        "(z - q) * scale: the sign is wrong",
        |s: &mut S| {
            s.params.negated = true;
        },
    ));
    if let Some(scales) = tensors.get("scales") {
        let layer = slip::Packed {
            k: rows,
            n: scales.cols(),
            group_size: params.group_size,
            indexed: false,
            zeros: Some(PER_WORD),
            groups: scales.shape()[0],
        };
        let set = |s: &mut S, slip| s.params.slip = slip;
        faults.extend(slip::faults(layer, set));
        faults.extend(slip::zero_faults(layer, set));
    }
    faults.extend(store_faults(["A1D8", "A1D9"]));
    faults
}

/// Columns that are taken in another order, in the weights, the zero points or both.
fn order_faults() -> Vec<Fault<AwqDequant>> {
    let mut faults = Vec::new();
    for (order, text) in [
        (Order::Identity, "in GPTQ's order, slot i for column i"),
        (Order::Inverse, "by the inverse permutation 0 4 1 5 2 6 3 7"),
    ] {
        let key = if order == Order::Identity { "identity" } else { "inverse" };
        let weights = format!("the weights of a word are taken {text}");
        let edit = move |s: &mut S| s.params.order = order;
        faults.push(Fault::new("A1D0", "weight_order", weights, edit).keyed(key));
        let zeros = format!("the zero points of a word are taken {text}; the weights are right");
        let edit = move |s: &mut S| s.params.zero_order = order;
        faults.push(Fault::new("A1D1", "zero_order", zeros, edit).keyed(key));
        let both = format!("weights and zero points of a word are taken {text}");
        let edit = move |s: &mut S| {
            s.params.order = order;
            s.params.zero_order = order;
        };
        faults.push(Fault::new("A1DB", "slot_order", both, edit).keyed(key));
    }
    faults
}
