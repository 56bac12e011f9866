//! Synthetic checkpoints: the config, files and tensors of a released model, with weights made from a seed.
//!
//! They are for benchmarks, measurements of memory, and trying commands without a download. What such a model says
//! means nothing. Memory does not depend on the model: data are made and written a few MiB at a time, the next while
//! the last is written.

mod folder;
mod layout;
pub mod shapes;
mod values;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, bail};
use assay_reference::Dtype;
use assay_reference::checkpoint::Config;
use assay_reference::checkpoint::index::INDEX;
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value, json};

use self::folder::{CONFIG, Folder};
use self::layout::Shard;

/// Bytes that one thread makes at a time; a multiple of every element's size.
const BLOCK: usize = 4 << 20;
/// The most blocks that are made at a time.
const MOST_BLOCKS: usize = 16;

/// The bytes of data in a shard that transformers writes by default.
pub const SHARD_SIZE: u64 = 5_000_000_000;

/// A model that can be written: what [`shapes::config`] gives or a file holds, adapted.
#[derive(Clone, Debug)]
pub struct Model {
    json: Map<String, Value>,
    config: Config,
}

impl Model {
    /// The model of a config.json, in `dtype` if one is given, of its first `layers` layers if that is given.
    ///
    /// # Errors
    /// When the config is not understood, is of quantised weights or of a dtype other than bf16, f16 and f32, or has
    /// fewer layers.
    pub fn new(
        mut json: Map<String, Value>,
        origin: &Path,
        dtype: Option<Dtype>,
        layers: Option<usize>,
    ) -> anyhow::Result<Model> {
        if let Some(dtype) = dtype {
            set_dtype(&mut json, dtype);
        }
        let mut config = Config::parse(&Value::Object(json.clone()).to_string(), origin)?;
        if config.quantization.is_some() {
            bail!(
                "{}: describes quantised weights, and only plain ones are made: remove `quantization_config`",
                origin.display()
            );
        }
        if spelled(config.dtype).is_none() {
            bail!("{}: weights in {} are not made: give --dtype", origin.display(), config.dtype);
        }
        if let Some(n) = layers {
            if n == 0 || n > config.num_hidden_layers {
                bail!("--layers {n}: the shape has {} layers", config.num_hidden_layers);
            }
            keep_layers(&mut json, n);
            config = Config::parse(&Value::Object(json.clone()).to_string(), origin)?;
        }
        Ok(Model { json, config })
    }

    /// What the reference reads of it.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its numbers of parameters, and of bytes in the weight files.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn size(&self) -> anyhow::Result<(u64, u64)> {
        let shards = layout::plan(&self.config, self.config.dtype, 0, SHARD_SIZE)?;
        Ok((parameters(&shards, self.config.dtype), shards.iter().map(Shard::bytes).sum()))
    }
}

/// How a checkpoint is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Of the weights.
    pub seed: u64,
    /// Holes in place of the weights, which are read as zeros.
    pub sparse: bool,
    /// Bytes of data that a file has at most, unless a single tensor has more.
    pub shard_size: u64,
    /// Whether the folder's config and weights are replaced, if it has some.
    pub force: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Made {
    /// Parameters of the model; a head that is the embedding counts once.
    pub parameters: u64,
    /// Bytes of the weight files.
    pub bytes: u64,
    /// Number of weight files.
    pub shards: usize,
}

/// Writes config.json, the weights and, where there are several files, their index into `dir`, whole or not at all.
/// `step` hears (bytes written, bytes to write, file).
///
/// # Errors
/// When `dir` cannot be used (see [`Options::force`]), the disk has too little space, or writing fails; then nothing
/// is left, and with `force` another checkpoint is gone only if its files could not be replaced at the very end.
pub fn write(
    model: &Model,
    dir: &Path,
    options: Options,
    step: &mut dyn FnMut(u64, u64, &str),
) -> anyhow::Result<Made> {
    let dtype = model.config.dtype;
    let shards = layout::plan(&model.config, dtype, options.seed, options.shard_size)?;
    let total: u64 = shards.iter().map(Shard::bytes).sum();
    let folder = Folder::prepare(dir, options.force)?;
    if !options.sparse {
        ensure_space(dir, total)?;
    }
    let mut done = 0;
    for shard in &shards {
        let mut advance = |bytes: usize| {
            done += bytes as u64;
            step(done, total, &shard.file);
        };
        write_shard(&folder.place(&shard.file), shard, options.sparse, &mut advance)
            .with_context(|| format!("{}: cannot be written", dir.join(&shard.file).display()))?;
    }
    let mut files: Vec<String> = shards.iter().map(|s| s.file.clone()).collect();
    let mut texts = vec![(CONFIG, Value::Object(model.json.clone()))];
    if shards.len() > 1 {
        texts.push((INDEX, index(&shards)));
        files.push(INDEX.to_owned());
    }
    for (file, value) in texts {
        let text = serde_json::to_string_pretty(&value)? + "\n";
        fs::write(folder.place(file), text)
            .with_context(|| format!("{}: cannot be written", dir.join(file).display()))?;
    }
    folder.commit(&files)?;
    Ok(Made { parameters: parameters(&shards, dtype), bytes: total, shards: shards.len() })
}

