//! A second reading of `config.json`: what a config that was accepted must say.

use assay_reference::Dtype;
use assay_reference::checkpoint::config::Moe;
use assay_reference::checkpoint::{Architecture, Config};
use assay_reference::ops::rope::{Scaling, Yarn};
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// A field that is there and not null.
fn given<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|v| !v.is_null())
}

fn count(object: &Object, name: &str) -> Option<usize> {
    given(object, name)?.as_u64().map(|n| n as usize)
}

fn real(object: &Object, name: &str) -> Option<f64> {
    given(object, name)?.as_f64()
}

/// The same of two optional spellings; `None` when both are given and differ.
fn either<T: PartialEq>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => None,
        (a, b) => a.or(b),
    }
}

/// The config by plain lookups; `None` when something needed is not there in its right form. The
/// quantisation is taken as given.
pub(super) fn read(object: &Object, accepted: &Config) -> Option<Config> {
    let class = given(object, "architectures")?.as_array()?;
    let [class] = &class[..] else { return None };
    let architecture = match class.as_str()? {
        "Qwen2ForCausalLM" => Architecture::Qwen2,
        "Qwen3ForCausalLM" => Architecture::Qwen3,
        "Qwen3MoeForCausalLM" => Architecture::Qwen3Moe,
        _ => return None,
    };
    if given(object, "hidden_act")?.as_str()? != "silu" {
        return None;
    }
    let hidden_size = count(object, "hidden_size")?;
    let heads = count(object, "num_attention_heads")?;
    let layers = count(object, "num_hidden_layers")?;
    let head_dim = match count(object, "head_dim") {
        Some(d) => d,
        None if architecture == Architecture::Qwen2 && given(object, "head_dim").is_none() => {
            hidden_size / heads
        }
        None => return None,
    };
    let longest = count(object, "max_position_embeddings")?;
    let (theta, rope_scaling) = rope(object, longest)?;
    let bias = match given(object, "attention_bias") {
        None => architecture == Architecture::Qwen2,
        Some(v) => v.as_bool()?,
    };
    Some(Config {
        architecture,
        vocab_size: count(object, "vocab_size")?,
        hidden_size,
        intermediate_size: count(object, "intermediate_size")?,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: count(object, "num_key_value_heads")?,
        head_dim,
        rms_norm_eps: real(object, "rms_norm_eps")?,
        rope_theta: theta,
        rope_scaling,
        windows: windows(object, layers)?,
        idle_window: idle_window(object),
        moe: match architecture {
            Architecture::Qwen3Moe => Some(moe(object, layers)?),
            _ => None,
        },
        tie_word_embeddings: given(object, "tie_word_embeddings")?.as_bool()?,
        attention_bias: bias,
        max_position_embeddings: longest,
        dtype: dtype(object)?,
        eos_token_ids: ids(given(object, "eos_token_id"))?,
        quantization: accepted.quantization.clone(),
    })
}

fn dtype(object: &Object) -> Option<Dtype> {
    let name = |field: &str| given(object, field).map(|v| v.as_str().unwrap_or("?"));
    match either(name("dtype"), name("torch_dtype"))? {
        "bfloat16" => Some(Dtype::Bf16),
        "float16" => Some(Dtype::F16),
        "float32" => Some(Dtype::F32),
        "float64" => Some(Dtype::F64),
        _ => None,
    }
}

/// An id, an array of them, or none.
pub(super) fn ids(value: Option<&Value>) -> Option<Vec<u32>> {
    match value {
        None => Some(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(|v| v.as_u64().map(|n| n as u32)).collect(),
        Some(v) => v.as_u64().map(|n| vec![n as u32]),
    }
}

/// `sliding_window` keys, in the layers that slide, if the window is used at all.
fn windows(object: &Object, layers: usize) -> Option<Vec<Option<usize>>> {
    let used = given(object, "use_sliding_window").is_some_and(|v| *v == Value::Bool(true));
    if !used {
        return Some(vec![None; layers]);
    }
    let size = count(object, "sliding_window")?;
    let slides = |i: usize| match given(object, "layer_types") {
        Some(types) => Some(types.as_array()?.get(i)?.as_str()? == "sliding_attention"),
        None => Some(i >= count(object, "max_window_layers")?),
    };
    (0..layers).map(|i| Some(if slides(i)? { Some(size) } else { None })).collect()
}

/// A size that is set while the switch is set to off.
fn idle_window(object: &Object) -> Option<usize> {
    let off = given(object, "use_sliding_window").is_some_and(|v| *v == Value::Bool(false));
    if off { count(object, "sliding_window").filter(|&n| n > 0) } else { None }
}

fn moe(object: &Object, layers: usize) -> Option<Moe> {
    let step = count(object, "decoder_sparse_step")?;
    let dense: Vec<usize> = match given(object, "mlp_only_layers") {
        None => Vec::new(),
        Some(v) => {
            let items = v.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize));
            items.collect::<Option<_>>()?
        }
    };
    Some(Moe {
        num_experts: either(count(object, "num_experts"), count(object, "num_local_experts"))?,
        num_experts_per_tok: count(object, "num_experts_per_tok")?,
        norm_topk_prob: given(object, "norm_topk_prob")?.as_bool()?,
        intermediate_size: count(object, "moe_intermediate_size")?,
        sparse: (0..layers).map(|i| (i + 1) % step == 0 && !dense.contains(&i)).collect(),
    })
}

fn rope(object: &Object, longest: usize) -> Option<(f64, Scaling)> {
    let mut theta = real(object, "rope_theta");
    let mut scaling = None;
    for name in ["rope_parameters", "rope_scaling"] {
        let Some(value) = given(object, name) else { continue };
        let inner = value.as_object()?;
        if let Some(t) = real(inner, "rope_theta") {
            theta = Some(either(theta, Some(t))?);
        }
        scaling = Some(either(scaling, Some(one_scaling(inner, longest)?))?);
    }
    Some((theta?, scaling.unwrap_or(Scaling::Default)))
}

fn one_scaling(inner: &Object, longest: usize) -> Option<Scaling> {
    let kind = |field: &str| given(inner, field).map(|v| v.as_str().unwrap_or("?"));
    let kind = match (kind("rope_type"), kind("type")) {
        (None, None) => "default",
        (a, b) => either(a, b)?,
    };
    let factor = || real(inner, "factor");
    Some(match kind {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear { factor: factor()? },
        "dynamic" => Scaling::Dynamic { factor: factor()?, max_position: longest },
        "yarn" => {
            let factor = factor()?;
            let scale = |m: f64| if factor > 1.0 { 0.1 * m * ln(factor) + 1.0 } else { 1.0 };
            let by_scales = match (real(inner, "mscale"), real(inner, "mscale_all_dim")) {
                (Some(m), Some(all)) => scale(m) / scale(all),
                _ => scale(1.0),
            };
            Scaling::Yarn(Yarn {
                factor,
                original_max_position: count(inner, "original_max_position_embeddings")?,
                beta_fast: real(inner, "beta_fast").unwrap_or(32.0),
                beta_slow: real(inner, "beta_slow").unwrap_or(1.0),
                truncate: given(inner, "truncate").is_none_or(|v| *v == Value::Bool(true)),
                attention_factor: real(inner, "attention_factor").unwrap_or(by_scales),
            })
        }
        _ => return None,
    })
}

fn ln(x: f64) -> f64 {
    assay_reference::arith::math::ln(x)
}
