//! Holds in this process: one ledger beside the counters, which have what is spent.
//!
//! A lock for all: a request takes it twice, for a microsecond or two.

use std::sync::{Arc, Mutex};

use super::{MemoryStore, States as _};
use clock::Time;
use counters::{
    Batch, Close, Closed, Closing, CounterId, Counting, Held, HoldId, MostHolds, OpenHold,
    table::{Kept, Used},
};
use faults::mutex::lock;
use limit::{
    Algorithm, HoldRule, MAX_LIMIT, State,
    holds::{Bounds, Charge, HoldId as LedgerId, Ledger, Part},
};
use smallvec::{SmallVec, smallvec};

/// A hold with its places in the ledger, and one that is remembered, at most.
const BYTES_PER_HOLD: usize = 1024;

/// A sweep charges as many expired holds at once, and in all.
const SWEPT: usize = 1000;
const SWEPT_IN_ALL: usize = 20_000;

/// What the ledger says with each charge.
#[derive(Clone)]
struct Of {
    rule: Arc<HoldRule>,
    rule_id: u64,
    /// Of the counter in its table; `None` if it has no counter.
    mark: Option<(u16, u64)>,
}

pub(super) struct Holds(Mutex<Ledger<CounterId, Of>>);

impl Holds {
    pub(super) fn new(most: MostHolds) -> Self {
        let holds = most.in_all.min(most.bytes / BYTES_PER_HOLD);
        Self(Mutex::new(Ledger::new(Bounds { holds, holds_of_a_counter: most.of_counter })))
    }

    pub(super) fn open(&self) -> u64 {
        lock(&self.0).open() as u64
    }
}

impl MemoryStore {
    /// Counts the checks that do not hold, and then holds unless the request is refused, in one step: a request that another
    /// limit refuses takes nothing of a budget. What has expired is charged before it is refunded.
    pub(super) fn count_and_hold(&self, batch: &mut Batch, now: Time) {
        let parts = Self::parts(batch, now);
        let mut all_expired = Vec::new();
        let mut ledger = lock(&self.holds.0);
        let refunded = batch.refunded_budgets().into_iter().map(|index| {
            let key = batch.check(index).id;
            let expired = ledger.sweep_counter(key, now);
            all_expired.extend(self.charge_all(expired, now));
            (index, ledger.held(key))
        });
        let refunded: SmallVec<[(usize, u64); 1]> = refunded.collect();
        let spent = |key| self.spent(key, now);
        let charge = |charge: &Charge<CounterId, Of>| self.charge(charge, now);
        let mut is_refused = batch.is_known_refused();
        if batch.counting == Counting::StopWhenOver && !is_refused {
            let (seen, expired) = ledger.look(&parts, now, spent, charge);
            all_expired.extend(closed(expired));
            set_held(batch, seen, now, Batch::read_held);
            is_refused = batch.is_refused(|_, check| check.held().is_some_and(|held| !held.fits));
        }
        self.count_only(batch, is_refused, now);
        let refusal = batch.refusal(|_, check| check.hold.is_none() || check.is_decided());
        batch.is_hold_sent = batch.hold_id.is_some();
        let (seen, expired) = match &batch.hold_id {
            Some(id) => ledger.hold(LedgerId(id.random), parts, refusal, now, spent, charge),
            None => ledger.look(&parts, now, spent, charge),
        };
        drop(ledger);
        set_held(batch, seen, now, Batch::decide_held);
        all_expired.extend(closed(expired));
        batch.tell_expired(&all_expired);
        batch.decide_read();
        for (index, held) in refunded {
            batch.hold_beside(index, held);
        }
    }

    /// Charges what has expired of a counter, before it is reset.
    pub(super) fn sweep_counter(&self, key: CounterId, now: Time) -> Vec<Closed> {
        let mut ledger = lock(&self.holds.0);
        let expired = ledger.sweep_counter(key, now);
        self.charge_all(expired, now)
    }

    fn charge_all(&self, charges: Vec<Charge<CounterId, Of>>, now: Time) -> Vec<Closed> {
        for charge in &charges {
            self.charge(charge, now);
        }
        closed(charges)
    }

