//! Attention: masks, windows, head mapping, the cache.

use serde_json::json;

use super::{Entry, Form};
use crate::checkpoint::Config;

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        code: "A320",
        slug: "window_honoured",
        summary: "a sliding window honoured that the config switches off",
        source: "https://github.com/huggingface/transformers/issues/35896",
        make: |c| {
            let form = |w: usize| {
                let detail =
                    format!("a query sees {w} keys, by a sliding_window that is not in use");
                Form::new(format!("{w}"), detail).param("attention", "window", w)
            };
            c.idle_window.map(form).into_iter().collect()
        },
    },
    Entry {
        code: "A321",
        slug: "window_ignored",
        summary: "the config's sliding window ignored",
        source: "https://github.com/vllm-project/vllm/issues/17772",
        make: |c| {
            let form = Form::new("", "all earlier keys are seen in layers with a sliding window")
                .param("attention", "window", json!(null));
            c.windows.iter().any(Option::is_some).then_some(form).into_iter().collect()
        },
    },
    Entry {
        code: "A322",
        slug: "window_off_by_one",
        summary: "the sliding window one key wider or narrower",
        source: "https://github.com/huggingface/transformers/pull/29519",
        make: |c| {
            let by = |by: i64| {
                let detail = format!("a query sees {by:+} keys of the sliding window's");
                Form::new(format!("{by:+}"), detail).nodes(move |node| {
                    if let Some(w) = node.params["window"].as_i64().filter(|w| w + by > 0) {
                        node.params["window"] = json!(w + by);
                    }
                })
            };
            if c.windows.iter().any(Option::is_some) { vec![by(1), by(-1)] } else { Vec::new() }
        },
    },
    Entry {
        code: "A323",
        slug: "window_layers",
        summary: "the sliding window in the layers that have none, or in all of them",
        source: "https://github.com/vllm-project/vllm/issues/17772",
        make: window_layers,
    },
    Entry {
        code: "A324",
        slug: "kv_head",
        summary: "query head h reads kv head h mod n_kv",
        source: "https://github.com/apple/axlearn/pull/842",
        make: |c| {
            let (q, kv) = (c.num_attention_heads, c.num_key_value_heads);
            let detail = format!("query head h reads kv head h mod {kv} instead of h / {}", q / kv);
            let form = Form::new("", detail).param("attention", "kv_head", "modulo");
            (kv > 1 && kv < q).then_some(form).into_iter().collect()
        },
    },
    Entry {
        code: "A325",
        slug: "mask_missing",
        summary: "no causal mask within a call",
        source: "https://github.com/huggingface/candle/issues/3236",
        make: |_| {
            let detail = "queries see all keys of their call, the future's too";
            vec![Form::new("", detail).param("attention", "mask", "none")]
        },
    },
    Entry {
        code: "A326",
        slug: "mask_upper_left",
        summary: "the causal mask aligned to the upper left: a cache hides from later calls",
        source: "https://github.com/huggingface/candle/issues/3236",
        make: |_| {
            let detail =
                "query t of a call sees keys 0 to t, so that later calls miss most of the cache";
            vec![Form::new("", detail).param("attention", "mask", "upper_left")]
        },
    },
    Entry {
        code: "A327",
        slug: "cache_lost",
        summary: "each call sees its own keys and values only",
        source: "https://github.com/vllm-project/vllm/issues/35923",
        make: |_| {
            let detail = "what earlier calls cached is not seen; positions go on";
            vec![Form::new("", detail).wiring(|w, _| w.forgets = true).everywhere()]
        },
    },
    Entry {
        code: "A328",
        slug: "own_key_hidden",
        summary: "each query misses the key of its own position",
        source: "https://github.com/huggingface/candle/issues/3743",
        make: |_| {
            let detail = "each query misses the key of its own position";
            vec![Form::new("", detail).param("attention", "lost", "diagonal")]
        },
    },
    Entry {
        code: "A329",
        slug: "first_key_hidden",
        summary: "key 0 (the attention sink) is not seen",
        source: "https://arxiv.org/abs/2309.17453",
        make: |_| {
            let detail = "key 0, the attention sink, is not seen";
            vec![Form::new("", detail).param("attention", "lost", "first")]
        },
    },
    Entry {
        code: "A32A",
        slug: "kv_exchanged",
        summary: "k_proj and v_proj exchanged",
        source: "https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama/convert_llama_weights_to_hf.py",
        make: |_| {
            let detail = "k_proj's tensors are used for v and v_proj's for k";
            vec![Form::new("", detail).nodes(|node| {
                super::weights::exchange(node, ".k_proj.", ".v_proj.");
            })]
        },
    },
];

fn window_layers(c: &Config) -> Vec<Form> {
    let Some(size) = c.windows.iter().flatten().next().copied() else { return Vec::new() };
    if c.windows.iter().all(Option::is_some) {
        return Vec::new();
    }
    let set = |key: &str, detail: &str, swap: bool| {
        Form::new(key, detail).config(move |c| {
            for w in &mut c.windows {
                *w = if swap && w.is_some() { None } else { Some(size) };
            }
        })
    };
    vec![
        set(
            "swapped",
            "the sliding window is in the layers that have none, and not in the others",
            true,
        ),
        set("all", "every layer has the sliding window", false),
    ]
}
