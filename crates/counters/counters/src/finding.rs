//! What is found of a request's checks, and what is asked next.
//!
//! Stores ask for what is open and set what they find. Whatever fails stays open, so that the failure policy decides it
//! beside what is known.

use smallvec::SmallVec;

use clock::Time;
use limit::{Hits, Verdict};

use crate::batch::{Batch, Check, Counting, Member, without_taking};
use crate::holds::Held;

/// How far a check is. Each begins as [`ToCount`](Self::ToCount) with its own hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// To be read, because what counts depends on what others find. Becomes `Read`.
    ToRead,
    /// Nothing is counted yet. Becomes `ToCount` or `Decided`.
    Read,
    /// These hits are to be counted; a read has none. Becomes `Decided`.
    ToCount(Hits),
    /// The store did not answer. The failure policy decides.
    Lost,
    /// Counted, but another limit of the rule was over: the hits go back. Becomes `Decided`, also without a reply.
    ToGiveBack,
    Decided(Decider),
}

/// What decided a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Decider {
    #[default]
    Store,
    /// A store, by what soon changes: leased hits, or hits of another request that are given back.
    Transient,
    OverLimitCache,
    /// Another limit of its rule is over. Nothing is counted.
    Neighbor,
    /// An override refuses another descriptor of the request. Nothing is counted.
    Block,
    /// Counters in this process, while the store fails.
    Fallback,
    /// `allow` or `deny`, while the store fails.
    Policy {
        over: bool,
    },
}

impl Check {
    #[inline]
    pub fn is_decided(&self) -> bool {
        matches!(self.finding, Finding::Decided(_) | Finding::ToGiveBack)
    }

    /// What decided it; `None` if nothing has yet.
    #[inline]
    pub fn decider(&self) -> Option<Decider> {
        match self.finding {
            Finding::Decided(by) => Some(by),
            Finding::ToGiveBack => Some(Decider::Transient),
            _ => None,
        }
    }

    /// The hits that a store has to send now.
    #[inline]
    pub fn asked(&self) -> Option<Hits> {
        match self.finding {
            Finding::ToRead => Some(Hits::Take(0)),
            Finding::ToCount(hits) => Some(hits),
            Finding::ToGiveBack => Some(Hits::Refund(self.hits.taken())),
            Finding::Read | Finding::Lost | Finding::Decided(_) => None,
        }
    }

    /// Converts the verdict of a read to that of rejected hits. For stores that cannot check the limits of a rule
    /// atomically.
    fn reject(&mut self) {
        let full = Verdict { remaining: 0, ..self.verdict };
        let retry_after = self.limit.algorithm.wait_after(full, self.hits.taken());
        self.verdict = Verdict { admitted: false, consumed: false, retry_after, ..self.verdict };
        self.finding = Finding::Decided(Decider::Transient);
    }
}

#[expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "indexes are those of the batch's checks; only a check that holds has found what is held"
)]
impl Batch {
    pub fn is_decided(&self) -> bool {
        self.checks.iter().all(Check::is_decided)
    }

    #[inline]
    pub fn decide(&mut self, index: usize, by: Decider, verdict: Verdict) {
        let check = &mut self.checks[index];
        check.verdict = verdict;
        check.finding = Finding::Decided(by);
    }

    #[inline]
    pub fn decide_open(&mut self, by: Decider, mut verdict: impl FnMut(&Check) -> Verdict) {
        for check in self.checks.iter_mut().filter(|check| !check.is_decided()) {
            check.verdict = verdict(check);
            check.finding = Finding::Decided(by);
        }
    }

    /// What was read is the decision.
    pub fn decide_read(&mut self) {
        for check in self.checks.iter_mut().filter(|check| check.finding == Finding::Read) {
            check.finding = Finding::Decided(self.decider);
        }
    }

    /// What a store has found of a check that it was asked for.
    #[inline]
    pub fn found(&mut self, index: usize, verdict: Verdict) {
        let check = &mut self.checks[index];
        let was_over = check.finding == Finding::ToGiveBack && check.is_over();
        check.verdict = verdict;
        match check.finding {
            Finding::ToRead => check.finding = Finding::Read,
            // Even if other requests have refunded hits since.
            Finding::ToGiveBack if was_over => check.reject(),
            _ => {
                check.finding = Finding::Decided(self.decider);
                self.judge(index);
            }
        }
    }

    /// Rejects hits that were not counted, because nothing is, if they would not fit.
    #[inline]
    pub fn judge(&mut self, index: usize) {
        let check = &mut self.checks[index];
        if self.counting == Counting::ReadOnly && check.hits.taken() > 0 && check.would_be_over() {
            check.reject();
        }
    }

    /// The checks whose hits were refused as a whole, although something is left of their limits.
    pub fn not_exhausted(&self) -> SmallVec<[(usize, Check); 1]> {
        let is_left = |check: &Check| check.is_over() && check.hold.is_none() && check.verdict.remaining > 0;
        let checks = self.checks.iter().enumerate().filter(|(_, check)| is_left(check));
        checks.map(|(index, check)| (index, check.clone())).collect()
    }

    /// Plans a check anew with these hits.
    pub fn plan_again(&mut self, index: usize, hits: Hits) {
        let check = &mut self.checks[index];
        check.hits = hits;
        check.finding = Finding::ToCount(hits);
    }

    /// Corrects the verdict of a decided check.
    pub fn correct(&mut self, index: usize, verdict: Verdict) {
        self.checks[index].verdict = verdict;
    }

    /// A counter without the hits of its check, which depend on what others find.
    pub fn read(&mut self, index: usize, verdict: Verdict) {
        self.checks[index].finding = Finding::ToRead;
        self.found(index, verdict);
    }

