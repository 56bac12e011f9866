//! Where a checkpoint keeps its chat templates and special tokens.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{ChatRequest, ChatTemplates};
use crate::checkpoint::ensure_folder;
use crate::checkpoint::json::{self, Object, describe};
use crate::error::{Error, Result};

/// The named tokens that transformers passes to templates.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The fields under which a message's reasoning is passed; the first is what templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) text: String,
    /// The file that holds it.
    pub(super) origin: PathBuf,
}

pub(super) fn open(dir: &Path) -> Result<ChatTemplates> {
    ensure_folder(dir)?;
    let path = dir.join("tokenizer_config.json");
    let config = json::read_optional(&path)?.unwrap_or_default();
    let inside = in_config(&config, &path)?;
    let beside = files(dir)?;
    let mut warnings = Vec::new();
    for ours in &beside {
        if let Some(theirs) = inside.iter().find(|t| t.name == ours.name && t.text != ours.text) {
            warnings.push(format!(
                "{} and {} hold different chat templates; transformers reads the first, and so \
                 does assay, but older tools read the second",
                ours.origin.display(),
                theirs.origin.display()
            ));
        }
    }
    let templates = if beside.is_empty() { inside } else { beside };
    if templates.is_empty() {
        return Err(Error::file(
            dir,
            "there is no chat template: expected chat_template.jinja, or `chat_template` in \
             tokenizer_config.json; download it, or give the whole prompt as text",
        ));
    }
    let special = special_tokens(dir, &config, &path)?;
    Ok(ChatTemplates { dir: dir.to_path_buf(), templates, special, warnings })
}

/// `chat_template.jinja` and `additional_chat_templates/NAME.jinja`.
fn files(dir: &Path) -> Result<Vec<Named>> {
    let mut out = Vec::new();
    let mut push = |name: &str, origin: PathBuf| -> Result<()> {
        match std::fs::read(&origin) {
            Ok(bytes) => {
                let text = String::from_utf8(bytes)
                    .map_err(|_| Error::file(&origin, "is not UTF-8; download it again"))?;
                out.push(Named { name: name.into(), text, origin });
                Ok(())
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io(origin)(e)),
        }
    };
    push("default", dir.join("chat_template.jinja"))?;
    let folder = dir.join("additional_chat_templates");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(out),
        Err(e) => return Err(Error::io(folder)(e)),
    };
    let mut names: Vec<String> = entries
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter_map(|n| n.strip_suffix(".jinja").map(str::to_owned))
        .collect();
    names.sort();
    for name in names {
        push(&name, folder.join(format!("{name}.jinja")))?;
    }
    Ok(out)
}

/// `chat_template` of tokenizer_config.json: a string, or a list of objects `name`, `template`.
fn in_config(config: &Object, path: &Path) -> Result<Vec<Named>> {
    let named = |name: &str, text: &str| Named {
        name: name.into(),
        text: text.into(),
        origin: path.to_path_buf(),
    };
    let wrong = |found: &Value| {
        let what = "`chat_template` must be a string, or an array of objects with the strings \
                    `name` and `template`";
        Error::file(path, format!("{what}, but holds {}", describe(found)))
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![named("default", text)]),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| {
                let field = |name: &str| item.get(name).and_then(Value::as_str);
                let (name, text) = (field("name"), field("template"));
                name.zip(text).map(|(n, t)| named(n, t)).ok_or_else(|| wrong(item))
            })
            .collect(),
        Some(other) => Err(wrong(other)),
    }
}

/// The special tokens: tokenizer_config.json's, over which special_tokens_map.json wins where the
/// config has no `added_tokens_decoder` (files of older tools).
fn special_tokens(dir: &Path, config: &Object, path: &Path) -> Result<Vec<(String, String)>> {
    let map_path = dir.join("special_tokens_map.json");
    let map = match config.get("added_tokens_decoder") {
        Some(_) => None,
        None => json::read_optional(&map_path)?,
    };
    let mut out = Vec::new();
    for name in SPECIAL {
        let inside = config.get(name).map(|v| (v, path));
        let found = map.as_ref().and_then(|m| m.get(name)).map(|v| (v, map_path.as_path()));
        let Some((value, file)) = found.or(inside) else { continue };
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Object(token) if token.get("content").is_some_and(Value::is_string) => {
                token["content"].as_str().unwrap_or_default().to_owned()
            }
            other => {
                let what = format!(
                    "`{name}` must be a string or an object with the string `content`, but is {}",
                    describe(other)
                );
                return Err(Error::file(file, what));
            }
        };
        out.push((name.to_owned(), text));
    }
    Ok(out)
}

/// Everything that a template sees.
pub(super) fn variables(special: &[(String, String)], request: &ChatRequest) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, token) in special {
        out.insert(name.clone(), token.as_str().into());
    }
    out.extend(request.arguments.clone());
    let list = |items: &Option<Vec<Value>>| items.clone().map_or(Value::Null, Value::Array);
    out.insert("messages".into(), request.messages.iter().map(message).collect());
    out.insert("tools".into(), list(&request.tools));
    out.insert("documents".into(), list(&request.documents));
    out.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
    out
}

/// A message without its null keys, and with its reasoning under every name that templates read.
fn message(given: &Value) -> Value {
    let Value::Object(given) = given else { return given.clone() };
    let kept: Vec<(&String, &Value)> = given.iter().filter(|(_, v)| !v.is_null()).collect();
    let reasoning = REASONING.iter().find_map(|name| given.get(*name).filter(|v| !v.is_null()));
    let mut out = Map::new();
    if let Some(reasoning) = reasoning {
        out.insert("thinking".into(), reasoning.clone());
    }
    out.extend(kept.into_iter().map(|(k, v)| (k.clone(), v.clone())));
    if let Some(reasoning) = reasoning {
        out.insert("reasoning_content".into(), reasoning.clone());
    }
    Value::Object(out)
}
