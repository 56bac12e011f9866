//! `config.json`, read so that nothing that changes the numbers is guessed or overlooked.
//!
//! transformers fills missing fields with a class's defaults, which are not the released models'
//! values; a checkpoint whose config lost `rope_theta` still loads and answers nonsense. Here such
//! a field is an error, a field that asks for something unsupported is an error by name, and so is
//! a field nobody here has heard of. Both spellings are read: transformers 4 (`rope_theta`,
//! `torch_dtype`, `rope_scaling`) and 5 (`rope_parameters`, `dtype`, `layer_types`).

mod fields;
mod generation;
mod known;
mod moe;
mod quant;
mod rope;
mod shape;
mod window;

use std::fmt;
use std::path::Path;

use self::fields::Fields;
pub use self::generation::{GenerationConfig, changes_greedy};
pub use self::moe::Moe;
pub use self::quant::{
    Awq, CompressedTensors, Exclusions, Fp8, Gptq, GptqFormat, Ignored, Part, Quantization,
};
use super::ensure_folder;
use super::json::{self, Object};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::rope::Scaling;

/// A model family that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Qwen2ForCausalLM (Qwen2, Qwen2.5 and the R1 distills of it): biases on q, k and v.
    Qwen2,
    /// Qwen3ForCausalLM, dense: RMSNorm on each head's q and k, no biases in released models.
    Qwen3,
    /// Qwen3MoeForCausalLM: Qwen3 with a mixture of experts in place of (most) MLPs.
    Qwen3Moe,
}

impl Architecture {
    /// The class's name in transformers.
    pub fn class(self) -> &'static str {
        match self {
            Architecture::Qwen2 => "Qwen2ForCausalLM",
            Architecture::Qwen3 => "Qwen3ForCausalLM",
            Architecture::Qwen3Moe => "Qwen3MoeForCausalLM",
        }
    }

    fn model_type(self) -> &'static str {
        match self {
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen3Moe => "qwen3_moe",
        }
    }

    /// Whether each head's q and k go through an RMSNorm.
    pub fn has_qk_norm(self) -> bool {
        self != Architecture::Qwen2
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class())
    }
}

/// The seven linear layers of a block, in the forward's order.
pub const LINEARS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// The three linear layers of an expert.
pub const EXPERT: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// `up_proj` of `mlp.experts.3.up_proj`; `None` for what is no expert's.
pub fn expert_linear(module: &str) -> Option<&str> {
    let (expert, name) = module.strip_prefix("mlp.experts.")?.split_once('.')?;
    expert.parse::<usize>().ok()?;
    Some(name)
}

/// A model's shape and constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Model family.
    pub architecture: Architecture,
    /// Rows of the embedding and of the head (more than the tokenizer has tokens).
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Elements of a head; even. Need not be hidden_size / num_attention_heads.
    pub head_dim: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Change of the rotary angles for long contexts.
    pub rope_scaling: Scaling,
    /// By layer: the keys that a query sees, its own included; `None` is all.
    pub windows: Vec<Option<usize>>,
    /// The `sliding_window` of a config that does not use it: engines that look at this field alone
    /// honour it.
    pub idle_window: Option<usize>,
    /// The mixture of experts, in Qwen3-MoE.
    pub moe: Option<Moe>,
    /// Whether the head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have biases (in Qwen3, o as well). True in Qwen2.
    pub attention_bias: bool,
    /// Longest sequence that the model was trained for.
    pub max_position_embeddings: usize,
    /// The dtype that the model is meant to run in.
    pub dtype: Dtype,
    /// Tokens that end a generation: generation_config.json's if it names any, else config.json's.
    /// Empty when neither does.
    pub eos_token_ids: Vec<u32>,
    /// How the linear layers are quantised, if they are.
    pub quantization: Option<Quantization>,
}

impl Config {
    /// Reads `config.json` in `dir`, and `generation_config.json` and `quantize_config.json` if
    /// they are there.
    ///
    /// # Errors
    /// [`Error::Io`] when a file cannot be read; [`Error::File`] when there is no config.json, or a
    /// field is missing, of a wrong type, out of range, contradicted by another, unsupported or
    /// unknown.
    pub fn open(dir: &Path) -> Result<Config> {
        ensure_folder(dir)?;
        let path = dir.join("config.json");
        let Some(object) = json::read_optional(&path)? else {
            return Err(Error::file(
                path,
                "there is no config; expected a checkpoint as transformers saves it, with \
                 config.json beside the weights",
            ));
        };
        let quantize_path = dir.join("quantize_config.json");
        let quantize = json::read_optional(&quantize_path)?;
        let beside = quantize.as_ref().map(|object| (quantize_path.as_path(), object));
        let mut config = Config::build(&object, &path, beside)?;

        let generation_path = dir.join("generation_config.json");
        if let Some(object) = json::read_optional(&generation_path)? {
            let fields = Fields::new(&generation_path, "", &object);
            if let Some(ids) = fields.ids("eos_token_id", config.vocab_size)? {
                config.eos_token_ids = ids;
            }
        }
        Ok(config)
    }

    /// Reads the text of a `config.json`; `origin` is what errors name as its file.
    ///
    /// # Errors
    /// As [`Config::open`].
    pub fn parse(text: &str, origin: &Path) -> Result<Config> {
        Config::build(&json::parse(text.as_bytes(), origin)?, origin, None)
    }

