//! Holds: hits that are reserved when a request begins, and settled at their real cost when it ends.
//!
//! A [`Ledger`] has the holds of the counters of one place: it admits a request while what is spent and what is held
//! leave room, and says what to add to which counter when a hold is settled, ends or expires. What is spent is the
//! counter's own value, which the caller reads and writes; it holds the lock of both.
//!
//! A request holds on all of its counters or on none. The estimate is cut to the limit, so an unused budget admits
//! at least one request. A hold that ended or expired is remembered for one more time to live, so that a late cost
//! corrects what was charged for it. The ledger's clock stands still while its caller's goes back, so that no hold lasts
//! longer than its time to live.
//!
//! The scripts of Redis follow the same rules: `crates/counters/redis-store/src/scripts/holds.lua`.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    hash::Hash,
    num::{NonZeroU8, NonZeroU64},
    time::Duration,
};

use crate::{Fit, Hits, MAX_LIMIT, Refusal};
use clock::Time;
use text::duration;

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

/// `most`: what one request holds of a limit at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MostHeld {
    Hits(NonZeroU64),
    /// Of the limit in force, rounded up.
    Percent(NonZeroU8),
}

impl MostHeld {
    /// Reads `20_000` or `20%`.
    pub fn parse(written: &str) -> Option<Self> {
        let Some(percent) = written.strip_suffix('%') else {
            let hits: NonZeroU64 = written.replace('_', "").parse().ok()?;
            return (hits.get() <= MAX_LIMIT).then_some(Self::Hits(hits));
        };
        let percent: NonZeroU8 = percent.parse().ok()?;
        (percent.get() <= 100).then_some(Self::Percent(percent))
    }

    /// At least 1, also of a limit of 0: a request of 0 hits reads, and passes.
    pub fn of(self, limit: u64) -> u64 {
        match self {
            Self::Hits(hits) => hits.get(),
            // A limit is at most `MAX_LIMIT`, so this does not overflow.
            Self::Percent(percent) => (limit * u64::from(percent.get())).div_ceil(100).max(1),
        }
    }
}

/// `20000` or `20%`
impl fmt::Display for MostHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hits(hits) => write!(f, "{hits}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// `hold` of a limit: requests reserve an estimate while they are under way, and are charged what they cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldRule {
    /// The estimate of a request without a `hits_addend`; at least 1.
    pub amount: u64,
    pub most: Option<MostHeld>,
    pub ttl: Duration,
    pub unknown: Unknown,
    /// `in`: what its cost is stated in; may be empty.
    pub currency: Box<str>,
}

impl HoldRule {
    /// The hits of a request, cut to what it may hold of a limit.
    pub fn cut(&self, hits: Hits, limit: u64) -> Hits {
        match (hits, self.most) {
            (Hits::Take(estimate), Some(most)) => Hits::Take(estimate.min(most.of(limit))),
            _ => hits,
        }
    }
}

/// As it is written: `{amount: 4000, most: 20%, ttl: 15m, unknown: held, in: tokens}`.
impl fmt::Display for HoldRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ttl = duration::written(self.ttl);
        write!(f, "{{amount: {}, ", self.amount)?;
        if let Some(most) = self.most {
            write!(f, "most: {most}, ")?;
        }
        write!(f, "ttl: {ttl}, unknown: ")?;
        match self.unknown {
            Unknown::Held => f.write_str("held")?,
            Unknown::Hits(0) => f.write_str("zero")?,
            Unknown::Hits(hits) => write!(f, "{hits}")?,
        }
        if !self.currency.is_empty() {
            write!(f, ", in: {}", self.currency)?;
        }
        f.write_str("}")
    }
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
    /// A request at a time has no cost.
    pub is_charged: bool,
    /// The end of the counter's window: nothing is charged afterwards.
    pub end: Time,
}

/// What a part found, or a check that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub spent: u64,
    /// With what the part holds itself.
    pub held: u64,
    pub fits: bool,
    /// It does not fit because the ledger or the counter has as many holds as it may have.
    pub is_full: bool,
    pub holds: bool,
    /// The time until the first hold expires that is in its way: one of its counter, or any if there are too many.
    pub frees_in: Option<Duration>,
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
    is_charged: bool,
    end: Time,
    /// When it expires or, once it is charged, when it is forgotten.
    until: Time,
    charged: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Reserved {
    /// Exact: a request may hold whatever its caller says, and a shadowed limit refuses none.
    held: u128,
    /// The holds by the time at which they expire.
    expiring: BTreeSet<Due>,
}

