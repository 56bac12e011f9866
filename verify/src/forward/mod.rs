//! Judges a recording as a free-running forward: by layer outputs or logits alone.
//!
//! The forward is an op too, and verification is classification: the recording is compared with a
//! sample of legitimate forwards (`spread`); if it is none of them, every wrong forward of the
//! catalogue ([`assay_reference::qwen::variant`]) is tried, and the one of whose sample it is a member
//! names the fault. Being nearest is not enough.
//!
//! Three things keep that cheap. Where layer outputs were recorded, each layer is run on its own
//! recorded input, and only the first that is wrong is searched. Otherwise hypotheses are tried on the
//! shortest beginning of the prompt that shows the error: a row depends on the tokens up to it only. And
//! samples are made only for the few hypotheses whose one run comes nearest.

mod growth;
mod run;
mod solve;
mod spread;

use std::collections::BTreeMap;

use assay_reference::Result;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::qwen::variant::{Reach, faults};
use assay_reference::qwen::{ForwardFault, Preset};
use assay_reference::trace::Trace;

pub use self::growth::{Growth, growth};
use self::run::{Runner, Span, spans};
use self::spread::{Fit, Spread, Values};
pub(crate) use self::spread::{MEMBERS, limit};
use crate::finding::Finding;
use crate::judge::{Judgement, Verdict};

/// One stretch of a recorded forward, named by the probe that it ends with.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// `logits`, or `layers.3.mlp_residual`.
    pub probe: String,
    /// The verdict; its error is relative to how far legitimate forwards lie apart.
    pub judgement: Judgement,
}

/// What stands in reports where an op's name would.
pub const NAME: &str = "forward";

/// Hypotheses of which samples are made.
const BEAM: usize = 6;
/// Most hypotheses of faults in single layers.
const MOST_LOCAL: usize = 512;

/// Judges what `trace` recorded of the residual stream between layers and of the logits. `preset` is
/// the only rounding allowed; `None` is all that are legitimate. `progress` is told of each stretch.
///
/// The result is empty when neither a layer's output nor the logits were recorded.
///
/// # Errors
/// When a forward cannot be run.
pub fn classify(
    checkpoint: &Checkpoint,
    trace: &Trace,
    preset: Option<&'static Preset>,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Vec<Stretch>> {
    let runner = Runner { checkpoint, trace, preset };
    let spans = spans(trace);
    let mut search = Search {
        runner,
        tokens: trace.manifest().tokens.len(),
        all: faults(checkpoint.config()),
        found: Vec::new(),
        hypotheses: 0,
    };
    let mut passed = Vec::new();
    let mut stretches = Vec::new();
    for (i, span) in spans.iter().enumerate() {
        progress(i, spans.len(), &span.name());
        let (judgement, right) = search.judge(span)?;
        if judgement.verdict.is_pass() {
            passed.push((span, right));
        }
        stretches.push(Stretch { probe: span.name(), judgement });
    }
    let unseen = search.unseen(&passed)?;
    for stretch in &mut stretches {
        if let Verdict::Pass { unseen_faults, .. } = &mut stretch.judgement.verdict {
            unseen_faults.clone_from(&unseen);
        }
    }
    Ok(stretches)
}

struct Search<'a> {
    runner: Runner<'a>,
    tokens: usize,
    all: Vec<ForwardFault>,
    /// Faults that explained an earlier stretch.
    found: Vec<ForwardFault>,
    hypotheses: usize,
}

