//! Recording a run's probes into a trace.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use assay_reference::Tensor;
use assay_reference::arith::Real;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::{Node, Plan, Preset, View};
use assay_reference::trace::{self, Manifest};
use glob::Pattern;

/// Which probes are recorded.
#[derive(Debug)]
pub(super) struct Selection {
    /// Empty: all.
    globs: Vec<Pattern>,
}

impl Selection {
    /// The globs, each of which must match a probe of the model.
    pub(super) fn new(globs: &[String], plan: &Plan) -> anyhow::Result<Selection> {
        let mut patterns = Vec::with_capacity(globs.len());
        for glob in globs {
            let pattern =
                Pattern::new(glob).with_context(|| format!("--probes '{glob}': is no glob"))?;
            if !plan.nodes.iter().any(|n| pattern.matches(&n.probe)) {
                // The first layer's stand for all.
                let names: Vec<&str> = plan
                    .nodes
                    .iter()
                    .map(|n| n.probe.as_str())
                    .filter(|p| !p.starts_with("layers.") || p.starts_with("layers.0."))
                    .collect();
                bail!(
                    "--probes '{glob}' matches no probe of this model; there are {} (and those of \
                     further layers)",
                    names.join(", ")
                );
            }
            patterns.push(pattern);
        }
        Ok(Selection { globs: patterns })
    }

    fn has(&self, probe: &str) -> bool {
        self.globs.is_empty() || self.globs.iter().any(|g| g.matches(probe))
    }

    fn notes(&self) -> String {
        let globs: Vec<&str> = self.globs.iter().map(Pattern::as_str).collect();
        if globs.is_empty() { String::new() } else { format!("only {}", globs.join(", ")) }
    }
}

/// Collects probes over all steps.
#[derive(Debug)]
pub(super) struct Recorder<'s> {
    selection: &'s Selection,
    probes: BTreeMap<String, (Vec<f64>, View, usize)>,
    segments: Vec<(usize, usize)>,
}

impl<'s> Recorder<'s> {
    pub(super) fn new(selection: &'s Selection) -> Recorder<'s> {
        Recorder { selection, probes: BTreeMap::new(), segments: Vec::new() }
    }

    pub(super) fn see<R: Real>(&mut self, node: &Node, x: &[R]) {
        // The first node of every call tells its length.
        if node.probe == "embed" {
            let start = self.segments.last().map_or(0, |s| s.1);
            self.segments.push((start, start + x.len() / node.width));
        }
        if self.selection.has(&node.probe) {
            let entry = self
                .probes
                .entry(node.probe.clone())
                .or_insert_with(|| (Vec::new(), node.view, node.width));
            entry.0.extend(x.iter().map(|v| v.value()));
        }
    }

    pub(super) fn save(
        self,
        dir: &Path,
        checkpoint: &Checkpoint,
        preset: &Preset,
        prompt: &[u32],
        new: &[u32],
    ) -> anyhow::Result<()> {
        let rows = self.segments.last().map_or(0, |s| s.1);
        let mut tokens = prompt.to_vec();
        tokens.extend(new);
        tokens.truncate(rows);
        let tensors: BTreeMap<String, Tensor> = self
            .probes
            .into_iter()
            .map(|(name, (data, view, width))| {
                let shape = view.shape(data.len() / width, width);
                (name, Tensor::from_f64(preset.dtype, &shape, &data))
            })
            .collect();
        let manifest = Manifest {
            assay_trace: trace::VERSION,
            producer: BTreeMap::from([
                ("name".into(), "assay".into()),
                ("version".into(), env!("CARGO_PKG_VERSION").into()),
                ("preset".into(), preset.name.into()),
            ]),
            dtype: preset.dtype,
            architecture: checkpoint.config().architecture.class().into(),
            tokens,
            segments: self.segments,
            layers: checkpoint.config().num_hidden_layers,
            files: Vec::new(),
            notes: self.selection.notes(),
            probes: BTreeMap::new(),
        };
        trace::save(dir, manifest, &tensors).with_context(|| "the trace was not written")
    }
}
