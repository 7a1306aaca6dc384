//! The batch of one request: its checks with their keys and verdicts.
//!
//! The limiter fills a batch, the store sets a verdict for each check, whatever its algorithm, and the limiter reads them.

use std::{ops::Range, time::Instant};

use smallvec::SmallVec;

use clock::Time;
use limit::{Fit, Hits, Rate, Refusal, Share, Verdict, fixed_window};

use crate::holds::{Closed, Held, Hold, HoldId};
use crate::id::CounterId;
use crate::lowered::Lowered;

#[derive(Debug, Default)]
pub struct Batch {
    /// The full keys of all checks, concatenated: one allocation per request.
    keys: String,
    checks: SmallVec<[Check; 1]>,
    has_groups: bool,
    /// What is counted when the request is refused.
    pub counting: Counting,
    /// What is known of the request's limits that have no check here.
    pub known: Refusal,
    /// When the caller stops waiting, if known.
    pub until: Option<Instant>,
    /// The identity of the request's holds; `None` if it only reads.
    pub hold_id: Option<HoldId>,
    /// The store may hold, whether it answers or not.
    pub is_hold_sent: bool,
    /// Set once the limits are divided by it. A batch may be counted several times, and must not be divided again.
    pub share: Option<Share>,
    /// Invalidates caches, if the batch gives hits back.
    pub lowered: Option<Lowered>,
    /// The holds that were found expired, also those of other requests.
    pub expired: Vec<Closed>,
    has_holds: bool,
}

/// Which checks count when the request is refused. Stores do not change it: a batch that one store failed to count is
/// counted by another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// All.
    #[default]
    Always,
    /// Only the checks that would go over their limits; the others read. None if it is refused whatever they find.
    StopWhenOver,
    /// None, whether it is refused or not.
    ReadOnly,
}

#[derive(Clone, Debug)]
pub struct Check {
    /// In all windows.
    pub counter: CounterId,
    /// The same in its window, whose start is part of the key of a fixed window.
    pub id: CounterId,
    /// Empty if the store needs no names.
    full_key: Range<usize>,
    /// The end of the part that is the key in shared stores.
    key_end: usize,
    pub limit: Rate,
    pub rule_hash: u16,
    pub hits: Hits,
    /// Whether it counts alone or in a group.
    pub member: Member,
    /// What it means for the request that it is over its limit.
    pub fit: Fit,
    /// What it holds, of a limit that does. Then `hits` and `member` do not matter.
    pub hold: Option<Box<Hold>>,
    pub verdict: Verdict,
    /// The verdict is not to be remembered: a lease knew it before, or hits of another group count that are given back.
    pub is_passing: bool,
}

/// Whether a check counts alone or in a group. The limits of a rule with several form a group, which counts all or
/// nothing: hits that one limit rejects are counted by none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Member {
    /// The only limit of its rule. A fixed window counts rejected hits, as in the Go service.
    Alone,
    /// The first check of a group.
    First,
    /// Belongs to the group of the check before it.
    Next,
}

#[expect(
    clippy::indexing_slicing,
    clippy::expect_used,
    reason = "indexes are those of the batch's checks, ranges those of its keys"
)]
impl Batch {
    /// An empty batch with room for as many checks. One needs no allocation.
    #[inline]
    pub fn with_room(checks: usize) -> Self {
        Self { checks: SmallVec::with_capacity(checks), ..Self::default() }
    }

    /// The buffer to which a key is appended before [`push`](Self::push).
    pub fn keys(&mut self) -> &mut String {
        &mut self.keys
    }

    /// Adds a check whose full key begins with `key`, the part for shared stores, and returns its index. `rule_hash` is
    /// that of the limit's rule.
    #[inline]
    pub fn push(
        &mut self,
        [counter, id]: [CounterId; 2],
        key: Range<usize>,
        limit: &Rate,
        rule_hash: u16,
        hits: Hits,
    ) -> usize {
        let (index, verdict) = (self.checks.len(), Verdict::default());
        let (full_key, key_end) = (key.start..self.keys.len(), key.end);
        self.has_holds |= limit.holds;
        let (limit, member, fit, hold, is_passing) = (*limit, Member::Alone, Fit::Must, None, false);
        self.checks.push(Check {
            counter,
            id,
            full_key,
            key_end,
            limit,
            rule_hash,
            hits,
            member,
            fit,
            hold,
            verdict,
            is_passing,
        });
        index
    }

