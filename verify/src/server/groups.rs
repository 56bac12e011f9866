//! Evidence by request, and what requests that contradict each other have in common.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use serde_json::Value;

use super::elements::{Element, Elements};
use super::evidence::{Evidence, Path};
use super::exchange::Exchange;
use super::spread::{Fit, Sample, distance};
use super::state::place;
use crate::audit::Item;

/// What one request told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The request's name in the recording.
    pub name: String,
    /// `prompt` (with what comes right behind it), `decode`.
    pub path: &'static str,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Log-probabilities compared.
    pub compared: usize,
    /// Distance from legitimate forwards, root mean square, nats.
    pub distance: f64,
    /// The largest that a legitimate forward has, nats.
    pub allowed: f64,
    /// The worse of the whole and the worst row, as a fraction of what is allowed; above 1 is wrong.
    pub ratio: f64,
    #[serde(skip)]
    exchange: usize,
    #[serde(skip)]
    which: Vec<usize>,
}

impl Group {
    /// Whether it is as a legitimate forward.
    pub fn right(&self) -> bool {
        self.ratio <= 1.0
    }

    /// Its elements' numbers.
    pub(super) fn elements(&self) -> &[usize] {
        &self.which
    }
}

/// The prompt's tokens of an exchange.
pub(super) fn prompt_len(e: &Exchange, evidence: &Evidence, index: usize) -> Option<usize> {
    match &e.request["prompt"] {
        Value::Array(ids) => Some(ids.len()),
        _ => evidence.rows.iter().find(|r| r.exchange == index).map(|r| r.prompt),
    }
}

/// `for prompts of 1 to 50 tokens, and not for 51 to 64`: whether a length separates the two.
pub(super) fn threshold(wrong: &[usize], right: &[usize]) -> Option<String> {
    let (w0, w1) = (*wrong.iter().min()?, *wrong.iter().max()?);
    let (r0, r1) = (*right.iter().min()?, *right.iter().max()?);
    let apart = w1 < r0 || r1 < w0;
    apart.then(|| format!("for prompts of {w0} to {w1} tokens, and not for {r0} to {r1}"))
}

/// Groups of elements with their fit.
pub(super) fn groups(
    exchanges: &[Exchange],
    evidence: &Evidence,
    elements: &Elements,
    sample: &Sample,
) -> Vec<Group> {
    let mut parts: BTreeMap<(usize, bool), Vec<usize>> = BTreeMap::new();
    for (i, e) in elements.list.iter().enumerate() {
        parts.entry((e.exchange, e.path == Path::Decode)).or_default().push(i);
    }
    let observed = elements.observed();
    let group = |((exchange, decode), which): ((usize, bool), Vec<usize>)| {
        let fit = sample.fit(&elements.list, &observed, &which);
        let row = &evidence.rows[elements.list[which[0]].row];
        Group {
            name: exchanges[exchange].name.clone(),
            path: if decode { "decode" } else { "prompt" },
            prompt: row.prompt,
            compared: which.len(),
            distance: fit.distance,
            allowed: fit.allowed,
            ratio: fit.ratio,
            exchange,
            which,
        }
    };
    parts.into_iter().map(group).collect()
}

/// What the wrong requests have that right ones with the same tokens have not.
pub(super) struct Contradiction {
    /// The finding.
    pub(super) item: Item,
    /// Elements of the wrong requests: what is to be explained.
    pub(super) wrong: BTreeSet<usize>,
}

/// Requests that are wrong about what others are right about.
pub(super) fn contradiction(
    exchanges: &[Exchange],
    elements: &Elements,
    sample: &Sample,
    groups: &[Group],
) -> Option<Contradiction> {
    let list = &elements.list;
    let observed = elements.observed();
    let (right, wrong): (Vec<&Group>, Vec<&Group>) = groups.iter().partition(|g| g.right());
    // What right requests tell of each (tokens before, token).
    let mut told: HashMap<usize, Vec<(&Group, f64)>> = HashMap::new();
    for g in &right {
        for &i in &g.which {
            told.entry(list[i].same).or_default().push((g, observed[i]));
        }
    }
    let mut against: Vec<&Group> = Vec::new();
    let mut guilty: Vec<(&Group, Fit)> = Vec::new();
    for g in &wrong {
        let common: Vec<usize> =
            g.which.iter().copied().filter(|&i| told.contains_key(&list[i].same)).collect();
        if common.is_empty() {
            continue;
        }
        let fit = sample.fit(list, &observed, &common);
        // The same values may fit in small groups and not in a large one: only other values contradict.
        let (said, other): (Vec<f64>, Vec<f64>) =
            common.iter().map(|&i| (observed[i], told[&list[i].same][0].1)).unzip();
        if fit.ratio > 1.0 && distance(&said, &other) > fit.distance / 2.0 {
            guilty.push((g, fit));
            against.extend(common.iter().flat_map(|&i| told[&list[i].same].iter().map(|t| t.0)));
        }
    }
    let worst = guilty.iter().max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio))?;
    let evidence = format!(
        "`{}` is {:.3} nats off ({} what legitimate forwards differ by at most) on tokens for which other requests are right",
        worst.0.name,
        worst.1.distance,
        super::times(worst.1.ratio)
    );
    let (name, what) = trait_of(exchanges, &guilty, &against, groups, &evidence);
    let item = Item::new(name, place(&exchanges[worst.0.exchange]), what);
    let wrong = wrong.iter().flat_map(|g| g.which.iter().copied()).collect();
    Some(Contradiction { item, wrong })
}

