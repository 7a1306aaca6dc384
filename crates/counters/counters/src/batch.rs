//! The batch of one request: its checks with their keys.
//!
//! The limiter fills a batch, and nobody changes a check afterwards but by what is found of it: `finding` has these steps.

use std::{ops::Range, time::Instant};

use smallvec::SmallVec;

use clock::Time;
use limit::{Algorithm, Fit, Hits, Rate, Refusal, Share, Verdict, fixed_window};

use crate::finding::{Decider, Finding};
use crate::holds::{Closed, Held, Hold, HoldAccount, HoldId};
use crate::id::CounterId;
use crate::lowered::Lowered;

#[derive(Default)]
pub struct Batch {
    /// The full keys of all checks, concatenated: one allocation per request.
    keys: String,
    pub(crate) checks: SmallVec<[Check; 1]>,
    has_groups: bool,
    /// A check is of a limit that holds.
    may_hold: bool,
    /// What is counted when the request is refused.
    pub counting: Counting,
    /// Candidates without checks: quotas that cannot be exhausted.
    pub free: Refusal,
    /// Who decides what is counted.
    pub decider: Decider,
    /// When the caller stops waiting, if known.
    pub until: Option<Instant>,
    /// The identity of the request's holds; `None` if it only reads.
    pub hold_id: Option<HoldId>,
    /// The store may hold, whether it answers or not.
    pub is_hold_sent: bool,
    /// Set once the limits are divided by it. A batch may be counted several times, and must not be divided again.
    share: Option<Share>,
    /// Invalidates caches, if the batch gives hits back.
    pub lowered: Option<Lowered>,
    /// Hears of holds that are found expired, also those of other requests.
    pub hold_account: Option<HoldAccount>,
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
    /// None, whether it is refused or not. Hits that would not fit are over their limit.
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
    pub finding: Finding,
    /// Of what was counted or, as long as it is only read, of the counter without these hits.
    pub verdict: Verdict,
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
        self.may_hold |= limit.holds;
        self.checks.push(Check {
            counter,
            id,
            full_key: key.start..self.keys.len(),
            key_end: key.end,
            limit: *limit,
            rule_hash,
            hits,
            member: Member::Alone,
            fit: Fit::Must,
            hold: None,
            finding: Finding::ToCount(hits),
            verdict: Verdict::default(),
        });
        self.checks.len() - 1
    }

    #[inline]
    pub fn set_fit(&mut self, index: usize, fit: Fit) {
        self.checks[index].fit = fit;
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

    /// True if a check is of a limit that holds, also for one that refunds, or that is decided without its store.
    pub fn may_hold(&self) -> bool {
        self.may_hold
    }

    /// Tells the account of holds that the store has found expired.
    pub fn tell_expired(&self, closed: &[Closed]) {
        if let Some(account) = &self.hold_account {
            account.answered(closed);
        }
    }

    /// True if an open check is of a limit that holds, also for one that refunds.
    pub fn has_open_holds(&self) -> bool {
        self.may_hold && self.checks.iter().any(|check| check.limit.holds && !check.is_decided())
    }

    /// The checks that refund what holds were charged: what has expired must be charged before.
    pub fn refunded_budgets(&self) -> SmallVec<[usize; 1]> {
        let refunds = |check: &Check| {
            check.limit.holds && !check.takes() && check.hold.is_none() && !check.is_decided()
        };
        let checks = self.checks.iter().enumerate();
        checks.filter(|(_, check)| refunds(check)).map(|(index, _)| index).collect()
    }

    /// True if the request is refused, with the open checks for which `is_over` is true over their limits.
    #[inline]
    pub fn is_refused(&self, is_over: impl Fn(usize, &Check) -> bool) -> bool {
        let mut refusal = self.free.clone();
        for (index, check) in self.checks.iter().enumerate() {
            refusal.add(check.fit, if check.is_decided() { check.is_over() } else { is_over(index, check) });
        }
        refusal.is_refused()
    }

    /// True if the request is refused whatever its open checks find.
    #[inline]
    pub fn is_known_refused(&self) -> bool {
        let is_over = |check: &Check| check.is_decided() && check.is_over();
        self.checks.iter().any(is_over) && self.is_refused(|_, _| false)
    }

    /// What is known of the request by the verdicts of the checks for which `is_known` is true.
    pub fn refusal(&self, is_known: impl Fn(usize, &Check) -> bool) -> Refusal {
        let mut refusal = self.free.clone();
        let known = self.checks.iter().enumerate().filter(|(index, check)| is_known(*index, check));
        known.for_each(|(_, check)| refusal.add(check.fit, check.is_over()));
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

    /// The open checks that hold.
    #[inline]
    pub fn holding(&self) -> impl Iterator<Item = usize> {
        let checks = self.checks.iter().enumerate();
        checks.filter(|(_, check)| check.hold.is_some() && !check.is_decided()).map(|(index, _)| index)
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

    /// The indexes of the group or single check that a check belongs to.
    pub fn group_of(&self, index: usize) -> Range<usize> {
        let before = self.checks[..=index].iter().rev().take_while(|check| check.member == Member::Next);
        let first = index - before.count();
        self.group_at(first).expect("a group begins at its first check")
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

    /// Divides the limits of open checks by this replica's share, once. `divided` is called for each.
    pub fn divide(&mut self, share: Share, mut divided: impl FnMut(&Check, &Check)) {
        if self.share.replace(share).is_some() {
            return;
        }
        for check in self.checks.iter_mut().filter(|check| !check.is_decided()) {
            let whole = check.clone();
            check.limit = share.of_rate(&whole.limit);
            if let Algorithm::Bucket(_) = check.limit.algorithm {
                // Its state depends on its rate, so that each share has its own.
                check.id = check.id.mixed_with(share.to_bits());
            }
            divided(&whole, check);
        }
    }
}

impl Check {
    /// True if the limit has no room for the request. It always has for a refund.
    #[inline]
    pub fn is_over(&self) -> bool {
        !self.verdict.admitted && self.takes()
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
}

pub fn without_taking(hits: Hits) -> Hits {
    match hits {
        Hits::Take(_) => Hits::Take(0),
        Hits::Refund(_) => hits,
    }
}
