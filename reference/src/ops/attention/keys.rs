//! Keys and values of one kv head, and the reductions over them.

use std::borrow::Cow;
use std::ops::Range;

use super::Values;
use crate::arith::Real;
use crate::ops::{Arg, Inputs};
use crate::policy::Policy;

/// So many queries read a head's rows where they lie.
const FEW: usize = 8;

/// Keys and values of one kv head.
pub(super) enum Keys<'a, R: Real> {
    /// Keys as rows, values transposed: for an arithmetic that goes one by one, and for values that are
    /// not the keys' own.
    Prepared { k: Vec<R::Vector>, v_t: Vec<Vec<R>> },
    /// Rows `stride` elements apart.
    Plain { k: Cow<'a, [R]>, v: Cow<'a, [R]>, stride: usize },
}

impl<'a, R: Real> Keys<'a, R> {
    /// Of kv head `head`; `all` are the elements of k and v where reductions are plain. For many
    /// `queries` the head's rows are laid side by side.
    pub(super) fn of(
        inputs: &Inputs<'_, R>,
        all: Option<[&'a [R]; 2]>,
        head: usize,
        values: Values,
        queries: usize,
    ) -> Self {
        let (k, v) = (inputs.req("k"), inputs.req("v"));
        let &[s, heads, d] = k.shape() else { unreachable!("checked") };
        if let (Some([k, v]), Values::Own) = (all, values) {
            let mut plain = [k, v].map(|all| Cow::Borrowed(&all[head * d..]));
            let mut stride = heads * d;
            if queries > FEW && heads > 1 {
                plain =
                    plain.map(|rows| rows.chunks(stride).flat_map(|r| &r[..d]).copied().collect());
                stride = d;
            }
            let [k, v] = plain;
            return Keys::Plain { k, v, stride };
        }
        let row = |arg: &Arg<'_, R>, j: usize| {
            let mut out = vec![R::lift(0.0); d];
            arg.read((j * heads + head) * d, &mut out);
            out
        };
        let mut v_t = vec![Vec::with_capacity(s); d];
        for j in 0..s {
            let value = match values {
                Values::Previous => row(v, j.saturating_sub(1)),
                Values::NewestMissing if j + 1 == s => vec![R::lift(0.0); d],
                Values::Own | Values::NewestMissing => row(v, j),
            };
            for (column, x) in v_t.iter_mut().zip(value) {
                column.push(x);
            }
        }
        Keys::Prepared { k: (0..s).map(|j| R::prepare(row(k, j))).collect(), v_t }
    }

    /// The products of each of `queries` with the keys that it wants, which ascend.
    pub(super) fn scores(
        &self,
        queries: &[Vec<R>],
        wanted: &[&[usize]],
        policy: &Policy,
    ) -> Vec<Vec<R>> {
        if let (Keys::Plain { k, stride, .. }, Some(all)) = (self, union(wanted)) {
            let rows: Vec<&[R]> = queries.iter().map(Vec::as_slice).collect();
            let mut scores = R::dots(&rows, &k[all.start * stride..], *stride, all.len());
            for (scores, keys) in scores.iter_mut().zip(wanted) {
                let own = keys.first().map_or(0, |first| first - all.start);
                scores.drain(..own);
                scores.truncate(keys.len());
            }
            return scores;
        }
        let one = |(q, keys): (&Vec<R>, &&[usize])| match self {
            Keys::Prepared { k, .. } => {
                let q = R::prepare(q.clone());
                keys.iter().map(|&j| R::dot_prepared(&q, &k[j], 0, &policy.acc)).collect()
            }
            Keys::Plain { k, stride, .. } => {
                let row = |j: usize| &k[j * stride..j * stride + q.len()];
                keys.iter().map(|&j| R::dot(q, row(j), 0, &policy.acc)).collect()
            }
        };
        queries.iter().zip(wanted).map(one).collect()
    }

