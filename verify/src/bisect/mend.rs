//! A checkpoint whose config its tensors contradict, opened with theirs: what lies behind a convicted config can
//! still be judged.
//!
//! Nothing is written beside the checkpoint: a temporary folder links to its files and holds the corrected
//! config.json. What a file lacks cannot be mended.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use assay_reference::checkpoint::Checkpoint;
use serde_json::{Map, Value};
use tempfile::TempDir;

use super::Changes;
use crate::audit::Audit;

/// A checkpoint that could be opened.
#[derive(Debug)]
pub struct Model {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// What was changed to open it.
    pub changes: Changes,
    /// Links live as long as what is mapped through them.
    _folder: Option<TempDir>,
}

const CONFIG: &str = "config.json";
const QUANTIZE: &str = "quantize_config.json";
const INDEX: &str = "model.safetensors.index.json";
/// More entries than any checkpoint has.
const MOST_ENTRIES: usize = 10_000;

/// Opens the checkpoint in `dir` as its tensors describe it. `fixed` is the config that they describe.
///
/// # Errors
/// Why it cannot be read, for people.
pub fn open(dir: &Path, audit: &Audit, fixed: Option<Value>) -> Result<Model, String> {
    let wrong = |prefix: &str| audit.findings.iter().any(|i| i.name.starts_with(prefix));
    let as_it_is = || {
        let checkpoint = Checkpoint::open(dir).map_err(|e| e.to_string())?;
        Ok(Model { checkpoint, changes: Changes::default(), _folder: None })
    };
    if !wrong("config.") && !wrong("quant.") && !wrong("file.odd_name") && !wrong("index.") {
        return as_it_is();
    }
    let Some(Value::Object(mut fixed)) = fixed else { return as_it_is() };
    let given = given(dir);
    relabel(&mut fixed, audit);
    if let Some(eos) = given.get("eos_token_id") {
        fixed.insert("eos_token_id".into(), eos.clone());
    }
    let mut why = String::new();
    for without_index in [false, true] {
        match linked(dir, &fixed, &given, without_index) {
            Ok(model) => return Ok(model),
            Err(e) if why.is_empty() => why = e,
            Err(_) => {}
        }
    }
    as_it_is().map_err(|_: String| why)
}

/// config.json as it is; empty when it cannot be read.
fn given(dir: &Path) -> Map<String, Value> {
    let text = fs::read_to_string(dir.join(CONFIG)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Both spellings of the GPTQ format, of which writers give one or both.
const FORMATS: [&str; 2] = ["checkpoint_format", "format"];

/// The GPTQ format that the data say, under every spelling that is there: one left as it was would contradict the other.
fn relabel(fixed: &mut Map<String, Value>, audit: &Audit) {
    if !audit.findings.iter().any(|i| i.name == "quant.format") {
        return;
    }
    if let Some(Value::Object(quantization)) = fixed.get_mut("quantization_config") {
        let given = FORMATS.iter().find_map(|f| quantization.get(*f).and_then(Value::as_str));
        let other = if given == Some("gptq_v2") { "gptq" } else { "gptq_v2" };
        for field in FORMATS {
            if field == FORMATS[0] || quantization.contains_key(field) {
                quantization.insert(field.into(), other.into());
            }
        }
    }
}

fn linked(
    dir: &Path,
    fixed: &Map<String, Value>,
    given: &Map<String, Value>,
    without_index: bool,
) -> Result<Model, String> {
    let io = |e: std::io::Error| format!("{}: {e}", dir.display());
    let folder = tempfile::tempdir().map_err(io)?;
    let mut changes = differences(fixed, given);
    let from = fs::canonicalize(dir).map_err(io)?;
    for entry in fs::read_dir(&from).map_err(io)?.take(MOST_ENTRIES) {
        let name = entry.map_err(io)?.file_name();
        let text = name.to_string_lossy().into_owned();
        let described = text == QUANTIZE && fixed.contains_key("quantization_config");
        if text == CONFIG || described {
            continue;
        }
        if text == INDEX && without_index {
            changes.push(format!("{INDEX} left out"));
            continue;
        }
        // `model.safetensors?download=true`, as some tools store it.
        let plain = text.split_once(".safetensors?").map(|(stem, _)| format!("{stem}.safetensors"));
        let to = folder.path().join(plain.as_deref().unwrap_or(&text));
        if !to.exists() {
            symlink(from.join(&name), to).map_err(io)?;
        }
        if let Some(plain) = plain {
            changes.push(format!("`{}` read as {plain}", text.escape_debug()));
        }
    }
    let config = serde_json::to_string_pretty(fixed).map_err(|e| e.to_string())?;
    fs::write(folder.path().join(CONFIG), config).map_err(io)?;
    let inside = folder.path().display().to_string();
    let readable =
        |e: assay_reference::Error| e.to_string().replace(&inside, &dir.display().to_string());
    let checkpoint = Checkpoint::open(folder.path()).map_err(readable)?;
    Ok(Model { checkpoint, changes: Changes(changes), _folder: Some(folder) })
}

/// `head_dim 128 (was not there)`.
fn differences(fixed: &Map<String, Value>, given: &Map<String, Value>) -> Vec<String> {
    let mut changes = Vec::new();
    for (name, value) in fixed {
        match given.get(name) {
            Some(was) if was == value => {}
            Some(_) if name == "quantization_config" => {
                changes.push("quantization_config as the packed tensors say".into());
            }
            Some(was) => changes.push(format!("{name} {value} (config.json says {was})")),
            None if name == "quantization_config" => {}
            None => changes.push(format!("{name} {value} (config.json has none)")),
        }
    }
    changes
}
