//! Arguments, outputs and tiles.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::arith::{Real, fenv::DefaultEnv, stacked};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A case's tensors by argument name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Declaration of an argument.
#[derive(Clone, Copy, Debug)]
pub struct ArgSpec {
    /// Name in cases; one that ends with `*` stands for all names that begin with the rest.
    pub name: &'static str,
    /// Shape in symbols, and meaning.
    pub doc: &'static str,
    /// Whether it may be absent.
    pub optional: bool,
}

impl ArgSpec {
    /// Whether a tensor of this name belongs to the argument.
    pub fn covers(&self, name: &str) -> bool {
        self.name.strip_suffix('*').map_or(self.name == name, |start| name.starts_with(start))
    }

    /// A required argument.
    pub const fn new(name: &'static str, doc: &'static str) -> ArgSpec {
        ArgSpec { name, doc, optional: false }
    }

    /// An optional argument.
    pub const fn optional(name: &'static str, doc: &'static str) -> ArgSpec {
        ArgSpec { name, doc, optional: true }
    }
}

/// An input of an evaluation: stored in the case, or an edge of a composite.
#[derive(Clone, Debug)]
pub enum Arg<'a, R: Clone> {
    /// Widened on the fly.
    Stored(&'a Tensor),
    /// Computed by an upstream part.
    Made {
        /// Shape, outermost first.
        shape: Vec<usize>,
        /// Row-major elements.
        data: Cow<'a, [R]>,
    },
}

impl<'a, R: Real> Arg<'a, R> {
    /// An edge that owns its elements.
    pub fn made(shape: Vec<usize>, data: Vec<R>) -> Self {
        Arg::Made { shape, data: Cow::Owned(data) }
    }

    /// All elements as they are, or widened.
    pub fn all(&self) -> Cow<'_, [R]> {
        match self {
            Arg::Stored(t) => {
                let mut out = vec![R::lift(0.0); t.len()];
                t.widen(0, &mut out, R::lift);
                Cow::Owned(out)
            }
            Arg::Made { data, .. } => Cow::Borrowed(data),
        }
    }

    /// Shape, outermost first.
    pub fn shape(&self) -> &[usize] {
        match self {
            Arg::Stored(t) => t.shape(),
            Arg::Made { shape, .. } => shape,
        }
    }

    /// The innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape().last().copied().unwrap_or(1)
    }

    /// Elements `start..start + out.len()` of the flattened argument.
    pub fn read(&self, start: usize, out: &mut [R]) {
        match self {
            Arg::Stored(t) => t.widen(start, out, R::lift),
            Arg::Made { data, .. } => out.copy_from_slice(&data[start..start + out.len()]),
        }
    }

    /// Row `i` under the innermost dimension.
    pub fn row(&self, i: usize) -> Vec<R> {
        let n = self.cols();
        let mut out = vec![R::lift(0.0); n];
        self.read(i * n, &mut out);
        out
    }

    /// One element.
    pub fn at(&self, i: usize) -> R {
        match self {
            Arg::Stored(t) => R::lift(t.get(i)),
            Arg::Made { data, .. } => data[i],
        }
    }

    /// The elements at `start` plus each of `offsets`.
    pub fn gather(&self, start: usize, offsets: &[usize]) -> Vec<R> {
        let Some(run) = run_of(offsets) else {
            return offsets.iter().map(|o| self.at(start + o)).collect();
        };
        let mut out = vec![R::lift(0.0); run.len()];
        self.read(start + run.start, &mut out);
        out
    }

    /// The same of an integer tensor.
    pub fn ints(&self, start: usize, offsets: &[usize]) -> Vec<i64> {
        match self {
            Arg::Stored(t) if is_run(offsets) => t.ints(start + offsets[0], offsets.len()),
            _ => offsets.iter().map(|o| self.int(start + o)).collect(),
        }
    }

    /// One element of an integer tensor.
    pub fn int(&self, i: usize) -> i64 {
        match self {
            Arg::Stored(t) => t.get_i64(i),
            Arg::Made { data, .. } => data[i].value() as i64,
        }
    }
}

/// Whether numbers follow each other without a gap.
fn is_run(offsets: &[usize]) -> bool {
    !offsets.is_empty() && offsets.windows(2).all(|w| w[1] == w[0] + 1)
}

/// The range that numbers are, if they follow each other without a gap.
pub(super) fn run_of(numbers: &[usize]) -> Option<std::ops::Range<usize>> {
    is_run(numbers).then(|| numbers[0]..numbers[0] + numbers.len())
}

/// The inputs of an evaluation.
#[derive(Clone, Debug)]
pub struct Inputs<'a, R: Clone> {
    args: Vec<(&'a str, Arg<'a, R>)>,
}

impl<'a, R: Real> Inputs<'a, R> {
    /// All tensors of a case.
    pub fn stored(tensors: &'a Tensors) -> Self {
        let args = tensors.iter().map(|(k, v)| (k.as_str(), Arg::Stored(v))).collect();
        Inputs { args }
    }