    /// The sums of `width` values with each list of weights, all of which are of keys without a gap from the
    /// same one on; `None` where they are to be taken list by list.
    pub(super) fn sums(&self, lists: &[(&[R], &[usize])], width: usize) -> Option<Vec<Vec<R>>> {
        let Keys::Plain { v, stride, .. } = self else { return None };
        let first = *lists.first()?.1.first()?;
        let alike = |(_, keys): &(&[R], &[usize])| run(keys).is_some_and(|run| run.start == first);
        if !lists.iter().all(alike) {
            return None;
        }
        let weights: Vec<&[R]> = lists.iter().map(|(w, _)| *w).collect();
        Some(R::mix(&weights, &v[first * stride..], *stride, width, first))
    }

    /// The values of the wanted keys, which ascend and are not none; `width` elements each.
    pub(super) fn columns(&'a self, keys: &[usize], width: usize) -> Columns<'a, R> {
        let range = run(keys);
        match (self, range) {
            (Keys::Prepared { v_t, .. }, Some(range)) => {
                Columns::Each(v_t.iter().map(|c| Cow::Borrowed(&c[range.clone()])).collect())
            }
            (Keys::Prepared { v_t, .. }, None) => {
                let gather = |column: &Vec<R>| keys.iter().map(|&j| column[j]).collect();
                Columns::Each(v_t.iter().map(gather).collect())
            }
            (Keys::Plain { v, stride, .. }, Some(range)) => {
                let rows = Cow::Borrowed(&v[range.start * stride..]);
                Columns::Rows { rows, stride: *stride, width }
            }
            (Keys::Plain { v, stride, .. }, None) => {
                let row = |&j: &usize| &v[j * stride..j * stride + width];
                Columns::Rows {
                    rows: keys.iter().flat_map(row).copied().collect(),
                    stride: width,
                    width,
                }
            }
        }
    }
}

/// The range that some lists of keys cover, if none of them has a gap or is empty.
fn union(lists: &[&[usize]]) -> Option<Range<usize>> {
    let runs: Vec<Range<usize>> = lists.iter().map(|keys| run(keys)).collect::<Option<_>>()?;
    let start = runs.iter().map(|r| r.start).min()?;
    Some(start..runs.iter().map(|r| r.end).max()?)
}

/// The range that `keys` are, if they have no gap.
fn run(keys: &[usize]) -> Option<Range<usize>> {
    let (&first, &last) = (keys.first()?, keys.last()?);
    (last - first + 1 == keys.len()).then_some(first..last + 1)
}

/// The values of the visible keys.
pub(super) enum Columns<'a, R: Clone> {
    /// Column by column.
    Each(Vec<Cow<'a, [R]>>),
    /// Row by row, one a key.
    Rows { rows: Cow<'a, [R]>, stride: usize, width: usize },
}

impl<R: Real> Columns<'_, R> {
    /// The sums of the values with `weights`; the first key has index `first` on the axis of the keys.
    pub(super) fn sums(&self, weights: &[R], first: usize, policy: &Policy) -> Vec<R> {
        match self {
            Columns::Each(_) => R::weighted_sums(weights, &self.slices(), first, &policy.acc),
            Columns::Rows { rows, stride, width } => {
                R::mix(&[weights], rows, *stride, *width, first).remove(0)
            }
        }
    }

    /// Their means, with an error that numerator and denominator share.
    pub(super) fn means(&self, weights: &[R], first: usize, policy: &Policy) -> Vec<R> {
        match self {
            Columns::Each(_) => R::weighted_means(weights, &self.slices(), first, &policy.acc),
            Columns::Rows { .. } => {
                let sum = R::sum(weights, first, &policy.acc);
                self.sums(weights, first, policy).into_iter().map(|x| x.div(sum)).collect()
            }
        }
    }

    /// The columns of an arithmetic that goes one by one; none of another.
    pub(super) fn slices(&self) -> Vec<&[R]> {
        match self {
            Columns::Each(columns) => columns.iter().map(|c| &**c).collect(),
            Columns::Rows { .. } => Vec::new(),
        }
    }
}
