//! What a server offers, which evidence that leaves, and requests that failed.

use assay_reference::checkpoint::Config;

use super::Model;
use super::evidence::{Evidence, Path};
use super::exchange::{Exchange, STOPPED};
use super::groups::{prompt_len, threshold};
use super::state::place;
use crate::audit::{self, Item};

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
    say("the text of answers: only token ids and log-probabilities are compared");
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
    out.extend(unanswered(exchanges, evidence));
    out
}

fn window(config: &Config, longest: usize, out: &mut Vec<String>) {
    let smallest = config.windows.iter().flatten().chain(&config.idle_window).min();
    if let Some(window) = smallest.filter(|w| **w >= longest) {
        out.push(format!("the sliding window of {window}: no prompt is longer"));
    }
}

fn completions(exchanges: &[Exchange]) -> impl Iterator<Item = (usize, &Exchange)> {
    exchanges.iter().enumerate().filter(|(_, e)| e.path.ends_with("/v1/completions"))
}

/// Completions that are held to be valid: what a server does not offer may fail in any way, the form that it does offer
/// may not.
fn asked(exchanges: &[Exchange]) -> impl Iterator<Item = (usize, &Exchange)> {
    completions(exchanges).filter(|(_, e)| !e.name.starts_with("offers "))
}

/// Whether there was no answer, or an error of the server's own.
fn failed(e: &Exchange) -> bool {
    e.error.is_some() || e.status == 0 || e.status >= 500
}

/// Valid requests that fail while others do not.
pub(super) fn failures(exchanges: &[Exchange], evidence: &Evidence) -> Option<Item> {
    let explained = |i: usize| evidence.not_finite.iter().any(|n| n.exchange == i);
    let bad: Vec<_> = asked(exchanges).filter(|(i, e)| failed(e) && !explained(*i)).collect();
    let good: Vec<_> = completions(exchanges).filter(|(_, e)| e.ok()).collect();
    let (first, _) = (bad.first()?, good.first()?);
    let lengths = |list: &[(usize, &Exchange)]| -> Vec<usize> {
        list.iter().filter_map(|(i, e)| prompt_len(e, evidence, *i)).collect()
    };
    let when =
        threshold(&lengths(&bad), &lengths(&good)).map_or(String::new(), |t| format!(" {t}"));
    let what = format!(
        "{} of {} requests fail{when}; the first: {}",
        bad.len(),
        bad.len() + good.len(),
        first.1.head()
    );
    Some(Item::new("server.request_fails", place(first.1), what))
}

/// Requests that say nothing of the model: refused ones, those of a server that answers none, and those that were not
/// sent any more.
fn unanswered(exchanges: &[Exchange], evidence: &Evidence) -> Vec<String> {
    let explained = |i: usize| evidence.not_finite.iter().any(|n| n.exchange == i);
    let named = |list: &[&Exchange], what: &str| {
        let first = list.first()?;
        let names: Vec<&str> = list.iter().map(|e| e.name.as_str()).collect();
        Some(format!("{}: {what}; the first: {}", audit::list(names), first.head()))
    };
    let refused: Vec<&Exchange> = asked(exchanges)
        .filter(|(i, e)| (300..500).contains(&e.status) && !explained(*i))
        .map(|(_, e)| e)
        .collect();
    let chats: Vec<&Exchange> =
        exchanges.iter().filter(|e| e.path.ends_with("/chat/completions") && !e.ok()).collect();
    let none = completions(exchanges).all(|(_, e)| !e.ok());
    let lost: Vec<&Exchange> =
        completions(exchanges).filter(|(_, e)| none && failed(e)).map(|(_, e)| e).collect();
    let mut out: Vec<String> = [
        named(&refused, "the server refused"),
        named(&chats, "not answered"),
        named(&lost, "no completion was answered"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let stopped = exchanges.iter().filter(|e| e.name == STOPPED);
    out.extend(stopped.filter_map(|e| e.error.clone()));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::server::evidence::NotFinite;

    fn completion(name: &str, length: usize, status: u16) -> Exchange {
        let error = (status == 0).then(|| "timeout".to_owned());
        serde_json::from_value(json!({
            "name": name, "method": "POST", "path": "/v1/completions", "status": status, "error": error,
            "request": { "prompt": vec![1; length] }, "response": { "text": "words" },
        }))
        .expect("an exchange")
    }

    #[test]
    fn no_answer_and_every_error_of_the_servers_own_is_a_finding_once_others_are_answered() {
        let good = completion("length 2", 2, 200);
        for status in [0, 500, 502, 503] {
            let all = [good.clone(), completion("length 7", 7, status)];
            let item = failures(&all, &Evidence::default()).expect("a finding");
            assert_eq!(item.code, "A4CB", "{item:?}");
            assert!(item.what.contains("1 of 2") && item.what.contains("7 to 7"), "{item:?}");
            // What an evidence of NaN explains is said by that.
            let mut nan = Evidence::default();
            nan.not_finite.push(NotFinite { exchange: 1, what: String::new() });
            assert_eq!(failures(&all, &nan), None);
            // Finding out what is offered may fail in any way.
            let all = [good.clone(), completion("offers logprobs", 7, status)];
            assert_eq!(failures(&all, &Evidence::default()), None);
        }
    }

    #[test]
    fn what_was_refused_or_not_sent_is_not_tested() {
        let good = completion("length 2", 2, 200);
        let mut stopped = completion(STOPPED, 0, 0);
        (stopped.path, stopped.error) = (String::new(), Some("not asked any more: `chat`".into()));
        let all = [good, completion("length 7", 7, 400), stopped];
        assert_eq!(failures(&all, &Evidence::default()), None);
        let said = unanswered(&all, &Evidence::default());
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("`length 7`: the server refused; the first: 400"), "{said:?}");
        assert!(said[1].contains("`chat`"), "{said:?}");
        let all = [completion("offers logprobs", 7, 0), completion("length 7", 7, 502)];
        assert_eq!(failures(&all, &Evidence::default()), None, "it answers nothing");
        assert!(unanswered(&all, &Evidence::default())[0].contains("no completion"));
    }
}
