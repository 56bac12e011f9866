//! From the runtime's raw findings to [`MemoryFinding`]s.
#![expect(unsafe_code, reason = "reads strings that the runtime points to")]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::time::Duration;

use super::ffi::Finding;
use super::module::Module;
use super::symbols::Lines;
use crate::finding::{Divergence, MemoryFinding, Severity, Site};

/// What a raw finding's indices refer to.
pub(super) struct Context<'a> {
    pub(super) module: &'a Module,
    /// Name and size of each buffer.
    pub(super) buffers: Vec<(String, usize)>,
    pub(super) deadline: Duration,
}

/// A raw finding with addresses resolved to lines: several addresses are one line.
struct Resolved {
    raw: Finding,
    line: Option<u32>,
    line2: Option<u32>,
}

/// Whether a raw finding of this kind stopped its block.
pub(super) fn stops_block(raw: &Finding) -> bool {
    matches!(raw.kind, 1..=3 | 9 | 12)
}

pub(super) fn is_hang(raw: &Finding) -> bool {
    raw.kind == 11
}

/// Translates the raw findings, one for each code location.
pub(super) fn translate(raw: &[Finding], context: &Context<'_>) -> Vec<MemoryFinding> {
    if raw.is_empty() {
        return Vec::new();
    }
    let lines = Lines::open(context.module.path());
    let resolve = |pc: u64, line: u32| if line != 0 { Some(line) } else { lines.line(pc) };
    let mut merged: BTreeMap<_, Resolved> = BTreeMap::new();
    for &raw in raw {
        let mut pair = [resolve(raw.pc, raw.line), resolve(raw.pc2, raw.line2)];
        if raw.kind == 5 {
            pair.sort_unstable();
        }
        let [line, line2] = pair;
        let key = (raw.kind, raw.detail, raw.buffer, raw.symbol, line, line2);
        let entry =
            merged.entry(key).or_insert(Resolved { raw: Finding { count: 0, ..raw }, line, line2 });
        let count = entry.raw.count + raw.count;
        let place = |f: &Finding| (f.launch, f.block, f.thread, f.offset);
        if place(&raw) < place(&entry.raw) {
            entry.raw = raw;
        }
        entry.raw.count = count;
    }
    let mut findings: Vec<_> = merged.into_values().map(|f| name(&f, context)).collect();
    drop_races_first_reads(&mut findings);
    findings
}

/// A racing load that comes first finds LDS unwritten: that is the race once more.
fn drop_races_first_reads(findings: &mut Vec<MemoryFinding>) {
    let races: Vec<_> = findings
        .iter()
        .filter_map(|finding| match finding {
            MemoryFinding::DataRace { symbol, lines, .. } => Some((symbol.clone(), *lines)),
            _ => None,
        })
        .collect();
    findings.retain(|finding| match finding {
        MemoryFinding::UninitialisedLds { symbol, line, .. } => {
            !races.iter().any(|(raced, lines)| raced == symbol && lines.contains(line))
        }
        _ => true,
    });
}

fn name(finding: &Resolved, context: &Context<'_>) -> MemoryFinding {
    let &Resolved { raw, line, line2 } = finding;
    let site = Site { block: raw.block_at, thread: raw.thread_at };
    let times = raw.count;
    let (buffer, bytes) = usize::try_from(raw.buffer)
        .ok()
        .and_then(|index| context.buffers.get(index).cloned())
        .unwrap_or_default();
    let symbol = || context.module.shared_variable(raw.symbol);
    let offset = raw.offset;
    match raw.kind {
        1 if raw.detail == 0 => {
            MemoryFinding::OutOfBoundsRead { buffer, bytes, offset, line, site, times }
        }
        // An access whose kind the host doesn't tell counts as the worse one.
        1 => MemoryFinding::OutOfBoundsWrite { buffer, bytes, offset, line, site, times },
        2 => MemoryFinding::WildAccess {
            address: offset as u64,
            write: raw.detail != 0,
            line,
            site,
            times,
        },
        3 => MemoryFinding::InputModified { buffer, offset, line, site: Some(site), times },
        4 => MemoryFinding::UninitialisedLds { symbol: symbol(), line, site, times },
        5 => {
            let severity = if raw.detail == 0 { Severity::SameWave } else { Severity::CrossWave };
            MemoryFinding::DataRace {
                severity,
                symbol: symbol(),
                lines: [line, line2],
                site,
                times,
            }
        }
        6 => MemoryFinding::OverlappingStores {
            buffer,
            offset: offset as usize,
            bytes: times,
            blocks: [raw.block_at, raw.block2_at],
        },
        13 => MemoryFinding::GlobalRace {
            buffer,
            offset: offset as usize,
            bytes: times,
            blocks: [raw.block_at, raw.block2_at],
        },
        14 => MemoryFinding::UninitialisedBuffer {
            buffer,
            offset: offset as usize,
            line,
            site,
            times,
        },
        7 => MemoryFinding::BarrierDivergence {
            kind: Divergence::ExitedBefore { line: raw.line },
            site,
            times,
        },
        8 => MemoryFinding::BarrierDivergence {
            kind: Divergence::Different { lines: [raw.line, raw.line2] },
            site,
            times,
        },
        9 => MemoryFinding::LdsOverrun { array: array(&raw, line, context), line, site, times },
        10 => MemoryFinding::InactiveLane { op: wave_op(raw.detail), line: raw.line, site, times },
        11 => MemoryFinding::Hang { deadline: context.deadline },
        12 => MemoryFinding::StackOverflow { site, times },
        kind => unreachable!("the runtime reports no finding of kind {kind}"),
    }
}

/// The array of an overrun: by name if the line mentions one in LDS, else by type.
fn array(raw: &Finding, line: Option<u32>, context: &Context<'_>) -> String {
    if raw.text.is_null() {
        return context.module.shared_variable(raw.symbol);
    }
    line.and_then(|line| context.module.shared_variables_on_line(line)).unwrap_or_else(|| {
        // SAFETY: the sanitizer's type name, a static string in the module, which
        // `context` keeps loaded.
        let text = unsafe { CStr::from_ptr(raw.text) }.to_string_lossy();
        format!("an array of type {}", text.trim_matches('\''))
    })
}

fn wave_op(op: u32) -> &'static str {
    match op {
        0 => "__shfl",
        1 => "__shfl_up",
        2 => "__shfl_down",
        3 => "__shfl_xor",
        8 => "an MFMA instruction",
        9 => "an MMAC instruction",
        _ => "a wave operation",
    }
}
