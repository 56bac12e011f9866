//! The configs of released models, as their publishers wrote them, are read; the tensors that follow from
//! them have as many parameters as the publishers say.

use std::path::Path;

use assay_reference::checkpoint::{Architecture, Config, expected};
use serde_json::{Value, json};

/// What the released configs have in common, less what a model says otherwise.
fn config(class: &str, model_type: &str, own: Value) -> Config {
    let mut all = json!({
        "architectures": [class], "model_type": model_type, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
        "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936
    });
    let object = all.as_object_mut().expect("an object");
    object.extend(own.as_object().expect("an object").clone());
    Config::parse(&all.to_string(), Path::new("config.json")).expect("a released config")
}

fn qwen2(own: Value) -> Config {
    config("Qwen2ForCausalLM", "qwen2", own)
}

fn qwen3(own: Value) -> Config {
    let mut own = own;
    own["attention_bias"] = json!(false);
    own["head_dim"] = json!(128);
    own["rope_scaling"] = Value::Null;
    own["sliding_window"] = Value::Null;
    own["max_position_embeddings"] = json!(40960);
    let moe = own.get("num_experts").is_some();
    match moe {
        false => config("Qwen3ForCausalLM", "qwen3", own),
        true => config("Qwen3MoeForCausalLM", "qwen3_moe", own),
    }
}

/// In billions, to three digits: what the model cards give, or the safetensors' sum of elements.
#[track_caller]
fn parameters(config: &Config, billions: f64) {
    let n: usize = expected(config).iter().map(|e| e.shape.iter().product::<usize>()).sum();
    let found = n as f64 / 1e9;
    assert!((found - billions).abs() <= 0.005 * billions, "{found} for {billions}");
}

#[test]
fn qwen25_has_biases_and_an_inactive_window() {
    let small = qwen2(json!({
        "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
        "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "sliding_window": 32768, "tie_word_embeddings": true
    }));
    assert_eq!((small.head_dim, small.num_attention_heads / small.num_key_value_heads), (64, 7));
    assert!(small.windows.iter().all(Option::is_none) && small.attention_bias);
    parameters(&small, 0.494);
    let seven = qwen2(json!({
        "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "sliding_window": 131072, "tie_word_embeddings": false,
        "vocab_size": 152064
    }));
    parameters(&seven, 7.616);
}

#[test]
fn r1_distills_of_qwen_have_another_base_and_no_tied_head() {
    let distill = qwen2(json!({
        "eos_token_id": 151643, "hidden_size": 1536, "intermediate_size": 8960,
        "max_position_embeddings": 131072, "max_window_layers": 21, "num_attention_heads": 12,
        "num_hidden_layers": 28, "num_key_value_heads": 2, "rope_theta": 10000,
        "sliding_window": 4096, "tie_word_embeddings": false, "use_mrope": false
    }));
    assert_eq!((distill.rope_theta, distill.tie_word_embeddings), (1e4, false));
    assert_eq!(distill.eos_token_ids, [151643]);
    parameters(&distill, 1.777);
    let large = qwen2(json!({
        "eos_token_id": 151643, "hidden_size": 5120, "intermediate_size": 27648,
        "max_position_embeddings": 131072, "max_window_layers": 64, "num_attention_heads": 40,
        "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "sliding_window": 131072, "tie_word_embeddings": false, "vocab_size": 152064
    }));
    assert_eq!((large.rms_norm_eps, large.head_dim), (1e-5, 128));
    parameters(&large, 32.76);
}

#[test]
fn qwen3_has_its_own_head_dim() {
    let small = qwen3(json!({
        "hidden_size": 1024, "intermediate_size": 3072, "max_window_layers": 28,
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "tie_word_embeddings": true
    }));
    assert_eq!((small.head_dim, small.hidden_size / small.num_attention_heads), (128, 64));
    parameters(&small, 0.596);
    let large = qwen3(json!({
        "hidden_size": 5120, "intermediate_size": 25600, "max_window_layers": 64,
        "num_attention_heads": 64, "num_hidden_layers": 64, "num_key_value_heads": 8,
        "tie_word_embeddings": false
    }));
    assert_eq!((large.head_dim, large.hidden_size / large.num_attention_heads), (128, 80));
    parameters(&large, 32.76);
}

#[test]
fn qwen3_moe_is_a_mixture_in_every_layer() {
    let moe = qwen3(json!({
        "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
        "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "output_router_logits": false, "router_aux_loss_coef": 0.001,
        "tie_word_embeddings": false
    }));
    assert_eq!(moe.architecture, Architecture::Qwen3Moe);
    let experts = moe.moe.as_ref().expect("a mixture");
    assert!(experts.sparse.iter().all(|s| *s) && experts.norm_topk_prob);
    parameters(&moe, 30.53);
}

/// Qwen's model cards say to add this for long contexts; `type` in the older ones.
#[test]
fn yarn_as_the_model_cards_give_it() {
    for kind in ["rope_type", "type"] {
        let mut own = json!({
            "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
            "num_hidden_layers": 36, "num_key_value_heads": 8, "tie_word_embeddings": false,
            "head_dim": 128, "max_position_embeddings": 40960
        });
        own["rope_scaling"] = json!({ "factor": 4.0, "original_max_position_embeddings": 32768 });
        own["rope_scaling"][kind] = json!("yarn");
        let config = config("Qwen3ForCausalLM", "qwen3", own);
        // 0.1 ln 4 + 1
        assert!((config.rope_scaling.attention_factor() - 1.138_629_436_111_989).abs() < 1e-15);
        parameters(&config, 8.19);
    }
}
