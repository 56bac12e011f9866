//! Diffs a recorded trace against the reference, op by op, on the trace's own inputs.
//!
//! An op that is right on its own inputs passes even when an earlier op was wrong: the error it
//! carries is inherited, not introduced. A recorded tensor that fits neither its producer nor its
//! consumers, while the reference's value in its place satisfies the consumers, was altered after
//! the run: an inconsistent recording.

pub mod engine;
mod fused;
mod phase;

use std::collections::BTreeMap;
use std::sync::Arc;

use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::rope::Angle;
use assay_reference::ops::{Scope, Tensors};
use assay_reference::qwen::plan::as_loaded;
use assay_reference::qwen::{Node, Plan, Preset, Source, View};
use assay_reference::trace::Trace;
use assay_reference::{Case, Dtype, Error, Result, Tensor};
use serde::Serialize;

pub use self::phase::PhaseError;
use crate::finding::Finding;
use crate::forward::{self, Growth};
use crate::judge::{
    Judgement, Known, Observation, Options, Unseen, Verdict, judge, reference_output,
};

/// In place of an op's name: a tensor that ranks hold, and not the same.
pub const RANKS: &str = "ranks";

/// One op of the forward.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    /// Probe of its output.
    pub probe: String,
    /// Op name.
    pub op: String,
    /// The kernel that computed it, where kernels did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<&'static str>,
    /// Of a rotation that fails: how far its angles are off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phase_error: Vec<PhaseError>,
    /// Verdict and figures.
    #[serde(flatten)]
    pub judgement: Judgement,
}

impl NodeReport {
    fn new(probe: &str, op: &str, judgement: Judgement) -> NodeReport {
        NodeReport {
            probe: probe.into(),
            op: op.into(),
            kernel: None,
            phase_error: Vec::new(),
            judgement,
        }
    }
}

/// A whole trace.
#[derive(Clone, Debug, Serialize)]
pub struct DiffReport {
    /// Dtype of the recorded model.
    pub dtype: Dtype,
    /// The preset whose conventions alone were allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<&'static str>,
    /// What the trace says of itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub notes: String,
    /// Ops in the forward's order.
    pub nodes: Vec<NodeReport>,
    /// Where both were asked for: the accumulated error beside the introduced one, by layer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub growth: Vec<Growth>,
}

impl DiffReport {
    /// All findings with their probes.
    pub fn findings(&self) -> Vec<(&str, Finding)> {
        self.nodes
            .iter()
            .flat_map(|n| n.judgement.verdict.findings().into_iter().map(|f| (n.probe.as_str(), f)))
            .collect()
    }

    /// Ops judged, skipped ones excluded.
    pub fn judged(&self) -> usize {
        self.nodes
            .iter()
            .filter(|n| !matches!(n.judgement.verdict, Verdict::Skipped { .. }))
            .count()
    }
}

/// How to diff.
#[derive(Clone, Copy, Debug)]
pub struct DiffOptions {
    /// The only conventions allowed; `None` is every legitimate one of a framework.
    pub preset: Option<&'static Preset>,
    /// Whether to list the faults that the recorded inputs cannot show, which takes most of the time.
    pub unseen: bool,
    /// Whether to judge layer outputs and logits as a free-running forward too (see
    /// [`forward`]). That is done in any case when no op's inputs were recorded.
    pub forward: bool,
}

