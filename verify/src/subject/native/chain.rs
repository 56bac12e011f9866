//! Reductions in the order that a [`Chain`] says, in f32.
//!
//! One routine does them all: the sum over k of c\[k\] times row k, for many columns at once. A plain sum
//! is that of rows of ones, a dot product that of rows of one column. Columns never meet, so the order
//! of a column's terms is the chain's whatever the number of columns.

use assay_reference::Dtype;

use super::scalar::Store;
use super::{Chain, Order};

/// Columns that are summed side by side.
const WIDTH: usize = 64;
/// Terms that a pairwise sum adds in sequence.
const LEAF: usize = 8;

type Sums = [f32; WIDTH];

/// Rows of `stride` elements, of which columns from `first` on are meant.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
    pub(super) first: usize,
}

/// The terms of a sum: which indices, and their coefficients.
#[derive(Clone, Copy)]
struct Terms<'a> {
    index: &'a [u32],
    coefficients: &'a [f32],
    rows: Rows<'a>,
    width: usize,
    fma: bool,
}

impl Terms<'_> {
    /// Adds terms `from..to` to `sums`, one after the other.
    fn add(&self, from: usize, to: usize, sums: &mut Sums) {
        for &k in &self.index[from..to] {
            let k = k as usize;
            let c = self.coefficients[k];
            let start = k * self.rows.stride + self.rows.first;
            let row = &self.rows.data[start..start + self.width];
            let sums = &mut sums[..self.width];
            if self.fma {
                sums.iter_mut().zip(row).for_each(|(s, x)| *s = c.mul_add(*x, *s));
            } else {
                sums.iter_mut().zip(row).for_each(|(s, x)| *s += c * *x);
            }
        }
    }

    fn part(&self, from: usize, to: usize) -> Sums {
        let mut sums = [0.0; WIDTH];
        self.add(from, to, &mut sums);
        sums
    }

    fn pairwise(&self, from: usize, to: usize) -> Sums {
        if to - from <= LEAF {
            return self.part(from, to);
        }
        let middle = from + (to - from) / 2;
        let mut left = self.pairwise(from, middle);
        plus(&mut left, &self.pairwise(middle, to));
        left
    }

    /// Runs of `n` terms, each summed apart, then added in sequence.
    fn runs(&self, n: usize) -> Sums {
        let len = self.index.len();
        let mut sums = [0.0; WIDTH];
        for from in (0..len).step_by(n.max(1)) {
            plus(&mut sums, &self.part(from, (from + n).min(len)));
        }
        sums
    }

    fn lanes(&self, n: usize) -> Sums {
        let mut lanes = vec![[0.0; WIDTH]; n.max(1)];
        for i in 0..self.index.len() {
            self.add(i, i + 1, &mut lanes[i % n.max(1)]);
        }
        while lanes.len() > 1 {
            let half = lanes.len().div_ceil(2);
            let upper = lanes.split_off(half);
            lanes.iter_mut().zip(&upper).for_each(|(a, b)| plus(a, b));
        }
        lanes[0]
    }
}

fn plus(a: &mut Sums, b: &Sums) {
    a.iter_mut().zip(b).for_each(|(x, y)| *x += *y);
}

impl Chain {
    /// Indices 0..n in the order in which this chain visits them.
    pub(super) fn visit(&self, n: usize) -> Vec<u32> {
        self.arrange((0..n as u32).collect())
    }

    /// Given indices in the order in which this chain visits them.
    pub(super) fn arrange(&self, mut index: Vec<u32>) -> Vec<u32> {
        match self.order {
            Order::Reversed => index.reverse(),
            Order::Permuted(seed) => shuffle(&mut index, seed),
            _ => {}
        }
        index
    }

    /// out\[c\] = sum over k of coefficients\[k\] rows\[k\]\[c\], for `index` as [`Chain::arrange`] gives it.
    pub(super) fn weighted(
        &self,
        index: &[u32],
        coefficients: &[f32],
        rows: Rows<'_>,
        out: &mut [f32],
    ) {
        let mut first = rows.first;
        for out in out.chunks_mut(WIDTH) {
            let (width, rows) = (out.len(), Rows { first, ..rows });
            let terms = Terms { index, coefficients, rows, width, fma: self.fma };
            let sums = match self.order {
                Order::Sequential | Order::Reversed | Order::Permuted(_) => {
                    terms.part(0, index.len())
                }
                Order::Pairwise => terms.pairwise(0, index.len()),
                Order::Split(n) => terms.runs(index.len().div_ceil(n.max(1))),
                Order::Blocks(n) => terms.runs(n),
                Order::Lanes(n) => terms.lanes(n),
            };
            out.copy_from_slice(&sums[..width]);
            first += width;
        }
    }

