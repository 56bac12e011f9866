//! How far a search for a fault is, for people who wait; and where it stops.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

/// Hypotheses after which no further run is searched.
const LIMIT: usize = 30_000;
/// The watcher is told of every so many.
const EVERY: usize = 10;

/// A search for the fault behind a subject's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Searching {
    /// The op.
    pub op: &'static str,
    /// Hypotheses tried.
    pub tried: usize,
    /// How many there will be, about.
    pub about: usize,
}

type Watcher = Box<dyn Fn(Searching) + Send + Sync>;

static WATCHER: RwLock<Option<Watcher>> = RwLock::new(None);

/// Calls `watcher` from time to time while the judge looks for a fault, in this process; it replaces an
/// earlier one. It changes no result.
pub fn watch(watcher: impl Fn(Searching) + Send + Sync + 'static) {
    *WATCHER.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(watcher));
}

/// One search.
#[derive(Debug)]
pub(super) struct Progress {
    op: &'static str,
    tried: AtomicUsize,
    about: AtomicUsize,
    skipped: AtomicUsize,
}

impl Progress {
    pub(super) fn new(op: &'static str) -> Progress {
        let zero = || AtomicUsize::new(0);
        Progress { op, tried: zero(), about: zero(), skipped: zero() }
    }

    /// `n` more hypotheses are going to be tried.
    pub(super) fn expect(&self, n: usize) {
        self.about.fetch_add(n, Ordering::Relaxed);
    }

    /// One more was tried.
    pub(super) fn tried(&self) {
        let tried = 1 + self.tried.fetch_add(1, Ordering::Relaxed);
        if tried.is_multiple_of(EVERY) {
            let about = self.about.load(Ordering::Relaxed).max(tried);
            let watcher = WATCHER.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(watcher) = watcher.as_ref() {
                watcher(Searching { op: self.op, tried, about });
            }
        }
    }

    /// Whether a further run may be searched; one that may not is counted.
    pub(super) fn goes_on(&self) -> bool {
        let goes_on = self.tried.load(Ordering::Relaxed) < LIMIT;
        self.skipped.fetch_add(usize::from(!goes_on), Ordering::Relaxed);
        goes_on
    }

    /// What a reader must know of a search that was stopped.
    pub(super) fn note(&self) -> Option<String> {
        let skipped = self.skipped.load(Ordering::Relaxed);
        (skipped > 0).then(|| {
            let tried = self.tried.load(Ordering::Relaxed);
            format!("the search stopped after {tried} hypotheses: on {skipped} failing runs only faults found before were tried")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_is_stopped_says_so() {
        let progress = Progress::new("matmul");
        assert!(progress.goes_on() && progress.note().is_none());
        (0..LIMIT).for_each(|_| progress.tried());
        assert!(!progress.goes_on());
        let note = progress.note().expect("a note");
        assert!(note.contains("30000 hypotheses") && note.contains("1 failing"), "{note}");
    }
}
