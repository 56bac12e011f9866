//! The search for NaN and infinities in weights.

use rayon::prelude::*;

use crate::checkpoint::expected::Expected;
use crate::checkpoint::index::Files;
use crate::checkpoint::{list, plural};
use crate::dtype::{Dtype, e4m3};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Elements of a chunk that one thread reads at a time.
const CHUNK: usize = 1 << 18;

/// An error about the first of the expected tensors with values that are not finite.
pub(super) fn finite(files: &Files, expected: &[Expected]) -> Result<()> {
    let found: Vec<(&str, &Tensor, NonFinite)> = expected
        .par_iter()
        .filter_map(|e| {
            let tensor = files.get(&e.name)?;
            let bad = non_finite(tensor);
            // A checkpoint may be larger than memory; what is used next is in the system's cache.
            tensor.release();
            Some((e.name.as_str(), tensor, bad?))
        })
        .collect();
    error(files, &found)
}

/// The same of one tensor, of which `most` bytes at most are in memory at a time.
pub(super) fn finite_one(files: &Files, name: &str, most: usize) -> Result<()> {
    let Some(tensor) = files.get(name).filter(|t| !t.is_empty()) else { return Ok(()) };
    let rows = tensor.shape().first().copied().unwrap_or(1);
    let step = (most / (tensor.bytes().len() / rows).max(1)).max(1);
    if step >= rows {
        let found = non_finite(tensor).map(|bad| (name, tensor, bad));
        return error(files, found.as_slice());
    }
    for start in (0..rows).step_by(step) {
        let piece = tensor.slice_outer(start..rows.min(start + step));
        let bad = non_finite(&piece);
        piece.release();
        if bad.is_some() {
            // The message counts all of them.
            let found = non_finite(tensor).map(|bad| (name, tensor, bad));
            return error(files, found.as_slice());
        }
    }
    Ok(())
}

fn error(files: &Files, found: &[(&str, &Tensor, NonFinite)]) -> Result<()> {
    let Some((name, tensor, bad)) = found.first() else { return Ok(()) };
    let others = match found.len() - 1 {
        0 => String::new(),
        n => format!(
            "; {} as well: {}",
            plural(n, "other tensor"),
            list(found[1..].iter().map(|(n, ..)| *n))
        ),
    };
    Err(Error::tensor(
        files.path_of(name),
        *name,
        format!(
            "{} at element {} (index {:?}); {} of its {} values are not finite{others}. Weights \
             must be finite: the file is damaged, or a conversion overflowed; compare its hash \
             or convert again",
            if tensor.get(bad.first).is_nan() { "NaN" } else { "an infinity" },
            bad.first,
            index_of(bad.first, tensor.shape()),
            bad.count,
            tensor.len()
        ),
    ))
}

/// Where and how many values are not finite.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NonFinite {
    first: usize,
    count: usize,
}

fn non_finite(t: &Tensor) -> Option<NonFinite> {
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

/// The index, outermost first, of element `i` of a row-major tensor.
fn index_of(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&d| {
            let at = i % d;
            i /= d;
            at
        })
        .collect();
    index.reverse();
    index
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
        assert_eq!(index_of(17, &[2, 3, 4]), [1, 1, 1]);
    }
}
