//! The trait over which every op is written once.

use std::fmt::Debug;

use rayon::prelude::*;

use super::fenv::DefaultEnv;
use super::matmul::{self, Weights};
use super::{attend, dot, emulate, exp, math};
use crate::dtype::Rounding;
use crate::policy::Accumulator;

/// A number that an op can be evaluated over: the oracle (`f64`), the fast path (`f32`) or the bound
/// ([`Ball`](super::Ball)).
pub trait Real: Copy + Debug + Send + Sync + 'static {
    /// Significant bits of the arithmetic that is carried out or, for a bound, described.
    const BITS: i32;
    /// Whether it describes an error, so that what only widens one is worth computing.
    const IS_BOUND: bool = false;
    /// A stored value, exact.
    fn lift(x: f64) -> Self;
    /// A constant that implementations hold rounded to their compute dtype.
    fn constant(x: f64) -> Self;
    /// A value known to lie within `radius` of `x`.
    fn approx(x: f64, radius: f64) -> Self;
    /// The central value.
    fn value(self) -> f64;
    /// Sum.
    fn add(self, other: Self) -> Self;
    /// Difference.
    fn sub(self, other: Self) -> Self;
    /// Product.
    fn mul(self, other: Self) -> Self;
    /// Quotient.
    fn div(self, other: Self) -> Self;
    /// e^self.
    fn exp(self) -> Self;
    /// 1 / sqrt(self).
    fn rsqrt(self) -> Self;
    /// Sum of products; `first` is the absolute index of element 0 on the reduced axis.
    fn dot(a: &[Self], b: &[Self], first: usize, acc: &Accumulator) -> Self;
    /// A vector that takes part in many dot products.
    type Vector: Debug + Send + Sync;
    /// Prepares a vector for [`Real::dot_prepared`].
    fn prepare(a: Vec<Self>) -> Self::Vector;
    /// The same as [`Real::dot`] of the vectors, to the bit.
    fn dot_prepared(a: &Self::Vector, b: &Self::Vector, first: usize, acc: &Accumulator) -> Self;
    /// The products of rows of activations x [M, K] with `n` rows of weights, [M, N]: each to the bit
    /// [`Real::dot`] of its rows from index 0 on. `None` where they can only be computed one by one.
    fn products(
        _x: &[Self],
        _k: usize,
        _weights: &Weights<'_, Self>,
        _n: usize,
        _acc: &Accumulator,
    ) -> Option<Vec<Self>> {
        None
    }
    /// Whether [`Real::dots`] and [`Real::mix`] can be used; such reductions are computed one by one where not.
    fn is_plain(_acc: &Accumulator) -> bool {
        false
    }
    /// The products of each of `queries` and `n` rows of their length that lie `stride` elements apart.
    ///
    /// # Panics
    /// Unless [`Real::is_plain`], as the next.
    fn dots(_queries: &[&[Self]], _rows: &[Self], _stride: usize, _n: usize) -> Vec<Vec<Self>> {
        unreachable!("is not plain")
    }
    /// For each list of weights the sums over j of `w[j]` times the first `width` elements of row j, rows
    /// `stride` elements apart: each to the bit [`Real::dot`] of w and a column, from index `first` on.
    fn mix(
        _lists: &[&[Self]],
        _rows: &[Self],
        _stride: usize,
        _width: usize,
        _first: usize,
    ) -> Vec<Vec<Self>> {
        unreachable!("is not plain")
    }
    /// e^x in place.
    fn exp_all(x: &mut [Self]) {
        x.iter_mut().for_each(|v| *v = v.exp());
    }
    /// Sum; `first` as in [`Real::dot`].
    fn sum(a: &[Self], first: usize, acc: &Accumulator) -> Self;
    /// Rounded to a stored dtype; `lambda` turns a standard deviation into a radius.
    fn round(self, rounding: Rounding, lambda: f64) -> Self;

    /// [`Real::round`] in place.
    fn round_each(x: &mut [Self], rounding: Rounding, lambda: f64) {
        x.iter_mut().for_each(|x| *x = x.round(rounding, lambda));
    }

    /// The same by many threads where it is worth it.
    fn round_all(x: &mut [Self], rounding: Rounding, lambda: f64) {
        if !Self::IS_BOUND && rounding.keeps(Self::BITS) {
            return;
        }
        x.par_chunks_mut(1 << 14).for_each(|part| {
            let _env = DefaultEnv::enter();
            Self::round_each(part, rounding, lambda);
        });
    }

    /// [`Real::dot`] of `w` and each of `columns`.
    fn weighted_sums(
        w: &[Self],
        columns: &[&[Self]],
        first: usize,
        acc: &Accumulator,
    ) -> Vec<Self> {
        columns.iter().map(|v| Self::dot(w, v, first, acc)).collect()
    }

    /// The means of `columns` with weights `w` that numerator and denominator share:
    /// sum w v / sum w; `first` as in [`Real::dot`].
    fn weighted_means(
        w: &[Self],
        columns: &[&[Self]],
        first: usize,
        acc: &Accumulator,
    ) -> Vec<Self> {
        let sum = Self::sum(w, first, acc);
        columns.iter().map(|v| Self::dot(w, v, first, acc).div(sum)).collect()
    }

    /// Standard deviation of its error; 0 where no error is carried.
    fn spread(self) -> f64 {
        0.0
    }

    /// The value with a further error of a hard radius and a standard deviation.
    fn widened(self, _hard: f64, _sd: f64) -> Self {
        self
    }

    /// Whether every implementation has this very value; always true where no error is carried.
    fn is_exact(self) -> bool {
        true
    }

    /// Negation, exact.
    fn neg(self) -> Self {
        Self::lift(0.0).sub(self)
    }
}

