//! `argmax`: the index of the largest element of each row; the first NaN wins over everything.

use assay_reference::{Dtype, Result, Tensor};

use super::run::Run;
use super::scalar::Store;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[("tie", &["first", "last"])];

pub(super) const FAULTS: &[Known] = &[
    ("nan_ignored", Keys::None),
    ("last_dropped", Keys::None),
    ("maximum_from_zero", Keys::None),
    ("tail_dropped", Keys::Number),
    ("logits_bf16", Keys::None),
];

/// `argmax`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let x = run.arg("x")?;
    let v = x.cols();
    let mut values = run.floats("x")?;
    if run.is("logits_bf16") {
        values.iter_mut().for_each(|x| *x = Store::Nearest.round(Dtype::Bf16, *x));
    }
    let seen = match run.count("tail_dropped") {
        Some(tile) => v / tile.max(1) * tile.max(1),
        None if run.is("last_dropped") => v - 1,
        None => v,
    };
    let best: Vec<i32> =
        values.chunks_exact(v.max(1)).map(|row| best(run, &row[..seen]) as i32).collect();
    let rows = best.len();
    Ok(Tensor::from_i32(&[rows, 1], &best))
}

fn best(run: &Run<'_>, row: &[f32]) -> usize {
    if let Some(i) = row.iter().position(|x| x.is_nan())
        && !run.is("nan_ignored")
    {
        return i;
    }
    let floor = if run.is("maximum_from_zero") { 0.0 } else { f32::NEG_INFINITY };
    let (mut at, mut largest, mut found) = (0, floor, run.is("maximum_from_zero"));
    for (i, &x) in row.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
        if !found || x > largest || (x == largest && run.chose("tie", "last")) {
            (at, largest, found) = (i, x, true);
        }
    }
    at
}