    fn parts(batch: &Batch, now: Time) -> Vec<Part<CounterId, Of>> {
        let parts = batch.holding().filter_map(|index| {
            let check = batch.check(index);
            let hold = check.hold.as_ref()?;
            let is_counted = !matches!(check.limit.algorithm, Algorithm::Concurrency(_));
            let limit = check.limit.requests_per_unit;
            let of = Of {
                rule: hold.rule.clone(),
                rule_id: hold.rule_id,
                mark: is_counted.then_some((check.rule_hash, limit)),
            };
            Some(Part {
                counter: check.id,
                of,
                limit,
                estimate: hold.estimate,
                fit: check.fit,
                unknown: hold.rule.unknown,
                ttl: hold.rule.ttl,
                is_charged: is_counted,
                end: if is_counted { check.limit.period().end(now) } else { Time::from_micros(u64::MAX) },
            })
        });
        parts.collect()
    }

    pub(super) fn close(&self, closing: &Closing, now: Time) {
        if !matches!(&closing.id.slots[..], [] | [0]) {
            return closing.account.answered(&[]);
        }
        let id = LedgerId(closing.id.random);
        let is_meant =
            |of: &Of| closing.currency.as_ref().is_none_or(|currency| of.rule.currency == *currency);
        let mut ledger = lock(&self.holds.0);
        let charges = match closing.close {
            Close::Settle(cost) => ledger.settle(id, is_meant, cost, now),
            Close::End => ledger.end(id, is_meant, now),
            Close::Cancel => ledger.cancel(id, now),
        };
        // Under the lock: a request that finds the room sees the charge.
        let closed = self.charge_all(charges, now);
        drop(ledger);
        closing.account.answered(&closed);
    }

    pub(super) fn list(&self, batch: &Batch, most: usize) -> Vec<OpenHold> {
        let ledger = lock(&self.holds.0);
        let of_check = |index: usize| {
            let counter = batch.check(index).id;
            let open: Vec<_> = ledger.of_counter(counter).take(most).collect();
            open.into_iter().map(move |(id, held, expires)| {
                let id = HoldId { random: id.0, slots: smallvec![0] };
                OpenHold { check: index, id, held, expires }
            })
        };
        batch.holding().flat_map(of_check).collect()
    }

    /// Charges expired holds, about once a second. Requests are let in between.
    pub(super) fn expire_holds(&self, now: Time, tell: impl Fn(&[Closed])) {
        for _ in 0..SWEPT_IN_ALL / SWEPT {
            let mut ledger = lock(&self.holds.0);
            let expired = ledger.sweep(now, SWEPT);
            let is_last = expired.is_empty();
            let closed = self.charge_all(expired, now);
            drop(ledger);
            tell(&closed);
            if is_last {
                break;
            }
        }
    }

    pub(super) fn forget_holds(&self, key: CounterId) {
        lock(&self.holds.0).forget_counter(key);
    }

    fn spent(&self, key: CounterId, now: Time) -> u64 {
        self.states.change(key, now, |before: Kept<u64>| (None, before.state))
    }

    /// Adds a charge to its counter, until its window ends.
    fn charge(&self, charge: &Charge<CounterId, Of>, now: Time) {
        let Some((mark, limit)) =
            charge.of.mark.filter(|_| now < charge.end && charge.before != charge.after)
        else {
            return;
        };
        let mut states = self;
        states.change((charge.counter, mark), now, |state| {
            let number =
                state.number.saturating_add(charge.after).saturating_sub(charge.before).min(MAX_LIMIT);
            (State { number, end: charge.end }, Used::of(number, limit), ())
        });
    }
}

fn set_held(batch: &mut Batch, seen: Vec<Held>, now: Time, set: fn(&mut Batch, usize, Held, Time)) {
    let indexes: SmallVec<[usize; 4]> = batch.holding().collect();
    for (index, held) in indexes.into_iter().zip(seen) {
        set(batch, index, held, now);
    }
}

fn closed(charges: impl IntoIterator<Item = Charge<CounterId, Of>>) -> Vec<Closed> {
    let closed = charges.into_iter().map(|charge| Closed {
        rule_id: charge.of.rule_id,
        how: charge.how,
        held: charge.held,
        before: charge.before,
        after: charge.after,
        counter: Some(charge.counter),
        full_key: None,
    });
    closed.collect()
}
