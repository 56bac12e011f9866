//! What is looked at before any output is judged: every access of small cases, and where the matrix
//! instructions hold their elements.

use assay_hip::emu::Placement;
use assay_hip::probe::layout::LayoutMap;
use assay_hip::{Backend, Kernel, LaunchOptions};
use assay_reference::Case;
use rayon::prelude::*;

use super::Profile;
use super::runs::{launch, merge, work};
use crate::dispatch::extent;
use crate::families::Generated;
use crate::finding::Finding;

/// What a matrix path must not be checked without: whether the registers are where the path expects them.
pub(super) fn misplaced(map: Option<&LayoutMap>) -> Vec<Finding> {
    let misplaced = map.map_or(Vec::new(), LayoutMap::misplaced);
    let Some(first) = misplaced.first() else { return Vec::new() };
    let text = match misplaced.len() {
        1 => first.to_string(),
        n => format!("{first}, and {} more registers", n - 1),
    };
    vec![Finding::new("matrix.layout", text)]
}

/// Runs small cases with every access checked, the buffers alternately against the guard page at
/// their end and at their start.
pub(super) fn memory_phase(
    kernel: &Kernel,
    backend: &Backend,
    cases: &[Generated],
    (seed, profile): (u64, Profile),
    step: &(dyn Fn() + Sync),
) -> anyhow::Result<Vec<Finding>> {
    let found: Vec<Option<Vec<Finding>>> = cases
        .par_iter()
        .enumerate()
        .map(|(i, g)| {
            let mut findings = None;
            if work(&g.case) <= profile.checked_work() {
                let placement = if i % 2 == 0 { Placement::End } else { Placement::Start };
                let options =
                    LaunchOptions { seed: seed ^ 1, placement, ..LaunchOptions::default() };
                findings = Some(launch(kernel, backend, g, &options)?.1);
            }
            step();
            Ok(findings)
        })
        .collect::<anyhow::Result<_>>()?;
    let mut all = Vec::new();
    found.iter().flatten().for_each(|f| merge(&mut all, f.clone()));
    let ran: Vec<(&Case, &[Finding])> = (cases.iter().zip(&found))
        .filter_map(|(g, found)| Some((&g.case, found.as_deref()?)))
        .collect();
    all.iter_mut().for_each(|f| f.text += &extent(&f.name, &ran));
    all.sort_by_key(|f| CAUSES.iter().position(|c| *c == f.name).unwrap_or(CAUSES.len()));
    Ok(all)
}

/// Memory findings from cause to consequence: a thread that leaves early also leaves shared memory
/// unwritten and output cells empty.
const CAUSES: &[&str] = &[
    "memory.barrier_divergence",
    "memory.inactive_lane",
    "memory.lds_overrun",
    "memory.out_of_bounds_write",
    "memory.out_of_bounds_read",
    "memory.wild_access",
    "memory.input_modified",
    "memory.canary_damaged",
    "memory.overlapping_stores",
    "memory.data_race",
    "memory.uninitialised_lds",
    "memory.uninitialised_buffer",
    "memory.hang",
    "memory.stack_overflow",
    "memory.unwritten_output",
];
