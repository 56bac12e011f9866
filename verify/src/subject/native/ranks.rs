//! What ranks exchange: `all_reduce`, `all_gather`.

use assay_reference::{Result, Tensor};

use super::run::Run;
use super::{Keys, Known};

pub(super) const REDUCE_KNOBS: &[(&str, &[&str])] = &[("sum", &["f32", "stored"])];

pub(super) const REDUCE_FAULTS: &[Known] = &[
    ("rank_dropped", Keys::Number),
    ("rank_counted_twice", Keys::Number),
    ("not_reduced", Keys::None),
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("gain", Keys::Number),
];

pub(super) const GATHER_FAULTS: &[Known] = &[("ranks_reversed", Keys::None)];

fn names(run: &Run<'_>) -> Vec<String> {
    let name = |r: usize| format!("part.{r}");
    (0..).map(name).take_while(|n| run.case.tensors.contains_key(n)).collect()
}

/// `all_reduce`: the sum in rank order.
pub(super) fn all_reduce(run: &Run<'_>) -> Result<Tensor> {
    let names = names(run);
    let mut terms = Vec::new();
    for (r, name) in names.iter().enumerate() {
        let times = match () {
            () if run.is("not_reduced") => usize::from(r == 0),
            () if run.count("rank_dropped") == Some(r) => 0,
            () if run.count("rank_counted_twice") == Some(r) => 2,
            () => 1,
        };
        let part = run.floats(name)?;
        terms.extend(std::iter::repeat_n(part, times));
    }
    let stored = run.chose("sum", "stored") || run.param("stored") == true;
    let shape = run.arg("part.0")?.shape();
    let mut total = vec![0.0; shape.iter().product()];
    for (i, term) in terms.iter().enumerate() {
        for (t, x) in total.iter_mut().zip(term) {
            *t = if i == 0 { *x } else { *t + *x };
            // The last sum is stored as the output.
            if stored && i + 1 < terms.len() {
                *t = run.stored(*t);
            }
        }
    }
    run.output(shape, total)
}

/// `all_gather`: the parts side by side.
pub(super) fn all_gather(run: &Run<'_>) -> Result<Tensor> {
    let mut names = names(run);
    if run.is("ranks_reversed") {
        names.reverse();
    }
    let parts: Vec<(usize, Vec<f32>)> = names
        .iter()
        .map(|name| Ok((run.arg(name)?.cols(), run.floats(name)?)))
        .collect::<Result<_>>()?;
    let width: usize = parts.iter().map(|(cols, _)| cols).sum();
    let mut shape = run.arg("part.0")?.shape().to_vec();
    let Some(last) = shape.last_mut() else { return run.refuse("parts must have a dimension") };
    *last = width;
    let rows = shape[..shape.len() - 1].iter().product();
    let mut out = Vec::with_capacity(rows * width);
    for r in 0..rows {
        for (cols, part) in &parts {
            out.extend_from_slice(&part[r * cols..][..*cols]);
        }
    }
    run.output(&shape, out)
}
