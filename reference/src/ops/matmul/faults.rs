//! The catalogue of matmul faults.

use super::{Bias, Layout, Matmul, Params};
use crate::dtype::{Dtype, Rounding};
use crate::ops::{Fault, Setup, store_faults, via_f16_fault};
use crate::policy::{Accumulator, At, Order, Transform};
use crate::tensor::Tensor;

/// The faults of a product of x over `k` terms into `n` columns.
pub(in crate::ops) fn catalogue(
    params: &Params,
    [k, n]: [usize; 2],
    x: &Tensor,
    bias: bool,
) -> Vec<Fault<Matmul>> {
    let mut faults = range_faults(k);
    faults.extend(accumulator_faults(k));
    if bias {
        faults.push(Fault::new(
            "A112",
            "bias_dropped",
            "the bias is not added",
            |s: &mut Setup<Matmul>| s.params.bias = Bias::Dropped,
        ));
        if n > 1 {
            faults.push(Fault::new(
                "A113",
                "bias_by_row",
                "the bias is indexed by the row of the output instead of the column",
                |s: &mut Setup<Matmul>| s.params.bias = Bias::ByRow,
            ));
        }
    }
    if n > 1 && k > 1 && params.layout == Layout::OutIn {
        faults.push(Fault::new(
            "A114",
            "weight_transposed",
            "the memory of weight [N, K] is read as [K, N]",
            |s: &mut Setup<Matmul>| s.params.layout = Layout::Misread,
        ));
    }
    if bias && params.row_parallel {
        faults.extend(bias_by_rank());
    }
    faults.extend(factor_faults(params, n, bias));
    faults.extend(part_faults(params, k));
    if x.dtype() == Dtype::F16 {
        faults.extend(input_faults());
    }
    faults.extend(store_faults(["A111", "A11C"]));
    faults.extend(via_f16_fault(Some(x)));
    faults
}

/// A factor that is not applied where something else is added.
fn factor_faults(params: &Params, n: usize, bias: bool) -> Vec<Fault<Matmul>> {
    let mut faults = Vec::new();
    if params.alpha == 1.0 || !bias {
        return faults;
    }
    for until in [0, 64, 128, 256] {
        if until < n {
            let place = match until {
                0 => "everywhere".to_owned(),
                until => format!("beyond {until} columns"),
            };
            let detail = format!("the factor alpha, {}, is missing {place}", params.alpha);
            let edit = move |s: &mut Setup<Matmul>| s.params.alpha_until = Some(until);
            faults.push(Fault::new("A234", "alpha_ignored", detail, edit).keyed(place));
        }
    }
    faults
}

/// Partial sums that are stored before they are added. Over the ranks of a split model they are right.
fn part_faults(params: &Params, k: usize) -> Vec<Fault<Matmul>> {
    let stored = |parts: usize| {
        let detail = format!("the sums of {parts} parts of K are stored before they are added");
        let edit = move |s: &mut Setup<Matmul>| s.params.ranks = parts;
        Fault::new("A235", "split_k_stored", detail, edit).keyed(format!("{parts}"))
    };
    let some = [2, 4, 8].into_iter().filter(|parts| !params.row_parallel && *parts <= k);
    some.map(stored).collect()
}

/// Inputs in f16 of which a kernel sees less.
fn input_faults() -> Vec<Fault<Matmul>> {
    let read = |rounding: Rounding| {
        move |s: &mut Setup<Matmul>| {
            for point in ["x", "weight"] {
                s.policy.at(point, Transform::Round(rounding));
            }
        }
    };
    let mut faults = Vec::new();
    for (rounding, key) in [
        (Rounding::nearest(Dtype::Bf16), "nearest"),
        (Rounding::toward_zero(Dtype::Bf16), "toward zero"),
    ] {
        let detail = format!("x and weight are converted from f16 to bf16, {key}");
        faults.push(Fault::new("A232", "inputs_via_bf16", detail, read(rounding)).keyed(key));
    }
    let flushed = Rounding { flush: true, ..Rounding::nearest(Dtype::F16) };
    let detail = "subnormal numbers of x and weight, below 2^-14, are read as 0";
    faults.push(Fault::new("A233", "subnormals_flushed", detail, read(flushed)));
    faults
}