    /// What a check would find if it held.
    pub fn read_held(&mut self, index: usize, held: Held, now: Time) {
        let verdict = self.set_held(index, held, now);
        self.read(index, verdict);
    }

    /// What a check that holds has found.
    pub fn decide_held(&mut self, index: usize, held: Held, now: Time) {
        let verdict = self.set_held(index, held, now);
        self.decide(index, self.decider, verdict);
    }

    /// So much is held beside a budget that was refunded.
    pub fn hold_beside(&mut self, index: usize, held: u64) {
        let verdict = &mut self.checks[index].verdict;
        verdict.remaining = verdict.remaining.saturating_sub(held);
    }

    fn set_held(&mut self, index: usize, mut held: Held, now: Time) -> Verdict {
        let check = &mut self.checks[index];
        let hold = check.hold.as_mut().expect("only a check that holds is told what its hold found");
        if self.counting == Counting::ReadOnly && hold.estimate.is_none() {
            let used = held.spent.saturating_add(held.held);
            held.fits &= used.saturating_add(check.hits.taken()) <= check.limit.requests_per_unit;
        }
        hold.found = Some(held);
        check.verdict_of(held, now)
    }

    /// The store has not answered for a check, and is not asked again.
    pub fn lose(&mut self, index: usize) {
        let check = &mut self.checks[index];
        match check.finding {
            // It is over, whatever became of what goes back.
            Finding::ToGiveBack => check.finding = Finding::Decided(Decider::Transient),
            Finding::Decided(_) => {}
            _ => check.finding = Finding::Lost,
        }
    }

    /// What a store holds goes with its failure, so that the checks that hold there are open again.
    pub fn lose_holds(&mut self) {
        for check in &mut self.checks {
            if check.held().is_some_and(|held| held.holds)
                && let Some(hold) = &mut check.hold
            {
                hold.found = None;
                check.finding = Finding::Lost;
            }
        }
    }

    /// Asks for these hits of a check, because others are counted elsewhere.
    pub fn ask(&mut self, index: usize, hits: Hits) {
        self.checks[index].finding = Finding::ToCount(hits);
    }

    /// Plans every check anew with these hits.
    pub fn ask_all(&mut self, hits: impl Fn(&Check) -> Hits) {
        for index in 0..self.checks.len() {
            self.plan_again(index, hits(&self.checks[index]));
        }
    }

    /// Counts nothing but refunds.
    pub fn only_read(&mut self) {
        for check in self.counted() {
            check.finding = Finding::ToCount(without_taking(check.hits));
        }
    }

    /// Reads the checks for which `is_read` is true before they count.
    pub fn read_first(&mut self, is_read: impl Fn(&Check) -> bool) {
        self.counted().filter(|check| is_read(check)).for_each(|check| check.finding = Finding::ToRead);
    }

    /// The open checks that do not hold.
    fn counted(&mut self) -> impl Iterator<Item = &mut Check> {
        self.checks.iter_mut().filter(|check| check.hold.is_none() && !check.is_decided())
    }

    /// Asks for the hits of checks that were read: for none of a rule whose limits have no room for all, and by
    /// [`Counting::StopWhenOver`] only for those that go over their limits if the request is refused. Returns the indexes of
    /// the first limits of rules that are asked.
    pub fn count_after_read(&mut self) -> SmallVec<[usize; 4]> {
        let is_refused =
            self.counting == Counting::StopWhenOver && self.is_refused(|_, check| check.would_be_over());
        let mut asked = SmallVec::new();
        let mut next = 0;
        while let Some(group) = self.group_at(next) {
            next = group.end;
            let checks = &mut self.checks[group.clone()];
            if !checks.iter().any(|check| check.finding == Finding::Read && check.hold.is_none()) {
                continue;
            }
            let is_over = |check: &Check| check.finding == Finding::Read && check.would_be_over();
            let any_over = checks.iter().any(is_over);
            if let [check @ Check { member: Member::Alone, .. }] = checks {
                let hits = if is_refused && !any_over { without_taking(check.hits) } else { check.hits };
                check.finding = Finding::ToCount(hits);
            } else if any_over || is_refused && checks.iter().all(Check::takes) {
                for check in checks {
                    match check.finding {
                        Finding::Read if check.would_be_over() => check.reject(),
                        Finding::Read => check.finding = Finding::Decided(self.decider),
                        _ if check.is_decided() => {}
                        _ => check.finding = Finding::Decided(Decider::Neighbor),
                    }
                }
            } else if checks.iter().all(|check| check.finding == Finding::Read) {
                // What holds was only looked at: a list that is refunded may have a concurrency limit.
                for check in checks.iter_mut().filter(|check| check.hold.is_none()) {
                    check.finding = Finding::ToCount(check.hits);
                }
                asked.push(group.start);
            }
        }
        asked
    }

    /// Asks for the hits back that the rules with these first limits have counted, if one of the limits was over after all,
    /// because of other requests since the read.
    pub fn give_back(&mut self, counted: &[usize]) {
        for first in counted {
            let Some(group) = self.group_at(*first) else { continue };
            let is_over = self.checks[group.clone()].iter().any(Check::is_over);
            for index in group.filter(|_| is_over) {
                let check = &mut self.checks[index];
                if check.finding == Finding::Decided(self.decider) && check.verdict.consumed {
                    check.finding = Finding::ToGiveBack;
                    if let Some(lowered) = &self.lowered {
                        lowered.add(self.checks[index].id, self.full_key(&self.checks[index]));
                    }
                }
            }
        }
    }

    /// True while hits go back.
    pub fn gives_back(&self) -> bool {
        self.checks.iter().any(|check| check.finding == Finding::ToGiveBack)
    }
}