impl Real for f64 {
    const BITS: i32 = 53;
    type Vector = Vec<Self>;

    fn prepare(a: Vec<Self>) -> Vec<Self> {
        a
    }
    fn dot_prepared(a: &Vec<Self>, b: &Vec<Self>, first: usize, acc: &Accumulator) -> Self {
        Self::dot(a, b, first, acc)
    }

    fn lift(x: f64) -> f64 {
        x
    }
    fn constant(x: f64) -> f64 {
        x
    }
    fn approx(x: f64, _radius: f64) -> f64 {
        x
    }
    fn value(self) -> f64 {
        self
    }
    fn add(self, other: f64) -> f64 {
        self + other
    }
    fn sub(self, other: f64) -> f64 {
        self - other
    }
    fn mul(self, other: f64) -> f64 {
        self * other
    }
    fn div(self, other: f64) -> f64 {
        self / other
    }
    fn exp(self) -> f64 {
        math::exp(self)
    }
    fn rsqrt(self) -> f64 {
        1.0 / self.sqrt()
    }
    fn neg(self) -> f64 {
        -self
    }
    fn dot(a: &[f64], b: &[f64], first: usize, acc: &Accumulator) -> f64 {
        if acc.is_exact() { emulate::dot(a, Some(b), acc) } else { dot::dot_f64(a, b, first) }
    }
    fn is_plain(acc: &Accumulator) -> bool {
        !acc.is_exact()
    }
    fn products(
        x: &[f64],
        k: usize,
        weights: &Weights<'_, f64>,
        n: usize,
        acc: &Accumulator,
    ) -> Option<Vec<f64>> {
        (!acc.is_exact()).then(|| matmul::product(x, k, weights, n))
    }
    fn dots(queries: &[&[f64]], rows: &[f64], stride: usize, n: usize) -> Vec<Vec<f64>> {
        attend::dots(queries, rows, stride, n)
    }
    fn mix(
        lists: &[&[f64]],
        rows: &[f64],
        stride: usize,
        width: usize,
        first: usize,
    ) -> Vec<Vec<f64>> {
        attend::mix(lists, rows, stride, width, first)
    }
    fn exp_all(x: &mut [f64]) {
        exp::f64s(x);
    }
    fn sum(a: &[f64], first: usize, acc: &Accumulator) -> f64 {
        if acc.is_exact() { emulate::dot(a, None, acc) } else { dot::sum_f64(a, first) }
    }
    fn round(self, rounding: Rounding, _lambda: f64) -> f64 {
        rounding.round(self)
    }
    fn round_each(x: &mut [f64], rounding: Rounding, _lambda: f64) {
        rounding.round_all(x);
    }
}

impl Real for f32 {
    const BITS: i32 = 24;
    type Vector = Vec<Self>;

    fn prepare(a: Vec<Self>) -> Vec<Self> {
        a
    }
    fn dot_prepared(a: &Vec<Self>, b: &Vec<Self>, first: usize, acc: &Accumulator) -> Self {
        Self::dot(a, b, first, acc)
    }

    fn lift(x: f64) -> f32 {
        x as f32
    }
    fn constant(x: f64) -> f32 {
        x as f32
    }
    fn approx(x: f64, _radius: f64) -> f32 {
        x as f32
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
    fn add(self, other: f32) -> f32 {
        self + other
    }
    fn sub(self, other: f32) -> f32 {
        self - other
    }
    fn mul(self, other: f32) -> f32 {
        self * other
    }
    fn div(self, other: f32) -> f32 {
        self / other
    }
    fn exp(self) -> f32 {
        math::exp(f64::from(self)) as f32
    }
    fn rsqrt(self) -> f32 {
        (1.0 / f64::from(self).sqrt()) as f32
    }
    fn neg(self) -> f32 {
        -self
    }
    fn dot(a: &[f32], b: &[f32], first: usize, _acc: &Accumulator) -> f32 {
        dot::dot_f32(a, b, first)
    }
    fn is_plain(_acc: &Accumulator) -> bool {
        true
    }
    fn products(
        x: &[f32],
        k: usize,
        weights: &Weights<'_, f32>,
        n: usize,
        _acc: &Accumulator,
    ) -> Option<Vec<f32>> {
        Some(matmul::product(x, k, weights, n))
    }
    fn dots(queries: &[&[f32]], rows: &[f32], stride: usize, n: usize) -> Vec<Vec<f32>> {
        attend::dots(queries, rows, stride, n)
    }
    fn mix(
        lists: &[&[f32]],
        rows: &[f32],
        stride: usize,
        width: usize,
        first: usize,
    ) -> Vec<Vec<f32>> {
        attend::mix(lists, rows, stride, width, first)
    }
    fn exp_all(x: &mut [f32]) {
        exp::f32s(x);
    }
    fn sum(a: &[f32], first: usize, _acc: &Accumulator) -> f32 {
        dot::sum_f32(a, first)
    }
    fn round(self, rounding: Rounding, _lambda: f64) -> f32 {
        rounding.round(f64::from(self)) as f32
    }
    fn round_each(x: &mut [f32], rounding: Rounding, _lambda: f64) {
        rounding.round_all_f32(x);
    }
}
