//! What an error looks like when nothing explains it.

use assay_reference::ops::Op;

use super::accept::{Expected, ratio};
use super::explain::Subject;
use super::search::{Run, label, near};
use super::{Verdict, evidence};

/// Describes the error of the smallest of the runs `open`, against its closest convention.
pub(super) fn unexplained<O: Op>(subject: &Subject<'_, O>, open: &[usize]) -> Verdict {
    let runs = subject.runs;
    let Some(&i) = open.iter().min_by_key(|&&i| (runs[i].observed.len(), i)) else {
        return Verdict::Unexplained { pattern: "no run failed".into() };
    };
    let (index, e, m) = near::<O>(&runs[i], &subject.baselines[i], subject.conventions);
    let mut text = runs[i].describe(&e, &m);
    if index > 0 {
        text += &format!("; closest convention: {}", label(&subject.conventions[index]));
    }
    if m.is_vague() {
        return Verdict::IllConditioned { where_: text };
    }
    let figures = evidence::of(std::iter::once((&runs[i], &subject.conventions[index])));
    Verdict::Unexplained { pattern: format!("{text}; {}{figures}", shape(&runs[i], &e)) }
}

fn shape<O: Op>(run: &Run<'_, O>, e: &Expected) -> String {
    let o = &run.observed;
    if o.iter().all(|x| x.is_nan()) {
        return "every element is NaN".into();
    }
    if o.len() > 1 && o.iter().all(|x| *x == o[0]) {
        return format!("every element is {}", o[0]);
    }
    let cols = run.spec.cols();
    let wrong: Vec<usize> =
        (0..o.len()).filter(|&i| ratio(o[i], e, i, run.rounding(&run.base)) > 1.0).collect();
    let nan = wrong.iter().filter(|&&i| !o[i].is_finite()).count();
    let zero = wrong.iter().filter(|&&i| o[i] == 0.0).count();
    let mut parts = vec![
        format!("rows {}", span(wrong.iter().map(|i| i / cols), run.spec.rows())),
        format!("columns {}", span(wrong.iter().map(|i| i % cols), cols)),
    ];
    if nan > 0 {
        parts.push(format!("{nan} of them not finite"));
    }
    if zero > 0 {
        parts.push(format!("{zero} of them zero"));
    }
    let (mut num, mut den) = (0.0, 0.0);
    for (o, y) in o.iter().zip(&e.v).filter(|(o, y)| o.is_finite() && y.is_finite()) {
        num += o * y;
        den += y * y;
    }
    if den > 0.0 {
        parts.push(format!("best gain {:.4}", num / den));
    }
    format!("wrong: {}", parts.join(", "))
}

/// `all`, `3`, `3..7` (every one between), `5 of 12 between 3 and 11`.
fn span(indices: impl Iterator<Item = usize>, n: usize) -> String {
    let mut all: Vec<usize> = indices.collect();
    all.sort_unstable();
    all.dedup();
    match (all.first(), all.last()) {
        _ if all.len() == n && n > 0 => "all".into(),
        (Some(&a), Some(&b)) if a == b => format!("{a}"),
        (Some(&a), Some(&b)) if b - a + 1 == all.len() => format!("{a}..={b}"),
        (Some(&a), Some(&b)) => format!("{} of {n} between {a} and {b}", all.len()),
        _ => "none".into(),
    }
}
