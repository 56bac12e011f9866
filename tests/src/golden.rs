//! Golden data: what independent implementations computed (golden/README.md).

use std::path::{Path, PathBuf};

use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::Preset;
use assay_reference::trace::Trace;
use assay_verify::diff::{self, DiffOptions, DiffReport};
use serde_json::Value;

/// A path below `golden/`.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(relative)
}

/// A checkpoint of `golden/checkpoints`.
///
/// # Panics
/// When it cannot be opened.
#[track_caller]
pub fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&path("checkpoints").join(name)).expect("a golden checkpoint opens")
}

/// A trace of `golden/traces`.
///
/// # Panics
/// When it cannot be opened.
#[track_caller]
pub fn trace(name: &str) -> Trace {
    Trace::open(&path("traces").join(name)).expect("a golden trace opens")
}

/// The diff of a trace against a checkpoint, without the list of unseen faults.
///
/// # Panics
/// When the two do not belong together.
#[track_caller]
pub fn diff(checkpoint: &Checkpoint, trace: &Trace) -> DiffReport {
    let options = DiffOptions { preset: None, unseen: false, forward: false };
    diff::diff(checkpoint, trace, options, &mut |_, _, _| {}).expect("a trace of this checkpoint")
}

/// The same with that list, as the command prints it.
///
/// # Panics
/// As [`diff()`].
#[track_caller]
pub fn diff_with_limits(checkpoint: &Checkpoint, trace: &Trace) -> DiffReport {
    let options = DiffOptions { preset: None, unseen: true, forward: false };
    diff::diff(checkpoint, trace, options, &mut |_, _, _| {}).expect("a trace of this checkpoint")
}

/// The same under the conventions of a preset alone, without the list of unseen faults.
///
/// # Panics
/// When there is no such preset, or the three do not belong together.
#[track_caller]
pub fn diff_under(preset: &str, checkpoint: &Checkpoint, trace: &Trace) -> DiffReport {
    let preset = Some(Preset::named(preset).expect("a preset"));
    let options = DiffOptions { preset, unseen: false, forward: false };
    diff::diff(checkpoint, trace, options, &mut |_, _, _| {}).expect("a trace of this checkpoint")
}

/// A JSON file of `golden/`.
///
/// # Panics
/// When it is missing or no JSON.
#[track_caller]
pub fn json(relative: &str) -> Value {
    let text = std::fs::read_to_string(path(relative)).expect("a golden file");
    serde_json::from_str(&text).expect("golden JSON")
}
