//! Policies: how an implementation accumulates, and what it does at the named points of an op.

use std::ops::Range;
use std::sync::Arc;

use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};

/// In which order a reduction adds its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Unspecified: the bound covers every order.
    Any,
    /// One after the other, from index 0.
    Sequential,
    /// Element i goes to lane i mod n; the lanes are added by a binary tree.
    Lanes(usize),
    /// Sequential in f32; the running sum is rounded to the accumulator's dtype after each n terms.
    Blocks(usize),
    /// n contiguous ranges, each sequential; the partial sums are added in order.
    Split(usize),
}

/// The accumulator of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulator {
    /// Where the running sum is kept.
    pub dtype: Dtype,
    /// Order of the terms.
    pub order: Order,
    /// Whether multiply and add are fused.
    pub fma: bool,
}

impl Accumulator {
    /// f32, any order, fused or not: what a bound must cover unless the contract says more.
    pub const ANY: Accumulator = Accumulator { dtype: Dtype::F32, order: Order::Any, fma: false };

    /// Whether the order is fully given, so that the result can be reproduced bit by bit.
    pub fn is_exact(&self) -> bool {
        self.order != Order::Any
    }
}

/// Which elements of a row a transform touches.
#[derive(Clone, Debug, PartialEq)]
pub enum At {
    /// Every element.
    All,
    /// A contiguous range of absolute indices.
    Range(Range<usize>),
    /// Elements with `index % modulus` inside `keep`.
    Lanes {
        /// Period.
        modulus: usize,
        /// Residues touched.
        keep: Range<usize>,
    },
}

impl At {
    /// Whether element `i` is touched.
    pub fn contains(&self, i: usize) -> bool {
        match self {
            At::All => true,
            At::Range(r) => r.contains(&i),
            At::Lanes { modulus, keep } => keep.contains(&(i % modulus)),
        }
    }
}

/// What happens to a row of values at a named point. Acts on whole rows, never inside a dot.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Rounded to a stored dtype.
    Round(Rounding),
    /// Multiplied by a factor: 0 drops the elements, 2 counts them twice, 1.01 is a gain.
    Scale {
        /// Elements touched.
        at: At,
        /// The factor.
        by: f64,
    },
    /// Element i becomes the former element `map[i]`.
    Permute(Arc<[usize]>),
}

/// The rounding convention (or fault) of one implementation.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How reductions accumulate.
    pub acc: Accumulator,
    /// Transforms by point name, applied in order.
    pub points: Vec<(&'static str, Transform)>,
    /// The rounding of the stored output. Applied by the judge, or by the forward.
    pub output: Rounding,
    /// Confidence of statistical bounds in standard deviations; infinite asks for hard radii.
    pub lambda: f64,
    /// The policies of a composite's upstream parts, in order (empty for a plain op).
    pub parts: Vec<Policy>,
}

impl Policy {
    /// f32 arithmetic (f64 for f64 outputs) in any order, nothing rounded inside, nearest even at the output.
    pub fn stored_as(dtype: Dtype) -> Policy {
        let acc = match dtype {
            Dtype::F64 => Accumulator { dtype: Dtype::F64, ..Accumulator::ANY },
            _ => Accumulator::ANY,
        };
        Policy {
            acc,
            points: Vec::new(),
            output: Rounding::nearest(dtype),
            lambda: f64::INFINITY,
            parts: Vec::new(),
        }
    }

    /// Adds a rounding to nearest even at `point`.
    pub fn round_at(&mut self, point: &'static str, dtype: Dtype) {
        self.points.push((point, Transform::Round(Rounding::nearest(dtype))));
    }

    /// Adds any transform at `point`.
    pub fn at(&mut self, point: &'static str, transform: Transform) {
        self.points.push((point, transform));
    }

    /// Makes a transform all that happens at `point`.
    pub fn only_at(&mut self, point: &'static str, transform: Transform) {
        self.points.retain(|(p, _)| *p != point);
        self.at(point, transform);
    }

    /// Whether nothing happens at `point`.
    pub fn is_identity_at(&self, point: &str) -> bool {
        !self.points.iter().any(|(p, _)| *p == point)
    }

    /// Applies what happens at `point` to a row whose element 0 has absolute index 0.
    /// One branch when nothing does.
    #[inline]
    pub fn apply<R: Real>(&self, point: &str, row: &mut [R]) {
        if self.points.is_empty() {
            return;
        }
        for (_, t) in self.points.iter().filter(|(p, _)| *p == point) {
            t.apply(row, self.lambda);
        }
    }

    /// [`Policy::apply`] for one value.
    #[inline]
    pub fn apply_one<R: Real>(&self, point: &str, x: R) -> R {
        let mut one = [x];
        self.apply(point, &mut one);
        one[0]
    }
}

impl Transform {
    fn apply<R: Real>(&self, row: &mut [R], lambda: f64) {
        match self {
            Transform::Round(rounding) => R::round_each(row, *rounding, lambda),
            Transform::Scale { at, by } => {
                let by = *by;
                for (_, x) in row.iter_mut().enumerate().filter(|(i, _)| at.contains(*i)) {
                    *x = if by == 0.0 { R::lift(0.0) } else { x.mul(R::constant(by)) };
                }
            }
            Transform::Permute(map) => {
                let old = row.to_vec();
                for (x, &from) in row.iter_mut().zip(map.iter()) {
                    *x = old[from];
                }
            }
        }
    }
}
