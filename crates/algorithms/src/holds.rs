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

/// The part of a request that holds on one counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part<K, C> {
    pub counter: K,
    /// The currency that settles it: `in` of the rule.
    pub currency: C,
    pub limit: u64,
    pub estimate: u64,
    pub unknown: Unknown,
    pub ttl: Duration,
    /// The end of the counter's window: nothing is charged afterwards.
    pub end: Time,
}

/// Why a request holds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The part at this index does not fit; the earliest time at which a hold of its counter expires.
    Over { index: usize, earliest: Option<Time> },
    /// The ledger, or the counter of the part at this index, has as many holds as it may have.
    Full { index: usize },
}

/// How a hold was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Settled,
    /// The cost came after the hold had ended or expired.
    SettledLate,
    Ended,
    Expired,
}

/// A change of a counter: what is to be added to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charge<K> {
    pub counter: K,
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
    pub holds: usize,
    pub holds_of_a_counter: usize,
}

/// A hold in the order of time: the request's, and the index of its part.
type Due = (Time, HoldId, usize);

#[derive(Clone, Debug)]
struct Hold<K, C> {
    index: usize,
    counter: K,
    currency: C,
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

impl<K: Copy + Eq + Hash, C: Eq> Ledger<K, C> {
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

    /// Holds the estimates of all parts, or nothing. `spent` reads a counter.
    pub fn hold(
        &mut self,
        id: HoldId,
        parts: impl IntoIterator<Item = Part<K, C>>,
        now: Time,
        spent: impl Fn(K) -> u64,
    ) -> Result<(), Refused> {
        let mut holds: Vec<Hold<K, C>> = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let Part { counter, currency, limit, estimate, unknown, ttl, end } = part;
            let held = estimate.min(limit);
            // Two descriptors of a request may have one counter.
            let here = || holds.iter().filter(|hold| hold.counter == counter);
            let before = spent(counter) + self.held(counter) + here().map(|hold| hold.held).sum::<u64>();
            let known = self.counters.get(&counter);
            if limit == 0 || before + held > limit {
                let earliest = known.and_then(|known| known.expiring.first()).map(|(at, ..)| *at);
                return Err(Refused::Over { index, earliest });
            }
            let of_counter = known.map_or(0, |known| known.expiring.len()) + here().count();
            if of_counter >= self.bounds.holds_of_a_counter || self.open + index >= self.bounds.holds {
                return Err(Refused::Full { index });
            }
            let (until, charged) = (after(now, ttl), None);
            holds.push(Hold { index, counter, currency, held, unknown, ttl, end, until, charged });
        }
        for hold in &holds {
            let counter = self.counters.entry(hold.counter).or_default();
            counter.held += hold.held;
            counter.expiring.insert(hold.due(id));
            self.due.insert(hold.due(id));
        }
        self.open += holds.len();
        self.holds.insert(id, holds);
        Ok(())
    }

    /// Settles the holds of a request in a currency, or all, at their cost. The first settle of each wins.
    pub fn settle(&mut self, id: HoldId, currency: Option<&C>, cost: u64) -> Vec<Charge<K>> {
        let of_currency = |hold: &Hold<K, C>| currency.is_none_or(|currency| hold.currency == *currency);
        let Some(holds) = self.holds.get_mut(&id) else { return Vec::new() };
        let settled: Vec<_> = holds.extract_if(.., |hold| of_currency(hold)).collect();
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

    /// Ends the holds of a request in a currency, or all, that have no cost.
    pub fn end(&mut self, id: HoldId, currency: Option<&C>, now: Time) -> Vec<Charge<K>> {
        let of_currency = |hold: &Hold<K, C>| currency.is_none_or(|currency| hold.currency == *currency);
        self.close(id, How::Ended, now, of_currency)
    }

    /// Ends the holds of a request whose answer nobody got: they cost nothing.
    pub fn cancel(&mut self, id: HoldId) -> Vec<Charge<K>> {
        self.settle(id, None, 0)
    }

    /// Charges or forgets at most `most` holds that expired, or were charged long enough ago.
    pub fn sweep(&mut self, now: Time, most: usize) -> Vec<Charge<K>> {
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
    ) -> Vec<Charge<K>> {
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

impl<K: Copy, C> Hold<K, C> {
    fn due(&self, id: HoldId) -> Due {
        (self.until, id, self.index)
    }

    fn charge(&self, how: How, after: u64) -> Charge<K> {
        let before = self.charged.unwrap_or(0);
        Charge { counter: self.counter, how, held: self.held, end: self.end, before, after }
    }
}

/// Where the clock ends, a hold lasts until then.
fn after(now: Time, ttl: Duration) -> Time {
    let ttl = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
    Time::from_micros(now.micros().saturating_add(ttl))
}

#[cfg(test)]
mod tests;