#[derive(Clone, Debug)]
pub struct Ledger<K, C> {
    bounds: Bounds,
    holds: HashMap<HoldId, Vec<Hold<K, C>>>,
    counters: HashMap<K, Reserved>,
    /// The open holds by the time at which they expire, and the others by that at which they are forgotten.
    open: BTreeSet<Due>,
    remembered: BTreeSet<Due>,
    /// The latest time, and by how much the caller's clock was set back since.
    now: Time,
    behind: u64,
}

/// What keeps a part from holding.
#[derive(Clone, Copy)]
enum Blocker<K> {
    /// The holds of a counter.
    Counter(K),
    /// All holds: there are too many.
    Ledger,
}

/// As many expired holds are charged before a request is looked at again.
const SWEPT: usize = 10;

impl<K: Copy + Eq + Hash, C: Clone> Ledger<K, C> {
    pub fn new(bounds: Bounds) -> Self {
        let holds = HashMap::new();
        let counters = HashMap::new();
        let open = BTreeSet::new();
        let remembered = BTreeSet::new();
        Self { bounds, holds, counters, open, remembered, now: Time::default(), behind: 0 }
    }

    /// The ledger's time at the caller's.
    fn time(&mut self, now: Time) -> Time {
        let at = now.micros().saturating_add(self.behind);
        self.behind += self.now.micros().saturating_sub(at);
        self.now = self.now.max(Time::from_micros(at));
        self.now
    }

    /// What is held of a counter. Expired holds count until they are swept.
    pub fn held(&self, counter: K) -> u64 {
        saturated(self.held_exactly(counter))
    }

    fn held_exactly(&self, counter: K) -> u128 {
        self.counters.get(&counter).map_or(0, |counter| counter.held)
    }

    /// The number of holds that are neither settled nor ended nor swept.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The open holds of a counter: the request, what it holds, and when it expires; those that expire first.
    pub fn of_counter(&self, counter: K) -> impl Iterator<Item = (HoldId, u64, Time)> {
        let due = self.counters.get(&counter).into_iter().flat_map(|counter| &counter.expiring);
        due.filter_map(|(until, id, index)| {
            let hold = self.holds.get(id)?.iter().find(|hold| hold.index == *index)?;
            Some((*id, hold.held, Time::from_micros(until.micros().saturating_sub(self.behind))))
        })
    }

    /// What each part would find if it held. `spent` reads a counter.
    ///
    /// What has expired is not shown, and nothing is refused for it: as much is passed to `charge`, and returned, as the
    /// request needs.
    pub fn look(
        &mut self,
        parts: &[Part<K, C>],
        now: Time,
        spent: impl Fn(K) -> u64,
        charge: impl Fn(&Charge<K, C>),
    ) -> (Vec<Held>, Vec<Charge<K, C>>) {
        let now = self.time(now);
        let mut expired = Vec::new();
        let mut all = Vec::with_capacity(parts.len());
        self.find(parts, now, &spent, &mut all);
        while let Some(blocker) =
            parts.iter().zip(&all).find_map(|(part, seen)| self.expired_blocker(part, seen))
        {
            for _ in 0..SWEPT {
                let Some((_, id, index)) = self.first_due(blocker).filter(|due| due.0 <= now) else { break };
                let charges = self.close(id, How::Expired, now, |hold| hold.index == index);
                charges.iter().for_each(&charge);
                expired.extend(charges);
            }
            self.find(parts, now, &spent, &mut all);
        }
        (all, expired)
    }

    /// Holds the estimates of all parts but those of exhausted candidates, or nothing if the request is refused, by `refusal`
    /// or by a part that has no room.
    pub fn hold(
        &mut self,
        id: HoldId,
        parts: Vec<Part<K, C>>,
        mut refusal: Refusal,
        now: Time,
        spent: impl Fn(K) -> u64,
        charge: impl Fn(&Charge<K, C>),
    ) -> (Vec<Held>, Vec<Charge<K, C>>) {
        let (mut all, expired) = self.look(&parts, now, spent, charge);
        let now = self.now;
        parts.iter().zip(&all).for_each(|(part, seen)| refusal.add(part.fit, !seen.fits));
        if refusal.is_refused() {
            return (all, expired);
        }
        for (part, seen) in parts.iter().zip(&mut all) {
            seen.holds = part.holds(*seen) && !refusal.is_exhausted(part.fit);
        }
        for (index, (part, seen)) in
            parts.into_iter().zip(&mut all).enumerate().filter(|(_, (_, seen))| seen.holds)
        {
            let Part { counter, of, limit, estimate, unknown, ttl, is_charged, end, .. } = part;
            let held = estimate.unwrap_or(0).min(limit);
            let until = after(now, ttl);
            seen.held = seen.held.saturating_add(held);
            let hold = Hold { index, counter, of, held, unknown, ttl, is_charged, end, until, charged: None };
            let counter = self.counters.entry(counter).or_default();
            counter.held += u128::from(held);
            counter.expiring.insert(hold.due(id));
            self.open.insert(hold.due(id));
            self.holds.entry(id).or_default().push(hold);
        }
        (all, expired)
    }

