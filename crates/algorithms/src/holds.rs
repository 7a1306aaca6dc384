//! Holds: hits that are reserved when a request begins, and settled at their real cost when it ends.
//!
//! A [`Ledger`] has the holds of the counters of one place: it admits a request while what is spent and what is held
//! leave room, and says what to add to which counter when a hold is settled, ends or expires. What is spent is the
//! counter's own value, which the caller reads and writes; it holds the lock of both.
//!
//! A request holds on all of its counters or on none. The estimate is cut to the limit, so an unused budget admits
//! at least one request. A hold that ended or expired is remembered for one more time to live, so that a late cost
//! corrects what was charged for it.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

use crate::{Fit, Refusal};
use clock::Time;

/// The identity of a request's holds: chosen by the service, and not guessable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HoldId(pub u128);

/// What a hold costs that ended or expired without a cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unknown {
    #[default]
    Held,
    Hits(u64),
}

/// The part of a request that holds on one counter. `C` is what the caller wants back with each charge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<K, C> {
    pub counter: K,
    pub of: C,
    pub limit: u64,
    /// `None` reads.
    pub estimate: Option<u64>,
    pub fit: Fit,
    pub unknown: Unknown,
    pub ttl: Duration,
    /// The end of the counter's window: nothing is charged afterwards.
    pub end: Time,
}

/// What a part found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    pub spent: u64,
    /// With what the part holds itself.
    pub held: u64,
    pub fits: bool,
    /// It does not fit because the ledger or the counter has as many holds as it may have.
    pub is_full: bool,
    pub holds: bool,
    /// When the first hold of the counter expires.
    pub earliest: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Settled,
    /// The cost came after the hold had ended or expired.
    SettledLate,
    Ended,
    /// Nobody got its identity.
    Cancelled,
    Expired,
}

/// A change of a counter: what is to be added to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge<K, C> {
    pub counter: K,
    pub of: C,
    pub how: How,
    pub held: u64,
    /// Before this time the counter exists.
    pub end: Time,
    /// What was charged for the hold before.
    pub before: u64,
    /// What the hold costs by now: the counter changes by the difference.
    pub after: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Open ones, and as many that are remembered.
    pub holds: usize,
    pub holds_of_a_counter: usize,
}

/// A hold in the order of time: the request's, and the index of its part.
type Due = (Time, HoldId, usize);

#[derive(Clone, Debug)]
struct Hold<K, C> {
    index: usize,
    counter: K,
    of: C,
    held: u64,
    unknown: Unknown,
    ttl: Duration,
    end: Time,
    /// When it expires or, once it is charged, when it is forgotten.
    until: Time,
    charged: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Reserved {
    held: u64,
    /// The holds by the time at which they expire.
    expiring: BTreeSet<Due>,
}

#[derive(Clone, Debug)]
pub struct Ledger<K, C> {
    bounds: Bounds,
    holds: HashMap<HoldId, Vec<Hold<K, C>>>,
    counters: HashMap<K, Reserved>,
    /// Every hold at the time at which it expires or is forgotten.
    due: BTreeSet<Due>,
    open: usize,
}

impl<K: Copy + Eq + Hash, C: Clone> Ledger<K, C> {
    pub fn new(bounds: Bounds) -> Self {
        let (holds, counters) = (HashMap::new(), HashMap::new());
        Self { bounds, holds, counters, due: BTreeSet::new(), open: 0 }
    }

    /// What is held of a counter. Expired holds count until they are swept.
    pub fn held(&self, counter: K) -> u64 {
        self.counters.get(&counter).map_or(0, |counter| counter.held)
    }

    /// The number of holds that are neither settled nor ended nor swept.
    pub fn open(&self) -> usize {
        self.open
    }

    /// The open holds of a counter: the request, what it holds, and when it expires; those that expire first.
    pub fn of_counter(&self, counter: K) -> impl Iterator<Item = (HoldId, u64, Time)> {
        let due = self.counters.get(&counter).into_iter().flat_map(|counter| &counter.expiring);
        due.filter_map(|(until, id, index)| {
            let hold = self.holds.get(id)?.iter().find(|hold| hold.index == *index)?;
            Some((*id, hold.held, *until))
        })
    }

