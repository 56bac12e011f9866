//! The running server, probed: what it answered is judged against the model as it was opened, and each suspect gets
//! its part.

use std::collections::BTreeSet;

use assay_reference::Dtype;
use assay_reference::checkpoint::{ChatTemplates, Tokenizer};

use super::mend::Model;
use super::report::{Evidence, Outcome, Row};
use super::{plural, trace};
use crate::audit::Item;
use crate::http::Client;
use crate::server::ask::ask;
use crate::server::exchange::Exchange;
use crate::server::wishes::Wishes;
use crate::server::{self, Report, State};

/// A server to probe, or what one answered.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    /// Where its answers come from.
    pub source: Source<'a>,
    /// The dtype that the model is served in; `None` is the config's.
    pub dtype: Option<Dtype>,
}

/// Where answers come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A running server, which is asked.
    Live(&'a Client),
    /// What was recorded of one.
    Recorded(&'a [Exchange]),
}

/// What a probe says of one suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Right.
    Right {
        /// By what it was seen.
        by: String,
        /// What the probe did not look at.
        limits: Vec<String>,
    },
    /// Wrong, and why.
    Wrong(Vec<Evidence>),
    /// Not told, and what would be needed.
    Unknown(String),
}

/// A probe's findings, by suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEvidence {
    /// The state of its logits: finite, constant, collapsed.
    pub logits: Answer,
    /// Requests that contradict each other: prompts on both sides of sizes at which engines choose another kernel,
    /// batches, cached beginnings, decoding.
    pub boundaries: Answer,
    /// Its token ids and prompts against the checkpoint's tokenizer and template.
    pub template: Answer,
    /// Its log-probabilities against legitimate forwards, and the wrong forward that explains them.
    pub forward: Answer,
}

/// Findings of the logits' state.
const STATE: &[&str] = &["server.logits_not_finite", "server.logits_constant", "server.collapsed"];
/// Findings of requests that contradict each other.
const BOUNDARIES: &[&str] = &[
    "server.length_dependent",
    "server.not_deterministic",
    "server.batch_dependent",
    "server.cache_dependent",
    "server.path_dependent",
];
/// Findings of text and token ids.
const TEXT: &[&str] =
    &["server.template_differs", "server.tokenizer_differs", "server.prompt_changed"];
/// Words of what a probe says that it did not test: sizes and paths.
const SIZES: &[&str] = &["a batch", "is cached", "prompts of more", "sliding window", "decoding"];
/// The same, of text and token ids.
const WORDS: &[&str] = &["tokenize", "template", "token ids", "chat"];
/// The same, of requests, whatever their names are.
const UNANSWERED: &[&str] = &["refused", "not answered", "was answered", "not asked any more"];

impl Answer {
    /// The outcome of a suspect's row.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Answer::Right { by, limits } => {
                Outcome::Cleared { by: by.clone(), limits: limits.clone() }
            }
            Answer::Wrong(evidence) => Outcome::Convicted { evidence: evidence.clone() },
            Answer::Unknown(needs) => Outcome::NotTestable { needs: needs.clone() },
        }
    }
}

impl ServerEvidence {
    /// Probes what was given, if a server was.
    pub(super) fn of(
        model: Result<&Model, &str>,
        given: Option<Server<'_>>,
        step: &mut dyn FnMut(usize, usize, &str),
    ) -> Option<ServerEvidence> {
        Some(match probed(model, given?, step) {
            Ok(report) => ServerEvidence::from(&report),
            Err(why) => {
                let all = Answer::Unknown(why);
                ServerEvidence {
                    logits: all.clone(),
                    boundaries: all.clone(),
                    template: all.clone(),
                    forward: all,
                }
            }
        })
    }
}

impl From<&Report> for ServerEvidence {
    fn from(report: &Report) -> ServerEvidence {
        ServerEvidence {
            logits: logits(report),
            boundaries: boundaries(report),
            template: template(report),
            forward: forward(report),
        }
    }
}

