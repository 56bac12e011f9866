//! What single faults do, by hand on cases of a few numbers, and that faults which would change nothing
//! are not offered.

#[path = "faults/attention.rs"]
mod attention;
#[path = "faults/elementwise.rs"]
mod elementwise;
#[path = "faults/linear.rs"]
mod linear;
#[path = "faults/missed.rs"]
mod missed;
#[path = "faults/norm_rope.rs"]
mod norm_rope;
#[path = "faults/quantised.rs"]
mod quantised;

use assay_reference::ops::{Fault, Op, Setup};
use assay_reference::{Dtype, Tensor};

use crate::harness::{setup, whole};

/// A case whose output is stored in `dtype`.
pub(crate) fn case<O: Op, const N: usize>(
    params: O::Params,
    dtype: Dtype,
    tensors: [(&str, Tensor); N],
) -> Setup<O> {
    let mut s = setup::<O, N>(params, tensors);
    s.policy = O::policy(dtype);
    O::check(&s.params, &s.tensors).expect("a valid case");
    s
}

fn find<O: Op>(s: &Setup<O>, slug: &str, key: &str) -> Option<Fault<O>> {
    let faults = O::faults(&s.params, &s.tensors).into_iter();
    faults.into_iter().find(|f| f.slug == slug && f.key == key)
}

/// Whether a fault is in the case's catalogue, under any key.
pub(crate) fn offered<O: Op>(s: &Setup<O>, slug: &str) -> bool {
    O::faults(&s.params, &s.tensors).iter().any(|f| f.slug == slug)
}

/// The case with a fault of its catalogue.
#[track_caller]
pub(crate) fn broken<O: Op>(s: &Setup<O>, slug: &str, key: &str) -> Setup<O> {
    let fault = find(s, slug, key).unwrap_or_else(|| panic!("{}.{slug} ({key})", O::NAME));
    let mut wrong = s.clone();
    (fault.edit)(&mut wrong);
    O::check(&wrong.params, &wrong.tensors).expect("a fault is within the contract");
    wrong
}

/// The output of a case before its own rounding.
pub(crate) fn plain<O: Op>(s: &Setup<O>) -> Vec<f64> {
    whole::<O, f64>(s)
}

/// The output with a fault, before its own rounding.
#[track_caller]
pub(crate) fn with<O: Op>(s: &Setup<O>, slug: &str, key: &str) -> Vec<f64> {
    plain(&broken(s, slug, key))
}

/// Equal to a few units of f32, or both NaN.
#[track_caller]
pub(crate) fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} for {want:?}");
    for (g, w) in got.iter().zip(want) {
        let near = (g - w).abs() <= 1e-6 * w.abs() + 1e-12;
        assert!(near || g == w || (g.is_nan() && w.is_nan()), "{got:?} for {want:?}");
    }
}

pub(crate) fn bf16(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(Dtype::Bf16, shape, values)
}

pub(crate) fn f16(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(Dtype::F16, shape, values)
}

pub(crate) fn f32(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(Dtype::F32, shape, values)
}
