//! Legitimate f32 implementations, written from the formulas: every order of summation, every way of
//! dividing, exponentials and roots off by the last bits, one pass and two, split and merged.

#![expect(
    clippy::disallowed_methods,
    reason = "implementations as the field's, not the reference's"
)]

use crate::harness::Draw;

/// In which order terms are added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Sequential,
    Reversed,
    Permuted(u64),
    /// By halves, recursively.
    Pairwise,
    /// Contiguous parts, each in sequence, then the parts.
    Split(usize),
    /// Term i to partial sum i mod n, then a tree.
    Lanes(usize),
    /// n terms summed apart, then added: matrix instructions.
    Blocks(usize),
}

/// One way to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) order: Order,
    pub(crate) fma: bool,
    /// Units in the last place by which exponentials and roots are off; reciprocals by up to one.
    pub(crate) ulps: i32,
    /// e^x as 2^(x log2 e).
    pub(crate) exp2: bool,
    /// Quotients as products with a reciprocal.
    pub(crate) reciprocal: bool,
}

pub(crate) const ORDERS: [Order; 12] = [
    Order::Sequential,
    Order::Reversed,
    Order::Permuted(7),
    Order::Pairwise,
    Order::Split(2),
    Order::Split(4),
    Order::Split(8),
    Order::Lanes(4),
    Order::Lanes(16),
    Order::Lanes(64),
    Order::Blocks(4),
    Order::Blocks(8),
];

/// All orders, fused and not, with the other freedoms in turn.
pub(crate) fn styles() -> Vec<Style> {
    let mut out = Vec::new();
    for (i, order) in ORDERS.into_iter().enumerate() {
        for fma in [false, true] {
            let n = 2 * i + usize::from(fma);
            let ulps = [0, 1, 2][n % 3];
            out.push(Style { order, fma, ulps, exp2: n % 2 == 1, reciprocal: n % 4 >= 2 });
        }
    }
    out
}

/// `x` rounded and moved by up to `ulps` units, the same for the same value.
fn moved(x: f64, ulps: i32) -> f32 {
    let x = x as f32;
    if ulps == 0 || !x.is_normal() {
        return x;
    }
    let by = (x.to_bits().wrapping_mul(0x9e37_79b9) >> 16) as i32 % (2 * ulps + 1) - ulps;
    let y = f32::from_bits(x.to_bits().wrapping_add_signed(by));
    if y.is_normal() { y } else { x }
}

/// One of the neighbours of `x`, not always the nearest: within one unit in the last place.
fn faithful(x: f64, exact: bool) -> f32 {
    let near = x as f32;
    if exact || f64::from(near) == x || near.to_bits().wrapping_mul(0x9e37_79b9) >> 31 == 0 {
        return near;
    }
    let up = (f64::from(near) < x) == (x > 0.0);
    f32::from_bits(near.to_bits().wrapping_add_signed(if up { 1 } else { -1 }))
}

impl Style {
    pub(crate) fn exp(self, x: f32) -> f32 {
        if x == 0.0 {
            return 1.0;
        }
        let y = if self.exp2 {
            f64::from(x * std::f32::consts::LOG2_E).exp2()
        } else {
            f64::from(x).exp()
        };
        moved(y, self.ulps)
    }

    pub(crate) fn rsqrt(self, x: f32) -> f32 {
        if self.reciprocal {
            let root = faithful(f64::from(x).sqrt(), self.ulps == 0);
            return faithful(1.0 / f64::from(root), self.ulps == 0);
        }
        moved(1.0 / f64::from(x).sqrt(), self.ulps)
    }

    pub(crate) fn div(self, a: f32, b: f32) -> f32 {
        if self.reciprocal { a * faithful(1.0 / f64::from(b), self.ulps == 0) } else { a / b }
    }

