//! The fields of `config.json` that need no reading, and those that would change the numbers.

use serde_json::Value;

use super::fields::Fields;
use crate::checkpoint::list;
use crate::error::{Error, Result};

/// Fields that do not change a forward pass, as transformers 4 and 5 and common tools write them.
const HARMLESS: &[&str] = &[
    // Where the checkpoint comes from.
    "_name_or_path",
    "_commit_hash",
    "name_or_path",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    // Training and initialisation; dropout is off at inference.
    "attention_dropout",
    "initializer_range",
    // Which implementation runs, and what it returns besides the logits.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "chunk_size_feed_forward",
    "is_decoder",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "tie_last_hidden_states",
    "use_cache",
    // Token ids and tokenizer names that the forward does not see.
    "bos_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "tokenizer_class",
    // Heads for other tasks.
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    // Sampling, which acts on finished logits.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "remove_invalid_values",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    // Training of a mixture of experts.
    "output_router_logits",
    "router_aux_loss_coef",
];

/// Fields that change the numbers unless their value is one that switches them off.
const REFUSED: &[(&str, &str)] = &[
    ("add_cross_attention", "cross-attention"),
    ("attn_logit_softcapping", "soft-capped attention scores"),
    ("auto_map", "custom model code"),
    ("compression_config", "compressed weights"),
    ("cross_attention_hidden_size", "cross-attention"),
    ("decoder_sparse_step", "a mixture of experts"),
    ("dual_chunk_attention_config", "dual chunk attention"),
    ("final_logit_softcapping", "soft-capped logits"),
    ("is_encoder_decoder", "an encoder"),
    ("mlp_bias", "biases in the MLP"),
    ("mlp_only_layers", "a mixture of experts"),
    ("moe_intermediate_size", "a mixture of experts"),
    ("norm_topk_prob", "a mixture of experts"),
    ("mrope_section", "multimodal RoPE"),
    ("num_experts", "a mixture of experts"),
    ("num_experts_per_tok", "a mixture of experts"),
    ("num_local_experts", "a mixture of experts"),
    ("num_nextn_predict_layers", "layers for multi-token prediction"),
    ("per_layer_config", "settings of single layers"),
    ("pruned_heads", "pruned heads"),
    ("shared_expert_intermediate_size", "a shared expert"),
    ("text_config", "a multimodal model"),
    ("tie_encoder_decoder", "an encoder"),
    ("use_dynamic_ntk", "RoPE scaling"),
    ("use_logn_attn", "length-scaled attention scores"),
    ("use_mrope", "multimodal RoPE"),
    ("vision_config", "a multimodal model"),
];

/// Factors, which are inert at 1.
const FACTORS: &[&str] = &[
    "attention_multiplier",
    "embedding_multiplier",
    "logit_scale",
    "logits_scaling",
    "partial_rotary_factor",
    "residual_multiplier",
];

/// Refuses fields that change the numbers, and unknown ones, by name.
pub(super) fn check(config: &Fields<'_>) -> Result<()> {
    let mut unknown = Vec::new();
    for (name, value) in config.unseen() {
        if HARMLESS.contains(&name) {
            continue;
        }
        if FACTORS.contains(&name) {
            if value.as_f64() != Some(1.0) {
                return Err(config.error(
                    name,
                    format!("is {value}, a factor that assay does not apply: only 1 is supported"),
                ));
            }
            continue;
        }
        match REFUSED.iter().find(|(refused, _)| *refused == name) {
            Some(_) if is_off(value) => {}
            Some((_, what)) => {
                return Err(config.error(
                    name,
                    format!(
                        "asks for {what}, which assay does not run in this architecture: it runs \
                         Qwen2ForCausalLM, Qwen3ForCausalLM and Qwen3MoeForCausalLM"
                    ),
                ));
            }
            None => unknown.push(name),
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Error::file(
        config.path(),
        format!(
            "sets fields that assay does not know, so it cannot tell whether they change the \
             numbers: {}; remove them from a copy of the file if they do not",
            list(unknown)
        ),
    ))
}

/// Whether a value switches its field off.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
