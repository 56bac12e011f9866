//! The catalogue of rope faults.

use super::{Angle, Pairing, Params, Place, Rope, Scaling, Upper};
use crate::dtype::{Dtype, Rounding};
use crate::ops::{Fault, Setup, Tensors, store_faults, via_f16_fault};
use crate::policy::Transform;
use crate::tensor::Tensor;

type S = Setup<Rope>;

/// Bases of released models, and defaults of others.
pub(super) const THETAS: [f64; 7] = [1e3, 1e4, 1e5, 5e5, 1e6, 5e6, 1e7];

/// Another base of the angles.
pub(super) fn wrong_theta(params: &Params, theta: f64) -> Fault<Rope> {
    let detail = format!("theta is {theta} instead of {}", params.theta);
    let edit = move |s: &mut S| s.params.theta = theta;
    Fault::new("A130", "wrong_theta", detail, edit).keyed(format!("{theta:e}"))
}

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<Rope>> {
    let mut faults = Vec::new();
    faults.extend(
        THETAS.into_iter().filter(|t| *t != params.theta).map(|theta| wrong_theta(params, theta)),
    );
    faults.push(Fault::new(
        "A131",
        "pairing_adjacent",
        "elements (2i, 2i + 1) are rotated instead of (i, i + D/2)",
        |s: &mut S| s.params.pairing = Pairing::Adjacent,
    ));
    let first = tensors.get("positions").filter(|p| !p.is_empty()).map_or(0, |p| p.get_i64(0));
    for offset in [1, -1, -first] {
        if offset != 0 && (offset.abs() == 1 || first > 1) {
            faults.push(
                Fault::new(
                    "A132",
                    "position_offset",
                    format!("positions are shifted by {offset}"),
                    move |s: &mut S| s.params.offset = offset,
                )
                .keyed(format!("by {offset}")),
            );
        }
    }
    for (times, slug, code, detail) in [
        (0, "skipped", "A133", "the rotation is left out"),
        (2, "applied_twice", "A134", "the rotation is applied twice"),
    ] {
        faults.push(Fault::new(code, slug, detail, move |s: &mut S| {
            s.params.times = times;
        }));
    }
    faults.push(Fault::new(
        "A135",
        "inverse",
        "the rotation goes by minus the angle",
        |s: &mut S| {
            s.params.inverse = true;
        },
    ));
    faults.push(Fault::new(
        "A136",
        "angle_bf16",
        "inverse frequency and position are rounded to bf16 before their product",
        |s: &mut S| s.params.angle = Angle::Bf16,
    ));
    faults.extend(scaling_faults(params, tensors));
    faults.extend(store_faults(["A137", "A139"]));
    faults.extend(via_f16_fault(tensors.get("x")));
    faults.extend(precision(tensors));
    faults.extend(places(tensors));
    if tensors.get("x").is_some_and(|x| x.cols() >= 8) {
        for (upper, code, slug, detail) in [
            (
                Upper::Inverse,
                "A252",
                "sign_wrong_beyond",
                "pairs from D/4 on are rotated by minus the angle",
            ),
            (Upper::Still, "A253", "high_pairs_unrotated", "pairs from D/4 on are not rotated"),
        ] {
            let edit = move |s: &mut S| s.params.upper = upper;
            faults.push(Fault::new(code, slug, detail, edit));
        }
    }
    faults
}

/// Tables and products of too few bits.
fn precision(tensors: &Tensors) -> Vec<Fault<Rope>> {
    let mut faults = vec![Fault::new(
        "A24B",
        "inv_freq_bf16",
        "the inverse frequency is rounded to bf16, the position is not",
        |s: &mut S| s.params.angle = Angle::FrequencyBf16,
    )];
    let bf16 = Rounding::nearest(Dtype::Bf16);
    let positions = tensors.get("positions").map(Tensor::to_f64).unwrap_or_default();
    if positions.iter().any(|p| bf16.round(*p) != *p) {
        faults.push(Fault::new(
            "A24C",
            "position_bf16",
            "the position is rounded to bf16, which has no odd number above 256",
            |s: &mut S| s.params.angle = Angle::PositionBf16,
        ));
    }
    if tensors.get("x").is_some_and(|x| x.dtype() != Dtype::Bf16) {
        faults.push(Fault::new(
            "A24D",
            "table_bf16",
            "cos and sin are rounded to bf16, the model's dtype is another",
            |s: &mut S| s.policy.round_at("table", Dtype::Bf16),
        ));
    }
    faults.push(Fault::new(
        "A24E",
        "product_truncated",
        "each product with cos or sin is rounded toward zero to the stored dtype",
        |s: &mut S| {
            let rounding = Rounding::toward_zero(s.policy.output.dtype);
            s.policy.points.retain(|(point, _)| *point != "product");
            s.policy.at("product", Transform::Round(rounding));
        },
    ));
    faults
}

