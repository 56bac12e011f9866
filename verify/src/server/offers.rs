//! What a server offers, which evidence that leaves, and requests that failed.

use assay_reference::checkpoint::Config;

use super::Model;
use super::evidence::{Evidence, Path};
use super::exchange::Exchange;
use super::groups::{prompt_len, threshold};
use super::state::place;
use crate::audit::Item;

/// The longest prompt of the evidence.
fn longest(evidence: &Evidence) -> usize {
    evidence.rows.iter().map(|r| r.prompt).max().unwrap_or(0)
}

fn scored(evidence: &Evidence, path: Path) -> usize {
    evidence.rows.iter().filter(|r| r.path == path && !r.items.is_empty()).count()
}

/// One line for each thing that it offers.
pub(super) fn offers(exchanges: &[Exchange], evidence: &Evidence) -> Vec<String> {
    let mut out = Vec::new();
    let version = exchanges.iter().find(|e| e.path == "/version" && e.ok());
    if let Some(v) = version.and_then(|e| e.response["version"].as_str()) {
        let shown: String = v.chars().take(60).collect();
        out.push(format!("version {}", shown.escape_debug()));
    }
    let any = |what: &dyn Fn(&Exchange) -> bool| exchanges.iter().any(|e| e.ok() && what(e));
    if any(&|e| {
        e.response["choices"][0]["prompt_logprobs"].is_array()
            || e.response["prompt_logprobs"].is_array()
    }) {
        out.push("prompt_logprobs: every position of a prompt, with rivals".into());
    }
    let scored_tokens =
        |e: &Exchange| !e.response["choices"][0]["logprobs"]["token_logprobs"].is_null();
    if any(&|e| e.request["echo"] == true && scored_tokens(e)) {
        out.push("echo with logprobs: every position of a prompt".into());
    }
    if any(&|e| e.request["echo"] != true && scored_tokens(e)) {
        out.push("logprobs: every generated token".into());
    }
    if any(&|e| e.response["choices"][0]["logprobs"]["content"].is_array()) {
        out.push("chat with logprobs".into());
    }
    if any(&|e| e.path == "/tokenize") {
        out.push("/tokenize: token ids, chat template".into());
    }
    let count = |path| scored(evidence, path);
    out.push(format!(
        "evidence: {} positions of prompts, {} behind a prompt, {} of decoding; prompts of up to {} tokens",
        count(Path::Prompt),
        count(Path::First),
        count(Path::Decode),
        longest(evidence)
    ));
    out
}

/// What that evidence cannot show.
pub(super) fn not_tested(
    exchanges: &[Exchange],
    evidence: &Evidence,
    model: &Model<'_>,
) -> Vec<String> {
    let mut out = Vec::new();
    let mut say = |what: &str| out.push(what.to_owned());
    if scored(evidence, Path::Prompt) == 0 {
        say(
            "positions within a prompt: the server tells neither prompt_logprobs nor echo with logprobs",
        );
    }
    if scored(evidence, Path::Decode) == 0 {
        say("decoding: no log-probabilities of tokens behind generated ones");
    }
    if !exchanges.iter().any(|e| e.path == "/tokenize" && e.ok()) {
        say(
            "tokenizer and chat template at the server: no /tokenize; compare a prompt from its log with `assay template --captured`",
        );
    }
    if model.templates.is_none() {
        say("chat: the model's folder has no chat template that can be read");
    }
    let named = |mark: &str| exchanges.iter().any(|e| e.name.starts_with(mark) && e.ok());
    if !named("batch") {
        say("a batch: no requests at the same time");
    }
    if !named("cache") {
        say("prompts whose beginning is cached");
    }
    let longest = longest(evidence);
    say(&format!(
        "prompts of more than {longest} tokens: long contexts, chunked prefill (engines cut at 512 to 8192 tokens); --tokens N asks longer ones"
    ));
    window(model.checkpoint.config(), longest, &mut out);
    out
}

fn window(config: &Config, longest: usize, out: &mut Vec<String>) {
    let smallest = config.windows.iter().flatten().chain(&config.idle_window).min();
    if let Some(window) = smallest.filter(|w| **w >= longest) {
        out.push(format!("the sliding window of {window}: no prompt is longer"));
    }
}

/// Valid requests that fail while others do not.
pub(super) fn failures(exchanges: &[Exchange], evidence: &Evidence) -> Option<Item> {
    let completion = |e: &&(usize, &Exchange)| e.1.path.ends_with("/v1/completions");
    let all: Vec<(usize, &Exchange)> = exchanges.iter().enumerate().collect();
    let explained = |i: usize| evidence.not_finite.iter().any(|n| n.exchange == i);
    let failed: Vec<_> = all
        .iter()
        .filter(completion)
        .filter(|(i, e)| e.status == 500 && !explained(*i))
        // What a server does not offer may fail in any way; the form that it does offer may not.
        .filter(|(_, e)| !e.name.starts_with("offers "))
        .collect();
    let good: Vec<_> = all.iter().filter(completion).filter(|(_, e)| e.ok()).collect();
    let (first, _) = (failed.first()?, good.first()?);
    let lengths = |list: &[&(usize, &Exchange)]| -> Vec<usize> {
        list.iter().filter_map(|(i, e)| prompt_len(e, evidence, *i)).collect()
    };
    let when =
        threshold(&lengths(&failed), &lengths(&good)).map_or(String::new(), |t| format!(" {t}"));
    let what = format!(
        "{} of {} requests fail{when}; the first: {}",
        failed.len(),
        failed.len() + good.len(),
        first.1.head()
    );
    Some(Item::new("server.request_fails", place(first.1), what))
}
