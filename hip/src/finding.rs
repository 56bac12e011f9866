//! What the memory checks found, and how a launch ended.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::cells::Cells;

/// How a launch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LaunchStatus {
    /// Every block ran to its end.
    Completed,
    /// Some blocks were stopped at a finding, so the output is incomplete.
    Aborted,
    /// The launch was stopped at its deadline.
    Hung,
    /// The launcher returned this `hipError_t`; 1 is hipErrorInvalidValue, its answer to
    /// a shape that it does not support.
    Refused(i32),
}

/// How a launch ended and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchReport {
    /// How it ended.
    pub status: LaunchStatus,
    /// Findings, each code location once, in a fixed order.
    pub findings: Vec<MemoryFinding>,
}

impl LaunchReport {
    /// Whether it completed without a finding.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.status == LaunchStatus::Completed && self.findings.is_empty()
    }
}

/// A thread of a launch: its first occurrence in (launch, block, thread) order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// blockIdx.
    pub block: [u32; 3],
    /// threadIdx.
    pub thread: [u32; 3],
}

/// Whether a race is between waves or within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// Threads of one wave, which run in lockstep on today's hardware: the result is
    /// right there, by luck.
    SameWave,
    /// Threads of different waves: the result depends on timing.
    CrossWave,
}

/// How threads of a block came to disagree about a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Divergence {
    /// Some had returned from the kernel. AMD hardware lets the others pass; the language
    /// forbids it.
    ExitedBefore {
        /// Line of the barrier.
        line: u32,
    },
    /// Some waited at another barrier.
    Different {
        /// The lowest and the highest line waited at.
        lines: [u32; 2],
    },
}

/// One thing that a kernel did wrong. `times` counts the occurrences: of a kind that stops
/// the block, the number of blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields repeat: names, source lines, sites and counts")]
pub enum MemoryFinding {
    /// A load outside a buffer. `offset` is in bytes from its start.
    OutOfBoundsRead {
        buffer: String,
        bytes: usize,
        offset: i64,
        line: Option<u32>,
        site: Site,
        times: u64,
    },
    /// A store outside a buffer.
    OutOfBoundsWrite {
        buffer: String,
        bytes: usize,
        offset: i64,
        line: Option<u32>,
        site: Site,
        times: u64,
    },
    /// An access to no buffer at all, such as through a null pointer.
    WildAccess { address: u64, write: bool, line: Option<u32>, site: Site, times: u64 },
    /// A thread's locals don't fit the emulator's stack.
    StackOverflow { site: Site, times: u64 },
    /// A store to an input. Only the emulator knows by which thread.
    InputModified { buffer: String, offset: i64, line: Option<u32>, site: Option<Site>, times: u64 },
    /// Elements of an output that no thread wrote; `first` is the index of the first, `cells`
    /// where they are. `fills` is the number of fill patterns that they kept, 0 where every
    /// store was recorded.
    UnwrittenOutput {
        buffer: String,
        first: usize,
        count: usize,
        elements: usize,
        cells: Cells,
        fills: usize,
    },
    /// Bytes next to a buffer changed.
    CanaryDamaged { buffer: String, bytes: usize, offset: i64, count: usize },
    /// LDS read before any thread of the block wrote it.
    UninitialisedLds { symbol: String, line: Option<u32>, site: Site, times: u64 },
    /// Two threads, one of them storing, touch the same LDS without a barrier between.
    DataRace { severity: Severity, symbol: String, lines: [Option<u32>; 2], site: Site, times: u64 },
    /// Different blocks store to the same bytes of an output.
    OverlappingStores { buffer: String, offset: usize, bytes: u64, blocks: [[u32; 3]; 2] },
    /// A block reads bytes of an output or of working memory that another block of the launch stores to:
    /// `blocks` are the one that stores and the one that reads.
    GlobalRace { buffer: String, offset: usize, bytes: u64, blocks: [[u32; 3]; 2] },
    /// An output or working memory read before anything was stored there.
    UninitialisedBuffer { buffer: String, offset: usize, line: Option<u32>, site: Site, times: u64 },
    /// Threads of a block disagree about a barrier.
    BarrierDivergence { kind: Divergence, site: Site, times: u64 },
    /// An index beyond the bounds of an array in LDS or registers.
    LdsOverrun { array: String, line: Option<u32>, site: Site, times: u64 },
    /// A shuffle reads from a lane that does not take part.
    InactiveLane { op: &'static str, line: u32, site: Site, times: u64 },
    /// The launch passed its deadline.
    Hang { deadline: Duration },
}

impl MemoryFinding {
    /// A stable name for reports and catalogues, such as `memory.data_race`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::OutOfBoundsRead { .. } => "memory.out_of_bounds_read",
            Self::OutOfBoundsWrite { .. } => "memory.out_of_bounds_write",
            Self::WildAccess { .. } => "memory.wild_access",
            Self::StackOverflow { .. } => "memory.stack_overflow",
            Self::InputModified { .. } => "memory.input_modified",
            Self::UnwrittenOutput { .. } => "memory.unwritten_output",
            Self::CanaryDamaged { .. } => "memory.canary_damaged",
            Self::UninitialisedLds { .. } => "memory.uninitialised_lds",
            Self::DataRace { .. } | Self::GlobalRace { .. } => "memory.data_race",
            Self::UninitialisedBuffer { .. } => "memory.uninitialised_buffer",
            Self::OverlappingStores { .. } => "memory.overlapping_stores",
            Self::BarrierDivergence { .. } => "memory.barrier_divergence",
            Self::LdsOverrun { .. } => "memory.lds_overrun",
            Self::InactiveLane { .. } => "memory.inactive_lane",
            Self::Hang { .. } => "memory.hang",
        }
    }
}