    fn build(object: &Object, path: &Path, beside: Option<(&Path, &Object)>) -> Result<Config> {
        let f = Fields::new(path, "", object);
        let architecture = shape::architecture(&f)?;
        let hidden_size = f.count("hidden_size", 1 << 20)?;
        let num_hidden_layers = f.count("num_hidden_layers", 1 << 12)?;
        let num_attention_heads = f.count("num_attention_heads", 1 << 12)?;
        let num_key_value_heads = shape::kv_heads(&f, num_attention_heads)?;
        let vocab_size = f.count("vocab_size", 1 << 24)?;
        shape::check_activation(&f)?;
        let max_position_embeddings = f.count("max_position_embeddings", 1 << 30)?;
        let (rope_theta, rope_scaling) = rope::read(&f, max_position_embeddings)?;
        let config = Config {
            architecture,
            vocab_size,
            hidden_size,
            intermediate_size: f.count("intermediate_size", 1 << 20)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim: shape::head_dim(&f, architecture, hidden_size, num_attention_heads)?,
            rms_norm_eps: shape::eps(&f)?,
            rope_theta,
            rope_scaling,
            windows: window::read(&f, architecture, num_hidden_layers)?,
            idle_window: window::idle(&f)?,
            moe: moe::read(&f, architecture, num_hidden_layers)?,
            tie_word_embeddings: shape::tied(&f)?,
            attention_bias: shape::attention_bias(&f, architecture)?,
            max_position_embeddings,
            dtype: shape::dtype(&f)?,
            eos_token_ids: f.ids("eos_token_id", vocab_size)?.unwrap_or_default(),
            quantization: quant::read(&f, beside)?,
        };
        known::check(&f)?;
        if matches!(config.rope_scaling, Scaling::Dynamic { .. }) && config.head_dim == 2 {
            return Err(f.error("head_dim", "is 2, for which dynamic RoPE scaling has no base"));
        }
        config.check_packing(path)?;
        Ok(config)
    }

    /// Rows of q_proj: all query heads.
    pub fn q_rows(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Rows of k_proj and of v_proj: all key/value heads.
    pub fn kv_rows(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// The mixture of experts of a layer, if it is one.
    pub fn moe_of(&self, layer: usize) -> Option<&Moe> {
        self.moe.as_ref().filter(|m| m.sparse.get(layer) == Some(&true))
    }

    /// The linear layers of block `layer` in the forward's order, the router's apart.
    pub fn linears(&self, layer: usize) -> Vec<String> {
        let (attention, mlp) = LINEARS.split_at(4);
        let mut all: Vec<String> = attention.iter().map(|m| (*m).to_string()).collect();
        match self.moe_of(layer) {
            None => all.extend(mlp.iter().map(|m| (*m).to_string())),
            Some(moe) => {
                for e in 0..moe.num_experts {
                    all.extend(EXPERT.iter().map(|m| format!("mlp.experts.{e}.{m}")));
                }
            }
        }
        all
    }

    /// Outputs and inputs of a linear layer of a block (see [`LINEARS`]; an expert's is
    /// `mlp.experts.3.up_proj`), or `None` for other names.
    pub fn linear_shape(&self, module: &str) -> Option<[usize; 2]> {
        if let Some(name) = expert_linear(module) {
            let width = self.moe.as_ref()?.intermediate_size;
            return match name {
                "gate_proj" | "up_proj" => Some([width, self.hidden_size]),
                "down_proj" => Some([self.hidden_size, width]),
                _ => None,
            };
        }
        Some(match module {
            "self_attn.q_proj" => [self.q_rows(), self.hidden_size],
            "self_attn.k_proj" | "self_attn.v_proj" => [self.kv_rows(), self.hidden_size],
            "self_attn.o_proj" => [self.hidden_size, self.q_rows()],
            "mlp.gate_proj" | "mlp.up_proj" => [self.intermediate_size, self.hidden_size],
            "mlp.down_proj" => [self.hidden_size, self.intermediate_size],
            _ => return None,
        })
    }

    /// Whether the architecture gives a linear layer of a block a bias.
    pub fn has_bias(&self, module: &str) -> bool {
        self.attention_bias
            && match module {
                "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj" => true,
                "self_attn.o_proj" => self.architecture.has_qk_norm(),
                _ => false,
            }
    }

    /// Refuses quantised layers whose size their format cannot hold.
    fn check_packing(&self, path: &Path) -> Result<()> {
        let Some(quant) = &self.quantization else { return Ok(()) };
        for layer in 0..self.num_hidden_layers {
            let covers = |module: &str| quant.covers(&format!("model.layers.{layer}.{module}"));
            for module in self.linears(layer).iter().filter(|m| covers(m)) {
                let shape = self.linear_shape(module).unwrap_or([0, 0]);
                if let Some(why) = quant.cannot_hold(shape) {
                    return Err(Error::file(path, format!("`{module}` is {why}")));
                }
            }
            let Some(moe) = self.moe_of(layer) else { continue };
            for module in EXPERT {
                let of = |e: usize| covers(&format!("mlp.experts.{e}.{module}"));
                if let Some(e) = (1..moe.num_experts).find(|&e| of(e) != of(0)) {
                    return Err(Error::file(
                        path,
                        format!(
                            "layer {layer}: of experts 0 and {e} only one has its {module} \
                             quantised, which is not supported"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}
