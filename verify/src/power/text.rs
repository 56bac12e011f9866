//! The report of `assay power` for people.

use super::criteria;
use super::rows::{Cell, FaultRow};
use super::simulate::Simulation;
use super::{ConventionRow, OpPower};
use crate::report::Table;

/// Rows of a list where no op was asked for.
const MOST: usize = 25;

/// The tables: by op, then the worst rows, then a summary. `details` adds every fault and convention.
pub fn power(ops: &[OpPower], details: bool) -> String {
    let mut out = by_op(ops);
    let faults: Vec<(&OpPower, &FaultRow)> =
        ops.iter().flat_map(|op| op.faults.iter().map(move |f| (op, f))).collect();
    let conventions: Vec<(&OpPower, &ConventionRow)> =
        ops.iter().flat_map(|op| op.conventions.iter().map(move |c| (op, c))).collect();
    if details {
        out += &format!("\n{}", by_fault(&faults));
        out += &format!("\n{}", by_convention(&conventions));
    } else {
        out += &worst(&faults, &conventions);
    }
    let coinciding: Vec<_> = faults.iter().filter(|(_, f)| !f.counts()).collect();
    if !coinciding.is_empty() {
        out += "\nNot counted, since some legitimate implementation stores the same:\n";
    }
    for (op, f) in coinciding {
        let seen = f.total.suite.percent();
        out += &format!(
            "  {}.{} (flagged in {seen} of the trials): {}\n",
            op.op,
            f.name(),
            f.coincides.unwrap_or_default()
        );
    }
    out += &format!("\n{}\n", summary(ops));
    out
}

fn heading(first: &[&'static str]) -> Table {
    let names = criteria::ALL.iter().map(|c| c.name);
    Table::new(&first.iter().copied().chain(names).collect::<Vec<_>>())
}

fn by_op(ops: &[OpPower]) -> String {
    let first = ["op", "faults", "trials", "caught", "legitimate runs", "alarms", "95 % limit"];
    let mut table = heading(&first);
    for op in ops {
        let both = |i: usize| {
            let own = op.conventions.iter().find(|c| c.convention == "defaults");
            let own = own.map(|c| c.total.criteria[i]).unwrap_or_default();
            let [found, own, all] =
                [op.detection.criteria[i], own, op.alarms.criteria[i]].map(|t| t.percent());
            format!("{found} / {own} / {all}")
        };
        let own = [
            op.op.clone(),
            op.faults.len().to_string(),
            op.detection.suite.trials.to_string(),
            op.missing.as_ref().map_or(op.detection.suite.percent(), |_| "nothing".into()),
            op.alarms.suite.trials.to_string(),
            op.alarms.suite.hits.to_string(),
            format!("{:.2} %", 100.0 * op.upper95),
        ];
        table.row(own.into_iter().chain((0..criteria::ALL.len()).map(both)));
    }
    let missing: String = ops
        .iter()
        .filter_map(|op| op.missing.as_ref().map(|m| format!("{}: not measured: {m}\n", op.op)))
        .collect();
    format!(
        "{}Criteria: faulty flagged / legitimate of their reference's convention flagged / all legitimate flagged.\n{missing}",
        table.render()
    )
}

fn by_fault(rows: &[(&OpPower, &FaultRow)]) -> String {
    let mut table = heading(&["fault", "trials", "caught", "not shown", "by family"]);
    for (op, f) in rows {
        let own = [
            format!("{}.{}", op.op, f.name()),
            f.total.suite.trials.to_string(),
            match () {
                () if f.missing.is_some() => "no subject".into(),
                () if !f.counts() => format!("({})", f.total.suite.percent()),
                () => f.total.suite.percent(),
            },
            f.not_shown.to_string(),
            families(&f.families),
        ];
        table.row(own.into_iter().chain(rates(&f.total)));
    }
    table.render()
}

fn by_convention(rows: &[(&OpPower, &ConventionRow)]) -> String {
    let first = ["convention", "runs", "alarms", "95 % limit", "other name"];
    let mut table = heading(&first);
    for (op, c) in rows {
        let own = [
            format!("{}: {}", op.op, c.convention),
            c.total.suite.trials.to_string(),
            if c.missing.is_some() { "no subject".into() } else { c.total.suite.hits.to_string() },
            format!("{:.2} %", 100.0 * c.upper95),
            c.misnamed.to_string(),
        ];
        table.row(own.into_iter().chain(rates(&c.total)));
    }
    table.render()
}

fn rates(cell: &Cell) -> impl Iterator<Item = String> + '_ {
    cell.criteria.iter().map(|t| t.percent())
}

