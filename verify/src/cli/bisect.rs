//! `assay bisect`.

mod switches;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use assay_reference::checkpoint::{ChatRequest, ChatTemplates, Checkpoint, Tokenizer};
use assay_reference::trace::Trace;
use clap::Args;

use super::kernels::{OnKernels, Replaced};
use super::probe::served_in;
use super::run::prompts::{arguments, read_bytes, read_text};
use super::{FINDINGS, HtmlArgs, JsonArgs, PASS, progress};
use crate::bisect::{Given, Prompt, Server, Source, bisect};
use crate::diff::engine;
use crate::http::Client;
use crate::report::{Envelope, html, text, write_json};
use crate::server::exchange;
use crate::template::Captured;

/// What to examine, and what there is to go by.
#[derive(Debug, Args)]
#[command(after_help = "\
Every suspect has an experiment, the cheapest first, and all of them are run: two independent faults hide one another. Each suspect
ends cleared, CONVICTED with evidence, or not testable with what would be needed. Not testable is not cleared.
Exit codes: 0 nothing convicted, 1 convictions, 2 bad usage or unreadable input, 3 (--switches) nothing could be told.

Examples:
  assay bisect MODEL                                 files, config, quantisation, tokenizer: seconds
  assay bisect MODEL --trace T --html report.html    and every op, layer and wrong forward of a recording (docs/taps.md)
  assay bisect MODEL --backend emu                   and the kernels on the model's own weights
  assay bisect MODEL --server http://127.0.0.1:8000  and the running server, asked from outside (docs/probe.md)
  assay bisect MODEL --text answer.txt --messages chat.json --captured prompt.txt
  assay bisect --switches                            the next restart that isolates a guilty custom kernel of vLLM on a DCU
  assay bisect --switches --seen right,wrong         the one after those two
  assay bisect --switches --run './restart-and-ask'  drives the restarts: exit 0 is right, 1 is wrong, others tell nothing")]
pub(super) struct BisectArgs {
    /// Folder of the checkpoint
    #[arg(required_unless_present = "switches")]
    model: Option<PathBuf>,
    /// Folder of a trace of the failing engine (docs/trace_format.md)
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Run the model on this crate's kernels, and judge every launch
    #[arg(long, value_enum)]
    backend: Option<OnKernels>,
    /// With --backend: token ids of the prompt [default: those of the trace, else 24 spread over the vocabulary]
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "backend")]
    ids: Vec<u32>,
    #[command(flatten)]
    replaced: Replaced,
    /// File with what the service answered
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// JSON file of a conversation, for --captured
    #[arg(long, value_name = "FILE", requires = "captured")]
    messages: Option<PathBuf>,
    /// The prompt that the service made of --messages: text, a JSON string, or a JSON array of token ids
    #[arg(long, value_name = "FILE", requires = "messages")]
    captured: Option<PathBuf>,
    /// The running server, to be probed as `assay probe` does by itself: http://HOST:PORT (a large model: --recording)
    #[arg(long, value_name = "URL", conflicts_with = "recording")]
    server: Option<String>,
    /// What a server answered to `assay probe --record FILE`, which can ask less or other prompts
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Environment variable with the server's key, which is sent to no other address and never shown
    #[arg(long, value_name = "VAR", requires = "server")]
    api_key_env: Option<String>,
    /// Seconds that a request to the server may take
    #[arg(long, value_name = "S", requires = "server", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// The dtype that the model is served in [default: the config's]
    #[arg(long, value_name = "DTYPE", value_parser = ["bf16", "f16", "f32"])]
    dtype: Option<String>,
    /// Read every weight: NaN, zeros; all zero points
    #[arg(long)]
    data: bool,
    /// Hash every weight file, and compare with what the folder states
    #[arg(long)]
    hash: bool,
    #[command(flatten)]
    switches: switches::SwitchArgs,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    html: HtmlArgs,
}