/// Requests that groups are of.
fn requests(groups: &mut dyn Iterator<Item = &Group>) -> usize {
    groups.map(|g| g.exchange).collect::<BTreeSet<_>>().len()
}

/// What tells the wrong requests from the right ones.
fn trait_of(
    exchanges: &[Exchange],
    guilty: &[(&Group, Fit)],
    against: &[&Group],
    groups: &[Group],
    evidence: &str,
) -> (&'static str, String) {
    let marked = |g: &Group, mark: &str| g.name.starts_with(mark) && g.name != "cache, first";
    let all = |mark: &str| guilty.iter().all(|(g, _)| marked(g, mark));
    let request = |g: &Group| &exchanges[g.exchange].request;
    let twin = guilty
        .iter()
        .find(|(w, _)| against.iter().any(|r| request(w) == request(r) && w.path == r.path));
    // A request whose prompt and decoding are looked at apart has two groups.
    let wrong = requests(&mut guilty.iter().map(|(g, _)| *g));
    if all("batch") {
        let of = requests(&mut groups.iter().filter(|g| marked(g, "batch")));
        let what = format!("{wrong} of {of} requests at once; {evidence}");
        return ("server.batch_dependent", what);
    }
    if all("cache") {
        return (
            "server.cache_dependent",
            format!("{wrong} requests whose beginning had been asked; {evidence}"),
        );
    }
    // Behind a cached beginning few rows are computed, whatever the prompt's length; in a batch more.
    let plain = |g: &&Group| g.path == "prompt" && !marked(g, "cache") && !marked(g, "batch");
    let lengths = |right: bool| -> Vec<usize> {
        groups.iter().filter(plain).filter(|g| g.right() == right).map(|g| g.prompt).collect()
    };
    if let Some(text) = threshold(&lengths(false), &lengths(true)) {
        return ("server.length_dependent", format!("wrong {text}; {evidence}"));
    }
    if let Some((w, _)) = twin {
        let what = format!(
            "`{}` was asked before with the same request, and answered rightly; {evidence}",
            w.name
        );
        return ("server.not_deterministic", what);
    }
    let list = |right: bool| {
        let set: BTreeSet<usize> = lengths(right).into_iter().collect();
        set.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    };
    let what =
        format!("wrong at prompt lengths {}, right at {}; {evidence}", list(false), list(true));
    ("server.length_dependent", what)
}

/// Prompt right and decoding wrong, or the reverse, over all requests.
pub(super) fn by_path(exchanges: &[Exchange], groups: &[Group]) -> Option<Item> {
    let of = |path: &'static str| groups.iter().filter(move |g| g.path == path);
    let wrong = |path| of(path).filter(|g| !g.right()).count();
    let (prompts, decodes) = (of("prompt").count(), of("decode").count());
    if prompts == 0 || decodes == 0 {
        return None;
    }
    let (bad, good) = match (wrong("prompt"), wrong("decode")) {
        (0, n) if n > 0 => ("decode", "prompt"),
        (n, 0) if n == prompts => ("prompt", "decode"),
        _ => return None,
    };
    let worst = of(bad).max_by(|a, b| a.ratio.total_cmp(&b.ratio))?;
    let what = format!(
        "{} of {} requests are wrong in their {bad} positions, none in its {good} positions; worst is `{}`, {:.3} nats off, {} what legitimate forwards differ by at most",
        wrong(bad),
        of(bad).count(),
        worst.name,
        worst.distance,
        super::times(worst.ratio)
    );
    Some(Item::new("server.path_dependent", place(&exchanges[worst.exchange]), what))
}

/// How far the answers to equal requests are apart: the largest difference of one number, nats, and of how many.
pub(super) fn repeats(list: &[Element], exchanges: &[Exchange]) -> Option<(f64, usize)> {
    let mut by: HashMap<(usize, Path), Vec<&Element>> = HashMap::new();
    for e in list {
        by.entry((e.same, e.path)).or_default().push(e);
    }
    let (mut most, mut compared) = (0.0f64, 0);
    for elements in by.values() {
        for (i, a) in elements.iter().enumerate() {
            let equal = |b: &&&Element| {
                a.exchange != b.exchange
                    && exchanges[a.exchange].request == exchanges[b.exchange].request
            };
            if let Some(b) = elements[..i].iter().find(equal) {
                most = most.max((a.observed - b.observed).abs());
                compared += 1;
            }
        }
    }
    (compared > 0).then_some((most, compared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_separates_or_does_not() {
        let text = threshold(&[1, 50, 7], &[51, 64]).expect("separated");
        assert!(text.contains("1 to 50") && text.contains("51 to 64"), "{text}");
        assert!(threshold(&[64], &[1, 2]).is_some());
        assert_eq!(threshold(&[1, 60], &[51]), None);
        assert_eq!(threshold(&[1], &[]), None);
    }
}
