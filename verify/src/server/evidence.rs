//! What exchanges say about a model: rows of log-probabilities, each with the tokens before it, and signs of logits
//! that are no numbers.

use std::collections::HashMap;

use assay_reference::checkpoint::Tokenizer;
use serde_json::Value;

use super::exchange::Exchange;

/// At and below this a log-probability was clamped: vLLM writes -9999, others f32's lowest.
const CLAMPED: f64 = -9998.0;
/// The longest prompt that is read.
const MOST_PROMPT: usize = 8192;
/// The most tokens before all rows together: a recording can be of any size.
const MOST_TOKENS: usize = 40 << 20;

/// How a row was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// Within the prompt.
    Prompt,
    /// Behind the prompt's last token.
    First,
    /// Behind a generated token.
    Decode,
}

/// Log-probabilities behind some tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The exchange that told them.
    pub exchange: usize,
    /// Prompt and what was generated before, up to the token that they are behind.
    pub prefix: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// How it was computed.
    pub path: Path,
    /// (token, natural logarithm of its probability).
    pub items: Vec<(u32, f64)>,
    /// The token that was taken at temperature 0.
    pub taken: Option<u32>,
}

/// Something that is no number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// The exchange.
    pub exchange: usize,
    /// What was seen.
    pub what: String,
}

/// What the exchanges say.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Rows, in the order of the exchanges.
    pub rows: Vec<Row>,
    /// Signs of logits that are no numbers.
    pub not_finite: Vec<NotFinite>,
    /// (exchange, ids that were given, ids that the server ran).
    pub changed: Vec<(usize, Vec<u32>, Vec<u32>)>,
    /// Exchanges whose rows could not be used, or not all of them, and why.
    pub unused: Vec<(usize, String)>,
    /// Tokens before all rows together.
    tokens: usize,
}

/// Why a row is not kept.
const MORE: &str = "it has more tokens than were asked for: the rest was not read";
/// The same.
const FULL: &str = "it is more than is read at a time: prompts of 8192 tokens";

/// Finds ids of token strings.
pub(super) struct Strings<'a> {
    tokenizer: Option<&'a Tokenizer>,
    map: Option<HashMap<String, Option<u32>>>,
}

impl<'a> Strings<'a> {
    pub(super) fn new(tokenizer: Option<&'a Tokenizer>) -> Strings<'a> {
        Strings { tokenizer, map: None }
    }

    /// The id of a token as a server writes it: `token_id:12`, or text that no other token has.
    fn id(&mut self, text: &str) -> Option<u32> {
        if let Some(id) = text.strip_prefix("token_id:") {
            return id.parse().ok();
        }
        let tokenizer = self.tokenizer?;
        let map = self.map.get_or_insert_with(|| {
            let mut map = HashMap::new();
            for id in 0..tokenizer.len() as u32 {
                if let Ok(text) = tokenizer.decode(&[id]) {
                    map.entry(text).and_modify(|v| *v = None).or_insert(Some(id));
                }
            }
            map
        });
        map.get(text).copied().flatten()
    }
}

/// Reads the evidence. `chat` is the ids that the model's template makes of a conversation.
pub(super) fn read(
    exchanges: &[Exchange],
    tokenizer: Option<&Tokenizer>,
    chat: &dyn Fn(&Value) -> Option<Vec<u32>>,
) -> Evidence {
    let mut out = Evidence::default();
    let mut strings = Strings::new(tokenizer);
    for (i, e) in exchanges.iter().enumerate() {
        let is_chat = e.path.ends_with("/chat/completions");
        if !e.path.ends_with("/completions") || !e.ok() {
            continue;
        }
        if e.not_numbers > 0 {
            let what = format!("{} numbers are NaN or Infinity", e.not_numbers);
            out.not_finite.push(NotFinite { exchange: i, what });
        }
        let given = match is_chat {
            true => e.request.get("messages").and_then(chat),
            false => prompt(&e.request["prompt"], tokenizer),
        };
        One { e, i, given, strings: &mut strings, out: &mut out }.read(is_chat);
    }
    for (i, e) in exchanges.iter().enumerate() {
        if let Some(what) = refused(exchanges, e) {
            out.not_finite.push(NotFinite { exchange: i, what });
        }
    }
    out
}

/// Whether a request failed for its log-probabilities alone.
fn refused(exchanges: &[Exchange], e: &Exchange) -> Option<String> {
    let wants = |e: &Exchange| {
        ["logprobs", "prompt_logprobs", "top_logprobs"]
            .iter()
            .any(|f| !matches!(e.request.get(*f), None | Some(Value::Null | Value::Bool(false))))
    };
    // A gateway's words, and what a server does not know how to do, are no evidence.
    if !e.path.ends_with("/completions") || !e.failed_inside() || !wants(e) {
        return None;
    }
    let key = |e: &Exchange| e.request.get("prompt").or(e.request.get("messages")).cloned();
    let asked = key(e)?;
    let mut same =
        exchanges.iter().filter(|o| o.path == e.path && o.ok() && key(o).as_ref() == Some(&asked));
    // Told in another form: the numbers are there, and this form is not offered.
    if same.clone().any(wants) {
        return None;
    }
    let twin = same.next()?;
    Some(format!(
        "the request answers {} with log-probabilities and {} without: they could not be written as JSON",
        e.status, twin.status
    ))
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|v| u32::try_from(v.as_u64()?).ok()).collect()
}

