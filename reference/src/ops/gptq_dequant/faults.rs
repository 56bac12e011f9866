//! The catalogue of GPTQ dequantisation faults.

use super::{Format, GptqDequant, Group, Nibbles, Packing, Params, Wrap, ZeroPoint};
use crate::ops::{Fault, Setup, Tensors, store_faults};

type S = Setup<GptqDequant>;

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<GptqDequant>> {
    let mut faults = Vec::new();
    match params.format {
        Format::V1 => faults.push(Fault::new(
            "A1A0",
            "zero_without_plus_one",
            "the zero point is used without the +1 of the v1 format",
            |s: &mut S| s.params.zero = ZeroPoint::AsStored,
        )),
        Format::V2 => faults.push(Fault::new(
            "A1A1",
            "zero_with_plus_one",
            "1 is added to the zero point although the format is v2",
            |s: &mut S| s.params.zero = ZeroPoint::StoredPlusOne,
        )),
    }
    if tensors.contains_key("g_idx") {
        faults.push(Fault::new(
            "A1A2",
            "g_idx_ignored",
            "groups are taken in sequence, g_idx is ignored",
            |s: &mut S| s.params.group = Group::Sequential,
        ));
    }
    for (nibbles, text) in [(Nibbles::HighFirst, "from the top"), (Nibbles::Awq, "in AWQ's order")]
    {
        faults.push(
            Fault::new(
                "A1A3",
                "nibble_order",
                format!("the nibbles of a weight word are taken {text}"),
                move |s: &mut S| s.params.nibbles = nibbles,
            )
            .keyed(text),
        );
        faults.push(
            Fault::new(
                "A1A4",
                "zero_nibble_order",
                format!("the nibbles of a zero-point word are taken {text}"),
                move |s: &mut S| s.params.zero_nibbles = nibbles,
            )
            .keyed(text),
        );
    }
    faults.push(Fault::new(
        "A1A5",
        "packing_axis",
        "qweight is read as packed along N instead of K",
        |s: &mut S| s.params.packing = Packing::AlongN,
    ));
    faults.push(Fault::new("A1A6", "zero_wrap", "a zero point of 16 wraps to 0", |s: &mut S| {
        s.params.wrap = Wrap::Modulo
    }));
    faults.push(Fault::new(
        "A1AC",
        "zero_carry",
        "0x11111111 is added to whole zero-point words, and a 15 carries into the next column",
        |s: &mut S| s.params.wrap = Wrap::Word,
    ));
    let groups = tensors.get("scales").map_or(1, |s| s.shape()[0]);
    if groups > 1 {
        faults.push(Fault::new(
            "A1A7",
            "scale_group_off_by_one",
            "scale and zero point of the next group are used",
            |s: &mut S| s.params.group = Group::Next,
        ));
        faults.push(Fault::new(
            "A1A8",
            "zero_group_off_by_one",
            "the zero point of the next group is used",
            |s: &mut S| s.params.group = Group::NextZero,
        ));
    }
    faults.push(Fault::new(
        "A1A9",
        "zero_assumed_symmetric",
        "the zero point is taken as 8 whatever is stored",
        |s: &mut S| s.params.zero = ZeroPoint::Symmetric,
    ));
    faults.push(Fault::new(
        "A1AA",
        "negated",
        "(z - q) * scale: the sign is wrong",
        |s: &mut S| {
            s.params.negated = true;
        },
    ));
    faults.extend(store_faults(["A1AB", "A1AD"]));
    faults
}
