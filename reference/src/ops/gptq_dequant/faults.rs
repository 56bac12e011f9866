//! The catalogue of GPTQ dequantisation faults.

use super::{
    Format, GptqDequant, Group, Nibbles, Packing, Params, Straddle, Wrap, ZeroPoint, packed,
};
use crate::ops::{Fault, Setup, Tensors, slip, store_faults};

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
    faults.extend(word_faults(params.bits));
    let above = 1u32 << params.bits;
    faults.push(Fault::new(
        "A1A6",
        "zero_wrap",
        format!("a zero point of {above} wraps to 0"),
        |s: &mut S| s.params.wrap = Wrap::Modulo,
    ));
    if params.bits != 3 {
        let ones = u32::MAX / packed::mask(params.bits);
        faults.push(Fault::new(
            "A1AC",
            "zero_carry",
            format!(
                "{ones:#010x} is added to whole zero-point words, and a {} carries into the next \
                 column",
                above - 1
            ),
            |s: &mut S| s.params.wrap = Wrap::Word,
        ));
    }
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
        format!("the zero point is taken as {} whatever is stored", above / 2),
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
    if let Some(layer) = layer(params, tensors) {
        let set = |s: &mut S, slip| s.params.slip = slip;
        faults.extend(slip::faults(layer, set));
        faults.extend(slip::zero_faults(layer, set));
        faults.extend(slip::stride_fault(layer, set));
    }
    faults.extend(store_faults(["A1AB", "A1AD"]));
    faults
}

fn layer(params: &Params, tensors: &Tensors) -> Option<slip::Packed> {
    let (qweight, scales) = (tensors.get("qweight")?, tensors.get("scales")?);
    Some(slip::Packed {
        k: packed::values(qweight.shape()[0], params.bits)?,
        n: scales.cols(),
        group_size: params.group_size,
        indexed: tensors.contains_key("g_idx"),
        zeros: Some(packed::per_run(params.bits)),
        groups: scales.shape()[0],
    })
}

/// Words that are taken apart wrongly.
fn word_faults(bits: u32) -> Vec<Fault<GptqDequant>> {
    let mut faults = Vec::new();
    let many = if bits == 4 { "nibbles" } else { "values" };
    for (nibbles, text) in [(Nibbles::HighFirst, "from the top"), (Nibbles::Awq, "in AWQ's order")]
    {
        if nibbles == Nibbles::Awq && bits != 4 {
            continue;
        }
        faults.push(
            Fault::new(
                "A1A3",
                "nibble_order",
                format!("the {many} of a weight word are taken {text}"),
                move |s: &mut S| s.params.nibbles = nibbles,
            )
            .keyed(text),
        );
        faults.push(
            Fault::new(
                "A1A4",
                "zero_nibble_order",
                format!("the {many} of a zero-point word are taken {text}"),
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
    if bits == 3 {
        faults.push(Fault::new(
            "A1C0",
            "straddle",
            "weights 10 and 21 of each 32 lack the bits that lie in the next word",
            |s: &mut S| s.params.straddle = Straddle::Lost,
        ));
        faults.push(Fault::new(
            "A1C1",
            "zero_straddle",
            "zero points 10 and 21 of each 32 lack the bits that lie in the next word",
            |s: &mut S| s.params.zero_straddle = Straddle::Lost,
        ));
    }
    // A wider reading would leave the tensors.
    for narrow in packed::WIDTHS.into_iter().filter(|w| *w < bits) {
        faults.push(
            Fault::new(
                "A1C2",
                "width_misread",
                format!("words of {bits}-bit values are read as {narrow}-bit ones"),
                move |s: &mut S| s.params.misread_bits = Some(narrow),
            )
            .keyed(format!("{narrow} bits")),
        );
    }
    faults
}
