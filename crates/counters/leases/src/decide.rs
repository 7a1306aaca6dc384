//! Decides the checks of a request by their leases, and sends the others to Redis.
//!
//! Checks count as they do without leases: each for itself, the limits of a rule all or nothing, and with
//! `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` the whole request. What counts all or nothing is decided by leases alone or
//! by Redis alone, so that no hit has to be undone on another machine.

use std::{
    future::ready,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use smallvec::SmallVec;

use super::{
    Shared,
    table::{Commands, Hit, LeaseKey},
};
use clock::Time;
use counters::{Applied, Batch, Check, Count as _, Counting, Decider, Member, StoreFuture};
use limit::{
    Hits, Verdict, fixed_window,
    lease::{LeaseStep, SentHits, Snapshot},
};
use redis_store::LeasedCounter;

#[derive(Clone, Copy)]
struct LeaseUse {
    key: LeaseKey,
    start: Time,
    reserved: u64,
    /// Hits that Redis counts, and what was known when they were sent; `None` if the lease decided.
    sent: Option<(Hits, Snapshot)>,
}

type LeaseUses = SmallVec<[Option<LeaseUse>; 4]>;

/// The leases of a request in flight. If its future is dropped, they are notified that no reply will come.
struct InFlight<'a> {
    shared: &'a Shared,
    uses: LeaseUses,
    counting: Counting,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        for lease in self.uses.iter().flatten() {
            if let Some((_, snapshot)) = lease.sent {
                self.shared.leases.with(lease.key, lease.start, |lease| lease.complete(snapshot));
            }
        }
    }
}

/// How the checks of a request use leases so far.
struct Draft {
    uses: LeaseUses,
    commands: Commands,
    counting: Counting,
}

