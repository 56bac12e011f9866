//! Group testing: the guilty switches in few restarts.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// Switches that are on, by their place in the list.
pub type Set = BTreeSet<usize>;

/// What a restart showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The output is right.
    Right,
    /// The output is wrong.
    Wrong,
    /// Neither could be told: it did not start, or did not end.
    Inconclusive,
}

/// One restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was on.
    pub on: Set,
    /// What it showed.
    pub state: State,
}

/// Why a search ends early: the answer of this restart is not known yet, or something failed.
#[derive(Debug)]
pub enum Halt {
    /// The next restart.
    Next(Set),
    /// The test itself cannot be carried out.
    Failed(anyhow::Error),
}

/// Switches that together make the output wrong, and of which none can be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The switches.
    pub switches: Set,
    /// Those of which one more belongs to it, where restarts between them could not be told right or wrong.
    pub or_among: Set,
}

/// How a search ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// All restarts, in order.
    pub steps: Vec<Step>,
    /// What was right or wrong with all off, and with all on.
    pub all_off: Option<State>,
    /// The same with all on.
    pub all_on: Option<State>,
    /// The causes, each by itself enough.
    pub causes: Vec<Cause>,
    /// Switches of which nothing could be said, since what they hang on is guilty.
    pub hidden: Set,
}

type Test<'t> = dyn FnMut(&Set) -> Result<State, Halt> + 't;

struct Search<'s, 't> {
    masters: &'s [Option<usize>],
    test: &'s mut Test<'t>,
    known: BTreeMap<Set, State>,
    found: Found,
}

/// Finds the guilty among `masters.len()` switches; `masters[i]` is the one that switch i hangs on. `test` restarts with a
/// set of switches on.
///
/// # Errors
/// What `test` returned.
pub fn search(masters: &[Option<usize>], test: &mut Test<'_>) -> Result<Found, Halt> {
    let mut s = Search { masters, test, known: BTreeMap::new(), found: Found::default() };
    let off = s.state(&Set::new())?;
    s.found.all_off = Some(off);
    if off != State::Right {
        return Ok(s.found);
    }
    let mut rest: Vec<usize> = (0..masters.len()).collect();
    loop {
        let state = s.state(&rest.iter().copied().collect())?;
        s.found.all_on.get_or_insert(state);
        if state != State::Wrong {
            return Ok(s.found);
        }
        let cause = s.cause(&rest)?;
        let mut gone = s.remove(&cause);
        // What hangs on a guilty master can no longer be told.
        for (i, master) in masters.iter().enumerate() {
            if master.is_some_and(|m| gone.contains(&m)) && gone.insert(i) {
                s.found.hidden.insert(i);
            }
        }
        rest.retain(|i| !gone.contains(i));
        s.found.causes.push(cause);
    }
}

impl Search<'_, '_> {
    /// A set with the switches that it hangs on.
    fn closed(&self, set: impl IntoIterator<Item = usize>) -> Set {
        let mut all = Set::new();
        for mut i in set {
            while all.insert(i) {
                let Some(master) = self.masters[i] else { break };
                i = master;
            }
        }
        all
    }

    /// What a restart shows: never the same one twice.
    fn state(&mut self, set: &Set) -> Result<State, Halt> {
        let on = self.closed(set.iter().copied());
        if let Some(state) = self.known.get(&on) {
            return Ok(*state);
        }
        let state = (self.test)(&on)?;
        self.known.insert(on.clone(), state);
        self.found.steps.push(Step { on, state });
        Ok(state)
    }