    #[inline]
    pub fn set_fit(&mut self, index: usize, fit: Fit) {
        self.checks[index].fit = fit;
    }

    /// Replaces the hits of every check.
    pub fn set_hits(&mut self, hits: Hits) {
        self.checks.iter_mut().for_each(|check| check.hits = hits);
    }

    /// The hits are those of windows that begin in so many seconds.
    pub fn set_ahead(&mut self, seconds: u8) {
        self.checks.iter_mut().for_each(|check| check.limit.ahead = seconds);
    }

    /// The request passes, whatever is over its limit.
    pub fn refuse_nothing(&mut self) {
        self.checks.iter_mut().for_each(|check| check.fit = Fit::Always);
    }

    pub fn hold(&mut self, index: usize, hold: Hold) {
        self.checks[index].hold = Some(Box::new(hold));
    }

    /// True if a check is of a limit that holds, also for one that refunds.
    pub fn has_holds(&self) -> bool {
        self.has_holds
    }

    /// The checks that refund what holds were charged: what has expired must be charged before.
    pub fn refunded_budgets(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.limit.holds && check.hold.is_none())
    }

    /// True if the request is refused, with the checks for which `is_over` is true over their limits.
    #[inline]
    pub fn is_refused(&self, is_over: impl Fn(usize, &Check) -> bool) -> bool {
        let mut refusal = self.known.clone();
        self.checks
            .iter()
            .enumerate()
            .for_each(|(index, check)| refusal.add(check.fit, is_over(index, check)));
        refusal.is_refused()
    }

    /// True if the request is refused whatever its checks find.
    #[inline]
    pub fn is_known_refused(&self) -> bool {
        !self.known.is_empty() && self.is_refused(|_, _| false)
    }

    /// What is known of the request by the outcomes of the checks for which `is_decided` is true.
    pub fn refusal(&self, is_decided: impl Fn(usize, &Check) -> bool) -> Refusal {
        let mut refusal = self.known.clone();
        let decided = self.checks.iter().enumerate().filter(|(index, check)| is_decided(*index, check));
        decided.for_each(|(_, check)| refusal.add(check.fit, check.is_over()));
        refusal
    }

    /// What the checks at some indexes mean for the request, for a script that decides them: [`Refusal::codes`].
    pub fn codes(&self, indexes: &[usize]) -> SmallVec<[u64; 4]> {
        let refusal = self.refusal(|index, _| !indexes.contains(&index));
        refusal.codes(indexes.iter().map(|index| self.checks[*index].fit)).collect()
    }

    /// What counts, once it is known whether the request is refused.
    pub fn counting_if(&self, is_refused: bool) -> Counting {
        match self.counting {
            Counting::StopWhenOver if is_refused => Counting::ReadOnly,
            counting => counting,
        }
    }

    #[inline]
    pub fn holding(&self) -> impl Iterator<Item = usize> {
        let checks = self.checks.iter().enumerate();
        checks.filter(|(_, check)| check.hold.is_some()).map(|(index, _)| index)
    }

    pub fn group(&mut self, first: usize) {
        for (index, check) in self.checks.iter_mut().enumerate().skip(first) {
            check.member = if index == first { Member::First } else { Member::Next };
            self.has_groups = true;
        }
    }

    #[inline]
    pub fn has_groups(&self) -> bool {
        self.has_groups
    }

    /// The indexes of the group or single check that begins at `first`. `None` at the end.
    #[inline]
    pub fn group_at(&self, first: usize) -> Option<Range<usize>> {
        let (_, rest) = self.checks.get(first..)?.split_first()?;
        let others = rest.iter().take_while(|check| check.member == Member::Next).count();
        Some(first..first + 1 + others)
    }

    /// The indexes of every group and single check.
    pub fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let group = self.group_at(next)?;
            next = group.end;
            Some(group)
        })
    }

    #[inline]
    pub fn key(&self, check: &Check) -> &str {
        self.keys.get(check.full_key.start..check.key_end).expect("the key of a check of this batch")
    }

    #[inline]
    pub fn full_key(&self, check: &Check) -> &str {
        self.keys.get(check.full_key.clone()).expect("the key of a check of this batch")
    }

    #[inline]
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    #[inline]
    pub fn check(&self, index: usize) -> &Check {
        &self.checks[index]
    }

    #[inline]
    pub fn checks_at(&self, indexes: Range<usize>) -> &[Check] {
        &self.checks[indexes]
    }

    /// Keeps the checks at the indexes for which `keep` is true.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let mut indexes = 0..;
        self.checks.retain(|_| indexes.next().is_some_and(&keep));
        self.has_holds = self.checks.iter().any(|check| check.limit.holds);
    }

    #[inline]
    pub fn set(&mut self, index: usize, verdict: Verdict) {
        (self.checks[index].verdict, self.checks[index].is_passing) = (verdict, false);
    }

    /// Sets a verdict that a lease knew before.
    pub fn recall(&mut self, index: usize, verdict: Verdict) {
        (self.checks[index].verdict, self.checks[index].is_passing) = (verdict, true);
    }

    pub fn set_held(&mut self, index: usize, held: Held, now: Time) {
        let check = &mut self.checks[index];
        check.hold.as_mut().expect("the check holds").found = Some(held);
        self.set(index, held.verdict(&self.checks[index], now));
    }

    pub fn change_all(&mut self, change: impl FnMut(&mut Check)) {
        self.checks.iter_mut().for_each(change);
    }

    pub fn set_all(&mut self, mut verdict: impl FnMut(&Check) -> Verdict) {
        for check in &mut self.checks {
            (check.verdict, check.is_passing) = (verdict(check), false);
        }
    }

    /// The hits to count by [`Counting::StopWhenOver`] after a read. Groups that must not count get their verdicts instead.
    pub fn hits_after_read(&mut self) -> NextHits {
        let is_refused = self.is_refused(|_, check| check.would_be_over());
        let mut hits: NextHits = self.checks.iter().map(|check| Some(check.hits)).collect();
        let mut next = 0;
        while let Some(group) = self.group_at(next) {
            next = group.end;
            let checks = &mut self.checks[group.clone()];
            let any_over = checks.iter().any(Check::would_be_over);
            for (hits, check) in hits[group].iter_mut().zip(checks) {
                match check.member {
                    _ if check.hold.is_some() => *hits = None,
                    Member::Alone if is_refused && !any_over => *hits = Some(without_taking(check.hits)),
                    Member::First | Member::Next if (is_refused || any_over) && check.takes() => {
                        if check.would_be_over() {
                            check.reject();
                        }
                        *hits = None;
                    }
                    _ => {}
                }
            }
        }
        hits
    }

    /// The hits to count after a read of the groups for which `read` is true: all hits of a group that fits. The other
    /// groups get their verdicts instead.
    pub fn hits_that_fit(&mut self, read: impl Fn(usize) -> bool) -> NextHits {
        let mut plan: NextHits = self.checks.iter().map(|_| None).collect();
        let mut next = 0;
        while let Some(group) = self.group_at(next) {
            next = group.end;
            let checks = &mut self.checks[group.clone()];
            if !read(group.start) || !checks.iter().all(Check::takes) {
                continue;
            }
            if checks.iter().any(Check::would_be_over) {
                checks.iter_mut().filter(|check| check.would_be_over()).for_each(Check::reject);
            } else {
                plan[group].iter_mut().zip(checks).for_each(|(hits, check)| *hits = Some(check.hits));
            }
        }
        plan
    }

    /// The refunds of `planned` hits: all counted hits of a group that exceeded a limit after all, because of other
    /// requests since the read.
    pub fn refunds(&self, planned: &NextHits) -> NextHits {
        let mut plan: NextHits = self.checks.iter().map(|_| None).collect();
        for group in self.groups() {
            let (checks, planned) = (self.checks_at(group.clone()), &planned[group.clone()]);
            let is_group = |check: &Check| check.member != Member::Alone && check.takes();
            let was_counted = !planned.contains(&None);
            if !was_counted || !checks.iter().all(is_group) || !checks.iter().any(Check::is_over) {
                continue;
            }
            for (hits, check) in
                plan[group].iter_mut().zip(checks).filter(|(_, check)| check.verdict.consumed)
            {
                *hits = Some(Hits::Refund(check.hits.taken()));
                if let Some(lowered) = &self.lowered {
                    lowered.add(check.id, self.full_key(check));
                }
            }
        }
        plan
    }

    /// Sets the verdicts of refunded groups: rejected by the limits that were `over`.
    pub fn reject_refunded(&mut self, refunds: &NextHits, over: &[bool]) {
        for (index, check) in self.checks.iter_mut().enumerate() {
            if refunds[index].is_some() && over[index] {
                // Even if other requests have refunded hits since.
                check.reject();
            }
        }
    }
}