impl Shared {
    /// Counts the checks of a request, of which some are leased.
    pub(super) fn apply<'a>(self: &'a Arc<Self>, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        let counting = batch.counting_if(batch.is_known_refused());
        let all = 0..batch.checks().len();
        let mut draft =
            Draft { uses: all.clone().map(|_| None).collect(), commands: Commands::new(), counting };
        match counting {
            Counting::Always => {
                let mut next = 0;
                while let Some(group) = batch.group_at(next) {
                    next = group.end;
                    match batch.checks_at(group.clone()) {
                        [Check { member: Member::Alone, hits: Hits::Take(1..), .. }] => {
                            self.take_alone(batch, group.start, now, &mut draft);
                        }
                        [Check { member: Member::Alone, .. }] => self.read(batch, group.start, now),
                        _ => self.decide_together(batch, group, now, &mut draft),
                    }
                }
            }
            Counting::StopWhenOver => self.decide_together(batch, all, now, &mut draft),
            Counting::ReadOnly => {
                batch.only_read();
                all.for_each(|index| self.read(batch, index, now));
            }
        }
        self.count_rest(batch, now, draft)
    }

    /// Decides the checks of a request by their leases, if these can decide all.
    pub(super) fn try_apply(self: &Arc<Self>, batch: &mut Batch, now: Time) -> Applied {
        if self.leases.len() == 0 || batch.counting != Counting::Always || batch.has_groups() {
            return Applied::Wait;
        }
        let mut hits: SmallVec<[(usize, Hit); 2]> = SmallVec::new();
        for (index, check) in batch.checks().iter().enumerate().filter(|(_, check)| !check.is_decided()) {
            let Some(hit) = Self::hit(check, now).filter(|hit| hit.hits > 0) else {
                return Applied::Wait;
            };
            hits.push((index, hit));
        }
        if hits.len() > 1 && !hits.iter().all(|(_, hit)| self.leases.decides(*hit, now)) {
            return Applied::Wait;
        }
        let mut commands = Commands::new();
        let mut applied = Applied::Done;
        for (at, (index, hit)) in hits.iter().enumerate() {
            let count = match self.leases.take_now(*hit, now, &mut commands) {
                Some(LeaseStep::Admit(count)) => count,
                Some(LeaseStep::Reject(count)) => count_over(hit.limit.limit, hit.hits, count),
                Some(LeaseStep::Query { .. }) | None => {
                    // No lock is held across the leases of a request: this thread found room in each (`decides`), and
                    // then another thread took the last hits of one. So what was taken goes back, and Redis decides.
                    for (index, hit) in &hits[..at] {
                        let check = batch.check(*index);
                        if !check.is_over() {
                            self.leases.with(hit.key, hit.start, |lease| lease.restore(hit.hits));
                        }
                        batch.ask(*index, check.hits);
                    }
                    applied = Applied::Wait;
                    break;
                }
            };
            batch.decide(*index, Decider::Transient, batch.check(*index).counted(count, now));
        }
        if !commands.is_empty() {
            self.send(commands, now);
        }
        applied
    }

    /// Sends the checks to Redis that leases did not decide, and updates the leases by the reply.
    fn count_rest<'a>(
        self: &'a Arc<Self>,
        batch: &'a mut Batch,
        now: Time,
        mut draft: Draft,
    ) -> StoreFuture<'a> {
        if batch.is_decided() {
            self.send(draft.commands, now);
            return Box::pin(ready(Ok(())));
        }
        self.add_uses(batch, now, &mut draft);
        let Draft { uses, commands, counting } = draft;
        if commands.is_empty() && uses.iter().all(Option::is_none) {
            // No key is hot.
            return self.redis.apply(batch, now);
        }
        let in_flight = InFlight { shared: self, uses, counting };
        if counting != Counting::Always {
            // Redis counts or reads the whole request, once the future is polled.
            self.send(commands, now);
            return Box::pin(async move {
                let result = self.redis.apply(batch, now).await;
                in_flight.complete(batch, now);
                result
            });
        }
        let mut sent = self.redis.send(batch, counting, now);
        // The reply to the request's hits is the counter at that moment. Were the renewal sent before them, the reply would
        // include the hits leased by it, and the request could be taken for one over the limit. One connection keeps the
        // order, so the renewal is sent after them.
        self.send(commands, now);
        Box::pin(async move {
            let result = self.redis.receive(batch, &mut sent).await;
            in_flight.complete(batch, now);
            result
        })
    }

    /// Takes the hits of a check that counts for itself from its lease. Without a lease, Redis counts all of them.
    fn take_alone(&self, batch: &mut Batch, index: usize, now: Time, draft: &mut Draft) {
        let check = batch.check(index);
        let Some(hit) = Self::hit(check, now).filter(|_| !check.is_decided()) else { return };
        let counter = || self.counter(batch, check);
        let Some(step) = self.leases.take(hit, true, now, counter, &mut draft.commands) else { return };
        let decided = |reserved| Some(LeaseUse { key: hit.key, start: hit.start, reserved, sent: None });
        let count = match step {
            LeaseStep::Query { reserved } => {
                let rest = Hits::Take(hit.hits - reserved);
                draft.uses[index] = self.lease_use(hit, reserved, rest, SentHits::Always(rest.taken()));
                return batch.ask(index, rest);
            }
            LeaseStep::Admit(count) => {
                draft.uses[index] = decided(hit.hits);
                count
            }
            LeaseStep::Reject(count) => {
                draft.uses[index] = decided(0);
                count_over(hit.limit.limit, hit.hits, count)
            }
        };
        batch.decide(index, Decider::Transient, batch.check(index).counted(count, now));
    }

    /// Takes the hits of all checks at these indexes from their leases, or of none.
    fn decide_together(&self, batch: &mut Batch, range: Range<usize>, now: Time, draft: &mut Draft) {
        let open: SmallVec<[usize; 4]> = range.filter(|index| !batch.check(*index).is_decided()).collect();
        let mut checks = open.iter().map(|index| batch.check(*index));
        if !checks.all(|check| check.limit.is_leased() && check.takes()) {
            return;
        }
        let take = |index: &usize| self.take_together(batch, batch.check(*index), now, &mut draft.commands);
        let steps: SmallVec<[Option<LeaseStep>; 4]> = open.iter().map(take).collect();
        let is_decided = steps.iter().all(Option::is_some);
        let rejects = |index: usize| {
            let step = open.iter().position(|at| *at == index).and_then(|at| steps[at]);
            matches!(step, Some(LeaseStep::Reject(_)))
        };
        let is_refused =
            draft.counting == Counting::StopWhenOver && batch.is_refused(|index, _| rejects(index));
        for (index, step) in open.iter().copied().zip(steps.iter().copied()) {
            let check = batch.check(index);
            let hits = check.hits.taken();
            // Hits that a limit of the rule rejects are counted by none.
            let is_barred = is_refused || batch.group_of(index).any(rejects);
            let verdict = match (step, check.member) {
                (Some(LeaseStep::Admit(count)), _) if is_decided && !is_barred => check.counted(count, now),
                (Some(LeaseStep::Admit(count)), _) => {
                    if let Some(hit) = Self::hit(check, now).filter(|hit| hit.hits > 0) {
                        self.leases.with(hit.key, hit.start, |lease| lease.restore(hit.hits));
                    }
                    check.counted(count.saturating_sub(hits), now)
                }
                (Some(LeaseStep::Reject(count)), Member::Alone) => {
                    check.counted(count_over(check.limit.requests_per_unit, hits, count), now)
                }
                (Some(LeaseStep::Reject(count)), _) => check.not_counted(count, now),
                (Some(LeaseStep::Query { .. }) | None, _) => continue,
            };
            if is_decided {
                batch.decide(index, Decider::Transient, verdict);
            }
        }
    }

    /// Takes the hits of a check that counts with others, or reads its counter. `None` if Redis has to count them.
    fn take_together(
        &self,
        batch: &Batch,
        check: &Check,
        now: Time,
        commands: &mut Commands,
    ) -> Option<LeaseStep> {
        let hit = Self::hit(check, now)?;
        if hit.hits == 0 {
            return self.leases.read(hit, now).map(LeaseStep::Admit);
        }
        let step = self.leases.take(hit, false, now, || self.counter(batch, check), commands);
        step.filter(|step| !matches!(step, LeaseStep::Query { .. }))
    }

    /// Reads the counter of a check from its lease, if the lease knows it.
    fn read(&self, batch: &mut Batch, index: usize, now: Time) {
        let check = batch.check(index);
        if !check.takes() || check.is_decided() {
            return;
        }
        if let Some(count) = Self::hit(check, now).and_then(|hit| self.leases.read(hit, now)) {
            batch.decide(index, Decider::Transient, check.counted(count, now));
            batch.judge(index);
        }
    }

    /// Adds the leases of checks that Redis counts.
    fn add_uses(&self, batch: &Batch, now: Time, draft: &mut Draft) {
        for (index, check) in batch.checks().iter().enumerate() {
            // `take_alone` has added the others.
            let is_added =
                draft.counting == Counting::Always && check.member == Member::Alone && check.hits.taken() > 0;
            if let (Some(hits), None, false) = (check.asked(), draft.uses[index], is_added)
                && let Some(hit) = Self::hit(check, now)
            {
                // With others, they are counted together or not at all.
                let sent = match hits {
                    Hits::Take(hits) => SentHits::IfWithin(hits),
                    Hits::Refund(hits) => SentHits::Refund(hits),
                };
                draft.uses[index] = self.lease_use(hit, 0, hits, sent);
            }
        }
    }

    /// The lease of a check whose hits are sent to Redis, if it has one.
    fn lease_use(&self, hit: Hit, reserved: u64, hits: Hits, sent: SentHits) -> Option<LeaseUse> {
        let snapshot = self.leases.with(hit.key, hit.start, |lease| lease.send(sent))?;
        Some(LeaseUse { key: hit.key, start: hit.start, reserved, sent: Some((hits, snapshot)) })
    }

    /// The hits of a check on the key of its lease, if its limit is leased.
    pub(super) fn hit(check: &Check, now: Time) -> Option<Hit> {
        if !check.limit.is_leased() {
            return None;
        }
        let limit = check.limit.fixed();
        let start = limit.period.start(now);
        let key = LeaseKey { counter: check.counter, limit: limit.limit };
        Some(Hit { key, limit, start, hits: check.hits.taken() })
    }

    fn counter(&self, batch: &Batch, check: &Check) -> LeasedCounter {
        self.is_used.store(true, Relaxed);
        self.leased.notify_one();
        self.redis.leased_counter(batch, check)
    }

    /// Updates a lease by the count in Redis. Returns the verdict without the hits that are left in the lease.
    fn update(
        &self,
        check: &Check,
        lease: &LeaseUse,
        (hits, snapshot): (Hits, Snapshot),
        is_rejected: bool,
        is_alone: bool,
        now: Time,
    ) -> Verdict {
        let after = check.verdict.count;
        let limit = check.limit.requests_per_unit;
        let terms = self.leases.terms(check.limit.fixed());
        let count = self.leases.with(lease.key, lease.start, |lease| {
            if lease.is_outdated(snapshot) {
                return after;
            }
            let mut is_saved = false;
            match hits {
                Hits::Refund(hits) => lease.refunded(hits, after, &terms, now),
                Hits::Take(hits) => {
                    let counted = if is_rejected { 0 } else { hits };
                    let lost = lease.counted(counted, after, snapshot, &terms, now);
                    self.leases.counts.expired.fetch_add(lost, Relaxed);
                    // A renewal in the meantime took what was left of the limit: those hits are here.
                    is_saved = is_alone && after > limit && lease.left > 0 && lease.spend(hits);
                }
            }
            if after > limit && !is_saved { after } else { lease.count(&terms).min(limit) }
        });
        let count = count.unwrap_or(after);
        let was_counted = check.verdict.admitted || check.verdict.consumed;
        if was_counted { check.counted(count, now) } else { check.not_counted(count, now) }
    }
}