/// "4 bytes before the start" of a buffer of so many bytes.
fn beyond(offset: i64, bytes: usize) -> String {
    match offset - bytes as i64 {
        _ if offset < 0 => format!("{} bytes before the start", -offset),
        0 => "right past the end".to_owned(),
        past if past < 0 => format!("from {} bytes before the end and across it,", -past),
        past => format!("{past} bytes past the end"),
    }
}

impl MemoryFinding {
    /// What happened, without where.
    fn sentence(&self) -> String {
        match self {
            Self::OutOfBoundsRead { buffer, bytes, offset, .. } => {
                format!("reads {} of {buffer} ({bytes} bytes)", beyond(*offset, *bytes))
            }
            Self::OutOfBoundsWrite { buffer, bytes, offset, .. } => {
                format!("writes {} of {buffer} ({bytes} bytes)", beyond(*offset, *bytes))
            }
            Self::WildAccess { address, write, .. } => {
                let verb = if *write { "writes" } else { "reads" };
                format!("{verb} address {address:#x}, which is in no buffer")
            }
            Self::StackOverflow { .. } => {
                "needs more stack than the emulator gives a thread".to_owned()
            }
            Self::InputModified { buffer, offset, .. } => {
                format!("writes to the input {buffer} at byte {offset}")
            }
            Self::UnwrittenOutput { buffer, first, count, elements, cells, fills } => {
                let seen = match fills {
                    0 => String::new(),
                    n => format!(", as {n} different fills show"),
                };
                format!(
                    "leaves {count} of {elements} elements of {buffer} unwritten, \
                     the first at index {first}{seen}: {cells}"
                )
            }
            Self::CanaryDamaged { buffer, bytes, offset, count } => {
                let place = beyond(*offset, *bytes);
                format!("changed {count} bytes next to {buffer}, the first {place}")
            }
            Self::UninitialisedLds { symbol, .. } => {
                format!("reads {symbol} in LDS before it is written")
            }
            Self::DataRace { severity, symbol, lines, .. } => race(*severity, symbol, *lines),
            Self::OverlappingStores { buffer, offset, bytes, blocks } => {
                let [a, b] = blocks.map(|[x, y, z]| format!("{x},{y},{z}"));
                format!(
                    "different blocks write the same {bytes} bytes of {buffer}, \
                     the first at byte {offset} (blocks {a} and {b})"
                )
            }
            Self::GlobalRace { buffer, offset, bytes, blocks } => {
                let [a, b] = blocks.map(|[x, y, z]| format!("{x},{y},{z}"));
                format!(
                    "a block reads {bytes} bytes of {buffer} that another block of the launch writes, \
                     the first at byte {offset} (block {a} writes, block {b} reads)"
                )
            }
            Self::UninitialisedBuffer { buffer, offset, .. } => {
                format!("reads {buffer} at byte {offset}, where nothing was written yet")
            }
            Self::BarrierDivergence { kind, .. } => divergence(*kind),
            Self::LdsOverrun { array, .. } => format!("indexes beyond the bounds of {array}"),
            Self::InactiveLane { op, line, .. } => {
                format!("{op} at line {line} reads from a lane that does not take part")
            }
            Self::Hang { deadline } => format!("did not end within {deadline:?}"),
        }
    }

