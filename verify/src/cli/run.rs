//! `assay run`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use assay_reference::arith::Real;
use assay_reference::checkpoint::{Checkpoint, Tokenizer};
use assay_reference::ops;
use assay_reference::ops::argmax::argmax;
use assay_reference::qwen::generate::Stop;
use assay_reference::qwen::{Forward, Preset, generate};
use assay_reference::trace::{self, Manifest};
use assay_reference::{Dtype, Tensor};
use clap::{Args, ValueEnum};

use super::{PASS, say};

/// What to run.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Folder of the checkpoint: config.json, safetensors, tokenizer.json
    model: PathBuf,
    /// Text to continue; needs tokenizer.json
    #[arg(long, value_name = "TEXT", conflicts_with = "ids")]
    prompt: Option<String>,
    /// Token ids to continue
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    ids: Vec<u32>,
    /// Arithmetic of the forward [default: f64 for oracle-f64, else f32]
    #[arg(long, value_enum)]
    basis: Option<Basis>,
    /// Rounding conventions (see `assay list presets`) [default: oracle-f64 for basis f64, else f32]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Tokens to generate, greedily
    #[arg(long, value_name = "N", default_value_t = 32)]
    generate: usize,
    /// Record every probe of the run into this new folder
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Basis {
    /// 64-bit arithmetic
    F64,
    /// 32-bit arithmetic
    F32,
}

pub(super) fn run(args: &RunArgs) -> anyhow::Result<u8> {
    let checkpoint = Checkpoint::open(&args.model)?;
    for warning in checkpoint.warnings() {
        say(&format!("warning: {warning}\n"), true);
    }
    checkpoint.scan_finite()?;
    let (basis, preset) = arithmetic(args)?;
    if let Some(dir) = &args.trace {
        trace::check_new(dir)?;
    }
    match basis {
        Basis::F64 => run_over::<f64>(args, &checkpoint, preset),
        Basis::F32 => run_over::<f32>(args, &checkpoint, preset),
    }
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

fn run_over<R: ops::Basis>(
    args: &RunArgs,
    checkpoint: &Checkpoint,
    preset: &'static Preset,
) -> anyhow::Result<u8> {
    let tokenizer = tokenizer(args)?;
    let prompt = prompt(args, tokenizer.as_ref())?;
    let mut forward = Forward::<R>::new(checkpoint, preset)?;
    let mut recorder = args.trace.as_ref().map(|_| Recorder::default());
    let stream = Stream { tokenizer: tokenizer.as_ref() };
    let mut shown = Vec::new();
    let mut printed = String::new();
    if args.generate == 0 {
        let logits = forward.step(&prompt, &mut |n, x| record(&mut recorder, n, x))?;
        let vocab = logits.len() / prompt.len();
        let last: Vec<f64> = logits[logits.len() - vocab..].iter().map(|x| x.value()).collect();
        say(&stream.top(&last)?, false);
    } else {
        let eos = &checkpoint.config().eos_token_ids;
        let observer = &mut |n: &assay_reference::qwen::Node, x: &[R]| record(&mut recorder, n, x);
        let (out, stop) = generate(&mut forward, &prompt, args.generate, eos, observer, |id| {
            shown.push(id);
            stream.show(&shown, &mut printed);
        })?;
        say(&stream.end(&out, &printed)?, false);
        let why = match stop {
            Stop::Eos(id) => format!("end token {id}"),
            Stop::Length => "length".into(),
        };
        let n = out.len();
        say(
            &format!(
                "[{} prompt tokens, {n} new, stopped by {why}, {}]\n",
                prompt.len(),
                preset.name
            ),
            true,
        );
        shown = out;
    }
    if let (Some(dir), Some(recorder)) = (&args.trace, recorder) {
        recorder.save(dir, checkpoint, preset, &prompt, &shown)?;
        say(&format!("[trace written to {}]\n", dir.display()), true);
    }
    Ok(PASS)
}

fn tokenizer(args: &RunArgs) -> anyhow::Result<Option<Tokenizer>> {
    if args.prompt.is_some() || args.model.join("tokenizer.json").exists() {
        return Ok(Some(Tokenizer::open(&args.model)?));
    }
    Ok(None)
}

fn prompt(args: &RunArgs, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Vec<u32>> {
    match (&args.prompt, tokenizer) {
        (Some(text), Some(tokenizer)) => Ok(tokenizer.encode(text)?),
        _ if !args.ids.is_empty() => Ok(args.ids.clone()),
        _ => bail!("the prompt is empty: give --prompt TEXT or --ids 1,2,3"),
    }
}

/// Text as it is generated; ids where there is no tokenizer.
struct Stream<'a> {
    tokenizer: Option<&'a Tokenizer>,
}

impl Stream<'_> {
    /// Prints what `ids` add to `printed`, unless it ends inside a character.
    fn show(&self, ids: &[u32], printed: &mut String) {
        let Some(Ok(text)) = self.tokenizer.map(|t| t.decode(ids)) else { return };
        if !text.ends_with('\u{fffd}')
            && let Some(new) = text.strip_prefix(printed.as_str())
        {
            say(new, false);
            *printed = text;
        }
    }

    fn end(&self, ids: &[u32], printed: &str) -> anyhow::Result<String> {
        let Some(tokenizer) = self.tokenizer else {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            return Ok(ids.join(",") + "\n");
        };
        let text = tokenizer.decode(ids)?;
        Ok(text.strip_prefix(printed).unwrap_or_default().to_string() + "\n")
    }

    /// The five largest logits.
    fn top(&self, logits: &[f64]) -> anyhow::Result<String> {
        let mut left = logits.to_vec();
        let mut out = String::new();
        for _ in 0..5.min(left.len()) {
            let id = argmax(&left);
            let text = self.tokenizer.and_then(|t| t.token(id as u32)).unwrap_or_default();
            out += &format!("{id:>7}  {:>12.6}  {text}\n", left[id]);
            left[id] = f64::NEG_INFINITY;
        }
        Ok(out)
    }
}