    /// The sum of products, or of `a`.
    pub(crate) fn reduce(self, a: &[f32], b: Option<&[f32]>) -> f32 {
        let n = a.len();
        let term = |sum: f32, i: usize| match b {
            Some(b) if self.fma => a[i].mul_add(b[i], sum),
            Some(b) => a[i] * b[i] + sum,
            None => a[i] + sum,
        };
        let chain = |range: std::ops::Range<usize>| range.fold(0.0, term);
        match self.order {
            Order::Sequential => chain(0..n),
            Order::Reversed => (0..n).rev().fold(0.0, term),
            Order::Permuted(seed) => {
                let mut draw = Draw::new(seed);
                let mut order: Vec<usize> = (0..n).collect();
                (1..n).rev().for_each(|i| order.swap(i, draw.below(i + 1)));
                order.into_iter().fold(0.0, term)
            }
            Order::Pairwise => pairwise(0..n, &|i| term(0.0, i)),
            Order::Split(parts) => {
                let size = n.div_ceil(parts).max(1);
                (0..n).step_by(size).fold(0.0, |sum, from| sum + chain(from..(from + size).min(n)))
            }
            Order::Lanes(lanes) => {
                let mut sums = vec![0.0; lanes];
                (0..n).for_each(|i| sums[i % lanes] = term(sums[i % lanes], i));
                pairwise(0..lanes, &|i| sums[i])
            }
            Order::Blocks(block) => (0..n)
                .step_by(block)
                .fold(0.0, |sum, from| sum + chain(from..(from + block).min(n))),
        }
    }

    pub(crate) fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        self.reduce(a, Some(b))
    }

    pub(crate) fn sum(self, a: &[f32]) -> f32 {
        self.reduce(a, None)
    }

    /// Two passes, or one over blocks of `online` elements with a running maximum.
    pub(crate) fn softmax(self, x: &[f32], online: Option<usize>) -> Vec<f32> {
        let (mut top, mut total) = (f32::NEG_INFINITY, 0.0);
        for block in x.chunks(online.unwrap_or(x.len())) {
            let new = block.iter().copied().fold(top, f32::max);
            let p: Vec<f32> = block.iter().map(|v| self.exp(v - new)).collect();
            let before = if top.is_finite() { total * self.exp(top - new) } else { 0.0 };
            total = before + self.sum(&p);
            top = new;
        }
        x.iter().map(|v| self.div(self.exp(v - top), total)).collect()
    }

    pub(crate) fn rms_norm(self, x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
        let mean = self.div(self.dot(x, x), x.len() as f32);
        let scale = self.rsqrt(mean + eps);
        x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
    }

    pub(crate) fn silu(self, g: f32) -> f32 {
        let down = 1.0 + self.exp(-g);
        if self.fma { g * self.div(1.0, down) } else { self.div(g, down) }
    }
}

impl Style {
    /// Heads `x` of `d` elements at one position, rotated by halves, with the angles in f32.
    pub(crate) fn rope(self, x: &[f32], position: i32, theta: f64, d: usize) -> Vec<f32> {
        let table: Vec<(f32, f32)> = (0..d / 2)
            .map(|i| {
                let exponent = 2.0 * i as f64 / d as f64;
                let frequency = match (i, self.reciprocal) {
                    (0, _) => 1.0,
                    (_, true) => 1.0 / moved(theta.powf(exponent), self.ulps.min(1)),
                    (_, false) => moved(theta.powf(-exponent), self.ulps.min(1)),
                };
                let angle = f64::from(position as f32 * frequency);
                let off = self.ulps.min(1);
                if angle == 0.0 {
                    (1.0, 0.0)
                } else {
                    (moved(angle.cos(), off), moved(angle.sin(), off))
                }
            })
            .collect();
        let mut out = x.to_vec();
        for (head, out) in x.chunks(d).zip(out.chunks_mut(d)) {
            for (i, &(c, s)) in table.iter().enumerate() {
                let (a, b) = (head[i], head[i + d / 2]);
                (out[i], out[i + d / 2]) = match self.fma {
                    true => (a.mul_add(c, -(b * s)), b.mul_add(c, a * s)),
                    false => (a * c - b * s, b * c + a * s),
                };
            }
        }
        out
    }
}

fn pairwise(range: std::ops::Range<usize>, term: &dyn Fn(usize) -> f32) -> f32 {
    match range.len() {
        0 => 0.0,
        1 => term(range.start),
        n => {
            let middle = range.start + n / 2;
            pairwise(range.start..middle, term) + pairwise(middle..range.end, term)
        }
    }
}

