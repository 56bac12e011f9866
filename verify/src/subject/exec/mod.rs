//! A program as a subject: a child process that reads cases and writes outputs (docs/exec.md).
//!
//! - [`Session`]: a child and what it said of itself; [`Session::ask`] runs one case. A child that
//!   crashes, hangs or writes what is no frame is ended, and started again for the next case;
//! - [`check`]: the families of an op through it, judged.

mod cases;
mod check;
mod child;
mod frame;
mod ledger;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, bail};
use assay_reference::ops::{Erased, Op, OutSpec};
use assay_reference::{Case, Dtype, Tensor};

use crate::finding::Finding;
use child::{CLOSING, Child, Event, GRACE, ended};
use frame::{Bad, Frame, HEADER_ROOM};

pub use cases::{cases, dtype_of};
pub use check::{Checked, Settings, check};
pub use frame::Hello;
pub use ledger::entries;

/// How often a child is started again in the check of one op.
const RESTARTS: u32 = 3;
/// Bytes of an element at most.
const WIDEST: u64 = 8;

/// What to start, and how long to wait.
#[derive(Clone, Debug)]
pub struct Program {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Until it says hello.
    pub start: Duration,
    /// For the answer to a case.
    pub answer: Duration,
    /// Whether its standard error is passed on as it comes.
    pub pass_stderr: bool,
}

impl Program {
    /// The command line, for people.
    pub fn line(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|w| w.to_string_lossy()).collect();
        words.join(" ")
    }
}

/// How a start ended.
pub enum Started {
    /// It said hello.
    Ready(Box<Session>),
    /// It says that nothing can be run here: a library or a device is missing.
    Unsupported(String),
    /// It did not start.
    Not(Finding),
}