    /// What each part would find if it held. `spent` reads a counter.
    pub fn look(&self, parts: &[Part<K, C>], spent: impl Fn(K) -> u64) -> Vec<Seen> {
        let mut taken: Vec<(K, u64)> = Vec::new();
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            // Two descriptors of a request may have one counter.
            let here = taken.iter().filter(|(counter, _)| *counter == part.counter);
            let known = self.counters.get(&part.counter);
            let mut seen = Seen {
                spent: spent(part.counter),
                held: self.held(part.counter) + here.clone().map(|(_, held)| held).sum::<u64>(),
                earliest: known.and_then(|known| known.expiring.first()).map(|(at, ..)| *at),
                ..Seen::default()
            };
            let estimate = part.estimate.map(|estimate| estimate.min(part.limit));
            let of_counter = known.map_or(0, |known| known.expiring.len()) + here.count();
            seen.is_full = estimate.is_some()
                && (of_counter >= self.bounds.holds_of_a_counter
                    || self.open + taken.len() >= self.bounds.holds);
            let room = seen.spent + seen.held + estimate.unwrap_or(0) <= part.limit;
            seen.fits = room && !seen.is_full && (part.limit > 0 || estimate.is_none());
            taken.extend(estimate.filter(|_| part.holds(seen)).map(|estimate| (part.counter, estimate)));
            all.push(seen);
        }
        all
    }

    /// Holds the estimates of all parts, or nothing if the request is refused, by `refusal` or by a part that has no room.
    pub fn hold(
        &mut self,
        id: HoldId,
        parts: Vec<Part<K, C>>,
        mut refusal: Refusal,
        now: Time,
        spent: impl Fn(K) -> u64,
    ) -> Vec<Seen> {
        let mut all = self.look(&parts, spent);
        parts.iter().zip(&all).for_each(|(part, seen)| refusal.add(part.fit, !seen.fits));
        if refusal.is_refused() {
            return all;
        }
        for (part, seen) in parts.iter().zip(&mut all) {
            seen.holds = part.holds(*seen);
        }
        for (index, (part, seen)) in
            parts.into_iter().zip(&mut all).enumerate().filter(|(_, (_, seen))| seen.holds)
        {
            let Part { counter, of, limit, estimate, unknown, ttl, end, .. } = part;
            let (held, until) = (estimate.unwrap_or(0).min(limit), after(now, ttl));
            seen.held += held;
            let hold = Hold { index, counter, of, held, unknown, ttl, end, until, charged: None };
            let counter = self.counters.entry(counter).or_default();
            counter.held += held;
            counter.expiring.insert(hold.due(id));
            self.due.insert(hold.due(id));
            self.open += 1;
            self.holds.entry(id).or_default().push(hold);
        }
        all
    }

    /// Settles the holds of a request that are meant at their cost. The first settle of each wins.
    pub fn settle(&mut self, id: HoldId, is_meant: impl Fn(&C) -> bool, cost: u64) -> Vec<Charge<K, C>> {
        let Some(holds) = self.holds.get_mut(&id) else { return Vec::new() };
        let settled: Vec<_> = holds.extract_if(.., |hold| is_meant(&hold.of)).collect();
        if holds.is_empty() {
            self.holds.remove(&id);
        }
        let charge = |hold: Hold<K, C>| {
            let how = if hold.charged.is_some() { How::SettledLate } else { How::Settled };
            self.due.remove(&hold.due(id));
            self.release(id, &hold);
            hold.charge(how, cost)
        };
        settled.into_iter().map(charge).collect()
    }

    /// Ends the holds of a request that are meant and have no cost.
    pub fn end(&mut self, id: HoldId, is_meant: impl Fn(&C) -> bool, now: Time) -> Vec<Charge<K, C>> {
        self.close(id, How::Ended, now, |hold| is_meant(&hold.of))
    }

    /// Ends the holds of a request whose answer nobody got: they cost nothing.
    pub fn cancel(&mut self, id: HoldId) -> Vec<Charge<K, C>> {
        let mut charges = self.settle(id, |_| true, 0);
        let open = charges.iter_mut().filter(|charge| charge.how == How::Settled);
        open.for_each(|charge| charge.how = How::Cancelled);
        charges
    }

