//! The checkpoints in golden/, which transformers and GPTQModel wrote.

use std::path::{Path, PathBuf};

use assay_reference::Dtype;
use assay_reference::checkpoint::{Architecture, Checkpoint, GptqFormat, Quantization, Tokenizer};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/checkpoints").join(name)
}

fn open(name: &str) -> Checkpoint {
    let checkpoint = Checkpoint::open(&golden(name)).unwrap();
    checkpoint.scan_finite().unwrap();
    checkpoint
}

#[test]
fn tiny_qwen2_in_the_spelling_of_transformers_4() {
    let checkpoint = open("tiny-qwen2");
    let config = checkpoint.config();
    assert_eq!(checkpoint.warnings().join("\n"), "");
    assert_eq!(config.architecture, Architecture::Qwen2);
    assert_eq!((config.hidden_size, config.num_attention_heads, config.head_dim), (192, 4, 128));
    assert_eq!((config.rope_theta, config.dtype), (1e6, Dtype::Bf16));
    assert!(config.attention_bias && !config.tie_word_embeddings);
    assert_eq!(config.eos_token_ids, [318, 317], "generation_config.json wins");
    assert_eq!(checkpoint.files().shards().len(), 2);
    let bias = checkpoint.tensor("model.layers.1.self_attn.k_proj.bias").unwrap();
    assert_eq!(bias.shape(), [256]);
}

#[test]
fn tiny_qwen3_in_the_spelling_of_transformers_5() {
    let checkpoint = open("tiny-qwen3");
    let config = checkpoint.config();
    assert_eq!(checkpoint.warnings().join("\n"), "");
    assert_eq!(config.architecture, Architecture::Qwen3);
    assert_eq!((config.hidden_size, config.num_attention_heads, config.head_dim), (192, 4, 128));
    assert!(!config.attention_bias && config.tie_word_embeddings);
    assert_eq!(checkpoint.files().shards().len(), 1);
}

#[test]
fn gptq_qwen3_as_gptqmodel_wrote_it() {
    let checkpoint = open("gptq-qwen3");
    let Some(Quantization::Gptq(gptq)) = &checkpoint.config().quantization else {
        panic!("quantised by GPTQ");
    };
    assert_eq!((gptq.bits, gptq.group_size, gptq.format), (4, Some(32), GptqFormat::V1));
    assert!(gptq.desc_act);
    let index = checkpoint.tensor("model.layers.0.mlp.down_proj.g_idx").unwrap();
    assert_eq!(index.shape(), [512]);
}

/// As gptqmodel, llmcompressor and transformers wrote them. gptqmodel stores biases as f16 in a bf16
/// model, which is noted.
#[test]
fn every_weight_format_opens() {
    for (name, method, parts) in [
        ("gptq3-qwen3", "GPTQ", 4),
        ("gptq8-qwen2", "GPTQ", 4),
        ("awq-qwen3", "AWQ", 3),
        ("ct-qwen3", "compressed-tensors", 4),
        ("fp8-qwen3", "FP8", 2),
    ] {
        let checkpoint = open(name);
        let warnings = checkpoint.warnings().join("\n");
        let noted =
            warnings.contains("3 tensors not stored as bf16") && warnings.lines().count() == 1;
        assert!(
            if name == "gptq8-qwen2" { noted } else { warnings.is_empty() },
            "{name}: {warnings}"
        );
        let quantization = checkpoint.config().quantization.as_ref().expect("quantised");
        assert_eq!(quantization.to_string(), method);
        let down = |n: &&str| n.starts_with("model.layers.0.mlp.down_proj.");
        assert_eq!(checkpoint.names().filter(down).count(), parts, "{name}");
    }
}

#[test]
fn trained_qwen3_and_its_tokenizer() {
    let checkpoint = open("trained-qwen3");
    let tokenizer = Tokenizer::open(checkpoint.dir()).unwrap();
    assert!(tokenizer.len() <= checkpoint.config().vocab_size);
    let text = "The sum of two numbers: 12 + 30 = 42, naïve 日本.";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
}
