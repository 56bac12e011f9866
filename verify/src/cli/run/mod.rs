//! `assay run`.

mod output;
pub(super) mod prompts;
mod record;
mod report;
mod settings;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use assay_hip::LaunchOptions;
use assay_hip::engine::{Engine, Kernels};
use assay_reference::Dtype;
use assay_reference::checkpoint::{Checkpoint, Tokenizer};
use assay_reference::ops::{self, rope::Scaling};
use assay_reference::qwen::generate::{self, Event, Options};
use assay_reference::qwen::sample::classify;
use assay_reference::qwen::shard::Ranks;
use assay_reference::qwen::{Forward, Model, Node, Preset, continue_prompt};
use assay_reference::trace;
use clap::{Args, ValueEnum};

use self::output::Stream;
use self::prompts::{Prompt, PromptArgs};
use self::record::{Recorder, Selection};
use self::report::{Body, One};
use self::settings::SamplingArgs;
use super::kernels::{OnKernels, Replaced};
use super::{FINDINGS, JsonArgs, PASS, progress, say};
use crate::ledger::Ledger;
use crate::report::{Envelope, write_json};

/// Tokens of a prompt that are fed in one call when nothing else is said.
const CHUNK: usize = 256;

/// What to run.
#[derive(Debug, Args)]
#[command(after_help = "\
The text goes to standard output as it is made, everything else to standard error. Greedy unless --sample is given.
Exit codes: 0 done, 1 the logits are broken (NaN, infinite, all equal), 2 bad usage or unreadable input.

Examples:
  assay run MODEL --prompt 'The sky is'                       plain text, greedy
  assay run MODEL --chat '1+1?' --no-thinking                 one user turn, through the model's chat template
  assay run MODEL --messages chat.json --tools tools.json     a whole conversation
  assay run MODEL --messages chat.json --print-prompt         what the template makes of it; nothing is run
  assay run MODEL --chat 'Hi' --sample --seed 7               as generation_config.json says, seeded
  assay run MODEL --ids 1,2,3 --generate 8 --logprobs 5       what each token weighed, and its rivals
  assay run MODEL --prompts many.txt --json out.json          a batch, one prompt a line
  assay run MODEL --prompt x --trace DIR --probes 'layers.*.attention' --probes logits")]