/// Collects probes over all steps.
#[derive(Default)]
struct Recorder {
    probes: BTreeMap<String, (Vec<f64>, assay_reference::qwen::View, usize)>,
    segments: Vec<(usize, usize)>,
}

fn record<R: Real>(recorder: &mut Option<Recorder>, node: &assay_reference::qwen::Node, x: &[R]) {
    let Some(recorder) = recorder else { return };
    let entry = recorder
        .probes
        .entry(node.probe.clone())
        .or_insert_with(|| (Vec::new(), node.view, node.width));
    entry.0.extend(x.iter().map(|v| v.value()));
    if node.probe == "embed" {
        let start = recorder.segments.last().map_or(0, |s| s.1);
        recorder.segments.push((start, start + x.len() / node.width));
    }
}

impl Recorder {
    fn save(
        self,
        dir: &Path,
        checkpoint: &Checkpoint,
        preset: &Preset,
        prompt: &[u32],
        new: &[u32],
    ) -> anyhow::Result<()> {
        let rows = self.segments.last().map_or(0, |s| s.1);
        let mut tokens = prompt.to_vec();
        tokens.extend(new);
        tokens.truncate(rows);
        let tensors: BTreeMap<String, Tensor> = self
            .probes
            .into_iter()
            .map(|(name, (data, view, width))| {
                let shape = view.shape(data.len() / width, width);
                (name, Tensor::from_f64(preset.dtype, &shape, &data))
            })
            .collect();
        let manifest = Manifest {
            assay_trace: trace::VERSION,
            producer: BTreeMap::from([
                ("name".into(), "assay".into()),
                ("version".into(), env!("CARGO_PKG_VERSION").into()),
                ("preset".into(), preset.name.into()),
            ]),
            dtype: preset.dtype,
            architecture: checkpoint.config().architecture.class().into(),
            tokens,
            segments: self.segments,
            layers: checkpoint.config().num_hidden_layers,
            files: Vec::new(),
            notes: String::new(),
            probes: BTreeMap::new(),
        };
        trace::save(dir, manifest, &tensors).with_context(|| "the trace was not written")
    }
}
