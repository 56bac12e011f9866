//! Which wrong forward explains what a server said: the catalogue's, in all layers or in one, then those with a value
//! that is solved for ([`solve`](super::solve)). As in [`forward`](crate::forward), being nearest is not enough: what explains must lie
//! among legitimate forwards of that fault.

use std::sync::Arc;

use assay_reference::Result;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::variant::{Reach, faults};
use assay_reference::qwen::{ForwardFault, Preset, Wiring};

use super::elements::Elements;
use super::solve;
use super::spread::{Fit, Roundings, Sample, distance};

/// Hypotheses of which samples are made.
pub(super) const BEAM: usize = 6;
/// Samples are made of hypotheses of which one run is within this many times what legitimate forwards differ by at most.
const FAR: f64 = 4.0;
/// Most hypotheses of faults in single layers.
const MOST_LOCAL: usize = 512;

/// Makes a forward for a preset.
pub(super) type Wire = Arc<dyn Fn(&'static Preset) -> Wiring + Send + Sync>;

/// A wrong forward.
#[derive(Clone)]
pub(super) struct Hypothesis {
    /// Finding code.
    pub(super) code: &'static str,
    /// Finding name.
    pub(super) name: String,
    /// Short: `forward.bias_dropped (k) in layer 0`.
    pub(super) label: String,
    /// One sentence.
    pub(super) detail: String,
    /// Where it was seen; may be empty.
    pub(super) source: &'static str,
    pub(super) wire: Wire,
}

/// What a search found.
#[derive(Default)]
pub(super) struct Outcome {
    /// What explains, the best first.
    pub(super) explaining: Vec<(Hypothesis, Fit)>,
    /// The one that comes nearest, if none explains.
    pub(super) nearest: Option<String>,
    /// Hypotheses that were tried.
    pub(super) tried: usize,
    /// What was not tried.
    pub(super) left_out: Vec<String>,
}

/// What is searched: a server's elements, and its model.
pub(super) struct Search<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) roundings: Roundings,
    pub(super) elements: &'a Elements,
    /// The elements of the shortest beginning that shows the error.
    pub(super) short: Elements,
    /// How far the right forward is from those.
    pub(super) right: f64,
    /// How far legitimate forwards of the right model are apart at most, over all elements.
    allowed: f64,
    pub(super) outcome: Outcome,
    pub(super) progress: &'a mut dyn FnMut(&str),
}

/// Searches. `right` is the sample of the right forward over `elements`.
///
/// # Errors
/// When a forward cannot be run.
pub(super) fn search(
    checkpoint: &Checkpoint,
    roundings: Roundings,
    elements: &Elements,
    right: &Sample,
    progress: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let observed = elements.observed();
    let shown = |tokens: usize| {
        let which = elements.within(tokens);
        !which.is_empty() && right.fit(&elements.list, &observed, &which).ratio > 1.0
    };
    let longest = elements.longest();
    let powers = (2..).map(|e| 1usize << e).take_while(|&t| t < longest);
    let tokens = powers.chain([longest]).find(|&t| shown(t)).unwrap_or(longest);
    let short = elements.first(tokens);
    let preset = roundings.first();
    let wiring = Wiring::new(checkpoint.config(), preset.angle);
    let own = short.run(checkpoint, &wiring, preset, None)?;
    let mut search = Search {
        right: distance(&short.observed(), &own),
        allowed: right.fit(&elements.list, &observed, &elements.within(longest)).allowed,
        checkpoint,
        roundings,
        elements,
        short,
        outcome: Outcome::default(),
        progress,
    };
    search.catalogue()?;
    if search.outcome.explaining.is_empty() {
        let solved = solve::hypotheses(&mut search)?;
        search.explain(solved)?;
    }
    Ok(search.outcome)
}

