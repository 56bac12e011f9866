//! Text of `assay gate`.

use super::Table;
use crate::ledger::{Change, Comparison, Decision, Status};

/// How every required kernel stands.
pub fn decisions(decisions: &[Decision]) -> String {
    let mut table = Table::new(&["kernel", "backend", "arch", "status", "why"]);
    for d in decisions {
        table.row([
            d.kernel.clone(),
            d.backend.to_string(),
            d.arch.clone(),
            d.status.word().into(),
            d.reason.lines().next().unwrap_or_default().into(),
        ]);
    }
    let refused = decisions.iter().filter(|d| d.status != Status::Ok).count();
    let conclusion = match refused {
        0 => format!("admitted: all {} required kernels", decisions.len()),
        n => format!("refused: {n} of {} required kernels", decisions.len()),
    };
    format!("{}\n{conclusion}\n", table.render())
}

/// What changed between two ledgers.
pub fn comparisons(comparisons: &[Comparison]) -> String {
    let mut table = Table::new(&["kernel", "backend", "arch", "changed"]);
    for c in comparisons {
        let mut what: Vec<&str> = c.changes.iter().map(|change| change.what).collect();
        what.dedup();
        let what = if what.is_empty() { "nothing".into() } else { what.join(", ") };
        table.row([c.kernel.clone(), c.backend.to_string(), c.arch.clone(), what]);
    }
    let mut out = table.render();
    let line = |c: &Change| format!("    {}: {} -> {}\n", c.what, c.old, c.new);
    for c in comparisons.iter().filter(|c| c.is_changed() || !c.causes.is_empty()) {
        out += &format!("\n{} on {} {}\n", c.kernel, c.backend, c.arch);
        out.extend(c.changes.iter().map(line));
        if !c.causes.is_empty() {
            out += "  what else is not as it was:\n";
            out.extend(c.causes.iter().map(line));
        }
    }
    let changed = comparisons.iter().filter(|c| c.is_changed()).count();
    out + &format!("\n{changed} of {} kernels changed\n", comparisons.len())
}