    /// The same inputs with one more, which hides an earlier one of the same name.
    pub fn with(mut self, name: &'a str, arg: Arg<'a, R>) -> Self {
        self.args.retain(|(n, _)| *n != name);
        self.args.push((name, arg));
        self
    }

    /// The inputs whose names begin with `prefix`, without it: `experts.3.up_proj.` and
    /// `experts.3.up_proj.qweight` give `qweight`.
    pub fn under(&self, prefix: &str) -> Self {
        let inner =
            |(name, arg): &(&'a str, Arg<'a, R>)| Some((name.strip_prefix(prefix)?, arg.clone()));
        Inputs { args: self.args.iter().filter_map(inner).collect() }
    }

    /// An argument that may be absent.
    pub fn get(&self, name: &str) -> Option<&Arg<'a, R>> {
        self.args.iter().find(|(n, _)| *n == name).map(|(_, a)| a)
    }

    /// An argument that `check` has seen.
    ///
    /// # Panics
    /// When it is absent (`check` was not called).
    #[track_caller]
    pub fn req(&self, name: &str) -> &Arg<'a, R> {
        self.get(name).unwrap_or_else(|| panic!("argument `{name}` was not checked"))
    }
}

/// A required tensor of a case.
///
/// # Errors
/// When it is missing or empty, or not of a floating-point dtype where `float` is asked.
pub fn need<'t>(
    op: &'static str,
    tensors: &'t Tensors,
    arg: &str,
    float: bool,
) -> Result<&'t Tensor> {
    let t = tensors.get(arg).ok_or_else(|| Error::arg(op, arg, "is missing"))?;
    if t.is_empty() {
        return Err(Error::arg(op, arg, format!("is empty: shape {:?}", t.shape())));
    }
    if float && t.dtype().format().is_none() {
        return Err(Error::arg(op, arg, format!("must be floating point, is {}", t.dtype())));
    }
    if !float && !matches!(t.dtype(), Dtype::I32 | Dtype::I64) {
        return Err(Error::arg(op, arg, format!("must be i32 or i64, is {}", t.dtype())));
    }
    Ok(t)
}

/// An output's name and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutSpec {
    /// Name in cases.
    pub name: &'static str,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
}

impl OutSpec {
    /// The only output of most ops.
    pub fn output(shape: impl Into<Vec<usize>>) -> Vec<OutSpec> {
        vec![OutSpec { name: "output", shape: shape.into() }]
    }

    /// All dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// The innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// Which rows and columns of the (flattened to two dimensions) output to evaluate; `None` is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tile {
    /// Rows.
    pub rows: Option<Vec<usize>>,
    /// Columns.
    pub cols: Option<Vec<usize>>,
}

impl Tile {
    /// Everything.
    pub const ALL: Tile = Tile { rows: None, cols: None };

    /// The row indices out of `n`.
    pub fn rows_of(&self, n: usize) -> Vec<usize> {
        self.rows.clone().unwrap_or_else(|| (0..n).collect())
    }

    /// The column indices out of `n`.
    pub fn cols_of(&self, n: usize) -> Vec<usize> {
        self.cols.clone().unwrap_or_else(|| (0..n).collect())
    }

    /// Picks this tile's columns out of a full row.
    pub fn pick<R: Copy>(&self, row: &[R], out: &mut Vec<R>) {
        match &self.cols {
            None => out.extend_from_slice(row),
            Some(cols) => out.extend(cols.iter().map(|&c| row[c])),
        }
    }
}

/// A tile of an output: rows x cols elements, row-major.
#[derive(Clone, Debug)]
pub struct Out<R> {
    /// Name as in [`OutSpec`].
    pub name: &'static str,
    /// Elements in the order of the tile's rows, then columns.
    pub data: Vec<R>,
}

impl<R: Real> Out<R> {
    /// Evaluates rows in parallel; `row` returns the full row, of which the tile's columns are kept. All
    /// rows are equally long.
    pub fn by_rows(tile: &Tile, rows: usize, row: impl Fn(usize) -> Vec<R> + Sync) -> Vec<Out<R>> {
        let wanted = tile.rows_of(rows);
        let picked = |i: usize| {
            let full = row(wanted[i]);
            if tile.cols.is_none() {
                return full;
            }
            let mut out = Vec::with_capacity(full.len());
            tile.pick(&full, &mut out);
            out
        };
        let n = wanted.len();
        let data = if n == 0 { Vec::new() } else { stacked(picked(0), n, &picked) };
        vec![Out { name: "output", data }]
    }
}

/// `f` of the numbers below `n`, in parallel; not generic over `f`, so that rayon's machinery is compiled
/// once for each type of results and not once for each op.
pub(crate) fn in_parallel<T: Send>(n: usize, f: &(dyn Fn(usize) -> T + Sync)) -> Vec<T> {
    use rayon::prelude::*;
    let one = |i| {
        // Worker threads have an environment of their own.
        let _env = DefaultEnv::enter();
        f(i)
    };
    // Another thread is not worth waking for one.
    if n <= 1 { (0..n).map(f).collect() } else { (0..n).into_par_iter().map(one).collect() }
}
