//! The state of a key by the algorithm itself.

use super::SLACK;
use crate::pipeline::{Counted, ScriptCheck};
use clock::Time;
use counters::Member;
use limit::{Algorithm, Hits, State, Verdict, Window, sliding_log::Log};

/// A key's state by the algorithm itself.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) algorithm: Algorithm,
    pub(super) window: Window,
    state: State,
    log: Log,
}

impl Model {
    pub(super) fn new((algorithm, window): (Algorithm, Window)) -> Self {
        Self { algorithm, window, state: State::default(), log: Log::default() }
    }

    pub(super) fn apply(&mut self, hits: Hits, now: Time) -> Counted {
        let verdict: Verdict;
        match self.algorithm {
            Algorithm::FixedWindow(limit) => {
                // The key contains the window, so another window begins with an empty state.
                let mut state = if self.state.end > now { self.state } else { State::default() };
                // Redis keeps no more, which is over every limit.
                state.number = state.number.min(1 << 53);
                (self.state, _) = limit.apply(state, hits, now);
                return Counted::After(self.state.number);
            }
            Algorithm::SlidingWindow(limit) => (self.state, verdict) = limit.apply(self.state, hits, now),
            Algorithm::Bucket(limit) => (self.state, verdict) = limit.apply(self.state, hits, now),
            Algorithm::SlidingLog(limit) => verdict = limit.apply(&mut self.log, hits, now),
            Algorithm::Concurrency(_) => panic!("nothing holds"),
        }
        Counted::Decided(verdict)
    }

    /// A refund never is.
    pub(super) fn would_be_over(&self, hits: Hits, now: Time) -> bool {
        if matches!(hits, Hits::Refund(_)) {
            return false;
        }
        match self.clone().apply(hits, now) {
            Counted::After(after) => after > self.algorithm.capacity(),
            Counted::Without(_) => true,
            Counted::Decided(verdict) => !verdict.admitted,
        }
    }

    /// The outcome of hits that are not counted, because they do not fit into this or another limit of their group.
    pub(super) fn reject(&mut self, hits: Hits, now: Time) -> Counted {
        let is_over = self.would_be_over(hits, now);
        match (self.algorithm, is_over) {
            (Algorithm::FixedWindow(_), true) => match self.apply(Hits::Take(0), now) {
                Counted::After(count) => Counted::Without(count),
                other => other,
            },
            (_, true) => self.apply(hits, now),
            (_, false) => self.apply(Hits::Take(0), now),
        }
    }

    /// The key, which for a fixed window contains its start.
    pub(super) fn name(&self, key: usize, now: Time) -> String {
        match self.algorithm {
            Algorithm::FixedWindow(limit) => format!("key {key} {}", limit.period.start(now).seconds()),
            _ => format!("key {key}"),
        }
    }

    pub(super) fn check<'k>(&self, key: &'k str, hits: Hits, member: Member) -> ScriptCheck<'k> {
        let algorithm = self.algorithm;
        ScriptCheck { key: key.into(), algorithm, seconds: SLACK, uncached: None, hits, member }
    }
}
