//! Prompts: text, token ids or conversations, from flags and files.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use assay_reference::checkpoint::{ChatRequest, ChatTemplates, Tokenizer};
use clap::Args;
use serde_json::{Map, Value, json};

use super::say;

/// Where prompts come from: one kind at a time.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prompts (one kind)")]
pub(super) struct PromptArgs {
    /// Text to continue; needs tokenizer.json. Several make a batch
    #[arg(long, value_name = "TEXT", group = "kind")]
    prompt: Vec<String>,
    /// File of prompts: a text a line, or (named .jsonl) a JSON value a line: a string, an array of ids or of messages, or an object with `prompt`, `ids` or `messages` and `tools`
    #[arg(long, value_name = "FILE", group = "kind")]
    prompts: Option<PathBuf>,
    /// Token ids to continue
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', group = "kind")]
    ids: Vec<u32>,
    /// What the user says in a conversation of one turn, through the model's chat template. Several make a batch
    #[arg(long, value_name = "TEXT", group = "kind")]
    chat: Vec<String>,
    /// JSON file of a conversation: an array of messages with `role` and `content`, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE", group = "kind")]
    messages: Option<PathBuf>,
    /// System message before --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// JSON file of tools for conversations: an array of objects
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Sets enable_thinking=false, which Qwen3's template honours
    #[arg(long)]
    no_thinking: bool,
    /// A variable for the chat template; V is JSON, else a string
    #[arg(long, value_name = "K=V")]
    template_arg: Vec<String>,
    /// Which chat template, where the model has several
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Print the prompts' text and token ids, and run nothing
    #[arg(long)]
    print_prompt: bool,
}

impl PromptArgs {
    pub(super) fn print_prompt(&self) -> bool {
        self.print_prompt
    }
}

/// A prompt.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    /// The text, a conversation's as rendered; `None` when ids were given.
    pub(super) text: Option<String>,
    pub(super) ids: Vec<u32>,
    /// Where it comes from, for errors.
    origin: String,
}

impl Prompt {
    /// An error about this prompt, which is one of `all`.
    pub(super) fn blame(&self, all: usize, e: assay_reference::Error) -> anyhow::Error {
        if all > 1 { anyhow::anyhow!("{}: {e}", self.origin) } else { e.into() }
    }
}

/// A prompt before it is tokens.
enum Source {
    Text(String),
    Ids(Vec<u32>),
    Chat(ChatRequest),
}

/// The tokenizer, if there is one; an error if one is needed.
pub(super) fn tokenizer(model: &Path, args: &PromptArgs) -> anyhow::Result<Option<Tokenizer>> {
    let needed = !args.prompt.is_empty() || !args.chat.is_empty() || args.messages.is_some();
    if needed || model.join("tokenizer.json").exists() {
        return Ok(Some(Tokenizer::open(model)?));
    }
    Ok(None)
}

/// All prompts, as tokens.
pub(super) fn read(
    model: &Path,
    args: &PromptArgs,
    tokenizer: Option<&Tokenizer>,
) -> anyhow::Result<Vec<Prompt>> {
    let sources = sources(args)?;
    if sources.is_empty() {
        match &args.prompts {
            Some(path) => bail!("{}: there is no prompt in this file", path.display()),
            None => bail!(
                "the prompt is empty: give --prompt TEXT, --chat TEXT, --messages FILE, \
                 --prompts FILE or --ids 1,2,3"
            ),
        }
    }
    if args.system.is_some() && args.chat.is_empty() {
        bail!("--system is for --chat: --messages has its own system message, plain text has none");
    }
    let chats = sources.iter().any(|(_, s)| matches!(s, Source::Chat(_)));
    check_chat_flags(args, chats)?;
    let templates = if chats { Some(ChatTemplates::open(model)?) } else { None };
    for warning in templates.iter().flat_map(ChatTemplates::warnings) {
        say(&format!("warning: {warning}\n"), true);
    }
    let all = sources.len();
    let mut out = Vec::with_capacity(all);
    for (origin, source) in sources {
        let prompt = resolve(model, args, tokenizer, templates.as_ref(), source);
        let (text, ids) = if all > 1 { prompt.with_context(|| origin.clone())? } else { prompt? };
        out.push(Prompt { text, ids, origin });
    }
    Ok(out)
}

fn check_chat_flags(args: &PromptArgs, chats: bool) -> anyhow::Result<()> {
    let given = [
        ("--tools", args.tools.is_some()),
        ("--no-thinking", args.no_thinking),
        ("--template-arg", !args.template_arg.is_empty()),
        ("--template", args.template.is_some()),
    ];
    match given.iter().find(|(_, given)| *given && !chats) {
        Some((flag, _)) => bail!("{flag} is for conversations: give --chat or --messages"),
        None => Ok(()),
    }
}

