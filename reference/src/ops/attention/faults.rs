//! The catalogue of attention faults.

use super::{Attention, KvHead, Lost, MaskCorner, Params, Rescale, ScaledQuery, Values};
use crate::dtype::{Dtype, Rounding};
use crate::ops::softmax::Exponent;
use crate::ops::{Fault, Setup, Tensors, store_faults, via_f16_fault};
use crate::policy::Transform;

type S = Setup<Attention>;

pub(super) fn catalogue(params: &Params, tensors: &Tensors) -> Vec<Fault<Attention>> {
    let (Some(q), Some(k)) = (tensors.get("q"), tensors.get("k")) else { return Vec::new() };
    let (&[t, hq, d], &[s, hkv, _]) = (q.shape(), k.shape()) else { return Vec::new() };
    let mut faults = masks(params, t, s);
    if hkv > 1 && hkv < hq {
        faults.push(Fault::new(
            "A143",
            "kv_head_modulo",
            format!("query head h reads kv head h mod {hkv} instead of h / {}", hq / hkv),
            |s: &mut S| s.params.kv_head = KvHead::Modulo,
        ));
    }
    if hkv > 1 {
        faults.push(Fault::new(
            "A259",
            "last_group_previous_head",
            format!("the queries of kv head {} read kv head {}", hkv - 1, hkv - 2),
            |s: &mut S| s.params.kv_head = KvHead::LastPrevious,
        ));
    }
    faults.extend(windows(params, s));
    faults.extend(scales(params, d));
    faults.extend(rescales(s));
    faults.extend(precision());
    faults.extend(exponentials(params));
    faults.extend(values(s));
    faults.extend(denominators(s));
    faults.extend(store_faults(["A154", "A155"]));
    faults.extend(via_f16_fault(tensors.get("q")));
    faults
}

/// What is got wrong about a sliding window that is on.
fn windows(params: &Params, s: usize) -> Vec<Fault<Attention>> {
    let Some(window) = params.window.filter(|&w| w < s) else { return Vec::new() };
    let fault = |code, slug, detail: String, window: Option<usize>| {
        Fault::new(code, slug, detail, move |s: &mut S| s.params.window = window)
    };
    let mut faults = vec![
        fault(
            "A156",
            "window_ignored",
            format!("keys behind the window of {window} are seen"),
            None,
        ),
        fault(
            "A157",
            "window_one_wider",
            format!("a query sees {} keys instead of {window}", window + 1),
            Some(window + 1),
        ),
    ];
    if window > 1 {
        let detail = format!("a query sees {} keys instead of {window}", window - 1);
        faults.push(fault("A158", "window_one_narrower", detail, Some(window - 1)));
    }
    faults
}

fn masks(params: &Params, t: usize, s: usize) -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    let mut mask = |code, slug, detail: &str, mask: MaskCorner| {
        faults.push(Fault::new(code, slug, detail, move |s: &mut S| s.params.mask = mask));
    };
    if t < s {
        mask(
            "A140",
            "mask_upper_left",
            "the causal mask is aligned to the upper left, so a cache hides from the queries",
            MaskCorner::UpperLeft,
        );
    }
    mask("A141", "future_key_visible", "each query sees one key past its own", MaskCorner::OnePast);
    if t > 1 {
        mask("A142", "mask_missing", "queries see all keys, the future too", MaskCorner::None);
    }
    let mut lost = |code, slug, detail: String, lost: Lost| {
        let key = if let Lost::Window(n) = lost { format!("window {n}") } else { String::new() };
        let edit = move |s: &mut S| s.params.lost = lost;
        faults.push(Fault::new(code, slug, detail, edit).keyed(key));
    };
    lost(
        "A144",
        "newest_key_dropped",
        format!("the last key of the sequence (position {}) is left out", s - 1),
        Lost::Newest,
    );
    lost(
        "A145",
        "diagonal_key_dropped",
        "each query misses the key of its own position".into(),
        Lost::Diagonal,
    );
    // Keys behind a sliding window are hidden anyway.
    let visible = params.window.unwrap_or(usize::MAX);
    if s - t < visible {
        lost("A146", "first_key_dropped", "key 0 is left out".into(), Lost::First);
    }
    for window in [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096] {
        if window < s.min(visible) {
            lost(
                "A147",
                "window_honoured",
                format!("keys more than {window} back are hidden (a sliding window that is off)"),
                Lost::Window(window),
            );
        }
    }
    faults.push(Fault::new(
        "A14F",
        "masked_nan",
        "masked keys enter with weight 0, so a NaN in a masked value reaches the output",
        |s: &mut S| s.params.sentinel = Some(f64::NEG_INFINITY),
    ));
    for sentinel in [-1e4, -5e4, -65504.0] {
        faults.push(
            Fault::new(
                "A148",
                "finite_mask",
                format!("masked scores become {sentinel} instead of -inf and leak"),
                move |s: &mut S| s.params.sentinel = Some(sentinel),
            )
            .keyed(format!("{sentinel}")),
        );
    }
    faults
}

