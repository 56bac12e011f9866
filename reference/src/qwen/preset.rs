//! Presets: named sets of conventions, used alike by running, diffing and judging.

use serde_json::Value;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::rope::Angle;
use crate::ops::{Choice, Knob, Op, Setup, Tensors};
use crate::policy::Policy;

/// A named set of conventions for a whole forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// What it stands for.
    pub summary: &'static str,
    /// Dtype in which activations are stored.
    pub dtype: Dtype,
    /// Precision of the rope angle.
    pub angle: Angle,
    /// Choices other than the defaults: (op, knob, value).
    pub choices: &'static [(&'static str, &'static str, &'static str)],
}

/// transformers' modules with eager attention and eager experts. gptqmodel's linear layers cast the
/// scales when they are loaded and add the bias to the stored product.
const TRANSFORMERS: &[(&str, &str, &str)] = &[
    ("rms_norm", "normalised", "stored"),
    ("rope", "table", "stored"),
    ("rope", "product", "stored"),
    ("attention", "probs", "normalised"),
    ("attention", "scores", "stored"),
    ("silu_mul", "silu", "stored"),
    ("gptq_gemm", "scale", "stored"),
    ("gptq_gemm", "bias", "after_store"),
    ("awq_gemm", "scale", "stored"),
    ("awq_gemm", "bias", "after_store"),
    ("ct_gemm", "scale", "stored"),
    ("moe_experts", "silu", "stored"),
    ("moe_experts", "down", "stored"),
    ("moe_experts", "sum", "stored"),
];

/// vLLM's own kernels, by their public sources: rms_norm multiplies by its weight in f32 and rounds
/// once; cos and sin lie in a table of the model's dtype, in which the products are rounded too, as is
/// silu(gate); flash attention keeps scores in f32 and rounds P relative to a running maximum; a
/// quantised weight is formed in the model's dtype from a scale of that dtype; FP8 products have
/// activations quantised by token and block; a fused mixture of
/// experts keeps routing weights in f32.
const FUSED: &[(&str, &str, &str)] = &[
    ("rope", "table", "stored"),
    ("rope", "product", "stored"),
    ("rope", "base", "fixed"),
    ("attention", "probs", "online_64"),
    ("silu_mul", "silu", "stored"),
    ("gptq_gemm", "scale", "stored"),
    ("awq_gemm", "scale", "stored"),
    ("ct_gemm", "scale", "stored"),
    ("fp8_gemm", "activations", "fp8"),
    ("moe_route", "weights", "f32"),
    ("moe_experts", "silu", "stored"),
];

/// The presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "oracle-f64",
        summary: "float64 throughout, the rope angle too",
        dtype: Dtype::F64,
        angle: Angle::F64,
        choices: &[],
    },
    Preset {
        name: "f32",
        summary: "activations in f32, transformers' f32 rope angle",
        dtype: Dtype::F32,
        angle: Angle::F32,
        choices: &[],
    },
    Preset {
        name: "transformers-bf16",
        summary: "transformers' eager bf16 forward: a tensor is stored after every elementary operation",
        dtype: Dtype::Bf16,
        angle: Angle::F32,
        choices: TRANSFORMERS,
    },
    Preset {
        name: "transformers-f16",
        summary: "the same in f16",
        dtype: Dtype::F16,
        angle: Angle::F32,
        choices: TRANSFORMERS,
    },
    Preset {
        name: "fused-bf16",
        summary: "vLLM-like fused bf16 kernels: norms, scores and sums in f32, P rounded before P V",
        dtype: Dtype::Bf16,
        angle: Angle::F32,
        choices: FUSED,
    },
];

/// Mixtures of the two, as engines have them.
const EAGER_NORMS: &[(&str, &str, &str)] = &[
    ("rms_norm", "normalised", "stored"),
    ("rope", "table", "stored"),
    ("attention", "probs", "stored"),
    ("silu_mul", "silu", "stored"),
    ("gptq_gemm", "scale", "stored"),
    ("moe_experts", "silu", "stored"),
];
const SDPA: &[(&str, &str, &str)] = &[
    ("rms_norm", "normalised", "stored"),
    ("rope", "table", "stored"),
    ("rope", "product", "stored"),
    ("attention", "probs", "online_64"),
    ("silu_mul", "silu", "stored"),
    ("gptq_gemm", "bias", "after_store"),
    ("moe_experts", "down", "stored"),
];
const ROPE_F32: &[(&str, &str, &str)] = &[
    ("rms_norm", "normalised", "stored"),
    ("attention", "probs", "normalised"),
    ("attention", "scores", "stored"),
    ("moe_experts", "sum", "stored"),
];