/// Diffs `trace` against the checkpoint's forward. `progress` is told of each op.
///
/// # Errors
/// When the trace is not of this checkpoint's model, a recorded tensor has a wrong shape, or the
/// preset is of another dtype.
pub fn diff(
    checkpoint: &Checkpoint,
    trace: &Trace,
    options: DiffOptions,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<DiffReport> {
    check_model(checkpoint, trace)?;
    let dtype = trace.manifest().dtype;
    let preset = options.preset;
    if let Some(preset) = preset.filter(|p| p.dtype != dtype) {
        let what = format!("records {dtype}, but preset {} is {}", preset.name, preset.dtype);
        return Err(Error::file(trace.dir().join("manifest.json"), what));
    }
    let angle = if dtype == Dtype::F64 { Angle::F64 } else { Angle::F32 };
    let plan = Plan::new(checkpoint.config(), angle);
    check_shapes(&plan, trace)?;
    let source = Recording {
        checkpoint,
        trace,
        options,
        replaced: BTreeMap::new(),
        known: Known::default(),
    };
    let mut nodes = Vec::with_capacity(plan.nodes.len());
    for (i, node) in plan.nodes.iter().enumerate() {
        progress(i, plan.nodes.len(), &node.probe);
        let judgement = source.judge(node)?;
        let mut report = NodeReport::new(&node.probe, node.op, judgement);
        if node.op == "rope" && !report.judgement.verdict.findings().is_empty() {
            report.phase_error = phase::errors(&source.observations(node)?)?;
            phase::tell(&mut report.judgement.verdict, &report.phase_error);
        }
        source.release(node);
        nodes.push(report);
    }
    fused::settle(&plan, &source, &mut nodes)?;
    settle_recordings(&plan, source, &mut nodes)?;
    let op_by_op = nodes.iter().any(|n| !matches!(n.judgement.verdict, Verdict::Skipped { .. }));
    if options.forward || !op_by_op {
        let stretches = forward::classify(checkpoint, trace, preset, progress)?;
        if !op_by_op && !stretches.is_empty() {
            nodes.clear();
        }
        let report = |s: forward::Stretch| NodeReport::new(&s.probe, forward::NAME, s.judgement);
        nodes.extend(stretches.into_iter().map(report));
    }
    nodes.extend(trace.manifest().ranks_differ.iter().map(|probe| of_ranks(probe)));
    let mut growth = Vec::new();
    if options.forward && op_by_op {
        growth = forward::growth(checkpoint, trace, preset)?;
        introduced(&mut growth, &nodes);
    }
    let notes = trace.manifest().notes.clone();
    Ok(DiffReport { dtype, preset: preset.map(|p| p.name), notes, nodes, growth })
}

/// A tensor of which the ranks do not hold the same.
fn of_ranks(probe: &str) -> NodeReport {
    let text = format!("`{probe}`: ranks hold other values of it; rank 0's are judged");
    let mut judgement = Judgement::skipped("");
    judgement.verdict = Verdict::Fail { findings: vec![Finding::new("ranks_differ", text)] };
    NodeReport::new(probe, RANKS, judgement)
}

/// The layer of a probe; the embedding is in the first, the head behind the last.
fn layer_of(probe: &str) -> usize {
    let of = probe.strip_prefix("layers.").and_then(|r| r.split('.').next()?.parse().ok());
    of.unwrap_or(if probe == "embed" { 0 } else { usize::MAX })
}

/// The worst op between each output and the one before.
fn introduced(growth: &mut [Growth], nodes: &[NodeReport]) {
    let mut from = 0;
    for g in growth {
        let end = layer_of(&g.probe);
        let here = |n: &&NodeReport| (from..=end).contains(&layer_of(&n.probe));
        let judged = nodes.iter().filter(|n| n.op != forward::NAME && n.judgement.runs > 0);
        g.introduced = judged.filter(here).map(|n| n.judgement.worst).reduce(f64::max);
        from = end.saturating_add(1);
    }
}

fn check_model(checkpoint: &Checkpoint, trace: &Trace) -> Result<()> {
    let (config, manifest) = (checkpoint.config(), trace.manifest());
    let path = trace.dir().join("manifest.json");
    let class = config.architecture.class();
    if manifest.architecture != class || manifest.layers != config.num_hidden_layers {
        let what = format!(
            "records {} with {} layers, but the checkpoint is {class} with {}",
            manifest.architecture, manifest.layers, config.num_hidden_layers
        );
        return Err(Error::file(path, what));
    }
    if let Some(id) = manifest.tokens.iter().find(|&&id| id as usize >= config.vocab_size) {
        let what = format!("token {id} is beyond the vocabulary of {}", config.vocab_size);
        return Err(Error::file(path, what));
    }
    Ok(())
}

fn check_shapes(plan: &Plan, trace: &Trace) -> Result<()> {
    let rows = trace.manifest().tokens.len();
    for node in &plan.nodes {
        let expect = node.view.shape(rows, node.width);
        if let Some(t) = trace.get(&node.probe)
            && t.shape() != expect
        {
            let what = format!("has shape {:?}, the model's is {expect:?}", t.shape());
            return Err(Error::tensor(trace.dir(), &node.probe, what));
        }
    }
    Ok(())
}

/// The trace as the source of every op's inputs, with some probes replaced.
struct Recording<'a> {
    checkpoint: &'a Checkpoint,
    trace: &'a Trace,
    options: DiffOptions,
    replaced: BTreeMap<String, Tensor>,
    known: Known,
}

