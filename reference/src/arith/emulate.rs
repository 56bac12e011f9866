//! Exact emulation of accumulators: the bits that a given order, FMA and dtype produce.

use crate::dtype::{Dtype, Rounding};
use crate::policy::{Accumulator, Order};

/// The dot product as the accumulator computes it. `b = None` sums `a`.
///
/// Inputs must be representable in f32 (in f64 for an f64 accumulator).
pub fn dot(a: &[f64], b: Option<&[f64]>, acc: &Accumulator) -> f64 {
    let term = |i: usize, sum: f64| match b {
        Some(b) if acc.fma => fused(a[i], b[i], sum, acc.dtype),
        Some(b) => add(step(a[i] * b[i], acc.dtype), sum, acc.dtype),
        None => add(a[i], sum, acc.dtype),
    };
    let round = Rounding::nearest(acc.dtype);
    let chain = |range: std::ops::Range<usize>, every: usize| {
        let mut sum = 0.0;
        let start = range.start;
        for i in range.clone() {
            sum = term(i, sum);
            if (i + 1 - start).is_multiple_of(every) || i + 1 == range.end {
                sum = round.round(sum);
            }
        }
        sum
    };
    let n = a.len();
    match acc.order {
        Order::Any | Order::Sequential => chain(0..n, 1),
        Order::Blocks(every) => chain(0..n, every.max(1)),
        Order::Split(parts) => {
            let size = n.div_ceil(parts.max(1)).max(1);
            (0..n).step_by(size).fold(0.0, |sum, from| {
                round.round(add(chain(from..(from + size).min(n), 1), sum, acc.dtype))
            })
        }
        Order::Lanes(lanes) => {
            let mut sums = vec![0.0; lanes.max(1).next_power_of_two()];
            let width = sums.len();
            for i in 0..n {
                sums[i % width] = round.round(term(i, sums[i % width]));
            }
            let mut half = width / 2;
            while half > 0 {
                for l in 0..half {
                    sums[l] = round.round(add(sums[l], sums[l + half], acc.dtype));
                }
                half /= 2;
            }
            sums[0]
        }
    }
}

/// One operation's result in the arithmetic that feeds the accumulator: f64 for f64, else f32.
fn step(exact: f64, dtype: Dtype) -> f64 {
    if dtype == Dtype::F64 { exact } else { f64::from(exact as f32) }
}

fn add(a: f64, b: f64, dtype: Dtype) -> f64 {
    // For f32 operands the f64 sum rounded to f32 is the f32 sum (53 >= 2 * 24 + 2).
    step(a + b, dtype)
}

fn fused(a: f64, b: f64, c: f64, dtype: Dtype) -> f64 {
    if dtype == Dtype::F64 {
        libm::fma(a, b, c)
    } else {
        f64::from(libm::fmaf(a as f32, b as f32, c as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bf16_accumulator_loses_ones() {
        let a = vec![1.0; 301];
        let mut ones = a.clone();
        ones[0] = 256.0;
        let acc = |dtype, order| Accumulator { dtype, order, fma: true };
        assert_eq!(dot(&ones, Some(&a), &acc(Dtype::F32, Order::Sequential)), 556.0);
        assert_eq!(dot(&ones, Some(&a), &acc(Dtype::Bf16, Order::Sequential)), 256.0);
        assert_eq!(dot(&ones, Some(&a), &acc(Dtype::Bf16, Order::Blocks(1))), 256.0);
        assert!(dot(&ones, Some(&a), &acc(Dtype::Bf16, Order::Blocks(16))) > 500.0);
    }

    #[test]
    fn lanes_are_the_reference_order() {
        let a: Vec<f64> = (0..100).map(|i| f64::from((i as f32 * 0.37 + 0.1) * 1.7)).collect();
        let f: Vec<f32> = a.iter().map(|&x| x as f32).collect();
        let acc = Accumulator { dtype: Dtype::F32, order: Order::Lanes(16), fma: true };
        assert_eq!(dot(&a, Some(&a), &acc), f64::from(super::super::dot::dot_f32(&f, &f, 0)));
    }
}