pub(super) fn run(args: &BisectArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    args.html.check()?;
    let Some(model) = &args.model else { return switches::run(&args.switches, &args.json, start) };
    if args.switches.switches {
        bail!("--switches looks at an engine and not at a model: give one of the two");
    }
    let trace = args.trace.as_deref().map(Trace::open).transpose()?;
    let answer = args.text.as_deref().map(read_answer).transpose()?;
    let prompt = match (&args.messages, &args.captured) {
        (Some(messages), Some(captured)) => Some(compared(model, messages, captured)?),
        _ => None,
    };
    let client = args.server.as_deref().map(|url| {
        let limit = Duration::from_secs(args.timeout);
        Client::from_env(url, args.api_key_env.as_deref(), limit)
    });
    let client = client.transpose()?;
    let recorded = args.recording.as_deref().map(exchange::load).transpose()?;
    let source = match (&client, &recorded) {
        (Some(client), _) => Some(Source::Live(client)),
        (None, recorded) => recorded.as_deref().map(Source::Recorded),
    };
    let dtype = args.dtype.as_deref().map(served_in);
    ensure!(
        dtype.is_none() || source.is_some(),
        "--dtype is of a server: give --server URL or --recording FILE"
    );
    let kernels = args.backend.map(|on| on.kernels(&args.replaced)).transpose()?;
    let ids = kernels.as_ref().map(|_| ids(args, model, trace.as_ref())).unwrap_or_default();
    let on_kernels = engine::Prompt { ids, chunk: 16, generate: 4 };
    let given = Given {
        trace: trace.as_ref(),
        kernels: kernels.as_ref().map(|k| (k, &on_kernels)),
        server: source.map(|source| Server { source, dtype }),
        answer: answer.as_deref(),
        prompt: prompt.as_ref(),
        data: args.data,
        hash: args.hash,
    };
    let bar = progress::bar(0);
    progress::show_searches(&bar);
    let report = bisect(model, &given, &mut |i, n, what| {
        bar.set_length(n as u64);
        bar.set_position(i as u64);
        bar.set_message(what.to_string());
    })?;
    bar.finish_and_clear();
    args.json.say(&text::bisect(&report));
    args.html.write(|| html::bisect(&report))?;
    let (code, result) = match report.evidence().next() {
        Some(_) => (FINDINGS, "findings"),
        None => (PASS, "pass"),
    };
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("bisect", result, None, seconds, report))?;
    }
    Ok(code)
}

/// The longest answer that is read.
const MOST_ANSWER: usize = 1 << 20;

fn read_answer(path: &Path) -> anyhow::Result<String> {
    let text = read_text(path)?;
    if text.len() > MOST_ANSWER {
        bail!(
            "{}: has {} bytes: no answer of a service (at most {MOST_ANSWER})",
            path.display(),
            text.len()
        );
    }
    Ok(text)
}

/// The conversation as the model's template renders it, against what the service used. What the model lacks for
/// that is a matter of the report; files that cannot be read are not.
fn compared(model: &Path, messages: &Path, captured: &Path) -> anyhow::Result<Prompt> {
    let mut request = ChatRequest::parse(&read_text(messages)?, messages)?;
    request.add_generation_prompt = true;
    request.arguments = arguments(false, &[])?;
    let theirs = Captured::parse(&read_bytes(captured)?);
    let with = captured.display().to_string();
    let comparison = || {
        let text = ChatTemplates::open(model)?.render(&request)?;
        theirs.against(&text, &Tokenizer::open(model)?, &with)
    };
    Ok(match comparison() {
        Ok(comparison) => Prompt::Compared(vec![comparison]),
        Err(e) => Prompt::NotRendered(e.to_string()),
    })
}

/// Tokens for the kernels: what was given, what was recorded, or some of the vocabulary.
fn ids(args: &BisectArgs, model: &Path, trace: Option<&Trace>) -> Vec<u32> {
    const MOST: usize = 24;
    if !args.ids.is_empty() {
        return args.ids.clone();
    }
    if let Some(trace) = trace {
        return trace.manifest().tokens.iter().take(MOST).copied().collect();
    }
    // A checkpoint that cannot be opened is a row of the report.
    let vocab = Checkpoint::open(model).map_or(32, |c| c.config().vocab_size.max(1));
    (0..MOST).map(|i| ((i * 37 + 11) % vocab) as u32).collect()
}
