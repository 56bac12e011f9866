//! A recorded forward: each op on the recording's own inputs, and the recording as a free-running forward.

use std::collections::BTreeMap;

use assay_reference::ops::rope::Angle;
use assay_reference::qwen::Plan;
use assay_reference::trace::Trace;

use super::mend::Model;
use super::plural;
use super::report::{Evidence, Outcome, Row};
use crate::diff::{self, DiffOptions, DiffReport, NodeReport};
use crate::finding::Finding;
use crate::forward;
use crate::judge::Verdict;
use crate::report::text::coverage;

const OPS: (&str, &str, &str) = (
    "each op of the engine",
    "every recorded op judged by itself on the recording's own inputs",
    "minutes, and a recording",
);
const FORWARD: (&str, &str, &str) = (
    "the forward as a whole",
    "layer outputs and logits against legitimate forwards and wrong ones: constants, order, positions, weights",
    "minutes, and a recording",
);

/// Errors that lean, of a call that is within its bounds.
const LEAN: &str = "biased_rounding";

fn row(of: (&'static str, &'static str, &'static str), outcome: Outcome) -> Row {
    Row::new(of.0, of.1, of.2, outcome)
}

/// The rows that need a trace.
pub(super) fn rows(
    model: Result<&Model, &str>,
    trace: Option<&Trace>,
    step: &mut dyn FnMut(usize, usize, &str),
) -> anyhow::Result<[Row; 2]> {
    let both = |needs: String| {
        let outcome = Outcome::NotTestable { needs };
        Ok([row(OPS, outcome.clone()), row(FORWARD, outcome)])
    };
    let Some(trace) = trace else {
        return both(
            "a recording of the failing engine (--trace T; the taps of verify/python make one)"
                .into(),
        );
    };
    let model = match model {
        Ok(model) => model,
        Err(why) => return both(format!("a checkpoint that can be read: {why}")),
    };
    if let Some(other) = of_another_model(model, trace) {
        let needs = "a recording of this model".to_string();
        return Ok([
            row(OPS, Outcome::Convicted { evidence: vec![other] }),
            row(FORWARD, Outcome::NotTestable { needs }),
        ]);
    }
    let (shapes, bad) = shapes(model, trace);
    let trace = trace.clone().only(|probe| !bad.iter().any(|b| b == probe));
    let options = DiffOptions { preset: None, unseen: true, forward: true };
    let report = diff::diff(&model.checkpoint, &trace, options, step)?;
    let (stretches, ops): (Vec<&NodeReport>, Vec<&NodeReport>) =
        report.nodes.iter().partition(|n| n.op == forward::NAME);
    let mut evidence = shapes;
    evidence.extend(introduced(&ops));
    let whole = as_a_whole(&stretches, &ops, &evidence);
    let judged = ops.iter().filter(|n| !is_skipped(n)).count();
    let outcome = if !evidence.is_empty() {
        Outcome::Convicted { evidence }
    } else if judged == 0 {
        let needs = "a recording of single ops: this one holds none whose inputs are recorded too";
        Outcome::NotTestable { needs: needs.into() }
    } else {
        let by = format!("{} pass on the recording's own inputs", plural(judged, "op"));
        Outcome::Cleared { by, limits: limits(&report, &ops) }
    };
    Ok([row(OPS, outcome), row(FORWARD, whole)])
}

fn of_another_model(model: &Model, trace: &Trace) -> Option<Evidence> {
    let (config, manifest) = (model.checkpoint.config(), trace.manifest());
    let class = config.architecture.class();
    let place = trace.dir().join("manifest.json").display().to_string();
    if manifest.architecture != class || manifest.layers != config.num_hidden_layers {
        let what = format!(
            "records {} with {}; the checkpoint is {class} with {}",
            manifest.architecture,
            plural(manifest.layers, "layer"),
            config.num_hidden_layers
        );
        return Some(Evidence::own("trace.other_model", place, what));
    }
    let beyond = manifest.tokens.iter().find(|&&id| id as usize >= config.vocab_size)?;
    let what = format!("token {beyond} is beyond the vocabulary of {}", config.vocab_size);
    Some(Evidence::own("trace.other_model", place, what))
}

/// Recorded tensors in other shapes than the model's, and their probes.
fn shapes(model: &Model, trace: &Trace) -> (Vec<Evidence>, Vec<String>) {
    let plan = Plan::new(model.checkpoint.config(), Angle::F32);
    let rows = trace.manifest().tokens.len();
    let mut wrong = Vec::new();
    let mut first = None;
    for node in &plan.nodes {
        let expect = node.view.shape(rows, node.width);
        if let Some(t) = trace.get(&node.probe).filter(|t| t.shape() != expect) {
            first.get_or_insert_with(|| {
                format!("`{}` has shape {:?}, the model's is {expect:?}", node.probe, t.shape())
            });
            wrong.push(node.probe.clone());
        }
    }
    let evidence = first.map(|what| {
        let more = match wrong.len() {
            1 => String::new(),
            n => format!("; {} in all are of other shapes", plural(n, "probe")),
        };
        Evidence::own("trace.shape", wrong[0].clone(), what + &more)
    });
    (evidence.into_iter().collect(), wrong)
}

fn is_skipped(node: &NodeReport) -> bool {
    matches!(node.judgement.verdict, Verdict::Skipped { .. })
}

/// What single ops are convicted of: one entry for a fault, however many calls have it.
pub(super) fn introduced(ops: &[&NodeReport]) -> Vec<Evidence> {
    let mut found: Vec<(Finding, Vec<&NodeReport>)> = Vec::new();
    for &node in ops {
        for finding in node.judgement.verdict.findings() {
            let same = |f: &Finding| f.code == finding.code && f.name == finding.name;
            match found.iter_mut().find(|(f, _)| same(f) && f.code != "A001") {
                Some((_, nodes)) => nodes.push(node),
                None => found.push((finding, vec![node])),
            }
        }
    }
    // What moves some calls of an op out of their bounds can move others within them.
    let cause = |nodes: &[&NodeReport], of: &NodeReport| {
        nodes.iter().any(|n| n.op == of.op && n.kernel == of.kernel)
    };
    let leans = |f: &Finding| f.name == LEAN;
    let (leaning, mut named): (Vec<_>, Vec<_>) = found.into_iter().partition(|(f, _)| leans(f));
    for (lean, nodes) in leaning {
        let mut alone: Vec<&NodeReport> = Vec::new();
        for node in nodes {
            match named.iter_mut().find(|(f, nodes)| f.code != "A001" && cause(nodes, node)) {
                Some((f, _)) => {
                    f.text += &format!(
                        "; {} leans to one side within its bounds, which this may account for",
                        node.probe
                    );
                }
                None => alone.push(node),
            }
        }
        if !alone.is_empty() {
            named.push((lean, alone));
        }
    }
    named.into_iter().map(|(finding, nodes)| told(finding, &nodes, ops)).collect()
}

fn told(finding: Finding, nodes: &[&NodeReport], ops: &[&NodeReport]) -> Evidence {
    const SHOWN: usize = 3;
    let op = nodes[0].op.as_str();
    let kernel = nodes[0].kernel;
    let of = |n: &&&NodeReport| n.op == op && n.kernel == kernel && !is_skipped(n);
    let all = ops.iter().filter(of).count();
    let more = format!("{} more", nodes.len().saturating_sub(SHOWN));
    let mut place: Vec<&str> = nodes.iter().take(SHOWN).map(|n| n.probe.as_str()).collect();
    if nodes.len() > SHOWN {
        place.push(&more);
    }
    let named = kernel.map_or(op.to_string(), |k| format!("kernel {k} ({op})"));
    let place = format!("{} [{named}, {} of {all} calls]", place.join(", "), nodes.len());
    let advice = advice(&finding, nodes.len() == all && all > 1, kernel.is_some());
    Evidence::found(&finding, place, advice)
}

/// What to do about an op's fault. `everywhere`: all calls of the op have it.
fn advice(finding: &Finding, everywhere: bool, kernel: bool) -> String {
    let name = finding.name.as_str();
    let slug = name.split_once('.').map_or(name, |(_, slug)| slug);
    let first = match slug {
        "inconsistent_recording" => {
            return "Repair the recorder (reused buffers, hooks that fire twice), and record again"
                .into();
        }
        "ranks_differ" => {
            return "Compare the ranks' recordings at this tensor: look at the collective before it, and at what each rank loaded"
                .into();
        }
        "wrong_theta" => {
            "Compare rope_theta as the engine read it with the published config.json, in both spellings"
        }
        "wrong_eps" => "Compare rms_norm_eps as the engine read it with the published config.json",
        "bias_dropped" => {
            "Look at the engine's loader: which tensors of the checkpoint it does not read"
        }
        "wrong_scale" => "Look at the head_dim that the engine takes for the scale of the scores",
        "unexplained" => {
            "Save the recorded inputs of this op as the reproducer; the pattern says which rows and columns are wrong"
        }
        _ if kernel => {
            "Repair this kernel: `assay check --kernel NAME --source FILE` repeats the experiment"
        }
        _ => "Replace or switch off the kernel of this op, and check it alone",
    };
    let scope = match everywhere {
        true => {
            "; all calls have it, so it is the kernel or a parameter, and not a layer's weights"
        }
        false if kernel => "",
        false => {
            "; other calls of the op are right, so look at what is special here: weights, shapes, the path by size"
        }
    };
    format!("{first}{scope}. docs/findings.md: {}", finding.code)
}

/// What the recording could not have shown.
fn limits(report: &DiffReport, ops: &[&NodeReport]) -> Vec<String> {
    let skipped = ops.iter().filter(|n| is_skipped(n)).count();
    let mut limits: Vec<String> = coverage(report).lines().map(str::to_owned).collect();
    if skipped > 0 {
        limits.push(format!(
            "{} could not be judged: not recorded, or an input is not",
            plural(skipped, "op")
        ));
    }
    limits
}

/// The layer of a probe; what lies behind the layers counts as one more.
fn layer_of(probe: &str) -> Option<usize> {
    match probe.strip_prefix("layers.") {
        Some(rest) => rest.split('.').next()?.parse().ok(),
        None if probe == "embed" => Some(0),
        None => Some(usize::MAX),
    }
}

/// Stretches that no convicted op accounts for.
fn as_a_whole(stretches: &[&NodeReport], ops: &[&NodeReport], convicted: &[Evidence]) -> Outcome {
    if stretches.is_empty() {
        let needs = "layer outputs or logits in the recording (`layers.N.mlp_residual`, `logits`)";
        return Outcome::NotTestable { needs: needs.into() };
    }
    let mut named: BTreeMap<usize, String> = BTreeMap::new();
    // Ranks that differ say nothing of rank 0's numbers, which are the recorded ones.
    for node in ops.iter().filter(|n| n.op != diff::RANKS) {
        for f in node.judgement.verdict.findings().iter().filter(|f| f.code != "A001") {
            if let Some(layer) = layer_of(&node.probe) {
                named.entry(layer).or_insert_with(|| format!("{} {}", f.code, f.name));
            }
        }
    }
    let mut evidence: Vec<Evidence> = Vec::new();
    let (mut limits, mut right, mut from) = (Vec::new(), 0, 0);
    for s in stretches {
        let end = layer_of(&s.probe).unwrap_or(usize::MAX);
        let own = named.range(from..=end).next().map(|(_, name)| name.clone());
        from = end.saturating_add(1);
        let findings = s.judgement.verdict.findings();
        right += usize::from(findings.is_empty());
        for f in findings {
            match &own {
                Some(name) => {
                    limits.push(format!("{} deviates, and {name} accounts for it", s.probe))
                }
                None if !evidence.iter().any(|e| e.code == f.code && e.code != "A001") => {
                    let place = s.probe.clone();
                    evidence.push(Evidence::found(&f, place, whole_advice(&f, convicted)));
                }
                None => {}
            }
        }
    }
    limits.dedup();
    if !evidence.is_empty() {
        return Outcome::Convicted { evidence };
    }
    let n = stretches.len();
    let by = format!("{right} of {n} recorded outputs are a right forward's");
    let by =
        if limits.is_empty() { by } else { format!("{by}; the others follow from the ops above") };
    for s in stretches {
        if let Verdict::Pass { unseen_faults, .. } = &s.judgement.verdict
            && !unseen_faults.is_empty()
        {
            limits.push(format!("could not have shown: {}", unseen_faults.join(", ")));
            break;
        }
    }
    Outcome::Cleared { by, limits }
}

/// What to do about a wrong forward.
pub(super) fn whole_advice(f: &Finding, convicted: &[Evidence]) -> String {
    if f.code == "A001" {
        let known = convicted.iter().any(Evidence::is_unexplained);
        let text = if known {
            "The unexplained op above is in this stretch: begin there"
        } else {
            "No known wrong forward explains it: record the ops of this stretch, which names the first wrong one"
        };
        return text.into();
    }
    format!(
        "Look at how the engine reads config and weights; every op may be right for what it is given. docs/findings.md: {}",
        f.code
    )
}
