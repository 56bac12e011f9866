//! The logits' state: not finite, constant, collapsed, or finite. From a recording, a server, or the answer's text.

use std::collections::BTreeSet;

use assay_reference::Tensor;
use assay_reference::checkpoint::Tokenizer;
use assay_reference::ops::rope::Angle;
use assay_reference::qwen::preset::legitimate;
use assay_reference::qwen::{Forward, Node, Plan};
use assay_reference::trace::Trace;

use super::mend::Model;
use super::report::{Evidence, Outcome, Row};
use super::server::Answer;
use super::{Given, ServerEvidence, plural};

/// Rows from which on it means something that all have the same leader.
const ENOUGH_ROWS: usize = 8;
/// Characters of an answer below which repetition is not looked for.
const ENOUGH_TEXT: usize = 32;

/// The row of the logits' state.
pub(super) fn row(
    model: Result<&Model, &str>,
    given: &Given<'_>,
    server: Option<&ServerEvidence>,
) -> Row {
    let mut evidence = Vec::new();
    let mut by = Vec::new();
    let mut limits = Vec::new();
    if let Some(trace) = given.trace {
        match trace.get("logits") {
            Some(logits) => of_trace(model, trace, logits, &mut evidence, &mut by),
            None => limits.push("the trace has no logits".to_string()),
        }
        evidence.extend(not_finite(model, trace));
    }
    match server.map(|s| &s.logits) {
        Some(Answer::Right { by: text, .. }) => by.push(text.clone()),
        Some(Answer::Wrong(found)) => evidence.extend(found.iter().cloned()),
        Some(Answer::Unknown(why)) => limits.push(format!("for the server's logits: {why}")),
        None => {}
    }
    if let Some(answer) = given.answer {
        match of_answer(model, answer) {
            Some(found) => evidence.push(found),
            None => by.push("the answer does not repeat itself".into()),
        }
    }
    let outcome = if !evidence.is_empty() {
        Outcome::Convicted { evidence }
    } else if !by.is_empty() {
        Outcome::Cleared { by: by.join("; "), limits }
    } else {
        let mut needs = vec![
            "logits of a failing prompt (--trace T), the server (--server URL), or what the service answered (--text F)"
                .to_owned(),
        ];
        needs.extend(limits);
        Outcome::NotTestable { needs: needs.join("; ") }
    };
    Row::new(
        "logits' state",
        "not finite, constant, led by one token, or finite",
        "seconds",
        outcome,
    )
}

fn of_trace(
    model: Result<&Model, &str>,
    trace: &Trace,
    logits: &Tensor,
    evidence: &mut Vec<Evidence>,
    by: &mut Vec<String>,
) {
    let rows = trace.manifest().tokens.len();
    let values = logits.to_f64();
    let width = (values.len() / rows.max(1)).max(1);
    if values.iter().any(|x| !x.is_finite()) {
        return;
    }
    let constant: Vec<usize> = values
        .chunks(width)
        .enumerate()
        .filter(|(_, row)| row.len() > 1 && row.iter().all(|x| *x == row[0]))
        .map(|(i, _)| i)
        .collect();
    if let Some(first) = constant.first() {
        let what = format!(
            "all {width} logits are equal in {} of {rows} rows, first in row {first}",
            constant.len()
        );
        evidence.push(Evidence::own("logits.constant", "logits", what));
        return;
    }
    let leaders: Vec<usize> = values.chunks(width).map(leader).collect();
    let distinct = leaders.iter().collect::<BTreeSet<_>>().len();
    if distinct == 1 && rows >= ENOUGH_ROWS {
        let right = model.ok().and_then(|m| reference_leaders(m, trace));
        match right {
            Some(right) if right.len() >= 3 => {
                let what = format!(
                    "token {} leads in all {rows} rows; in the reference's forward {} lead",
                    leaders[0],
                    plural(right.len(), "different token")
                );
                evidence.push(Evidence::own("logits.collapsed", "logits", what));
            }
            _ => by.push(format!("finite; token {} leads in every row", leaders[0])),
        }
        return;
    }
    by.push(format!("finite; {} lead in {rows} rows", plural(distinct, "different token")));
}

