//! A running server probed from outside: what it says of token probabilities, held against the reference forward.
//!
//! 1. [`ask`](mod@ask): find out what the server offers, then ask; all that is known of it are [`exchange`]s, which can be
//!    recorded and judged again without it;
//! 2. `evidence`: rows of log-probabilities, each with the tokens before it;
//! 3. `state`: not finite, constant, collapsed, no distribution: said without a reference;
//! 4. `spread`: finite ones against twelve legitimate forwards of the model, request by request;
//! 5. `groups`: requests that contradict each other: by length, batch, cache, path, or from run to run;
//! 6. `search`, `solve`: the wrong forward that explains what is wrong.

pub mod ask;
mod elements;
pub mod evidence;
pub mod exchange;
mod groups;
mod offers;
mod search;
mod solve;
mod spread;
mod state;
mod text;
pub mod wishes;

use assay_reference::checkpoint::{ChatTemplates, Checkpoint, Tokenizer};
use assay_reference::qwen::{Preset, Wiring};
use assay_reference::{Dtype, Result};
use serde::Serialize;

use self::elements::Elements;
use self::evidence::Evidence;
use self::exchange::Exchange;
pub use self::groups::Group;
use self::search::{Outcome, search};
use self::spread::{Roundings, Sample};
use crate::audit::Item;
use crate::finding::Finding;

/// The most rows without log-probabilities that are looked at: each is a forward of its own.
const MOST_TOKENS: usize = 16;

/// Notes that are kept.
const NOTES: usize = 20;

/// Why nothing is said of numbers.
const NOT_FINITE: &str = "the numbers: the reference forward itself is not finite on these prompts; run `assay audit MODEL --data`";

/// The model that a server should be serving.
#[derive(Debug)]
pub struct Model<'a> {
    /// Its weights and config.
    pub checkpoint: &'a Checkpoint,
    /// Its tokenizer, if it has one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Its chat templates, if it has some.
    pub templates: Option<&'a ChatTemplates>,
    /// The dtype that it is served in.
    pub dtype: Dtype,
    /// The only rounding allowed; `None` is all that are legitimate.
    pub preset: Option<&'static Preset>,
}

/// What a server's logits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// NaN or infinite, somewhere.
    NotFinite,
    /// The same for every token.
    Constant,
    /// One token, whatever stands before.
    Collapsed,
    /// Finite, and further from the reference than legitimate forwards.
    Wrong,
    /// As a legitimate forward.
    Right,
    /// Nothing could be compared.
    Unknown,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The folder of the model.
    pub model: String,
    /// The dtype that it was judged in.
    pub dtype: String,
    /// The state of its logits.
    pub state: State,
    /// What the server offers, and which evidence that is.
    pub offers: Vec<String>,
    /// What is wrong, the most decisive first.
    pub findings: Vec<Item>,
    /// The wrong forwards that explain it, the best first; one is enough.
    pub explanations: Vec<Finding>,
    /// Log-probabilities compared, by request.
    pub groups: Vec<Group>,
    /// Over all requests.
    pub overall: Option<Overall>,
    /// Forwards that were tried as explanations.
    pub hypotheses: usize,
    /// What is odd and changes nothing by itself.
    pub notes: Vec<String>,
    /// What could not be looked at, and what would be needed.
    pub not_tested: Vec<String>,
    /// Prompt lengths that tell answers without numbers from others: `for prompts of 1 to 50 tokens, and not for ...`.
    #[serde(skip)]
    pub not_finite_lengths: Option<String>,
    /// Conversations of which the server has the same token ids as the model's own template.
    #[serde(skip)]
    pub same_chats: usize,
}

/// All that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overall {
    /// Log-probabilities.
    pub compared: usize,
    /// Distance from legitimate forwards, root mean square, nats.
    pub distance: f64,
    /// The largest that a legitimate forward has, nats.
    pub allowed: f64,
    /// The worse of the whole and the worst row, as a fraction of what is allowed.
    pub ratio: f64,
}

/// Judges exchanges with a server of `model`. `progress` hears what is being computed.
///
/// # Errors
/// When the reference cannot be run.
pub fn judge(
    model: &Model<'_>,
    exchanges: &[Exchange],
    progress: &mut dyn FnMut(&str),
) -> Result<Report> {
    let chat = |messages: &serde_json::Value| text::chat_ids(model, messages, true);
    let evidence = evidence::read(exchanges, model.tokenizer, &chat);
    let mut report = Report {
        model: model.checkpoint.dir().display().to_string(),
        dtype: model.dtype.to_string(),
        state: State::Unknown,
        offers: offers::offers(exchanges, &evidence),
        findings: Vec::new(),
        explanations: Vec::new(),
        groups: Vec::new(),
        overall: None,
        hypotheses: 0,
        notes: Vec::new(),
        not_tested: offers::not_tested(exchanges, &evidence, model),
        not_finite_lengths: None,
        same_chats: 0,
    };
    Judge { model, exchanges, evidence: &evidence, report: &mut report, progress }.all()?;
    for (i, why) in &evidence.unused {
        report.notes.push(format!("`{}` was not used: {why}", exchanges[*i].name));
    }
    let more = report.notes.len().saturating_sub(NOTES);
    if more > 0 {
        report.notes.truncate(NOTES);
        report.notes.push(format!("and {more} more notes"));
    }
    Ok(report)
}

