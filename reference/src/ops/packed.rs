//! Integers of 2, 3, 4 or 8 bits packed into 32-bit words, as quantised weights are stored.
//!
//! A run of words is one little-endian bit stream: value i lies in bits i b to (i + 1) b - 1, counted
//! from bit 0 of word 0. Three bits put 32 values into 3 words; values 10 and 21 of each run lie in two
//! words.

use serde::{Deserialize, Serialize};

use crate::arith::Real;
use crate::dtype::{Dtype, Rounding};
use crate::error::{Error, Result};

/// The widths that are read.
pub const WIDTHS: [u32; 4] = [2, 3, 4, 8];

/// What becomes of a value that lies in two words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Straddle {
    /// Both parts are joined.
    #[default]
    Joined,
    /// The high bits, in the second word, are missing: a fault.
    Lost,
}

/// The order of the values in a word (in 3 words at 3 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nibbles {
    /// Value j in bits 4j..4j+4 (3j.. and so on for other widths).
    #[default]
    LowFirst,
    /// The last value lowest, value j in bits 28-4j..32-4j: a fault.
    HighFirst,
    /// AWQ's interleave 0 2 4 6 1 3 5 7, of 4-bit values only: a fault for GPTQ.
    Awq,
}

/// How an input k finds its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// By the group index, or k / group_size without one.
    #[default]
    ByIndex,
    /// k / group_size although there is an index: a fault.
    Sequential,
    /// The next group, clamped to the last: a fault.
    Next,
    /// The next group for the zero point only: a fault.
    NextZero,
}

/// The axis along which a weight is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Packing {
    /// Along K, as GPTQ and compressed-tensors do.
    #[default]
    AlongK,
    /// The same memory read as packed along N: a fault.
    AlongN,
}

/// How a bit stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Bits of a value.
    pub bits: u32,
    /// Order of the values.
    pub order: Nibbles,
    /// Values in two words.
    pub straddle: Straddle,
}

impl Reading {
    /// The right reading of GPTQ's and compressed-tensors' streams.
    pub fn plain(bits: u32) -> Reading {
        Reading { bits, order: Nibbles::LowFirst, straddle: Straddle::Joined }
    }

    /// Value `i` of the stream whose words `word` gives.
    pub fn value(self, i: usize, word: impl Fn(usize) -> i64) -> i64 {
        let place = self.place(i);
        self.cut(place, word(place.word), || word(place.word + 1))
    }

    /// Where value `i` lies.
    pub fn place(self, i: usize) -> Place {
        let run = per_run(self.bits);
        let slot = match self.order {
            Nibbles::LowFirst => i % run,
            Nibbles::HighFirst => run - 1 - i % run,
            Nibbles::Awq => awq_slot(i % run),
        };
        let bit = (i / run * run + slot) * self.bits as usize;
        let shift = bit % 32;
        let straddles = shift + self.bits as usize > 32 && self.straddle == Straddle::Joined;
        Place { word: bit / 32, shift, straddles }
    }

    /// The value at a place in `word`, or in that and the `next` one.
    pub fn cut(self, place: Place, word: i64, next: impl Fn() -> i64) -> i64 {
        let mut value = word as u32 >> place.shift;
        if place.straddles {
            value |= (next() as u32) << (32 - place.shift);
        }
        i64::from(value & mask(self.bits))
    }
}

/// Where a value of a stream lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its word.
    pub word: usize,
    /// Its lowest bit there.
    pub shift: usize,
    /// Whether it goes on in the next word.
    pub straddles: bool,
}

/// q s - z s by one f16 fma, with z s rounded to f16 before: how an implementation dequantises that
/// keeps the scaled zero point beside the scale.
pub(super) fn fused_zero<R: Real>(q: i64, z: i64, scale: R, lambda: f64) -> R {
    let half = Rounding::nearest(Dtype::F16);
    let zero = R::lift(z as f64).mul(scale).round(half, lambda);
    R::lift(q as f64).mul(scale).sub(zero).round(half, lambda)
}

/// The slot of a word that holds logical value j in AWQ's interleave of 8: slot i holds value
/// [0, 2, 4, 6, 1, 3, 5, 7]\[i\].
pub fn awq_slot(j: usize) -> usize {
    [0, 4, 1, 5, 2, 6, 3, 7][j % 8]
}

/// The largest value of a width, which is also its mask.
pub fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

