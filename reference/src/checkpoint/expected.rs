//! The tensors that an architecture needs, by name, with the shape that the config implies.
//!
//! Names are those of transformers. A quantised layer has the tensors of its format, see
//! [`Quantization::parts`](super::Quantization::parts).

use std::fmt;

use super::config::{Config, Quantization};
use crate::dtype::Dtype;

/// What a tensor is for, which says the dtypes it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Weights or biases of any floating-point dtype.
    Float,
    /// Scales of GPTQ and AWQ weights: f16, or bf16 as some quantisers write for bf16 models.
    Scales,
    /// Scales of other quantised weights, in the model's dtype or f32.
    FloatScales,
    /// FP8 weights, whose scales are apart.
    Fp8,
    /// 32-bit words of packed integers.
    Packed,
    /// The sizes of a packed weight, which must be these.
    Sizes {
        /// Outputs.
        n: usize,
        /// Inputs.
        k: usize,
    },
    /// The group of each input row: i32, each from 0 to `groups` - 1.
    GroupIndex {
        /// Number of groups.
        groups: usize,
    },
}

impl Kind {
    /// Whether a tensor of this kind may be stored as `dtype`.
    pub fn allows(self, dtype: Dtype) -> bool {
        match self {
            // An FP8 weight without scales is not the weight.
            Kind::Float => dtype.format().is_some() && dtype != Dtype::F8E4m3,
            Kind::Scales => matches!(dtype, Dtype::F16 | Dtype::Bf16),
            Kind::FloatScales => matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32),
            Kind::Fp8 => dtype == Dtype::F8E4m3,
            Kind::Sizes { .. } => matches!(dtype, Dtype::I32 | Dtype::I64),
            Kind::Packed | Kind::GroupIndex { .. } => dtype == Dtype::I32,
        }
    }
}

impl fmt::Display for Kind {
    /// The dtypes allowed, as an error message names them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Float => "a floating-point dtype (bf16, f16, f32 or f64)",
            Kind::Scales => "f16 or bf16",
            Kind::FloatScales => "f16, bf16 or f32",
            Kind::Fp8 => "f8e4m3",
            Kind::Packed => "i32 (words of packed integers)",
            Kind::Sizes { .. } => "i64 or i32 (outputs and inputs)",
            Kind::GroupIndex { .. } => "i32 (the group of each input row)",
        })
    }
}

/// One tensor that must be in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Name in the files.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
}

/// Every tensor that a model of this config reads, in the forward's order.
pub fn expected(config: &Config) -> Vec<Expected> {
    let mut all = Vec::new();
    let float =
        |name: String, shape: &[usize]| Expected { name, kind: Kind::Float, shape: shape.to_vec() };
    let table = [config.vocab_size, config.hidden_size];
    let width = [config.hidden_size];
    all.push(float("model.embed_tokens.weight".to_owned(), &table));
    for layer in 0..config.num_hidden_layers {
        let at = |rest: &str| format!("model.layers.{layer}.{rest}");
        all.push(float(at("input_layernorm.weight"), &width));
        for module in config.linears(layer) {
            linear(&mut all, config, &module, &at(&module));
            if module == "self_attn.v_proj" && config.architecture.has_qk_norm() {
                all.push(float(at("self_attn.q_norm.weight"), &[config.head_dim]));
                all.push(float(at("self_attn.k_norm.weight"), &[config.head_dim]));
            }
            if module == "self_attn.o_proj" {
                all.push(float(at("post_attention_layernorm.weight"), &width));
                if let Some(moe) = config.moe_of(layer) {
                    let router = [moe.num_experts, config.hidden_size];
                    all.push(float(at("mlp.gate.weight"), &router));
                }
            }
        }
    }
    all.push(float("model.norm.weight".to_owned(), &width));
    if !config.tie_word_embeddings {
        all.push(float("lm_head.weight".to_owned(), &table));
    }
    all
}

/// The tensors of one linear layer, whose names begin with `prefix`.
fn linear(all: &mut Vec<Expected>, config: &Config, module: &str, prefix: &str) {
    let shape = config.linear_shape(module).unwrap_or([0, 0]);
    let quantization = config.quantization.as_ref();
    all.extend(linear_parts(quantization, prefix, shape, config.has_bias(module)));
}

/// The tensors of the linear layer at `path` of `n` outputs and `k` inputs, floats or quantised.
pub fn linear_parts(
    quantization: Option<&Quantization>,
    path: &str,
    [n, k]: [usize; 2],
    bias: bool,
) -> Vec<Expected> {
    let mut parts = match quantization.filter(|q| q.covers(path)) {
        Some(quantization) => quantization.parts([n, k]),
        None => vec![("weight", Kind::Float, vec![n, k])],
    };
    if bias {
        parts.push(("bias", Kind::Float, vec![n]));
    }
    let named = |(suffix, kind, shape)| Expected { name: format!("{path}.{suffix}"), kind, shape };
    parts.into_iter().map(named).collect()
}
