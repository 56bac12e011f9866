//! The base of the angles that a recorded rotation implies.

use super::Params;
use crate::arith::math;
use crate::ops::Residual;

/// Tokens and heads that are looked at: enough to average the stored dtype's rounding away.
const MOST_TOKENS: usize = 48;
const MOST_HEADS: usize = 4;
/// Tokens of the first, coarse search, those of the smallest positions: there angles are no full turns yet.
const COARSE_TOKENS: usize = 8;
/// Between which bases is sought, and in which steps of the logarithm.
const RANGE: (f64, f64) = (10.0, 1e9);
const STEP: f64 = 0.05;
/// Up to which relative difference a base is the same for frequencies that are f32: theta^(-2i/d) moves by at most
/// as much as theta does, and takes a power and a division in f32, some units of 2^-24 together.
const F32_FREQUENCIES: f64 = 2.0 / (1 << 23) as f64;

struct Rotations<'a> {
    params: &'a Params,
    d: usize,
    seq_len: usize,
    /// (position, elements of one head before and after).
    rows: Vec<(f64, Vec<f64>, &'a [f64])>,
}

impl<'a> Rotations<'a> {
    fn new(params: &'a Params, residual: &Residual<'a>) -> Option<Rotations<'a>> {
        let (x, positions) = (residual.tensors.get("x")?, residual.tensors.get("positions")?);
        let &[tokens, heads, d] = x.shape() else { return None };
        if residual.observed.len() != x.len() || d < 4 || positions.len() != tokens {
            return None;
        }
        let mut order: Vec<usize> = (0..tokens).filter(|&t| positions.get_i64(t) > 0).collect();
        order.sort_by_key(|&t| positions.get_i64(t));
        let seq_len = order.last().map(|&t| positions.get_i64(t) as usize + 1)?;
        let mut rows = Vec::new();
        for &t in order.iter().take(MOST_TOKENS) {
            for h in 0..heads.min(MOST_HEADS) {
                let at = (t * heads + h) * d;
                let mut row = vec![0.0; d];
                x.widen(at, &mut row, |v| v);
                let observed = &residual.observed[at..at + d];
                if row.iter().chain(observed).all(|v| v.is_finite()) {
                    rows.push((positions.get_i64(t) as f64, row, observed));
                }
            }
        }
        (!rows.is_empty()).then_some(Rotations { params, d, seq_len, rows })
    }

    /// Squared distance of the first `n` rows from the rotation with this base.
    fn distance(&self, ln_theta: f64, n: usize) -> f64 {
        let params = Params { theta: math::exp(ln_theta), ..self.params.clone() };
        let frequencies = params.frequencies(self.d, self.seq_len);
        let factor = self.params.scaling.attention_factor();
        let half = self.d / 2;
        let mut table: (f64, Vec<(f64, f64)>) = (f64::NAN, Vec::new());
        let mut sum = 0.0;
        for (position, x, y) in self.rows.iter().take(n) {
            if table.0 != *position {
                let turn = |f: &super::Frequency| {
                    let angle = position * f.value;
                    (factor * math::cos(angle), factor * math::sin(angle))
                };
                table = (*position, frequencies.iter().map(turn).collect());
            }
            for (i, (cos, sin)) in table.1.iter().enumerate() {
                let (a, b) = (x[i], x[i + half]);
                sum += (y[i] - (a * cos - b * sin)).powi(2);
                sum += (y[i + half] - (b * cos + a * sin)).powi(2);
            }
        }
        sum
    }

    /// The best of a grid, then a golden section around it.
    fn minimum(&self, from: f64, to: f64, steps: usize, n: usize) -> f64 {
        let step = (to - from) / steps as f64;
        let at = |i: usize| from + step * i as f64;
        let grid: Vec<f64> = (0..=steps).map(|i| self.distance(at(i), n)).collect();
        let best = (0..=steps).min_by(|&a, &b| grid[a].total_cmp(&grid[b])).unwrap_or(0);
        let (mut low, mut high) = (at(best) - step, at(best) + step);
        let golden = (5f64.sqrt() - 1.0) / 2.0;
        for _ in 0..40 {
            let a = high - golden * (high - low);
            let b = low + golden * (high - low);
            if self.distance(a, n) <= self.distance(b, n) { high = b } else { low = a }
        }
        f64::midpoint(low, high)
    }
}

