//! The search for NaN and infinities in stored tensors.

use rayon::prelude::*;

use super::Tensor;
use crate::dtype::{Dtype, e4m3};

/// Elements of a chunk that one thread reads at a time.
const CHUNK: usize = 1 << 18;

/// Where and how many values are not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NonFinite {
    /// Index of the first.
    pub(crate) first: usize,
    /// How many.
    pub(crate) count: usize,
}

/// The elements of a tensor that are NaN or infinite; `None` of integers.
pub(crate) fn non_finite(t: &Tensor) -> Option<NonFinite> {
    // Not finite is: all exponent bits set (in F8 all fraction bits too: it has no infinities).
    match t.dtype() {
        Dtype::Bf16 => scan(t.bytes(), |b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
        Dtype::F16 => scan(t.bytes(), |b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
        Dtype::F32 => scan(t.bytes(), |b| !f32::from_le_bytes(b).is_finite()),
        Dtype::F64 => scan(t.bytes(), |b| !f64::from_le_bytes(b).is_finite()),
        Dtype::F8E4m3 => scan(t.bytes(), |[b]| b & 0x7f == e4m3::NAN),
        Dtype::I32 | Dtype::I64 | Dtype::U8 => None,
    }
}

fn scan<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool + Sync) -> Option<NonFinite> {
    bytes
        .par_chunks(N * CHUNK)
        .enumerate()
        .filter_map(|(i, chunk)| {
            let elements = || chunk.as_chunks::<N>().0.iter();
            let count = elements().filter(|e| bad(**e)).count();
            let first = elements().position(|e| bad(*e))?;
            Some(NonFinite { first: i * CHUNK + first, count })
        })
        .reduce_with(|a, b| NonFinite { first: a.first.min(b.first), count: a.count + b.count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_many_chunks_is_found() {
        let mut values = vec![1.0; 3 * CHUNK + 5];
        assert_eq!(non_finite(&Tensor::from_f64(Dtype::Bf16, &[values.len()], &values)), None);
        values[2 * CHUNK + 1] = f64::NAN;
        values[CHUNK + 7] = f64::NEG_INFINITY;
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64] {
            let found = non_finite(&Tensor::from_f64(dtype, &[values.len()], &values));
            assert_eq!(found, Some(NonFinite { first: CHUNK + 7, count: 2 }), "{dtype}");
        }
    }

    #[test]
    fn largest_finite_values_are_finite() {
        for (dtype, max) in
            [(Dtype::F16, 65504.0), (Dtype::Bf16, 3.3895313892515355e38), (Dtype::F64, f64::MAX)]
        {
            assert_eq!(non_finite(&Tensor::from_f64(dtype, &[2], &[max, -max])), None, "{dtype}");
        }
    }
}