impl Recording<'_> {
    fn probe(&self, name: &str) -> Option<&Tensor> {
        self.replaced.get(name).or_else(|| self.trace.get(name))
    }

    fn judge(&self, node: &Node) -> Result<Judgement> {
        if self.trace.get(&node.probe).is_none() {
            return Ok(Judgement::skipped("its output was not recorded"));
        }
        if let Some(missing) = node.reads().find(|p| self.probe(p).is_none()) {
            return Ok(Judgement::skipped(format!("its input `{missing}` was not recorded")));
        }
        let unseen = if self.options.unseen { Unseen::Applicable } else { Unseen::Nothing };
        judge(node.op, &self.observations(node)?, self.options(unseen))
    }

    /// Lets go of what was mapped for a node: a model and its recording may be larger than memory.
    fn release(&self, node: &Node) {
        for (_, source) in &node.inputs {
            let tensor = match source {
                Source::Weight(name) | Source::Part(name, _) => self.checkpoint.files().get(name),
                Source::Probe(probe, _) | Source::History(probe, _) => self.trace.get(probe),
                Source::Tokens | Source::Positions => None,
            };
            if let Some(tensor) = tensor {
                tensor.release();
            }
        }
    }

    fn options(&self, unseen: Unseen) -> Options<'_> {
        Options {
            scope: Scope::Framework,
            unseen,
            preset: self.options.preset,
            known: Some(&self.known),
        }
    }

    /// The node's inputs and output; what depends on positions by segment, since each forward call
    /// has its own queries and keys and its own first position.
    fn observations(&self, node: &Node) -> Result<Vec<Observation>> {
        let rows = self.trace.manifest().tokens.len();
        let by_segment =
            node.inputs.iter().any(|(_, s)| matches!(s, Source::History(..) | Source::Positions));
        let segments =
            if by_segment { self.trace.manifest().segments.clone() } else { vec![(0, rows)] };
        segments.into_iter().map(|(start, end)| self.observation(node, start, end)).collect()
    }

    fn observation(&self, node: &Node, start: usize, end: usize) -> Result<Observation> {
        let mut tensors = Tensors::new();
        let recorded = |probe: &str, view: View, from: usize| -> Result<Tensor> {
            let t =
                self.probe(probe).ok_or_else(|| Error::Request(format!("`{probe}` is missing")))?;
            let part = t.slice_outer(from..end);
            let width = part.len() / (end - from);
            part.reshape(&view.shape(end - from, width))
        };
        let dtype = self.trace.manifest().dtype;
        let loaded = |arg: &str, t: Tensor| as_loaded(t, arg, dtype);
        for (arg, source) in &node.inputs {
            let t = match source {
                Source::Probe(p, view) => recorded(p, *view, start)?,
                Source::History(p, view) => recorded(p, *view, 0)?,
                Source::Weight(name) => loaded(arg, self.checkpoint.tensor(name)?),
                Source::Part(name, cut) => loaded(arg, cut.of(&self.checkpoint.tensor(name)?)),
                Source::Tokens => {
                    let ids = &self.trace.manifest().tokens[start..end];
                    let ids: Vec<i32> = ids.iter().map(|&i| i as i32).collect();
                    Tensor::from_i32(&[end - start], &ids)
                }
                Source::Positions => {
                    let positions: Vec<i32> = (start..end).map(|p| p as i32).collect();
                    Tensor::from_i32(&[end - start], &positions)
                }
            };
            tensors.insert(arg.to_string(), t);
        }
        let output = recorded(&node.probe, node.view, start)?;
        let case = Case {
            op: node.op.into(),
            params: node.params.clone(),
            dtype: output.dtype(),
            tensors,
            outputs: Tensors::new(),
            family: "trace".into(),
            seed: 0,
        };
        let label = if (start, end) == (0, self.trace.manifest().tokens.len()) {
            node.probe.clone()
        } else {
            format!("{} tokens {start}..{end}", node.probe)
        };
        Ok(Observation { case: Arc::new(case), output, label, structured: false })
    }
}

/// Tells altered recordings from wrong ops: a failing node whose failing consumers are all right
/// once its output is replaced by the reference's.
fn settle_recordings(
    plan: &Plan,
    mut source: Recording<'_>,
    nodes: &mut [NodeReport],
) -> Result<()> {
    for i in 0..nodes.len() {
        if nodes[i].judgement.verdict.findings().is_empty() {
            continue;
        }
        let node = &plan.nodes[i];
        let consumers: Vec<usize> = (i + 1..nodes.len())
            .filter(|&c| plan.nodes[c].reads().any(|p| p == node.probe))
            .filter(|&c| !nodes[c].judgement.verdict.findings().is_empty())
            .collect();
        if consumers.is_empty() {
            continue;
        }
        let Some(right) = recompute(&source, node)? else { continue };
        source.replaced.insert(node.probe.clone(), right);
        let again: Vec<Judgement> =
            consumers.iter().map(|&c| source.judge(&plan.nodes[c])).collect::<Result<_>>()?;
        if !again.iter().all(|j| j.verdict.is_pass()) {
            source.replaced.remove(&node.probe);
            continue;
        }
        let evidence = nodes[i].judgement.verdict.findings().remove(0).text;
        let names: Vec<&str> = consumers.iter().map(|&c| plan.nodes[c].probe.as_str()).collect();
        let text = format!(
            "the recorded `{}` fits neither its inputs nor what was computed from it ({}); with the reference's value those are right, so the recording was altered or mixed up. {evidence}",
            node.probe,
            names.join(", ")
        );
        nodes[i].judgement.verdict =
            Verdict::Fail { findings: vec![Finding::new("inconsistent_recording", text)] };
        for (c, judgement) in consumers.into_iter().zip(again) {
            nodes[c].judgement = judgement;
        }
    }
    Ok(())
}

/// The recorded output with the elements that no convention allows replaced by the reference's.
fn recompute(source: &Recording<'_>, node: &Node) -> Result<Option<Tensor>> {
    let observations = source.observations(node)?;
    let options = source.options(Unseen::Nothing);
    let parts: Vec<Tensor> =
        observations.iter().map(|o| reference_output(o, options)).collect::<Result<_>>()?;
    let Some(recorded) = source.probe(&node.probe) else { return Ok(None) };
    let values: Vec<f64> = parts.iter().flat_map(Tensor::to_f64).collect();
    Ok(Some(Tensor::from_f64(recorded.dtype(), recorded.shape(), &values)))
}
