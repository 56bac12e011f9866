//! Constants of the config that an engine did not read, or read from elsewhere.

use super::{Entry, Form};
use crate::checkpoint::Config;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: "A300",
        slug: "rope_theta",
        summary: "another base of the rotary angles than the config's",
        source: "https://github.com/vllm-project/vllm-ascend/issues/5201",
        make: theta,
    },
    Entry {
        code: "A301",
        slug: "rms_norm_eps",
        summary: "another eps of the norms than the config's",
        source: "https://github.com/paiml/aprender/issues/1606",
        make: eps,
    },
    Entry {
        code: "A302",
        slug: "attention_scale",
        summary: "scores scaled by another head_dim, not at all, or twice",
        source: "https://github.com/vllm-project/vllm/issues/2622",
        make: scale,
    },
    Entry {
        code: "A303",
        slug: "embedding_scaled",
        summary: "the embedding multiplied by sqrt(hidden_size), as in Gemma",
        source: "https://arxiv.org/abs/2403.08295",
        make: |_| {
            let detail = "the embedding is multiplied by sqrt(hidden_size)";
            vec![Form::new("", detail).param("embedding", "scaled", true).everywhere()]
        },
    },
    Entry {
        code: "A304",
        slug: "token_offset",
        summary: "the row beside each token's is read from the embedding",
        source: "https://github.com/arcee-ai/mergekit/issues/425",
        make: |_| {
            let form = |by: i64| {
                Form::new(
                    format!("{by:+}"),
                    format!("token id + {by} is looked up instead of the id"),
                )
                .param("embedding", "offset", by)
                .everywhere()
            };
            vec![form(1), form(-1)]
        },
    },
    Entry {
        code: "A305",
        slug: "topk_normalisation",
        summary: "norm_topk_prob inverted",
        source: "https://huggingface.co/docs/transformers/model_doc/qwen3_moe",
        make: |c| {
            let Some(moe) = &c.moe else { return Vec::new() };
            let now = !moe.norm_topk_prob;
            let detail = format!("norm_topk_prob is taken to be {now}");
            vec![Form::new("", detail).param("moe_route", "normalise", now)]
        },
    },
    Entry {
        code: "A306",
        slug: "experts_per_token",
        summary: "another number of experts a token than the config's",
        source: "https://huggingface.co/docs/transformers/model_doc/qwen3_moe",
        make: |c| {
            let Some(moe) = &c.moe else { return Vec::new() };
            let right = moe.num_experts_per_tok;
            [1, 2, 4, 8, right.saturating_sub(1), right + 1]
                .into_iter()
                .filter(|&k| k != right && k >= 1 && k <= moe.num_experts)
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .map(|k| {
                    let detail = format!("{k} experts a token instead of {right}");
                    Form::new(format!("{k}"), detail).param("moe_route", "top_k", k)
                })
                .collect()
        },
    },
];

/// Bases of released models and of other models' defaults.
fn theta(c: &Config) -> Vec<Form> {
    let all = [1e3, 1e4, 1e5, 5e5, 1e6, 5e6, 1e7].into_iter();
    all.filter(|&t| t != c.rope_theta).map(|t| theta_form(c, t)).collect()
}

/// This base.
pub(super) fn theta_form(c: &Config, theta: f64) -> Form {
    Form::new(format!("{theta:e}"), format!("rope theta is {theta} instead of {}", c.rope_theta))
        .config(move |c| c.rope_theta = theta)
}

fn eps(c: &Config) -> Vec<Form> {
    let all = [1e-12, 1e-8, 1e-6, 1e-5].into_iter();
    all.filter(|&e| e != c.rms_norm_eps).map(|e| eps_form(c, e)).collect()
}

/// This eps.
pub(super) fn eps_form(c: &Config, eps: f64) -> Form {
    let detail = format!("the norms' eps is {eps:e} instead of {:e}", c.rms_norm_eps);
    Form::new(format!("{eps:e}"), detail).config(move |c| c.rms_norm_eps = eps)
}

fn scale(c: &Config) -> Vec<Form> {
    let d = c.head_dim as f64;
    let from_hidden = c.hidden_size as f64 / c.num_attention_heads as f64;
    let forms =
        [("hidden/heads", 1.0 / from_hidden.sqrt()), ("1/head_dim", 1.0 / d), ("none", 1.0)];
    forms
        .into_iter()
        .filter(|(_, scale)| (scale * d.sqrt() - 1.0).abs() > 1e-9)
        .map(|(key, scale)| {
            let detail =
                format!("scores are scaled by {scale:.6} ({key}) instead of {:.6}", 1.0 / d.sqrt());
            Form::new(key, detail).param("attention", "scale", scale)
        })
        .collect()
}
