//! Which elements of a tensor: the coordinates that a finding gives.

use std::fmt;

use serde::Serialize;

/// Some elements of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cells {
    /// Shape of the tensor; empty where only the buffer is known.
    pub shape: Vec<usize>,
    /// First and last index of the first runs of consecutive elements, row-major; a run ends
    /// with its row.
    pub runs: Vec<[usize; 2]>,
    /// How many runs there are.
    pub all_runs: usize,
}

/// Runs of cells that a finding lists.
const LISTED: usize = 8;

impl Cells {
    /// The runs of sorted `elements` of a tensor of that shape.
    #[must_use]
    pub fn of(elements: &[usize], shape: &[usize]) -> Self {
        let row = shape.last().map_or(usize::MAX, |columns| (*columns).max(1));
        let mut cells = Self { shape: shape.to_vec(), ..Self::default() };
        let mut end = None;
        for &element in elements {
            let goes_on = end == Some(element) && !element.is_multiple_of(row);
            if !goes_on {
                cells.all_runs += 1;
                if cells.runs.len() < LISTED {
                    cells.runs.push([element, element]);
                }
            }
            if cells.all_runs == cells.runs.len()
                && let Some(run) = cells.runs.last_mut()
            {
                run[1] = element;
            }
            end = Some(element + 1);
        }
        cells
    }
}

impl fmt::Display for Cells {
    /// `[545, 9724..=9727], [3, 4] and 2 more runs`; indices in the buffer without a shape.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |a: usize, b: usize| if a == b { a.to_string() } else { format!("{a}..={b}") };
        let place = |&[first, last]: &[usize; 2]| {
            let Some((columns, outer)) = self.shape.split_last() else {
                return span(first, last);
            };
            let mut at = Vec::new();
            let mut row = first / columns;
            for size in outer.iter().rev() {
                at.push((row % size).to_string());
                row /= size;
            }
            at.reverse();
            at.push(span(first % columns, last % columns));
            format!("[{}]", at.join(", "))
        };
        let runs: Vec<String> = self.runs.iter().map(place).collect();
        f.write_str(&runs.join(", "))?;
        match self.all_runs - self.runs.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more runs"),
        }
    }
}
