//! The catalogue of rms_norm faults.

use super::{Params, RmsNorm, Weight};
use crate::dtype::Dtype;
use crate::ops::{Fault, Setup, Tensors, store_faults, via_f16_fault};
use crate::policy::{Accumulator, At, Order, Transform};

type S = Setup<RmsNorm>;

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<RmsNorm>> {
    let d = tensors.get("x").map_or(0, |x| x.cols());
    let mut faults = Vec::new();
    for eps in [1e-5, 1e-6, 1e-8, 1e-12, 0.0] {
        if eps != params.eps {
            faults.push(
                Fault::new(
                    "A120",
                    "wrong_eps",
                    format!("eps is {eps:e} instead of {:e}", params.eps),
                    move |s: &mut S| s.params.eps = eps,
                )
                .keyed(format!("{eps:e}")),
            );
        }
    }
    faults.push(Fault::new("A121", "skipped", "the normalisation is left out", |s: &mut S| {
        s.params.skipped = true;
    }));
    for (weight, slug, code, detail) in [
        (Weight::PlusOne, "weight_plus_one", "A122", "1 + weight is multiplied (Gemma's form)"),
        (Weight::Ignored, "weight_ignored", "A123", "the weight is not multiplied"),
    ] {
        faults.push(Fault::new(code, slug, detail, move |s: &mut S| {
            s.params.weight = weight;
        }));
    }
    for tile in [32, 64, 128, 256] {
        let whole = d / tile * tile;
        if whole > 0 && whole < d {
            faults.push(
                Fault::new(
                    "A125",
                    "tail_dropped",
                    format!("elements {whole}..{d} are missing from the mean of squares"),
                    move |s: &mut S| {
                        let at = At::Range(whole..d);
                        s.policy.at("squares", Transform::Scale { at, by: 0.0 });
                    },
                )
                .keyed(format!("tile {tile}")),
            );
        }
    }
    faults.extend(half_lanes(d));
    faults.push(Fault::new(
        "A126",
        "centred",
        "the mean is subtracted first, as in LayerNorm",
        |s: &mut S| {
            s.params.centred = true;
        },
    ));
    faults.extend(store_faults(["A127", "A129"]));
    faults.extend(via_f16_fault(tensors.get("x")));
    faults.extend(sums(d));
    faults.extend(memory(params, tensors));
    faults.push(Fault::new(
        "A247",
        "rsqrt_one_newton_step",
        "1/sqrt is one Newton step from the bits of its argument: off by up to 0.18 %",
        |s: &mut S| s.params.newton = true,
    ));
    if tensors.get("weight").is_some_and(|w| w.dtype() != Dtype::Bf16) {
        faults.push(Fault::new(
            "A248",
            "weight_bf16",
            "the weight is rounded to bf16 before it is multiplied",
            |s: &mut S| s.policy.round_at("weight", Dtype::Bf16),
        ));
    }
    faults
}

/// Elements that a thread loads at once where rows consist of them: 16 bytes of bf16.
const VECTOR: usize = 8;

/// A reduction written for waves of 32. Element i is of lane i mod 64; in a kernel that loads vectors
/// where a row consists of them, that goes by vectors there.
fn half_lanes(d: usize) -> Vec<Fault<RmsNorm>> {
    let mut faults = Vec::new();
    for (lost, which) in [(32..64, "lower"), (0..32, "upper")] {
        let by = if d.is_multiple_of(VECTOR) { VECTOR } else { 1 };
        let ways = [
            (1, d >= 64, which.to_owned(), String::new()),
            (
                by,
                // Fewer would leave lanes idle, and be told from a lost tail by nothing.
                d > if by == 1 { 32 } else { 63 * by },
                format!("{which}, vectors of {VECTOR}"),
                format!(", which hold {VECTOR} neighbouring elements where a row consists of such"),
            ),
        ];
        for (width, applies, key, how) in ways {
            if !applies {
                continue;
            }
            let lost = lost.start * width..lost.end * width;
            let detail =
                format!("only the {which} 32 of each 64 lanes enter the mean of squares{how}");
            let edit = move |s: &mut S| {
                let at = At::Lanes { modulus: 64 * width, keep: lost.clone() };
                s.policy.at("squares", Transform::Scale { at, by: 0.0 });
            };
            faults.push(Fault::new("A124", "half_lanes", detail, edit).keyed(key));
        }
    }
    faults
}

/// Sums of squares that count wrongly or in too few bits.
fn sums(d: usize) -> Vec<Fault<RmsNorm>> {
    let mut faults = Vec::new();
    for (keep, which) in [(0..32, "lower"), (32..64, "upper")] {
        if d >= 64 {
            let detail = format!("the {which} 32 of each 64 lanes enter the mean of squares twice");
            let edit = move |s: &mut S| {
                let at = At::Lanes { modulus: 64, keep: keep.clone() };
                s.policy.at("squares", Transform::Scale { at, by: std::f64::consts::SQRT_2 });
            };
            faults.push(Fault::new("A243", "lanes_counted_twice", detail, edit).keyed(which));
        }
    }
    for multiple in [64, 128, 256, 1024, 0] {
        let (width, key) = match multiple {
            0 => (d.next_power_of_two(), "power of two".to_owned()),
            n => (d.next_multiple_of(n), format!("{n}")),
        };
        if width != d {
            let detail = format!("the sum of {d} squares is divided by {width}");
            let edit = move |s: &mut S| s.params.width = Some(width);
            faults.push(Fault::new("A246", "mean_over_padded_width", detail, edit).keyed(key));
        }
    }
    for (dtype, code, slug) in [(Dtype::Bf16, "A249", "sum_bf16"), (Dtype::F16, "A24A", "sum_f16")]
    {
        for every in [1, 8, 64] {
            if every > 1 && every >= d {
                break;
            }
            let detail = format!("the sum of squares is rounded to {dtype} every {every} terms");
            let edit = move |s: &mut S| {
                s.policy.acc = Accumulator { dtype, order: Order::Blocks(every), fma: true };
            };
            faults.push(Fault::new(code, slug, detail, edit).keyed(format!("every {every}")));
        }
    }
    faults
}

/// Rows that are found or stored in the wrong place.
fn memory(params: &Params, tensors: &Tensors) -> Vec<Fault<RmsNorm>> {
    let mut faults = Vec::new();
    let Some(x) = tensors.get("x") else { return faults };
    if let (Some(heads), &[t, all, _]) = (params.heads, x.shape())
        && heads < all
        && t > 1
    {
        faults.push(Fault::new(
            "A244",
            "row_stride_ignored",
            format!("rows are read one after the other: {heads} of each {all} heads are wanted"),
            |s: &mut S| s.params.stride_ignored = true,
        ));
    }
    let (d, rows) = (x.cols(), x.len() / x.cols().max(1));
    for vector in [2, 4, 8] {
        if d % vector != 0 && rows > 1 && params.heads.is_none_or(|h| h * x.shape()[0] > 1) {
            let detail = format!("the last vector of {vector} of a row overwrites the next row");
            let edit = move |s: &mut S| s.params.vector = Some(vector);
            let fault = Fault::new("A245", "tail_overwrites_next_row", detail, edit);
            faults.push(fault.keyed(format!("vector {vector}")));
        }
    }
    faults
}