fn prompt(value: &Value, tokenizer: Option<&Tokenizer>) -> Option<Vec<u32>> {
    match value {
        Value::String(text) => tokenizer?.encode(text).ok(),
        _ => ids(value),
    }
}

/// One answer.
struct One<'a, 's> {
    e: &'a Exchange,
    i: usize,
    given: Option<Vec<u32>>,
    strings: &'a mut Strings<'s>,
    out: &'a mut Evidence,
}

impl One<'_, '_> {
    fn read(&mut self, is_chat: bool) {
        let response = &self.e.response;
        let choice = &response["choices"][0];
        let said = ids(&choice["prompt_token_ids"]).or_else(|| ids(&response["prompt_token_ids"]));
        if let (Some(given), Some(said)) = (&self.given, &said)
            && given != said
        {
            self.out.changed.push((self.i, given.clone(), said.clone()));
        }
        let Some(prompt) = said.or_else(|| self.given.clone()).filter(|p| !p.is_empty()) else {
            self.unused("the prompt's token ids are not known");
            return;
        };
        let before = self.out.tokens;
        if prompt.len() > MOST_PROMPT || before + prompt.len() * prompt.len() / 2 > MOST_TOKENS {
            self.unused(FULL);
            return;
        }
        let scored = match &choice["prompt_logprobs"] {
            Value::Null => &response["prompt_logprobs"],
            list => list,
        };
        if let Some(list) = scored.as_array() {
            self.prompt_logprobs(list, &prompt);
        }
        let logprobs = &choice["logprobs"];
        let (tokens, rows) = match is_chat {
            true => chat_rows(logprobs),
            false => completion_rows(logprobs),
        };
        let echo = self.e.request["echo"].as_bool() == Some(true);
        let said = ids(&choice["token_ids"]);
        self.generated(&prompt, said, &tokens, &rows, echo);
    }

    fn unused(&mut self, why: &str) {
        let said = (self.i, why.to_owned());
        if self.out.unused.last() != Some(&said) {
            self.out.unused.push(said);
        }
    }

    /// vLLM's `prompt_logprobs`: null, then for each token a map from id to `logprob` and `rank`.
    fn prompt_logprobs(&mut self, list: &[Value], prompt: &[u32]) {
        if list.len() != prompt.len() {
            self.unused("prompt_logprobs are not as many as the prompt's tokens");
            return;
        }
        for (i, at) in list.iter().enumerate().skip(1) {
            let Some(map) = at.as_object() else {
                self.not_finite(format!("prompt_logprobs[{i}] is {}", shown(at)));
                continue;
            };
            let mut items = Vec::with_capacity(map.len());
            for (id, value) in map {
                let Ok(id) = id.parse() else { continue };
                let value = value.get("logprob").unwrap_or(value);
                if let Some(lp) = self.number(value, &format!("prompt_logprobs[{i}]")) {
                    items.push((id, lp));
                }
            }
            if !self.row(&prompt[..i], prompt.len(), Path::Prompt, items, None) {
                return;
            }
        }
    }