/// The probe's report, or what it lacks.
fn probed(
    model: Result<&Model, &str>,
    server: Server<'_>,
    step: &mut dyn FnMut(usize, usize, &str),
) -> Result<Report, String> {
    let model = model.map_err(|why| format!("a checkpoint that can be read: {why}"))?;
    let checkpoint = &model.checkpoint;
    let dir = checkpoint.dir();
    let (tokenizer, templates) = (Tokenizer::open(dir).ok(), ChatTemplates::open(dir).ok());
    let served = server::Model {
        checkpoint,
        tokenizer: tokenizer.as_ref(),
        templates: templates.as_ref(),
        dtype: server.dtype.unwrap_or(checkpoint.config().dtype),
        preset: None,
    };
    let answers;
    let exchanges = match server.source {
        Source::Recorded(exchanges) => exchanges,
        Source::Live(client) => {
            let questions = Wishes::default().questions(&served);
            answers = questions
                .and_then(|q| ask(client, &q, step))
                .map_err(|e| format!("a server that answers: {e:#}"))?;
            &answers
        }
    };
    server::judge(&served, exchanges, &mut |what| step(0, 0, what))
        .map_err(|e| format!("a reference forward of this model: {e}"))
}

fn some(report: &Report, names: &[&str]) -> Vec<Evidence> {
    report.findings.iter().filter(|f| names.contains(&f.name)).map(Evidence::from).collect()
}

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|w| text.contains(w))
}

/// Whose limits a line of `not tested` is.
#[derive(PartialEq, Eq)]
enum Part {
    Boundaries,
    Template,
    Forward,
}

impl Part {
    fn of(line: &str) -> Part {
        if has(line, UNANSWERED) {
            Part::Forward
        } else if has(line, SIZES) {
            Part::Boundaries
        } else if has(line, WORDS) {
            Part::Template
        } else {
            Part::Forward
        }
    }
}

/// What was not tested, for the one row that it belongs to.
fn limits(report: &Report, part: &Part) -> Vec<String> {
    report.not_tested.iter().filter(|n| Part::of(n) == *part).cloned().collect()
}

fn logits(report: &Report) -> Answer {
    let evidence = some(report, STATE);
    if !evidence.is_empty() {
        return Answer::Wrong(evidence);
    }
    match report.overall {
        Some(overall) => Answer::Right {
            by: format!(
                "the server's {} log-probabilities are finite, neither all alike nor led by one token",
                overall.compared
            ),
            limits: Vec::new(),
        },
        None => Answer::Unknown("a server that tells log-probabilities".into()),
    }
}