/// The bases that explain the output about equally well: the one with the fewest digits, then the best one. Empty
/// when no base explains most of the error.
pub(super) fn implied_theta(params: &Params, residual: &Residual<'_>) -> Vec<f64> {
    let Some(rotations) = Rotations::new(params, residual) else { return Vec::new() };
    let n = rotations.rows.len();
    let coarse = n.min(COARSE_TOKENS * MOST_HEADS);
    let (from, to) = (math::ln(RANGE.0), math::ln(RANGE.1));
    let first = rotations.minimum(from, to, ((to - from) / STEP) as usize, coarse);
    let best = rotations.minimum(first - STEP, first + STEP, 40, n);
    let (least, now) = (rotations.distance(best, n), rotations.distance(math::ln(params.theta), n));
    // The right base leaves rounding alone.
    if least.is_nan() || least > now / 16.0 {
        return Vec::new();
    }
    let theta = math::exp(best);
    let mut found = Vec::new();
    for digits in 0..4 {
        let rounded = format!("{theta:.digits$e}").parse::<f64>().unwrap_or(theta);
        let ln = math::ln(rounded);
        // Frequencies in f32 are rounded by as much as a base so near by changes them.
        let near = (ln - best).abs() <= F32_FREQUENCIES;
        if near {
            return vec![rounded];
        }
        if rotations.distance(ln, n) <= 1.2 * least + f64::MIN_POSITIVE {
            found.push(rounded);
            break;
        }
    }
    if !found.contains(&theta) {
        found.push(theta);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{Dtype, Rounding};
    use crate::ops::Tensors;
    use crate::ops::rope::Angle;
    use crate::tensor::Tensor;

    /// What is solved for from heads rotated by hand with base `theta`, stored in `dtype`.
    fn solved(theta: f64, first: i32, dtype: Dtype) -> Vec<f64> {
        let (tokens, heads, d) = (12, 2, 32);
        let rounding = Rounding::nearest(dtype);
        let value = |i: usize| rounding.round(((i * 7919 + 13) % 101) as f64 / 50.0 - 1.0);
        let x: Vec<f64> = (0..tokens * heads * d).map(value).collect();
        let positions: Vec<i32> = (0..tokens as i32).map(|t| first + t).collect();
        let mut y = x.clone();
        for (r, row) in y.chunks_mut(d).enumerate() {
            for i in 0..d / 2 {
                let angle =
                    f64::from(positions[r / heads]) * math::pow(theta, -2.0 * i as f64 / d as f64);
                let (a, b) = (row[i], row[i + d / 2]);
                row[i] = rounding.round(a * math::cos(angle) - b * math::sin(angle));
                row[i + d / 2] = rounding.round(b * math::cos(angle) + a * math::sin(angle));
            }
        }
        let mut tensors = Tensors::new();
        tensors.insert("x".into(), Tensor::from_f64(dtype, &[tokens, heads, d], &x));
        tensors.insert("positions".into(), Tensor::from_i32(&[tokens], &positions));
        let residual = Residual {
            tensors: &tensors,
            cols: d,
            expected: &x,
            radius: &vec![0.0; x.len()],
            observed: &y,
            output: rounding,
        };
        implied_theta(&Params::new(1e6, Angle::F32), &residual)
    }

    #[test]
    fn a_base_of_any_value_is_solved_for_and_rounding_is_none() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for (theta, first) in [(3e5, 0), (1.5e4, 0), (7.5e6, 2), (500.0, 40)] {
                let found = solved(theta, first, dtype);
                assert_eq!(found.first(), Some(&theta), "{dtype} {theta} {found:?}");
            }
            assert!(solved(1e6, 0, dtype).is_empty(), "the right one explains nothing more");
        }
    }
}