/// How legitimate engines of one dtype round, from nothing inside an op to after every operation: the
/// sample from which it is learnt how far legitimate forwards lie apart.
pub fn legitimate(dtype: Dtype) -> &'static [Preset] {
    const fn mix(dtype: Dtype, choices: &'static [(&str, &str, &str)]) -> Preset {
        let (name, summary, angle) = ("mixture", "a mixture of conventions", Angle::F32);
        Preset { name, summary, dtype, angle, choices }
    }
    const fn mixes(dtype: Dtype) -> [Preset; 6] {
        [
            mix(dtype, TRANSFORMERS),
            mix(dtype, FUSED),
            mix(dtype, &[]),
            mix(dtype, EAGER_NORMS),
            mix(dtype, SDPA),
            mix(dtype, ROPE_F32),
        ]
    }
    static BF16: [Preset; 6] = mixes(Dtype::Bf16);
    static F16: [Preset; 6] = mixes(Dtype::F16);
    match dtype {
        Dtype::F64 => &PRESETS[..1],
        Dtype::Bf16 => &BF16,
        Dtype::F16 => &F16,
        _ => &PRESETS[1..2],
    }
}

impl Preset {
    /// By name.
    ///
    /// # Errors
    /// Lists the known names.
    pub fn named(name: &str) -> Result<&'static Preset> {
        PRESETS.iter().find(|p| p.name == name).ok_or_else(|| {
            let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
            Error::Request(format!("unknown preset `{name}`; known are {}", known.join(", ")))
        })
    }

    /// The params and policy of an op under this preset. `tensors` are the op's stored arguments.
    ///
    /// # Errors
    /// When `params` are not the op's.
    pub fn apply<O: Op>(&self, params: &Value, tensors: &Tensors) -> Result<(O::Params, Policy)> {
        let params = serde_json::from_value(params.clone())
            .map_err(|e| Error::arg(O::NAME, "params", format!("{e} in {params}")))?;
        let mut setup =
            Setup::<O> { params, policy: O::policy(self.dtype), tensors: tensors.clone() };
        self.edit(&mut setup);
        Ok((setup.params, setup.policy))
    }

    /// Makes this preset's choices on a setup of defaults; they are returned as `knob=value`.
    pub fn edit<O: Op>(&self, setup: &mut Setup<O>) -> Vec<String> {
        let mut made = Vec::new();
        for knob in O::knobs(&setup.params) {
            if let Some(choice) = self.choice(O::name(&setup.params), &knob) {
                (choice.edit)(setup);
                made.push(format!("{}={}", knob.name, choice.value));
            }
        }
        made
    }

    /// The choice of a knob, if this preset makes one.
    fn choice<'k, O: Op>(&self, op: &str, knob: &'k Knob<O>) -> Option<&'k Choice<O>> {
        let of_knob = |c: &&(&str, &str, &str)| c.0 == op && c.1 == knob.name;
        let (_, _, value) = self.choices.iter().find(of_knob)?;
        knob.choices.iter().find(|c| c.value == *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{self, Visitor};

    struct Values(&'static str, Value);

    impl Visitor for Values {
        type Out = Vec<&'static str>;
        fn visit<O: Op>(self) -> Self::Out {
            let params = serde_json::from_value(self.1).expect("params");
            let knobs = O::knobs(&params);
            knobs
                .into_iter()
                .filter(|k| k.name == self.0)
                .flat_map(|k| k.choices.into_iter().map(|c| c.value))
                .collect()
        }
    }

    #[test]
    fn every_choice_of_a_preset_exists() {
        for preset in PRESETS.iter().chain(legitimate(Dtype::Bf16)) {
            for (op, knob, value) in preset.choices {
                let params = match *op {
                    "rms_norm" => serde_json::json!({ "eps": 1e-6 }),
                    "rope" => serde_json::json!({ "theta": 1e6, "scaling": {
                        "rope_type": "dynamic", "factor": 2.0, "max_position": 8
                    } }),
                    "moe_route" => serde_json::json!({ "top_k": 2, "normalise": true }),
                    "attention" => serde_json::json!({ "scale": 1.0 }),
                    "gptq_gemm" => serde_json::json!({
                        "dequant": { "format": "v1", "group_size": 128 }, "matmul": {}
                    }),
                    "fp8_gemm" => serde_json::json!({
                        "dequant": { "block": [128, 128] }, "matmul": {}
                    }),
                    "awq_gemm" => serde_json::json!({
                        "dequant": { "group_size": 128 }, "matmul": {}
                    }),
                    "ct_gemm" => serde_json::json!({
                        "dequant": { "bits": 4, "group_size": 128 }, "matmul": {}
                    }),
                    _ => serde_json::json!({}),
                };
                let values = ops::visit(op, Values(knob, params)).expect("a known op");
                assert!(values.contains(value), "{}: {op}.{knob}={value}", preset.name);
            }
        }
    }
}