impl InFlight<'_> {
    /// Updates the leases by the counts in Redis, and corrects the outcomes by the hits that the leases hold.
    fn complete(mut self, batch: &mut Batch, now: Time) {
        let uses = std::mem::take(&mut self.uses);
        let counting = self.counting;
        let stops = counting == Counting::StopWhenOver && batch.is_refused(|_, _| false);
        for (index, lease) in uses.iter().enumerate() {
            let Some(used) = lease else { continue };
            let check = batch.check(index);
            self.shared.leases.with(used.key, used.start, |lease| {
                if let Some((_, snapshot)) = used.sent {
                    lease.complete(snapshot);
                }
                let is_outdated = used.sent.is_some_and(|(_, snapshot)| lease.is_outdated(snapshot));
                // Hits of a counter that was reset in the meantime no longer exist.
                if !check.is_decided() && !is_outdated {
                    lease.restore(used.reserved);
                }
            });
            let Some(sent) = used.sent.filter(|_| check.is_decided()) else { continue };
            let is_alone = (counting, check.member) == (Counting::Always, Member::Alone);
            let is_rejected = match check.member {
                _ if counting == Counting::ReadOnly => true,
                Member::Alone => stops && !check.is_over(),
                Member::First | Member::Next => {
                    stops || batch.checks_at(batch.group_of(index)).iter().any(Check::is_over)
                }
            };
            let verdict = self.shared.update(check, used, sent, is_rejected, is_alone, now);
            batch.correct(index, verdict);
        }
    }
}

/// The count of a counter that is over its limit, as if these hits had been counted too.
fn count_over(limit: u64, hits: u64, count: u64) -> u64 {
    fixed_window::count(count.max(limit), Hits::Take(hits))
}
