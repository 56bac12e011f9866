//! The text boundary at a server: what it makes of text and of a conversation, against the model's own files.

use assay_reference::checkpoint::ChatRequest;
use serde_json::{Value, json};

use super::evidence::Evidence;
use super::exchange::Exchange;
use super::state::place;
use super::{Model, Report};
use crate::audit::Item;
use crate::template;

/// The text that the model's template makes of `messages`.
fn render(model: &Model<'_>, messages: &Value, opened: bool) -> Option<String> {
    let text = json!({ "messages": messages }).to_string();
    let mut request = ChatRequest::parse(&text, std::path::Path::new("request")).ok()?;
    request.add_generation_prompt = opened;
    model.templates?.render(&request).ok()
}

/// Its token ids.
pub(super) fn chat_ids(model: &Model<'_>, messages: &Value, opened: bool) -> Option<Vec<u32>> {
    model.tokenizer?.encode_rendered(&render(model, messages, opened)?).ok()
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|v| u32::try_from(v.as_u64()?).ok()).collect()
}

/// Compares what `/tokenize` and the answers themselves say of prompts.
pub(super) fn compare(
    model: &Model<'_>,
    exchanges: &[Exchange],
    evidence: &Evidence,
    report: &mut Report,
) {
    let mut found: Vec<Item> = Vec::new();
    let mut add = |item: Option<Item>| {
        if let Some(item) = item
            && found.iter().all(|f| f.name != item.name)
        {
            found.push(item);
        }
    };
    let mut same = 0;
    for e in exchanges.iter().filter(|e| e.path == "/tokenize" && e.ok()) {
        let (Some(theirs), Some(tokenizer)) = (ids(&e.response["tokens"]), model.tokenizer) else {
            continue;
        };
        let item = if let Some(messages) = e.request.get("messages") {
            let opened = e.request["add_generation_prompt"] != false;
            let Some(text) = render(model, messages, opened) else { continue };
            chat(model, &text, &theirs, &place(e))
        } else {
            let Some(text) = e.request["prompt"].as_str() else { continue };
            let ours = match e.request["add_special_tokens"] == false {
                true => tokenizer.encode_rendered(text),
                false => tokenizer.encode(text),
            };
            let Ok(ours) = ours else { continue };
            template::ids(&ours, &theirs, tokenizer, &place(e), "server.tokenizer_differs").finding
        };
        same += usize::from(item.is_none());
        add(item);
    }
    for (i, given, ran) in &evidence.changed {
        let e = &exchanges[*i];
        let item = if let Some(messages) = e.request.get("messages") {
            render(model, messages, true).and_then(|text| chat(model, &text, ran, &place(e)))
        } else {
            let name = match e.request["prompt"].is_string() {
                true => "server.tokenizer_differs",
                false => "server.prompt_changed",
            };
            let first = given.iter().zip(ran).take_while(|(a, b)| a == b).count();
            let what = format!(
                "{} token ids were given and {} ran; the first that differs is number {first}",
                given.len(),
                ran.len()
            );
            Some(Item::new(name, place(e), what))
        };
        add(item);
    }
    report.findings.extend(found);
    if same > 0 {
        report.notes.push(format!("{same} prompts have the same token ids at the server as here"));
    }
}

/// The server's ids of a conversation against the template's text.
fn chat(model: &Model<'_>, text: &str, theirs: &[u32], with: &str) -> Option<Item> {
    let tokenizer = model.tokenizer?;
    let ours = tokenizer.encode_rendered(text).ok()?;
    // By bytes where the ids are this tokenizer's: the place in the text tells more.
    match tokenizer.decode(theirs) {
        Ok(other) if ours != theirs && other != text => {
            template::bytes(text, other.as_bytes(), with, "server.template_differs").finding
        }
        _ => template::ids(&ours, theirs, tokenizer, with, "server.template_differs").finding,
    }
}
