//! Decides the checks of a request by their leases, and sends to Redis what they do not decide.
//!
//! Checks count as they do without leases: each for itself, the limits of a rule all or nothing, and with
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` the whole request. What counts all or nothing is decided by leases alone or
//! by Redis alone, so that no hit has to be put back on another machine.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{
    Shared,
    rule::Step,
    table::{Counter, Found, Hit, Works},
};
use crate::{
    clock::Time,
    limiter::algorithm::Hits,
    store::{
        Applied, Batch, Check, Counting, Member, Outcome, Store as _, StoreError, batch::NextHits,
        table::Key, without_taking,
    },
};

/// What the lease of a check needs to hear once Redis has counted it.
#[derive(Clone, Copy)]
struct Asked {
    key: Key,
    start: Time,
    /// Hits that the lease had.
    reserved: u64,
    /// Hits that Redis counts.
    hits: Hits,
    /// This replica's part of the counter.
    own: u64,
}

/// A check's place in its lease, if it has one.
type Places = SmallVec<[Option<Asked>; 4]>;

/// How the checks of a request count together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Together {
    /// Each for itself.
    Alone,
    /// All or none.
    AllOrNothing,
}

impl Shared {
    /// Counts the checks of a request, of which some are leased.
    pub(super) fn apply<'a>(self: &'a Arc<Self>, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        let mut works = Works::new();
        let mut places: Places = batch.checks().iter().map(|_| None).collect();
        let mut hits: NextHits = batch.checks().iter().map(|check| Some(check.hits)).collect();
        let whole = 0..batch.checks().len();
        match batch.counting {
            Counting::Always => {
                let mut next = 0;
                while let Some(group) = batch.group_at(next) {
                    next = group.end;
                    self.decide(batch, group, Together::Alone, now, &mut hits, &mut places, &mut works);
                }
            }
            Counting::StopWhenOver => {
                self.decide(batch, whole, Together::AllOrNothing, now, &mut hits, &mut places, &mut works);
            }
            Counting::ReadOnly => {
                hits = batch.checks().iter().map(|check| Some(without_taking(check.hits))).collect();
                self.look(batch, whole, now, &mut hits, &mut places);
            }
        }
        let applied = if hits.iter().all(Option::is_none) {
            Applied::Now(Ok(()))
        } else {
            self.ask(batch, now, hits, places)
        };
        // Behind the request's own hits, so that its outcome is not told with those that are leased now.
        if !works.is_empty() {
            self.send(works, now);
        }
        applied
    }

    /// Has Redis count what leases did not decide, and tells the leases.
    fn ask<'a>(
        self: &'a Arc<Self>,
        batch: &'a mut Batch<'_>,
        now: Time,
        hits: NextHits,
        places: Places,
    ) -> Applied<'a> {
        if batch.counting != Counting::Always {
            // What counts or reads as one is counted or read as one.
            return Applied::Later(Box::pin(async move {
                let result = self.redis.apply(batch, now).done().await;
                self.settle(batch, &hits, &places, &result, now);
                result
            }));
        }
        match self.redis.send(batch, now, &hits) {
            Err(error) => {
                let result = Err(error);
                self.settle(batch, &hits, &places, &result, now);
                Applied::Now(result)
            }
            Ok(mut sent) => Applied::Later(Box::pin(async move {
                let result = self.redis.outcomes(batch, now, &mut sent, &hits).await;
                self.settle(batch, &hits, &places, &result, now);
                result
            })),
        }
    }
}

/// What a lease says of a check that counts with others.
#[derive(Clone, Copy)]
enum Said {
    /// The hits are within the limit, and taken. Contains the counter with them.
    Admitted(u64),
    /// Nothing was to be taken. Contains the counter.
    Read(u64),
    /// The counter is over its limit.
    Over(u64),
}

impl Shared {
    /// Decides the checks at these indexes, if leases can: their hits are then `None`.
    #[expect(clippy::too_many_arguments, reason = "what is decided, and three lists of the same length")]
    fn decide(
        &self,
        batch: &mut Batch<'_>,
        range: Range<usize>,
        together: Together,
        now: Time,
        hits: &mut NextHits,
        places: &mut Places,
        works: &mut Works,
    ) {
        match batch.checks_at(range.clone()) {
            [check] if together == Together::Alone && check.member == Member::Alone => {
                self.decide_alone(batch, range.start, now, hits, places, works);
            }
            checks if checks.iter().all(|check| check.limit.is_leased() && check.takes()) => {
                self.decide_together(batch, range, now, hits, places, works);
            }
            _ => self.remember(batch, range, now, places),
        }
    }

    fn decide_alone(
        &self,
        batch: &mut Batch<'_>,
        index: usize,
        now: Time,
        hits: &mut NextHits,
        places: &mut Places,
        works: &mut Works,
    ) {
        let Some(check) = batch.checks().get(index).filter(|check| check.limit.is_leased()) else { return };
        let Hits::Take(wanted @ 1..) = check.hits else {
            self.look(batch, index..index.saturating_add(1), now, hits, places);
            return;
        };
        let Some(hit) = self.hit(batch, check, now) else { return };
        let found = self.leases.take(hit, true, now, || self.counter(batch, check), works);
        let (outcome, reserved, own) = match found {
            Found::Cold => return,
            Found::Lease(Step::Admit(count)) => (Some(count), wanted, 0),
            Found::Lease(Step::Refuse(count)) => (Some(over(check, count)), 0, 0),
            Found::Lease(Step::Ask { reserved, own }) => (None, reserved, own),
        };
        let rest = Hits::Take(wanted.saturating_sub(reserved));
        let place = Asked { key: hit.key, start: hit.start, reserved, hits: rest, own };
        set(places, index, Some(place));
        set(hits, index, outcome.is_none().then_some(rest));
        if let Some(count) = outcome {
            batch.set(index, Outcome::Counted(count));
        }
    }

    /// Takes the hits of all checks at these indexes from their leases, or of none.
    fn decide_together(
        &self,
        batch: &mut Batch<'_>,
        range: Range<usize>,
        now: Time,
        hits: &mut NextHits,
        places: &mut Places,
        works: &mut Works,
    ) {
        let mut said: SmallVec<[Option<Said>; 4]> = SmallVec::new();
        for check in batch.checks_at(range.clone()) {
            said.push(self.ask_lease(batch, check, now, works));
        }
        let is_decided = said.iter().all(Option::is_some);
        let is_over = said.iter().any(|said| matches!(said, Some(Said::Over(_))));
        for (index, said) in range.clone().zip(&said) {
            let Some(check) = batch.checks().get(index) else { continue };
            let mut count = None;
            if let Some(Said::Admitted(with)) = said {
                if is_over || !is_decided {
                    self.restore(batch, check, now);
                    count = Some(with.saturating_sub(check.hits.taken()));
                } else {
                    count = Some(*with);
                }
            }
            if !is_decided {
                continue;
            }
            set(hits, index, None);
            let outcome = match (said, check.member) {
                (Some(Said::Over(count)), Member::Alone) => Outcome::Counted(over(check, *count)),
                (Some(Said::Over(count)), _) => Outcome::NotCounted(*count),
                (Some(Said::Read(count)), _) => Outcome::Counted(*count),
                _ => Outcome::Counted(count.unwrap_or_default()),
            };
            batch.set(index, outcome);
        }
        if !is_decided {
            self.remember(batch, range, now, places);
        }
    }

    /// What the lease of a check that counts with others says; `None` if Redis has to be asked.
    fn ask_lease(&self, batch: &Batch<'_>, check: &Check<'_>, now: Time, works: &mut Works) -> Option<Said> {
        let hit = self.hit(batch, check, now)?;
        if hit.hits == 0 {
            return self.leases.look(hit, now).map(Said::Read);
        }
        match self.leases.take(hit, false, now, || self.counter(batch, check), works) {
            Found::Lease(Step::Admit(count)) => Some(Said::Admitted(count)),
            Found::Lease(Step::Refuse(count)) => Some(Said::Over(count)),
            Found::Lease(Step::Ask { .. }) | Found::Cold => None,
        }
    }

    fn restore(&self, batch: &Batch<'_>, check: &Check<'_>, now: Time) {
        if let Some(Hit { key, start, limit, hits }) = self.hit(batch, check, now) {
            self.leases.restore(key, start, limit, hits);
        }
    }

    /// Reads the counters at these indexes from their leases, if these know them.
    fn look(
        &self,
        batch: &mut Batch<'_>,
        range: Range<usize>,
        now: Time,
        hits: &mut NextHits,
        places: &mut Places,
    ) {
        for index in range.clone() {
            let Some(check) = batch.checks().get(index).filter(|check| check.takes()) else { continue };
            if !check.limit.is_leased() {
                continue;
            }
            let count = self.hit(batch, check, now).and_then(|hit| self.leases.look(hit, now));
            if let Some(count) = count {
                set(hits, index, None);
                batch.set(index, Outcome::Counted(count));
            }
        }
        self.remember(batch, range, now, places);
    }

    /// Remembers the leases of checks that Redis counts.
    fn remember(&self, batch: &Batch<'_>, range: Range<usize>, now: Time, places: &mut Places) {
        for index in range {
            let Some(check) = batch.checks().get(index).filter(|check| check.limit.is_leased()) else {
                continue;
            };
            let Some(hit) = self.hit(batch, check, now) else { continue };
            let own = self.leases.with(hit.key, hit.start, hit.limit, |lease, _| lease.own());
            let place = |own| Asked { key: hit.key, start: hit.start, reserved: 0, hits: check.hits, own };
            set(places, index, own.map(place));
        }
    }

    fn hit<'b>(&self, batch: &Batch<'_>, check: &Check<'b>, now: Time) -> Option<Hit<'b>> {
        let limit = check.limit;
        let start = limit.window().start(now);
        let key = self.leases.key(batch.key_of_all_windows(check, start)?, limit);
        Some(Hit { key, limit, start, hits: check.hits.taken() })
    }

    fn counter(&self, batch: &Batch<'_>, check: &Check<'_>) -> Counter {
        self.is_used.store(true, std::sync::atomic::Ordering::Relaxed);
        let (name, is_per_second) = self.redis.place(batch, check);
        Counter { name: name.into(), is_per_second, limit: check.limit.clone() }
    }

    /// Tells the leases what Redis has counted, and corrects the outcomes by what the leases hold.
    fn settle(
        &self,
        batch: &mut Batch<'_>,
        hits: &NextHits,
        places: &Places,
        result: &Result<(), StoreError>,
        now: Time,
    ) {
        let any_over = batch.checks().iter().any(Check::is_over);
        for (index, asked) in places.iter().enumerate() {
            let (Some(asked), Some(check)) = (asked, batch.checks().get(index)) else { continue };
            if result.is_err() {
                self.leases.restore(asked.key, asked.start, check.limit, asked.reserved);
                continue;
            }
            if hits.get(index).copied().flatten().is_none() {
                continue;
            }
            let is_refused = match (batch.counting, check.member) {
                (Counting::Always, Member::Alone) => false,
                (Counting::Always, _) => group_of(batch, index).iter().any(Check::is_over),
                (Counting::StopWhenOver, Member::Alone) => any_over && !check.is_over(),
                (Counting::StopWhenOver, _) => any_over,
                (Counting::ReadOnly, _) => true,
            };
            let is_alone = (batch.counting, check.member) == (Counting::Always, Member::Alone);
            let outcome = self.learn(check, asked, is_refused, is_alone, now);
            batch.set(index, outcome);
        }
    }

    /// Tells a lease what Redis has counted. Returns the outcome without the hits that are left in the lease.
    fn learn(
        &self,
        check: &Check<'_>,
        asked: &Asked,
        is_refused: bool,
        is_alone: bool,
        now: Time,
    ) -> Outcome {
        let (Outcome::Counted(after) | Outcome::NotCounted(after)) = check.outcome else {
            return check.outcome;
        };
        let limit = u64::from(check.limit.requests_per_unit);
        let mut lost = 0;
        let count = self.leases.with(asked.key, asked.start, check.limit, |lease, terms| {
            match asked.hits {
                Hits::Refund(hits) => lease.refunded(hits, after, terms, now),
                Hits::Take(hits) => {
                    let hits = if is_refused { 0 } else { hits };
                    lost = lease.counted(hits, after, asked.own, terms, now);
                }
            }
            // Another request's renewal took the last hits: they are here.
            let is_saved = match asked.hits {
                Hits::Take(hits) if is_alone && after > limit && lease.left() > 0 => lease.spend(hits),
                _ => false,
            };
            let after = if is_saved { limit } else { after };
            if after > limit { after } else { lease.count(after, terms) }
        });
        self.leases.counts.expired.fetch_add(lost, std::sync::atomic::Ordering::Relaxed);
        let count = count.unwrap_or(after);
        match check.outcome {
            Outcome::NotCounted(_) => Outcome::NotCounted(count),
            _ => Outcome::Counted(count),
        }
    }
}

/// The checks of the group that contains this index.
fn group_of<'b, 'r>(batch: &'b Batch<'r>, index: usize) -> &'b [Check<'r>] {
    batch.groups().find(|group| group.contains(&index)).map_or(&[], |group| batch.checks_at(group))
}

/// The counter of hits that are over the limit, as if they had been counted.
fn over(check: &Check<'_>, count: u64) -> u64 {
    let limit = u64::from(check.limit.requests_per_unit);
    crate::limiter::algorithm::fixed_window::count(count.max(limit), check.hits)
}

fn set<T>(list: &mut [T], index: usize, value: T) {
    if let Some(place) = list.get_mut(index) {
        *place = value;
    }
}
