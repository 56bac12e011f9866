//! The tensors in the files against those that the architecture needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use assay_reference::checkpoint::{Config, Expected, expected};

use super::files::Files;
use super::found::{Found, list, plural};
use super::shapes::layer_of;

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// How many times as many tensors as there are a config may ask for and still have them listed: a few bytes of
/// config.json must not ask for gigabytes of memory.
const FAR_OFF: usize = 8;

/// Holds the files against what a model of this config reads.
pub(super) fn check(config: &Config, files: &Files, out: &mut Found) {
    let of_layer = |layer: usize| config.moe_of(layer).map_or(7, |moe| 3 * moe.num_experts);
    let least: usize = (0..config.num_hidden_layers).map(of_layer).sum();
    if least > FAR_OFF * (files.tensors.len() + files.lost.len() + 8) {
        if !files.tensors.is_empty() {
            let what = format!(
                "asks for {least} tensors or more, and the files hold {}",
                files.tensors.len()
            );
            out.add("config.layers", "config.json: num_hidden_layers", what);
        }
        return;
    }
    let expected = expected(config);
    missing(config, files, &expected, out);
    forms(files, &expected, out);
    unread(config, files, &expected, out);
}

fn missing(config: &Config, files: &Files, expected: &[Expected], out: &mut Found) {
    let is_missing =
        |e: &&Expected| !files.tensors.contains_key(&e.name) && !files.lost.contains(&e.name);
    let missing: Vec<&Expected> = expected.iter().filter(is_missing).collect();
    // Nothing at all was read: that is said.
    let Some(first) = missing.first().filter(|_| !files.tensors.is_empty()) else { return };
    let what = format!(
        "{} that {} needs {} in no file: {}; the first must be {:?}, {}",
        plural(missing.len(), "tensor"),
        config.architecture,
        if missing.len() == 1 { "is" } else { "are" },
        list(missing.iter().map(|e| e.name.as_str())),
        first.shape,
        first.kind
    );
    out.add("tensor.missing", first.name.clone(), what);
}

/// A name with its layer's number replaced: what differs in every layer is one finding.
fn pattern(name: &str) -> String {
    layer_of(name).map_or(name.to_owned(), |(_, rest)| format!("model.layers.*.{rest}"))
}

/// Shapes and dtypes.
fn forms(files: &Files, expected: &[Expected], out: &mut Found) {
    let mut wrong: BTreeMap<(&str, String, String), Vec<&str>> = BTreeMap::new();
    for e in expected {
        let (Some(found), Some(held)) = (files.shape(&e.name), files.tensors.get(&e.name)) else {
            continue;
        };
        let same = found.len() == e.shape.len()
            && found.iter().zip(&e.shape).all(|(a, b)| *a == *b as u64);
        let (kind, what) = if !same {
            let shown = &found[..found.len().min(8)];
            ("tensor.shape", format!("is {shown:?}, and the config implies {:?}", e.shape))
        } else if !files.dtype(&e.name).is_some_and(|d| e.kind.allows(d)) {
            let stored = super::found::quoted(&held.entry.dtype);
            ("tensor.dtype", format!("is stored as {stored}, expected {}", e.kind))
        } else {
            continue;
        };
        wrong.entry((kind, pattern(&e.name), what)).or_default().push(&e.name);
    }
    for ((kind, _, what), names) in wrong {
        let others = match names.len() {
            1 => String::new(),
            n => format!("; {n} tensors of this name: {}", list(names.iter().copied())),
        };
        out.add(kind, files.place(names[0]), what + &others);
    }
}

