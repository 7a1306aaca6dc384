//! The lease rule: how many hits a replica leases from a counter, when it leases more, and which hits it returns.
//!
//! Plain functions over a small state, with the time as an argument. `table` holds the states, and the store does the
//! I/O. A lease admits only hits that were added to the counter before, so no choice made here admits more than the
//! limit; it decides how many hits wait in one replica while another needs them. The constants come from a simulation,
//! which docs/reference/leases.md describes.

mod pace;
mod terms;

use clock::Time;
pub use pace::{Cold, Pace};
use pace::{after, float, seconds, single, whole};
pub use terms::{Terms, over_for};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    Added,
    Refused,
    /// The counter has lost earlier hits of the lease.
    Lost,
}

/// A key with this many requests in the duration of a lease is hot.
const HOT: f64 = 4.0;

/// A lease has at most the remaining hits of the limit divided by this.
const PART_OF_REST: f64 = 16.0;

/// A lease covers at most this part of the time in which all replicas spend the remaining limit.
const PART_OF_TIME: f64 = 8.0;

const LEAST: u64 = 2;

/// The greatest age, in seconds, of a counter that a request with 0 hits reads from the lease.
const FRESH: f64 = 1.0;

/// Rates measured over less than this are noise, in seconds.
const MIN_INTERVAL: f64 = 0.001;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseStep {
    /// The hits are within the limit. Contains the counter with them, without the hits that are left in the lease.
    Admit(u64),
    /// The counter is over its limit. Contains the counter.
    Reject(u64),
    /// The store counts the hits that the lease does not have. The lease had `reserved` of them.
    Query { reserved: u64 },
}

/// The hits this replica had added to the counter when it sent a request. The reply is compared with them, because
/// other replies may come between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Without hits in flight that the counter may refuse, and as if refunds in flight were done.
    own: u64,
    /// There were no such hits.
    is_exact: bool,
    sent: SentHits,
    /// No renewal was in flight, whose hits the counter may or may not include.
    is_certain: bool,
    epoch: u32,
    pub grants: Grants,
}

/// Hits of a request that are sent to the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SentHits {
    /// The counter adds them, even above its limit.
    Always(u64),
    /// The counter adds all or none.
    IfWithin(u64),
    /// The counter subtracts them.
    Refund(u64),
}

/// The numbers of a lease's grants, by which the counter knows the hits that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grants {
    /// The last one that the counter confirmed; 0 for none.
    pub confirmed: u64,
    /// The last one that was requested.
    pub requested: u64,
}

/// The hits that leave a lease, and when to visit it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Visit {
    pub returned: u64,
    /// This replica's part of the counter before.
    pub own: u64,
    /// Hits that were not spent before the window ended.
    pub expired: u64,
    /// The next visit; `None` if the lease can be removed.
    pub next: Option<Time>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Lease {
    pub start: Time,
    /// Hits that were added to the counter and not spent.
    pub left: u64,
    /// The hits in the counter that this replica added in this window.
    own: u64,
    /// Hits in flight, without and with those that the counter may refuse.
    pending: u64,
    pending_at_most: u64,
    /// Refunds in flight.
    refunding: u64,
    /// Changes when replies to earlier requests lose their meaning. No two leases of a key have the same.
    epoch: u32,
    /// The part of the counter that other replicas added, by the last reply in this window, and the time of that reply.
    others: Option<(u64, Time)>,
    /// The same some time before; the difference is the rate.
    before: Option<(u64, Time)>,
    /// The rate at which other replicas add hits, per second.
    others_pace: f32,
    /// Consecutive requests that the lease did not decide and that found the key hot.
    hot: u32,
    pace: Pace,
    /// The hits that were granted last, and when.
    last: (u64, Time),
    renewal: Renewal,
    pub grants: Grants,
}

/// The state of a lease's request for more hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Renewal {
    #[default]
    Idle,
    /// Not sent yet.
    Wanted,
    InFlight,
}

impl Lease {
    /// A lease without hits, for a hot key. Leases of the same key have epochs that are far apart.
    pub fn new(start: Time, pace: Pace, epoch: u32) -> Self {
        Self { start, hot: 2, pace, epoch, ..Self::default() }
    }

    /// The counter; `None` if there was no reply in this window.
    pub fn counter(&self) -> Option<u64> {
        self.others.map(|(others, _)| others.saturating_add(self.own))
    }

