//! Fields of a model's shape and constants, one function each: none is guessed, and an error says what tells the value.

use super::Architecture;
use super::fields::Fields;
use crate::dtype::Dtype;
use crate::error::Result;

pub(super) fn architecture(f: &Fields<'_>) -> Result<Architecture> {
    let supported = "supported are Qwen2ForCausalLM (qwen2), Qwen3ForCausalLM (qwen3) and \
         Qwen3MoeForCausalLM (qwen3_moe)";
    let classes = f.need("architectures", f.texts("architectures")?, supported)?;
    let architecture = match classes[..] {
        ["Qwen2ForCausalLM"] => Architecture::Qwen2,
        ["Qwen3ForCausalLM"] => Architecture::Qwen3,
        ["Qwen3MoeForCausalLM"] => Architecture::Qwen3Moe,
        _ => {
            let classes = classes.iter().map(|c| c.escape_debug().to_string()).collect::<Vec<_>>();
            return Err(f.error("architectures", format!("names {classes:?}: {supported}")));
        }
    };
    match f.text("model_type")? {
        Some(kind) if kind != architecture.model_type() => Err(f.error(
            "model_type",
            format!(
                "is `{}`, but `architectures` names {architecture}, whose type is `{}`: one of \
                 the two is wrong; {supported}",
                kind.escape_debug(),
                architecture.model_type()
            ),
        )),
        _ => Ok(architecture),
    }
}

pub(super) fn kv_heads(f: &Fields<'_>, heads: usize) -> Result<usize> {
    let n = f.integer("num_key_value_heads", 1..=1 << 12)?;
    let why = "assay does not guess it (transformers would take num_attention_heads, which is \
         wrong for every released Qwen2.5 and Qwen3): k_proj's rows divided by head_dim tell it";
    let n = f.need("num_key_value_heads", n, why)? as usize; // 1..=2^12
    if !heads.is_multiple_of(n) {
        return Err(f.error(
            "num_key_value_heads",
            format!("is {n}, which does not divide num_attention_heads {heads}"),
        ));
    }
    Ok(n)
}

pub(super) fn head_dim(
    f: &Fields<'_>,
    arch: Architecture,
    hidden: usize,
    heads: usize,
) -> Result<usize> {
    let dim = match (f.integer("head_dim", 1..=4096)?, arch) {
        (Some(dim), _) => dim as usize, // 1..=4096
        (None, Architecture::Qwen3 | Architecture::Qwen3Moe) => {
            let why = "Qwen3's is not hidden_size / num_attention_heads: released models have \
                 128, and q_proj's rows divided by num_attention_heads tell it";
            return f.need("head_dim", None, why);
        }
        (None, Architecture::Qwen2) if !hidden.is_multiple_of(heads) => {
            let why = format!(
                "and hidden_size {hidden} is not a multiple of num_attention_heads {heads}, so \
                 Qwen2's rule hidden_size / num_attention_heads gives none"
            );
            return f.need("head_dim", None, &why);
        }
        (None, Architecture::Qwen2) => hidden / heads,
    };
    if !dim.is_multiple_of(2) {
        return Err(
            f.error("head_dim", format!("is {dim}, but RoPE rotates pairs, so it must be even"))
        );
    }
    Ok(dim)
}

pub(super) fn eps(f: &Fields<'_>) -> Result<f64> {
    let why = "assay does not guess it: known values are 1e-6 (Qwen2, Qwen2.5, Qwen3) and 1e-5 \
         (some R1 distills); take it from the original config.json";
    let eps = f.need("rms_norm_eps", f.real("rms_norm_eps")?, why)?;
    if !(eps > 0.0 && eps <= 0.1) {
        return Err(f.error(
            "rms_norm_eps",
            format!(
                "must be positive and at most 0.1 (released models have 1e-6 or 1e-5), but is {eps}"
            ),
        ));
    }
    Ok(eps)
}

pub(super) fn tied(f: &Fields<'_>) -> Result<bool> {
    let why = "assay does not guess it: known values are true (Qwen2.5 up to 3B, Qwen3 up to 4B) \
         and false (larger ones, R1-Distill-Qwen-1.5B); take it from the original config.json";
    f.need("tie_word_embeddings", f.flag("tie_word_embeddings")?, why)
}

pub(super) fn attention_bias(f: &Fields<'_>, arch: Architecture) -> Result<bool> {
    match (arch, f.flag("attention_bias")?) {
        (Architecture::Qwen2, Some(false)) => Err(f.error(
            "attention_bias",
            "is false, but Qwen2ForCausalLM always has biases on q, k and v: the architecture or \
             this field is wrong",
        )),
        (Architecture::Qwen2, _) => Ok(true),
        (_, given) => Ok(given.unwrap_or(false)),
    }
}

pub(super) fn check_activation(f: &Fields<'_>) -> Result<()> {
    let act = f.text("hidden_act")?;
    match f.need("hidden_act", act, "expected `silu`, which every Qwen2 and Qwen3 has")? {
        "silu" => Ok(()),
        other => Err(f.error(
            "hidden_act",
            format!("is `{}`: only `silu` is supported", other.escape_debug()),
        )),
    }
}

pub(super) fn dtype(f: &Fields<'_>) -> Result<Dtype> {
    let (new, old) = (f.text("dtype")?, f.text("torch_dtype")?);
    if let (Some(new), Some(old)) = (new, old)
        && new != old
    {
        let (new, old) = (new.escape_debug(), old.escape_debug());
        return Err(f.error(
            "dtype",
            format!("is `{new}`, but `torch_dtype` is `{old}`: one of the two is wrong"),
        ));
    }
    let name = if new.is_some() { "dtype" } else { "torch_dtype" };
    let why = "(`dtype`, or `torch_dtype` as transformers 4 spells it): expected bfloat16, \
         float16 or float32";
    Ok(match f.need("dtype", new.or(old), why)? {
        "bfloat16" => Dtype::Bf16,
        "float16" => Dtype::F16,
        "float32" => Dtype::F32,
        "float64" => Dtype::F64,
        other => {
            return Err(f.error(
                name,
                format!(
                    "is `{}`: expected bfloat16, float16, float32 or float64",
                    other.escape_debug()
                ),
            ));
        }
    })
}