    pub fn forget_counter(&mut self, counter: K) {
        let due: Vec<Due> =
            self.counters.get(&counter).into_iter().flat_map(|known| &known.expiring).copied().collect();
        for (_, id, index) in due {
            self.settle_one(id, index);
        }
    }

    fn settle_one(&mut self, id: HoldId, index: usize) {
        let Some(holds) = self.holds.get_mut(&id) else { return };
        let gone: Vec<_> = holds.extract_if(.., |hold| hold.index == index).collect();
        if holds.is_empty() {
            self.holds.remove(&id);
        }
        for hold in gone {
            self.due.remove(&hold.due(id));
            self.release(id, &hold);
        }
    }

    /// Charges or forgets at most `most` holds that expired, or were charged long enough ago.
    pub fn sweep(&mut self, now: Time, most: usize) -> Vec<Charge<K, C>> {
        let mut charges = Vec::new();
        for _ in 0..most {
            let Some((until, id, index)) = self.due.first().copied().filter(|(until, ..)| *until <= now)
            else {
                break;
            };
            let expired = self.close(id, How::Expired, now, |hold| hold.index == index);
            if expired.is_empty() {
                self.due.remove(&(until, id, index));
                self.forget(id, index);
            }
            charges.extend(expired);
        }
        charges
    }

    fn forget(&mut self, id: HoldId, index: usize) {
        let Some(holds) = self.holds.get_mut(&id) else { return };
        holds.retain(|hold| hold.index != index);
        if holds.is_empty() {
            self.holds.remove(&id);
        }
    }

    /// Charges what `unknown` says for the open holds of a request that `is_meant`.
    fn close(
        &mut self,
        id: HoldId,
        how: How,
        now: Time,
        is_meant: impl Fn(&Hold<K, C>) -> bool,
    ) -> Vec<Charge<K, C>> {
        let Some(mut holds) = self.holds.remove(&id) else { return Vec::new() };
        let mut charges = Vec::new();
        for hold in holds.iter_mut().filter(|hold| hold.charged.is_none() && is_meant(hold)) {
            self.due.remove(&hold.due(id));
            self.release(id, hold);
            let cost = match hold.unknown {
                Unknown::Held => hold.held,
                Unknown::Hits(hits) => hits,
            };
            charges.push(hold.charge(how, cost));
            // Remembered from the end, or from the expiry, whenever it is swept.
            let from = if how == How::Expired { hold.until } else { now };
            hold.until = after(from, hold.ttl);
            hold.charged = Some(cost);
            self.due.insert(hold.due(id));
        }
        let remembered = self.due.len() - self.open;
        holds.retain(|hold| {
            let stays = hold.charged.is_none() || remembered <= self.bounds.holds;
            stays || !self.due.remove(&hold.due(id))
        });
        if holds.is_empty() {
            return charges;
        }
        self.holds.insert(id, holds);
        charges
    }

    /// An open hold no longer reserves anything.
    fn release(&mut self, id: HoldId, hold: &Hold<K, C>) {
        if hold.charged.is_some() {
            return;
        }
        self.open -= 1;
        if let Some(counter) = self.counters.get_mut(&hold.counter) {
            counter.held -= hold.held;
            counter.expiring.remove(&hold.due(id));
            if counter.expiring.is_empty() {
                self.counters.remove(&hold.counter);
            }
        }
    }
}

impl<K, C> Part<K, C> {
    /// True if it holds, unless the request is refused.
    fn holds(&self, Seen { fits, is_full, .. }: Seen) -> bool {
        self.estimate.is_some() && (fits || self.fit == Fit::Always && !is_full)
    }
}

impl<K: Copy, C: Clone> Hold<K, C> {
    fn due(&self, id: HoldId) -> Due {
        (self.until, id, self.index)
    }

    fn charge(&self, how: How, after: u64) -> Charge<K, C> {
        let before = self.charged.unwrap_or(0);
        let of = self.of.clone();
        Charge { counter: self.counter, of, how, held: self.held, end: self.end, before, after }
    }
}

/// Where the clock ends, a hold lasts until then.
fn after(now: Time, ttl: Duration) -> Time {
    let ttl = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
    Time::from_micros(now.micros().saturating_add(ttl))
}

#[cfg(test)]
mod tests;