/// What a child gave for a case.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The outputs, in the op's order.
    Outputs(Vec<(&'static str, Tensor)>),
    /// The case is outside what it takes.
    Unsupported(String),
    /// Something is wrong.
    Failed(Finding),
    /// It has failed too often, and is not asked any more.
    GivenUp,
}

/// A child that said hello.
pub struct Session {
    program: Program,
    hello: Hello,
    child: Option<Box<Child>>,
    last_id: u64,
    restarts: u32,
}

/// A text of several lines below a finding's sentence.
fn quoted(title: &str, text: &str) -> String {
    if text.trim().is_empty() {
        return format!("; nothing on {title}");
    }
    let lines: Vec<&str> = text.trim_end().lines().collect();
    format!("; the end of {title}:\n      | {}", lines.join("\n      | "))
}

const STDERR: &str = "its standard error";

impl Session {
    /// Starts the program and waits for its hello.
    ///
    /// # Errors
    /// When there is no such program, or it speaks another version of the protocol.
    pub fn start(program: Program) -> anyhow::Result<Started> {
        let (child, hello) = match connect(&program)? {
            Connected::Ready(child, hello) => (child, hello),
            Connected::Unsupported(what) => return Ok(Started::Unsupported(what)),
            Connected::Not(finding) => return Ok(Started::Not(finding)),
        };
        let child = Some(child);
        let session = Session { program, hello, child, last_id: 0, restarts: RESTARTS };
        Ok(Started::Ready(Box::new(session)))
    }

    /// What it said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Allows as many restarts as at the start.
    pub fn renew(&mut self) {
        self.restarts = RESTARTS;
    }

    /// Runs a case. `label` names it in findings.
    ///
    /// # Errors
    /// When the case is not its op's, or a child that is started again is another one.
    pub fn ask(&mut self, case: &Case, label: &str) -> anyhow::Result<Answer> {
        let (setup, specs) = Erased::open(case)?;
        if self.child.is_none() {
            if self.restarts == 0 {
                return Ok(Answer::GivenUp);
            }
            self.restarts -= 1;
            match connect(&self.program)? {
                Connected::Ready(child, hello) if hello == self.hello => self.child = Some(child),
                Connected::Ready(..) => bail!(
                    "{}: says something else of itself when it is started again: the results \
                     before and after would be of two programs",
                    self.program.line()
                ),
                Connected::Unsupported(what) => {
                    self.restarts = 0;
                    let text = format!("{label}: started again, it says: {what}");
                    return Ok(Answer::Failed(Finding::new("exec.not_started", text)));
                }
                Connected::Not(finding) => {
                    self.restarts = 0;
                    return Ok(Answer::Failed(finding));
                }
            }
        }
        self.last_id += 1;
        let id = self.last_id;
        let bytes = frame::case(case, id).with_context(|| label.to_string())?;
        let elements: u64 = specs.iter().map(|s| s.shape.iter().product::<usize>() as u64).sum();
        let limit = elements * WIDEST + HEADER_ROOM;
        let Some(child) = &self.child else { return Ok(Answer::GivenUp) };
        child.send(bytes, limit);
        let frame = match receive(child, self.program.answer) {
            Ok(frame) => frame,
            Err(trouble) => return Ok(self.trouble(trouble, limit, label)),
        };
        match frame {
            Frame::Result { id: answered, outputs } if answered == id => {
                let dtype = |i| Erased::rounding(&setup.params, &setup.policy, i).dtype;
                Ok(match named(&case.op, &specs, dtype, outputs) {
                    Ok(outputs) => Answer::Outputs(outputs),
                    Err((name, what)) => {
                        Answer::Failed(Finding::new(name, format!("{label}: {what}")))
                    }
                })
            }
            Frame::Error { id: answered, unsupported, what } if answered == id => {
                Ok(if unsupported {
                    Answer::Unsupported(what)
                } else {
                    Answer::Failed(Finding::new("exec.failed", format!("{label}: {what}")))
                })
            }
            Frame::Error { id: 0, what, .. } => {
                self.end();
                let text = format!("{label}: the child could not read the case: {what}");
                Ok(Answer::Failed(Finding::new("exec.failed", text)))
            }
            Frame::Hello(_) => Ok(self.bad(label, "a second hello in place of an answer")),
            Frame::Result { id: other, .. } | Frame::Error { id: other, .. } => {
                Ok(self.bad(label, &format!("an answer to case {other}, where {id} was asked")))
            }
        }
    }

    /// The processes of its group that there are now; starts it again if it is gone.
    ///
    /// # Errors
    /// When it does not start again.
    fn processes(&mut self) -> anyhow::Result<Vec<u32>> {
        if self.child.is_none() {
            match connect(&self.program)? {
                Connected::Ready(child, _) => self.child = Some(child),
                Connected::Unsupported(what) => bail!("{what}"),
                Connected::Not(finding) => bail!("{}", finding.text),
            }
        }
        Ok(self.child.as_ref().map(|child| child.processes()).unwrap_or_default())
    }

    /// Closes its input and waits until it has gone. Says what was not as it should.
    pub fn close(mut self) -> Option<String> {
        let mut child = self.child.take()?;
        match child.close(CLOSING) {
            Some(status) if status.success() => None,
            Some(status) => Some(format!(
                "after its last case, with its input closed, the child {}",
                ended(status)
            )),
            None => Some("the child went on when its input was closed: it was ended".into()),
        }
    }

    fn end(&mut self) {
        self.child = None;
    }

    fn bad(&mut self, label: &str, what: &str) -> Answer {
        self.trouble(Trouble::Frame(what.into()), 0, label)
    }

    /// Ends the child, and says why.
    fn trouble(&mut self, trouble: Trouble, limit: u64, label: &str) -> Answer {
        let Some(child) = self.child.take() else { return Answer::GivenUp };
        let (name, what) = describe(trouble, *child, limit, self.program.answer);
        Answer::Failed(Finding::new(name, format!("{label}: {what}")))
    }
}

/// A child before it is a session.
enum Connected {
    Ready(Box<Child>, Hello),
    Unsupported(String),
    Not(Finding),
}

/// What there is in place of a frame.
enum Trouble {
    Frame(String),
    TooLong([u8; 8]),
    Late,
    End,
}

/// A name of a finding and its text.
type Found = (&'static str, String);

fn receive(child: &Child, time: Duration) -> Result<Frame, Trouble> {
    match child.wait(time) {
        None => Err(Trouble::Late),
        Some(Event::End) => Err(Trouble::End),
        Some(Event::TooLong { first }) => Err(Trouble::TooLong(first)),
        Some(Event::Frame(bytes)) => frame::parse(bytes).map_err(|bad| {
            Trouble::Frame(match bad {
                Bad::Frame(what) => what,
                Bad::Version(v) => format!("protocol version {v}, this build has 1"),
            })
        }),
    }
}

/// Ends a child that is in trouble; the finding.
fn describe(trouble: Trouble, mut child: Child, limit: u64, time: Duration) -> Found {
    let progress = child.progress();
    let length = <[u8; 8]>::try_from(&progress.first[..]).map(u64::from_le_bytes);
    let part = match length {
        _ if progress.first.is_empty() => String::new(),
        Ok(n) => format!(" after {} of the {n} bytes of a frame", progress.got),
        Err(_) => format!(
            " after {} of the 8 bytes of a length: {}",
            progress.first.len(),
            frame::first_bytes(&progress.first)
        ),
    };
    let seconds = time.as_secs_f64();
    match trouble {
        Trouble::Late => {
            child.end();
            let text = format!("no answer within {seconds} s{part}: the child was ended");
            ("exec.hang", text + &quoted(STDERR, &child.stderr()))
        }
        Trouble::End => {
            let how = child.close(GRACE).map_or_else(
                || "closed its output and went on: it was ended".to_string(),
                |status| format!("{}{}", ended(status), if part.is_empty() { "" } else { "," }),
            );
            ("exec.crashed", format!("the child {how}{part}") + &quoted(STDERR, &child.stderr()))
        }
        Trouble::TooLong(first) => {
            child.end();
            let text = format!(
                "begins with {}: as a length, {}, where an answer has {limit} bytes at most. Text here was \
                 printed to standard output, which is for frames alone",
                frame::first_bytes(&first),
                u64::from_le_bytes(first)
            );
            ("exec.bad_frame", text + &quoted(STDERR, &child.stderr()))
        }
        Trouble::Frame(what) => {
            child.end();
            ("exec.bad_frame", what + &quoted(STDERR, &child.stderr()))
        }
    }
}

fn connect(program: &Program) -> anyhow::Result<Connected> {
    let line = program.line();
    let mut child =
        Child::start(&program.command, HEADER_ROOM, program.pass_stderr).with_context(|| {
            format!("{line}: cannot be started; after `--` comes a program and its arguments")
        })?;
    let not = |(name, what): Found, line: &str| {
        let name = if name == "exec.bad_frame" { name } else { "exec.not_started" };
        Connected::Not(Finding::new(name, format!("{line}: before its hello: {what}")))
    };
    Ok(match child.wait(program.start) {
        Some(Event::Frame(bytes)) => match frame::parse(bytes) {
            Ok(Frame::Hello(hello)) => Connected::Ready(Box::new(child), hello),
            Ok(Frame::Error { unsupported: true, what, .. }) => Connected::Unsupported(what),
            Ok(Frame::Error { what, .. }) => {
                child.close(GRACE);
                let what = what + &quoted(STDERR, &child.stderr());
                not(("exec.not_started", what), &line)
            }
            Ok(Frame::Result { .. }) => {
                let what = "a result, where a hello was expected".to_string();
                not(("exec.bad_frame", what), &line)
            }
            Err(Bad::Version(theirs)) => bail!(
                "{line}: speaks version {theirs} of the protocol, and this assay version {}: use \
                 the child of this assay (docs/exec.md)",
                frame::VERSION
            ),
            Err(Bad::Frame(what)) => {
                not(describe(Trouble::Frame(what), child, HEADER_ROOM, program.start), &line)
            }
        },
        Some(Event::TooLong { first }) => {
            not(describe(Trouble::TooLong(first), child, HEADER_ROOM, program.start), &line)
        }
        Some(Event::End) => not(describe(Trouble::End, child, HEADER_ROOM, program.start), &line),
        None => not(describe(Trouble::Late, child, HEADER_ROOM, program.start), &line),
    })
}

/// The outputs in the op's order, or the name of a finding and its text.
fn named(
    op: &str,
    specs: &[OutSpec],
    dtype: impl Fn(usize) -> Dtype,
    mut outputs: assay_reference::ops::Tensors,
) -> Result<Vec<(&'static str, Tensor)>, Found> {
    let mut all = Vec::new();
    for (i, spec) in specs.iter().enumerate() {
        let name = spec.name;
        let Some(output) = outputs.remove(name) else {
            let given: Vec<&str> = outputs.keys().map(String::as_str).collect();
            let given = if given.is_empty() { "none".into() } else { given.join(", ") };
            let text = format!("`out.{name}` is missing from the outputs; there are: {given}");
            return Err(("exec.missing_output", text));
        };
        if output.shape() != spec.shape {
            let (want, got) = (&spec.shape, output.shape());
            let text = format!("`out.{name}`: expected shape {want:?}, got {got:?}");
            return Err(("exec.wrong_shape", text));
        }
        // Indices are whole numbers in a child, and f32 in a case.
        let index = op == "argmax" && matches!(output.dtype(), Dtype::I32 | Dtype::I64);
        let want = dtype(i);
        if index {
            all.push((name, Tensor::from_f64(want, output.shape(), &output.to_f64())));
        } else if output.dtype() == want {
            all.push((name, output));
        } else {
            let want = if op == "argmax" { "i32 or i64".into() } else { want.to_string() };
            let text = format!("`out.{name}`: expected {want}, got {}", output.dtype());
            return Err(("exec.wrong_dtype", text));
        }
    }
    match outputs.keys().next() {
        None => Ok(all),
        Some(other) => {
            let known: Vec<&str> = specs.iter().map(|s| s.name).collect();
            let known = known.join(", ");
            let text = format!("`out.{other}` is no output of {op}, whose outputs are: {known}");
            Err(("exec.unknown_output", text))
        }
    }
}