    /// The counter without the hits that are left here.
    pub fn count(&self, terms: &Terms) -> u64 {
        let counter = self.counter().unwrap_or(self.own);
        // Hits that are left are within the limit, even if other replicas exceed it.
        let within = if self.left > 0 { counter.min(terms.limit) } else { counter };
        within.saturating_sub(self.left)
    }

    /// This replica's requests per second.
    pub fn requests(&self, terms: &Terms, now: Time) -> f64 {
        self.pace.requests(now, terms.duration())
    }

    /// As [`requests`](Self::requests), or 0 if the requests have stopped.
    pub fn demand(&self, terms: &Terms, now: Time) -> f64 {
        if self.is_idle(terms, now) { 0.0 } else { self.requests(terms, now) }
    }

    /// Enters the window that begins at `start`. Returns the unspent hits of the last one, which are lost.
    pub fn enter(&mut self, start: Time) -> u64 {
        if start == self.start {
            return 0;
        }
        let expired = self.left;
        // What outlasts a window.
        let Self { epoch, others_pace, hot, pace, last, .. } = *self;
        *self = Self { start, epoch, others_pace, hot, pace, last, ..Self::default() };
        expired
    }

    /// Spends hits; all or none without `may_reserve`.
    pub fn take(&mut self, hits: u64, may_reserve: bool, terms: &Terms, now: Time) -> LeaseStep {
        let duration = terms.duration();
        self.pace.add(hits, now, duration);
        if let Some(count) = self.known_over(terms, now) {
            return LeaseStep::Reject(count);
        }
        if self.left >= hits {
            let before = self.count(terms);
            self.left -= hits;
            return LeaseStep::Admit(before.saturating_add(hits));
        }
        let reach = self.reach(terms, now);
        let is_hot = self.pace.requests(now, duration) * reach >= HOT;
        self.hot = if is_hot { self.hot.saturating_add(1) } else { 0 };
        if self.rest(terms) == 0
            && let Some((_, at)) = &mut self.others
        {
            // Only this request finds out whether the counter is still over.
            *at = now;
        }
        let reserved = if may_reserve { std::mem::take(&mut self.left) } else { 0 };
        LeaseStep::Query { reserved }
    }

    /// Records that hits of a request are sent to the counter.
    pub fn send(&mut self, sent: SentHits) -> Snapshot {
        let own = self.own.saturating_add(self.pending).saturating_sub(self.refunding);
        let is_exact = self.pending == self.pending_at_most && self.refunding == 0;
        self.count_sent(sent, u64::saturating_add);
        let is_certain = self.renewal != Renewal::InFlight;
        Snapshot { own, is_exact, sent, is_certain, epoch: self.epoch, grants: self.grants }
    }

    /// Records that the renewal is sent to the counter. `first` is the number of a lease's first grant.
    pub fn send_renewal(&mut self, first: u64) -> Snapshot {
        // Numbers begin below 2⁵², so the sum never wraps.
        self.grants.requested =
            if self.grants.requested == 0 { first } else { self.grants.requested.wrapping_add(1) };
        let snapshot = self.send(SentHits::Always(0));
        self.renewal = Renewal::InFlight;
        snapshot
    }

    /// Hits of a request are no longer in flight.
    pub fn complete(&mut self, snapshot: Snapshot) {
        self.count_sent(snapshot.sent, u64::saturating_sub);
    }

    /// Adds hits to those in flight, or subtracts them.
    fn count_sent(&mut self, sent: SentHits, change: impl Fn(u64, u64) -> u64) {
        match sent {
            SentHits::Always(hits) => {
                self.pending = change(self.pending, hits);
                self.pending_at_most = change(self.pending_at_most, hits);
            }
            SentHits::IfWithin(hits) => self.pending_at_most = change(self.pending_at_most, hits),
            SentHits::Refund(hits) => self.refunding = change(self.refunding, hits),
        }
    }

    /// True if [`take`](Self::take) needs no reply of the counter.
    pub fn decides(&self, hits: u64, terms: &Terms, now: Time) -> bool {
        self.left >= hits || self.known_over(terms, now).is_some()
    }

    /// The counter if it is over its limit; it is read again after some time.
    fn known_over(&self, terms: &Terms, now: Time) -> Option<u64> {
        let (_, at) = self.others?;
        let counter = self.counter()?;
        let is_over = self.left == 0 && counter >= terms.limit;
        (is_over && seconds(at, now) < terms.over_for()).then_some(counter)
    }

