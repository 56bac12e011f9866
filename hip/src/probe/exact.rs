//! Exact binary numbers, and how a unit may round them: what a probe's outputs are compared with.
//!
//! Nothing here uses the floating-point arithmetic of this machine, but for powers of two.

use assay_reference::dtype::pow2;

/// `magnitude` times 2^`exponent`, with its sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact {
    negative: bool,
    magnitude: u128,
    exponent: i32,
}

/// Which neighbour a value between two representable ones becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    NearestEven,
    NearestAway,
    TowardZero,
    Up,
    Down,
}

impl Round {
    pub(super) const ALL: [Round; 5] =
        [Round::NearestEven, Round::NearestAway, Round::TowardZero, Round::Up, Round::Down];

    pub(super) fn name(self) -> &'static str {
        match self {
            Round::NearestEven => "nearest_even",
            Round::NearestAway => "nearest_away",
            Round::TowardZero => "toward_zero",
            Round::Up => "upward",
            Round::Down => "downward",
        }
    }
}

/// A binary floating-point format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Format {
    /// Significant bits, the hidden one included.
    pub(super) bits: i32,
    /// Exponent of the smallest normal number.
    pub(super) min_exp: i32,
    /// Bits of the exponent field.
    pub(super) exponent_bits: u32,
    /// The largest finite number.
    pub(super) largest: f64,
    /// Which codes are no numbers.
    pub(super) specials: Specials,
}

/// Which codes of a format are no finite numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Specials {
    /// All exponent bits set: infinity, and NaN with a fraction.
    Ieee,
    /// All bits but the sign set: NaN. No infinity (OCP e4m3).
    AllOnes,
    /// Only the sign bit set: the one NaN. No infinity, no minus zero (the fnuz formats).
    MinusZero,
}

pub(super) const F32: Format = Format {
    bits: 24,
    min_exp: -126,
    exponent_bits: 8,
    largest: f32::MAX as f64,
    specials: Specials::Ieee,
};
pub(super) const F16: Format =
    Format { bits: 11, min_exp: -14, exponent_bits: 5, largest: 65504.0, specials: Specials::Ieee };
pub(super) const BF16: Format =
    Format { bits: 8, largest: f32::from_bits(0x7f7f_0000) as f64, ..F32 };
pub(super) const E4M3: Format =
    Format { bits: 4, min_exp: -6, exponent_bits: 4, largest: 448.0, specials: Specials::AllOnes };
pub(super) const E5M2: Format =
    Format { bits: 3, min_exp: -14, exponent_bits: 5, largest: 57344.0, specials: Specials::Ieee };
pub(super) const E4M3_FNUZ: Format =
    Format { min_exp: -7, largest: 240.0, specials: Specials::MinusZero, ..E4M3 };
pub(super) const E5M2_FNUZ: Format =
    Format { min_exp: -15, largest: 57344.0, specials: Specials::MinusZero, ..E5M2 };
/// f64, as far as rounding in between goes.
pub(super) const F64: Format = Format {
    bits: 53,
    min_exp: -1022,
    exponent_bits: 11,
    largest: f64::MAX,
    specials: Specials::Ieee,
};

/// Whether two numbers are the same: zeros by their signs too, NaN whatever its bits.
pub(super) fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

impl Format {
    /// The value of a code; infinity and NaN as such.
    pub(super) fn decode(self, code: u32) -> f64 {
        let fraction_bits = self.bits as u32 - 1;
        let magnitude = code & ((1 << (self.exponent_bits + fraction_bits)) - 1);
        let negative = code >> (self.exponent_bits + fraction_bits) & 1 == 1;
        let exponent = magnitude >> fraction_bits;
        let fraction = magnitude & ((1 << fraction_bits) - 1);
        let all_ones = exponent == (1 << self.exponent_bits) - 1;
        let last_place = self.min_exp - fraction_bits as i32;
        let value = match self.specials {
            Specials::Ieee if all_ones && fraction != 0 => f64::NAN,
            Specials::Ieee if all_ones => f64::INFINITY,
            Specials::AllOnes if all_ones && fraction == (1 << fraction_bits) - 1 => f64::NAN,
            Specials::MinusZero if negative && magnitude == 0 => f64::NAN,
            _ if exponent == 0 => f64::from(fraction) * pow2(last_place),
            _ => f64::from(fraction | 1 << fraction_bits) * pow2(last_place + exponent as i32 - 1),
        };
        if negative { -value } else { value }
    }

