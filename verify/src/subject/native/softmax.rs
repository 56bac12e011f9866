//! `softmax` over the innermost dimension.

use assay_reference::{Result, Tensor};

use super::run::Run;
use super::scalar::exp2;
use super::{Keys, Known};

pub(super) const KNOBS: &[(&str, &[&str])] = &[("exponentials", &["f32", "stored"])];

pub(super) const FAULTS: &[Known] = &[
    ("truncating_store", Keys::None),
    ("ties_away_store", Keys::None),
    ("store_via_f16", Keys::None),
    ("unnormalised", Keys::None),
    ("wrong_temperature", Keys::Number),
    ("padded_key_counted", Keys::None),
    ("maximum_not_subtracted", Keys::None),
    ("exponent_clamped", Keys::None),
    ("log2e_bf16", Keys::None),
    ("gain", Keys::Number),
];

/// `softmax`.
pub(super) fn run(run: &Run<'_>) -> Result<Tensor> {
    let x = run.arg("x")?;
    let mut out = Vec::with_capacity(x.len());
    for row in run.floats("x")?.chunks_exact(x.cols().max(1)) {
        out.extend(softmax(run, row));
    }
    run.output(x.shape(), out)
}

/// One row, before it is stored.
pub(super) fn softmax(run: &Run<'_>, row: &[f32]) -> Vec<f32> {
    let chain = run.chain();
    let temperature = run.number("wrong_temperature").unwrap_or(1.0) as f32;
    let x: Vec<f32> = row.iter().map(|v| v / temperature).collect();
    let larger = |m: f32, v: &f32| if *v > m || v.is_nan() { *v } else { m };
    let largest = x.iter().fold(f32::NEG_INFINITY, larger);
    let subtracted = if run.is("maximum_not_subtracted") { 0.0 } else { largest };
    let exp = |t: f32| match () {
        () if run.is("exponent_clamped") => chain.exp(if t < -10.0 { -10.0 } else { t }),
        () if run.is("log2e_bf16") => exp2(t * 1.445_312_5),
        () => chain.exp(t),
    };
    let mut e: Vec<f32> = x.iter().map(|v| exp(v - subtracted)).collect();
    e.iter_mut().for_each(|v| *v = run.stored_if("exponentials", "stored", *v));
    if run.is("unnormalised") {
        return e;
    }
    let mut sum = chain.sum(&e);
    if run.is("padded_key_counted") {
        sum += exp(0.0 - subtracted);
    }
    e.iter().map(|v| chain.quotient(*v, sum)).collect()
}