fn scales(params: &Params, d: usize) -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    let mut add = |scale: f64, text: String| {
        if (scale / params.scale - 1.0).abs() > 1e-9 {
            faults.push(
                Fault::new(
                    "A149",
                    "wrong_scale",
                    format!("scores are scaled by {text} instead of {:.6}", params.scale),
                    move |s: &mut S| s.params.scale = scale,
                )
                .keyed(text),
            );
        }
    };
    for n in [32, 48, 64, 80, 96, 112, 120, 128, 160, 192, 256] {
        add(1.0 / f64::from(n).sqrt(), format!("1/sqrt({n})"));
    }
    add(1.0 / d as f64, format!("1/{d}"));
    add(1.0, "1 (left out)".into());
    add(params.scale * params.scale, "the scale twice".into());
    faults
}

fn rescales(s: usize) -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    for block in [16, 32, 64, 128] {
        if block >= s {
            break;
        }
        for at in [Some(1), None] {
            for numerator in [true, false] {
                let (code, slug, what) = if numerator {
                    ("A14A", "tile_not_rescaled", "the accumulated P V")
                } else {
                    ("A14B", "denominator_not_rescaled", "the running sum")
                };
                let place = at.map_or("any key tile".into(), |n: usize| format!("key tile {n}"));
                let rescale = Rescale { block, at, numerator };
                faults.push(
                    Fault::new(
                        code,
                        slug,
                        format!("{what} is not rescaled at {place} of {block} keys"),
                        move |s: &mut S| s.params.rescale = Some(rescale),
                    )
                    .keyed(format!("{place} of {block}")),
                );
            }
        }
    }
    faults
}

fn precision() -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    for (dtype, code, slug) in
        [(Dtype::Bf16, "A14C", "scores_bf16"), (Dtype::F16, "A14D", "scores_f16")]
    {
        for points in [&["scores"][..], &["qk"], &["qk", "scores"]] {
            faults.push(
                Fault::new(
                    code,
                    slug,
                    format!("{} are rounded to {dtype}", points.join(" and ")),
                    move |s: &mut S| points.iter().for_each(|p| s.policy.round_at(p, dtype)),
                )
                .keyed(points.join(" and ")),
            );
        }
    }
    for block in [None, Some(16), Some(32), Some(64), Some(128)] {
        let relative = block
            .map_or("the final maximum".into(), |b| format!("the running maximum of {b} keys"));
        faults.push(
            Fault::new(
                "A14E",
                "probs_truncated",
                format!("P is truncated to bf16 relative to {relative}"),
                move |s: &mut S| {
                    s.params.probs_block = block;
                    let truncated = Rounding::toward_zero(Dtype::Bf16);
                    s.policy.only_at("probs", Transform::Round(truncated));
                },
            )
            .keyed(relative),
        );
    }
    faults
}

/// Exponentials of the wrong argument, or of one that was rounded too early.
fn exponentials(params: &Params) -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    for (exponent, code, slug, detail) in Exponent::FAULTS {
        let edit = move |s: &mut S| s.params.exponent = exponent;
        faults.push(Fault::new(code, slug, detail, edit));
    }
    let mut scaled = |to: ScaledQuery, by: &str| {
        let detail = format!("q is multiplied by the {by} and stored before the product with k");
        let edit = move |s: &mut S| s.params.scaled_query = Some(to);
        faults.push(Fault::new("A25C", "q_scaled_stored", detail, edit).keyed(by));
    };
    // A power of two moves no bit of q.
    if params.scale.to_bits() << 12 != 0 {
        scaled(ScaledQuery::Scale, "scale");
    }
    scaled(ScaledQuery::ScaleLog2e, "scale log2e");
    for floor in [-10_000.0, -50_000.0] {
        let detail = format!("the running maximum starts at {floor}: queries far below give zeros");
        let edit = move |s: &mut S| s.params.floor = Some(floor);
        faults.push(Fault::new("A25F", "maximum_floor", detail, edit).keyed(format!("{floor}")));
    }
    faults
}

/// Weights that multiply another key's value.
fn values(s: usize) -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    if s > 1 {
        faults.push(Fault::new(
            "A25A",
            "value_position_off_by_one",
            "the weight of key j multiplies the value of key j - 1",
            |s: &mut S| s.params.values = Values::Previous,
        ));
    }
    faults.push(Fault::new(
        "A25B",
        "newest_value_missing",
        format!("the value of the newest key (position {}) is read as zero", s - 1),
        |s: &mut S| s.params.values = Values::NewestMissing,
    ));
    faults
}

/// Denominators of too many keys, of too few bits, or of a part of the keys only.
fn denominators(s: usize) -> Vec<Fault<Attention>> {
    let mut faults = Vec::new();
    for tile in [16, 32, 64, 128] {
        let pads = s.next_multiple_of(tile) - s;
        if pads > 0 {
            let detail = format!("the denominator counts {pads} padded keys of score 0");
            let edit = move |s: &mut S| s.params.padded_to = Some(tile);
            let fault = Fault::new("A258", "padded_keys_counted", detail, edit);
            faults.push(fault.keyed(format!("tile {tile}")));
        }
    }
    if s > 1 {
        faults.push(Fault::new(
            "A25D",
            "denominator_bf16",
            "the sum of P is stored in bf16 after each key",
            |s: &mut S| s.params.denominator_bf16 = true,
        ));
    }
    for runs in [2, 4, 8] {
        if s >= runs {
            let detail =
                format!("outputs of {runs} runs of keys are averaged without their weights");
            let edit = move |s: &mut S| s.params.averaged = Some(runs);
            let fault = Fault::new("A25E", "splits_averaged", detail, edit);
            faults.push(fault.keyed(format!("{runs}")));
        }
    }
    faults
}
