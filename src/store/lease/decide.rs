//! Decides the checks of a request by their leases, and sends to Redis what they do not decide.
//!
//! Checks count as they do without leases: each for itself, the limits of a rule all or nothing, and with
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` the whole request. What counts all or nothing is decided by leases alone or
//! by Redis alone, so that no hit has to be put back on another machine.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{
    Shared,
    rule::{Asked, Step},
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

/// A check's place in its lease.
#[derive(Clone, Copy)]
struct Place {
    key: Key,
    start: Time,
    /// Hits that the lease had.
    reserved: u64,
    /// Hits that Redis counts, and what was known when it was asked; `None` if the lease decided.
    asked: Option<(Hits, Asked)>,
}

/// The place of each check that has one.
type Places = SmallVec<[Option<Place>; 4]>;

/// The places of a request that waits for Redis. If it is given up, nobody will say what became of its hits.
struct Waiting<'a> {
    shared: &'a Shared,
    places: Places,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for place in self.places.iter().flatten() {
            if let Some((hits, _)) = place.asked {
                self.shared.leases.unanswered(place.key, place.start, hits.taken());
            }
        }
    }
}

/// What is decided of a request so far.
struct Draft {
    /// The hits of each check that Redis counts; `None` if a lease has decided.
    hits: NextHits,
    places: Places,
    works: Works,
}

/// What became of a check whose lease was asked.
#[derive(Clone, Copy)]
enum Taken {
    /// The lease has decided it. Contains the counter.
    All(Place, u64),
    /// Redis counts these hits, which the lease does not have.
    Part(Option<Place>, Hits),
}

impl Draft {
    /// Redis counts everything.
    fn new(batch: &Batch<'_>, works: Works) -> Self {
        let reads = batch.counting == Counting::ReadOnly;
        let hits = |check: &Check<'_>| Some(if reads { without_taking(check.hits) } else { check.hits });
        Self {
            hits: batch.checks().iter().map(hits).collect(),
            places: batch.checks().iter().map(|_| None).collect(),
            works,
        }
    }

    fn set_taken(&mut self, batch: &mut Batch<'_>, index: usize, taken: Option<Taken>) {
        match taken {
            None => {}
            Some(Taken::All(place, count)) => {
                set(&mut self.hits, index, None);
                set(&mut self.places, index, Some(place));
                batch.set(index, Outcome::Counted(count));
            }
            Some(Taken::Part(place, rest)) => {
                set(&mut self.hits, index, Some(rest));
                set(&mut self.places, index, place);
            }
        }
    }
}

impl Shared {
    /// Counts the checks of a request, of which some are leased.
    pub(super) fn apply<'a>(self: &'a Arc<Self>, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        if let (Counting::Always, [Check { member: Member::Alone, hits: Hits::Take(1..), .. }]) =
            (batch.counting, batch.checks())
        {
            // Most requests on cold keys.
            let mut works = Works::new();
            let taken = self.take_alone(batch, 0, now, &mut works);
            if taken.is_none() && works.is_empty() {
                return self.redis.apply(batch, now);
            }
            let mut draft = Draft::new(batch, works);
            draft.set_taken(batch, 0, taken);
            return self.ask(batch, now, draft);
        }
        let mut draft = Draft::new(batch, Works::new());
        let whole = 0..batch.checks().len();
        match batch.counting {
            Counting::Always => {
                let mut next = 0;
                while let Some(group) = batch.group_at(next) {
                    next = group.end;
                    match batch.checks_at(group.clone()) {
                        [Check { member: Member::Alone, hits: Hits::Take(1..), .. }] => {
                            let taken = self.take_alone(batch, group.start, now, &mut draft.works);
                            draft.set_taken(batch, group.start, taken);
                        }
                        [Check { member: Member::Alone, .. }] => {
                            self.look(batch, group.start, now, &mut draft);
                        }
                        _ => self.decide_together(batch, group, now, &mut draft),
                    }
                }
            }
            Counting::StopWhenOver => self.decide_together(batch, whole, now, &mut draft),
            Counting::ReadOnly => whole.for_each(|index| self.look(batch, index, now, &mut draft)),
        }
        self.ask(batch, now, draft)
    }

    /// Decides the checks of a request by their leases, if these can decide all.
    pub(super) fn apply_now(self: &Arc<Self>, batch: &mut Batch<'_>, now: Time) -> bool {
        if batch.counting != Counting::Always || batch.has_groups() {
            return false;
        }
        let mut hits: SmallVec<[Hit<'_>; 2]> = SmallVec::new();
        for check in batch.checks() {
            let Some(hit) = self.hit(batch, check, now).filter(|hit| hit.hits > 0) else { return false };
            hits.push(hit);
        }
        if hits.len() > 1 && !hits.iter().all(|hit| self.leases.can_take(*hit, now)) {
            return false;
        }
        let mut works = Works::new();
        let is_missing =
            |(index, hit): &(usize, &Hit<'_>)| !self.take_now(batch, *index, **hit, now, &mut works);
        let missing = hits.iter().enumerate().find(is_missing).map(|(index, _)| index);
        // Another thread has taken the last hits meanwhile.
        for (check, hit) in batch.checks_at(0..missing.unwrap_or_default()).iter().zip(&hits) {
            if !check.is_over() {
                self.leases.restore(hit.key, hit.start, hit.limit, hit.hits);
            }
        }
        if !works.is_empty() {
            self.send(works, now);
        }
        missing.is_none()
    }

    fn take_now(
        &self,
        batch: &mut Batch<'_>,
        index: usize,
        hit: Hit<'_>,
        now: Time,
        works: &mut Works,
    ) -> bool {
        let Some(check) = batch.checks().get(index) else { return false };
        let count = match self.leases.take_now(hit, now, works) {
            Some(Step::Admit(count)) => count,
            Some(Step::Refuse(count)) => over(check, count),
            Some(Step::Ask { .. }) | None => return false,
        };
        batch.set(index, Outcome::Counted(count));
        true
    }

    /// Has Redis count what leases did not decide, and updates the leases.
    fn ask<'a>(self: &'a Arc<Self>, batch: &'a mut Batch<'_>, now: Time, mut draft: Draft) -> Applied<'a> {
        if draft.hits.iter().all(Option::is_none) {
            self.send(draft.works, now);
            return Applied::Now(Ok(()));
        }
        if batch.counting != Counting::Always {
            // What counts or reads as one is counted or read as one, when the result is waited for.
            self.send(std::mem::take(&mut draft.works), now);
            self.remember(batch, now, &mut draft);
            let waiting = Waiting { shared: self, places: draft.places };
            return Applied::Later(Box::pin(async move {
                let result = self.redis.apply(batch, now).done().await;
                waiting.settle(batch, &draft.hits, &result, now);
                result
            }));
        }
        self.remember(batch, now, &mut draft);
        let Draft { hits, places, works } = draft;
        if works.is_empty() && places.iter().all(Option::is_none) {
            // No key is hot.
            return self.redis.apply(batch, now);
        }
        let waiting = Waiting { shared: self, places };
        let sent = self.redis.send(batch, now, &hits);
        // Behind the request's own hits, so that its outcome does not count with those that are leased now.
        self.send(works, now);
        match sent {
            Err(error) => {
                let result = Err(error);
                waiting.settle(batch, &hits, &result, now);
                Applied::Now(result)
            }
            Ok(mut sent) => Applied::Later(Box::pin(async move {
                let result = self.redis.outcomes(batch, now, &mut sent, &hits).await;
                waiting.settle(batch, &hits, &result, now);
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
    /// Takes the hits of a check that counts for itself from its lease. `None` if it has none: Redis counts all of them.
    fn take_alone(&self, batch: &mut Batch<'_>, index: usize, now: Time, works: &mut Works) -> Option<Taken> {
        let check = batch.checks().get(index)?;
        let hit = self.hit(batch, check, now)?;
        let step = match self.leases.take(hit, true, now, || self.counter(batch, check), works) {
            Found::Cold => return None,
            Found::Lease(step) => step,
        };
        let decided = |reserved| Place { key: hit.key, start: hit.start, reserved, asked: None };
        Some(match step {
            Step::Ask { reserved } => {
                let rest = Hits::Take(hit.hits.saturating_sub(reserved));
                Taken::Part(self.place(hit, reserved, rest), rest)
            }
            Step::Admit(count) => Taken::All(decided(hit.hits), count),
            Step::Refuse(count) => Taken::All(decided(0), over(check, count)),
        })
    }

    /// Takes the hits of all checks at these indexes from their leases, or of none.
    fn decide_together(&self, batch: &mut Batch<'_>, range: Range<usize>, now: Time, draft: &mut Draft) {
        let checks = batch.checks_at(range.clone());
        if !checks.iter().all(|check| check.limit.is_leased() && check.takes()) {
            return;
        }
        let said = checks.iter().map(|check| self.ask_lease(batch, check, now, &mut draft.works));
        let said: SmallVec<[Option<Said>; 4]> = said.collect();
        let is_decided = said.iter().all(Option::is_some);
        let is_over = said.iter().any(|said| matches!(said, Some(Said::Over(_))));
        for (index, said) in range.zip(said) {
            let (Some(check), Some(mut said)) = (batch.checks().get(index), said) else { continue };
            if let (Said::Admitted(count), true) = (said, is_over || !is_decided) {
                self.restore(batch, check, now);
                said = Said::Read(count.saturating_sub(check.hits.taken()));
            }
            let outcome = match (said, check.member) {
                (Said::Over(count), Member::Alone) => Outcome::Counted(over(check, count)),
                (Said::Over(count), _) => Outcome::NotCounted(count),
                (Said::Read(count) | Said::Admitted(count), _) => Outcome::Counted(count),
            };
            if is_decided {
                set(&mut draft.hits, index, None);
                batch.set(index, outcome);
            }
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

    /// Reads the counter of a check from its lease, if that knows it.
    fn look(&self, batch: &mut Batch<'_>, index: usize, now: Time, draft: &mut Draft) {
        let Some(check) = batch.checks().get(index).filter(|check| check.takes()) else { return };
        if let Some(count) = self.hit(batch, check, now).and_then(|hit| self.leases.look(hit, now)) {
            set(&mut draft.hits, index, None);
            batch.set(index, Outcome::Counted(count));
        }
    }

    /// Remembers the leases of checks that Redis counts.
    fn remember(&self, batch: &Batch<'_>, now: Time, draft: &mut Draft) {
        for (index, check) in batch.checks().iter().enumerate() {
            let (hits, place) = (draft.hits.get(index), draft.places.get(index));
            // A check that counts for itself has been placed, unless it only looks or gives back.
            let is_placed =
                batch.counting == Counting::Always && check.member == Member::Alone && check.hits.taken() > 0;
            if let (Some(Some(hits)), Some(None), false) = (hits, place, is_placed)
                && let Some(hit) = self.hit(batch, check, now)
            {
                let place = self.place(hit, 0, *hits);
                set(&mut draft.places, index, place);
            }
        }
    }

    /// The place of a check whose hits go to Redis, if it has a lease.
    fn place(&self, hit: Hit<'_>, reserved: u64, hits: Hits) -> Option<Place> {
        let Hit { key, start, limit, .. } = hit;
        let asked = self.leases.with(key, start, limit, |lease, _| lease.ask(hits.taken()))?;
        Some(Place { key, start, reserved, asked: Some((hits, asked)) })
    }

    /// The hits of a check on the key of its lease, if its limit is leased.
    fn hit<'b>(&self, batch: &Batch<'_>, check: &Check<'b>, now: Time) -> Option<Hit<'b>> {
        let limit = check.limit;
        if !limit.is_leased() {
            return None;
        }
        let start = limit.window().start(now);
        let key = self.leases.key(batch.key_of_all_windows(check, start)?, limit);
        Some(Hit { key, limit, start, hits: check.hits.taken() })
    }

    fn counter(&self, batch: &Batch<'_>, check: &Check<'_>) -> Counter {
        self.is_used.store(true, std::sync::atomic::Ordering::Relaxed);
        let (name, is_per_second) = self.redis.place(batch, check);
        Counter { name: name.into(), is_per_second, limit: check.limit.clone() }
    }
}

impl Waiting<'_> {
    /// Updates the leases with what Redis has counted, and corrects the outcomes by what the leases hold.
    fn settle(mut self, batch: &mut Batch<'_>, hits: &NextHits, result: &Result<(), StoreError>, now: Time) {
        let places = std::mem::take(&mut self.places);
        let any_over = batch.checks().iter().any(Check::is_over);
        for (index, place) in places.iter().enumerate() {
            let (Some(place), Some(check)) = (place, batch.checks().get(index)) else { continue };
            let leases = &self.shared.leases;
            if let Some((hits, _)) = place.asked {
                leases.unanswered(place.key, place.start, hits.taken());
            }
            if result.is_err() {
                leases.restore(place.key, place.start, check.limit, place.reserved);
                continue;
            }
            let Some(asked) = place.asked.filter(|_| hits.get(index).is_some_and(Option::is_some)) else {
                continue;
            };
            let is_refused = match (batch.counting, check.member) {
                (Counting::Always, Member::Alone) => false,
                (Counting::Always, _) => group_of(batch, index).iter().any(Check::is_over),
                (Counting::StopWhenOver, Member::Alone) => any_over && !check.is_over(),
                (Counting::StopWhenOver, _) => any_over,
                (Counting::ReadOnly, _) => true,
            };
            let is_alone = (batch.counting, check.member) == (Counting::Always, Member::Alone);
            let outcome = self.shared.learn(check, place, asked, is_refused, is_alone, now);
            batch.set(index, outcome);
        }
    }
}

impl Shared {
    /// Updates a lease with what Redis has counted. Returns the outcome without the hits that are left in the lease.
    fn learn(
        &self,
        check: &Check<'_>,
        place: &Place,
        (hits, asked): (Hits, Asked),
        is_refused: bool,
        is_alone: bool,
        now: Time,
    ) -> Outcome {
        let (Outcome::Counted(after) | Outcome::NotCounted(after)) = check.outcome else {
            return check.outcome;
        };
        let limit = u64::from(check.limit.requests_per_unit);
        let mut lost = 0;
        let count = self.leases.with(place.key, place.start, check.limit, |lease, terms| {
            match hits {
                Hits::Refund(hits) => lease.refunded(hits, after, terms, now),
                Hits::Take(hits) => {
                    let hits = if is_refused { 0 } else { hits };
                    lost = lease.counted(hits, after, asked, terms, now);
                }
            }
            // Hits that were asked for ahead of time took what was left of the limit: they are here.
            let is_saved = match hits {
                Hits::Take(hits) if is_alone && after > limit && lease.left() > 0 => lease.spend(hits),
                _ => false,
            };
            if after > limit && !is_saved { after } else { lease.count(terms).min(limit) }
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