struct Judge<'a, 'r> {
    model: &'a Model<'a>,
    exchanges: &'a [Exchange],
    evidence: &'a Evidence,
    report: &'r mut Report,
    progress: &'r mut dyn FnMut(&str),
}

impl Judge<'_, '_> {
    fn all(&mut self) -> Result<()> {
        let (exchanges, rows) = (self.exchanges, &self.evidence.rows);
        let vocabulary = self.model.checkpoint.config().vocab_size;
        let not_finite = state::not_finite(exchanges, self.evidence);
        let constant = state::constant(exchanges, rows, vocabulary);
        let (was_not_finite, was_constant) = (not_finite.is_some(), constant.is_some());
        if let Some((item, lengths)) = not_finite {
            self.report.findings.push(item);
            self.report.not_finite_lengths = lengths;
        }
        self.report.findings.extend(constant);
        self.report.findings.extend(state::not_a_distribution(exchanges, rows, vocabulary));

        let elements = Elements::new(rows, vocabulary);
        let sample = self.sample(&elements)?;
        let reference = |row: usize, id: u32| {
            let i = elements.find(row, id)?;
            Some(sample.as_ref()?.mean(i))
        };
        let collapsed = match was_constant {
            true => None,
            false => state::collapsed(exchanges, rows, &reference),
        };
        let was_collapsed = collapsed.is_some();
        self.report.findings.extend(collapsed);

        let fits = match &sample {
            Some(sample) => Some(self.compare(&elements, sample, was_constant || was_collapsed)?),
            None => self.tokens_alone()?,
        };
        self.report.state = match fits {
            _ if was_not_finite => State::NotFinite,
            _ if was_constant => State::Constant,
            _ if was_collapsed => State::Collapsed,
            Some(false) => State::Wrong,
            Some(true) => State::Right,
            None => State::Unknown,
        };
        self.report.findings.extend(state::not_greedy(exchanges, rows));
        self.report.findings.extend(offers::failures(exchanges, self.evidence));
        text::compare(self.model, exchanges, self.evidence, self.report);
        Ok(())
    }

    fn roundings(&self) -> Roundings {
        match self.model.preset {
            Some(preset) => Roundings::only(preset),
            None => Roundings::of(self.model.dtype),
        }
    }

    /// Legitimate forwards, if there is something to compare.
    fn sample(&mut self, elements: &Elements) -> Result<Option<Sample>> {
        if elements.list.is_empty() {
            return Ok(None);
        }
        let config = self.model.checkpoint.config();
        let tokens = elements.tokens();
        let roundings = self.roundings();
        let mut step =
            |i: usize| (self.progress)(&format!("reference {} of 12, {tokens} tokens", i + 1));
        let wiring = |preset: &'static Preset| Wiring::new(config, preset.angle);
        let sample = Sample::new(elements, self.model.checkpoint, roundings, &wiring, &mut step)?;
        if sample.is_finite() {
            return Ok(Some(sample));
        }
        self.report.not_tested.push(NOT_FINITE.into());
        Ok(None)
    }

    /// Whether all is right. `known`: the logits' state says already that they are wrong, and no variant of a forward
    /// explains that.
    fn compare(&mut self, elements: &Elements, sample: &Sample, known: bool) -> Result<bool> {
        let groups = groups::groups(self.exchanges, self.evidence, elements, sample);
        let observed = elements.observed();
        let all: Vec<usize> = (0..observed.len()).collect();
        let fit = sample.fit(&elements.list, &observed, &all);
        self.report.overall = Some(Overall {
            compared: all.len(),
            distance: fit.distance,
            allowed: fit.allowed,
            ratio: fit.ratio,
        });
        self.note_repeats(elements);
        self.report.groups.clone_from(&groups);
        if fit.ratio <= 1.0 && groups.iter().all(Group::right) {
            return Ok(true);
        }
        if known {
            return Ok(false);
        }
        let contradiction = groups::contradiction(self.exchanges, elements, sample, &groups);
        let mut wrong = None;
        if let Some(contradiction) = contradiction {
            self.report.findings.push(contradiction.item);
            wrong = Some(contradiction.wrong);
        } else if let Some(item) = groups::by_path(self.exchanges, &groups) {
            self.report.findings.push(item);
        } else {
            let row = &self.evidence.rows[elements.list[fit_row(&groups, elements, sample)].row];
            let place = state::place(&self.exchanges[row.exchange]);
            let what = format!(
                "{} log-probabilities of {} requests are {:.3} nats (root mean square) from the reference; legitimate forwards differ by {:.3} at most; {} requests are wrong",
                all.len(),
                groups.len(),
                fit.distance,
                fit.allowed,
                groups.iter().filter(|g| !g.right()).count(),
            );
            self.report.findings.push(Item::new("server.wrong", place, what));
        }
        self.explain(elements, wrong.as_ref())?;
        Ok(false)
    }

