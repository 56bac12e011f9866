//! The cases of an op in one dtype. The families are of what models store, bf16 and f16; a program that
//! computes in f32 gets the same values in f32.

use assay_reference::ops::{Erased, Op};
use assay_reference::{Case, Dtype, Tensor};

use crate::families::{self, Generated};
use crate::relations::{self, Relation};

/// Arguments whose dtype a checkpoint fixes: the scales of quantised weights.
const SCALES: [&str; 3] = ["scales", "weight_scale", "weight_scale_inv"];

/// The dtype that a case is of: its output's; for `argmax`, whose output is an index, its input's.
pub fn dtype_of(case: &Case) -> Dtype {
    match case.tensors.get("x") {
        Some(x) if case.op == "argmax" => x.dtype(),
        _ => case.dtype,
    }
}

/// The cases of an op in a dtype: those of the families; for f32 also the values of those of bf16 and f16.
/// `quick`: the small ones that together show every fault.
pub fn cases(op: &str, dtype: Dtype, seed: u64, quick: bool) -> Vec<Generated> {
    let all = if quick { families::power_cases(op, seed) } else { families::cases(op, seed) };
    let of_dtype = |g: Generated| {
        let label = g.label;
        let case = in_dtype(&g.case, dtype)?;
        let label = if case == g.case { label } else { format!("{label} as {dtype}") };
        Some(Generated { case, label, structured: g.structured })
    };
    all.into_iter().filter_map(of_dtype).collect()
}

/// The relations of an op in a dtype.
pub(super) fn relations(op: &str, dtype: Dtype, seed: u64) -> Vec<Relation> {
    let of_dtype = |r: Relation| {
        let (base, changed) = (in_dtype(&r.base, dtype)?, in_dtype(&r.changed, dtype)?);
        Some(Relation { base, changed, ..r })
    };
    relations::of(op, seed).into_iter().filter_map(of_dtype).collect()
}

/// A case of `dtype` as it is; one of bf16 or f16 with the same values in f32 where that is asked.
fn in_dtype(case: &Case, dtype: Dtype) -> Option<Case> {
    let is = dtype_of(case);
    if is == dtype {
        return Some(case.clone());
    }
    if dtype != Dtype::F32 || !matches!(is, Dtype::Bf16 | Dtype::F16) {
        return None;
    }
    let mut wider = Case { dtype, ..case.clone() };
    for (name, tensor) in &mut wider.tensors {
        let last = name.rsplit('.').next().unwrap_or(name);
        let narrow = matches!(tensor.dtype(), Dtype::Bf16 | Dtype::F16);
        if narrow && !SCALES.contains(&last) {
            *tensor = Tensor::from_f64(dtype, tensor.shape(), &tensor.to_f64());
        }
    }
    // What the op's contract fixes to a narrower dtype has no case in f32.
    Erased::open(&wider).is_ok().then_some(wider)
}

#[cfg(test)]
mod tests {
    use super::*;
    use assay_reference::ops;

    #[test]
    fn the_cases_in_f32_have_the_values_of_the_families() {
        for op in ops::NAMES {
            let own = families::power_cases(op, 1);
            for dtype in [Dtype::Bf16, Dtype::F32] {
                let all = cases(op, dtype, 1, true);
                assert!(all.iter().all(|g| dtype_of(&g.case) == dtype), "{op}");
            }
            let wide = cases(op, Dtype::F32, 1, true);
            let narrow = own
                .iter()
                .filter(|g| matches!(dtype_of(&g.case), Dtype::Bf16 | Dtype::F16 | Dtype::F32));
            assert_eq!(wide.len(), narrow.clone().count(), "{op}: a case is not retyped");
            for (g, was) in wide.iter().zip(narrow) {
                assert_eq!(g.case.params, was.case.params);
                for (name, t) in &g.case.tensors {
                    let (now, then) = (t.to_f64(), was.case.tensors[name].to_f64());
                    let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
                    assert!(now.iter().zip(&then).all(same), "{op} {}: {name}", g.label);
                    let scales = SCALES.iter().any(|s| name.ends_with(s));
                    assert!(t.dtype() == was.case.tensors[name].dtype() || !scales);
                }
            }
        }
    }
}
