//! The text boundary: tokenizer against the head's rows, end tokens, chat template.

use std::path::Path;

use assay_reference::checkpoint::{ChatRequest, ChatTemplates};
use serde_json::{Value, json};

use super::files::Files;
use super::found::{Blind, Found, list};
use super::infer::Inferred;
use super::json::{self, Doc, Object};
use super::tokenizer::{self, Outcome, Tokens};

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Checks tokenizer, end tokens and chat template.
pub(super) fn check(dir: &Path, inferred: Option<&Inferred>, files: &Files, out: &mut Found) {
    let config = match json::read(&dir.join(TOKENIZER_CONFIG)) {
        Doc::Object(object, _) => object,
        Doc::Absent => Object::new(),
        Doc::Damaged(why) => {
            out.add("tokenizer.damaged", TOKENIZER_CONFIG, why);
            Object::new()
        }
    };
    let tokens = match tokenizer::read(&dir.join(TOKENIZER)) {
        Outcome::Tokens(tokens) => Some(tokens),
        Outcome::Absent => {
            out.blind(Blind::Tokenizer, "tokenizer and chat template: there is no tokenizer.json");
            None
        }
        Outcome::Damaged(why) => {
            out.add("tokenizer.damaged", TOKENIZER, why);
            None
        }
    };
    let rows = ["model.embed_tokens.weight", "lm_head.weight"]
        .into_iter()
        .filter_map(|n| Some((n, files.shape(n)?.first().copied()?)))
        .min_by_key(|(_, rows)| *rows);
    if let (Some(tokens), Some((name, rows))) = (&tokens, rows)
        && tokens.highest >= rows
    {
        let what = format!(
            "has ids up to {}, and {name} has {rows} rows (ids up to {})",
            tokens.highest,
            rows.saturating_sub(1)
        );
        out.add("tokenizer.beyond_rows", TOKENIZER, what);
    }
    if let Some(inferred) = inferred {
        ends(inferred, rows.map(|r| r.1), &config, tokens.as_ref(), out);
    }
    if let Some(tokens) = &tokens {
        template(dir, &config, tokens, out);
    }
}

/// Token ids of a field: one, or a list.
fn ids(object: &Object, name: &str) -> Vec<u64> {
    match object.get(name) {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_u64).collect(),
        Some(one) => one.as_u64().into_iter().collect(),
        None => Vec::new(),
    }
}

/// The end tokens of config.json, generation_config.json and the tokenizer.
fn ends(
    inferred: &Inferred,
    rows: Option<u64>,
    tokenizer_config: &Object,
    tokens: Option<&Tokens>,
    out: &mut Found,
) {
    const FIELD: &str = "eos_token_id";
    let config = ids(&inferred.raw.config, FIELD);
    let generation = inferred.raw.generation.as_ref().map(|g| ids(g, FIELD)).unwrap_or_default();
    for (file, of) in [("config.json", &config), ("generation_config.json", &generation)] {
        let beyond: Vec<String> =
            of.iter().filter(|id| rows.is_some_and(|r| **id >= r)).map(u64::to_string).collect();
        if !beyond.is_empty() {
            let what = format!(
                "is {}, and the head has {} rows",
                list(beyond.iter().map(String::as_str)),
                rows.unwrap_or(0)
            );
            out.add("eos.out_of_range", format!("{file}: {FIELD}"), what);
        }
    }
    if config.is_empty() && generation.is_empty() {
        out.add(
            "eos.missing",
            format!("generation_config.json: {FIELD}"),
            "no end token is named, there or in config.json",
        );
        return;
    }
    if !config.is_empty()
        && !generation.is_empty()
        && !config.iter().any(|id| generation.contains(id))
    {
        let what = format!(
            "is {config:?}, and config.json's is {config_ids:?}",
            config = generation,
            config_ids = config
        );
        out.add("eos.disagree", format!("generation_config.json: {FIELD}"), what);
    }
    let effective = if generation.is_empty() { &config } else { &generation };
    let named = match tokenizer_config.get("eos_token") {
        Some(Value::String(text)) => Some(text.as_str()),
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
        _ => None,
    };
    let (Some(named), Some(tokens)) = (named, tokens) else { return };
    match tokens.added.get(named) {
        Some(id) if effective.contains(id) => {}
        Some(id) => {
            let what = format!("is {named:?}, id {id}, and generation stops at {effective:?}");
            out.add("eos.tokenizer", format!("{TOKENIZER_CONFIG}: eos_token"), what);
        }
        None => out.note(format!(
            "{TOKENIZER_CONFIG}: eos_token {named:?} is none of {TOKENIZER}'s added tokens"
        )),
    }
}

fn template(dir: &Path, config: &Object, tokens: &Tokens, out: &mut Found) {
    let beside = dir.join("chat_template.jinja").exists();
    let inside = config.get("chat_template").is_some_and(|v| !v.is_null());
    let place = if beside { "chat_template.jinja" } else { TOKENIZER_CONFIG };
    if !beside && !inside {
        let what = "there is no chat_template.jinja, and no chat_template in tokenizer_config.json";
        out.add("template.missing", "chat_template.jinja", what);
        return;
    }
    if beside && !dir.join("chat_template.jinja").is_file() {
        out.add("template.broken", place, "is not a regular file");
        return;
    }
    let templates = match ChatTemplates::open(dir) {
        Ok(templates) => templates,
        Err(e) => {
            out.add("template.broken", place, e.to_string());
            return;
        }
    };
    if !templates.warnings().is_empty() {
        out.add(
            "template.two",
            "chat_template.jinja",
            "differs from chat_template in tokenizer_config.json",
        );
    }
    let request = ChatRequest {
        messages: vec![json!({"role": "user", "content": "1+1?"})],
        add_generation_prompt: true,
        ..ChatRequest::default()
    };
    match templates.render(&request) {
        Err(e) => out.add("template.broken", place, e.to_string()),
        Ok(text) => {
            let unknown: Vec<&str> =
                marks(&text).into_iter().filter(|m| !tokens.added.contains_key(*m)).collect();
            if !unknown.is_empty() {
                let what = format!(
                    "writes {}, which tokenizer.json does not have among its added tokens",
                    list(unknown)
                );
                out.add("template.unknown_token", place, what);
            }
        }
    }
}

/// What looks like a special token in a prompt: `<|im_start|>`, and DeepSeek's with full-width bars.
fn marks(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (open, close) in [("<|", "|>"), ("<｜", "｜>")] {
        let mut rest = text;
        while let Some(begin) = rest.find(open) {
            rest = &rest[begin..];
            let Some(end) = rest.find(close).map(|e| e + close.len()) else { break };
            let mark = &rest[..end];
            if mark.len() <= 64 && !mark.contains(char::is_whitespace) && !found.contains(&mark) {
                found.push(mark);
            }
            rest = &rest[end..];
        }
    }
    found
}