    /// What each part finds now.
    fn find(&self, parts: &[Part<K, C>], now: Time, spent: impl Fn(K) -> u64, all: &mut Vec<Held>) {
        all.clear();
        let mut taken: Vec<(K, u64)> = Vec::new();
        for part in parts {
            // Two descriptors of a request may have one counter.
            let here = taken.iter().filter(|(counter, _)| *counter == part.counter);
            let of_counter = self.counters.get(&part.counter).map_or(0, |known| known.expiring.len());
            let mut seen = Held {
                spent: spent(part.counter),
                held: saturated(
                    self.held_exactly(part.counter)
                        + here.clone().map(|(_, held)| u128::from(*held)).sum::<u128>(),
                ),
                ..Held::default()
            };
            let estimate = part.estimate.map(|estimate| estimate.min(part.limit));
            seen.is_full = estimate.is_some()
                && (of_counter + here.count() >= self.bounds.holds_of_a_counter
                    || self.open() + taken.len() >= self.bounds.holds);
            seen.fits = part.has_room(&seen) && !seen.is_full;
            if estimate.is_none() || !seen.fits {
                let first = self.first_due(self.blocker(part, &seen));
                seen.frees_in =
                    first.map(|(at, ..)| Duration::from_micros(at.micros().saturating_sub(now.micros())));
            }
            taken.extend(estimate.filter(|_| part.holds(seen)).map(|estimate| (part.counter, estimate)));
            all.push(seen);
        }
    }

    /// What is in a part's way.
    fn blocker(&self, part: &Part<K, C>, seen: &Held) -> Blocker<K> {
        let of_counter = self.counters.get(&part.counter).map_or(0, |known| known.expiring.len());
        let is_ledger_full =
            seen.is_full && part.has_room(seen) && of_counter < self.bounds.holds_of_a_counter;
        if is_ledger_full { Blocker::Ledger } else { Blocker::Counter(part.counter) }
    }

    fn first_due(&self, blocker: Blocker<K>) -> Option<Due> {
        match blocker {
            Blocker::Counter(counter) => self.counters.get(&counter)?.expiring.first().copied(),
            Blocker::Ledger => self.open.first().copied(),
        }
    }

    /// What is in a part's way, if something in it has expired whose end may help.
    fn expired_blocker(&self, part: &Part<K, C>, seen: &Held) -> Option<Blocker<K>> {
        let is_needed = part.estimate.is_none_or(|estimate| {
            !seen.fits && seen.spent.saturating_add(estimate.min(part.limit)) <= part.limit
        });
        (is_needed && seen.frees_in == Some(Duration::ZERO)).then(|| self.blocker(part, seen))
    }

    /// Settles the holds of a request that are meant at their cost. The first settle of each wins. Those that have expired
    /// are charged first, so that the cost is a late one.
    pub fn settle(
        &mut self,
        id: HoldId,
        is_meant: impl Fn(&C) -> bool,
        cost: u64,
        now: Time,
    ) -> Vec<Charge<K, C>> {
        let mut charges = self.expire(id, &is_meant, now);
        let Some(holds) = self.holds.get_mut(&id) else { return charges };
        let settled: Vec<_> = holds.extract_if(.., |hold| is_meant(&hold.of)).collect();
        if holds.is_empty() {
            self.holds.remove(&id);
        }
        for hold in settled {
            self.release(id, &hold);
            match hold.charged {
                None => charges.push(hold.charge(How::Settled, cost)),
                // Else it is forgotten, whenever it is swept.
                Some(_) if hold.until > self.now => charges.push(hold.charge(How::SettledLate, cost)),
                Some(_) => {}
            }
        }
        charges
    }

    /// Ends the holds of a request that are meant and have no cost.
    pub fn end(&mut self, id: HoldId, is_meant: impl Fn(&C) -> bool, now: Time) -> Vec<Charge<K, C>> {
        let mut charges = self.expire(id, &is_meant, now);
        let now = self.time(now);
        charges.extend(self.close(id, How::Ended, now, |hold| is_meant(&hold.of)));
        charges
    }

    /// Ends the holds of a request whose answer nobody got: they cost nothing.
    pub fn cancel(&mut self, id: HoldId, now: Time) -> Vec<Charge<K, C>> {
        let mut charges = self.settle(id, |_| true, 0, now);
        let open = charges.iter_mut().filter(|charge| charge.how == How::Settled);
        open.for_each(|charge| charge.how = How::Cancelled);
        charges
    }