    /// The sum of the given values.
    pub(super) fn sum(&self, values: &[f32]) -> f32 {
        let mut out = [0.0];
        let ones = Rows { data: &[1.0], stride: 0, first: 0 };
        self.weighted(&self.visit(values.len()), values, ones, &mut out);
        out[0]
    }

    /// The sum of the squares of the values at `index`.
    pub(super) fn squares(&self, index: &[u32], values: &[f32]) -> f32 {
        let mut out = [0.0];
        let rows = Rows { data: values, stride: 1, first: 0 };
        self.weighted(index, values, rows, &mut out);
        out[0]
    }

    /// Whether this implementation takes a device's shortcuts (exponentials of base 2, reciprocals)
    /// instead of a C library's functions and divisions.
    pub(super) fn is_device_like(&self) -> bool {
        match self.order {
            Order::Sequential | Order::Pairwise => self.fma,
            Order::Reversed | Order::Split(_) => !self.fma,
            Order::Permuted(seed) => seed % 2 == 0,
            Order::Lanes(_) | Order::Blocks(_) => true,
        }
    }

    /// e^x.
    pub(super) fn exp(&self, x: f32) -> f32 {
        if self.is_device_like() { super::scalar::device_exp(x) } else { libm::expf(x) }
    }

    /// 1 / sqrt(x).
    pub(super) fn rsqrt(&self, x: f32) -> f32 {
        1.0 / x.sqrt()
    }

    /// a / b.
    pub(super) fn quotient(&self, a: f32, b: f32) -> f32 {
        if self.is_device_like() { a * (1.0 / b) } else { a / b }
    }
}

/// A running sum that a narrow register keeps: sequential in f32, rounded after every so many terms and
/// at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Narrow {
    pub(super) dtype: Dtype,
    pub(super) every: usize,
    pub(super) fma: bool,
}

impl Narrow {
    /// As [`Chain::weighted`], with this accumulator instead of the chain's.
    pub(super) fn weighted(
        &self,
        index: &[u32],
        coefficients: &[f32],
        rows: Rows<'_>,
        out: &mut [f32],
    ) {
        let mut first = rows.first;
        for out in out.chunks_mut(WIDTH) {
            let (width, rows) = (out.len(), Rows { first, ..rows });
            let terms = Terms { index, coefficients, rows, width, fma: self.fma };
            let mut sums = [0.0; WIDTH];
            for from in (0..index.len()).step_by(self.every.max(1)) {
                terms.add(from, (from + self.every.max(1)).min(index.len()), &mut sums);
                sums[..width].iter_mut().for_each(|s| *s = Store::Nearest.round(self.dtype, *s));
            }
            out.copy_from_slice(&sums[..width]);
            first += width;
        }
    }
}

/// Fisher and Yates' shuffle by a 64-bit xorshift.
fn shuffle(index: &mut [u32], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for i in (1..index.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        index.swap(i, (state % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 columns of small integers, whose sums any order gets right.
    #[test]
    fn every_order_sums_every_term_once() {
        let (k, n) = (37usize, 100usize);
        let c: Vec<f32> = (0..k).map(|i| (i % 7) as f32 - 3.0).collect();
        let data: Vec<f32> = (0..k * n).map(|i| (i % 11) as f32 - 5.0).collect();
        let want: Vec<f32> = (0..n).map(|j| (0..k).map(|i| c[i] * data[i * n + j]).sum()).collect();
        for order in super::super::ORDERS {
            for fma in [false, true] {
                let chain = Chain { order, fma, online: None };
                let mut got = vec![0.0; n];
                let rows = Rows { data: &data, stride: n, first: 0 };
                chain.weighted(&chain.visit(k), &c, rows, &mut got);
                assert_eq!(got, want, "{order:?}");
            }
        }
    }

    /// 2^24, then ones: what the order makes of it is known.
    #[test]
    fn orders_differ_as_they_should() {
        let mut v = vec![1.0f32; 9];
        v[0] = 16_777_216.0;
        let sum = |order| Chain { order, fma: false, online: None }.sum(&v) - 16_777_216.0;
        assert_eq!(sum(Order::Sequential), 0.0);
        assert_eq!(sum(Order::Reversed), 8.0);
        // 2^24 + 3 is a tie and goes to 2^24 + 4, then 2^24 + 7 to 2^24 + 8.
        assert_eq!(sum(Order::Split(3)), 8.0);
        assert_eq!(sum(Order::Blocks(3)), 8.0);
        assert_eq!(sum(Order::Lanes(2)), 4.0);
    }
}