/// Positions of other tokens.
fn places(tensors: &Tensors) -> Vec<Fault<Rope>> {
    let mut faults = Vec::new();
    let Some(positions) = tensors.get("positions").filter(|p| !p.is_empty()) else {
        return faults;
    };
    let own: Vec<i64> = (0..positions.len()).map(|i| positions.get_i64(i)).collect();
    // By one it is a shift by one.
    let first = own[0];
    if first > 1 {
        faults.push(Fault::new(
            "A24F",
            "position_double_counted",
            format!("the chunk's first position, {first}, is added to positions that hold it"),
            move |s: &mut S| s.params.offset = first,
        ));
    }
    if own.iter().any(|p| *p != first) {
        faults.push(Fault::new(
            "A250",
            "first_position_for_all",
            format!("all tokens are rotated by the first one's position, {first}"),
            |s: &mut S| s.params.place = Place::First,
        ));
    }
    for length in [4096, 32_768] {
        if own.iter().any(|p| *p >= length) {
            let detail = format!("positions begin again at {length}: the table is too short");
            let edit = move |s: &mut S| s.params.place = Place::Modulo(length);
            let fault = Fault::new("A251", "position_wraps", detail, edit);
            faults.push(fault.keyed(format!("at {length}")));
        }
    }
    faults
}

/// The frequencies of a case's call.
fn of_case(params: &Params, tensors: &Tensors) -> Vec<f64> {
    let d = tensors.get("x").map_or(0, Tensor::cols);
    let largest = tensors.get("positions").and_then(|p| (0..p.len()).map(|i| p.get_i64(i)).max());
    let seq_len = largest.unwrap_or(0).max(0) as usize + 1;
    params.frequencies(d, seq_len).into_iter().map(|f| f.value).collect()
}

/// What is got wrong about a scaling, as far as it changes the case.
fn scaling_faults(params: &Params, tensors: &Tensors) -> Vec<Fault<Rope>> {
    let right = of_case(params, tensors);
    let factor = params.scaling.attention_factor();
    let mut faults = Vec::new();
    let mut fault = |code, slug, detail: String, edit: fn(&mut Params)| {
        let mut wrong = params.clone();
        edit(&mut wrong);
        let power = |p: &Params| (p.scaling.attention_factor(), p.attention_factor_power);
        if of_case(&wrong, tensors) == right && (factor == 1.0 || power(&wrong) == power(params)) {
            return;
        }
        let edit = move |s: &mut S| edit(&mut s.params);
        faults.push(Fault::new(code, slug, detail, edit));
    };
    if params.scaling == Scaling::Default {
        return faults;
    }
    fault("A13A", "scaling_ignored", "the frequencies are those of no scaling".into(), |p| {
        p.scaling = Scaling::Default;
    });
    fault(
        "A13B",
        "attention_factor_ignored",
        format!("cos and sin are not multiplied by the attention factor {factor}"),
        |p| p.attention_factor_power = 0,
    );
    fault(
        "A13C",
        "attention_factor_squared",
        format!("cos and sin are multiplied by the attention factor {factor} twice"),
        |p| p.attention_factor_power = 2,
    );
    fault(
        "A13D",
        "yarn_as_linear",
        "all frequencies are divided by the factor: YaRN's ramp is missing".into(),
        |p| p.ramp_missing = matches!(p.scaling, Scaling::Yarn(_)),
    );
    fault(
        "A13E",
        "yarn_ramp_not_truncated",
        "the ends of YaRN's ramp are not rounded to whole dimensions".into(),
        |p| {
            if let Scaling::Yarn(yarn) = &mut p.scaling {
                yarn.truncate = false;
            }
        },
    );
    faults
}