/// Terms of the sum that are missing or counted twice.
fn range_faults(k: usize) -> Vec<Fault<Matmul>> {
    let scale = |range: std::ops::Range<usize>, by: f64| {
        move |s: &mut Setup<Matmul>| {
            s.policy.at("x", Transform::Scale { at: At::Range(range.clone()), by });
        }
    };
    let mut faults = Vec::new();
    for tile in [8, 16, 32, 64, 128, 256] {
        let whole = k / tile * tile;
        if whole < k && whole > 0 {
            faults.push(
                Fault::new(
                    "A110",
                    "k_tail_dropped",
                    format!(
                        "terms {whole}..{k} of the sum are missing: the tail of a K tile of {tile}"
                    ),
                    scale(whole..k, 0.0),
                )
                .keyed(format!("tile {tile}")),
            );
        }
    }
    for limit in [1024, 2048, 4096, 8192, 16384] {
        if limit < k {
            faults.push(
                Fault::new(
                    "A116",
                    "k_limit",
                    format!("terms beyond {limit} of {k} are missing"),
                    scale(limit..k, 0.0),
                )
                .keyed(format!("limit {limit}")),
            );
        }
    }
    for tile in [8, 16, 32, 64, 128] {
        let last = (k - 1) / tile * tile;
        for (range, which) in [(0..tile, "first"), (last..k, "last")] {
            let key = format!("{which} {tile}");
            let text = format!("the {which} K tile of {tile} is");
            let twice = format!("{text} counted twice");
            let fault = Fault::new("A117", "k_range_repeated", twice, scale(range.clone(), 2.0));
            faults.push(fault.keyed(&key));
            // A partial last tile is the tail above.
            if which == "first" || k.is_multiple_of(tile) {
                let missing = format!("{text} not counted");
                let fault = Fault::new("A118", "k_range_dropped", missing, scale(range, 0.0));
                faults.push(fault.keyed(key));
            }
        }
    }
    for (keep, which) in [(0..1, "even"), (1..2, "odd")] {
        faults.push(
            Fault::new(
                "A119",
                "k_strided",
                format!("the {which} terms of the sum are missing"),
                move |s: &mut Setup<Matmul>| {
                    let at = At::Lanes { modulus: 2, keep: keep.clone() };
                    s.policy.at("x", Transform::Scale { at, by: 0.0 });
                },
            )
            .keyed(which),
        );
    }
    faults
}

/// Accumulators narrower than f32, by exact emulation of the usual orders.
fn accumulator_faults(k: usize) -> Vec<Fault<Matmul>> {
    let mut faults = Vec::new();
    for (dtype, slug, code) in
        [(Dtype::Bf16, "accumulator_bf16", "A11A"), (Dtype::F16, "accumulator_f16", "A11B")]
    {
        for every in [1usize, 4, 8, 16, 32, 64, 128] {
            if every > 1 && every >= k {
                break;
            }
            for fma in [true, false] {
                let acc = Accumulator { dtype, order: Order::Blocks(every), fma };
                faults.push(
                    Fault::new(
                        code,
                        slug,
                        format!(
                            "the running sum is rounded to {dtype} after every {every} terms{}",
                            if fma { " (fused)" } else { "" }
                        ),
                        move |s: &mut Setup<Matmul>| s.policy.acc = acc,
                    )
                    .keyed(format!("every {every}{}", if fma { "" } else { " unfused" })),
                );
            }
        }
    }
    faults
}

/// The bias of a row-parallel layer, added by every rank instead of one.
fn bias_by_rank() -> Vec<Fault<Matmul>> {
    let times = |n: usize| {
        let detail = format!("each of {n} ranks adds the bias: it counts {n} times");
        let edit = move |s: &mut Setup<Matmul>| s.params.bias = Bias::Times(n);
        Fault::new("A11D", "bias_times_ranks", detail, edit).keyed(format!("{n}"))
    };
    [2, 4, 8].into_iter().map(times).collect()
}
