//! `assay template`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use assay_reference::checkpoint::{ChatRequest, ChatTemplates, Tokenizer};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};

use super::run::prompts::{arguments, read_bytes, read_text};
use super::{FINDINGS, JsonArgs, PASS, SKIPPED, say};
use crate::http::Client;
use crate::report::{Envelope, text, write_json};
use crate::template::{self, Captured, Comparison};

/// What to render, and what to compare it with.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 the same, or no comparison asked for, 1 a difference, 2 bad usage, unreadable input or no answer, 3 something
that was to be compared could not be: the server does not offer it.

Examples:
  assay template MODEL --messages chat.json                         the prompt's text and ids
  assay template MODEL --messages chat.json --captured prompt.txt   against a prompt from a log: text, a JSON string, or ids
  assay template MODEL --messages chat.json --server http://127.0.0.1:8000   against vLLM's /tokenize")]
pub(super) struct TemplateArgs {
    /// Folder of the checkpoint: tokenizer.json and the chat template
    model: PathBuf,
    /// JSON file of a conversation: an array of messages, or an object with `messages` and `tools`
    #[arg(long, value_name = "FILE")]
    messages: PathBuf,
    /// JSON file of tools: an array of objects
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// The prompt that a server really used: text, a JSON string, or a JSON array of token ids
    #[arg(long, value_name = "FILE")]
    captured: Option<PathBuf>,
    /// A server with /tokenize (vLLM): http://HOST:PORT
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// The model's name at the server [default: the first of /v1/models]
    #[arg(long, value_name = "NAME", requires = "server")]
    served_model: Option<String>,
    /// Environment variable with the server's key, which is sent to no other address and never shown
    #[arg(long, value_name = "VAR", requires = "server")]
    api_key_env: Option<String>,
    /// Seconds that a request may take
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Sets enable_thinking=false, which Qwen3's template honours
    #[arg(long)]
    no_thinking: bool,
    /// A variable for the chat template; V is JSON, else a string
    #[arg(long, value_name = "K=V")]
    template_arg: Vec<String>,
    /// Without the opening of the assistant's answer
    #[arg(long)]
    no_generation_prompt: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Body {
    bytes: usize,
    text: String,
    ids: Vec<u32>,
    comparisons: Vec<Comparison>,
    not_compared: Vec<String>,
}

pub(super) fn run(args: &TemplateArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let mut request = ChatRequest::parse(&read_text(&args.messages)?, &args.messages)?;
    if let Some(path) = &args.tools {
        request.tools = Some(ChatRequest::parse_tools(&read_text(path)?, path)?);
    }
    request.add_generation_prompt = !args.no_generation_prompt;
    request.arguments = arguments(args.no_thinking, &args.template_arg)?;
    let templates = ChatTemplates::open(&args.model)?;
    for warning in templates.warnings() {
        say(&format!("warning: {warning}\n"), true);
    }
    let tokenizer = Tokenizer::open(&args.model)?;
    let text = templates.render(&request)?;
    let ids = tokenizer.encode_rendered(&text)?;
    let mut body =
        Body { bytes: text.len(), text, ids, comparisons: Vec::new(), not_compared: Vec::new() };
    if let Some(path) = &args.captured {
        let with = path.display().to_string();
        let bytes = read_bytes(path)?;
        let captured = Captured::parse(&bytes);
        body.comparisons.push(captured.against(&body.text, &tokenizer, &with)?);
    }
    if let Some(url) = &args.server {
        let limit = Duration::from_secs(args.timeout);
        let client = Client::from_env(url, args.api_key_env.as_deref(), limit)?;
        server(args, &client, &request, &tokenizer, &mut body)?;
    }
    args.json.say(&shown(&body));
    let (code, result) = if body.comparisons.iter().any(|c| !c.equal) {
        (FINDINGS, "findings")
    } else if !body.not_compared.is_empty() {
        (SKIPPED, "skipped")
    } else {
        (PASS, "pass")
    };
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("template", result, None, seconds, body))?;
    }
    Ok(code)
}

/// Compares with a server: what it makes of the messages, and of the very text.
fn server(
    args: &TemplateArgs,
    client: &Client,
    request: &ChatRequest,
    tokenizer: &Tokenizer,
    body: &mut Body,
) -> anyhow::Result<()> {
    let url = args.server.as_deref().unwrap_or_default();
    let name = match &args.served_model {
        Some(name) => name.clone(),
        None => {
            let models = client.get("/v1/models")?.json("/v1/models")?;
            let first = models.pointer("/data/0/id").and_then(Value::as_str);
            first.context("/v1/models: names no model; give --served-model")?.to_owned()
        }
    };
    let text = client.post(
        "/tokenize",
        &json!({"model": name, "prompt": body.text, "add_special_tokens": false}),
    )?;
    if text.status == 404 || text.status == 405 {
        body.not_compared.push(format!("{url}: offers no /tokenize (it answered {})", text.status));
        return Ok(());
    }
    let theirs = tokens(&text.json("/tokenize of the text")?)?;
    let with = format!("{url}/tokenize of the same text");
    body.comparisons.push(template::ids(
        &body.ids,
        &theirs,
        tokenizer,
        &with,
        "server.tokenizer_differs",
    ));

    let mut chat = json!({
        "model": name,
        "messages": request.messages,
        "add_generation_prompt": request.add_generation_prompt,
        "add_special_tokens": false,
    });
    if let Some(tools) = &request.tools {
        chat["tools"] = Value::Array(tools.clone());
    }
    if !request.arguments.is_empty() {
        chat["chat_template_kwargs"] = Value::Object(request.arguments.clone());
    }
    let reply = client.post("/tokenize", &chat)?;
    if (400..500).contains(&reply.status) {
        let head: String = String::from_utf8_lossy(&reply.body).chars().take(200).collect();
        body.not_compared.push(format!(
            "{url}: /tokenize takes no messages ({}): {}",
            reply.status,
            head.escape_debug()
        ));
        return Ok(());
    }
    let theirs = tokens(&reply.json("/tokenize of the messages")?)?;
    let with = format!("{url}/tokenize of the messages");
    body.comparisons.push(template::chat(&body.text, &body.ids, &theirs, tokenizer, &with));
    Ok(())
}

/// The ids of vLLM's answer.
fn tokens(answer: &Value) -> anyhow::Result<Vec<u32>> {
    let items = answer.get("tokens").and_then(Value::as_array);
    let ids = items.and_then(|i| i.iter().map(|v| v.as_u64()?.try_into().ok()).collect());
    ids.context("/tokenize: the answer has no array of integers `tokens`")
}

fn shown(body: &Body) -> String {
    let mut out = format!("{} bytes, {} tokens\n", body.bytes, body.ids.len());
    for line in body.text.split_inclusive('\n') {
        out += &format!("  {}\n", line.escape_debug());
    }
    let ids: Vec<String> = body.ids.iter().map(u32::to_string).collect();
    out += &format!("ids: {}\n", ids.join(" "));
    for c in &body.comparisons {
        match &c.finding {
            None => out += &format!("{}: the same {}\n", c.with, c.of),
            Some(item) => out += &format!("\n{}", text::audit_finding(item)),
        }
    }
    for what in &body.not_compared {
        out += &format!("not compared: {what}\n");
    }
    out
}