    /// `logprobs` of what was generated, with `echo` of the prompt before it.
    fn generated(
        &mut self,
        prompt: &[u32],
        said: Option<Vec<u32>>,
        tokens: &[&str],
        rows: &[Told<'_>],
        echo: bool,
    ) {
        let before = if echo { 0 } else { prompt.len() };
        let mut all = prompt[..before].to_vec();
        let greedy = self.e.request["temperature"].as_f64() == Some(0.0);
        let end = prompt.len() + self.asked();
        for (j, told) in rows.iter().enumerate() {
            let at = before + j;
            if at >= end {
                self.unused(MORE);
                return;
            }
            let id = match &said {
                _ if at < prompt.len() => Some(prompt[at]),
                Some(said) => said.get(at - prompt.len()).copied(),
                None => None,
            };
            let id = id.or_else(|| self.strings.id(tokens.get(j)?));
            let Some(id) = id else {
                self.unused(
                    "the ids of generated tokens are not known: the text of one is that of several",
                );
                return;
            };
            if at == 0 {
                all.push(id);
                continue;
            }
            let place = format!("logprobs[{j}]");
            let mut items = Vec::new();
            if let Some(lp) = self.number(told.own, &place) {
                items.push((id, lp));
            }
            for (text, value) in &told.rivals {
                let Some(rival) = self.strings.id(text) else { continue };
                if items.iter().all(|(i, _)| *i != rival)
                    && let Some(lp) = self.number(value, &place)
                {
                    items.push((rival, lp));
                }
            }
            let path = match at.cmp(&prompt.len()) {
                std::cmp::Ordering::Less => Path::Prompt,
                std::cmp::Ordering::Equal => Path::First,
                std::cmp::Ordering::Greater => Path::Decode,
            };
            let taken = (greedy && path != Path::Prompt).then_some(id);
            if !self.row(&all, prompt.len(), path, items, taken) {
                return;
            }
            all.push(id);
        }
        // Nothing was told of their probabilities: the tokens themselves.
        if rows.is_empty() && greedy {
            let Some(said) = said else { return };
            for (j, &id) in said.iter().enumerate() {
                let path = if j == 0 { Path::First } else { Path::Decode };
                if all.len() >= end {
                    self.unused(MORE);
                    return;
                }
                if !self.row(&all, prompt.len(), path, Vec::new(), Some(id)) {
                    return;
                }
                all.push(id);
            }
        }
    }

    /// The most tokens that were to be generated.
    fn asked(&self) -> usize {
        let fields = ["max_tokens", "max_completion_tokens"];
        let asked = fields.iter().find_map(|f| self.e.request[*f].as_u64());
        asked.and_then(|n| usize::try_from(n).ok()).unwrap_or(MOST_PROMPT).min(MOST_PROMPT)
    }

    /// Keeps a row; false when there is no room for it.
    fn row(
        &mut self,
        prefix: &[u32],
        prompt: usize,
        path: Path,
        items: Vec<(u32, f64)>,
        taken: Option<u32>,
    ) -> bool {
        if items.is_empty() && taken.is_none() {
            return true;
        }
        if self.out.tokens + prefix.len() > MOST_TOKENS {
            self.unused(FULL);
            return false;
        }
        self.out.tokens += prefix.len();
        let prefix = prefix.to_vec();
        self.out.rows.push(Row { exchange: self.i, prefix, prompt, path, items, taken });
        true
    }

    /// A finite number, else a sign.
    fn number(&mut self, value: &Value, place: &str) -> Option<f64> {
        match value.as_f64() {
            Some(lp) if lp > CLAMPED && lp.is_finite() => Some(lp),
            Some(lp) => {
                self.not_finite(format!(
                    "{place} is {lp:e}: clamped, of a logit that is NaN or -inf"
                ));
                None
            }
            None => {
                self.not_finite(format!("{place} is {}", shown(value)));
                None
            }
        }
    }

    fn not_finite(&mut self, what: String) {
        // One sign an exchange is enough.
        if self.out.not_finite.last().is_none_or(|n| n.exchange != self.i) {
            self.out.not_finite.push(NotFinite { exchange: self.i, what });
        }
    }
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

/// What was told of one generated token.
struct Told<'a> {
    own: &'a Value,
    rivals: Vec<(&'a str, &'a Value)>,
}

/// OpenAI's completions: arrays `tokens`, `token_logprobs`, `top_logprobs`.
fn completion_rows(logprobs: &Value) -> (Vec<&str>, Vec<Told<'_>>) {
    let array = |name: &str| logprobs[name].as_array().map_or(&[][..], Vec::as_slice);
    let tokens = array("tokens").iter().map(|t| t.as_str().unwrap_or("")).collect();
    let top = array("top_logprobs");
    let told = |(j, own)| {
        let map = top.get(j).and_then(Value::as_object);
        let rivals = map.map_or(Vec::new(), |m| m.iter().map(|(k, v)| (k.as_str(), v)).collect());
        Told { own, rivals }
    };
    (tokens, array("token_logprobs").iter().enumerate().map(told).collect())
}

/// Chat's: an array `content` of `token`, `logprob`, `top_logprobs`.
fn chat_rows(logprobs: &Value) -> (Vec<&str>, Vec<Told<'_>>) {
    let content = logprobs["content"].as_array().map_or(&[][..], Vec::as_slice);
    let tokens = content.iter().map(|c| c["token"].as_str().unwrap_or("")).collect();
    let rows = content
        .iter()
        .map(|c| {
            let top = c["top_logprobs"].as_array().map_or(&[][..], Vec::as_slice);
            let rivals =
                top.iter().filter_map(|t| Some((t["token"].as_str()?, &t["logprob"]))).collect();
            Told { own: &c["logprob"], rivals }
        })
        .collect();
    (tokens, rows)
}

#[cfg(test)]
mod tests;