fn leader(row: &[f64]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// Tokens that lead in the right forward of a trace.
fn reference_leaders(model: &Model, trace: &Trace) -> Option<BTreeSet<usize>> {
    let manifest = trace.manifest();
    let preset = legitimate(manifest.dtype).first()?;
    let mut forward = Forward::<f32>::new(&model.checkpoint, preset).ok()?.streamed();
    let vocab = model.checkpoint.config().vocab_size;
    let mut leaders = BTreeSet::new();
    for &(start, end) in &manifest.segments {
        let mut quiet = |_: &Node, _: &[f32]| {};
        let logits = forward.step(&manifest.tokens[start..end], &mut quiet).ok()?;
        for row in logits.chunks(vocab) {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            leaders.insert(leader(&row));
        }
    }
    Some(leaders)
}

/// The first op whose output is not finite, and whether its inputs are.
fn not_finite(model: Result<&Model, &str>, trace: &Trace) -> Option<Evidence> {
    let bad = |probe: &str| {
        let values = trace.get(probe)?.to_f64();
        let width = values.len() / trace.manifest().tokens.len().max(1);
        let first = values.iter().position(|x| !x.is_finite())?;
        let n = values.iter().filter(|x| !x.is_finite()).count();
        Some((n, first / width.max(1), first % width.max(1)))
    };
    let plan = model.ok().map(|m| Plan::new(m.checkpoint.config(), Angle::F32));
    let order: Vec<String> = match &plan {
        Some(plan) => plan.nodes.iter().map(|n| n.probe.clone()).collect(),
        None => trace.names().map(str::to_owned).collect(),
    };
    let (probe, (n, row, column)) = order.iter().find_map(|p| Some((p, bad(p)?)))?;
    let mut what =
        format!("{n} values of `{probe}` are NaN or infinite, first at row {row}, column {column}");
    if let Some(node) = plan.as_ref().and_then(|p| p.node(probe)) {
        let inputs: Vec<&str> = node.reads().filter(|p| trace.get(p).is_some()).collect();
        if !inputs.is_empty() {
            what += &format!(
                "; it is the first such op of the forward, and its recorded inputs ({}) are finite",
                inputs.join(", ")
            );
        }
    }
    Some(Evidence::own("logits.not_finite", probe.clone(), what))
}

/// Whether an answer is one piece over and over.
fn of_answer(model: Result<&Model, &str>, answer: &str) -> Option<Evidence> {
    let text: Vec<char> = answer.trim().chars().collect();
    if text.len() < ENOUGH_TEXT {
        return None;
    }
    // The shortest period of the second half, if there are at least four of it.
    let half = &text[text.len() / 2..];
    let period = (1..=half.len() / 4).find(|&p| (p..half.len()).all(|i| half[i] == half[i - p]))?;
    let unit: String = half[..period].iter().collect();
    let whole = (period..text.len()).all(|i| text[i] == text[i - period]);
    let shown = unit.chars().take(40).collect::<String>();
    if period > 1 || !whole {
        let from = if whole { "from its beginning" } else { "to its end" };
        let what = format!("{:?} is repeated {from}, {} characters", shown, text.len());
        let name = if whole && period <= 8 { "answer.collapsed" } else { "answer.repeats" };
        return Some(Evidence::own(name, "the answer", what));
    }
    let id = model.ok().and_then(|m| {
        let ids = Tokenizer::open(m.checkpoint.dir()).ok()?.encode(&unit).ok()?;
        ids.first().copied()
    });
    let token = match id {
        Some(0) => {
            ", which is token 0: what a maximum over NaN or over equal logits gives".to_string()
        }
        Some(id) => format!(", token {id}"),
        None => String::new(),
    };
    let what = format!("{shown:?} {} times{token}", text.len());
    Some(Evidence::own("answer.collapsed", "the answer", what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_token_a_phrase_or_neither() {
        let name = |text: &str| of_answer(Err("none"), text).map(|e| e.name);
        assert_eq!(name(&"!".repeat(200)).as_deref(), Some("answer.collapsed"));
        let phrase = format!("Well, {}", "I am sure that it is so. ".repeat(20));
        assert_eq!(name(&phrase).as_deref(), Some("answer.repeats"));
        assert_eq!(name("No! Not at all!!!! It is a sentence that ends, as one does."), None);
        assert_eq!(name("!!!!"), None, "too short to tell");
    }
}