    /// The source line, of findings that have one and do not name it in their sentence.
    fn line(&self) -> Option<u32> {
        match self {
            Self::OutOfBoundsRead { line, .. }
            | Self::OutOfBoundsWrite { line, .. }
            | Self::WildAccess { line, .. }
            | Self::InputModified { line, .. }
            | Self::UninitialisedLds { line, .. }
            | Self::UninitialisedBuffer { line, .. }
            | Self::LdsOverrun { line, .. } => *line,
            _ => None,
        }
    }

    /// The first thread concerned, and how often it occurred.
    fn site(&self) -> Option<(Site, u64)> {
        match self {
            Self::OutOfBoundsRead { site, times, .. }
            | Self::OutOfBoundsWrite { site, times, .. }
            | Self::WildAccess { site, times, .. }
            | Self::StackOverflow { site, times }
            | Self::UninitialisedLds { site, times, .. }
            | Self::UninitialisedBuffer { site, times, .. }
            | Self::DataRace { site, times, .. }
            | Self::BarrierDivergence { site, times, .. }
            | Self::LdsOverrun { site, times, .. }
            | Self::InactiveLane { site, times, .. } => Some((*site, *times)),
            Self::InputModified { site, times, .. } => site.map(|site| (site, *times)),
            _ => None,
        }
    }
}

fn race(severity: Severity, symbol: &str, lines: [Option<u32>; 2]) -> String {
    let who = match severity {
        Severity::SameWave => "two threads of one wave",
        Severity::CrossWave => "threads of two waves",
    };
    let between = match lines {
        [Some(a), Some(b)] if a == b => format!("two runs of line {a}"),
        [Some(a), Some(b)] => format!("lines {a} and {b}"),
        _ => "their accesses".to_owned(),
    };
    format!("{who} race on {symbol} in LDS: no barrier between {between}")
}

fn divergence(kind: Divergence) -> String {
    match kind {
        Divergence::ExitedBefore { line } => {
            format!("a thread returned before the barrier at line {line} at which others wait")
        }
        Divergence::Different { lines: [a, b] } => {
            format!("threads of a block wait at different barriers, lines {a} and {b}")
        }
    }
}

impl fmt::Display for MemoryFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence())?;
        if let Some(line) = self.line() {
            write!(f, " at line {line}")?;
        }
        let Some((Site { block: [bx, by, bz], thread: [tx, ty, tz] }, times)) = self.site() else {
            return Ok(());
        };
        write!(f, " (block {bx},{by},{bz} thread {tx},{ty},{tz}")?;
        if times > 1 {
            write!(f, ", the first of {times}")?;
        }
        f.write_str(")")
    }
}

/// The elements of an output that hold `pattern`, which is laid out from its start.
pub(crate) fn elements_equal_to(bytes: &[u8], pattern: &[u8], element: usize) -> Vec<usize> {
    let expected = |i: usize| pattern[i % pattern.len()];
    let is_pattern = |index: &usize| {
        let start = index * element;
        (start..start + element).all(|i| bytes[i] == expected(i))
    };
    (0..bytes.len() / element).filter(is_pattern).collect()
}
