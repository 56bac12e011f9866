//! Rotary embedding: left out, repeated, wrongly scaled, at wrong positions.

use super::{Entry, Form, Positions};
use crate::checkpoint::Config;
use crate::ops::rope::Scaling;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: "A310",
        slug: "rope_twice",
        summary: "the rotation applied twice",
        source: "https://github.com/NVIDIA/TensorRT-LLM/issues/4040",
        make: |_| vec![Form::new("", "q and k are rotated twice").param("rope", "times", 2)],
    },
    Entry {
        code: "A311",
        slug: "rope_missing",
        summary: "the rotation left out",
        source: "https://github.com/tenstorrent/tt-mlir/issues/9042",
        make: |_| vec![Form::new("", "q and k are not rotated").param("rope", "times", 0)],
    },
    Entry {
        code: "A312",
        slug: "rope_pairing",
        summary: "pairs (2i, 2i + 1) rotated instead of halves",
        source: "https://github.com/huggingface/transformers/issues/25199",
        make: |_| {
            let detail = "elements (2i, 2i + 1) are rotated instead of (i, i + head_dim/2)";
            vec![Form::new("", detail).param("rope", "pairing", "adjacent")]
        },
    },
    Entry {
        code: "A313",
        slug: "rope_inverse",
        summary: "the rotation by minus the angle",
        source: "https://arxiv.org/abs/2104.09864",
        make: |_| {
            vec![
                Form::new("", "q and k are rotated by minus the angle")
                    .param("rope", "inverse", true),
            ]
        },
    },
    Entry {
        code: "A314",
        slug: "rope_scaling_ignored",
        summary: "the config's rope scaling not applied",
        source: "https://github.com/vllm-project/vllm/issues/48621",
        make: |c| {
            let form = Form::new("", "the frequencies are those of no scaling")
                .config(|c| c.rope_scaling = Scaling::Default);
            scaled(c).then_some(form).into_iter().collect()
        },
    },
    Entry {
        code: "A315",
        slug: "yarn_attention_factor",
        summary: "YaRN's attention factor ignored or squared",
        source: "https://github.com/vllm-project/vllm/issues/48621",
        make: |c| {
            let factor = c.rope_scaling.attention_factor();
            if factor == 1.0 {
                return Vec::new();
            }
            let form = |key: &str, power: u32, how: &str| {
                let detail = format!("cos and sin are {how} the attention factor {factor}");
                Form::new(key, detail).param("rope", "attention_factor_power", power)
            };
            vec![form("ignored", 0, "not multiplied by"), form("squared", 2, "multiplied twice by")]
        },
    },
    Entry {
        code: "A316",
        slug: "yarn_as_linear",
        summary: "YaRN's ramp missing: every frequency divided by the factor",
        source: "https://arxiv.org/abs/2309.00071",
        make: |c| {
            let form =
                Form::new("", "all frequencies are divided by the factor: YaRN's ramp is missing")
                    .param("rope", "ramp_missing", true);
            matches!(c.rope_scaling, Scaling::Yarn(_)).then_some(form).into_iter().collect()
        },
    },
    Entry {
        code: "A317",
        slug: "position_double_counted",
        summary: "the start of a later call counted twice in its positions",
        source: "https://github.com/mlx-node/mlx-node/pull/33",
        make: |_| {
            let form = |key: &str, detail: &str, p| {
                Form::new(key, detail).wiring(move |w, _| w.positions = p).everywhere()
            };
            vec![
                form(
                    "from call 2",
                    "each call's positions begin at twice the number of tokens before it",
                    Positions::Doubled,
                ),
                form(
                    "from call 3",
                    "the calls' starts add up, so that positions are wrong from the third call on",
                    Positions::Summed,
                ),
            ]
        },
    },
    Entry {
        code: "A318",
        slug: "position_reset",
        summary: "positions begin at 0 in each call",
        source: "https://github.com/huggingface/transformers/issues/43082",
        make: |_| {
            let detail = "positions begin at 0 in every call, whatever was cached before";
            let form = Form::new("", detail).wiring(|w, _| w.positions = Positions::Restarted);
            vec![form.everywhere()]
        },
    },
    Entry {
        code: "A319",
        slug: "position_later_shifted",
        summary: "positions of later calls one too high or low: prefill and decode count differently",
        source: "https://github.com/vllm-project/vllm/pull/10403",
        make: |_| {
            let form = |by: i64| {
                let detail = format!("positions of every call after the first are shifted by {by}");
                let edit = Positions::LaterShifted(by);
                Form::new(format!("{by:+}"), detail)
                    .wiring(move |w, _| w.positions = edit)
                    .everywhere()
            };
            vec![form(1), form(-1)]
        },
    },
    Entry {
        code: "A31A",
        slug: "position_from_one",
        summary: "positions begin at 1 (or count left padding); attention sees differences only",
        source: "https://github.com/huggingface/transformers/issues/29149",
        make: |_| {
            let detail = "positions begin at 1 instead of 0";
            let form = Form::new("", detail).wiring(|w, _| w.positions = Positions::Shifted(1));
            vec![form.everywhere()]
        },
    },
    Entry {
        code: "A31B",
        slug: "rope_angle_bf16",
        summary: "inverse frequency and position rounded to bf16 before their product",
        source: "https://github.com/huggingface/candle/issues/3005",
        make: |_| {
            let detail = "inverse frequency and position are rounded to bf16";
            vec![Form::new("", detail).param("rope", "angle", "bf16")]
        },
    },
];

fn scaled(c: &Config) -> bool {
    c.rope_scaling != Scaling::Default
}
