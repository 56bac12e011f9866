//! How a product is cut: into blocks that registers hold, and into tasks for threads.

use std::ops::Range;

use super::isa::{Isa, halves_512};

/// How an instruction set blocks: (rows, columns) of the packed kernel, and of the direct ones.
pub(super) struct Blocking {
    pub(super) packed: (usize, usize),
    pub(super) direct: &'static [(usize, usize)],
    /// Registers that hold the lanes of a reduction.
    pub(super) parts: usize,
    /// Bytes of a widened row's block on the reduced axis.
    pub(super) block: usize,
    /// Most rows of activations that a block of weights is widened for, whose lanes the cache must hold.
    pub(super) rows: usize,
}

impl Blocking {
    pub(super) fn of(isa: Isa) -> Option<Blocking> {
        Some(match isa {
            Isa::Scalar => return None,
            Isa::Avx2 => {
                let direct = &[(1, 4), (2, 2), (4, 1)];
                Blocking { packed: (4, 3), direct, parts: 2, block: 4096, rows: 144 }
            }
            Isa::Avx512 => {
                let direct = &[(1, 4), (2, 4), (4, 4), (8, 2)];
                // Where arithmetic takes half a register at a time, activations and lanes may come from farther
                // caches; else the first-level cache must hold a panel of the one, the second all of the other.
                let (block, rows) = if halves_512() { (8192, 528) } else { (2048, 144) };
                Blocking { packed: (8, 3), direct, parts: 1, block, rows }
            }
            Isa::Neon => {
                let direct = &[(1, 4), (2, 2), (4, 1)];
                Blocking { packed: (6, 4), direct, parts: 4, block: 2048, rows: 144 }
            }
        })
    }

    /// The rows of the direct kernel that computes `m` rows in the least time: a step costs as much as its
    /// rows and two more, for reading and widening.
    pub(super) fn rows_for(&self, m: usize) -> usize {
        let cost = |mr: usize| m.div_ceil(mr) * (mr + 2);
        let rows = self.direct.iter().map(|(mr, _)| *mr).rev();
        rows.min_by_key(|mr| cost(*mr)).expect("there are kernels")
    }
}

/// Columns of a task of the packed kernel in units of its NR.
const COLUMN_BLOCKS: usize = 16;
/// Rows of a task that are worth widening weights for.
const LEAST_ROWS: usize = 72;

/// How the packed kernel's outputs are split.
pub(super) struct Tasks {
    columns: usize,
    rows: usize,
    m: usize,
    n: usize,
}

impl Tasks {
    pub(super) fn of([m, n]: [usize; 2], blocking: &Blocking) -> Tasks {
        let columns = blocking.packed.1 * COLUMN_BLOCKS;
        let wanted = 4 * rayon::current_num_threads();
        let pieces = wanted.div_ceil(n.div_ceil(columns)).min(m.div_ceil(LEAST_ROWS));
        let pieces = pieces.max(m.div_ceil(blocking.rows));
        let rows = m.div_ceil(pieces).next_multiple_of(blocking.packed.0);
        Tasks { columns, rows, m, n }
    }

    pub(super) fn count(&self) -> usize {
        self.n.div_ceil(self.columns) * self.m.div_ceil(self.rows)
    }

    /// Columns and rows of task `i`.
    pub(super) fn task(&self, i: usize) -> (Range<usize>, Range<usize>) {
        let across = self.n.div_ceil(self.columns);
        let (column, row) = (i % across * self.columns, i / across * self.rows);
        (column..self.n.min(column + self.columns), row..self.m.min(row + self.rows))
    }
}