/// The hits of each check by its index; `None` for a skipped check.
pub type NextHits = SmallVec<[Option<Hits>; 8]>;

/// The hits that a networked store sends for each check.
#[derive(Clone, Copy)]
pub enum HitsToSend<'p> {
    Own,
    /// None: a read. Refunds stay.
    Read,
    Each(Hits),
    Next(&'p NextHits),
    /// Gives back what was counted.
    Back(&'p NextHits),
}

#[expect(clippy::indexing_slicing, reason = "the list has an item for each check")]
impl HitsToSend<'_> {
    /// The hits of the check at an index; `None` if it is skipped.
    pub fn hits(self, index: usize, check: &Check) -> Option<Hits> {
        match self {
            Self::Own => Some(check.hits),
            Self::Read => Some(without_taking(check.hits)),
            Self::Each(hits) => Some(hits),
            Self::Next(hits) | Self::Back(hits) => hits[index],
        }
    }
}

impl Check {
    /// True if the limit has no room for the request. It always has for a refund that holds nothing.
    #[inline]
    pub fn is_over(&self) -> bool {
        !self.verdict.admitted && (self.takes() || self.hold.is_some())
    }

    /// True for a refund: hits come back to the counter.
    pub fn gives_back(&self) -> bool {
        matches!(self.hits, Hits::Refund(1..))
    }

