//! Recording a run's probes into a trace.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use assay_reference::arith::Real;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::shard::Ranks;
use assay_reference::qwen::{Node, Plan, Preset, Share, View};
use assay_reference::trace::{self, Manifest};
use assay_reference::{Dtype, Rounding, Tensor};
use glob::Pattern;
use rayon::prelude::*;

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
            if !plan.nodes.iter().any(|n| pattern.matches(n.layer_probe())) {
                // The first layer's stand for all.
                let names: Vec<&str> = plan
                    .nodes
                    .iter()
                    .map(Node::layer_probe)
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

/// Some columns of a probe, over all rows so far.
#[derive(Debug)]
struct Columns {
    data: Vec<f64>,
    view: View,
    width: usize,
}

/// The columns of all ranks side by side, unless they were recorded together.
fn joined(mut ranks: BTreeMap<Option<usize>, Columns>) -> Columns {
    if let Some(whole) = ranks.remove(&None) {
        return whole;
    }
    let parts: Vec<Columns> = ranks.into_values().collect();
    let rows = parts[0].data.len() / parts[0].width;
    let row = |r: usize| parts.iter().flat_map(move |p| &p.data[r * p.width..(r + 1) * p.width]);
    let data = (0..rows).flat_map(row).copied().collect();
    let heads = parts.iter().map(|p| if let View::Heads(n) = p.view { n } else { 0 }).sum();
    let view = if heads == 0 { View::Flat } else { View::Heads(heads) };
    Columns { data, view, width: parts.iter().map(|p| p.width).sum() }
}

/// Collects probes over all steps.
#[derive(Debug)]
pub(super) struct Recorder<'s> {
    selection: &'s Selection,
    /// By probe, then by rank: a layer's columns may be those of several. `None` is all of them.
    probes: BTreeMap<String, BTreeMap<Option<usize>, Columns>>,
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
        let rank = match node.share {
            Share::Whole => None,
            Share::Columns { rank, copies } if rank % copies == 0 => Some(rank),
            Share::Columns { .. } | Share::Term => return,
        };
        if self.selection.has(node.layer_probe()) {
            let ranks = self.probes.entry(node.layer_probe().to_string()).or_default();
            let new = || Columns { data: Vec::new(), view: node.view, width: node.width };
            // By all threads: most of the time goes to pages that are touched first.
            let data = &mut ranks.entry(rank).or_insert_with(new).data;
            data.par_extend(x.par_iter().map(|v| v.value()));
        }
    }

    pub(super) fn save(
        self,
        dir: &Path,
        checkpoint: &Checkpoint,
        preset: &Preset,
        prompt: &[u32],
        new: &[u32],
        ranks: Ranks,
    ) -> anyhow::Result<()> {
        let rows = self.segments.last().map_or(0, |s| s.1);
        let mut tokens = prompt.to_vec();
        tokens.extend(new);
        tokens.truncate(rows);
        let tensors: BTreeMap<String, Tensor> = self
            .probes
            .into_iter()
            .map(|(name, ranks)| {
                let Columns { data, view, width } = joined(ranks);
                let shape = view.shape(data.len() / width, width);
                // What a preset keeps in f32 (routing weights of fused kernels) is recorded so.
                let stored = Rounding::nearest(preset.dtype);
                let fits = data.iter().all(|&x| x.is_nan() || stored.round(x) == x);
                let dtype = if fits { preset.dtype } else { Dtype::F32 };
                (name, Tensor::from_f64(dtype, &shape, &data))
            })
            .collect();
        let mut producer = BTreeMap::from([
            ("name".into(), "assay".into()),
            ("version".into(), env!("CARGO_PKG_VERSION").into()),
            ("preset".into(), preset.name.into()),
        ]);
        if ranks.count > 1 {
            producer.insert("tp".into(), ranks.count.to_string());
            producer.insert("reduce".into(), ranks.name().into());
        }
        let manifest = Manifest {
            assay_trace: trace::VERSION,
            producer,
            dtype: preset.dtype,
            architecture: checkpoint.config().architecture.class().into(),
            tokens,
            segments: self.segments,
            layers: checkpoint.config().num_hidden_layers,
            files: Vec::new(),
            notes: self.selection.notes(),
            ranks_differ: Vec::new(),
            probes: BTreeMap::new(),
        };
        trace::save(dir, manifest, &tensors).with_context(|| "the trace was not written")
    }
}