    fn expire(&mut self, id: HoldId, is_meant: impl Fn(&C) -> bool, now: Time) -> Vec<Charge<K, C>> {
        let now = self.time(now);
        self.close(id, How::Expired, now, |hold| hold.until <= now && is_meant(&hold.of))
    }

    /// Charges the holds of a counter that have expired.
    pub fn sweep_counter(&mut self, counter: K, now: Time) -> Vec<Charge<K, C>> {
        let now = self.time(now);
        let mut charges = Vec::new();
        while let Some((_, id, index)) = self.first_due(Blocker::Counter(counter)).filter(|due| due.0 <= now)
        {
            charges.extend(self.close(id, How::Expired, now, |hold| hold.index == index));
        }
        charges
    }

    pub fn forget_counter(&mut self, counter: K) {
        while let Some((_, id, index)) = self.first_due(Blocker::Counter(counter)) {
            self.forget(id, index);
        }
    }

    /// Charges or forgets at most `most` holds that expired, or were charged long enough ago.
    pub fn sweep(&mut self, now: Time, most: usize) -> Vec<Charge<K, C>> {
        let now = self.time(now);
        let mut charges = Vec::new();
        let is_due = |due: &&Due| due.0 <= now;
        for _ in 0..most {
            if let Some((_, id, index)) = self.open.first().filter(is_due).copied() {
                charges.extend(self.close(id, How::Expired, now, |hold| hold.index == index));
            } else if let Some((_, id, index)) = self.remembered.first().filter(is_due).copied() {
                self.forget(id, index);
            } else {
                break;
            }
        }
        charges
    }

    fn forget(&mut self, id: HoldId, index: usize) {
        let Some(holds) = self.holds.get_mut(&id) else { return };
        let gone: Vec<_> = holds.extract_if(.., |hold| hold.index == index).collect();
        if holds.is_empty() {
            self.holds.remove(&id);
        }
        for hold in &gone {
            self.release(id, hold);
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
        holds.retain_mut(|hold| {
            if hold.charged.is_some() || !is_meant(hold) {
                return true;
            }
            self.release(id, hold);
            let cost = match hold.unknown {
                Unknown::Held => hold.held,
                Unknown::Hits(hits) => hits,
            };
            let charge = hold.charge(how, cost);
            // Remembered from the end, or from the expiry, whenever it is swept.
            let from = if how == How::Expired { hold.until } else { now };
            hold.until = after(from, hold.ttl);
            hold.charged = Some(charge.after);
            charges.push(charge);
            let is_remembered = self.remembered.len() < self.bounds.holds;
            if is_remembered {
                self.remembered.insert(hold.due(id));
            }
            is_remembered
        });
        if !holds.is_empty() {
            self.holds.insert(id, holds);
        }
        charges
    }

    /// A hold no longer reserves anything, or is no longer remembered.
    fn release(&mut self, id: HoldId, hold: &Hold<K, C>) {
        if hold.charged.is_some() {
            self.remembered.remove(&hold.due(id));
            return;
        }
        self.open.remove(&hold.due(id));
        if let Some(counter) = self.counters.get_mut(&hold.counter) {
            counter.held -= u128::from(hold.held);
            counter.expiring.remove(&hold.due(id));
            if counter.expiring.is_empty() {
                self.counters.remove(&hold.counter);
            }
        }
    }
}

impl<K, C> Part<K, C> {
    /// True if it holds, unless the request is refused.
    fn holds(&self, Held { fits, is_full, .. }: Held) -> bool {
        self.estimate.is_some() && (fits || self.fit == Fit::Always && !is_full)
    }

    fn has_room(&self, seen: &Held) -> bool {
        let estimate = self.estimate.map_or(0, |estimate| estimate.min(self.limit));
        seen.spent.saturating_add(seen.held).saturating_add(estimate) <= self.limit
            && (self.limit > 0 || self.estimate.is_none())
    }
}

impl<K: Copy, C: Clone> Hold<K, C> {
    fn due(&self, id: HoldId) -> Due {
        (self.until, id, self.index)
    }

    fn charge(&self, how: How, cost: u64) -> Charge<K, C> {
        let before = self.charged.unwrap_or(0);
        let after = if self.is_charged { cost } else { 0 };
        let of = self.of.clone();
        Charge { counter: self.counter, of, how, held: self.held, end: self.end, before, after }
    }
}

/// What is shown and compared of a sum: no limit is as large.
fn saturated(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// Where the clock ends, a hold lasts until then.
fn after(now: Time, ttl: Duration) -> Time {
    let ttl = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
    Time::from_micros(now.micros().saturating_add(ttl))
}

#[cfg(test)]
mod tests;
