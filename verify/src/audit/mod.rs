//! A checkpoint's files, config, quantisation and text boundary, held against each other without running it.
//!
//! The reference's own readers stop at the first thing that is wrong, as they must: nothing is computed
//! from a damaged checkpoint. An audit goes on, because two independent faults hide one another. So it
//! reads leniently: what can be read of a damaged file is used, a value that the tensors contradict is
//! said and replaced by theirs, and the rest is held against the result.
//!
//! Headers and metadata are read, of quantised layers zero points and group indices; memory is bounded by
//! the headers and not by the weights.

mod codes;
mod config;
mod data;
mod files;
mod found;
mod hash;
mod header;
mod index;
mod infer;
mod json;
mod names;
mod pick;
mod quant;
mod release;
mod sample;
mod shapes;
mod tensors;
mod text;
mod tokenizer;

use std::path::Path;

pub use self::codes::{Code, all as codes};
pub use self::found::{Audit, Blind, Item};
pub use self::hash::Hash;

pub(crate) use self::found::list;
pub(crate) use self::release::{Release, table as releases};

use self::files::Files;
use self::found::Found;

/// What to read beyond headers and metadata.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Hash every shard, and compare with what the folder knows of its hashes.
    pub hash: bool,
    /// Read every tensor: NaN, infinities, zeros.
    pub data: bool,
}

/// Audits the checkpoint in `dir`. `step` hears (bytes read, bytes to read, what) of long work.
///
/// # Errors
/// When `dir` is no folder, or holds nothing of a checkpoint.
pub fn audit(
    dir: &Path,
    options: Options,
    step: &mut dyn FnMut(u64, u64, &str),
) -> anyhow::Result<Audit> {
    Ok(with_config(dir, options, step)?.0)
}

/// The same, and config.json as the tensors describe it: what they contradict is theirs. It has no end tokens.
///
/// # Errors
/// As [`audit`].
pub fn with_config(
    dir: &Path,
    options: Options,
    step: &mut dyn FnMut(u64, u64, &str),
) -> anyhow::Result<(Audit, Option<serde_json::Value>)> {
    let mut out = Found::new(dir);
    let entries = names::list(dir)?;
    let files = Files::read(dir, &entries, &mut out);
    let config = config::read(dir, &mut out);
    let inferred = config.map(|c| infer::infer(c, &files, &mut out));
    let understood = inferred.as_ref().and_then(|i| config::understand(i, &mut out));
    match &understood {
        // A model without its head, as embedding models are stored.
        _ if files.without_prefix() => out.blind(
            Blind::Tensors,
            "tensors against the architecture: their names lack the `model.` of a model with a head",
        ),
        Some(config) => tensors::check(config, &files, &mut out),
        None => out.blind(
            Blind::Tensors,
            "tensors against the architecture: config.json is not understood",
        ),
    }
    if let Some(inferred) = &inferred {
        quant::check(inferred, &files, options.data, &mut out);
        release::check(dir, inferred, understood.as_ref(), &mut out);
    }
    text::check(dir, inferred.as_ref(), &files, &mut out);
    if options.data {
        data::check(&files, understood.as_ref(), &mut out, step);
    } else {
        out.unchecked("values of the weights (NaN, zeros): --data reads them all");
    }
    let hashes = match options.hash {
        true => hash::check(dir, &files, &mut out, step),
        false => {
            out.unchecked("hashes of the files: --hash reads them all");
            Vec::new()
        }
    };
    let fixed = inferred.map(|i| serde_json::Value::Object(i.fixed));
    Ok((out.finish(&files, understood.as_ref(), hashes), fixed))
}
