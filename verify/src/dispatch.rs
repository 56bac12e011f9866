//! Under which condition a kernel is wrong: the simplest one on a case's sizes that holds for all cases
//! that fail and for none that passes. Kernels choose among code paths by such conditions.

use assay_reference::ops::{Erased, Op};
use assay_reference::{Case, Dtype, Tensor};

use crate::finding::Finding;

/// Largest size whose multiples are tried.
const LARGEST_TILE: usize = 256;

/// What a kernel may choose its path by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Sizes by name, `M`, `N` and `K` for a product.
    sizes: Vec<(&'static str, usize)>,
    /// What a case has or has not.
    flags: Vec<([&'static str; 2], bool)>,
}

impl Features {
    /// Those of a case; `None` when it is not one of its op.
    pub fn of(case: &Case) -> Option<Features> {
        let shape = Erased::open(case).ok()?.1.swap_remove(0).shape;
        let (&columns, outer) = shape.split_last()?;
        let rows: usize = outer.iter().product();
        let dim = |name: &str, at: usize| case.tensors.get(name).map(|t| t.shape()[at]);
        let sizes = match case.op.as_str() {
            op if op == "matmul" || op.ends_with("_gemm") => {
                let k = case.tensors.get("x").map_or(0, Tensor::cols);
                vec![("M", rows), ("N", columns), ("K", k), ("M N", rows * columns)]
            }
            "attention" => vec![("T", dim("q", 0)?), ("S", dim("k", 0)?)],
            "attention_paged" => {
                let context = case.tensors.get("context_len").map_or(0, |t| t.get_i64(0));
                vec![("T", dim("q", 0)?), ("S", usize::try_from(context).unwrap_or(0))]
            }
            _ => vec![("rows", rows), ("D", columns), ("rows D", rows * columns)],
        };
        let has = |name: &str| case.tensors.contains_key(name);
        let flags = vec![
            (["where there is a bias", "where there is no bias"], has("bias")),
            (["where there is a g_idx", "where there is no g_idx"], has("g_idx")),
            (["where the output is f16", "where the output is not f16"], case.dtype == Dtype::F16),
        ];
        Some(Features { sizes, flags })
    }
}

/// `M <= 50`, `where M is no multiple of 64`, `where there is a bias`: the simplest condition that holds for all of
/// `wrong` and none of `right`. A bound that lies between two sizes that were tried is given with both:
/// `M <= 12 (60 is right, none between was tried)`. `None` when one of them is empty or no condition on a
/// single size tells them apart.
pub fn condition(wrong: &[Features], right: &[Features]) -> Option<String> {
    let (first, _) = (wrong.first()?, right.first()?);
    let all = || wrong.iter().chain(right);
    if all().any(|f| f.sizes.len() != first.sizes.len() || f.flags.len() != first.flags.len()) {
        return None;
    }
    let sizes = || (0..first.sizes.len()).map(|i| Size::new(i, wrong, right));
    // A product of two sizes says more than it seems to: tried for its multiples only.
    let bound = |exact: bool| sizes().filter(|s| !s.is_product()).find_map(|s| s.bound(exact));
    bound(true)
        .or_else(|| (0..first.flags.len()).find_map(|i| flag(i, wrong, right)))
        .or_else(|| sizes().find_map(|s| s.multiple()))
        .or_else(|| bound(false))
}

/// `; only M <= 50`, or in how many of the cases that ran a finding of that name occurred; nothing
/// where it did in all.
pub fn extent(name: &str, ran: &[(&Case, &[Finding])]) -> String {
    let (wrong, right): (Vec<_>, Vec<_>) =
        ran.iter().partition(|(_, findings)| findings.iter().any(|f| f.name == name));
    if wrong.is_empty() || right.is_empty() {
        return String::new();
    }
    let of = |side: &[&(&Case, &[Finding])]| -> Vec<Features> {
        side.iter().filter_map(|(case, _)| Features::of(case)).collect()
    };
    match condition(&of(&wrong), &of(&right)) {
        Some(condition) => format!("; only {condition}"),
        None => format!("; in {} of {} cases", wrong.len(), ran.len()),
    }
}

fn flag(i: usize, wrong: &[Features], right: &[Features]) -> Option<String> {
    let holds = |of: &[Features], value: bool| of.iter().all(|f| f.flags[i].1 == value);
    let [yes, no] = wrong[0].flags[i].0;
    let text = match () {
        () if holds(wrong, true) && holds(right, false) => yes,
        () if holds(wrong, false) && holds(right, true) => no,
        () => return None,
    };
    Some(text.to_owned())
}

/// One size of all cases.
struct Size {
    name: &'static str,
    wrong: Vec<usize>,
    right: Vec<usize>,
}

impl Size {
    fn new(i: usize, wrong: &[Features], right: &[Features]) -> Size {
        let of = |all: &[Features]| {
            let mut sizes: Vec<usize> = all.iter().map(|f| f.sizes[i].1).collect();
            sizes.sort_unstable();
            sizes.dedup();
            sizes
        };
        Size { name: wrong[0].sizes[i].0, wrong: of(wrong), right: of(right) }
    }

    fn is_product(&self) -> bool {
        self.name.contains(' ')
    }

    /// A bound between the wrong sizes and the right ones; `exact` where these are neighbours.
    fn bound(&self, exact: bool) -> Option<String> {
        let ends = |v: &[usize]| (v[0], v[v.len() - 1]);
        let ((w_low, w_high), (r_low, r_high)) = (ends(&self.wrong), ends(&self.right));
        let (sign, wrong, right) = match () {
            () if w_high < r_low => ("<=", w_high, r_low),
            () if r_high < w_low => (">=", w_low, r_high),
            () => return None,
        };
        match (wrong.abs_diff(right) == 1, exact) {
            (true, true) => Some(format!("{} {sign} {wrong}", self.name)),
            (false, false) => Some(format!(
                "{} {sign} {wrong} ({right} is right, none between was tried)",
                self.name
            )),
            _ => None,
        }
    }

    /// The largest tile that tells them apart, and smaller ones that do as well; of a few sizes one would
    /// mostly be found.
    fn multiple(&self) -> Option<String> {
        if self.wrong.len() < 2 || self.wrong.len() + self.right.len() < 4 {
            return None;
        }
        let tiles = || (1..).map(|i| 1 << i).take_while(|&tile| tile <= LARGEST_TILE);
        let all = |sizes: &[usize], tile: usize, value: bool| {
            sizes.iter().all(|s| s.is_multiple_of(tile) == value)
        };
        for (value, word) in [(false, "no"), (true, "a")] {
            let apart: Vec<usize> = tiles()
                .filter(|&t| all(&self.wrong, t, value) && all(&self.right, t, !value))
                .collect();
            if let Some((largest, smaller)) = apart.split_last() {
                let also = match smaller.first() {
                    Some(least) => format!(" (or of {least}: these cases do not tell)"),
                    None => String::new(),
                };
                return Some(format!("where {} is {word} multiple of {largest}{also}", self.name));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(m: usize, k: usize, bias: bool) -> Features {
        Features {
            sizes: vec![("M", m), ("K", k), ("M K", m * k)],
            flags: vec![(["where there is a bias", "where there is no bias"], bias)],
        }
    }

    fn found(wrong: &[(usize, usize, bool)], right: &[(usize, usize, bool)]) -> Option<String> {
        let of = |all: &[(usize, usize, bool)]| -> Vec<Features> {
            all.iter().map(|&(m, k, b)| features(m, k, b)).collect()
        };
        condition(&of(wrong), &of(right))
    }

    #[test]
    fn the_simplest_condition_that_tells_them_apart() {
        let text = |wrong: &[_], right: &[_]| found(wrong, right).unwrap_or_default();
        assert_eq!(text(&[(1, 64, true), (50, 8, true)], &[(51, 64, true)]), "M <= 50");
        assert_eq!(
            text(&[(12, 64, true)], &[(60, 64, true)]),
            "M <= 12 (60 is right, none between was tried)"
        );
        assert_eq!(
            text(&[(9, 5000, true)], &[(1, 4096, true), (99, 8, true)]),
            "K >= 5000 (4096 is right, none between was tried)"
        );
        let [on, off] = [true, false];
        assert_eq!(text(&[(9, 64, on)], &[(1, 64, off), (99, 64, off)]), "where there is a bias");
        assert_eq!(text(&[(9, 64, off)], &[(1, 64, on), (99, 64, on)]), "where there is no bias");
        let wrong = [(65, 64, on), (546, 128, off), (70, 64, on)];
        let right = [(64, 64, on), (512, 128, off), (128, 64, on)];
        assert_eq!(
            text(&wrong, &right),
            "where M is no multiple of 64 (or of 4: these cases do not tell)"
        );
    }

    #[test]
    fn nothing_is_said_where_no_condition_on_one_size_holds() {
        let one = (5, 64, true);
        assert_eq!(found(&[one], &[one]), None);
        assert_eq!(found(&[one], &[]), None);
        assert_eq!(found(&[], &[one]), None);
        assert_eq!(found(&[(3, 4, true), (9, 4, true)], &[(5, 4, true), (3, 4, true)]), None);
    }
}
