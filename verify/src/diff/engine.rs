//! An engine of kernels against the reference: each launch on its own inputs, then the layers and the
//! logits as a free-running forward.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use assay_hip::engine::{Engine, EngineLaunch, Kernels};
use assay_hip::{Admission, Admit, Identity, LaunchOptions, LaunchStatus, Refusal};
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::Scope;
use assay_reference::qwen::generate::{Options as Generate, continue_prompt, feed};
use assay_reference::qwen::{Node, Sampling};
use assay_reference::trace::{self, Manifest, Trace};
use assay_reference::{Dtype, Tensor};

use super::{DiffReport, NodeReport};
use crate::finding::Finding;
use crate::forward;
use crate::judge::{Judgement, Known, Observation, Options, Unseen, Verdict, judge_all};

/// What the engine runs.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Tokens of a call, 0 for all.
    pub chunk: usize,
    /// Tokens that are generated behind them, greedily.
    pub generate: usize,
}

/// Admits everything: what a diff launches is what it is about to verify, and it serves no one.
struct UnderTest;

impl Admit for UnderTest {
    fn admit(&self, identity: &Identity) -> Result<Admission, Refusal> {
        let evidence = "under test".to_string();
        Ok(Admission { identity: identity.clone(), conventions: Vec::new(), evidence })
    }
}