impl Search<'_> {
    fn catalogue(&mut self) -> Result<()> {
        let config = self.checkpoint.config();
        let all = faults(config);
        let whole = all.iter().filter(|f| f.reach != Reach::SomeLayers).cloned().collect();
        let ranked = self.ranked(whole)?;
        self.explain(ranked)?;
        if !self.outcome.explaining.is_empty() {
            return Ok(());
        }
        let layers = config.num_hidden_layers;
        let local: Vec<ForwardFault> = (0..layers)
            .flat_map(|n| all.iter().filter_map(move |f| f.within(n..n + 1, config)))
            .collect();
        if local.len() > MOST_LOCAL {
            self.outcome.left_out.push(format!(
                "{} faults of single layers: a tap of the layers' outputs (assay diff) tells the layer first",
                local.len()
            ));
            return Ok(());
        }
        let ranked = self.ranked(local)?;
        self.explain(ranked)
    }

    /// The few of which one run comes nearest, and nearer than the right forward.
    fn ranked(&mut self, faults: Vec<ForwardFault>) -> Result<Vec<Hypothesis>> {
        let config = self.checkpoint.config().clone();
        let mut ranked = Vec::new();
        for fault in faults {
            let preset = self.roundings.first();
            let right = Wiring::new(&config, preset.angle);
            let wrong = fault.wiring(&config, preset.angle);
            if !changes(&right, &wrong) {
                continue;
            }
            let hypothesis = of(&fault, &config);
            if let Some(d) = self.distance(&hypothesis)?.filter(|d| *d < self.right) {
                ranked.push((d, hypothesis));
            }
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(ranked.into_iter().take(BEAM).map(|(_, h)| h).collect())
    }

    /// How far one run is from what was said in the shortest beginning, nats; `None` where it cannot be run.
    pub(super) fn distance(&mut self, hypothesis: &Hypothesis) -> Result<Option<f64>> {
        self.outcome.tried += 1;
        (self.progress)(&format!("hypothesis {}: {}", self.outcome.tried, hypothesis.label));
        let preset = self.roundings.first();
        let run = self.short.run(self.checkpoint, &(hypothesis.wire)(preset), preset, None)?;
        Ok(Some(distance(&self.short.observed(), &run)).filter(|d| d.is_finite()))
    }

    /// Keeps those of whose sample the server is a member, the best first.
    fn explain(&mut self, hypotheses: Vec<Hypothesis>) -> Result<()> {
        if let Some(first) = hypotheses.first() {
            self.outcome.nearest.get_or_insert_with(|| first.label.clone());
        }
        let observed = self.elements.observed();
        let all: Vec<usize> = (0..observed.len()).collect();
        for hypothesis in hypotheses {
            (self.progress)(&format!("sample of {}", hypothesis.label));
            // A single run costs a twelfth: what is this far off is no member of its own sample either.
            let preset = self.roundings.first();
            let run =
                self.elements.run(self.checkpoint, &(hypothesis.wire)(preset), preset, None)?;
            let off = distance(&observed, &run);
            if !off.is_finite() || off > FAR * self.allowed {
                continue;
            }
            let sample = Sample::new(
                self.elements,
                self.checkpoint,
                self.roundings,
                &*hypothesis.wire,
                &mut |_| {},
            )?;
            if !sample.is_finite() {
                continue;
            }
            let fit = sample.fit(&self.elements.list, &observed, &all);
            if fit.ratio <= 1.0 {
                self.outcome.explaining.push((hypothesis, fit));
            }
        }
        self.outcome.explaining.sort_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio));
        Ok(())
    }
}

/// Whether two forwards differ at all.
fn changes(right: &Wiring, wrong: &Wiring) -> bool {
    right.plan.nodes != wrong.plan.nodes
        || wrong.made.keys().any(|name| wrong.reads(name))
        || (right.positions, right.forgets) != (wrong.positions, wrong.forgets)
}

fn of(fault: &ForwardFault, config: &assay_reference::checkpoint::Config) -> Hypothesis {
    let place = fault.only().map(|l| format!(" in layer {}", l.start)).unwrap_or_default();
    let (fault, config) = (fault.clone(), config.clone());
    Hypothesis {
        code: fault.entry.code,
        name: fault.entry.name(),
        label: format!("{}{place}", fault.label()),
        detail: format!("{}{}", fault.detail, place.replacen(" in", ", in", 1)),
        source: fault.entry.source,
        wire: Arc::new(move |preset| fault.wiring(&config, preset.angle)),
    }
}
