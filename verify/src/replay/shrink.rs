//! A smaller case that fails the same way: shapes first, then values.

use std::cell::Cell;

use proptest::num::{u32 as level, usize as size};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use proptest::tuple::TupleValueTree;

use super::crop::{AXES, ORIGINAL, VALUES, crop, plainer, sizes, values};
use crate::families::Generated;

/// Most launches of one shrinking, and its longest time in milliseconds, at a launch's end.
const MAX_LAUNCHES: u32 = 300;
const MAX_MILLISECONDS: u32 = 20_000;

/// What became of a case.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The smallest case found that still fails.
    pub case: Generated,
    /// Cases that were tried.
    pub tried: usize,
}

type Levels = (level::BinarySearch, level::BinarySearch, level::BinarySearch, level::BinarySearch);

/// The case made of sizes and levels. The numbers are searched by proptest, in this order: every size by
/// bisection, then the values of every tensor, from ones upward.
fn make(g: &Generated, sizes: [usize; AXES], levels: [u32; VALUES]) -> Generated {
    let mut case = crop(&g.case, sizes);
    for (name, level) in values(&g.case).iter().zip(levels) {
        if let Some(t) = case.tensors.get_mut(name) {
            *t = plainer(t, level);
        }
    }
    Generated { case, label: format!("{} (shrunk)", g.label), structured: g.structured }
}

/// Shrinks a case as long as `fails` says of it what it says of `g`. At most 300 calls and 20 seconds.
/// `None` when `fails` does not hold for `g` itself, or nothing smaller fails.
pub fn shrink(g: &Generated, fails: impl Fn(&Generated) -> bool) -> Option<Shrunk> {
    let start = sizes(&g.case);
    let plain = values(&g.case).len();
    let from = start.map(size::BinarySearch::new);
    let level = |i: usize| level::BinarySearch::new(if i < plain { ORIGINAL } else { 0 });
    let [a, b, c, d, e] = from;
    let shape: (TupleValueTree<_>, TupleValueTree<_>) =
        (TupleValueTree::new((a, b, c)), TupleValueTree::new((d, e)));
    let levels: TupleValueTree<Levels> =
        TupleValueTree::new((level(0), level(1), level(2), level(3)));
    let tree = TupleValueTree::new((TupleValueTree::new(shape), levels));
    let unpack = |(((a, b, c), (d, e)), (w, x, y, z))| ([a, b, c, d, e], [w, x, y, z]);

    let config = Config {
        max_shrink_iters: MAX_LAUNCHES,
        max_shrink_time: MAX_MILLISECONDS,
        failure_persistence: None,
        ..Config::default()
    };
    let tried = Cell::new(0);
    let initial = unpack(tree.current());
    let result = TestRunner::new(config).run_one(tree, |choice| {
        let (sizes, levels) = unpack(choice);
        tried.set(tried.get() + 1);
        match fails(&make(g, sizes, levels)) {
            true => Err(TestCaseError::fail("as before")),
            false => Ok(()),
        }
    });
    let Err(TestError::Fail(_, smallest)) = result else { return None };
    let (sizes, levels) = unpack(smallest);
    ((sizes, levels) != initial)
        .then(|| Shrunk { case: make(g, sizes, levels), tried: tried.get() })
}