    /// The distance of the numbers at `x`.
    pub(super) fn ulp(self, x: f64) -> f64 {
        let exact = Exact::of(x);
        let top = exact.top().unwrap_or(self.min_exp);
        pow2(top.max(self.min_exp) - self.bits + 1)
    }

    /// Whether a value lies below the smallest normal number, and is not zero.
    pub(super) fn is_subnormal(self, x: f64) -> bool {
        x != 0.0 && x.abs() < pow2(self.min_exp)
    }
}

impl Exact {
    /// A finite number.
    pub(super) fn of(x: f64) -> Exact {
        let biased = (x.to_bits() >> 52 & 0x7ff) as i32;
        let fraction = u128::from(x.to_bits() & ((1 << 52) - 1));
        let magnitude = if biased == 0 { fraction } else { fraction | 1 << 52 };
        let zeros = if magnitude == 0 { 0 } else { magnitude.trailing_zeros() as i32 };
        Exact {
            negative: x.is_sign_negative(),
            magnitude: magnitude >> zeros,
            exponent: biased.max(1) - 1075 + zeros,
        }
    }

    /// floor(log2) of the magnitude.
    fn top(self) -> Option<i32> {
        (self.magnitude != 0).then(|| self.exponent + 127 - self.magnitude.leading_zeros() as i32)
    }

    /// The product; the magnitudes must have at most 64 bits.
    pub(super) fn mul(self, other: Exact) -> Exact {
        Exact {
            negative: self.negative != other.negative,
            magnitude: self.magnitude * other.magnitude,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The sum; the operands' bits must span at most 126.
    pub(super) fn add(self, other: Exact) -> Exact {
        if self.magnitude == 0 || other.magnitude == 0 {
            return if self.magnitude == 0 { other } else { self };
        }
        let exponent = self.exponent.min(other.exponent);
        let aligned = |x: Exact| {
            let magnitude = (x.magnitude << (x.exponent - exponent)) as i128;
            if x.negative { -magnitude } else { magnitude }
        };
        let sum = aligned(self) + aligned(other);
        Exact { negative: sum < 0, magnitude: sum.unsigned_abs(), exponent }
    }

    /// The quotient of numbers of at most 24 bits: exact, or with a last bit that stands for all that
    /// follow.
    pub(super) fn div(self, other: Exact) -> Exact {
        let numerator = self.magnitude << 80;
        let sticky = u128::from(!numerator.is_multiple_of(other.magnitude));
        Exact {
            negative: self.negative != other.negative,
            magnitude: ((numerator / other.magnitude) << 1) | sticky,
            exponent: self.exponent - other.exponent - 81,
        }
    }

    /// The root of a positive number of at most 24 bits, as for [`Exact::div`].
    pub(super) fn sqrt(self) -> Exact {
        let odd = self.exponent.rem_euclid(2);
        let radicand = self.magnitude << (90 + odd);
        let root = radicand.isqrt();
        let sticky = u128::from(root * root != radicand);
        Exact {
            negative: false,
            magnitude: root << 1 | sticky,
            exponent: (self.exponent - odd - 90) / 2 - 1,
        }
    }

    /// Rounded once to a format, whose range has no upper end here.
    pub(super) fn round(self, format: Format, mode: Round) -> f64 {
        let signed = |x: f64| if self.negative { -x } else { x };
        let Some(top) = self.top() else { return signed(0.0) };
        let last_place = top.max(format.min_exp) - format.bits + 1;
        let drop = last_place - self.exponent;
        if drop <= 0 {
            return signed(self.magnitude as f64 * pow2(self.exponent));
        }
        // More than all bits: what is kept is zero, and the rest less than half.
        let (kept, rest, half) = if drop > 127 {
            (0, 1, 2)
        } else {
            (self.magnitude >> drop, self.magnitude & ((1 << drop) - 1), 1_u128 << (drop - 1))
        };
        let up = match mode {
            Round::NearestEven => rest > half || (rest == half && kept & 1 == 1),
            Round::NearestAway => rest >= half,
            Round::TowardZero => false,
            Round::Up => rest > 0 && !self.negative,
            Round::Down => rest > 0 && self.negative,
        };
        signed((kept + u128::from(up)) as f64 * pow2(last_place))
    }
}
