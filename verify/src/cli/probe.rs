//! `assay probe`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use assay_reference::Dtype;
use assay_reference::checkpoint::{ChatTemplates, Checkpoint, Tokenizer};
use assay_reference::qwen::Preset;
use clap::Args;
use serde_json::{Value, json};

use super::run::prompts::read_text;
use super::{FINDINGS, JsonArgs, PASS, SKIPPED, progress, say};
use crate::http::Client;
use crate::report::{self, Envelope, text, write_json, write_text};
use crate::server::ask::{Questions, ask};
use crate::server::wishes::{self, Wishes};
use crate::server::{Model, State, exchange, judge};

/// Which server, and which model it should be serving.
#[derive(Debug, Args)]
#[command(after_help = "\
The server is asked for the log-probabilities of prompts (prompt_logprobs, else echo, else what is generated), and these are
held against the reference forward of the model in --model: prompt lengths on both sides of where kernels change, the same
request again and in a batch, prompts whose beginning it has seen, decoding, tokenizer and chat template. When they are
wrong, some fifty wrong forwards are tried, and the one that explains them is named (docs/probe.md).
Nothing is sent but to the address given: no redirects, no proxy. The key is neither shown nor recorded.
Exit codes: 0 right, 1 findings, 2 bad usage or no answer, 3 the server tells nothing that could be compared.

Examples:
  assay probe http://127.0.0.1:8000 --model models/Qwen3-0.6B
  assay probe URL --model DIR --tokens 32 --lengths 8,9          a large model: the reference runs on the CPU
  assay probe URL --model DIR --record answers.json --json -     keep all answers; report for machines
  assay probe --replay answers.json --model DIR                  judge them again, without the server
  KEY=... assay probe URL --model DIR --api-key-env KEY")]
pub(super) struct ProbeArgs {
    /// The server: http://HOST:PORT
    #[arg(required_unless_present = "replay")]
    url: Option<String>,
    /// Folder of the checkpoint that the server should be serving
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Judge a recording of --record instead of a server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "record"])]
    replay: Option<PathBuf>,
    /// Write all requests and answers to this file, without the key
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The dtype that it is served in [default: the config's]
    #[arg(long, value_name = "DTYPE", value_parser = ["bf16", "f16", "f32"])]
    dtype: Option<String>,
    /// Allow only this preset's roundings (see `assay list presets`) [default: every legitimate one]
    #[arg(long, value_name = "NAME", conflicts_with = "dtype")]
    preset: Option<String>,
    /// Text of the longest prompt [default: some English and Chinese]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Token ids of the longest prompt
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "prompt")]
    ids: Vec<u32>,
    /// Tokens of the longest prompt; the reference's work grows with it
    #[arg(long, value_name = "N", default_value_t = wishes::TOKENS, value_parser = clap::value_parser!(u32).range(2..=8192))]
    tokens: u32,
    /// Prompt lengths [default: 1 to 65, on both sides of where kernels change]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    lengths: Vec<usize>,
    /// Tokens to generate where decoding is looked at
    #[arg(long, value_name = "N", default_value_t = wishes::GENERATE, value_parser = clap::value_parser!(u16).range(1..=512))]
    generate: u16,
    /// Times that one request is repeated
    #[arg(long, value_name = "N", default_value_t = wishes::REPEATS, value_parser = clap::value_parser!(u16).range(0..=100))]
    repeats: u16,
    /// Requests at the same time in the batch
    #[arg(long, value_name = "N", default_value_t = wishes::BATCH, value_parser = clap::value_parser!(u16).range(0..=64))]
    batch: u16,
    /// JSON file of a conversation [default: one question]
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// The model's name at the server [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    served_model: Option<String>,
    /// Environment variable with the server's key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Seconds that a request may take
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Seconds after which no more is asked
    #[arg(long, value_name = "S", default_value_t = wishes::MAX_SECONDS, value_parser = clap::value_parser!(u64).range(1..=86400))]
    max_seconds: u64,
    /// Show every request, not only those that are wrong
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    json: JsonArgs,
}

pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    args.record.as_deref().map_or(Ok(()), report::check_writable)?;
    let checkpoint = Checkpoint::open(&args.model)?;
    for warning in checkpoint.warnings() {
        say(&format!("warning: {warning}\n"), true);
    }
    let mut lacking = Vec::new();
    let tokenizer = optional(Tokenizer::open(&args.model), &mut lacking);
    let templates = optional(ChatTemplates::open(&args.model), &mut lacking);
    let preset = args.preset.as_deref().map(Preset::named).transpose()?;
    let dtype = match (preset, args.dtype.as_deref()) {
        (Some(preset), _) => preset.dtype,
        (None, Some(name)) => served_in(name),
        (None, None) => checkpoint.config().dtype,
    };
    let model = Model {
        checkpoint: &checkpoint,
        tokenizer: tokenizer.as_ref(),
        templates: templates.as_ref(),
        dtype,
        preset,
    };
    let exchanges = match &args.replay {
        Some(path) => exchange::load(path)?,
        None => asked(args, &model)?,
    };
    let bar = progress::bar(0);
    let mut report = judge(&model, &exchanges, &mut |what| bar.set_message(what.to_owned()))?;
    report.notes.extend(lacking);
    bar.finish_and_clear();
    let subject = match (&args.url, &args.replay) {
        (Some(url), _) => url.clone(),
        (None, path) => path.as_ref().map_or(String::new(), |p| p.display().to_string()),
    };
    args.json.say(&text::probe(&report, &subject, args.all));
    let (code, result) = if !report.findings.is_empty() {
        (FINDINGS, "findings")
    } else if report.state == State::Right {
        (PASS, "pass")
    } else {
        (SKIPPED, "skipped")
    };
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        let body = json!({ "subject": subject, "report": report });
        write_json(path, &Envelope::new("probe", result, None, seconds, body))?;
    }
    Ok(code)
}

/// A dtype of `--dtype`.
pub(super) fn served_in(name: &str) -> Dtype {
    match name {
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        _ => Dtype::F32,
    }
}

/// What a folder may lack; the reason is said.
fn optional<T>(opened: assay_reference::Result<T>, lacking: &mut Vec<String>) -> Option<T> {
    opened.inspect_err(|e| lacking.push(e.to_string())).ok()
}

/// Asks the server, and keeps what it answered.
fn asked(args: &ProbeArgs, model: &Model<'_>) -> anyhow::Result<Vec<exchange::Exchange>> {
    let url = args.url.as_deref().unwrap_or_default();
    let limit = Duration::from_secs(args.timeout);
    let client = Client::from_env(url, args.api_key_env.as_deref(), limit)?;
    let questions = questions(args, model)?;
    let bar = progress::bar(0);
    let mut step = |i: usize, n: usize, what: &str| {
        bar.set_length(n.max(i) as u64);
        bar.set_position(i as u64);
        bar.set_message(what.to_owned());
    };
    let exchanges = ask(&client, &questions, &mut step)?;
    bar.finish_and_clear();
    if let Some(path) = &args.record {
        write_text(path, &exchange::recording(url, &exchanges))?;
    }
    Ok(exchanges)
}

fn questions(args: &ProbeArgs, model: &Model<'_>) -> anyhow::Result<Questions> {
    let messages = args.messages.as_deref().map(conversation).transpose()?;
    let wishes = Wishes {
        prompt: args.prompt.clone(),
        ids: args.ids.clone(),
        tokens: args.tokens as usize,
        lengths: args.lengths.clone(),
        generate: args.generate.into(),
        repeats: args.repeats.into(),
        batch: args.batch.into(),
        messages,
        served_model: args.served_model.clone(),
        max_seconds: args.max_seconds,
    };
    wishes.questions(model)
}

/// The messages of a file.
fn conversation(path: &Path) -> anyhow::Result<Value> {
    let shown = path.display();
    let value: Value = serde_json::from_str(&read_text(path)?)
        .with_context(|| format!("{shown}: expected JSON"))?;
    let list = value.get("messages").cloned().unwrap_or(value);
    ensure!(list.is_array(), "{shown}: expected an array of messages");
    Ok(list)
}