    /// True if the hits would exceed the limit, by the verdict of a read. Those of a refund never do.
    #[inline]
    pub fn would_be_over(&self) -> bool {
        if self.hold.is_some() {
            return self.is_over();
        }
        let after = fixed_window::count(self.verdict.count, self.hits);
        self.takes() && after > self.limit.algorithm.capacity()
    }

    /// The verdict of a fixed window with this count after the hits.
    #[inline]
    pub fn counted(&self, count: u64, now: Time) -> Verdict {
        self.limit.fixed().verdict(count, self.hits, now)
    }

    /// The verdict of a fixed window with this count, to which the hits were not added because they do not fit.
    pub fn not_counted(&self, count: u64, now: Time) -> Verdict {
        self.limit.fixed().rejected(count, self.hits, now)
    }

    /// What a check that holds found, once its verdict is set.
    #[inline]
    pub fn held(&self) -> Option<Held> {
        self.hold.as_ref()?.found
    }

    /// True for hits that no counter of the limit admits. An estimate is cut to the limit.
    pub fn never_fits(&self) -> bool {
        self.hold.is_none() && self.hits.taken() > self.limit.algorithm.capacity()
    }

    /// True unless the hits are a refund.
    #[inline]
    pub fn takes(&self) -> bool {
        matches!(self.hits, Hits::Take(_))
    }

    /// Converts the verdict of a read to that of rejected hits. For stores that cannot check the limits of a rule
    /// atomically.
    fn reject(&mut self) {
        let full = Verdict { remaining: 0, ..self.verdict };
        let retry_after = self.limit.algorithm.wait_after(full, self.hits.taken());
        self.verdict = Verdict { admitted: false, consumed: false, retry_after, ..self.verdict };
        self.is_passing = true;
    }
}

pub fn without_taking(hits: Hits) -> Hits {
    match hits {
        Hits::Take(_) => Hits::Take(0),
        Hits::Refund(_) => hits,
    }
}
