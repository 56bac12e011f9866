//! Small checkpoints, written by hand and then damaged by a test.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use assay_reference::checkpoint::{Checkpoint, Config, write};
use assay_reference::{Dtype, Tensor};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// Tensors by name.
pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// A checkpoint to be written: config and tensors, which a test may edit first.
pub(crate) struct Model {
    pub(crate) dir: TempDir,
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: Tensors,
}

const HIDDEN: usize = 16;
const INTER: usize = 24;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const VOCAB: usize = 32;

/// Fields that both architectures share, in transformers 4's spelling.
fn common() -> Value {
    json!({
        "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
        "intermediate_size": INTER, "max_position_embeddings": 64, "max_window_layers": 2,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "sliding_window": 4096, "use_sliding_window": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "vocab_size": VOCAB,
    })
}

/// The linear layers of a block: name, outputs, inputs.
pub(crate) const LINEARS: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN),
    ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
    ("mlp.gate_proj", INTER, HIDDEN),
    ("mlp.up_proj", INTER, HIDDEN),
    ("mlp.down_proj", HIDDEN, INTER),
];

/// A float tensor whose values differ.
pub(crate) fn float(dtype: Dtype, shape: &[usize]) -> Tensor {
    let n = shape.iter().product::<usize>();
    let values: Vec<f64> = (0..n).map(|i| (i % 13) as f64 / 8.0 - 0.75).collect();
    Tensor::from_f64(dtype, shape, &values)
}

fn bf16(shape: &[usize]) -> Tensor {
    float(Dtype::Bf16, shape)
}

impl Model {
    /// Qwen2 with an own head, biases and a head_dim that is not hidden / heads.
    pub(crate) fn qwen2() -> Model {
        let mut m = Model::new("Qwen2ForCausalLM", "qwen2");
        m.set("tie_word_embeddings", json!(false));
        m.put("lm_head.weight", bf16(&[VOCAB, HIDDEN]));
        for layer in 0..LAYERS {
            for (name, n, _) in &LINEARS[..3] {
                m.put(&format!("model.layers.{layer}.{name}.bias"), bf16(&[*n]));
            }
        }
        m
    }

    /// Qwen3 with a tied head and norms on q and k.
    pub(crate) fn qwen3() -> Model {
        let mut m = Model::new("Qwen3ForCausalLM", "qwen3");
        m.set("tie_word_embeddings", json!(true));
        for layer in 0..LAYERS {
            for norm in ["q_norm", "k_norm"] {
                m.put(&format!("model.layers.{layer}.self_attn.{norm}.weight"), bf16(&[HEAD_DIM]));
            }
        }
        m
    }

    /// The same Qwen3 with every linear layer in GPTQ's form, groups of 8.
    pub(crate) fn gptq() -> Model {
        let mut m = Model::qwen3();
        m.set(
            "quantization_config",
            json!({
                "quant_method": "gptq", "bits": 4, "group_size": 8, "sym": true,
                "desc_act": false, "checkpoint_format": "gptq", "damp_percent": 0.01,
            }),
        );
        for layer in 0..LAYERS {
            for (name, n, k) in LINEARS {
                let prefix = format!("model.layers.{layer}.{name}");
                m.tensors.remove(&format!("{prefix}.weight"));
                let groups = k / 8;
                let words = |rows: usize, cols: usize| {
                    Tensor::from_i32(&[rows, cols], &vec![0x7777_7777; rows * cols])
                };
                let index: Vec<i32> = (0..k as i32).map(|row| row / 8).collect();
                m.put(&format!("{prefix}.qweight"), words(k / 8, n));
                m.put(&format!("{prefix}.qzeros"), words(groups, n / 8));
                m.put(&format!("{prefix}.scales"), float(Dtype::F16, &[groups, n]));
                m.put(&format!("{prefix}.g_idx"), Tensor::from_i32(&[k], &index));
            }
        }
        m
    }

    fn new(class: &str, kind: &str) -> Model {
        let Value::Object(config) = common() else { unreachable!("an object literal") };
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut m = Model { dir, config, tensors: Tensors::new() };
        m.set("architectures", json!([class]));
        m.set("model_type", json!(kind));
        m.put("model.embed_tokens.weight", bf16(&[VOCAB, HIDDEN]));
        m.put("model.norm.weight", bf16(&[HIDDEN]));
        for layer in 0..LAYERS {
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                m.put(&format!("model.layers.{layer}.{norm}.weight"), bf16(&[HIDDEN]));
            }
            for (name, n, k) in LINEARS {
                m.put(&format!("model.layers.{layer}.{name}.weight"), bf16(&[n, k]));
            }
        }
        m
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn set(&mut self, field: &str, value: Value) -> &mut Model {
        self.config.insert(field.to_owned(), value);
        self
    }

    pub(crate) fn unset(&mut self, field: &str) -> &mut Model {
        self.config.remove(field).unwrap_or_else(|| panic!("no field {field}"));
        self
    }

    /// Sets a field of `quantization_config`.
    pub(crate) fn set_quant(&mut self, field: &str, value: Value) -> &mut Model {
        self.config["quantization_config"][field] = value;
        self
    }

    pub(crate) fn put(&mut self, name: &str, tensor: Tensor) -> &mut Model {
        self.tensors.insert(name.to_owned(), tensor);
        self
    }

    pub(crate) fn take(&mut self, name: &str) -> Tensor {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// Writes a file of the folder.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Model {
        fs::write(self.path().join(name), content).expect("writable");
        self
    }

    pub(crate) fn write_config(&self) -> &Model {
        self.file("config.json", Value::Object(self.config.clone()).to_string())
    }

    /// Writes a shard of its own.
    pub(crate) fn shard(&self, file: &str, tensors: &Tensors) -> &Model {
        write(&self.path().join(file), tensors, &BTreeMap::new()).expect("writable");
        self
    }

    /// Writes config and a single shard, and opens the folder.
    pub(crate) fn open(&self) -> assay_reference::Result<Checkpoint> {
        self.write_config().shard("model.safetensors", &self.tensors);
        Checkpoint::open(self.path())
    }

    /// The config alone.
    pub(crate) fn read_config(&self) -> assay_reference::Result<Config> {
        self.write_config();
        Config::open(self.path())
    }

    /// The message of the error that opening gives, without the folder's path.
    #[track_caller]
    pub(crate) fn error(&self) -> String {
        self.message(self.open().map(|_| ()))
    }

    /// The message of the error that reading the config gives.
    #[track_caller]
    pub(crate) fn config_error(&self) -> String {
        self.message(self.read_config().map(|_| ()))
    }

    #[track_caller]
    pub(crate) fn message(&self, result: assay_reference::Result<()>) -> String {
        let text = result.expect_err("an error was expected").to_string();
        assert!(!text.contains('\n'), "one paragraph: {text}");
        text.replace(&self.path().display().to_string(), "DIR")
    }
}

/// Asserts that every part occurs in the text.
#[track_caller]
pub(crate) fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "expected {part:?} in: {text}");
    }
}
