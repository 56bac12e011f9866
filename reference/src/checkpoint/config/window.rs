//! Which layers attend to a sliding window, as transformers decides it.
//!
//! `sliding_window` alone means nothing: every released Qwen2.5 and Qwen3 sets it, and none uses it.
//! It counts when `use_sliding_window` is true, in the layers from `max_window_layers` on, or in those
//! that `layer_types` (transformers 5) calls `sliding_attention`.

use super::Architecture;
use super::fields::Fields;
use crate::error::Result;

/// Keys that each layer's queries see, their own included; `None` is all.
pub(super) fn read(
    f: &Fields<'_>,
    architecture: Architecture,
    layers: usize,
) -> Result<Vec<Option<usize>>> {
    let active = f.flag("use_sliding_window")?;
    let given = f.value("sliding_window");
    let first = f.integer("max_window_layers", 0..=1 << 12)?;
    let types = f.texts("layer_types")?;
    if active.is_none() && given.is_some() {
        return Err(f.error(
            "sliding_window",
            "is set, but `use_sliding_window` is missing, and engines differ in what that means; \
             add `use_sliding_window`: false if the model does not use it",
        ));
    }
    let size = match active {
        Some(true) => f.integer("sliding_window", 1..=1 << 30)?.map(|n| n as usize), // 1..=2^30
        _ => None,
    };
    if active == Some(true) && size.is_none() {
        let why = "use_sliding_window is true, and this is the number of keys that a query sees";
        return f.need("sliding_window", None, why);
    }
    if size.is_some() && architecture == Architecture::Qwen3Moe {
        return Err(f.error(
            "use_sliding_window",
            "is true: in a mixture of experts engines differ in which layers that concerns \
             (transformers: all, whatever max_window_layers says), and no released one uses it",
        ));
    }
    let by_number = |i: usize| first.is_some_and(|first| i as i64 >= first);
    let Some(types) = types else {
        if size.is_some() && first.is_none() {
            let why = "use_sliding_window is true, and this is the first layer that slides";
            return f.need("max_window_layers", None, why);
        }
        return Ok((0..layers).map(|i| size.filter(|_| by_number(i))).collect());
    };
    if types.len() != layers {
        return Err(f.error(
            "layer_types",
            format!("lists {} layers, but num_hidden_layers is {layers}", types.len()),
        ));
    }
    types.iter().enumerate().map(|(i, kind)| of_type(f, i, kind, size, first)).collect()
}

/// The window that is set and switched off.
pub(super) fn idle(f: &Fields<'_>) -> Result<Option<usize>> {
    let off = f.flag("use_sliding_window")? == Some(false);
    let size = f.value("sliding_window").and_then(serde_json::Value::as_u64);
    Ok(size.filter(|&n| off && n > 0).and_then(|n| usize::try_from(n).ok()))
}

/// The window of layer `i` by its entry in `layer_types`.
fn of_type(
    f: &Fields<'_>,
    i: usize,
    kind: &str,
    size: Option<usize>,
    first: Option<i64>,
) -> Result<Option<usize>> {
    let window = match kind {
        "full_attention" => None,
        "sliding_attention" if size.is_none() => {
            return Err(f.error(
                "layer_types",
                format!(
                    "says that layer {i} slides, but use_sliding_window is not true: one of the \
                     two is wrong"
                ),
            ));
        }
        "sliding_attention" => size,
        other => {
            return Err(f.error(
                "layer_types",
                format!(
                    "has `{}` for layer {i}: assay knows full_attention and sliding_attention",
                    other.escape_debug()
                ),
            ));
        }
    };
    match (size, first) {
        (Some(_), Some(first)) if window.is_some() != (i as i64 >= first) => Err(f.error(
            "layer_types",
            format!(
                "has `{kind}` for layer {i}, but max_window_layers {first} says otherwise: engines \
                 differ in which of the two they read"
            ),
        )),
        _ => Ok(window),
    }
}
