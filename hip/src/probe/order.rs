//! The order of additions, read from sums of masks and ones.
//!
//! With a huge M at term i, -M at term j and ones elsewhere, every one that is added before the two
//! masks cancel is absorbed; what the sum gives is the number of terms outside the smallest subtree
//! that holds both i and j. From that number for every pair the whole tree of additions follows.
//!
//! Source: P. Xie, Y. Gu, J. Luo, "FPRev: Revealing the Order of Floating-Point Summation",
//! USENIX ATC 2025, <https://arxiv.org/abs/2411.00442>

/// A tree of additions over the terms 0 .. K. A node of more than two children adds them at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Term(usize),
    Sum(Vec<Tree>),
}

/// `sizes(i, j)` is the number of terms below the smallest subtree that holds i and j. `None` when that
/// is no tree.
pub(super) fn tree(terms: &[usize], sizes: &dyn Fn(usize, usize) -> usize) -> Option<Tree> {
    let (&first, rest) = terms.split_first()?;
    if rest.is_empty() {
        return Some(Tree::Term(first));
    }
    // Two terms are in one child exactly when they meet before all have met.
    let mut children: Vec<Vec<usize>> = vec![vec![first]];
    for &term in rest {
        let home: Vec<usize> =
            (0..children.len()).filter(|&c| sizes(children[c][0], term) < terms.len()).collect();
        match home[..] {
            [] => children.push(vec![term]),
            [one] => children[one].push(term),
            _ => return None,
        }
    }
    if children.len() == 1 {
        return None;
    }
    let consistent =
        |a: &[usize], b: &[usize]| a.iter().all(|&i| b.iter().all(|&j| sizes(i, j) == terms.len()));
    for (i, a) in children.iter().enumerate() {
        if !children[i + 1..].iter().all(|b| consistent(a, b)) {
            return None;
        }
    }
    children.iter().map(|child| tree(child, sizes)).collect::<Option<_>>().map(Tree::Sum)
}

/// Terms in a chain: the order in which a single accumulator takes them; the first two may be in either
/// order. A term is one number, or several that are added at once.
fn chain(tree: &Tree) -> Option<Vec<Vec<usize>>> {
    let leaves = |children: &[Tree]| -> Option<Vec<usize>> {
        let term = |t: &Tree| if let Tree::Term(i) = t { Some(*i) } else { None };
        children.iter().map(term).collect()
    };
    match tree {
        Tree::Term(i) => Some(vec![vec![*i]]),
        Tree::Sum(children) => {
            let inner: Vec<usize> =
                (0..children.len()).filter(|&c| matches!(children[c], Tree::Sum(_))).collect();
            match inner[..] {
                [] => Some(vec![leaves(children)?]),
                [one] => {
                    let mut links = chain(&children[one])?;
                    let others: Vec<Tree> = children
                        .iter()
                        .enumerate()
                        .filter(|&(i, _)| i != one)
                        .map(|(_, child)| child.clone())
                        .collect();
                    links.push(leaves(&others)?);
                    Some(links)
                }
                _ => None,
            }
        }
    }
}

/// The tree in words: `one after another`, `8 at once, one group after another`, `tree of 16 chains
/// (every 16th term)`.
pub(super) fn describe(tree: &Tree) -> String {
    if let Some(links) = chain(tree) {
        return describe_chain(&links);
    }
    let Tree::Sum(children) = tree else { return "one term".to_owned() };
    // The parts that are chains, below a tree that joins them.
    let mut parts = Vec::new();
    let depth = split(tree, &mut parts);
    let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
    let (least, most) =
        (sizes.iter().min().copied().unwrap_or(0), sizes.iter().max().copied().unwrap_or(0));
    if depth == 0 {
        return format!("a node of {} unlike parts", children.len());
    }
    let stride = parts.iter().map(|part| stride(part)).collect::<Vec<_>>();
    let of = match stride[0] {
        _ if most == 1 => "single terms".to_owned(),
        Some(1) if stride.iter().all(|s| *s == Some(1)) => "consecutive terms".to_owned(),
        Some(s) if stride.iter().all(|t| *t == Some(s)) => format!("every {s}th term"),
        _ => "terms of no one stride".to_owned(),
    };
    let length = if least == most { most.to_string() } else { format!("{least} to {most}") };
    format!("a tree over {} chains of {length} ({of}), {depth} levels", parts.len())
}

fn describe_chain(links: &[Vec<usize>]) -> String {
    let flat: Vec<usize> = links.iter().flatten().copied().collect();
    let ascending = flat.windows(2).all(|w| w[0] < w[1]);
    // Of a chain of single terms the first link holds two.
    let single = links.iter().skip(1).all(|link| link.len() == 1) && links[0].len() <= 2;
    let descending = {
        let mut flipped = flat.clone();
        flipped[..links[0].len()].reverse();
        flipped.windows(2).all(|w| w[0] > w[1])
    };
    match (single, ascending, descending) {
        (true, true, _) => "one after another".to_owned(),
        (true, _, true) => "one after another, from the last".to_owned(),
        (true, ..) => "one after another, in another order".to_owned(),
        _ if links.len() == 1 => format!("all {} at once", flat.len()),
        _ => {
            let group = links.last().map_or(0, Vec::len);
            format!("{group} at once, one group after another")
        }
    }
}

/// Collects the chains below a tree, each as its terms in ascending order; the number of levels above.
fn split(tree: &Tree, parts: &mut Vec<Vec<usize>>) -> usize {
    match (chain(tree), tree) {
        (None, Tree::Sum(children)) => {
            1 + children.iter().map(|child| split(child, parts)).max().unwrap_or(0)
        }
        (links, _) => {
            let mut terms: Vec<usize> = links.into_iter().flatten().flatten().collect();
            terms.sort_unstable();
            parts.push(terms);
            0
        }
    }
}

/// The common distance of a chain's terms.
fn stride(terms: &[usize]) -> Option<usize> {
    let first = terms.get(1)?.checked_sub(terms[0])?;
    terms.windows(2).all(|w| w[1] - w[0] == first).then_some(first)
}
