//! `config.json` of a released shape: the numbers of the table that the audit ships, and what the table leaves out.

use anyhow::bail;
use serde_json::{Map, Value, json};

use crate::audit::{Release, releases};

/// Rows whose own numbers were not all read at a source, and the rows that complete them, the nearest kin first.
const KIN: [(&str, &[&str]); 13] = [
    ("Qwen2.5-Math-7B-Instruct", &["Qwen2.5-7B-Instruct"]),
    ("DeepSeek-R1-Distill-Qwen-1.5B", &["Qwen2.5-Math-7B-Instruct", "Qwen2.5-1.5B"]),
    ("DeepSeek-R1-Distill-Qwen-7B", &["Qwen2.5-7B"]),
    ("DeepSeek-R1-Distill-Qwen-14B", &["Qwen2.5-14B"]),
    ("DeepSeek-R1-Distill-Qwen-32B", &["Qwen2.5-32B"]),
    ("Qwen3-0.6B-Base", &["Qwen3-0.6B"]),
    ("Qwen3-1.7B-Base", &["Qwen3-1.7B"]),
    ("Qwen3-4B-Base", &["Qwen3-4B"]),
    ("Qwen3-8B-Base", &["Qwen3-8B"]),
    ("Qwen3-14B-Base", &["Qwen3-14B"]),
    ("Qwen3-4B-Instruct-2507", &["Qwen3-4B"]),
    // No tensor of these two has intermediate_size: all their layers are mixtures.
    ("Qwen3-235B-A22B", &["Qwen3-30B-A3B"]),
    ("Qwen3-235B-A22B-Thinking-2507", &["Qwen3-235B-A22B", "Qwen3-30B-A3B"]),
];

/// The names of all shapes, in the table's order.
pub fn names() -> Vec<String> {
    releases().into_iter().map(|r| r.name).collect()
}

/// The released name that `given` means, and its config: in any case, with or without an organisation before it.
///
/// # Errors
/// When there is none; the nearest names are said.
pub fn config(given: &str) -> anyhow::Result<(String, Map<String, Value>)> {
    let table = releases();
    let wanted = given.rsplit('/').next().unwrap_or(given);
    let Some(release) = table.iter().find(|r| r.name.eq_ignore_ascii_case(wanted)) else {
        let near = nearest(wanted, &table).join(", ");
        bail!(
            "`{}` is no released shape; the nearest are {near} (`assay make-model --list` has all; \
             --config FILE takes a config.json of your own)",
            given.escape_debug()
        );
    };
    Ok((release.name.clone(), complete(release, &table)))
}

/// The three names that are most like `wanted`.
fn nearest<'t>(wanted: &str, table: &'t [Release]) -> Vec<&'t str> {
    let wanted = wanted.to_ascii_lowercase();
    let mut by_distance: Vec<(usize, &str)> = table
        .iter()
        .map(|r| (strsim::damerau_levenshtein(&wanted, &r.name.to_ascii_lowercase()), &*r.name))
        .collect();
    // Stable: the table's order remains among equals.
    by_distance.sort_by_key(|(distance, _)| *distance);
    by_distance.into_iter().take(3).map(|(_, name)| name).collect()
}

/// A row as config.json, completed by its kin and by what no row has.
fn complete(release: &Release, table: &[Release]) -> Map<String, Value> {
    let (model_type, positions) = match release.architecture.as_str() {
        "Qwen2ForCausalLM" => ("qwen2", 32_768),
        "Qwen3ForCausalLM" => ("qwen3", 40_960),
        _ => ("qwen3_moe", 40_960),
    };
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([release.architecture]));
    config.insert("model_type".to_owned(), json!(model_type));
    let kin = KIN.iter().find(|(name, _)| *name == release.name).map_or(&[][..], |(_, kin)| kin);
    let kin = kin.iter().filter_map(|name| table.iter().find(|r| r.name == *name));
    for row in std::iter::once(release).chain(kin) {
        for (field, value) in row.fields() {
            config.entry(field).or_insert(value);
        }
    }
    if model_type == "qwen3_moe" {
        config.insert("decoder_sparse_step".to_owned(), json!(1));
    }
    for (field, value) in [
        ("hidden_act", json!("silu")),
        ("max_position_embeddings", json!(positions)),
        ("eos_token_id", json!(151_645)),
        ("torch_dtype", json!("bfloat16")),
    ] {
        config.insert(field.to_owned(), value);
    }
    config
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use assay_reference::checkpoint::Config;

    use super::*;

    #[test]
    fn every_row_of_the_table_makes_a_config() {
        for name in names() {
            let (found, config) = config(&format!("Org/{}", name.to_uppercase())).expect("a row");
            assert_eq!(found, name);
            let text = Value::Object(config).to_string();
            Config::parse(&text, Path::new(&name)).expect("a config");
        }
    }

    #[test]
    fn kin_are_rows_and_no_row_that_is_complete_has_kin() {
        let table = releases();
        let row = |name: &str| table.iter().find(|r| r.name == name);
        for (name, kin) in KIN {
            let own = row(name).unwrap_or_else(|| panic!("{name}: no row"));
            let added = complete(own, &table).len() - own.fields().len();
            // architectures, model_type and four at the end; decoder_sparse_step of a mixture.
            let always = if own.architecture == "Qwen3MoeForCausalLM" { 7 } else { 6 };
            assert!(added > always, "{name} needs no kin");
            assert!(kin.iter().all(|k| row(k).is_some()), "{name}: {kin:?}");
        }
    }

    #[test]
    fn a_name_that_is_not_there_is_told_its_neighbours() {
        let text = config("qwen3-23B").expect_err("no such shape").to_string();
        assert!(text.contains("`qwen3-23B`") && text.contains("Qwen3-32B"), "{text}");
    }
}