/// `exact 100 %, unit 40.0 %`: families alone, the weakest first.
fn families(of: &std::collections::BTreeMap<String, Cell>) -> String {
    let mut all: Vec<(&String, &Cell)> = of.iter().collect();
    let rate = |c: &Cell| c.suite.rate().unwrap_or(0.0);
    all.sort_by(|a, b| rate(a.1).total_cmp(&rate(b.1)).then(a.0.cmp(b.0)));
    let words: Vec<String> =
        all.iter().map(|(name, c)| format!("{name} {}", c.suite.percent())).collect();
    words.join(", ")
}

/// What is not as it should be, and what only few families see.
fn worst(faults: &[(&OpPower, &FaultRow)], conventions: &[(&OpPower, &ConventionRow)]) -> String {
    let mut out = String::new();
    let bad: Vec<_> =
        faults.iter().copied().filter(|(_, f)| f.counts() && !f.is_caught()).collect();
    let shown: Vec<_> =
        bad.iter().copied().filter(|(_, f)| f.missing.is_none()).take(MOST).collect();
    if !shown.is_empty() {
        out += &format!("\nNot always caught, the worst first:\n{}", by_fault(&shown));
    }
    for (op, f) in &shown {
        for m in f.missed.iter().take(3) {
            let name = if m.convention.is_empty() { "the defaults" } else { &m.convention };
            let shown = if m.shown.is_empty() { "nothing".into() } else { m.shown.join(", ") };
            out += &format!(
                "missed: {}.{}: cases of seed {}, on {name}, {}: shown by {shown}\n",
                op.op,
                f.name(),
                m.seed,
                m.chain
            );
        }
    }
    for (op, f) in bad.iter().filter(|(_, f)| f.missing.is_some()).take(MOST) {
        let why = f.missing.as_deref().unwrap_or_default();
        out += &format!("no independent subject: {}.{}: {why}\n", op.op, f.name());
    }
    let loud: Vec<_> = conventions
        .iter()
        .copied()
        .filter(|(_, c)| c.missing.is_some() || c.total.suite.hits > 0)
        .collect();
    if !loud.is_empty() {
        let some: Vec<_> = loud.iter().copied().take(MOST).collect();
        out += &format!(
            "\nConventions with false alarms or without a subject:\n{}",
            by_convention(&some)
        );
    }
    out
}

fn summary(ops: &[OpPower]) -> String {
    let mut all = Cell::default();
    let mut legitimate = Cell::default();
    let (mut faults, mut caught, mut missing) = (0, 0, 0);
    for op in ops {
        all.add(&op.detection);
        legitimate.add(&op.alarms);
        faults += op.faults.iter().filter(|f| f.counts()).count();
        caught += op.faults.iter().filter(|f| f.is_caught()).count();
        missing += op.faults.iter().filter(|f| f.missing.is_some()).count();
        missing += op.conventions.iter().filter(|c| c.missing.is_some()).count();
        missing += usize::from(op.missing.is_some());
    }
    let lacking = match missing {
        0 => String::new(),
        n => format!("; {n} without an independent subject"),
    };
    format!(
        "{} ops: {caught} of {faults} faults caught in every trial ({} trials); {} false alarms in {} \
         legitimate runs (one-sided exact 95 % limit {:.3} %){lacking}",
        ops.len(),
        all.suite.trials,
        legitimate.suite.hits,
        legitimate.suite.trials,
        100.0 * legitimate.suite.upper95(),
    )
}

/// A simulation's table: percentages of seeds that each criterion flags.
pub fn simulation(sim: &Simulation) -> String {
    let first = sim.subjects.iter().copied();
    let mut table = Table::new(&std::iter::once("criterion").chain(first).collect::<Vec<_>>());
    for row in &sim.rows {
        let rates = row
            .flagged
            .iter()
            .map(|t| t.rate().map_or("-".into(), |r| format!("{:.0}", 100.0 * r)));
        table.row(std::iter::once(row.criterion.to_string()).chain(rates));
    }
    format!("{} (% of seeds flagged)\n{}", sim.title, table.render())
}