/// All launches of one kernel at one probe.
struct Place {
    probe: String,
    kernel: &'static str,
    op: String,
    /// By output name, the op's first one first.
    outputs: Vec<(&'static str, Vec<Observation>)>,
    findings: Vec<Finding>,
}

#[derive(Default)]
struct Places {
    all: Vec<Place>,
    /// Whether the last launch did not end well: nothing comes after it.
    failed: bool,
}

impl Places {
    fn see(&mut self, launch: &EngineLaunch<'_>) {
        let kernel = launch.kernel.name;
        let known = |p: &Place| p.probe == launch.probe && p.kernel == kernel;
        let at = self.all.iter().position(known).unwrap_or_else(|| {
            self.all.push(Place {
                probe: launch.probe.to_string(),
                kernel,
                op: launch.case.op.clone(),
                outputs: Vec::new(),
                findings: Vec::new(),
            });
            self.all.len() - 1
        });
        let place = &mut self.all[at];
        for f in &launch.report.findings {
            place.findings.push(Finding::new(f.code(), f.to_string()));
        }
        if let LaunchStatus::Refused(code) = launch.report.status {
            let text = format!("{}: the launcher returned hipError_t {code}", launch.probe);
            place.findings.push(Finding::new("launch_refused", text));
        }
        if launch.report.status != LaunchStatus::Completed {
            self.failed = true;
            return;
        }
        let case = Arc::new(launch.case.clone());
        for (name, output) in &launch.outputs {
            let of = match place.outputs.iter().position(|(known, _)| known == name) {
                Some(i) => &mut place.outputs[i].1,
                None => {
                    place.outputs.push((*name, Vec::new()));
                    &mut place.outputs.last_mut().expect("just pushed").1
                }
            };
            let label = format!("{} call {}", launch.probe, of.len());
            let output = output.clone();
            of.push(Observation { case: case.clone(), output, label, structured: false });
        }
    }
}

impl Place {
    fn judged(self, known: &Known) -> assay_reference::Result<NodeReport> {
        let options = Options {
            scope: Scope::Kernel,
            unseen: Unseen::Nothing,
            preset: None,
            known: Some(known),
        };
        // The first output goes by the kernel's name for it, further ones by the op's.
        let mut judgement = match self.outputs.split_first() {
            Some((first, others)) => judge_all(&self.op, &first.1, others, options)?,
            None => Judgement::skipped("no launch ended well"),
        };
        if !self.findings.is_empty() {
            // What is wrong with its numbers stands beside it.
            let findings = [self.findings, judgement.verdict.findings()].concat();
            judgement.verdict = Verdict::Fail { findings };
        }
        let kernel = Some(self.kernel);
        Ok(NodeReport { kernel, ..NodeReport::new(&self.probe, &self.op, judgement) })
    }
}

/// Runs `prompt` on `kernels` and judges every launch, the layers' outputs and the logits.
///
/// # Errors
/// When the engine cannot run the model. A launch that does not end well is a finding of its kernel.
pub fn diff(
    checkpoint: &Checkpoint,
    kernels: &Kernels,
    prompt: &Prompt,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> anyhow::Result<DiffReport> {
    let places = RefCell::new(Places::default());
    let mut probes: BTreeMap<String, (Vec<f64>, usize)> = BTreeMap::new();
    let mut segments: Vec<(usize, usize)> = Vec::new();
    let options = LaunchOptions { threads: rayon::current_num_threads(), ..Default::default() };
    let mut engine = Engine::new(checkpoint, kernels, &UnderTest, options)?
        .watched(|launch| places.borrow_mut().see(launch));
    let mut observer = |node: &Node, x: &[f64]| {
        if node.probe == "embed" {
            let start = segments.last().map_or(0, |s| s.1);
            segments.push((start, start + x.len() / node.width));
        }
        if node.probe == "logits" || node.probe.ends_with(".mlp_residual") {
            let (data, _) =
                probes.entry(node.probe.clone()).or_insert_with(|| (Vec::new(), node.width));
            data.extend_from_slice(x);
        }
    };
    let mut ids = prompt.ids.clone();
    let mut on_event = |_| {};
    let run = if prompt.generate == 0 {
        feed(&mut engine, &ids, prompt.chunk, &mut observer, &mut on_event).map(|_| Vec::new())
    } else {
        let options = Generate {
            max_new: prompt.generate,
            eos: &[],
            sampling: Sampling::GREEDY,
            chunk: prompt.chunk,
            logprobs: None,
        };
        continue_prompt(&mut engine, &ids, &options, &mut observer, &mut on_event).map(|g| g.tokens)
    };
    drop(engine);
    let Places { all: places, failed } = places.into_inner();
    let n = places.len();
    let mut nodes = Vec::with_capacity(n);
    let known = Known::default();
    for (i, place) in places.into_iter().enumerate() {
        progress(i, n, &place.probe);
        nodes.push(place.judged(&known)?);
    }
    let report = |nodes| DiffReport {
        dtype: Dtype::Bf16,
        preset: None,
        nodes,
        growth: Vec::new(),
        notes: String::new(),
    };
    // A launch that did not end well is a finding of its kernel; there is no whole forward to compare.
    match run {
        Ok(tokens) => ids.extend(tokens),
        Err(_) if failed => return Ok(report(nodes)),
        Err(e) => return Err(e.into()),
    }
    ids.truncate(segments.last().map_or(0, |s| s.1));
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let trace = recorded(checkpoint, &folder.path().join("trace"), probes, segments, ids)?;
    let stretches = forward::classify(checkpoint, &trace, None, progress)?;
    let judged = |s: forward::Stretch| NodeReport::new(&s.probe, forward::NAME, s.judgement);
    nodes.extend(stretches.into_iter().map(judged));
    Ok(report(nodes))
}

/// What the forward's judge reads.
fn recorded(
    checkpoint: &Checkpoint,
    dir: &std::path::Path,
    probes: BTreeMap<String, (Vec<f64>, usize)>,
    segments: Vec<(usize, usize)>,
    tokens: Vec<u32>,
) -> assay_reference::Result<Trace> {
    let tensor = |(data, width): (Vec<f64>, usize)| {
        Tensor::from_f64(Dtype::Bf16, &[data.len() / width, width], &data)
    };
    let tensors = probes.into_iter().map(|(name, probe)| (name, tensor(probe))).collect();
    let manifest = Manifest {
        assay_trace: trace::VERSION,
        producer: BTreeMap::from([("name".into(), "assay engine".into())]),
        dtype: Dtype::Bf16,
        architecture: checkpoint.config().architecture.class().into(),
        tokens,
        segments,
        layers: checkpoint.config().num_hidden_layers,
        files: Vec::new(),
        notes: String::new(),
        ranks_differ: Vec::new(),
        probes: BTreeMap::new(),
    };
    trace::save(dir, manifest, &tensors)?;
    Trace::open(dir)
}
