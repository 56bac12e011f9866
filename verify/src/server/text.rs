//! The text boundary at a server: what it makes of text and of a conversation, against the model's own files.

use assay_reference::checkpoint::ChatRequest;
use serde_json::{Value, json};

use super::evidence::Evidence;
use super::exchange::Exchange;
use super::state::place;
use super::{Model, Report};
use crate::audit::Item;
use crate::template;

/// The text that the model's template makes of `messages`; `None` without a template.
fn render(
    model: &Model<'_>,
    messages: &Value,
    opened: bool,
) -> Option<assay_reference::Result<String>> {
    let templates = model.templates?;
    let text = json!({ "messages": messages }).to_string();
    let request = ChatRequest::parse(&text, std::path::Path::new("request"));
    Some(request.and_then(|mut request| {
        request.add_generation_prompt = opened;
        templates.render(&request)
    }))
}

/// Its token ids.
pub(super) fn chat_ids(model: &Model<'_>, messages: &Value, opened: bool) -> Option<Vec<u32>> {
    model.tokenizer?.encode_rendered(&render(model, messages, opened)?.ok()?).ok()
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
    let (mut same, mut same_chats) = (0, 0);
    let mut lacking: Vec<String> = Vec::new();
    for e in exchanges.iter().filter(|e| e.path == "/tokenize" && e.ok()) {
        let mut lacks = |what: String| lacking.push(format!("{}: {what}", place(e)));
        let Some(theirs) = ids(&e.response["tokens"]) else {
            lacks(format!("the answer has no token ids `tokens`: {}", e.head()));
            continue;
        };
        let Some(tokenizer) = model.tokenizer else {
            lacks("the model's folder has no tokenizer that can be read".into());
            continue;
        };
        let item = if let Some(messages) = e.request.get("messages") {
            let opened = e.request["add_generation_prompt"] != false;
            let text = match render(model, messages, opened) {
                Some(Ok(text)) => text,
                Some(Err(error)) => {
                    lacks(format!("the template does not render this conversation here: {error}"));
                    continue;
                }
                // Said of the folder.
                None => continue,
            };
            if let Err(error) = tokenizer.encode_rendered(&text) {
                lacks(format!("the template's text has no token ids here: {error}"));
                continue;
            }
            chat(model, &text, &theirs, &place(e))
        } else {
            let Some(text) = e.request["prompt"].as_str() else { continue };
            let ours = match e.request["add_special_tokens"] == false {
                true => tokenizer.encode_rendered(text),
                false => tokenizer.encode(text),
            };
            let ours = match ours {
                Ok(ours) => ours,
                Err(error) => {
                    lacks(format!("the text has no token ids here: {error}"));
                    continue;
                }
            };
            template::ids(&ours, &theirs, tokenizer, &place(e), "server.tokenizer_differs").finding
        };
        same += usize::from(item.is_none());
        same_chats += usize::from(item.is_none() && e.request.get("messages").is_some());
        add(item);
    }
    for (i, given, ran) in &evidence.changed {
        let e = &exchanges[*i];
        let item = if let Some(messages) = e.request.get("messages") {
            let text = render(model, messages, true).and_then(Result::ok);
            text.and_then(|text| chat(model, &text, ran, &place(e)))
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
    report.not_tested.extend(lacking);
    report.same_chats = same_chats;
    if same > 0 {
        report.notes.push(format!("{same} prompts have the same token ids at the server as here"));
    }
}

/// The server's ids of a conversation against the template's text.
fn chat(model: &Model<'_>, text: &str, theirs: &[u32], with: &str) -> Option<Item> {
    let tokenizer = model.tokenizer?;
    let ours = tokenizer.encode_rendered(text).ok()?;
    template::chat(text, &ours, theirs, tokenizer, with).finding
}
