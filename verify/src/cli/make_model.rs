//! `assay make-model`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use assay_reference::Dtype;
use assay_reference::checkpoint::with_duplicates;
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use super::run::prompts::read_text;
use super::{JsonArgs, PASS, progress};
use crate::report::{Envelope, Table, write_json};
use crate::synthetic::{self, Made, Model, Options, SHARD_SIZE, shapes};

/// What to write, and how.
#[derive(Debug, Args)]
#[command(
    override_usage = "\
assay make-model [OPTIONS] SHAPE DIR
       assay make-model [OPTIONS] --config FILE DIR
       assay make-model --list",
    after_help = "\
The files, tensors and config are those of the released model; the weights are random, so that what the model says means
nothing. No tokenizer is written: give prompts as ids (`assay run DIR --ids 1,2,3`). Equal seeds give equal bytes, whatever
the number of threads. Memory stays below 200 MiB, whatever the shape. DIR is written whole or not at all (docs/make_model.md).
Exit codes: 0 written, 2 bad usage, or DIR or the disk cannot take it.

Examples:
  assay make-model --list                           the shapes, with parameters and bytes
  assay make-model Qwen3-0.6B models/fake           1.2 GB
  assay make-model Qwen3-32B models/fake --layers 2 its first two layers, with embedding and head: 5.1 GB
  assay make-model Qwen3-32B models/fake --sparse   65 GB in length, nothing on disk: for what reads only headers
  assay make-model --config my.json models/fake     a shape of your own"
)]
pub(super) struct MakeModelArgs {
    /// Name of a released model (see --list), in any case, with or without `Qwen/` before it
    #[arg(value_name = "SHAPE", required_unless_present_any = ["config", "list"])]
    first: Option<PathBuf>,
    /// Folder to write: new or empty
    #[arg(value_name = "DIR", required_unless_present_any = ["config", "list"], conflicts_with = "config")]
    second: Option<PathBuf>,
    /// A config.json of your own in place of SHAPE; not of quantised weights
    #[arg(long, value_name = "FILE", requires = "first")]
    config: Option<PathBuf>,
    /// List the shapes, and write nothing
    #[arg(long, conflicts_with_all = ["first", "second", "config"])]
    list: bool,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Type of the weights [default: bf16, or the config's own]
    #[arg(long, value_enum)]
    dtype: Option<Stored>,
    /// Keep the first N layers only
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Files of the right length with holes in place of the weights, which read as zeros: they take no space
    #[arg(long)]
    sparse: bool,
    /// Bytes of weights in one file, unless a tensor is larger: 500MB, 5GB, 4GiB [default: 5GB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    shard_size: Option<u64>,
    /// Write into a folder that is not empty: its config.json, model*.safetensors and index are replaced, other files stay
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stored {
    Bf16,
    F16,
    F32,
}

impl From<Stored> for Dtype {
    fn from(stored: Stored) -> Dtype {
        match stored {
            Stored::Bf16 => Dtype::Bf16,
            Stored::F16 => Dtype::F16,
            Stored::F32 => Dtype::F32,
        }
    }
}

#[derive(Serialize)]
struct Body {
    dir: String,
    shape: String,
    architecture: &'static str,
    layers: usize,
    dtype: Dtype,
    sparse: bool,
    #[serde(flatten)]
    made: Made,
}

#[derive(Serialize)]
struct Row {
    shape: String,
    architecture: &'static str,
    layers: usize,
    parameters: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Rows {
    dtype: Dtype,
    shapes: Vec<Row>,
}

pub(super) fn run(args: &MakeModelArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    if args.list {
        return list(args, start);
    }
    let (shape, model, dir) = wanted(args)?;
    let options = Options {
        seed: args.seed,
        sparse: args.sparse,
        shard_size: args.shard_size.unwrap_or(SHARD_SIZE),
        force: args.force,
    };
    let bar = progress::bar(0);
    let mut step = |done: u64, total: u64, what: &str| {
        bar.set_length(total >> 20);
        bar.set_position(done >> 20);
        bar.set_message(format!("{what}, MiB"));
    };
    let made = synthetic::write(&model, dir, options, &mut step);
    bar.finish_and_clear();
    let config = model.config();
    let body = Body {
        dir: dir.display().to_string(),
        shape,
        architecture: config.architecture.class(),
        layers: config.num_hidden_layers,
        dtype: config.dtype,
        sparse: args.sparse,
        made: made?,
    };
    args.json.say(&shown(&body, args.seed));
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("make_model", "pass", Some(args.seed), seconds, body))?;
    }
    Ok(PASS)
}

/// What is to be made, by its name, and where.
fn wanted(args: &MakeModelArgs) -> anyhow::Result<(String, Model, &Path)> {
    let first = args.first.as_deref().context("give a SHAPE and a DIR")?;
    let dtype = args.dtype.map(Dtype::from);
    if let Some(file) = &args.config {
        let (json, twice) = with_duplicates(read_text(file)?.as_bytes())
            .with_context(|| format!("{}: is not valid JSON", file.display()))?;
        if let Some(key) = twice.first() {
            bail!("{}: the key `{}` occurs twice", file.display(), key.escape_debug());
        }
        let Value::Object(json) = json else { bail!("{}: holds no object", file.display()) };
        let model = Model::new(json, file, dtype, args.layers)?;
        return Ok((file.display().to_string(), model, first));
    }
    let second = args.second.as_deref().context("give a DIR after the SHAPE")?;
    let (name, json) = shapes::config(&first.to_string_lossy())?;
    let model = Model::new(json, Path::new(&name), dtype, args.layers)?;
    Ok((name, model, second))
}

fn shown(body: &Body, seed: u64) -> String {
    let Body { dir, shape, layers, dtype, made, .. } = body;
    let Made { parameters, bytes, shards } = made;
    let files = if *shards == 1 { "1 file" } else { &format!("{shards} files") };
    let data =
        if body.sparse { "holes that read as zeros".to_owned() } else { format!("seed {seed}") };
    format!(
        "{dir}: {shape}, {layers} layers, {:.2}B parameters in {dtype}; {files}, {:.2} GB, {data}; no tokenizer\n",
        *parameters as f64 / 1e9,
        *bytes as f64 / 1e9
    )
}

fn list(args: &MakeModelArgs, start: Instant) -> anyhow::Result<u8> {
    let dtype = args.dtype.map_or(Dtype::Bf16, Dtype::from);
    let mut shapes = Vec::new();
    for name in shapes::names() {
        let (shape, json) = shapes::config(&name)?;
        let model = Model::new(json, Path::new(&name), Some(dtype), None)?;
        let (parameters, bytes) = model.size()?;
        let config = model.config();
        let (architecture, layers) = (config.architecture.class(), config.num_hidden_layers);
        shapes.push(Row { shape, architecture, layers, parameters, bytes });
    }
    let mut table =
        Table::new(&["shape", "architecture", "layers", "parameters", &dtype.to_string()]);
    for row in &shapes {
        table.row([
            row.shape.clone(),
            row.architecture.to_owned(),
            row.layers.to_string(),
            format!("{:.2}B", row.parameters as f64 / 1e9),
            format!("{:.1} GB", row.bytes as f64 / 1e9),
        ]);
    }
    args.json.say(&table.render());
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        let rows = Rows { dtype, shapes };
        write_json(path, &Envelope::new("make_model_list", "pass", None, seconds, rows))?;
    }
    Ok(PASS)
}

/// `5GB`, `4 GiB`, `1000`: bytes.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 8] = [
        ("", 1),
        ("b", 1),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
    ];
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| unit.trim().eq_ignore_ascii_case(name));
    let bytes =
        number.parse::<u64>().ok().zip(unit).and_then(|(n, (_, unit))| n.checked_mul(*unit));
    bytes.filter(|&n| n > 0).ok_or_else(|| {
        "must be a whole number of bytes above 0, with B, KB, MB, GB, KiB, MiB or GiB behind it"
            .to_owned()
    })
}