fn boundaries(report: &Report) -> Answer {
    let mut evidence = some(report, BOUNDARIES);
    let not_finite = report.findings.iter().find(|f| f.name == STATE[0]);
    if let (Some(item), Some(lengths)) = (not_finite, &report.not_finite_lengths) {
        let what = format!("there are no numbers {lengths}");
        let own = Item::new("server.length_dependent", item.r#where.clone(), what);
        evidence.insert(0, Evidence::from(&own));
    }
    if !evidence.is_empty() {
        return Answer::Wrong(evidence);
    }
    if report.groups.is_empty() {
        return Answer::Unknown("a server that tells finite log-probabilities".into());
    }
    let wrong = report.groups.iter().filter(|g| !g.right()).count();
    if wrong > 0 || report.state != State::Right {
        return Answer::Unknown(format!(
            "a server that is right at some length: {wrong} of {} requests are wrong, and where it changes cannot be told",
            report.groups.len()
        ));
    }
    let lengths: BTreeSet<usize> =
        report.groups.iter().filter(|g| g.path == "prompt").map(|g| g.prompt).collect();
    if lengths.len() < 2 {
        return Answer::Unknown("answers to prompts of several lengths".into());
    }
    let list: Vec<String> = lengths.iter().map(usize::to_string).collect();
    let by = format!("right at prompts of {} tokens", list.join(", "));
    Answer::Right { by, limits: limits(report, &Part::Boundaries) }
}

fn template(report: &Report) -> Answer {
    let evidence = some(report, TEXT);
    if !evidence.is_empty() {
        return Answer::Wrong(evidence);
    }
    let limits = limits(report, &Part::Template);
    match report.same_chats {
        0 => Answer::Unknown(match limits.iter().find(|l| l.contains("tokenize")) {
            Some(why) => format!("more of the server: {why}"),
            None => "a server that makes token ids of a conversation (/tokenize)".into(),
        }),
        n => Answer::Right {
            by: format!("the server makes the same token ids of {}", plural(n, "conversation")),
            limits,
        },
    }
}

fn forward(report: &Report) -> Answer {
    let mut evidence = Vec::new();
    if let Some((first, others)) = report.explanations.split_first() {
        let mut first = first.clone();
        if !others.is_empty() {
            let others: Vec<String> =
                others.iter().map(|o| format!("{} {}", o.code, o.name)).collect();
            first.text += &format!(". As good an explanation: {}", others.join(", "));
        }
        let advice = trace::whole_advice(&first, &[]);
        evidence.push(Evidence::found(&first, "the server".into(), advice));
    }
    let elsewhere = |name: &str| [STATE, BOUNDARIES, TEXT].iter().any(|l| l.contains(&name));
    evidence.extend(report.findings.iter().filter(|f| !elsewhere(f.name)).map(Evidence::from));
    if !evidence.is_empty() {
        return Answer::Wrong(evidence);
    }
    let limits = limits(report, &Part::Forward);
    let right = report.groups.iter().all(server::Group::right);
    match (report.state, report.overall) {
        (State::Right, Some(o)) if right => Answer::Right {
            by: format!(
                "{} log-probabilities in {} differ from legitimate forwards by {:.3} of what these differ by at most",
                o.compared,
                plural(report.groups.len(), "request"),
                o.ratio
            ),
            limits,
        },
        (State::Right, None) => Answer::Right {
            by: "the tokens that it takes are the reference's, or as likely".into(),
            limits: [vec!["it tells no log-probabilities".into()], limits].concat(),
        },
        (State::Wrong, _) => Answer::Unknown(format!(
            "more evidence: requests contradict each other, and none of {} wrong forwards explains those that are wrong",
            report.hypotheses
        )),
        (State::NotFinite | State::Constant | State::Collapsed, _) => {
            Answer::Unknown("numbers that say more: see the logits' state".into())
        }
        _ => Answer::Unknown(match limits.first() {
            Some(why) => format!("numbers that can be compared: {why}"),
            None => "numbers that can be compared".into(),
        }),
    }
}

fn asked(
    server: Option<&ServerEvidence>,
    of: impl Fn(&ServerEvidence) -> &Answer,
    needs: &str,
) -> Outcome {
    match server {
        Some(server) => of(server).outcome(),
        None => Outcome::NotTestable { needs: needs.into() },
    }
}

/// Dispatch boundaries.
pub(super) fn boundary_row(server: Option<&ServerEvidence>) -> Row {
    Row::new(
        "dispatch boundaries",
        "the same service with prompts of 1, 8, 9, 24, 25, 49, 50, 51, 64 tokens, again, at once, and decoding",
        "a minute of the server",
        asked(
            server,
            |s| &s.boundaries,
            "the running server (--server URL), probed at lengths on both sides of its thresholds",
        ),
    )
}

/// The server's log-probabilities.
pub(super) fn forward_row(server: Option<&ServerEvidence>) -> Row {
    Row::new(
        "the server's log-probabilities",
        "teacher-forced log-probabilities against legitimate forwards of the reference",
        "a minute of the server, a forward here",
        asked(
            server,
            |s| &s.forward,
            "the running server (--server URL), with logprobs, or a recording of `assay probe` (--recording F)",
        ),
    )
}