pub(super) struct RunArgs {
    /// Folder of the checkpoint: config.json, safetensors, tokenizer.json
    model: PathBuf,
    #[command(flatten)]
    prompts: PromptArgs,
    /// Tokens to generate; 0 shows the five largest logits [default: 32; with --sample max_new_tokens of generation_config.json, if it has that]
    #[arg(long, value_name = "N")]
    generate: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// With each token its log probability and the N most likely tokens with theirs
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
    /// Arithmetic of the forward [default: f64 for oracle-f64, else f32]
    #[arg(long, value_enum)]
    basis: Option<Basis>,
    /// Rounding conventions (see `assay list presets`) [default: oracle-f64 for basis f64, else f32]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Feed prompts in calls of at most N tokens; the results have the same bits, but for dynamic RoPE scaling [default: 256; the whole prompt with --trace or dynamic scaling]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunk: Option<u32>,
    /// Split the model over N ranks as a serving engine does: 2, 4 or 8 [default: 1]
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
    /// How the ranks' partial outputs are added
    #[arg(long, value_enum, default_value_t = Reduce::F32, requires = "tp")]
    reduce: Reduce,
    /// Run on this crate's kernels instead of the reference: bf16 or 4-bit GPTQ. Only kernels that --ledger
    /// admits are launched
    #[arg(long, value_enum, requires = "ledger", conflicts_with_all = ["basis", "preset", "tp"])]
    backend: Option<OnKernels>,
    /// With --backend: the ledger that `assay check --ledger` wrote (docs/ledger.md)
    #[arg(long, value_name = "FILE", requires = "backend")]
    ledger: Option<PathBuf>,
    #[command(flatten)]
    replaced: Replaced,
    /// Whether to keep the weights of one layer in memory at a time: auto does where the checkpoint is larger
    /// than half of the memory that is free
    #[arg(long, value_enum, default_value_t = Streaming::Auto, value_name = "WHEN", conflicts_with = "backend")]
    stream: Streaming,
    /// Record the run's probes into this new folder (of a batch into DIR/0, DIR/1 ...)
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Record only probes that match: `*`, `?` and `[...]` as in file names; may be repeated
    #[arg(long, value_name = "GLOB", requires = "trace")]
    probes: Vec<String>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reduce {
    /// In f32, rounded once
    F32,
    /// Stored in the model's dtype after each rank
    Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Streaming {
    /// Where memory is short
    Auto,
    /// In any case
    Always,
    /// In no case
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Basis {
    /// 64-bit arithmetic
    F64,
    /// 32-bit arithmetic
    F32,
}

pub(super) fn run(args: &RunArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let checkpoint = Checkpoint::open(&args.model)?;
    for warning in checkpoint.warnings() {
        say(&format!("warning: {warning}\n"), true);
    }
    let (basis, mut preset) = arithmetic(args)?;
    let engine = on_kernels(args)?;
    if engine.is_some() {
        preset = Preset::named("fused-bf16")?;
    }
    let tokenizer = prompts::tokenizer(&args.model, &args.prompts)?;
    let prompts = prompts::read(&args.model, &args.prompts, tokenizer.as_ref())?;
    if args.prompts.print_prompt() {
        args.json.say(&output::prompts(&prompts));
        return Ok(PASS);
    }
    let settings = settings::Settings::new(&args.model, &args.sampling, args.generate)?;
    if args.logprobs.is_some() && settings.generate == 0 {
        bail!("--logprobs is for generated tokens, but --generate is 0");
    }
    let streamed = engine.is_none() && streams(args.stream, &checkpoint);
    if !streamed {
        // A streamed forward looks at weights as they come.
        checkpoint.scan_finite()?;
    }
    let job = Job {
        args,
        checkpoint: &checkpoint,
        preset,
        engine,
        streamed,
        tokenizer: tokenizer.as_ref(),
        settings,
    };
    let runs = match basis {
        Basis::F64 => job.all::<f64>(&prompts)?,
        Basis::F32 => job.all::<f32>(&prompts)?,
    };
    let broken = runs.iter().any(One::is_broken);
    if let Some(path) = &args.json.json {
        let result = if broken { "findings" } else { "pass" };
        let seed = job.settings.seed();
        let ranks = job.ranks();
        let body = Body {
            preset: preset.name,
            basis: if basis == Basis::F64 { "f64" } else { "f32" },
            tp: ranks.count,
            reduce: (ranks.count > 1).then(|| ranks.name()),
            chunk: job.chunk(),
            sampling: job.settings.sampling.into(),
            runs,
        };
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("run", result, seed, seconds, body))?;
    }
    Ok(if broken { FINDINGS } else { PASS })
}

/// Whether a checkpoint is run with one layer in memory at a time.
fn streams(when: Streaming, checkpoint: &Checkpoint) -> bool {
    let bytes: u64 = checkpoint.files().shards().iter().map(|s| s.data_bytes()).sum();
    match when {
        Streaming::Always => true,
        Streaming::Never => false,
        Streaming::Auto => free_memory().is_some_and(|free| bytes > free / 2),
    }
}

/// Bytes of memory that programs can still get, page cache included.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The kernels to run on, and the record that admits them.
fn on_kernels(args: &RunArgs) -> anyhow::Result<Option<(Kernels, Ledger)>> {
    let (Some(on), Some(path)) = (args.backend, &args.ledger) else { return Ok(None) };
    let ledger = Ledger::read(path).with_context(
        || "run `assay check --ledger FILE` to have the kernels checked and recorded",
    )?;
    Ok(Some((on.kernels(&args.replaced)?, ledger)))
}

fn arithmetic(args: &RunArgs) -> anyhow::Result<(Basis, &'static Preset)> {
    let preset = args.preset.as_deref().map(Preset::named).transpose()?;
    let basis = match (args.basis, preset) {
        (Some(b), _) => b,
        (None, Some(p)) if p.dtype == Dtype::F64 => Basis::F64,
        (None, _) => Basis::F32,
    };
    let default = if basis == Basis::F64 { "oracle-f64" } else { "f32" };
    let preset = preset.map_or_else(|| Preset::named(default), Ok)?;
    if basis == Basis::F32 && preset.dtype == Dtype::F64 {
        bail!("preset {} stores f64 and needs --basis f64", preset.name);
    }
    Ok((basis, preset))
}

/// A run of one or more prompts.
struct Job<'a> {
    args: &'a RunArgs,
    checkpoint: &'a Checkpoint,
    preset: &'static Preset,
    engine: Option<(Kernels, Ledger)>,
    streamed: bool,
    tokenizer: Option<&'a Tokenizer>,
    settings: settings::Settings,
}

impl Job<'_> {
    /// What continues a prompt, at position 0.
    fn model<R: ops::Basis>(&self) -> anyhow::Result<Box<dyn Model<R> + '_>> {
        let Some((kernels, ledger)) = &self.engine else {
            return Ok(Box::new(self.forward::<R>()?));
        };
        let options = LaunchOptions { threads: rayon::current_num_threads(), ..Default::default() };
        Ok(Box::new(Engine::new(self.checkpoint, kernels, ledger, options)?))
    }

    /// A reference forward at position 0: the one place where it is made.
    fn forward<R: ops::Basis>(&self) -> anyhow::Result<Forward<'_, R>> {
        let forward = Forward::split(self.checkpoint, self.preset, self.ranks())?;
        let forward = if self.streamed { forward.streamed().watched() } else { forward };
        // Who generates reads the last token's logits.
        Ok(if self.args.trace.is_some() { forward } else { forward.with_last_logits() })
    }

    fn ranks(&self) -> Ranks {
        let count = self.args.tp.unwrap_or(1);
        Ranks { count, sum_stored: self.args.reduce == Reduce::Stored }
    }

    /// Prompt tokens in a call; 0 is all of them.
    fn chunk(&self) -> usize {
        // A dynamic rotation depends on where a call ends.
        let by_call = matches!(self.checkpoint.config().rope_scaling, Scaling::Dynamic { .. });
        let whole = if self.args.trace.is_some() || by_call { 0 } else { CHUNK };
        self.args.chunk.map_or(whole, |n| n as usize)
    }

    fn all<R: ops::Basis>(&self, prompts: &[Prompt]) -> anyhow::Result<Vec<One>> {
        let forward = self.forward::<R>()?;
        // All prompts before any of them is run, and before anything is written.
        for prompt in prompts {
            forward.check(&prompt.ids).map_err(|e| prompt.blame(prompts.len(), e))?;
        }
        let selection = Selection::new(&self.args.probes, forward.plan())?;
        if let Some(dir) = &self.args.trace {
            trace::check_new(dir)?;
        }
        drop(forward);
        if let Some(line) = self.settings.line() {
            say(&line, true);
        }
        let batch = prompts.len() > 1;
        let mut runs = Vec::with_capacity(prompts.len());
        for (i, prompt) in prompts.iter().enumerate() {
            if batch {
                self.args.json.say(&format!("--- prompt {i} ---\n"));
            }
            let dir = self.args.trace.as_ref();
            let dir = dir.map(|d| if batch { d.join(i.to_string()) } else { d.clone() });
            let mut recorder = dir.as_ref().map(|_| Recorder::new(&selection));
            let mut one = self.one::<R>(prompt, &mut recorder)?;
            for line in one.findings() {
                let which = if batch { format!("prompt {i}: ") } else { String::new() };
                say(&format!("finding: {which}{line}\n"), true);
            }
            if let (Some(dir), Some(recorder)) = (dir, recorder) {
                let ranks = self.ranks();
                recorder.save(&dir, self.checkpoint, self.preset, &prompt.ids, &one.ids, ranks)?;
                say(&format!("[trace written to {}]\n", dir.display()), true);
                one.trace = Some(dir);
            }
            runs.push(one);
        }
        Ok(runs)
    }

    fn one<R: ops::Basis>(
        &self,
        prompt: &Prompt,
        recorder: &mut Option<Recorder<'_>>,
    ) -> anyhow::Result<One> {
        let mut model = self.model::<R>()?;
        let chunk = self.chunk();
        let bar = progress::bar(prompt.ids.len());
        bar.set_message("prompt tokens");
        let mut stream = Stream::new(self.tokenizer, &self.args.json);
        let mut on_event = |event| match event {
            Event::Prompt(n) => {
                bar.set_position(n as u64);
                if n == prompt.ids.len() {
                    bar.finish_and_clear();
                }
            }
            Event::Token(id) => stream.show(id),
        };
        let mut observer = |node: &Node, x: &[R]| {
            if let Some(recorder) = recorder {
                recorder.see(node, x);
            }
        };
        if self.settings.generate == 0 {
            let logits =
                generate::feed(&mut *model, &prompt.ids, chunk, &mut observer, &mut on_event)?;
            let top = output::top(&logits, self.tokenizer);
            self.args.json.say(&output::top_text(&top));
            return Ok(One::of_logits(prompt, top, classify(&logits)));
        }
        let options = Options {
            max_new: self.settings.generate,
            eos: &self.checkpoint.config().eos_token_ids,
            sampling: self.settings.sampling,
            chunk,
            logprobs: self.args.logprobs,
        };
        let out =
            continue_prompt(&mut *model, &prompt.ids, &options, &mut observer, &mut on_event)?;
        let text = stream.end(&out.tokens);
        let one = One::of_generation(prompt, out, text, self.tokenizer);
        if self.args.logprobs.is_some() {
            self.args.json.say(&output::logprobs(&one.logprobs));
        }
        let (n, new, stop) = (prompt.ids.len(), one.ids.len(), one.stopped_by());
        let name = match self.args.backend {
            Some(_) => "kernels",
            None => self.preset.name,
        };
        say(&format!("[{n} prompt tokens, {new} new, stopped by {stop}, {name}]\n"), true);
        Ok(one)
    }
}
