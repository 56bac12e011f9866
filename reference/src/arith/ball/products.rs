//! Bounds of whole products of matrices: the value, the sum of absolute values and the sum of squares of
//! every output are three products of matrices, which cost a small part of three sums an element.

use std::sync::OnceLock;

use rayon::prelude::*;

use super::reduction::{Lowest, Stats, quantum, quantum_of_few};
use super::{Ball, values};
use crate::arith::fenv::DefaultEnv;
use crate::arith::matmul::{self, Weights};
use crate::arith::moments::Moments;
use crate::dtype::Dtype;
use crate::tensor::Tensor;

/// Outputs whose sums are in memory at a time.
const OUTPUTS: usize = 1 << 20;

/// What the bounds of a row's products need to know of the row.
struct Row {
    /// As in [`Lowest`].
    few: i32,
    quantum: OnceLock<i32>,
    /// Elements that are zero.
    zeros: usize,
    /// A bit for each element that is not; none where all are not.
    mask: Vec<u64>,
}

impl Row {
    fn of(row: &[f64]) -> Row {
        let zeros = row.iter().filter(|x| **x == 0.0).count();
        let bits = |part: &[f64]| {
            part.iter().enumerate().fold(0, |bits, (i, x)| bits | u64::from(*x != 0.0) << i)
        };
        let mask = if zeros > 0 { row.chunks(64).map(bits).collect() } else { Vec::new() };
        Row { few: quantum_of_few(row), quantum: OnceLock::new(), zeros, mask }
    }

    /// Places where neither of two rows of `k` elements is zero.
    fn terms(&self, other: &Row, k: usize) -> usize {
        match (self.zeros, other.zeros) {
            (0, zeros) | (zeros, 0) => k - zeros,
            _ => self.both(other).map(|bits| bits.count_ones() as usize).sum(),
        }
    }

    /// The first such place.
    fn first(&self, other: &Row) -> Option<usize> {
        let place =
            |(i, bits): (usize, u64)| (bits != 0).then(|| i * 64 + bits.trailing_zeros() as usize);
        match (self.zeros, other.zeros) {
            (0, 0) => Some(0),
            (0, _) => other.mask.iter().copied().enumerate().find_map(place),
            (_, 0) => self.mask.iter().copied().enumerate().find_map(place),
            _ => self.both(other).enumerate().find_map(place),
        }
    }

    fn both<'a>(&'a self, other: &'a Row) -> impl Iterator<Item = u64> + 'a {
        self.mask.iter().zip(&other.mask).map(|(a, b)| a & b)
    }
}

/// Whether all of these are numbers of 24 bits, or not finite: then a product of two is exact in f64.
fn are_short(x: &[f64]) -> bool {
    x.iter().all(|x| f64::from(*x as f32) == *x || x.is_nan())
}

/// Rows of weights without errors.
enum Exact<'a> {
    Stored(&'a Tensor),
    Own(Vec<f64>),
}

impl Exact<'_> {
    fn of<'a, const P: i32>(
        weights: &Weights<'a, Ball<P>>,
        k: usize,
        n: usize,
    ) -> Option<Exact<'a>> {
        let exact = |balls: &[Ball<P>]| {
            let v = values(balls);
            (balls.iter().all(|x| x.r == 0.0) && are_short(&v)).then_some(Exact::Own(v))
        };
        match weights {
            Weights::Stored(t) => match t.dtype() {
                Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F8E4m3 => Some(Exact::Stored(t)),
                _ => None,
            },
            Weights::Own(balls) => exact(&balls[..n * k]),
            Weights::Made(make) => {
                let mut balls = vec![Ball::exact(0.0); n * k];
                balls.par_chunks_mut(k).enumerate().for_each(|(r, row)| make(r, row));
                exact(&balls)
            }
        }
    }

    /// Elements from `start` on.
    fn read(&self, start: usize, out: &mut [f64]) {
        match self {
            Exact::Stored(t) => t.widen(start, out, |x| x),
            Exact::Own(v) => out.copy_from_slice(&v[start..start + out.len()]),
        }
    }
}

