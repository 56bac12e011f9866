//! What was asked and what was answered: the only evidence there is of a server, kept so that it can be judged again.
//!
//! A recording is a JSON object with an array `exchanges`, each with `method`, `path`, `request`, `status` and
//! `response` (JSON; or `{"text": ...}` of what is none) or `error` (no answer). `golden/vllm` has the same form.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::MAX_BYTES;

/// The largest recording that is read, bytes.
const MAX_RECORDING: u64 = 512 << 20;
/// The name of what is no exchange: why no more was asked, and what was left out.
pub(super) const STOPPED: &str = "stopped";
/// Characters of a body that is no JSON which are kept.
const KEPT: usize = 2000;

/// A request and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// What it is for: `prompt`, `length 49`, `batch 8`.
    #[serde(default)]
    pub name: String,
    /// `GET` or `POST`.
    pub method: String,
    /// `/v1/completions`.
    pub path: String,
    /// The request's JSON.
    #[serde(default)]
    pub request: Value,
    /// Status code; 0 when there was no answer.
    #[serde(default)]
    pub status: u16,
    /// The answer's JSON, with null for numbers that JSON does not have; `{"text": ...}` of what is no JSON.
    #[serde(default)]
    pub response: Value,
    /// Numbers in the answer that JSON does not have: `NaN`, `Infinity`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_numbers: usize,
    /// Why there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Exchange {
    /// Whether there was an answer with a status of 2xx.
    pub fn ok(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Sets the answer from a body's bytes.
    pub(super) fn answered(&mut self, status: u16, body: &[u8]) {
        self.status = status;
        if body.len() as u64 > MAX_BYTES {
            let text = format!("an answer of {} bytes, which no prompt needs", body.len());
            self.response = json!({ "text": text });
            return;
        }
        let text = String::from_utf8_lossy(body);
        match serde_json::from_str(&text) {
            Ok(value) => self.response = value,
            // Python writes NaN and Infinity, which JSON does not have.
            Err(_) => match lenient(&text) {
                Some((value, n)) => (self.response, self.not_numbers) = (value, n),
                None => {
                    let kept: String = text.chars().take(KEPT).collect();
                    self.response = json!({ "text": kept });
                }
            },
        }
    }

    /// Whether it failed as answers do that hold numbers which JSON does not have: by an error of the server's own, or
    /// in words (Python: "Out of range float values are not JSON compliant").
    pub(super) fn failed_inside(&self) -> bool {
        self.status == 500
            || (400..600).contains(&self.status)
                && self.response.to_string().contains("not JSON compliant")
    }

    /// The beginning of the answer, for a message.
    pub(super) fn head(&self) -> String {
        match &self.error {
            Some(e) => e.clone(),
            None => {
                let text = match self.response.get("text").and_then(Value::as_str) {
                    Some(text) => text.to_owned(),
                    None => self.response.to_string(),
                };
                let head: String = text.chars().take(160).collect();
                format!("{}: {}", self.status, head.escape_debug())
            }
        }
    }
}

/// JSON with `NaN`, `Infinity` and `-Infinity` read as null, and how many there were.
fn lenient(text: &str) -> Option<(Value, usize)> {
    let (mut out, mut found) = (String::with_capacity(text.len()), 0);
    let (mut quoted, mut escaped) = (false, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|w| rest.starts_with(w));
        if let Some(word) = word.filter(|_| !quoted) {
            out += "null";
            found += 1;
            rest = &rest[word.len()..];
            continue;
        }
        match c {
            '"' if !escaped => quoted = !quoted,
            _ => {}
        }
        escaped = quoted && c == '\\' && !escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    (found > 0).then_some(())?;
    Some((serde_json::from_str(&out).ok()?, found))
}

/// The exchanges of a recording.
///
/// # Errors
/// When the file cannot be read or is no recording.
pub fn load(path: &Path) -> anyhow::Result<Vec<Exchange>> {
    #[derive(Deserialize)]
    struct Recording {
        exchanges: Vec<Exchange>,
    }
    let shown = path.display();
    let meta = std::fs::metadata(path).with_context(|| shown.to_string())?;
    ensure!(meta.is_file(), "{shown}: is no file; expected a recording that --record wrote");
    ensure!(
        meta.len() <= MAX_RECORDING,
        "{shown}: {} bytes are more than any recording has",
        meta.len()
    );
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    let recording: Recording = match serde_json::from_str(&text) {
        Ok(r) => r,
        Err(e) => bail!(
            "{shown}: expected a recording, an object with `exchanges` of method, path, request, status and response: {e}"
        ),
    };
    ensure!(!recording.exchanges.is_empty(), "{shown}: `exchanges` is empty: nothing was recorded");
    Ok(recording.exchanges)
}

/// A recording's text.
pub fn recording(url: &str, exchanges: &[Exchange]) -> String {
    let body = json!({ "assay_recording": 1, "url": url, "exchanges": exchanges });
    body.to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_counted_and_text_is_left_alone() {
        let mut e: Exchange =
            serde_json::from_value(json!({"method": "POST", "path": "/"})).expect("an exchange");
        e.answered(200, br#"{"a": NaN, "b": [-Infinity, 1.5], "c": "NaN \" Infinity"}"#);
        assert_eq!(e.not_numbers, 2);
        assert_eq!(e.response, json!({"a": null, "b": [null, 1.5], "c": "NaN \" Infinity"}));
        e.answered(502, b"<html>NaN");
        assert!(!e.ok(), "{e:?}");
    }
}