fn parameters(shards: &[Shard], dtype: Dtype) -> u64 {
    shards.iter().map(|s| s.data).sum::<u64>() / dtype.size() as u64
}

/// A dtype as config.json spells it.
fn spelled(dtype: Dtype) -> Option<&'static str> {
    match dtype {
        Dtype::Bf16 => Some("bfloat16"),
        Dtype::F16 => Some("float16"),
        Dtype::F32 => Some("float32"),
        _ => None,
    }
}

/// Sets the dtype in whichever of the two spellings the config has.
fn set_dtype(json: &mut Map<String, Value>, dtype: Dtype) {
    let both = ["dtype", "torch_dtype"];
    let mut there: Vec<&str> = both.into_iter().filter(|f| json.contains_key(*f)).collect();
    if there.is_empty() {
        there.push("torch_dtype");
    }
    for field in there {
        json.insert(field.to_owned(), json!(spelled(dtype)));
    }
}

/// Cuts a config to its first `n` layers: the number, and every field that speaks of single layers.
fn keep_layers(json: &mut Map<String, Value>, n: usize) {
    json.insert("num_hidden_layers".to_owned(), json!(n));
    if let Some(Value::Array(types)) = json.get_mut("layer_types") {
        types.truncate(n);
    }
    if let Some(Value::Array(dense)) = json.get_mut("mlp_only_layers") {
        dense.retain(|i| i.as_u64().is_some_and(|i| i < n as u64));
    }
    if let Some(first) = json.get_mut("max_window_layers")
        && first.as_u64().is_some_and(|first| first > n as u64)
    {
        *first = json!(n);
    }
}

/// Refuses what the disk cannot hold, where the system says how much it can.
fn ensure_space(dir: &Path, bytes: u64) -> anyhow::Result<()> {
    let Ok(disk) = rustix::fs::statvfs(dir) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if bytes > free {
        bail!(
            "{}: the weights have {bytes} bytes and the disk has {free} free; --layers N makes a shorter model, \
             --sparse one without data",
            dir.display()
        );
    }
    Ok(())
}

fn index(shards: &[Shard]) -> Value {
    let mut places: Vec<(&str, &str)> = shards
        .iter()
        .flat_map(|s| s.tensors.iter().map(|(name, _, _)| (name.as_str(), s.file.as_str())))
        .collect();
    places.sort_unstable();
    let map: Map<String, Value> =
        places.into_iter().map(|(name, file)| (name.to_owned(), json!(file))).collect();
    let total: u64 = shards.iter().map(|s| s.data).sum();
    json!({"metadata": {"total_size": total}, "weight_map": map})
}

/// Writes one file; `advance` hears how many bytes were written.
fn write_shard(
    path: &Path,
    shard: &Shard,
    sparse: bool,
    advance: &mut dyn FnMut(usize),
) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(&shard.head)?;
    advance(shard.head.len());
    if sparse {
        file.set_len(shard.bytes())?;
        return file.sync_all();
    }
    let most = BLOCK * rayon::current_num_threads().clamp(1, MOST_BLOCKS);
    let make = |at: u64, into: &mut Vec<u8>| {
        let left = usize::try_from(shard.data - at).unwrap_or(usize::MAX);
        into.resize(left.min(most), 0);
        let blocks = into.par_chunks_mut(BLOCK).enumerate();
        blocks.for_each(|(i, block)| shard.fill(at + (i * BLOCK) as u64, block));
    };
    let (mut ready, mut next, mut at) = (Vec::new(), Vec::new(), 0);
    make(at, &mut ready);
    while !ready.is_empty() {
        at += ready.len() as u64;
        let (written, ()) = rayon::join(|| file.write_all(&ready), || make(at, &mut next));
        written?;
        advance(ready.len());
        std::mem::swap(&mut ready, &mut next);
    }
    file.sync_all()
}