/// Tensors that nothing reads.
fn unread(config: &Config, files: &Files, expected: &[Expected], out: &mut Found) {
    let read: BTreeSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
    let (mut biases, mut others, mut zero) = (Vec::new(), Vec::new(), Vec::new());
    for name in files.tensors.keys().map(String::as_str).filter(|n| !read.contains(n)) {
        if name == HEAD && config.tie_word_embeddings {
            tied(files, out);
        } else if name.ends_with("rotary_emb.inv_freq") {
            // Follows from rope_theta.
        } else if name.ends_with(".bias") {
            let spare = is_spare(config, files, name);
            if spare { zero.push(name) } else { biases.push(name) }
        } else {
            others.push(name);
        }
    }
    if !zero.is_empty() {
        out.note(format!(
            "{} of packed layers not read, all zero: {}",
            plural(zero.len(), "bias tensor"),
            list(zero)
        ));
    }
    for (kind, names) in [("tensor.bias_unread", biases), ("tensor.unread", others)] {
        let Some(first) = names.first() else { continue };
        let what = format!(
            "{} that {} never reads: {}",
            plural(names.len(), "tensor"),
            config.architecture,
            list(names.iter().copied())
        );
        out.add(kind, files.place(first), what);
    }
}

/// Whether a bias is one of those that quantisers write for every layer: of a packed layer, and zero.
fn is_spare(config: &Config, files: &Files, name: &str) -> bool {
    let (Some(quant), Some(path)) = (&config.quantization, name.strip_suffix(".bias")) else {
        return false;
    };
    let stored = |part: &str| files.tensors.contains_key(&format!("{path}.{part}"));
    quant.covers(path)
        && quant.parts([1, 1]).iter().all(|(part, ..)| stored(part))
        && files.tensor(name, 1 << 20).is_some_and(|t| t.to_f64().iter().all(|x| *x == 0.0))
}

/// A stored head that is tied must be the embedding.
fn tied(files: &Files, out: &mut Found) {
    let same_form =
        files.shape(HEAD) == files.shape(EMBEDDING) && files.dtype(HEAD) == files.dtype(EMBEDDING);
    if same_form && samples(files, HEAD) == samples(files, EMBEDDING) {
        out.note(format!("{} repeats the embedding to which the head is tied", files.place(HEAD)));
        return;
    }
    let what = "differs from model.embed_tokens.weight, to which the config ties the head";
    out.add("data.tied_head", files.place(HEAD), what);
}

/// Sixteen blocks over a tensor.
fn samples(files: &Files, name: &str) -> Option<Vec<u8>> {
    const BLOCKS: u64 = 16;
    const BLOCK: u64 = 1 << 14;
    let (path, at, len) = files.bytes_of(name)?;
    let mut file = File::open(path).ok()?;
    let mut bytes = Vec::new();
    for i in 0..BLOCKS {
        let begin = len.saturating_sub(BLOCK) * i / (BLOCKS - 1);
        file.seek(SeekFrom::Start(at + begin)).ok()?;
        (&mut file).take(BLOCK.min(len)).read_to_end(&mut bytes).ok()?;
    }
    Some(bytes)
}

/// Parameters of the architecture, and those of the head alone where it is not the embedding. A packed
/// weight counts as many as it stands for.
pub(super) fn parameters(config: &Config) -> (u64, u64) {
    let table = config.vocab_size as u64 * config.hidden_size as u64;
    let mut total = table + config.hidden_size as u64;
    for layer in 0..config.num_hidden_layers {
        total += 2 * config.hidden_size as u64;
        if config.architecture.has_qk_norm() {
            total += 2 * config.head_dim as u64;
        }
        let experts = config.moe_of(layer).map_or(1, |moe| moe.num_experts as u64);
        for module in config.linears(layer).iter().take(4 + 3) {
            let [n, k] = config.linear_shape(module).unwrap_or([0, 0]).map(|d| d as u64);
            let count = if module.starts_with("mlp.experts.") { experts } else { 1 };
            total += count * n * k + if config.has_bias(module) { n } else { 0 };
        }
        if config.moe_of(layer).is_some() {
            total += experts * config.hidden_size as u64;
        }
    }
    let head = if config.tie_word_embeddings { 0 } else { table };
    (total + head, head)
}
