//! The config against those of released models, which are shipped as data, and the name against the number of
//! parameters.

use std::path::Path;

use assay_reference::checkpoint::Config;
use serde::Deserialize;
use serde_json::{Value, json};

use super::found::{Found, list, quoted};
use super::infer::{Inferred, class, text};
use super::json::Object;
use super::tensors;

/// A released model; what was not read at the source is absent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    pub(crate) name: String,
    /// Where the numbers were read.
    source: String,
    pub(crate) architecture: String,
    hidden_size: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    intermediate_size: Option<u64>,
    vocab_size: Option<u64>,
    tie_word_embeddings: Option<bool>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    num_experts: Option<u64>,
    num_experts_per_tok: Option<u64>,
    moe_intermediate_size: Option<u64>,
    norm_topk_prob: Option<bool>,
}

#[derive(Deserialize)]
struct Table {
    release: Vec<Release>,
}

/// The table; a test reads it, so that an error here is one of this file.
pub(crate) fn table() -> Vec<Release> {
    toml::from_str::<Table>(include_str!("releases.toml")).map(|t| t.release).unwrap_or_default()
}

impl Release {
    /// The fields with values, as config.json spells them.
    pub(crate) fn fields(&self) -> Vec<(&'static str, Value)> {
        let int = |n: Option<u64>| n.map(|n| json!(n));
        let real = |x: Option<f64>| x.map(|x| json!(x));
        let flag = |b: Option<bool>| b.map(|b| json!(b));
        [
            ("hidden_size", int(self.hidden_size)),
            ("num_hidden_layers", int(self.num_hidden_layers)),
            ("num_attention_heads", int(self.num_attention_heads)),
            ("num_key_value_heads", int(self.num_key_value_heads)),
            ("head_dim", int(self.head_dim)),
            ("intermediate_size", int(self.intermediate_size)),
            ("vocab_size", int(self.vocab_size)),
            ("tie_word_embeddings", flag(self.tie_word_embeddings)),
            ("rms_norm_eps", real(self.rms_norm_eps)),
            ("rope_theta", real(self.rope_theta)),
            ("num_experts", int(self.num_experts)),
            ("num_experts_per_tok", int(self.num_experts_per_tok)),
            ("moe_intermediate_size", int(self.moe_intermediate_size)),
            ("norm_topk_prob", flag(self.norm_topk_prob)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

/// The names under which a checkpoint goes: its folder's, its hub cache's, its config's.
fn names(dir: &Path, config: &Object) -> Vec<String> {
    let absolute = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
    let mut names: Vec<String> = absolute
        .ancestors()
        .take(3)
        .filter_map(|a| Some(a.file_name()?.to_string_lossy().into_owned()))
        .enumerate()
        // Above the folder itself only the hub's own cache names a model: models--ORG--NAME/snapshots/REVISION.
        .filter(|(i, name)| *i == 0 || name.starts_with("models--"))
        .map(|(_, name)| name)
        .collect();
    let stated = text(config, "_name_or_path").and_then(|n| n.rsplit('/').next());
    names.extend(stated.map(str::to_owned));
    names
}

/// Endings that say how a model is stored and not which it is.
const STORED: [&str; 18] = [
    "gptq",
    "awq",
    "int4",
    "int8",
    "int3",
    "4bit",
    "8bit",
    "w4a16",
    "w8a16",
    "fp8",
    "bf16",
    "fp16",
    "hf",
    "g128",
    "sym",
    "quantized",
    "v2",
    "marlin",
];

/// Whether a folder's name is that of a release.
fn is_named(folder: &str, release: &str) -> bool {
    let (folder, release) = (folder.to_ascii_lowercase(), release.to_ascii_lowercase());
    let own = folder.rsplit("--").next().unwrap_or(&folder);
    let own = own.rsplit_once("__").map_or(own, |(_, name)| name);
    let Some(rest) = own.strip_prefix(&release) else { return false };
    rest.split(['-', '_', '.']).all(|part| part.is_empty() || STORED.contains(&part))
        && (rest.is_empty() || rest.starts_with(['-', '_', '.']))
}

/// Compares with the release of this name; and the name with the number of parameters.
pub(super) fn check(dir: &Path, inferred: &Inferred, config: Option<&Config>, out: &mut Found) {
    let given = &inferred.raw.config;
    let names = names(dir, given);
    let table = table();
    let named = names.iter().find_map(|n| table.iter().find(|r| is_named(n, &r.name)));
    match named {
        Some(release) => {
            out.release = Some(release.name.clone());
            if class(given).is_some_and(|c| c != release.architecture)
                && !out.any(&["config.architecture"])
            {
                let what = format!(
                    "is {}, {} was released as {}",
                    class(given).unwrap_or(""),
                    release.name,
                    release.architecture
                );
                out.add("release.differs", "config.json: architectures", what);
            }
            for (field, theirs) in release.fields() {
                let ours = value(given, field);
                let Some(ours) = ours
                    .filter(|v| v.as_f64() != theirs.as_f64() || v.as_bool() != theirs.as_bool())
                else {
                    continue;
                };
                let what = format!(
                    "is {ours}, {} was released with {theirs} ({})",
                    release.name, release.source
                );
                out.add("release.differs", format!("config.json: {field}"), what);
            }
        }
        None => alike(&inferred.fixed, &table, out),
    }
    if let Some(config) = config.filter(|_| !out.any(&["tensor.missing", "config.layers"])) {
        counted(&names, config, out);
    }
}

/// A field of a config, rope_theta in either place.
fn value(config: &Object, field: &str) -> Option<Value> {
    let inner = |name: &str| config.get(name)?.get(field).cloned();
    let direct = config.get(field).filter(|v| !v.is_null()).cloned();
    if field == "rope_theta" { direct.or_else(|| inner("rope_parameters")) } else { direct }
}

/// Releases of the same shapes, where the name tells nothing.
fn alike(fixed: &Object, table: &[Release], out: &mut Found) {
    const SHAPES: [&str; 6] = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
    ];
    let same = |r: &&Release| {
        let fields = r.fields();
        SHAPES.iter().all(|s| {
            fields
                .iter()
                .any(|(n, v)| n == s && value(fixed, s).and_then(|o| o.as_f64()) == v.as_f64())
        })
    };
    let found: Vec<&Release> = table.iter().filter(same).collect();
    if found.is_empty() {
        return;
    }
    let shown = list(found.iter().map(|r| r.name.as_str()));
    out.note(format!("the shapes are those of {shown}"));
    for field in ["rope_theta", "rms_norm_eps", "tie_word_embeddings"] {
        let Some(ours) = value(fixed, field) else { continue };
        let theirs: Vec<Value> = found
            .iter()
            .filter_map(|r| r.fields().into_iter().find(|(n, _)| *n == field))
            .map(|(_, v)| v)
            .collect();
        let equal = |v: &Value| v.as_f64() == ours.as_f64() && v.as_bool() == ours.as_bool();
        if !theirs.is_empty() && !theirs.iter().any(equal) {
            out.note(format!(
                "config.json: {field} is {ours}; the table's models of these shapes have {}",
                theirs[0]
            ));
        }
    }
}

/// Billions of parameters that a name promises: 32 of `Qwen3-32B-GPTQ`, not the 3 of `A3B`.
fn promised(name: &str) -> Option<f64> {
    name.split(['-', '_', ' ']).find_map(|part| {
        let digits = part.strip_suffix(['B', 'b'])?;
        digits.starts_with(|c: char| c.is_ascii_digit()).then(|| digits.parse().ok())?
    })
}

/// The name against the number of parameters.
///
/// Released models are within 3 % of their names when counted with the head or without it (names count
/// either way): the test of the table holds that. 5 % is the limit.
fn counted(names: &[String], config: &Config, out: &mut Found) {
    let Some((name, billions)) =
        names.iter().find_map(|n| Some((n, promised(n).filter(|b| *b > 0.0)?)))
    else {
        return;
    };
    let (total, head) = tensors::parameters(config);
    let off = |count: u64| (count as f64 / 1e9 / billions - 1.0).abs();
    if off(total).min(off(total - head)) > 0.05 {
        let what = format!(
            "{} promises {billions}B, the architecture has {:.2}B parameters ({:.2}B without the head)",
            quoted(name),
            total as f64 / 1e9,
            (total - head) as f64 / 1e9
        );
        out.add("name.parameters", name.clone(), what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_is_complete_and_cites_its_source() {
        let table = table();
        assert!(table.len() >= 30, "{} rows", table.len());
        for r in &table {
            assert!(r.source.starts_with("https://"), "{}: no source", r.name);
            assert!(!r.fields().is_empty(), "{}: no number", r.name);
            assert_eq!(table.iter().filter(|o| o.name == r.name).count(), 1, "{} twice", r.name);
        }
    }

    #[test]
    fn names_of_released_models_promise_their_parameters() {
        let mut seen = 0;
        for r in table() {
            let mut config: Object =
                r.fields().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
            let dense = r.architecture != "Qwen3MoeForCausalLM";
            config.entry("head_dim").or_insert(json!(128));
            if r.hidden_size == Some(896) {
                config.insert("head_dim".into(), json!(64));
            }
            for (name, value) in [
                ("architectures", json!([r.architecture])),
                ("hidden_act", json!("silu")),
                ("dtype", json!("bfloat16")),
                ("max_position_embeddings", json!(32768)),
            ] {
                config.insert(name.into(), value);
            }
            if !dense {
                config.insert("decoder_sparse_step".into(), json!(1));
                config.entry("norm_topk_prob").or_insert(json!(true));
                config.entry("intermediate_size").or_insert(json!(1));
            }
            let text = Value::Object(config).to_string();
            let Ok(config) = Config::parse(&text, Path::new(&r.name)) else { continue };
            seen += 1;
            let mut out = Found::new(Path::new("x"));
            counted(std::slice::from_ref(&r.name), &config, &mut out);
            assert!(!out.any(&["name."]), "{}: {out:?}", r.name);
            // Half as many more is another model.
            counted(&["Model-13B".to_owned()], &config, &mut out);
            let near = (tensors::parameters(&config).0 as f64 / 13e9 - 1.0).abs() < 0.1;
            assert!(out.any(&["name."]) || near, "{} passes as 13B", r.name);
        }
        assert!(seen >= 28, "only {seen} rows are complete");
    }

    #[test]
    fn a_folder_is_named_as_a_release_or_is_not() {
        for (folder, release, expected) in [
            ("Qwen3-32B", "Qwen3-32B", true),
            ("models--Qwen--Qwen3-32B", "Qwen3-32B", true),
            ("Qwen3-32B-GPTQ-Int4", "Qwen3-32B", true),
            ("Qwen2.5-14B-Instruct-1M", "Qwen2.5-14B-Instruct", false),
            ("Qwen2.5-14B-Instruct", "Qwen2.5-14B", false),
            ("DeepSeek-R1-0528-Qwen3-8B", "Qwen3-8B", false),
            ("Qwen3-4B-Thinking-2507", "Qwen3-4B", false),
        ] {
            assert_eq!(is_named(folder, release), expected, "{folder}");
        }
        assert_eq!(promised("Qwen3-30B-A3B"), Some(30.0));
        assert_eq!(promised("Qwen2.5-0.5B-Instruct"), Some(0.5));
        assert_eq!(promised("tiny-qwen3"), None);
    }
}