    /// A smallest set of `rest`, which is wrong, that is wrong by itself: the shortest wrong beginning gives one
    /// switch, and with it on all the time the search begins anew, until what was found is enough.
    fn cause(&mut self, rest: &[usize]) -> Result<Cause, Halt> {
        let mut cause = Cause { switches: Set::new(), or_among: Set::new() };
        let mut among = rest.to_vec();
        while cause.switches.is_empty() || self.state(&cause.switches)? != State::Wrong {
            // `among[..right]` with the cause so far is right, `among[..wrong]` is wrong.
            let (mut right, mut wrong) = (0, among.len());
            while wrong - right > 1 {
                let middle = right + (wrong - right) / 2;
                match self.nearest(&cause.switches, &among, right, wrong, middle)? {
                    Some((at, State::Wrong)) => wrong = at,
                    Some((at, _)) => right = at,
                    None => break,
                }
            }
            if wrong - right > 1 {
                cause.or_among = among[right..wrong].iter().copied().collect();
                break;
            }
            cause.switches.insert(among[wrong - 1]);
            among.truncate(wrong - 1);
            if among.is_empty() {
                break;
            }
        }
        // A master that is guilty alone is the cause, not what hangs on it.
        let masters: Vec<usize> = cause.switches.iter().filter_map(|&i| self.masters[i]).collect();
        for master in masters {
            if self.state(&Set::from([master]))? == State::Wrong {
                return Ok(Cause { switches: Set::from([master]), or_among: Set::new() });
            }
        }
        Ok(cause)
    }

    /// The state at the place nearest to `middle` between two that is right or wrong.
    fn nearest(
        &mut self,
        with: &Set,
        among: &[usize],
        right: usize,
        wrong: usize,
        middle: usize,
    ) -> Result<Option<(usize, State)>, Halt> {
        let mut places: Vec<usize> = (right + 1..wrong).collect();
        places.sort_by_key(|p| p.abs_diff(middle));
        for at in places {
            let set: Set = with.iter().chain(&among[..at]).copied().collect();
            let state = self.state(&set)?;
            if state != State::Inconclusive {
                return Ok(Some((at, state)));
            }
        }
        Ok(None)
    }

    /// What is left off from now on, so that further causes show: the last of a cause, which breaks it.
    fn remove(&self, cause: &Cause) -> Set {
        let mut gone = cause.or_among.clone();
        gone.extend(cause.switches.iter().next_back());
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service that is wrong when all of one of `guilty` are on, and cannot tell for `silent`.
    fn found(masters: &[Option<usize>], guilty: &[&[usize]], silent: &[usize]) -> Found {
        let mut test = |on: &Set| {
            if silent.contains(&on.len()) {
                return Ok(State::Inconclusive);
            }
            let wrong = guilty.iter().any(|g| g.iter().all(|i| on.contains(i)));
            Ok(if wrong { State::Wrong } else { State::Right })
        };
        search(masters, &mut test).unwrap_or_else(|_| panic!("no test halts"))
    }

    fn causes(found: &Found) -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> =
            found.causes.iter().map(|c| c.switches.iter().copied().collect()).collect();
        all.sort();
        all
    }

    #[test]
    fn every_single_and_every_pair_is_found_in_few_restarts() {
        let mut masters = vec![Some(0); 16];
        masters[0] = None;
        for i in 0..16 {
            let one = found(&masters, &[&[i]], &[]);
            assert_eq!(causes(&one), [vec![i]]);
            // Off, on, four halves, alone, the master alone, and the rest.
            assert!(one.steps.len() <= 9, "{i}: {} restarts", one.steps.len());
            for j in i + 1..16 {
                let two = found(&masters, &[&[i], &[j]], &[]);
                if i == 0 {
                    assert_eq!(causes(&two), [vec![0]], "the rest hangs on it");
                    assert_eq!(two.hidden.len(), 15);
                    continue;
                }
                assert_eq!(causes(&two), [vec![i], vec![j]]);
                assert!(two.steps.len() <= 16, "{i} {j}: {} restarts", two.steps.len());
                let together = found(&masters, &[&[i, j]], &[]);
                assert_eq!(causes(&together), [vec![i, j]], "{i} {j}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_all_off_or_right_with_all_on_is_said() {
        let always = found(&[None, None], &[&[]], &[]);
        assert_eq!((always.all_off, always.steps.len()), (Some(State::Wrong), 1));
        let never = found(&[None, None], &[], &[]);
        assert_eq!((never.all_on, never.causes.len()), (Some(State::Right), 0));
    }

    #[test]
    fn restarts_that_tell_nothing_are_gone_around() {
        let one = found(&[None; 8], &[&[5]], &[4]);
        assert_eq!(causes(&one), [vec![5]]);
        let blind = found(&[None; 8], &[&[5]], &[5, 6, 7]);
        let cause = &blind.causes[0];
        assert!(cause.switches.is_empty() && cause.or_among.contains(&5), "{cause:?}");
    }
}
