//! The chart of `assay power`: ops by criteria, what each flags.

use super::OpPower;
use super::criteria;
use super::stats::Tally;
use crate::report::svg::{Anchor, Svg, heat};

const LEFT: f64 = 130.0;
const TOP: f64 = 92.0;
const CELL: (f64, f64) = (88.0, 30.0);

/// A heat map. Each cell says which share of the faulty outputs is flagged, and below, where it is not
/// zero, which share of the legitimate ones: green needs both right.
pub fn power(ops: &[OpPower], seed: u64) -> String {
    let columns = 1 + criteria::ALL.len();
    let width = LEFT + CELL.0 * columns as f64 + 20.0;
    let height = TOP + CELL.1 * ops.len() as f64 + 40.0;
    let mut svg = Svg::new(width, height, "Faults and false alarms by op and criterion");
    svg.text((16.0, 26.0), Anchor::Start, "head", "What each criterion flags, on the same outputs");
    let runs: usize = ops.iter().map(|op| op.alarms.suite.trials).sum();
    let trials: usize = ops.iter().map(|op| op.detection.suite.trials).sum();
    let text = format!(
        "{trials} faulty subjects: % caught; {runs} legitimate subjects: % false alarms below it (seed {seed})"
    );
    svg.text((16.0, 46.0), Anchor::Start, "faint", &text);
    let names = std::iter::once("assay").chain(criteria::ALL.iter().map(|c| c.name));
    for (i, name) in names.enumerate() {
        let x = LEFT + CELL.0 * (i as f64 + 0.5);
        svg.text((x, TOP - 10.0), Anchor::Middle, "", name);
    }
    for (r, op) in ops.iter().enumerate() {
        let y = TOP + CELL.1 * r as f64;
        svg.text((LEFT - 10.0, y + 19.0), Anchor::End, "", &op.op);
        let pairs = std::iter::once((op.detection.suite, op.alarms.suite))
            .chain(op.detection.criteria.into_iter().zip(op.alarms.criteria));
        for (c, (found, alarms)) in pairs.enumerate() {
            let name = if c == 0 { "assay" } else { criteria::ALL[c - 1].name };
            cell(
                &mut svg,
                (LEFT + CELL.0 * c as f64, y),
                (found, alarms),
                &format!("{}, {name}", op.op),
            );
        }
    }
    let y = TOP + CELL.1 * ops.len() as f64 + 24.0;
    let legend = "Colour: share of faults caught less share of false alarms, red 0 to green 100 %.";
    svg.text((16.0, y), Anchor::Start, "small faint", legend);
    svg.render()
}

fn cell(svg: &mut Svg, (x, y): (f64, f64), (found, alarms): (Tally, Tally), what: &str) {
    let (Some(caught), wrong) = (found.rate(), alarms.rate().unwrap_or(0.0)) else {
        svg.text((x + CELL.0 / 2.0, y + 19.0), Anchor::Middle, "faint", "-");
        return;
    };
    let (fill, class) = heat(caught - wrong);
    let tip = format!(
        "{what}: {} of {} faulty, {} of {} legitimate flagged",
        found.hits, found.trials, alarms.hits, alarms.trials
    );
    svg.rect([x + 1.0, y + 1.0, CELL.0 - 2.0, CELL.1 - 2.0], &fill, &tip);
    let middle = x + CELL.0 / 2.0;
    if alarms.hits == 0 {
        svg.text((middle, y + 19.0), Anchor::Middle, class, &found.percent());
    } else {
        svg.text((middle, y + 13.0), Anchor::Middle, class, &found.percent());
        let text = format!("{} false", alarms.percent());
        svg.text((middle, y + 25.0), Anchor::Middle, &format!("small {class}"), &text);
    }
}
