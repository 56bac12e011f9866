//! Changes of cases.

use assay_reference::{Case, Tensor};

use super::{Demand, Kind, Relation};

/// A tensor's slices along `axis`, in the order of `indices`; an index may occur several times or not at
/// all.
pub(super) fn gather(t: &Tensor, axis: usize, indices: &[usize]) -> Tensor {
    let shape = t.shape();
    let size = t.dtype().size();
    let inner = shape[axis + 1..].iter().product::<usize>() * size;
    let outer: usize = shape[..axis].iter().product();
    let mut bytes = Vec::with_capacity(outer * indices.len() * inner);
    for o in 0..outer {
        for i in indices {
            let at = (o * shape[axis] + i) * inner;
            bytes.extend_from_slice(&t.bytes()[at..at + inner]);
        }
    }
    let mut shape = shape.to_vec();
    shape[axis] = indices.len();
    Tensor::from_bytes(t.dtype(), shape, bytes).expect("as many bytes as the shape has")
}

/// A case with one tensor changed.
pub(super) fn with(case: &Case, name: &str, edit: impl FnOnce(&Tensor) -> Tensor) -> Case {
    let mut case = case.clone();
    let tensor = edit(&case.tensors[name]);
    case.tensors.insert(name.into(), tensor);
    case
}

/// Each element times `by`.
pub(super) fn times(by: f64) -> impl Fn(&Tensor) -> Tensor {
    move |t| t.map(|_, x| x * by)
}

/// Output element i of the changed case against element i of the base, for n elements.
pub(super) fn same(n: usize) -> Vec<(usize, usize)> {
    (0..n).map(|i| (i, i)).collect()
}

/// Row r of the changed output (of `cols` columns) against row `rows[r]` of the base.
pub(super) fn by_rows(rows: &[usize], cols: usize) -> Vec<(usize, usize)> {
    let row = |(r, from): (usize, &usize)| {
        let from = *from;
        (0..cols).map(move |c| (r * cols + c, from * cols + c))
    };
    rows.iter().enumerate().flat_map(row).collect()
}

/// Column c of the changed output against column `columns[c]` of the base, in each of `rows` rows.
pub(super) fn by_columns(rows: usize, columns: &[usize]) -> Vec<(usize, usize)> {
    let n = columns.len();
    (0..rows)
        .flat_map(|r| columns.iter().enumerate().map(move |(c, from)| (r * n + c, r * n + from)))
        .collect()
}

/// A relation of the kind that a factor `by` on input `name` is a factor `by` on all `n` outputs.
pub(super) fn scaled(base: &Case, name: &str, by: f64, n: usize) -> Relation {
    Relation {
        kind: Kind::Scale,
        what: format!("{name} times {by} gives the output times {by}"),
        base: base.clone(),
        changed: with(base, name, times(by)),
        demand: Demand::Equal { pairs: same(n), by },
    }
}

/// 1, 2, ..., n - 1, 0 reversed: a permutation without a fixed point for n > 2 odd or even.
pub(super) fn turned(n: usize) -> Vec<usize> {
    (0..n).map(|i| (n - i) % n).collect()
}