impl Search<'_> {
    fn judge(&mut self, span: &Span) -> Result<(Judgement, Spread)> {
        let before = self.hypotheses;
        let observed = self.runner.observed(span);
        let right = self.members(span, None)?;
        let fit = right.fit(&observed, self.tokens);
        let verdict = if fit.ratio <= 1.0 {
            let conventions = vec!["legitimate rounding".into()];
            let (unseen_faults, indistinct, fault_pairs) = Default::default();
            Verdict::Pass { conventions, unseen_faults, indistinct, fault_pairs }
        } else {
            self.name(span, &observed, &right, &fit)?
        };
        let judgement = Judgement {
            verdict,
            runs: 1,
            elements: observed.values().map(Vec::len).sum(),
            worst: fit.ratio,
            equal_share: equal_share(&self.runner.one(span, None, self.tokens)?, &observed),
            hypotheses: self.hypotheses - before,
            ill_conditioned: Vec::new(),
            ..Judgement::skipped("")
        };
        Ok((judgement, right))
    }

    fn members(&mut self, span: &Span, fault: Option<&ForwardFault>) -> Result<Spread> {
        self.hypotheses += 1;
        self.runner.members(span, fault)
    }

    /// Names what explains a stretch that the right forward does not.
    fn name(
        &mut self,
        span: &Span,
        observed: &Values,
        right: &Spread,
        fit: &Fit,
    ) -> Result<Verdict> {
        if let Some((probe, i)) = not_finite(observed) {
            let pattern = format!("`{probe}` is not finite, first at element {i}");
            return Ok(Verdict::Unexplained { pattern });
        }
        // What explained an earlier stretch is tried first.
        let known = self.explaining(span, observed, self.found.clone())?;
        let mut nearest = None;
        let mut explaining = known;
        let mut tried = "";
        if explaining.is_empty() {
            // The shortest beginning of the recording that shows the error.
            let tokens = prefixes(self.tokens)
                .find(|&t| right.fit(observed, t).ratio > 1.0)
                .unwrap_or(self.tokens);
            let whole = self.all.clone().into_iter().filter(|f| f.reach != Reach::SomeLayers);
            let local = self.local(span);
            let one_layer = span.layers.len() == 1;
            let first = whole.chain(local.clone().into_iter().filter(|_| one_layer));
            let ranked = self.ranked(span, observed, first.collect(), tokens)?;
            nearest = ranked.first().map(|f| f.label());
            explaining = self.explaining(span, observed, ranked)?;
            if explaining.is_empty() && !one_layer {
                if local.len() <= MOST_LOCAL {
                    let ranked = self.ranked(span, observed, local, tokens)?;
                    explaining = self.explaining(span, observed, ranked)?;
                } else {
                    tried = "; faults of single layers were not tried: record the layers' outputs";
                }
            }
            // What no list holds: a value that is solved for, then two faults at once.
            if explaining.is_empty() {
                let solved = self.solved(span, observed, tokens)?;
                explaining = solved.fits;
                if explaining.is_empty() {
                    match self.pairs(span, observed, tokens, solved.nearest)? {
                        Some(pairs) => explaining = pairs,
                        None if tried.is_empty() => {
                            tried = "; pairs of faults were not tried in a model of this size: record the layers' outputs";
                        }
                        None => {}
                    }
                }
            }
        }
        let Some((best, best_fit)) = explaining.first().cloned() else {
            let nearest = nearest.map(|n| format!("; nearest is {n}")).unwrap_or_default();
            return Ok(Verdict::Unexplained { pattern: format!("{}{nearest}{tried}", off(fit)) });
        };
        self.found = explaining.iter().map(|(f, _)| f.clone()).collect();
        let text = evidence(&best, &best_fit, fit, &explaining[1..]);
        let first = Finding { code: best.entry.code.into(), name: best.entry.name(), text };
        let others = best.also.iter().map(|f| Finding {
            code: f.entry.code.into(),
            name: f.entry.name(),
            text: format!(
                "{}, beside {}; neither explains it alone",
                worded(f),
                best.label_alone()
            ),
        });
        Ok(Verdict::Fail { findings: std::iter::once(first).chain(others).collect() })
    }

    /// Every fault in each layer of the span alone.
    fn local(&self, span: &Span) -> Vec<ForwardFault> {
        let config = self.runner.checkpoint.config();
        let of = |n: usize| self.all.iter().filter_map(move |f| f.within(n..n + 1, config));
        let alone = span.layers.len() == 1;
        // In a span of one layer, a fault of all layers is the same one.
        span.layers
            .clone()
            .flat_map(of)
            .filter(|f| !alone || f.reach == Reach::SomeLayers)
            .collect()
    }

    /// The few hypotheses of which one run comes nearest, and nearer than the right forward.
    fn ranked(
        &mut self,
        span: &Span,
        observed: &Values,
        faults: Vec<ForwardFault>,
        tokens: usize,
    ) -> Result<Vec<ForwardFault>> {
        let right = self.runner.one(span, None, tokens)?;
        let limit = distance(observed, &right, tokens, self.tokens);
        let mut ranked = Vec::new();
        for fault in faults.into_iter().filter(|f| self.runner.changes(span, f)) {
            self.hypotheses += 1;
            let run = self.runner.one(span, Some(&fault), tokens)?;
            let d = distance(observed, &run, tokens, self.tokens);
            if d < limit {
                ranked.push((d, fault));
            }
        }
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(ranked.into_iter().take(BEAM).map(|(_, f)| f).collect())
    }

    /// Those of whose sample the recording is a member, the best first.
    fn explaining(
        &mut self,
        span: &Span,
        observed: &Values,
        faults: Vec<ForwardFault>,
    ) -> Result<Vec<(ForwardFault, Fit)>> {
        let mut fits = Vec::new();
        for fault in faults {
            let sample = self.members(span, Some(&fault))?;
            let fit = sample.fit(observed, self.tokens);
            if sample.is_finite() && fit.ratio <= 1.0 {
                fits.push((fault, fit));
            }
        }
        fits.sort_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio));
        Ok(fits)
    }

    /// Catalogued faults that would have passed in every stretch that did.
    fn unseen(&mut self, passed: &[(&Span, Spread)]) -> Result<Vec<String>> {
        let mut unseen = Vec::new();
        if passed.is_empty() {
            return Ok(unseen);
        }
        for fault in self.all.iter().filter(|f| f.reach != Reach::SomeLayers) {
            let mut seen = false;
            for (span, right) in passed.iter().filter(|(s, _)| self.runner.changes(s, fault)) {
                for tokens in prefixes(self.tokens) {
                    self.hypotheses += 1;
                    let run = self.runner.one(span, Some(fault), tokens)?;
                    seen = right.fit(&run, tokens).ratio > 1.0;
                    if seen {
                        break;
                    }
                }
                if seen {
                    break;
                }
            }
            if !seen {
                unseen.push(fault.label());
            }
        }
        Ok(unseen)
    }
}

