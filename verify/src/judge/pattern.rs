//! What an error looks like when nothing explains it.

use assay_reference::ops::{Op, Tile};

use super::accept::{Expected, ratio};
use super::explain::Subject;
use super::observed::Run;
use super::search::{label, near};
use super::{Verdict, evidence};

/// Describes the error of the smallest of the runs `open`, against its closest convention.
pub(super) fn unexplained<O: Op>(subject: &Subject<'_, O>, open: &[usize]) -> Verdict {
    let runs = subject.runs;
    let Some(&i) = open.iter().min_by_key(|&&i| (runs[i].observed.len(), i)) else {
        return Verdict::Unexplained { pattern: "no run failed".into() };
    };
    let (index, m) = near::<O>(&runs[i], &subject.baselines[i], subject.conventions);
    let setup = runs[i].setup(&subject.conventions[index].edits);
    let mut text = runs[i].describe(&setup, &m);
    if index > 0 {
        text += &format!("; closest convention: {}", label(&subject.conventions[index]));
    }
    if m.is_vague() {
        return Verdict::IllConditioned { where_: text };
    }
    let figures = evidence::of(std::iter::once((&runs[i], &subject.conventions[index])));
    let wrong = shape(&runs[i], &runs[i].expect(&setup, &Tile::ALL));
    Verdict::Unexplained { pattern: format!("{text}; {wrong}{figures}") }
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
    parts.extend(heads(&wrong, &run.spec.shape, cols));
    parts.extend(period(&wrong, cols));
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

/// Of an output [tokens, heads, elements], which heads and tokens are wrong.
fn heads(wrong: &[usize], shape: &[usize], cols: usize) -> Vec<String> {
    let &[tokens, heads, _] = shape else { return Vec::new() };
    let of = |name: &str, n: usize, at: fn(usize, usize) -> usize| {
        format!("{name} {}", span(wrong.iter().map(|i| at(i / cols, heads)), n))
    };
    vec![
        of("heads", heads, |row, heads| row % heads),
        of("tokens", tokens, |row, heads| row / heads),
    ]
}

/// Whether the wrong columns are those of some residues by a power of two, as lanes, vectors, packed words and tiles make
/// them.
fn period(wrong: &[usize], cols: usize) -> Option<String> {
    let mut is_wrong = vec![false; cols];
    wrong.iter().for_each(|i| is_wrong[i % cols] = true);
    if is_wrong.iter().all(|w| *w) {
        return None;
    }
    let fits = |m: &usize| (0..cols).all(|c| is_wrong[c] == is_wrong[c % m]);
    let m = (1..8).map(|e| 1usize << e).filter(|m| 2 * m <= cols).find(fits)?;
    let residues = (0..m).filter(|&r| is_wrong[r]);
    Some(format!("columns {} modulo {m}", span(residues, m)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_lane_and_heads_are_told() {
        // Rows of 32 columns, the second of each four wrong.
        let wrong: Vec<usize> = (0..64).filter(|i| i % 4 == 1).collect();
        assert_eq!(period(&wrong, 32).as_deref(), Some("columns 1 modulo 4"));
        assert_eq!(period(&[3], 32), None, "one column is no period");
        assert_eq!(period(&(0..32).collect::<Vec<_>>(), 32), None);
        // [2 tokens, 3 heads, 2 elements]: head 1 of both tokens.
        assert_eq!(heads(&[2, 3, 8, 9], &[2, 3, 2], 2), ["heads 1", "tokens all"]);
    }
}