/// How attention passes over the keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pass {
    /// Scores, maximum, exponentials, weighted sum, division.
    Two,
    /// Blocks of so many keys, from the last if `reversed`, with a running maximum that is raised when
    /// it grows by more than `lazy`.
    Online { block: usize, reversed: bool, lazy: f32 },
    /// So many ranges of keys, each with an own maximum, merged by e^(m - M).
    Split(usize),
    /// So many ranges of keys, each divided by its own sum and merged by its log-sum-exp.
    Merged(usize),
}

/// Numerator, denominator and maximum of a range of keys.
type Part = (Vec<f32>, f32, f32);

impl Style {
    /// One query over keys `k` and values `v` by rows. With `fma` the scale is folded into the exponent.
    pub(crate) fn attention(
        self,
        q: &[f32],
        k: &[Vec<f32>],
        v: &[Vec<f32>],
        scale: f32,
        pass: Pass,
    ) -> Vec<f32> {
        let raw: Vec<f32> = k.iter().map(|k| self.dot(q, k)).collect();
        let n = raw.len();
        let whole = |range: std::ops::Range<usize>| {
            let top = raw[range.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (o, l) = self.block(&raw[range.clone()], &v[range], scale, top);
            (o, l, top)
        };
        let ranges = |parts: usize| {
            let size = n.div_ceil(parts).max(1);
            (0..n).step_by(size).map(move |i| i..(i + size).min(n))
        };
        match pass {
            Pass::Two => {
                let (o, l, _) = whole(0..n);
                o.iter().map(|o| self.div(*o, l)).collect()
            }
            Pass::Online { block, reversed, lazy } => {
                let mut blocks: Vec<_> =
                    (0..n).step_by(block).map(|i| i..(i + block).min(n)).collect();
                if reversed {
                    blocks.reverse();
                }
                let mut state: Option<Part> = None;
                for range in blocks {
                    let own = raw[range.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let top = match &state {
                        Some((_, _, top)) if (own - top) * scale <= lazy => *top,
                        _ => own,
                    };
                    let (o, l) = self.block(&raw[range.clone()], &v[range], scale, top);
                    state = Some(match state {
                        None => (o, l, top),
                        Some((old, sum, before)) => {
                            let by = self.exp((before - top) * scale);
                            let add = |(a, b): (&f32, &f32)| a * by + b;
                            (old.iter().zip(&o).map(add).collect(), sum * by + l, top)
                        }
                    });
                }
                let (o, l, _) = state.expect("keys");
                o.iter().map(|o| self.div(*o, l)).collect()
            }
            Pass::Split(parts) => {
                let parts: Vec<Part> = ranges(parts).map(whole).collect();
                let top = parts.iter().map(|p| p.2).fold(f32::NEG_INFINITY, f32::max);
                let (mut o, mut l) = (vec![0.0; v[0].len()], 0.0);
                for (part, sum, own) in parts {
                    let by = self.exp((own - top) * scale);
                    o.iter_mut().zip(part).for_each(|(o, p)| *o += p * by);
                    l += sum * by;
                }
                o.iter().map(|o| self.div(*o, l)).collect()
            }
            Pass::Merged(parts) => {
                let parts: Vec<Part> = ranges(parts).map(whole).collect();
                let lse: Vec<f32> = parts.iter().map(|(_, l, top)| top * scale + l.ln()).collect();
                let top = lse.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let terms: Vec<f32> = lse.iter().map(|x| self.exp(x - top)).collect();
                let all = top + self.sum(&terms).ln();
                let mut o = vec![0.0; v[0].len()];
                for ((part, sum, _), lse) in parts.iter().zip(&lse) {
                    let by = self.exp(lse - all);
                    o.iter_mut().zip(part).for_each(|(o, p)| *o += self.div(*p, *sum) * by);
                }
                o
            }
        }
    }

    /// Numerator and denominator of a block of keys, relative to `top` (a raw score).
    fn block(self, raw: &[f32], v: &[Vec<f32>], scale: f32, top: f32) -> (Vec<f32>, f32) {
        let folded = top * scale;
        let exponent =
            |s: &f32| if self.fma { s.mul_add(scale, -folded) } else { s * scale - top * scale };
        let p: Vec<f32> = raw.iter().map(|s| self.exp(exponent(s))).collect();
        let column = |c: usize| v.iter().map(|v| v[c]).collect::<Vec<f32>>();
        ((0..v[0].len()).map(|c| self.dot(&p, &column(c))).collect(), self.sum(&p))
    }
}
