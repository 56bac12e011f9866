//! Operands that tell one unit from another.

use assay_reference::dtype::pow2;

use super::exact::{Exact, F32, Format, Round};

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Add,
    Mul,
    Fma,
    MulAdd,
    Div,
    Sqrt,
}

/// Numbers of a format with random significands, from a fixed stream.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        // xorshift64: Marsaglia, https://doi.org/10.18637/jss.v008.i14
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn int(&mut self, low: i32, high: i32) -> i32 {
        low + (self.next() >> 33) as i32 % (high - low + 1)
    }

    /// An odd significand of exactly `bits`, times 2^exponent, of either sign.
    fn number(&mut self, bits: i32, exponent: i32) -> f64 {
        let magnitude = (1 << (bits - 1)) | ((self.next() >> 40) as i64 % (1 << (bits - 1))) | 1;
        let sign = if self.next() >> 63 == 0 { 1.0 } else { -1.0 };
        sign * magnitude as f64 * pow2(exponent)
    }
}

/// Operands in the normal range, results too: ties, near ties, cancellation, and what tells one rounding
/// from two.
pub(super) fn ordinary(op: Op, format: Format) -> Vec<[f64; 3]> {
    let mut stream = Stream(0x9e37_79b9_7f4a_7c15);
    let (p, mut out) = (format.bits, Vec::new());
    for i in 0..256 {
        match op {
            // One bit drops for neighbouring exponents: half of the sums are ties.
            Op::Add => {
                let distance = stream.int(-4, 4);
                let b = stream.number(p - i % 3, distance - p);
                out.push([stream.number(p, 1 - p), b, 0.0]);
            }
            // Products of p + 1 bits with an odd end are ties; others are what they are.
            Op::Mul if i % 2 == 0 => {
                let bits = p.div_euclid(2) + 1;
                out.push([stream.number(bits, -bits), stream.number(p + 1 - bits, 0), 0.0]);
            }
            Op::Mul | Op::Div => {
                out.push([stream.number(p, -p), stream.number(p, 1 - p), 0.0]);
            }
            Op::Sqrt => out.push([stream.number(p, stream_exponent(i)).abs(), 0.0, 0.0]),
            Op::Fma | Op::MulAdd => out.push(multiply_add(&mut stream, format, i)),
        }
    }
    out
}

fn stream_exponent(i: i32) -> i32 {
    i % 12 - 20
}

fn multiply_add(stream: &mut Stream, format: Format, i: i32) -> [f64; 3] {
    let p = format.bits;
    let (a, b) = (stream.number(p, 1 - p), stream.number(p, 1 - p));
    match i % 4 {
        // What the product's own rounding would have lost is all that remains.
        0 => {
            let product = Exact::of(a).mul(Exact::of(b)).round(format, Round::TowardZero);
            [a * pow2(10), b, -product * pow2(10)]
        }
        // An odd number, and less than half of its last place by so little that a wider format
        // makes it a tie.
        1 => {
            let (sign, scale) = (if i % 8 == 1 { 1.0 } else { -1.0 }, pow2(i / 8 % 3));
            // 1 - x^2 is a product, and x^2 lies below a wider format's last place.
            let x = if format == F32 { pow2(-20) } else { pow2(-7) };
            let odd = 1.0 + pow2(1 - p) * f64::from(1 + 2 * (i / 16 % 4));
            [sign * scale * pow2(-p) * (1.0 + x), 1.0 - x, sign * scale * odd]
        }
        _ => {
            let distance = stream.int(-6, 6);
            [a, b, stream.number(p, 1 - p + distance)]
        }
    }
}

/// Operands or results below the normal range, with exact results.
pub(super) fn subnormal(op: Op, format: Format) -> Vec<[f64; 3]> {
    let smallest = pow2(format.min_exp);
    let tiny = smallest * 0.375;
    match op {
        Op::Add => vec![[tiny, smallest, 0.0], [1.5 * smallest, -smallest, 0.0], [tiny, tiny, 0.0]],
        Op::Mul => vec![[tiny, 64.0, 0.0], [1.5 * smallest, 0.25, 0.0], [tiny, 0.5, 0.0]],
        Op::Fma | Op::MulAdd => vec![
            [tiny, 64.0, smallest],
            [2.0, smallest, tiny],
            [1.5, smallest, -smallest],
            [tiny, 0.5, tiny],
        ],
        Op::Div => vec![[tiny, 0.015_625, 0.0], [1.5 * smallest, 4.0, 0.0], [tiny, 2.0, 0.0]],
        // A root is never subnormal.
        Op::Sqrt => vec![[smallest * 0.25, 0.0, 0.0], [smallest * 0.062_5, 0.0, 0.0]],
    }
}
