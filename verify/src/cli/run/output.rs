//! What people see: the text as it is made, logits and log probabilities.

use assay_reference::checkpoint::Tokenizer;
use assay_reference::ops::argmax::argmax;

use super::prompts::Prompt;
use super::report::{Choice, Logit};
use crate::cli::JsonArgs;
use crate::report::Table;

/// Logits shown where nothing is generated.
const TOP: usize = 5;

/// Text as it is generated; ids where there is no tokenizer.
pub(super) struct Stream<'a> {
    tokenizer: Option<&'a Tokenizer>,
    json: &'a JsonArgs,
    ids: Vec<u32>,
    printed: String,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: Option<&'a Tokenizer>, json: &'a JsonArgs) -> Stream<'a> {
        Stream { tokenizer, json, ids: Vec::new(), printed: String::new() }
    }

    /// Prints what one more token adds, unless it ends inside a character.
    pub(super) fn show(&mut self, id: u32) {
        self.ids.push(id);
        let Some(Ok(text)) = self.tokenizer.map(|t| t.decode(&self.ids)) else { return };
        if !text.ends_with('\u{fffd}')
            && let Some(new) = text.strip_prefix(self.printed.as_str())
        {
            self.json.say(new);
            self.printed = text;
        }
    }

    /// Prints the rest and gives the whole text, if there is a tokenizer.
    /// A token that the tokenizer does not have is U+FFFD.
    pub(super) fn end(&self, ids: &[u32]) -> Option<String> {
        let Some(tokenizer) = self.tokenizer else {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            self.json.say(&(ids.join(",") + "\n"));
            return None;
        };
        let known = |id: &u32| tokenizer.token(*id).is_some();
        let mut text = String::new();
        for run in ids.chunk_by(|a, b| known(a) == known(b)) {
            match tokenizer.decode(run) {
                Ok(part) => text += &part,
                Err(_) => text.extend(run.iter().map(|_| '\u{fffd}')),
            }
        }
        let rest = text.strip_prefix(self.printed.as_str()).unwrap_or_default();
        self.json.say(&format!("{rest}\n"));
        Some(text)
    }
}

/// The prompts' texts and ids.
pub(super) fn prompts(prompts: &[Prompt]) -> String {
    let mut out = String::new();
    for (i, prompt) in prompts.iter().enumerate() {
        if prompts.len() > 1 {
            out += &format!("--- prompt {i} ---\n");
        }
        if let Some(text) = &prompt.text {
            out += text;
            out += if text.ends_with('\n') { "" } else { "\n" };
        }
        let ids: Vec<String> = prompt.ids.iter().map(u32::to_string).collect();
        out += &format!("[{} tokens: {}]\n", ids.len(), ids.join(","));
    }
    out
}

/// The largest logits. NaN comes first, as argmax has it.
pub(super) fn top(logits: &[f64], tokenizer: Option<&Tokenizer>) -> Vec<Logit> {
    let mut left = logits.to_vec();
    let mut out = Vec::new();
    for _ in 0..TOP.min(left.len()) {
        let id = argmax(&left);
        let token = id as u32;
        out.push(Logit { token, text: tokenizer.and_then(|t| t.token(token)), logit: left[id] });
        left[id] = f64::NEG_INFINITY;
    }
    out
}

pub(super) fn top_text(top: &[Logit]) -> String {
    let line = |l: &Logit| {
        let text = l.text.as_deref().unwrap_or_default();
        format!("{:>7}  {:>12.6}  {text}\n", l.token, l.logit)
    };
    top.iter().map(line).collect()
}

/// A row for each chosen token: its log probability, and the most likely ones.
pub(super) fn logprobs(steps: &[Choice]) -> String {
    let name = |c: &Choice| c.text.as_ref().map_or(c.token.to_string(), |t| format!("{t:?}"));
    let mut table = Table::new(&["step", "token", "logprob", "text", "most likely"]);
    for (i, step) in steps.iter().enumerate() {
        let best: Vec<String> =
            step.best.iter().map(|b| format!("{} {:.4}", name(b), b.logprob)).collect();
        let (token, logprob) = (step.token.to_string(), format!("{:.4}", step.logprob));
        let text = step.text.as_ref().map_or(String::new(), |t| format!("{t:?}"));
        table.row([i.to_string(), token, logprob, text, best.join(", ")]);
    }
    table.render()
}
