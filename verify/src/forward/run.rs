//! The parts of a recording that can be run by themselves, and running them.

use std::ops::Range;

use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::Basis;
use assay_reference::qwen::forward::Given;
use assay_reference::qwen::jitter::Jitter;
use assay_reference::qwen::preset::legitimate;
use assay_reference::qwen::{Forward, ForwardFault, Node, Preset, Wiring};
use assay_reference::trace::Trace;
use assay_reference::{Dtype, Result};

use super::spread::{MEMBERS, Spread, Values};

/// A stretch of layers between two recorded outputs, with the embedding or the head at the ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The layers.
    pub(super) layers: Range<usize>,
    /// The recorded probe that it begins with; `None` is the tokens.
    pub(super) from: Option<String>,
    /// Whether it goes on to the logits.
    pub(super) head: bool,
}

fn layer_output(layer: usize) -> String {
    format!("layers.{layer}.mlp_residual")
}

/// The spans of a trace whose end was recorded.
pub(super) fn spans(trace: &Trace) -> Vec<Span> {
    let layers = trace.manifest().layers;
    let mut spans = Vec::new();
    let (mut from, mut begin) = (None, 0);
    for layer in 0..layers {
        let output = layer_output(layer);
        if trace.get(&output).is_some() {
            spans.push(Span { layers: begin..layer + 1, from: from.take(), head: false });
            (from, begin) = (Some(output), layer + 1);
        }
    }
    if trace.get("logits").is_some() || trace.get("final_norm").is_some() {
        spans.push(Span { layers: begin..layers, from, head: true });
    }
    spans
}

impl Span {
    /// Its name in reports: the probe that it ends with.
    pub(super) fn name(&self) -> String {
        if self.head { "logits".into() } else { layer_output(self.layers.end - 1) }
    }

    /// The op calls of this span alone.
    pub(super) fn of(&self, wiring: Wiring) -> Wiring {
        wiring.span(&self.layers, self.from.is_none(), self.head)
    }

    /// Probes of the residual stream and the head, which mean the same in every forward.
    pub(super) fn compares(&self, probe: &str) -> bool {
        let in_head = ["final_norm", "logits"].contains(&probe);
        let stream = ["attn_residual", "mlp_residual"];
        in_head && self.head
            || self
                .layers
                .clone()
                .any(|l| stream.iter().any(|s| probe == format!("layers.{l}.{s}")))
    }
}

/// Runs spans of a checkpoint's forward over a trace's tokens and calls.
#[derive(Clone, Copy)]
pub(super) struct Runner<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) trace: &'a Trace,
    /// The only rounding allowed; `None` is all that are legitimate.
    pub(super) preset: Option<&'static Preset>,
}

impl Runner<'_> {
    fn presets(&self) -> &'static [Preset] {
        match self.preset {
            Some(preset) => std::slice::from_ref(preset),
            None => legitimate(self.trace.manifest().dtype),
        }
    }

    /// What the trace recorded of a span.
    pub(super) fn observed(&self, span: &Span) -> Values {
        let probes = self.trace.names().filter(|p| span.compares(p));
        probes.filter_map(|p| Some((p.to_string(), self.trace.get(p)?.to_f64()))).collect()
    }

    /// The forward of a fault, or the right one.
    pub(super) fn wiring(&self, fault: Option<&ForwardFault>) -> Wiring {
        let (config, angle) = (self.checkpoint.config(), self.presets()[0].angle);
        match fault {
            Some(fault) => fault.wiring(config, angle),
            None => Wiring::new(config, angle),
        }
    }

    /// Whether a fault makes any difference to a span.
    pub(super) fn changes(&self, span: &Span, fault: &ForwardFault) -> bool {
        let (right, wrong) = (span.of(self.wiring(None)), span.of(self.wiring(Some(fault))));
        right.plan.nodes != wrong.plan.nodes
            || wrong.made.keys().any(|name| wrong.reads(name))
            || (right.positions, right.forgets) != (wrong.positions, wrong.forgets)
    }

    /// One run of the first `tokens` tokens, of no particular rounding.
    pub(super) fn one(
        &self,
        span: &Span,
        fault: Option<&ForwardFault>,
        tokens: usize,
    ) -> Result<Values> {
        self.run(span, self.wiring(fault), tokens, &self.presets()[0], None)
    }

    /// The right forward of each legitimate mixture of roundings, plain and in another order of its sums.
    pub(super) fn by_preset(&self, span: &Span) -> Result<Vec<Values>> {
        let tokens = self.trace.manifest().tokens.len();
        let mut all = Vec::new();
        for preset in self.presets() {
            for jitter in [None, Some(Jitter::new(1))] {
                all.push(self.run(span, self.wiring(None), tokens, preset, jitter)?);
            }
        }
        Ok(all)
    }

    /// A sample of legitimate roundings and orders of the same forward, over the whole trace.
    pub(super) fn members(&self, span: &Span, fault: Option<&ForwardFault>) -> Result<Spread> {
        let (tokens, presets) = (self.trace.manifest().tokens.len(), self.presets());
        let member = |i: usize| {
            let preset = &presets[i % presets.len()];
            self.run(span, self.wiring(fault), tokens, preset, Some(Jitter::new(i as u64 + 1)))
        };
        let members = (0..MEMBERS).map(member).collect::<Result<_>>()?;
        Ok(Spread::new(members, tokens))
    }

    fn run(
        &self,
        span: &Span,
        wiring: Wiring,
        tokens: usize,
        preset: &'static Preset,
        jitter: Option<Jitter>,
    ) -> Result<Values> {
        let wiring = span.of(wiring);
        match preset.dtype {
            Dtype::F64 => self.run_in::<f64>(span, wiring, tokens, preset, jitter),
            _ => self.run_in::<f32>(span, wiring, tokens, preset, jitter),
        }
    }

    fn run_in<R: Basis>(
        &self,
        span: &Span,
        wiring: Wiring,
        tokens: usize,
        preset: &'static Preset,
        jitter: Option<Jitter>,
    ) -> Result<Values> {
        let mut forward = Forward::<R>::wired(self.checkpoint, preset, wiring)?.streamed();
        if let Some(jitter) = jitter {
            forward = forward.jittered(jitter);
        }
        let manifest = self.trace.manifest();
        let mut values = Values::new();
        for &(start, end) in &manifest.segments {
            let end = end.min(tokens);
            if start >= end {
                break;
            }
            let mut given = Given::new();
            if let Some((name, t)) =
                span.from.as_deref().and_then(|p| Some((p, self.trace.get(p)?)))
            {
                let rows = t.slice_outer(start..end).to_f64().into_iter().map(R::lift).collect();
                given.insert(name, (rows, t.cols()));
            }
            let mut see = |node: &Node, x: &[R]| {
                if span.compares(&node.probe) {
                    values
                        .entry(node.probe.clone())
                        .or_default()
                        .extend(x.iter().map(|v| v.value()));
                }
            };
            forward.step_from(&manifest.tokens[start..end], given, &mut see)?;
        }
        Ok(values)
    }
}