/// Values in the shortest whole number of words: 32 / bits, and 32 at 3 bits.
pub fn per_run(bits: u32) -> usize {
    if 32 % bits == 0 { (32 / bits) as usize } else { 32 }
}

/// Words that hold `values` values, the last one perhaps in part.
pub fn words(values: usize, bits: u32) -> usize {
    (values * bits as usize).div_ceil(32)
}

/// Values in `words` words, or `None` when they do not end with a word.
pub fn values(words: usize, bits: u32) -> Option<usize> {
    let values = words * 32 / bits as usize;
    (words * 32 == values * bits as usize).then_some(values)
}

/// Whether `values` values fill whole words.
pub fn fills_words(values: usize, bits: u32) -> bool {
    (values * bits as usize).is_multiple_of(32)
}

/// Refuses widths other than [`WIDTHS`].
///
/// # Errors
/// Names the op and the width.
pub fn check_width(op: &'static str, bits: u32) -> Result<()> {
    if WIDTHS.contains(&bits) {
        return Ok(());
    }
    Err(Error::arg(op, "bits", format!("must be 2, 3, 4 or 8, is {bits}")))
}

/// Refuses a width for misreading that would leave the tensors: one that is not narrower.
///
/// # Errors
/// Names the op and the widths.
pub fn check_misread(op: &'static str, bits: u32, misread: Option<u32>) -> Result<()> {
    match misread {
        Some(m) if !WIDTHS.contains(&m) || m >= bits => {
            let what = format!("must be a width below {bits} (of 2, 3, 4, 8), is {m}");
            Err(Error::arg(op, "misread_bits", what))
        }
        _ => Ok(()),
    }
}

/// The number of groups along `k` values, for a `group_size` that is -1 (one group) or positive.
///
/// # Errors
/// Names the op and the size.
pub fn groups(op: &'static str, k: usize, group_size: i64) -> Result<usize> {
    match group_size {
        -1 => Ok(1),
        n if n > 0 => Ok(k.div_ceil(n as usize)),
        n => Err(Error::arg(op, "group_size", format!("must be -1 or positive, is {n}"))),
    }
}

/// The group of value `k` of `of` in sequence, at most the last of `groups`.
pub fn group_of(k: usize, of: usize, group_size: i64, groups: usize) -> usize {
    let size = if group_size < 0 { of } else { group_size as usize };
    (k / size).min(groups - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Packing as a string of bits, and reading.
        #[test]
        fn values_come_back(seed: u64, width in 0usize..4, runs in 1usize..4) {
            let bits = WIDTHS[width];
            let n = per_run(bits) * runs;
            let value = |i: usize| (seed.rotate_left(i as u32 * 7) as u32 ^ i as u32) & mask(bits);
            let stream: Vec<bool> =
                (0..n).flat_map(|i| (0..bits).map(move |b| value(i) >> b & 1 == 1)).collect();
            let packed: Vec<i64> = stream
                .chunks(32)
                .map(|c| c.iter().enumerate().fold(0u32, |w, (b, on)| w | u32::from(*on) << b))
                .map(|w| i64::from(w as i32))
                .collect();
            prop_assert_eq!(packed.len(), words(n, bits));
            prop_assert_eq!(values(packed.len(), bits), Some(n));
            let lost = Reading { straddle: Straddle::Lost, ..Reading::plain(bits) };
            let mut differ = Vec::new();
            for i in 0..n {
                let word = |w: usize| packed[w];
                prop_assert_eq!(Reading::plain(bits).value(i, word), i64::from(value(i)));
                if lost.value(i, word) != i64::from(value(i)) {
                    differ.push(i % 32);
                }
            }
            prop_assert!(differ.iter().all(|i| bits == 3 && [10, 21].contains(i)));
        }
    }

    #[test]
    fn three_bits_need_whole_runs() {
        assert_eq!(values(3, 3), Some(32));
        assert_eq!(values(4, 3), None);
        assert!(fills_words(32, 3) && !fills_words(40, 3));
        assert_eq!((words(40, 3), words(7, 4)), (4, 1));
    }

    #[test]
    fn awq_slots_undo_the_interleave() {
        for (slot, logical) in [0, 2, 4, 6, 1, 3, 5, 7].into_iter().enumerate() {
            assert_eq!(awq_slot(logical), slot);
        }
    }
}
