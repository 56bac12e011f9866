//! The catalogue of faults in dequantising compressed-tensors' weights.

use super::{CtDequant, Group, Nibbles, Packing, Params, Sign, Straddle, packed};
use crate::ops::{Fault, Setup, Tensors, slip, store_faults};

type S = Setup<CtDequant>;

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<CtDequant>> {
    let asymmetric = tensors.contains_key("weight_zero_point");
    let mut faults = sign_faults(params.bits, asymmetric);
    faults.extend(word_faults(params.bits, asymmetric, tensors));
    let groups = tensors.get("weight_scale").map_or(1, |s| s.cols());
    if groups > 1 {
        faults.push(Fault::new(
            "A1E7",
            "scale_group_off_by_one",
            "scale (and zero point) of the next group are used",
            |s: &mut S| s.params.group = Group::Next,
        ));
        if asymmetric {
            faults.push(Fault::new(
                "A1E8",
                "zero_group_off_by_one",
                "the zero point of the next group is used",
                |s: &mut S| s.params.group = Group::NextZero,
            ));
        }
        faults.push(Fault::new(
            "A1EA",
            "scale_transposed",
            "the memory of weight_scale [N, G] is read as [G, N]",
            |s: &mut S| s.params.scale_transposed = true,
        ));
    }
    if tensors.contains_key("weight_g_idx") {
        faults.push(Fault::new(
            "A1E9",
            "g_idx_ignored",
            "groups are taken in sequence, weight_g_idx is ignored",
            |s: &mut S| s.params.group = Group::Sequential,
        ));
    }
    faults.push(Fault::new(
        "A1EB",
        "negated",
        "(z - q) * scale: the sign is wrong",
        |s: &mut S| {
            s.params.negated = true;
        },
    ));
    let shape = tensors.get("weight_shape").filter(|s| s.len() == 2);
    if let Some([n, k]) = shape.map(|s| [0, 1].map(|i| s.get_i64(i) as usize)) {
        let layer = slip::Packed {
            k,
            n,
            group_size: params.group_size,
            indexed: tensors.contains_key("weight_g_idx"),
            zeros: asymmetric.then(|| packed::per_run(params.bits)),
            groups,
        };
        faults.extend(slip::faults(layer, |s: &mut S, slip| s.params.slip = slip));
    }
    faults.extend(store_faults(["A1EC", "A1ED"]));
    faults
}

/// Fields that become the wrong integers.
fn sign_faults(bits: u32, asymmetric: bool) -> Vec<Fault<CtDequant>> {
    let half = 1u32 << (bits - 1);
    let mut faults = vec![
        Fault::new(
            "A1E0",
            "offset_missing",
            format!("{half} is not subtracted from the packed weights"),
            |s: &mut S| s.params.sign = Sign::Unsigned,
        ),
        Fault::new(
            "A1E3",
            "twos_complement",
            format!("packed weights are read as two's complement instead of with {half} added"),
            |s: &mut S| s.params.sign = Sign::TwosComplement,
        ),
    ];
    if asymmetric {
        faults.push(Fault::new(
            "A1E1",
            "zero_point_ignored",
            "the stored zero points are not subtracted",
            |s: &mut S| s.params.zero_ignored = true,
        ));
        faults.push(Fault::new(
            "A1E2",
            "zero_offset_missing",
            format!("{half} is not subtracted from the packed zero points"),
            |s: &mut S| s.params.zero_sign = Sign::Unsigned,
        ));
    }
    faults
}

/// Words that are taken apart wrongly.
fn word_faults(bits: u32, asymmetric: bool, tensors: &Tensors) -> Vec<Fault<CtDequant>> {
    let mut faults = Vec::new();
    let shape = tensors.get("weight_shape").filter(|s| s.len() == 2);
    let Some([n, k]) = shape.map(|s| [s.get_i64(0) as usize, s.get_i64(1) as usize]) else {
        return faults;
    };
    let run = packed::per_run(bits);
    for (order, text) in [(Nibbles::HighFirst, "from the top"), (Nibbles::Awq, "in AWQ's order")] {
        if order == Nibbles::Awq && bits != 4 {
            continue;
        }
        // In a last word that is not full another order reads beyond the values.
        if k.is_multiple_of(run) {
            let detail = format!("the values of a weight word are taken {text}");
            let edit = move |s: &mut S| s.params.order = order;
            faults.push(Fault::new("A1E4", "value_order", detail, edit).keyed(text));
        }
        if asymmetric && n.is_multiple_of(run) {
            let detail = format!("the values of a zero-point word are taken {text}");
            let edit = move |s: &mut S| s.params.zero_order = order;
            faults.push(Fault::new("A1E5", "zero_value_order", detail, edit).keyed(text));
        }
    }
    if packed::fills_words(n, bits) && packed::fills_words(k, bits) {
        faults.push(Fault::new(
            "A1E6",
            "packing_axis",
            "weight_packed is read as packed along N instead of K",
            |s: &mut S| s.params.packing = Packing::AlongN,
        ));
    }
    if bits == 3 {
        faults.push(Fault::new(
            "A1C0",
            "straddle",
            "values 10 and 21 of each 32 lack the bits that lie in the next word",
            |s: &mut S| s.params.straddle = Straddle::Lost,
        ));
    }
    for narrow in packed::WIDTHS.into_iter().filter(|w| *w < bits) {
        let detail = format!("words of {bits}-bit values are read as {narrow}-bit ones");
        let edit = move |s: &mut S| s.params.misread_bits = Some(narrow);
        let fault = Fault::new("A1C2", "width_misread", detail, edit);
        faults.push(fault.keyed(format!("{narrow} bits")));
    }
    faults
}
