//! How far a recording drifts from the reference's own forward, layer by layer.

use assay_reference::Result;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::Preset;
use assay_reference::trace::Trace;
use serde::Serialize;

use super::run::{Runner, Span};
use super::spread::Values;

/// The error at one layer's output, or at the logits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// The probe.
    pub probe: String,
    /// Relative rms of the recording from the reference's free-running forward of the nearest convention.
    pub accumulated: f64,
    /// How far legitimate forwards of other conventions and orders lie from that one at most.
    pub legitimate: f64,
    /// Of the ops between the output before and this one, the worst error on their own recorded inputs as a
    /// fraction of its budget, where some were judged.
    pub introduced: Option<f64>,
}

/// The growth at every recorded layer output and the logits, without what each introduces. Empty when none was recorded.
///
/// # Errors
/// When the forward cannot be run.
pub fn growth(
    checkpoint: &Checkpoint,
    trace: &Trace,
    preset: Option<&'static Preset>,
) -> Result<Vec<Growth>> {
    let runner = Runner { checkpoint, trace, preset };
    let layers = trace.manifest().layers;
    let span = Span { layers: 0..layers, from: None, head: true };
    let names: Vec<String> = (0..layers)
        .map(|l| format!("layers.{l}.mlp_residual"))
        .chain(["logits".to_string()])
        .filter(|p| trace.get(p).is_some())
        .collect();
    let Some(last) = names.last() else { return Ok(Vec::new()) };
    let observed = runner.observed(&span);
    let all = runner.by_preset(&span)?;
    let far = |a: &Values, b: &Values, probe: &str| match (a.get(probe), b.get(probe)) {
        (Some(a), Some(b)) => relative(a, b),
        _ => f64::NAN,
    };
    let nearest = (0..all.len())
        .min_by(|&a, &b| far(&observed, &all[a], last).total_cmp(&far(&observed, &all[b], last)));
    let Some(own) = nearest.map(|i| &all[i]) else { return Ok(Vec::new()) };
    let at = |probe: String| Growth {
        accumulated: far(&observed, own, &probe),
        legitimate: all.iter().map(|v| far(v, own, &probe)).fold(0.0, f64::max),
        introduced: None,
        probe,
    };
    Ok(names.iter().cloned().map(at).collect())
}

/// Relative rms of `a` from `b`.
fn relative(a: &[f64], b: &[f64]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
    let scale: f64 = b.iter().map(|y| y * y).sum();
    if error == 0.0 { 0.0 } else { (error / scale).sqrt() }
}
