//! Chat templates, rendered byte for byte as transformers' `apply_chat_template` renders them.
//!
//! A template is a jinja2 program that comes with the model: a message list in, the prompt's text
//! out. A prompt that differs from the trained one by a newline still gives fluent answers, only
//! worse ones, so nothing here is approximated: where the engine (minijinja) and jinja2 differ,
//! Python's rule is implemented (`python`), or the template is refused.
//!
//! - `source`: where a checkpoint keeps its templates and special tokens;
//! - `engine`: the environment that transformers sets up, with limits, because a template is a
//!   program from somebody else;
//! - `dialect`: what is rewritten in a template's source;
//! - `python`, `strings`: Python's methods of strings, lists and dicts; `json`: `json.dumps`.
//!
//! Checked against transformers 5.24 in tests/checkpoint/chat.rs (golden/chat), which also lists
//! what is known to differ: rare filters are refused, some mistakes that jinja2 refuses are let
//! through (a loop over none), and `~` writes a float of 1e16 or more without an exponent.

mod builtins;
mod dialect;
mod engine;
mod json;
mod python;
mod source;
mod strings;
mod time;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::json::describe;
use crate::error::{Error, Result};

/// The chat templates of a checkpoint and the special tokens that they see.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTemplates {
    dir: PathBuf,
    /// In the order of the file; at least one.
    templates: Vec<source::Named>,
    /// `bos_token`, `eos_token` ... by name.
    special: Vec<(String, String)>,
    warnings: Vec<String>,
}

/// What is asked of a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatRequest {
    /// The conversation: objects with `role`, and usually `content`.
    pub messages: Vec<Value>,
    /// Tools as JSON schemas. `Some` of an empty list is not `None`: it selects `tool_use`.
    pub tools: Option<Vec<Value>>,
    /// Documents for retrieval, which few templates read.
    pub documents: Option<Vec<Value>>,
    /// Whether the text ends with the opening of the assistant's answer.
    pub add_generation_prompt: bool,
    /// A template's name where there are several (default: `tool_use` with tools, else `default`).
    pub template: Option<String>,
    /// More variables, such as `enable_thinking`; they win over the special tokens.
    pub arguments: Map<String, Value>,
}

impl ChatRequest {
    /// The messages of a JSON text: an array of messages, or an object with `messages` and
    /// optionally `tools`. `origin` is named in errors.
    ///
    /// # Errors
    /// [`Error::File`] when it is neither, or a message is not an object with a `role`.
    pub fn parse(text: &str, origin: &Path) -> Result<ChatRequest> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| Error::file(origin, format!("is not valid JSON: {e}")))?;
        let mut request = ChatRequest { add_generation_prompt: true, ..ChatRequest::default() };
        let messages = match value {
            Value::Array(messages) => messages,
            Value::Object(mut object) => {
                let unknown = object.keys().find(|k| !["messages", "tools"].contains(&k.as_str()));
                if let Some(key) = unknown {
                    let what = format!("holds `{}`: expected `messages` and `tools`", key);
                    return Err(Error::file(origin, what));
                }
                match object.remove("tools") {
                    None | Some(Value::Null) => {}
                    Some(tools) => request.tools = Some(objects(tools, "tools", origin)?),
                }
                match object.remove("messages") {
                    Some(messages) => objects(messages, "messages", origin)?,
                    None => return Err(Error::file(origin, "has no `messages`")),
                }
            }
            other => {
                let what = format!(
                    "must hold an array of messages, or an object with `messages`, but holds {}",
                    describe(&other)
                );
                return Err(Error::file(origin, what));
            }
        };
        for (i, message) in messages.iter().enumerate() {
            if !message.get("role").is_some_and(Value::is_string) {
                let what = format!(
                    "message {i} must be an object with a string `role`, but is {}",
                    describe(message)
                );
                return Err(Error::file(origin, what));
            }
        }
        if messages.is_empty() {
            return Err(Error::file(origin, "holds no message: a conversation needs at least one"));
        }
        request.messages = messages;
        Ok(request)
    }

    /// Tools from a JSON text: an array of objects. `origin` is named in errors.
    ///
    /// # Errors
    /// [`Error::File`] when it is not that.
    pub fn parse_tools(text: &str, origin: &Path) -> Result<Vec<Value>> {
        let value = serde_json::from_str(text)
            .map_err(|e| Error::file(origin, format!("is not valid JSON: {e}")))?;
        objects(value, "tools", origin)
    }
}

fn objects(value: Value, name: &str, origin: &Path) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) if items.iter().all(Value::is_object) => Ok(items),
        other => Err(Error::file(
            origin,
            format!("`{name}` must be an array of objects, but is {}", describe(&other)),
        )),
    }
}

impl ChatTemplates {
    /// Reads the templates in `dir`, in transformers' order of precedence: `chat_template.jinja`
    /// and `additional_chat_templates/*.jinja`, else `chat_template` of `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`Error::File`] when there is no template, or a file is malformed.
    pub fn open(dir: &Path) -> Result<ChatTemplates> {
        source::open(dir)
    }

    /// The templates' names, with the file of each.
    pub fn names(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.templates.iter().map(|t| (t.name.as_str(), t.origin.as_path()))
    }

    /// What is odd about the files though they can be used: two templates that differ.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The special tokens that templates see: `eos_token` and its text.
    pub fn special_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.special.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// The prompt's text. Encode it with
    /// [`encode_rendered`](super::Tokenizer::encode_rendered): it has its special tokens already.
    ///
    /// As transformers does, a message's keys that are null are dropped before the template sees
    /// them, and `thinking` and `reasoning` also appear as `reasoning_content`.
    ///
    /// # Errors
    /// [`Error::Request`] for no message or an unknown template; [`Error::File`] naming the
    /// template when it is not valid, refuses the conversation (`raise_exception`), fails, or
    /// exceeds its limits.
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        if request.messages.is_empty() {
            return Err(Error::Request(
                "the conversation is empty: give at least one message".into(),
            ));
        }
        if let Some(message) = request.messages.iter().find(|m| !m.is_object()) {
            let what = format!("a message must be an object, but is {}", describe(message));
            return Err(Error::Request(what));
        }
        let template = self.pick(request)?;
        let variables = source::variables(&self.special, request);
        engine::render(template, &variables)
    }

    fn pick(&self, request: &ChatRequest) -> Result<&source::Named> {
        let named = |name: &str| self.templates.iter().find(|t| t.name == name);
        let names: Vec<String> = self.names().map(|(n, _)| format!("`{n}`")).collect();
        let names = names.join(", ");
        if let Some(name) = &request.template {
            return named(name).ok_or_else(|| {
                let what = format!("there is no chat template `{name}`: expected one of {names}");
                Error::file(&self.dir, what)
            });
        }
        let tools = request.tools.as_ref().and_then(|_| named("tool_use"));
        tools.or_else(|| named("default")).ok_or_else(|| {
            let what = format!("no chat template is called `default`: choose one of {names}");
            Error::file(&self.dir, what)
        })
    }
}

/// Renders a template's text with `variables` only, without the rules for conversations.
///
/// # Errors
/// As [`ChatTemplates::render`]; `origin` is named.
pub fn render_text(text: &str, origin: &Path, variables: &Map<String, Value>) -> Result<String> {
    let template =
        source::Named { name: "text".into(), text: text.into(), origin: origin.to_path_buf() };
    engine::render(&template, variables)
}