/// 4, 8, 16 ... and all.
fn prefixes(tokens: usize) -> impl Iterator<Item = usize> {
    let powers = (2..).map(|e| 1usize << e).take_while(move |&t| t < tokens);
    powers.chain([tokens])
}

fn not_finite(observed: &Values) -> Option<(&str, usize)> {
    let first = |v: &[f64]| v.iter().position(|x| !x.is_finite());
    observed.iter().find_map(|(p, v)| Some((p.as_str(), first(v)?)))
}

/// Relative distance of the first `tokens` of `all` rows, the mean over the probes that both have.
fn distance(observed: &Values, run: &Values, tokens: usize, all: usize) -> f64 {
    let at = |(probe, x): (&String, &Vec<f64>)| {
        let y = run.get(probe)?;
        let x = x.get(..x.len() / all * tokens).filter(|x| x.len() == y.len())?;
        let error: f64 = x.iter().zip(y).map(|(a, b)| (a - b) * (a - b)).sum();
        let scale: f64 = x.iter().map(|a| a * a).sum();
        Some((error / scale).sqrt())
    };
    let all: Vec<f64> = observed.iter().filter_map(at).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    if mean.is_nan() { f64::INFINITY } else { mean }
}

/// Share of elements with the same bits.
fn equal_share(a: &Values, b: &Values) -> f64 {
    let pairs: BTreeMap<_, _> = a.iter().filter_map(|(p, v)| Some((p, (v, b.get(p)?)))).collect();
    let total: usize = pairs.values().map(|(v, _)| v.len()).sum();
    let equal = pairs.values().flat_map(|(v, w)| v.iter().zip(*w)).filter(|(x, y)| x == y).count();
    if total == 0 { 0.0 } else { equal as f64 / total as f64 }
}

fn off(fit: &Fit) -> String {
    format!(
        "`{}` is {:.2e} (relative rms) from the right forward, {} what legitimate forwards differ by at most, most in row {}",
        fit.probe,
        fit.distance,
        times(fit.ratio),
        fit.row
    )
}

fn times(ratio: f64) -> String {
    if ratio < 1e6 { format!("{ratio:.3} times") } else { "over a million times".into() }
}

/// What a fault is, with its key in front.
fn worded(fault: &ForwardFault) -> String {
    match fault.key.as_str() {
        "" => fault.detail.clone(),
        key => format!("{key}: {}", fault.detail),
    }
}

fn evidence(best: &ForwardFault, own: &Fit, right: &Fit, others: &[(ForwardFault, Fit)]) -> String {
    let mut text = worded(best);
    if !best.also.is_empty() {
        let also: Vec<String> = best.also.iter().map(ForwardFault::label_alone).collect();
        text += &format!(", together with {}", also.join(", "));
    }
    if let Some(only) = best.only() {
        text += &format!(", in layer {} alone", only.start);
    }
    text += &format!(
        ". {}; from this forward {:.2e}, {} that. See {}",
        off(right),
        own.distance,
        times(own.ratio),
        best.entry.source
    );
    if !others.is_empty() {
        let list: Vec<String> = others.iter().map(|(f, _)| located(f)).collect();
        text += &format!(". Equally good here: {}", list.join(", "));
    }
    text
}

/// `forward.bias_dropped (k) in layer 1`.
fn located(fault: &ForwardFault) -> String {
    match fault.only() {
        Some(only) => format!("{} in layer {}", fault.label(), only.start),
        None => fault.label(),
    }
}