fn resolve(
    model: &Path,
    args: &PromptArgs,
    tokenizer: Option<&Tokenizer>,
    templates: Option<&ChatTemplates>,
    source: Source,
) -> anyhow::Result<(Option<String>, Vec<u32>)> {
    let opened;
    let tokenizer = match (&source, tokenizer) {
        (Source::Ids(_), _) => None,
        (_, Some(tokenizer)) => Some(tokenizer),
        // The error says what to do.
        (_, None) => {
            opened = Tokenizer::open(model)?;
            Some(&opened)
        }
    };
    match (source, tokenizer, templates) {
        (Source::Text(text), Some(t), _) => {
            let ids = t.encode(&text)?;
            Ok((Some(text), ids))
        }
        (Source::Chat(request), Some(t), Some(templates)) => {
            let text = templates.render(&with_flags(request, args)?)?;
            let ids = t.encode_rendered(&text)?;
            Ok((Some(text), ids))
        }
        (Source::Ids(ids), ..) => Ok((None, ids)),
        (Source::Text(_) | Source::Chat(_), ..) => bail!("there is no tokenizer or no template"),
    }
}

/// A conversation with what the flags add to it.
fn with_flags(mut request: ChatRequest, args: &PromptArgs) -> anyhow::Result<ChatRequest> {
    if let Some(path) = &args.tools {
        let text = read_text(path)?;
        request.tools = Some(ChatRequest::parse_tools(&text, path)?);
    }
    request.arguments = arguments(args.no_thinking, &args.template_arg)?;
    request.template.clone_from(&args.template);
    Ok(request)
}

/// Variables for a chat template, from flags.
pub(in crate::cli) fn arguments(
    no_thinking: bool,
    pairs: &[String],
) -> anyhow::Result<Map<String, Value>> {
    let mut arguments = Map::new();
    if no_thinking {
        arguments.insert("enable_thinking".into(), false.into());
    }
    for pair in pairs {
        let Some((name, value)) = pair.split_once('=').filter(|(k, _)| !k.is_empty()) else {
            bail!("--template-arg {pair}: expected NAME=VALUE");
        };
        if ["messages", "tools", "documents", "add_generation_prompt"].contains(&name) {
            bail!("--template-arg {pair}: `{name}` is the conversation's own");
        }
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        arguments.insert(name.into(), value);
    }
    Ok(arguments)
}

/// The largest file of prompts or messages.
const MAX_BYTES: u64 = 64 << 20;

/// The text of a file of prompts or messages.
pub(in crate::cli) fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_bytes(path)?).with_context(|| format!("{}", path.display()))
}

/// The bytes of such a file.
pub(in crate::cli) fn read_bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    let file = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    let read = read.with_context(|| format!("{}", path.display()))?;
    if read as u64 > MAX_BYTES {
        bail!("{}: has more than {MAX_BYTES} bytes, which no prompt has", path.display());
    }
    Ok(bytes)
}

fn sources(args: &PromptArgs) -> anyhow::Result<Vec<(String, Source)>> {
    let mut out = Vec::new();
    for (i, text) in args.prompt.iter().enumerate() {
        out.push((format!("prompt {i}"), Source::Text(text.clone())));
    }
    if !args.ids.is_empty() {
        out.push(("--ids".into(), Source::Ids(args.ids.clone())));
    }
    for (i, text) in args.chat.iter().enumerate() {
        let system = args.system.iter().map(|s| json!({ "role": "system", "content": s }));
        let user = json!({ "role": "user", "content": text });
        out.push((format!("chat {i}"), Source::Chat(chat(system.chain([user]).collect()))));
    }
    if let Some(path) = &args.messages {
        let request = ChatRequest::parse(&read_text(path)?, path)?;
        out.push((path.display().to_string(), Source::Chat(request)));
    }
    if let Some(path) = &args.prompts {
        let lines = path.extension().is_some_and(|e| e == "jsonl");
        for (i, line) in read_text(path)?.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let origin = format!("{}:{}", path.display(), i + 1);
            let source =
                if lines { json_line(line, &origin)? } else { Source::Text(line.to_owned()) };
            out.push((origin, source));
        }
    }
    Ok(out)
}

fn chat(messages: Vec<Value>) -> ChatRequest {
    ChatRequest { messages, add_generation_prompt: true, ..ChatRequest::default() }
}

/// A line of a .jsonl file.
fn json_line(line: &str, origin: &str) -> anyhow::Result<Source> {
    let value: Value =
        serde_json::from_str(line).with_context(|| format!("{origin}: is not valid JSON"))?;
    let ids = |value: &Value| -> Option<Vec<u32>> {
        value.as_array()?.iter().map(|v| v.as_u64().and_then(|n| n.try_into().ok())).collect()
    };
    match &value {
        Value::String(text) => return Ok(Source::Text(text.clone())),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            if let Some(ids) = ids(&value) {
                return Ok(Source::Ids(ids));
            }
        }
        Value::Array(_) => return Ok(Source::Chat(ChatRequest::parse(line, Path::new(origin))?)),
        Value::Object(object) if object.contains_key("messages") => {
            return Ok(Source::Chat(ChatRequest::parse(line, Path::new(origin))?));
        }
        Value::Object(object) if object.len() == 1 => {
            if let Some(text) = object.get("prompt").and_then(Value::as_str) {
                return Ok(Source::Text(text.to_owned()));
            }
            if let Some(ids) = object.get("ids").and_then(ids) {
                return Ok(Source::Ids(ids));
            }
        }
        _ => {}
    }
    bail!(
        "{origin}: expected a string, an array of token ids or of messages, or an object with \
         `prompt`, `ids`, or `messages` and `tools`"
    )
}
