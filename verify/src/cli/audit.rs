//! `assay audit`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::{FINDINGS, JsonArgs, PASS, progress};
use crate::audit::{Options, audit};
use crate::report::{self, Envelope, write_json};

/// What to audit.
#[derive(Debug, Args)]
#[command(after_help = "\
No forward pass: headers and metadata are read, which takes seconds and some 100 MB for a model of 65 GB. All findings are
listed, the most decisive first; one fault does not hide the next. Each says what is wrong, where, why it matters, how it
would look when served, and what to do (docs/audit.md).
Exit codes: 0 nothing found, 1 findings, 2 bad usage or nothing of a checkpoint in the folder.

Examples:
  assay audit MODEL                  seconds: lengths, index, names, shapes, config, quantisation, tokenizer
  assay audit MODEL --data           also reads every weight: NaN, zeros, runs of zeros
  assay audit MODEL --hash           also sha256 of every shard, compared with what the folder states
  assay audit MODEL --json -         for machines")]
pub(super) struct AuditArgs {
    /// Folder of the checkpoint: config.json, safetensors, tokenizer.json
    model: PathBuf,
    /// Hash every weight file, and compare with *.sha256 files and the hub's cache
    #[arg(long)]
    hash: bool,
    /// Read every weight: NaN, infinities, all-zero and constant tensors, runs of zeros; all zero points
    #[arg(long)]
    data: bool,
    #[command(flatten)]
    json: JsonArgs,
}

pub(super) fn run(args: &AuditArgs) -> anyhow::Result<u8> {
    let start = Instant::now();
    args.json.check()?;
    let bar = progress::bar(0);
    let mut step = |done: u64, total: u64, what: &str| {
        bar.set_length(total >> 20);
        bar.set_position(done >> 20);
        bar.set_message(what.to_string());
    };
    let options = Options { hash: args.hash, data: args.data };
    let report = audit(&args.model, options, &mut step)?;
    bar.finish_and_clear();
    args.json.say(&report::text::audit(&report));
    let (code, result) =
        if report.findings.is_empty() { (PASS, "pass") } else { (FINDINGS, "findings") };
    if let Some(path) = &args.json.json {
        let seconds = start.elapsed().as_secs_f64();
        write_json(path, &Envelope::new("audit", result, None, seconds, report))?;
    }
    Ok(code)
}
