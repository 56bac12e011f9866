//! What tensors say about a config that does not fit them.

use crate::checkpoint::config::{Architecture, Config, LINEARS, Quantization};
use crate::checkpoint::expected::Expected;
use crate::checkpoint::index::Files;
use crate::tensor::Tensor;

/// What a wrong shape says about the config.
pub(super) fn implied(config: &Config, e: &Expected, tensor: &Tensor) -> String {
    let mut parts = e.name.rsplit('.');
    let (suffix, module) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let differs = |axis: usize| match (tensor.shape().get(axis), e.shape.get(axis)) {
        (Some(found), Some(expected)) if found != expected => Some(*found),
        _ => None,
    };
    let groups = match suffix {
        "qzeros" | "scales" => differs(0),
        "weight_scale" | "weight_zero_point" => differs(1),
        _ => None,
    };
    if let Some(groups) = groups {
        return implied_groups(config, e, groups);
    }
    // The outputs: rows of a weight or bias, columns of packed words.
    let outputs = match (suffix, &config.quantization) {
        ("weight" | "bias" | "weight_packed" | "weight_scale", _) => differs(0),
        ("scales", _) | ("qweight", Some(Quantization::Gptq(_))) => differs(1),
        _ => None,
    };
    let Some(rows) = outputs else { return String::new() };
    let (field, heads) = match module {
        "q_proj" => ("num_attention_heads", config.num_attention_heads),
        "k_proj" | "v_proj" => ("num_key_value_heads", config.num_key_value_heads),
        "embed_tokens" | "lm_head" => {
            return format!(" (its rows are the vocabulary: vocab_size is {})", config.vocab_size);
        }
        _ => return String::new(),
    };
    if !rows.is_multiple_of(heads) {
        return format!(" ({rows} rows are no multiple of {field} {heads})");
    }
    format!(
        " ({rows} rows for {field} {heads} imply head_dim {}, but config.json gives {})",
        rows / heads,
        config.head_dim
    )
}

/// What a wrong number of groups says about group_size.
fn implied_groups(config: &Config, e: &Expected, groups: usize) -> String {
    let module = LINEARS.iter().find(|m| e.name.contains(*m));
    let Some([_, k]) = module.and_then(|m| config.linear_shape(m)) else { return String::new() };
    if groups == 0 || !k.is_multiple_of(groups) {
        return String::new();
    }
    let Some(given) = config.quantization.as_ref().and_then(Quantization::group_size) else {
        return String::new();
    };
    format!(
        " ({groups} groups of {k} input rows imply group_size {}, but the config gives {given})",
        k / groups
    )
}

/// What the names in the files say about a wrong config.
pub(super) fn hints(config: &Config, files: &Files) -> String {
    let any = |part: &str| files.names().any(|n| n.contains(part));
    let mut hints = String::new();
    let mut hint = |text: String| {
        hints.push_str("; ");
        hints.push_str(&text);
    };
    let qwen3 = any(".self_attn.q_norm.");
    match config.architecture {
        Architecture::Qwen2 if qwen3 => {
            hint("the files hold q_norm weights, so this is Qwen3ForCausalLM".to_owned());
        }
        Architecture::Qwen3 | Architecture::Qwen3Moe if !qwen3 && any(".self_attn.q_proj.bias") => {
            hint(
                "the files hold biases of q_proj and no q_norm, so this is Qwen2ForCausalLM"
                    .to_owned(),
            );
        }
        _ => {}
    }
    let moe = any(".mlp.experts.");
    if moe && config.moe.is_none() {
        hint("the files hold experts, so this is Qwen3MoeForCausalLM".to_owned());
    }
    if !moe && config.moe.is_some() {
        hint("the files hold no experts, so this is no mixture of them".to_owned());
    }
    let packed = [".qweight", ".weight_packed", ".weight_scale_inv"].into_iter().find(|p| any(p));
    match (&config.quantization, packed) {
        (None, Some(part)) => hint(format!(
            "the files hold packed weights ({part}), but neither config.json's \
             quantization_config nor quantize_config.json describes them"
        )),
        (Some(quant), None) => {
            hint(format!("the config describes {quant}, but no tensor is packed"));
        }
        (Some(quant), Some(part)) => {
            let own = match quant {
                Quantization::Gptq(_) | Quantization::Awq(_) => ".qweight",
                Quantization::CompressedTensors(_) => ".weight_packed",
                Quantization::Fp8(_) => ".weight_scale_inv",
            };
            if !any(own) {
                hint(format!(
                    "the config describes {quant}, whose layers have {own}, but the files hold {part}"
                ));
            } else if matches!(quant, Quantization::Gptq(_)) && !any(".g_idx") {
                hint("no layer has a .g_idx, as in AWQ's files".to_owned());
            } else if matches!(quant, Quantization::Awq(_)) && any(".g_idx") {
                hint("the layers have a .g_idx, as in GPTQ's files".to_owned());
            }
        }
        (None, None) => {}
    }
    let layers = files.names().filter_map(layer_of).max().map_or(0, |l| l.saturating_add(1));
    if layers != config.num_hidden_layers {
        hint(format!(
            "the files hold {layers} layers, num_hidden_layers is {}",
            config.num_hidden_layers
        ));
    }
    hints
}

/// The layer that a tensor's name says it belongs to.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}
