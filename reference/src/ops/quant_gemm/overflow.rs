//! Which sums of products with weights that are not scaled yet are beyond f16.
//!
//! Kernels that add (q - z) x before they apply the scale, in f16, overflow at activations that a scaled
//! sum would carry: <https://github.com/vllm-project/vllm/issues/10656>, whose kernels take that way up
//! to 50 rows (`MAX_Q_GEMM_ROWS`). A row and a column fit when 8 neighbouring inputs, the even and the odd
//! ones by themselves, reach beyond 65504.

use super::unscaled::{BLOCK, LANES, codes};
use super::{Dequant, Params};
use crate::ops::{Inputs, Residual};

/// The largest sum that f16 rounds to a number.
const LARGEST: f64 = 65_520.0;

/// Weights of a layer whose codes are held for this: half a GiB.
const MOST: usize = 1 << 26;

/// Where the observed output is not finite and the expected one is: when that is exactly where such sums
/// leave f16, the first block, its largest activation and the one that f16 would just carry.
pub(super) fn evidence<D: Dequant>(
    params: &Params<D::Params>,
    residual: &Residual<'_>,
) -> Option<String> {
    let (n, x) = (residual.cols, residual.tensors.get("x")?);
    let k = x.cols();
    let lost = |i: usize| residual.expected[i].is_finite() && !residual.observed[i].is_finite();
    let bad: Vec<usize> = (0..residual.observed.len()).filter(|&i| lost(i)).collect();
    let indexed = ["g_idx", "weight_g_idx"].iter().any(|name| residual.tensors.contains_key(*name));
    if bad.is_empty() || indexed || k == 0 || n * k > MOST {
        return None;
    }
    let inputs = Inputs::<f64>::stored(residual.tensors);
    let codes = codes::<D, f64>(params, &inputs, n, k);
    let (mut row, mut widened) = (vec![0.0; k], None);
    let mut first = None;
    for i in 0..residual.observed.len() {
        if !residual.expected[i].is_finite() {
            continue;
        }
        if widened.replace(i / n) != Some(i / n) {
            x.widen(i / n * k, &mut row, |v| v);
        }
        let block = overflowing(&row, &codes[i % n]);
        if block.is_some() != lost(i) {
            return None;
        }
        if let (None, Some((start, reach))) = (&first, block) {
            let block = &row[start..(start + BLOCK).min(k)];
            let amplitude = block.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            first = Some((i, start, amplitude, reach));
        }
    }
    let (i, start, amplitude, reach) = first?;
    Some(format!(
        "the {} elements that are not finite are those where (q - z) x, summed by eights without the scale, leaves f16: first at row {} column {} in k {start}..{}, where |x| reaches {amplitude} and the sum {reach:.0} (f16 ends at 65504, here with |x| at {:.0})",
        bad.len(),
        i / n,
        i % n,
        (start + BLOCK).min(k),
        amplitude * 65_504.0 / reach,
    ))
}

/// The first block of inputs in which a sum in f16 overflows, and how far it reaches.
fn overflowing(x: &[f64], codes: &[f64]) -> Option<(usize, f64)> {
    x.chunks(BLOCK).zip(codes.chunks(BLOCK)).enumerate().find_map(|(b, (x, q))| {
        let mut sums = [0.0f64; LANES];
        let mut reach = 0.0f64;
        for (i, (x, q)) in x.iter().zip(q).enumerate() {
            sums[i % LANES] += x * q;
            reach = reach.max(sums[i % LANES].abs());
        }
        (reach >= LARGEST).then_some((b * BLOCK, reach))
    })
}