    /// Which wrong forward explains what is wrong.
    fn explain(
        &mut self,
        elements: &Elements,
        wrong: Option<&std::collections::BTreeSet<usize>>,
    ) -> Result<()> {
        let config = self.model.checkpoint.config();
        let part = elements.numbered(|i| wrong.is_none_or(|w| w.contains(&i)));
        let roundings = self.roundings();
        let wiring = |preset: &'static Preset| Wiring::new(config, preset.angle);
        let right = Sample::new(&part, self.model.checkpoint, roundings, &wiring, &mut |_| {})?;
        let outcome = search(self.model.checkpoint, roundings, &part, &right, &mut *self.progress)?;
        let Outcome { explaining, nearest, tried, left_out } = outcome;
        self.report.hypotheses = tried;
        for (h, fit) in &explaining {
            let seen =
                if h.source.is_empty() { String::new() } else { format!(". See {}", h.source) };
            let text = format!(
                "{}: from such a forward {:.3} nats, {} what such forwards differ by at most{seen}",
                h.detail,
                fit.distance,
                times(fit.ratio)
            );
            self.report.explanations.push(Finding {
                code: h.code.into(),
                name: h.name.clone(),
                text,
            });
        }
        if explaining.is_empty() {
            let nearest =
                nearest.map_or(String::new(), |n| format!("; nearest is {n}, which does not fit"));
            self.report.notes.push(format!(
                "unexplained: none of {tried} wrong forwards lies where the server does{nearest}. Two faults at once, an op's own fault, or altered weights: record a tap (docs/taps.md) and run `assay diff MODEL TRACE`"
            ));
        }
        for what in left_out {
            self.report.not_tested.push(format!("as an explanation: {what}"));
        }
        Ok(())
    }

    /// What equal requests differ by.
    fn note_repeats(&mut self, elements: &Elements) {
        let note = match groups::repeats(&elements.list, self.exchanges) {
            Some((most, n)) if most > 0.0 => {
                format!(
                    "equal requests differ by up to {most:.2e} nats in {n} numbers: sums depend on what else runs (no batch invariance), which is no fault by itself"
                )
            }
            Some((_, n)) => {
                format!("equal requests give the same bits in all {n} numbers compared")
            }
            None => return,
        };
        self.report.notes.push(note);
    }

    /// Of a server that tells no log-probabilities: whether the tokens that it takes at temperature 0 are the
    /// reference's, or so near that rounding decides.
    fn tokens_alone(&mut self) -> Result<Option<bool>> {
        let vocabulary = self.model.checkpoint.config().vocab_size;
        let within = |r: &&evidence::Row| r.prefix.iter().all(|&i| (i as usize) < vocabulary);
        let mut rows: Vec<&evidence::Row> = self
            .evidence
            .rows
            .iter()
            .filter(|r| r.taken.is_some() && r.items.is_empty())
            .filter(within)
            .collect();
        rows.dedup_by(|a, b| a.prefix == b.prefix);
        rows.truncate(MOST_TOKENS);
        if rows.is_empty() {
            return Ok(None);
        }
        let roundings = self.roundings();
        let mut members: Vec<Vec<f64>> = Vec::new();
        for i in 0..crate::forward::MEMBERS {
            (self.progress)(&format!("reference {} of 12, {} tokens taken", i + 1, rows.len()));
            let preset = roundings.member(i);
            members.push(Elements::deficits(&rows, self.model.checkpoint, preset, i as u64 + 1)?);
        }
        // Nothing of a server: a token beyond the vocabulary is infinitely unlikely.
        if members.iter().flatten().any(|d| d.is_nan()) {
            self.report.not_tested.push(NOT_FINITE.into());
            return Ok(None);
        }
        let off: Vec<(usize, f64)> = (0..rows.len())
            .filter_map(|r| {
                let values: Vec<f64> = members.iter().map(|m| m[r]).collect();
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                // The lower end of the prediction interval of a further forward.
                let low = 2.0 * mean - crate::forward::limit(&values);
                (low > 0.0 || !mean.is_finite()).then_some((r, mean))
            })
            .collect();
        let Some(&(first, deficit)) = off.first() else { return Ok(Some(true)) };
        let what = format!(
            "{} of {} tokens; the first, token {} behind {} tokens, is {deficit:.3} nats less likely than the likeliest",
            off.len(),
            rows.len(),
            rows[first].taken.unwrap_or(0),
            rows[first].prefix.len()
        );
        let place = state::place(&self.exchanges[rows[first].exchange]);
        self.report.findings.push(Item::new("server.unlikely_tokens", place, what));
        Ok(Some(false))
    }
}

/// An element of the group that fits worst.
fn fit_row(groups: &[Group], elements: &Elements, sample: &Sample) -> usize {
    let observed = elements.observed();
    let worst = groups.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let Some(worst) = worst else { return 0 };
    let row = sample.fit(&elements.list, &observed, worst.elements()).row;
    elements.list.iter().position(|e| e.row == row).unwrap_or(0)
}

/// `3.2 times`.
fn times(ratio: f64) -> String {
    if ratio < 1e6 { format!("{ratio:.3} times") } else { "over a million times".into() }
}