    /// The counter for a request with 0 hits, if it is known well enough.
    pub fn read(&self, terms: &Terms, now: Time) -> Option<u64> {
        let (_, at) = self.others?;
        let is_fresh = seconds(at, now) < (2.0 * terms.duration()).min(FRESH);
        (is_fresh || self.known_over(terms, now).is_some()).then(|| self.count(terms))
    }

    /// Puts hits back that were taken from the lease in this window, if the counter still has them.
    pub fn restore(&mut self, hits: u64) {
        self.left = self.left.saturating_add(hits).min(self.own.max(self.left));
    }

    /// The counter was refunded elsewhere: the next request reads it, although it is known to be over its limit.
    pub fn read_again(&mut self) {
        if let Some((_, at)) = &mut self.others {
            *at = Time::default();
        }
    }

    /// The counter was reset or lost. Returns the hits that were left, which are no longer in the counter.
    pub fn forget(&mut self) -> u64 {
        self.epoch = self.epoch.wrapping_add(1);
        self.grants = Grants::default();
        (self.own, self.others, self.before) = (0, None, None);
        std::mem::take(&mut self.left)
    }

    /// True if the snapshot is of another lease, or the counter was reset since: then the reply means nothing.
    pub fn is_outdated(&self, snapshot: Snapshot) -> bool {
        snapshot.epoch != self.epoch
    }

    /// Takes hits out of the lease, all or none.
    pub fn spend(&mut self, hits: u64) -> bool {
        let rest = self.left.checked_sub(hits);
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }

    /// The hits to lease, if the lease will soon be spent.
    pub fn renew(&mut self, terms: &Terms, now: Time) -> Option<u64> {
        // Without a reply in this window, the rest of the limit is unknown.
        if self.renewal != Renewal::Idle || self.hot < 2 || self.others.is_none() {
            return None;
        }
        let own = self.pace.hits(now, terms.duration());
        if float(self.left) >= 2.0 * own * terms.round_trip + 1.0 {
            return None;
        }
        let reach = self.reach(terms, now);
        let (last, granted) = self.last;
        let mut hits = own * reach;
        if seconds(granted, now) < reach / 2.0 {
            hits = hits.max((2.0 * float(last)).min(4.0 * own * reach));
        }
        let hits = whole(hits.min(float(self.rest(terms)) / PART_OF_REST));
        if hits < LEAST {
            return None;
        }
        self.renewal = Renewal::Wanted;
        Some(hits)
    }

    /// The remaining hits of the limit, by the last reply.
    fn rest(&self, terms: &Terms) -> u64 {
        terms.limit.saturating_sub(self.counter().unwrap_or(0))
    }

    /// The time that a lease covers now, in seconds.
    fn reach(&self, terms: &Terms, now: Time) -> f64 {
        let duration = terms.duration();
        let to_end = terms.period.end(self.start).micros().saturating_sub(now.micros());
        let pace = self.pace.hits(now, duration) + f64::from(self.others_pace);
        let spent_in = float(self.rest(terms)) / (PART_OF_TIME * pace.max(f64::MIN_POSITIVE));
        duration.min(float(to_end) / 1e6).min(spent_in)
    }

    /// The counter is `after`, with these hits of a request. A counter with fewer hits than this replica added was
    /// lost, as when Redis was flushed, and the hits in the lease with it. Returns the lost hits.
    pub fn counted(&mut self, hits: u64, after: u64, snapshot: Snapshot, terms: &Terms, now: Time) -> u64 {
        let mut lost = 0;
        if after < snapshot.own.min(self.own).saturating_add(hits) {
            lost = self.forget();
        }
        self.own = self.own.saturating_add(hits);
        if snapshot.is_certain || self.others.is_none() {
            // The counter may include hits that were sent later; the last estimate decides.
            let most = after.saturating_sub(snapshot.own.saturating_add(hits));
            let least = after.saturating_sub(self.own.saturating_add(self.pending_at_most)).min(most);
            // A first estimate that is too high could refuse requests.
            let first = if snapshot.is_exact { most } else { least };
            let others = self.others.map_or(first, |(others, _)| others.clamp(least, most));
            self.set_others(others, terms, now);
        }
        lost
    }

