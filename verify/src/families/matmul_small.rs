//! Small cases of `matmul`, and those that the kernels' contracts do not allow: f16, layers that are
//! split over ranks.

use assay_reference::Dtype;
use serde_json::json;

use super::draft::{Draft, EXACT, Family, OUTLIER, SPECIAL, UNIT};
use super::matmul::{Dims, exact, outlier, special, special_weights, ties, unit};
use super::{Generated, Values};

pub(super) fn cases(seed: u64) -> Vec<Generated> {
    let mut out = vec![
        unit((8, 8, 263, true), seed, 1.0),
        unit((5, 9, 384, true), seed, 1.0),
        unit((3, 5, 40, false), seed, 1.0),
        unit((4, 6, 96, true), seed, 0.02),
        // Beyond every K limit.
        unit((1, 8, 16_448, true), seed, 1.0),
        exact((6, 9, 101, true), seed),
        exact((4, 8, 64, false), seed),
        ties((6, 11, 72, true), seed),
        outlier((8, 12, 192, true), seed),
        special((9, 10, 40, true), seed),
        special_weights((4, 14, 40, true), seed),
    ];
    out.push(f16(UNIT, (8, 8, 263, true), seed, |v, n| v.normals(n, 1.0)));
    out.push(f16(OUTLIER, (6, 8, 192, true), seed, |v, n| {
        let mut x = v.normals(n, 1.0);
        x.iter_mut().step_by(64).for_each(|x| *x = 2100.0);
        x
    }));
    // Inputs that are subnormal in f16.
    out.push(f16(SPECIAL, (5, 8, 64, false), seed, |v, n| v.normals(n, 3e-5)));
    out.push(f16(EXACT, (5, 8, 64, true), seed, |v, n| {
        (0..n).map(|i| if i % 9 == 0 { v.int(-600, 600) as f64 } else { 0.0 }).collect()
    }));
    out.push(row_parallel((4, 6, 48, true), seed));
    out.push(scaled((2, 260, 12, true), seed));
    out
}

fn f16(
    family: Family,
    (m, n, k, bias): Dims,
    seed: u64,
    x: impl Fn(&mut Values, usize) -> Vec<f64>,
) -> Generated {
    let note = if bias { " bias" } else { "" };
    let mut draft = Draft::new("matmul", family, format!("{m}x{n}x{k}{note}"), Dtype::F16, seed);
    let mut v = draft.values();
    let x = x(&mut v, m * k);
    let whole = family.0 == "exact";
    let mut w = v.normals(n * k, if whole { 2.0 } else { 0.06 });
    let mut b = v.normals(n, 1.0);
    if whole {
        w.iter_mut().chain(&mut b).for_each(|x| *x = x.round());
    }
    if bias {
        draft = draft.with("bias", &[n], &b);
    }
    draft.with("x", &[m, k], &x).with("weight", &[n, k], &w).done()
}

/// A layer whose reduction a split model splits.
pub(super) fn row_parallel(d: Dims, seed: u64) -> Generated {
    let mut g = unit(d, seed, 1.0);
    g.case.params = json!({ "row_parallel": true });
    g.label += " row parallel";
    g
}

/// A product with a factor, over more columns than a tile has.
fn scaled(d: Dims, seed: u64) -> Generated {
    let mut g = unit(d, seed, 1.0);
    g.case.params = json!({ "alpha": 0.5 });
    g.label += " alpha 0.5";
    g
}
