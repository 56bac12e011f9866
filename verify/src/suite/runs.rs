//! The launches of one case.

use std::sync::Arc;

use assay_hip::emu::Placement;
use assay_hip::{Backend, Kernel, LaunchOptions, LaunchStatus};
use assay_reference::{Case, Tensor};

use super::Profile;
use crate::families::Generated;
use crate::finding::Finding;
use crate::judge::Observation;

/// Multiply-adds, or elements where there are none.
pub(crate) fn work(case: &Case) -> usize {
    let len = |name: &str| case.tensors.get(name).map_or(1, Tensor::len);
    match case.op.as_str() {
        "matmul" => {
            let n = case.tensors.get("weight").map_or(1, |w| w.shape()[0]);
            len("x") * n
        }
        "attention" => {
            let s = case.tensors.get("k").map_or(1, |k| k.shape()[0]);
            2 * len("q") * s
        }
        "attention_paged" => {
            2 * len("q") * case.tensors.get("context_len").map_or(1, |t| t.get_i64(0)) as usize
        }
        op if op.ends_with("_gemm") => {
            let columns = case.tensors.get("x").and_then(|x| x.shape().last()).map_or(1, |k| *k);
            len("x") / columns.max(1) * len("qweight") * 8
        }
        op if op.ends_with("_dequant") => len("qweight") * 8,
        _ => case.tensors.values().map(Tensor::len).sum(),
    }
}

/// Keeps the first finding of each name, in order.
pub(super) fn merge(all: &mut Vec<Finding>, more: Vec<Finding>) {
    for f in more {
        if !all.iter().any(|a| a.name == f.name) {
            all.push(f);
        }
    }
}

/// The launches of one case.
pub(super) struct Runs {
    /// Of the op's first output.
    pub(super) observations: Vec<Observation>,
    /// Of each further one, with its name.
    pub(super) others: Vec<(&'static str, Observation)>,
    pub(super) findings: Vec<Finding>,
}

impl Runs {
    /// All outputs of the plain run, whose observations come first; none when it gave none.
    pub(super) fn plain(&self) -> Vec<&Tensor> {
        let Some(first) = self.observations.first() else { return Vec::new() };
        let others = self.others.iter().filter(|(_, o)| o.label == first.label);
        std::iter::once(&first.output).chain(others.map(|(_, o)| &o.output)).collect()
    }
}

/// A case's launches: plain, over another fill and thread order, and with a device's last bits.
pub(super) fn run_case(
    kernel: &Kernel,
    backend: &Backend,
    g: &Generated,
    seed: u64,
    profile: Profile,
) -> anyhow::Result<Runs> {
    let case = Arc::new(g.case.clone());
    let observe = |runs: &mut Runs, outputs: Vec<(&'static str, Tensor)>, suffix: &str| {
        let label = format!("{}{suffix}", g.label);
        let of = |output| Observation {
            case: case.clone(),
            output,
            label: label.clone(),
            structured: g.structured,
        };
        let mut outputs = outputs.into_iter();
        runs.observations.extend(outputs.next().map(|(_, output)| of(output)));
        runs.others.extend(outputs.map(|(name, output)| (name, of(output))));
    };
    let base = LaunchOptions { seed: seed ^ 2, ..LaunchOptions::default() };
    let (outputs, findings) = launch(kernel, backend, g, &base)?;
    let mut runs = Runs { observations: Vec::new(), others: Vec::new(), findings };
    let Some(outputs) = outputs else { return Ok(runs) };
    observe(&mut runs, outputs.clone(), "");
    if work(&g.case) > profile.repeat_work() || !runs.findings.is_empty() {
        return Ok(runs);
    }
    // The same bits again: another thread order over another fill.
    let again = LaunchOptions { seed: seed ^ 3, fill: vec![0x5a], ..base.clone() };
    let (repeat, findings) = launch(kernel, backend, g, &again)?;
    merge(&mut runs.findings, findings);
    if repeat.is_some_and(|r| r != outputs) {
        let text = format!("{}: another thread order gave other bits", g.label);
        merge(&mut runs.findings, vec![Finding::new("not_deterministic", text)]);
    }
    // A device's last bits: on the emulator the verdict must hold for them too.
    let perturbations: &[u32] = if matches!(backend, Backend::Emulated(_)) { &[1, 2] } else { &[] };
    for &ulps in perturbations {
        let ftz = ulps == 2 && g.case.family != "special";
        let perturbed = LaunchOptions { ulps, ftz, placement: Placement::Start, ..base.clone() };
        let (outputs, findings) = launch(kernel, backend, g, &perturbed)?;
        merge(&mut runs.findings, findings);
        if let Some(outputs) = outputs {
            let flushed = if ftz { ", subnormals flushed" } else { "" };
            let label = format!(" (exp off by {ulps} ulp{flushed})");
            observe(&mut runs, outputs, &label);
        }
    }
    Ok(runs)
}

/// What a launch stored, by output, when it completed.
pub(super) type Outputs = Option<Vec<(&'static str, Tensor)>>;

/// One launch: the outputs when it completed, and the findings.
pub(super) fn launch(
    kernel: &Kernel,
    backend: &Backend,
    g: &Generated,
    options: &LaunchOptions,
) -> anyhow::Result<(Outputs, Vec<Finding>)> {
    let launched = match (kernel.run)(backend, &g.case, options) {
        // A library's answer to a case within the contract says something of the library.
        Err(e @ assay_hip::Error::Library { .. }) => {
            let text = format!("{}: {e}", g.label);
            return Ok((None, vec![Finding::new("library_error", text)]));
        }
        launched => launched?,
    };
    let mut findings: Vec<Finding> = Vec::new();
    for f in &launched.report.findings {
        merge(&mut findings, vec![Finding::new(f.code(), format!("{}: {f}", g.label))]);
    }
    if let LaunchStatus::Refused(code) = launched.report.status {
        let text = format!("{}: the launcher returned hipError_t {code}", g.label);
        findings.push(Finding::new("launch_refused", text));
    }
    let completed = launched.report.status == LaunchStatus::Completed;
    Ok((completed.then_some(launched.outputs), findings))
}
