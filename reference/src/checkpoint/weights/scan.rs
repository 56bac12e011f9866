//! The search for NaN and infinities in weights.

use rayon::prelude::*;

use crate::checkpoint::expected::Expected;
use crate::checkpoint::index::Files;
use crate::checkpoint::{list, plural};
use crate::error::{Error, Result};
use crate::tensor::{NonFinite, Tensor, non_finite};

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
    fn indices_are_row_major() {
        assert_eq!(index_of(17, &[2, 3, 4]), [1, 1, 1]);
    }
}