    /// The counter has granted or rejected a renewal. Returns the lost hits, as [`counted`](Self::counted) does.
    pub fn granted(
        &mut self,
        hits: u64,
        grant: Grant,
        after: u64,
        snapshot: Snapshot,
        terms: &Terms,
        now: Time,
    ) -> u64 {
        self.renewal = Renewal::Idle;
        let hits = if grant == Grant::Added { hits } else { 0 };
        // The grant of a window that was left and entered again has another number.
        if self.is_outdated(snapshot) || snapshot.grants.requested != self.grants.requested {
            return hits;
        }
        if grant == Grant::Lost {
            return self.forget();
        }
        let lost = self.counted(hits, after, snapshot, terms, now);
        if self.is_outdated(snapshot) {
            return lost.saturating_add(hits);
        }
        if grant == Grant::Added {
            self.left = self.left.saturating_add(hits);
            self.last = (hits, now);
            self.grants.confirmed = snapshot.grants.requested;
        }
        lost
    }

    /// The reply to a renewal is lost. Its hits may have been added to the counter; no replica spends them.
    pub fn renewal_lost(&mut self) {
        self.renewal = Renewal::Idle;
    }

    /// A request refunded hits; the counter is `after` now.
    pub fn refunded(&mut self, hits: u64, after: u64, terms: &Terms, now: Time) {
        self.own = self.own.saturating_sub(hits);
        self.set_others(after.saturating_sub(self.own), terms, now);
    }

    /// Sets the part of the counter that other replicas added, and updates its rate.
    fn set_others(&mut self, others: u64, terms: &Terms, now: Time) {
        self.others = Some((others, now));
        let Some((before, at)) = self.before else {
            self.before = self.others;
            return;
        };
        let interval = seconds(at, now);
        if interval < MIN_INTERVAL {
            return;
        }
        let pace = float(others.saturating_sub(before)) / interval;
        let weight = 1.0 - libm::exp(-interval / terms.duration());
        let average = f64::from(self.others_pace);
        self.others_pace = single(average + weight * (pace - average));
        self.before = self.others;
    }

    /// Returns hits that are not needed: all once the requests stop, and after a while those that exceed the pace.
    pub fn visit(&mut self, terms: &Terms, now: Time) -> Visit {
        let duration = terms.duration();
        let end = terms.period.end(self.start).micros();
        let removed_at = after(self.pace.at, terms.over_for().max(2.0 * duration));
        let unless_removed = Some(removed_at).filter(|at| *at > now);
        if now.micros() >= end {
            let expired = std::mem::take(&mut self.left);
            return Visit { expired, next: unless_removed, ..Visit::default() };
        }
        let own = self.own;
        let returned = self.left.saturating_sub(self.keep(terms, now));
        self.left -= returned;
        self.own = own.saturating_sub(returned);
        if returned > 0 && returned >= self.last.0 / 2 {
            self.hot = 0;
        }
        let next = if self.left > 0 {
            let idle = after(self.pace.at, self.idle_after(terms)).min(after(self.last.1, 2.0 * duration));
            Some(idle.max(after(now, MIN_INTERVAL)).min(Time::from_micros(end)))
        } else if self.renewal != Renewal::Idle {
            Some(removed_at)
        } else {
            unless_removed
        };
        Visit { returned, own, expired: 0, next }
    }

    fn keep(&mut self, terms: &Terms, now: Time) -> u64 {
        let duration = terms.duration();
        if self.left == 0 || self.is_idle(terms, now) {
            return 0;
        }
        if seconds(self.last.1, now) < 2.0 * duration {
            return self.left;
        }
        self.last.1 = now;
        whole((self.pace.hits(now, duration) * self.reach(terms, now)).ceil())
    }

    fn is_idle(&self, terms: &Terms, now: Time) -> bool {
        seconds(self.pace.at, now) >= self.idle_after(terms)
    }

    /// The time without a request after which the requests have stopped, in seconds.
    fn idle_after(&self, terms: &Terms) -> f64 {
        let requests = self.pace.requests(self.pace.at, terms.duration()).max(f64::MIN_POSITIVE);
        (terms.duration() / 4.0).max(terms.round_trip).max(HOT / requests)
    }

    /// As [`end`](Self::end), if the counter may have been reset: replies to earlier requests mean nothing.
    pub fn distrust(&mut self) -> (u64, u64) {
        self.epoch = self.epoch.wrapping_add(1);
        self.end()
    }

    /// Takes all hits out of the lease. Returns them, and this replica's part of the counter before.
    pub fn end(&mut self) -> (u64, u64) {
        let left = std::mem::take(&mut self.left);
        let own = self.own;
        self.own = own.saturating_sub(left);
        (left, own)
    }
}

#[cfg(test)]
mod tests;
