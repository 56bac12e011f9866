//! What the error looks like: its histogram, and where in an output it sits.

use assay_reference::Rounding;
use serde::Serialize;

use super::accept::{Expected, ratio};

/// Upper ends of the histogram's bins, in budgets; the first is for elements that are equal to the
/// oracle, the last has no end. Above 1 an element is outside its interval.
pub const BINS: [f64; 10] = [0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 2.0, 8.0, 64.0, f64::INFINITY];

/// Elements by the size of their error; see [`BINS`].
pub type Histogram = [usize; BINS.len()];

/// The bin of an error that is `ratio` budgets large.
pub(super) fn bin(ratio: f64) -> usize {
    BINS.iter().position(|&end| ratio <= end).unwrap_or(BINS.len() - 1)
}

/// Most cells that a picture has in each direction.
const MOST: (usize, usize) = (48, 96);

/// The errors of one output, as a grid of its rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture {
    /// The run.
    pub label: String,
    /// Shape of the output; its last dimension makes the columns, all others the rows.
    pub shape: Vec<usize>,
    /// Cells down and across.
    pub grid: [usize; 2],
    /// Worst error in each cell, in budgets, row by row: above 1 something in it is outside.
    pub cells: Vec<f64>,
}

impl Picture {
    /// The picture of `observed` elements against what is expected of them.
    pub(super) fn new(
        label: &str,
        shape: &[usize],
        observed: &[f64],
        expected: &Expected,
        output: Rounding,
    ) -> Picture {
        let cols = shape.last().copied().unwrap_or(1).max(1);
        let rows = observed.len().div_ceil(cols);
        let grid = [rows.min(MOST.0), cols.min(MOST.1)];
        let mut cells = vec![0f64; grid[0] * grid[1]];
        for (i, &o) in observed.iter().enumerate() {
            let (r, c) = (i / cols * grid[0] / rows, i % cols * grid[1] / cols);
            let cell = &mut cells[r * grid[1] + c];
            *cell = cell.max(ratio(o, expected, i, output));
        }
        Picture { label: label.into(), shape: shape.to_vec(), grid, cells }
    }

    /// The output's rows and columns.
    pub fn extent(&self) -> [usize; 2] {
        let cols = self.shape.last().copied().unwrap_or(1).max(1);
        [self.shape.iter().product::<usize>() / cols, cols]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use assay_reference::Dtype;

    #[test]
    fn an_error_falls_into_the_bin_that_ends_at_or_above_it() {
        assert_eq!([0.0, 1e-9, 0.125, 1.0, 1.0001, 64.0, 65.0].map(bin), [0, 1, 1, 5, 6, 8, 9]);
        assert_eq!(bin(f64::INFINITY), BINS.len() - 1);
    }

    #[test]
    fn a_wrong_element_is_in_the_cell_of_its_row_and_column() {
        let (rows, cols) = (100, 200);
        let v = vec![1.0; rows * cols];
        let e = Expected { v: v.clone(), radius: vec![0.0; v.len()] };
        let mut observed = v;
        observed[75 * cols + 199] = 2.0;
        let output = Rounding::nearest(Dtype::Bf16);
        let p = Picture::new("case", &[rows, cols], &observed, &e, output);
        assert_eq!((p.grid, p.extent()), ([48, 96], [100, 200]));
        let wrong: Vec<usize> = (0..p.cells.len()).filter(|&i| p.cells[i] > 1.0).collect();
        assert_eq!(wrong, [36 * 96 + 95]);
    }
}
