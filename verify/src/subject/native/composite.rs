//! Fused kernels: `add_rms_norm`, `qk_norm_rope`.

use assay_reference::{Dtype, Result, Tensor};

use super::norm::Norm;
use super::rope::{Rope, positions};
use super::run::Run;
use super::scalar::{Store, tensor};
use super::{Keys, Known};

pub(super) const RESIDUAL_KNOBS: &[(&str, &[&str])] = &[("residual", &["stored", "f32"])];

pub(super) const RESIDUAL_FAULTS: &[Known] = &[
    ("residual_truncating_store", Keys::None),
    ("residual_ties_away_store", Keys::None),
    ("residual_gain", Keys::Number),
    ("residual_not_updated", Keys::None),
    ("residual_normalised", Keys::None),
    ("residual_sum_f16", Keys::None),
    ("norm_of_old_residual", Keys::None),
    ("block_dropped", Keys::None),
    ("residual_dropped", Keys::None),
];

pub(super) const NORMED_KNOBS: &[(&str, &[&str])] = &[("normed", &["stored", "f32"])];

pub(super) const NORMED_FAULTS: &[Known] = &[
    ("norm_after_rope", Keys::None),
    ("normed_truncating_store", Keys::None),
    ("normed_ties_away_store", Keys::None),
    ("normed_store_via_f16", Keys::None),
    ("norm_skipped", Keys::None),
    ("rope_skipped", Keys::None),
    ("norm_over_heads", Keys::None),
];

/// The residual's sum in f32 and as it is stored.
fn sum(run: &Run<'_>) -> Result<(Vec<f32>, Vec<f32>)> {
    let (a, b) = (run.floats("a")?, run.floats("b")?);
    let mut sum: Vec<f32> = a
        .iter()
        .zip(&b)
        .map(|(a, b)| match () {
            () if run.is("block_dropped") => *a,
            () if run.is("residual_dropped") => *b,
            () if run.is("residual_sum_f16") => {
                let half = |x: f32| Store::Nearest.round(Dtype::F16, x);
                half(half(*a) + half(*b))
            }
            () => a + b,
        })
        .collect();
    if let Some(gain) = run.number("residual_gain") {
        sum.iter_mut().for_each(|x| *x *= gain as f32);
    }
    let store = run.store("residual_");
    let stored = sum.iter().map(|x| store.round(run.dtype(), *x)).collect();
    Ok((sum, stored))
}

/// The norm of `add_rms_norm`, before it is stored.
fn normalised(run: &Run<'_>) -> Result<Vec<f32>> {
    let (sum, stored) = sum(run)?;
    let in_f32 = run.chose("residual", "f32") || run.param("edge_f32") == true;
    let seen = match () {
        () if run.is("norm_of_old_residual") => run.floats("a")?,
        () if in_f32 => sum,
        () => stored,
    };
    let d = run.arg("weight")?.len();
    let rows: Vec<usize> = (0..seen.len() / d.max(1)).collect();
    Ok(Norm::new(&run.within("norm"), run.floats("weight")?, d)?.rows(&seen, &rows))
}

/// `add_rms_norm`: the output `output`.
pub(super) fn add_rms_norm(run: &Run<'_>) -> Result<Tensor> {
    run.output(run.arg("a")?.shape(), normalised(run)?)
}

/// `add_rms_norm`: the output `residual`.
pub(super) fn residual(run: &Run<'_>) -> Result<Tensor> {
    let shape = run.arg("a")?.shape();
    match () {
        () if run.is("residual_not_updated") => tensor(run.dtype(), shape, &run.floats("a")?),
        () if run.is("residual_normalised") => run.output(shape, normalised(run)?),
        () => tensor(run.dtype(), shape, &sum(run)?.1),
    }
}

/// `qk_norm_rope`.
pub(super) fn qk_norm_rope(run: &Run<'_>) -> Result<Tensor> {
    let &[t, h, d] = run.arg("x")?.shape() else { return run.refuse("x must be [T, H, D]") };
    let mut x = run.floats("x")?;
    let in_f32 = run.chose("normed", "f32") || run.param("edge_f32") == true;
    // What the first of two kernels stores for the second.
    let store = run.store("normed_");
    let between = |x: &mut [f32]| {
        if !in_f32 {
            if run.is("normed_store_via_f16") {
                x.iter_mut().for_each(|v| *v = Store::Nearest.round(Dtype::F16, *v));
            }
            x.iter_mut().for_each(|v| *v = store.round(run.dtype(), *v));
        }
    };
    if run.is("norm_after_rope") {
        rotate(run, &mut x, [t, h, d])?;
        between(&mut x);
        x = norm(run, &x, [h, d])?;
    } else {
        if !run.is("norm_skipped") {
            x = norm(run, &x, [h, d])?;
        }
        between(&mut x);
        if !run.is("rope_skipped") {
            rotate(run, &mut x, [t, h, d])?;
        }
    }
    run.output(&[t, h, d], x)
}

fn norm(run: &Run<'_>, x: &[f32], [h, d]: [usize; 2]) -> Result<Vec<f32>> {
    let weight = run.floats("weight")?;
    let (weight, d) = match run.is("norm_over_heads") {
        true => (weight.repeat(h), h * d),
        false => (weight, d),
    };
    let rows: Vec<usize> = (0..x.len() / d.max(1)).collect();
    Ok(Norm::new(&run.within("norm"), weight, d)?.rows(x, &rows))
}

fn rotate(run: &Run<'_>, x: &mut [f32], [t, h, d]: [usize; 3]) -> Result<()> {
    let run = run.within("rope");
    let positions = positions(&run)?;
    let rope = Rope::new(&run, d, &positions)?;
    let times = if run.is("applied_twice") { 2 } else { 1 };
    for (t, position) in (0..t).zip(&positions) {
        let table = rope.table(*position);
        for head in x[t * h * d..][..h * d].chunks_exact_mut(d) {
            (0..times).for_each(|_| rope.rotate(head, &table));
        }
    }
    Ok(())
}