/// As [`Real::products`](crate::arith::Real::products), in any order: `None` unless all operands are exact
/// numbers of 24 bits.
pub(super) fn products<const P: i32>(
    x: &[Ball<P>],
    k: usize,
    weights: &Weights<'_, Ball<P>>,
    n: usize,
) -> Option<Vec<Ball<P>>> {
    let v = values(x);
    if !(x.iter().all(|x| x.r == 0.0) && are_short(&v)) {
        return None;
    }
    let weights = Exact::of(weights, k, n)?;
    let m = v.len() / k;
    let rows: Vec<Row> = v.par_chunks(k).map(Row::of).collect();
    let each = |f: fn(f64) -> f64| v.iter().map(|x| f(*x)).collect::<Vec<f64>>();
    let (abs, squares) = (each(f64::abs), each(|x| x * x));
    let mut out = vec![Ball::exact(0.0); m * n];
    let width = (OUTPUTS / m.max(1)).next_multiple_of(1 << 9);
    for start in (0..n).step_by(width) {
        let here = width.min(n - start);
        let sums = |x: &[f64], f: fn(f64) -> f64| {
            let make = |r: usize, row: &mut [f64]| {
                weights.read((start + r) * k, row);
                row.iter_mut().for_each(|w| *w = f(*w));
            };
            matmul::product(x, k, &Weights::Made(&make), here)
        };
        let y = match &weights {
            Exact::Stored(t) => {
                let here_only = t.slice_outer(start..start + here);
                matmul::product(&v, k, &Weights::Stored(&here_only), here)
            }
            Exact::Own(w) => matmul::product(&v, k, &Weights::Own(&w[start * k..]), here),
        };
        let (abs, squares) = (sums(&abs, f64::abs), sums(&squares, |w| w * w));
        let column = |c: usize| {
            let mut row = vec![0.0; k];
            weights.read((start + c) * k, &mut row);
            row
        };
        let columns: Vec<Row> = (0..here).into_par_iter().map(|c| Row::of(&column(c))).collect();
        let one = |r: usize, c: usize| {
            let (row, of_column) = (&rows[r], &columns[c]);
            let i = r * here + c;
            let quantum = || {
                row.quantum.get_or_init(|| quantum(&v[r * k..(r + 1) * k]))
                    + of_column.quantum.get_or_init(|| quantum(&column(c)))
            };
            let terms = row.terms(of_column, k);
            let only = || {
                let (at, mut w) = (row.first(of_column)?, [0.0]);
                weights.read((start + c) * k + at, &mut w);
                Some((v[r * k + at], w[0]))
            };
            let stats = Stats {
                moments: Moments { abs: abs[i], squares: squares[i], terms },
                lowest: Lowest { few: row.few + of_column.few, all: &quantum },
                only: if terms == 1 { only().unwrap_or_default() } else { Default::default() },
            };
            Ball::reduction(Ball::exact(y[i]), k, &stats, true)
        };
        out.par_chunks_mut(n).enumerate().for_each(|(r, out)| {
            let _env = DefaultEnv::enter();
            let out = out[start..start + here].iter_mut().enumerate();
            out.for_each(|(c, out)| *out = one(r, c));
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arith::Real;
    use crate::policy::Accumulator;
    use proptest::prelude::*;

    /// Numbers of many kinds, many of them zero where the seed is odd.
    fn numbers(n: usize, seed: u32, dtype: Dtype) -> Tensor {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let one = |_| match next() % 16 {
            0..8 if seed % 2 == 1 => 0.0,
            8 if seed % 4 == 2 => f64::from(next() % 17) * 2f64.powi(-140),
            9 if seed % 8 == 5 => f64::INFINITY,
            10 => -0.0,
            _ => f64::from(next() as i32) * 2f64.powi(-28),
        };
        Tensor::from_f64(dtype, &[n], &(0..n).map(one).collect::<Vec<f64>>())
    }

    fn bits(x: &Ball<24>) -> [u64; 4] {
        // A NaN's payload is nobody's promise.
        [x.v, x.r, x.s, x.d].map(|x| if x.is_nan() { f64::NAN } else { x }.to_bits())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn they_are_the_bounds_of_the_single_products(
            m in 1usize..30, n in 1usize..60, k in 1usize..150, seed in 0u32..4000,
            dtype in prop::sample::select(vec![Dtype::Bf16, Dtype::F16, Dtype::F32]),
        ) {
            let lift = |t: &Tensor| t.to_f64().into_iter().map(Ball::<24>::lift).collect::<Vec<_>>();
            let (x, w) = (numbers(m * k, seed, dtype), numbers(n * k, seed / 3 + 7, dtype));
            let w = w.reshape(&[n, k]).expect("as many");
            let (xs, ws) = (lift(&x), lift(&w));
            let make = |r: usize, row: &mut [Ball<24>]| row.copy_from_slice(&ws[r * k..][..k]);
            let ways = [Weights::Stored(&w), Weights::Own(&ws), Weights::Made(&make)];
            for way in &ways {
                let all = Ball::products(&xs, k, way, n, &Accumulator::ANY).expect("exact operands");
                for (i, got) in all.iter().enumerate() {
                    let (x, w) = (&xs[i / n * k..][..k], &ws[i % n * k..][..k]);
                    let want = Ball::dot(x, w, 0, &Accumulator::ANY);
                    prop_assert_eq!(bits(got), bits(&want), "{}: {:?} {:?}", i, got, want);
                }
            }
        }
    }

    #[test]
    fn operands_with_errors_and_long_numbers_go_one_by_one() {
        let (exact, long) = (Ball::<24>::lift(1.5), Ball::lift(0.1));
        let vague = Ball { r: 1e-3, ..exact };
        for (x, w) in [(long, exact), (exact, long), (vague, exact), (exact, vague)] {
            let weights = [w; 4];
            let weights = Weights::Own(&weights);
            assert!(Ball::products(&[x; 4], 4, &weights, 1, &Accumulator::ANY).is_none());
        }
        let weights = [exact; 4];
        let in_order = Accumulator { order: crate::policy::Order::Sequential, ..Accumulator::ANY };
        let own = Weights::Own(&weights);
        assert!(Ball::products(&[exact; 4], 4, &own, 1, &in_order).is_none());
    }

    /// Sums of more columns than are taken at a time.
    #[test]
    fn a_wide_product_is_taken_in_parts() {
        let (m, k, n) = (2100, 2, 600);
        let x: Vec<Ball<24>> = (0..m * k).map(|i| Ball::lift((i % 7) as f64 + 0.125)).collect();
        let w: Vec<Ball<24>> = (0..n * k).map(|i| Ball::lift((i % 5) as f64 - 1.5)).collect();
        let all = products(&x, k, &Weights::Own(&w), n).expect("exact operands");
        for i in [0, 511, 512, 599, m * n - 1, m * n - 600] {
            let want = Ball::dot(&x[i / n * k..][..k], &w[i % n * k..][..k], 0, &Accumulator::ANY);
            assert_eq!(bits(&all[i]), bits(&want), "{i}");
        }
    }
}
