//! The rule of leases: how many hits a replica takes from a counter ahead of time, when it takes more, and what it
//! gives back.
//!
//! Plain functions over a small state, with the time as an argument. `table` holds the states, and the store does the
//! I/O. A lease admits only hits that were added to the counter before, so no rule admits more than the limit; this one
//! decides how many hits wait in a replica while another would need them. The numbers are those of a simulation, which
//! docs/leases.md describes.

mod numbers;
mod pace;

use crate::{clock::Time, limiter::algorithm::Window};
use numbers::{after, float, seconds, single, whole};
pub(super) use pace::{Cold, Pace};

/// A lease is made for at most this part of a window.
const PART_OF_WINDOW: f64 = 20.0;

/// The longest time that a lease is made for, in seconds: the first, or this part of the window up to the second.
const LONGEST: [f64; 2] = [0.5, 5.0];
const PART_OF_LONG_WINDOW: f64 = 720.0;

/// A key is hot when so many requests come while a lease lasts.
const HOT: f64 = 4.0;

/// A lease has at most this part of the hits that are left of the limit.
const PART_OF_REST: f64 = 16.0;

/// A lease lasts at most this part of the time in which all replicas spend what is left of the limit.
const PART_OF_TIME: f64 = 8.0;

/// The fewest hits that are worth a lease.
const LEAST: u64 = 2;

/// A counter that is known to be over its limit is looked at again after so many times the length of a lease, and so
/// many seconds at most: its hits may have been given back.
const OVER_FOR: f64 = 10.0;
const OVER_FOR_SECONDS: f64 = 5.0;

/// A request that only looks sees a counter that is no older, in seconds.
const FRESH: f64 = 1.0;

/// Rates that are measured over less than this are noise, in seconds.
const MIN_INTERVAL: f64 = 0.001;

/// What a lease is of: a limit per window, and the time of a round trip to the counter, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Terms {
    pub(super) limit: u64,
    pub(super) window: Window,
    pub(super) round_trip: f64,
}

impl Terms {
    /// How long a lease lasts, in seconds. It is also the time constant of the averages.
    pub(super) fn duration(&self) -> f64 {
        let window = float(self.window.seconds());
        let longest = (window / PART_OF_LONG_WINDOW).clamp(LONGEST[0], LONGEST[1]);
        (window / PART_OF_WINDOW).max(2.0 * self.round_trip).min(longest)
    }

    /// How long a counter is known to be over its limit, in seconds.
    fn over_for(&self) -> f64 {
        (OVER_FOR * self.duration()).min(OVER_FOR_SECONDS)
    }

    /// How long a lease without requests is remembered, in seconds.
    fn remembered_for(&self) -> f64 {
        self.over_for().max(2.0 * self.duration())
    }
}

/// What a request gets from a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The hits are within the limit. Contains the counter with them, without the hits that are left in the lease.
    Admit(u64),
    /// The counter is known to be over its limit. Contains the counter.
    Refuse(u64),
    /// The counter has to be asked, for the hits that the lease does not have. `reserved` ones were taken from it.
    Ask {
        /// Hits that the lease had.
        reserved: u64,
    },
}

/// What this replica had added to the counter when it sent the request. A reply is compared with what was known then,
/// because other replies may come between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    own: u64,
    /// Nothing else was on its way that the counter may have added or not.
    is_certain: bool,
    /// How often the counter had been reset.
    resets: u32,
}

/// What a lease gives back, and when to look at it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tended {
    /// Hits to take off the counter.
    pub(super) returned: u64,
    /// The part of the counter that was this replica's before.
    pub(super) own: u64,
    /// Hits that were not spent before the window ended.
    pub(super) expired: u64,
    /// When to look at it again; `None` if the lease may be forgotten.
    pub(super) next: Option<Time>,
}

/// The lease of a key, or the place for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    /// When the window began.
    start: Time,
    /// Hits that were added to the counter and not spent.
    left: u64,
    /// The hits in the counter that this replica added in this window.
    own: u64,
    /// Hits of requests that were asked for and not answered yet.
    pending: u64,
    /// How often the counter was reset.
    resets: u32,
    /// The part of the counter that is not this replica's, by the last reply in this window, and when that came.
    others: Option<(u64, Time)>,
    /// The same some time before, by which its pace is measured.
    before: Option<(u64, Time)>,
    /// How fast that part grows, in hits per second.
    others_pace: f32,
    /// Requests in a row that had to ask and found the key hot.
    hot: u32,
    pace: Pace,
    /// The hits that were granted last, and when.
    last: (u64, Time),
    /// Hits that are asked for ahead of time.
    ahead: Ahead,
}

/// The way of hits that are asked for ahead of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ahead {
    /// There are none.
    None,
    /// They are not sent yet.
    Wanted,
    /// They are sent, and not answered yet.
    Sent,
}

impl Lease {
    /// A lease without hits, for a hot key.
    pub(super) fn new(start: Time, pace: Pace) -> Self {
        Self {
            start,
            left: 0,
            own: 0,
            pending: 0,
            resets: 0,
            others: None,
            before: None,
            others_pace: 0.0,
            hot: 2,
            pace,
            last: (0, Time::default()),
            ahead: Ahead::None,
        }
    }

    /// The start of its window.
    pub(super) fn start(&self) -> Time {
        self.start
    }

    /// Hits that are left in it.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The counter; `None` if there was no reply in this window.
    pub(super) fn counter(&self) -> Option<u64> {
        self.others.map(|(others, _)| others.saturating_add(self.own))
    }

    /// The counter without the hits that are left here.
    pub(super) fn count(&self, terms: &Terms) -> u64 {
        let counter = self.counter().unwrap_or(self.own);
        // What is left is within the limit, though others may be over it.
        let within = if self.left > 0 { counter.min(terms.limit) } else { counter };
        within.saturating_sub(self.left)
    }

    /// This replica's requests per second.
    pub(super) fn requests(&self, terms: &Terms, now: Time) -> f64 {
        self.pace.requests(now, terms.duration())
    }

    /// As [`requests`](Self::requests), and 0 if these have stopped.
    pub(super) fn demand(&self, terms: &Terms, now: Time) -> f64 {
        let is_idle = seconds(self.pace.at, now) >= self.idle_after(terms);
        if is_idle { 0.0 } else { self.requests(terms, now) }
    }

    /// Enters the window that begins at `start`. Returns the hits that were not spent in the last one; they are lost.
    pub(super) fn enter(&mut self, start: Time) -> u64 {
        if start == self.start {
            return 0;
        }
        let expired = self.left;
        let (others, before) = (None, None);
        *self = Self { start, left: 0, own: 0, pending: 0, others, before, ahead: Ahead::None, ..*self };
        expired
    }

    /// Spends hits. Without `may_reserve` it is all or nothing.
    pub(super) fn take(&mut self, hits: u64, may_reserve: bool, terms: &Terms, now: Time) -> Step {
        let duration = terms.duration();
        self.pace.add(hits, now, duration);
        if let Some(count) = self.known_over(terms, now) {
            return Step::Refuse(count);
        }
        if self.left >= hits {
            let before = self.count(terms);
            self.left = self.left.saturating_sub(hits);
            return Step::Admit(before.saturating_add(hits));
        }
        let reach = self.reach(terms, now);
        let is_hot = self.pace.requests(now, duration) * reach >= HOT;
        self.hot = if is_hot { self.hot.saturating_add(1) } else { 0 };
        if self.rest(terms) == 0
            && let Some((_, at)) = &mut self.others
        {
            // This request looks whether the counter is still over; the others do not.
            *at = now;
        }
        let reserved = if may_reserve { std::mem::take(&mut self.left) } else { 0 };
        Step::Ask { reserved }
    }

    /// The hits of a request go to the counter.
    pub(super) fn ask(&mut self, hits: u64) -> Asked {
        let asked = self.asked(self.ahead != Ahead::Sent);
        self.pending = self.pending.saturating_add(hits);
        asked
    }

    /// The hits that are wanted ahead of time go to the counter.
    pub(super) fn ask_ahead(&mut self) -> Asked {
        self.ahead = Ahead::Sent;
        self.asked(true)
    }

    fn asked(&self, is_certain: bool) -> Asked {
        Asked { own: self.own.saturating_add(self.pending), is_certain, resets: self.resets }
    }

    /// The hits of a request were not counted, or nobody knows.
    pub(super) fn unanswered(&mut self, hits: u64) {
        self.pending = self.pending.saturating_sub(hits);
    }

    /// True if [`take`](Self::take) will not have to ask the counter.
    pub(super) fn decides(&self, hits: u64, terms: &Terms, now: Time) -> bool {
        self.left >= hits || self.known_over(terms, now).is_some()
    }

    /// The counter if it is over its limit, which holds for some time.
    fn known_over(&self, terms: &Terms, now: Time) -> Option<u64> {
        let ((_, at), counter) = (self.others?, self.counter()?);
        let is_over = self.left == 0 && counter >= terms.limit;
        (is_over && seconds(at, now) < terms.over_for()).then_some(counter)
    }

    /// The counter as a request sees it that adds nothing, if it is known well enough.
    pub(super) fn look(&self, terms: &Terms, now: Time) -> Option<u64> {
        let (_, at) = self.others?;
        let is_fresh = seconds(at, now) < (2.0 * terms.duration()).min(FRESH);
        (is_fresh || self.known_over(terms, now).is_some()).then(|| self.count(terms))
    }

    /// Gives hits back to the lease that were taken from it in this window, if the counter still has them.
    pub(super) fn restore(&mut self, hits: u64) {
        self.left = self.left.saturating_add(hits).min(self.own.max(self.left));
    }

    /// The counter was reset. Returns the hits that were left, which it does not have any more.
    pub(super) fn forget(&mut self) -> u64 {
        self.resets = self.resets.wrapping_add(1);
        (self.own, self.others, self.before) = (0, None, None);
        std::mem::take(&mut self.left)
    }

    /// True if the counter was reset after it was asked: its reply says nothing.
    pub(super) fn is_outdated(&self, asked: Asked) -> bool {
        asked.resets != self.resets
    }

    /// Takes hits out of the lease, all or nothing.
    pub(super) fn spend(&mut self, hits: u64) -> bool {
        let has_room = self.left >= hits;
        if has_room {
            self.left = self.left.saturating_sub(hits);
        }
        has_room
    }

    /// The hits to ask for ahead of time, if the lease will soon be spent.
    pub(super) fn renew(&mut self, terms: &Terms, now: Time) -> Option<u64> {
        if self.ahead != Ahead::None || self.hot < 2 {
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
        let is_worth_it = hits >= LEAST;
        self.ahead = if is_worth_it { Ahead::Wanted } else { Ahead::None };
        is_worth_it.then_some(hits)
    }

    /// The hits that are left of the limit, by the last reply.
    fn rest(&self, terms: &Terms) -> u64 {
        terms.limit.saturating_sub(self.counter().unwrap_or(0))
    }

    /// How long a lease is made for now, in seconds.
    fn reach(&self, terms: &Terms, now: Time) -> f64 {
        let duration = terms.duration();
        let to_end = terms.window.micros().saturating_sub(now.micros().saturating_sub(self.start.micros()));
        let pace = self.pace.hits(now, duration) + f64::from(self.others_pace);
        let spent_in = float(self.rest(terms)) / (PART_OF_TIME * pace.max(f64::MIN_POSITIVE));
        duration.min(float(to_end) / 1e6).min(spent_in)
    }

    /// The counter is `after`, with `hits` of a request's `asked` ones. A counter that has fewer than this replica added was
    /// lost, as when Redis was emptied, and the hits in the lease are not in it any more. Returns those.
    pub(super) fn counted(&mut self, hits: u64, after: u64, asked: Asked, terms: &Terms, now: Time) -> u64 {
        let mut lost = 0;
        if after < asked.own.min(self.own).saturating_add(hits) {
            lost = std::mem::take(&mut self.left);
            (self.own, self.others, self.before) = (0, None, None);
        }
        self.own = self.own.saturating_add(hits);
        if asked.is_certain || self.others.is_none() {
            self.see(self.others_by(hits, after, asked), terms, now);
        }
        lost
    }

    /// Hits that were asked for ahead of time were added to the counter, or were too many. Returns as
    /// [`counted`](Self::counted) does.
    pub(super) fn granted(
        &mut self,
        hits: u64,
        is_granted: bool,
        after: u64,
        asked: Asked,
        terms: &Terms,
        now: Time,
    ) -> u64 {
        self.ahead = Ahead::None;
        let hits = if is_granted { hits } else { 0 };
        if self.is_outdated(asked) {
            return hits;
        }
        let lost = self.counted(hits, after, asked, terms, now);
        if is_granted {
            self.left = self.left.saturating_add(hits);
            self.last = (hits, now);
        }
        lost
    }

    /// The reply to hits that were asked for ahead of time is lost. They may have been added; nobody spends them.
    pub(super) fn lost(&mut self) {
        self.ahead = Ahead::None;
    }

    /// A request gave hits back to the counter, which is `after` now.
    pub(super) fn refunded(&mut self, hits: u64, after: u64, terms: &Terms, now: Time) {
        self.own = self.own.saturating_sub(hits);
        self.see(after.saturating_sub(self.own), terms, now);
    }

    /// The part of the counter that is not this replica's, by a reply. The counter may have added hits that were asked
    /// for later, of which the last estimate decides.
    fn others_by(&self, hits: u64, after: u64, asked: Asked) -> u64 {
        let most = after.saturating_sub(asked.own.saturating_add(hits));
        let least = after.saturating_sub(self.own.saturating_add(self.pending)).min(most);
        self.others.map_or(most, |(others, _)| others.clamp(least, most))
    }

    /// So much of the counter is not this replica's.
    fn see(&mut self, others: u64, terms: &Terms, now: Time) {
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
        let weight = 1.0 - (-interval / terms.duration()).exp();
        let average = f64::from(self.others_pace);
        self.others_pace = single(average + weight * (pace - average));
        self.before = self.others;
    }

    /// Gives back what is not needed: all once the requests stop, and after a while what exceeds the pace.
    pub(super) fn tend(&mut self, terms: &Terms, now: Time) -> Tended {
        let duration = terms.duration();
        let end = self.start.micros().saturating_add(terms.window.micros());
        if now.micros() >= end {
            let expired = std::mem::take(&mut self.left);
            let next = self.is_used(terms, now).then(|| self.forget_at(terms));
            return Tended { expired, next, ..Tended::default() };
        }
        let own = self.own;
        let keep = self.keep(terms, now);
        let returned = self.left.saturating_sub(keep);
        self.left = self.left.saturating_sub(returned);
        self.own = own.saturating_sub(returned);
        if returned > 0 && returned >= self.last.0 / 2 {
            self.hot = 0;
        }
        let next = if self.left > 0 {
            let idle = after(self.pace.at, self.idle_after(terms)).min(after(self.last.1, 2.0 * duration));
            Some(idle.max(after(now, MIN_INTERVAL)).min(Time::from_micros(end)))
        } else {
            (self.ahead != Ahead::None || self.is_used(terms, now)).then(|| self.forget_at(terms))
        };
        Tended { returned, own, expired: 0, next }
    }

    /// The hits that the lease keeps.
    fn keep(&mut self, terms: &Terms, now: Time) -> u64 {
        let duration = terms.duration();
        if self.left == 0 {
            return 0;
        }
        if seconds(self.pace.at, now) >= self.idle_after(terms) {
            return 0;
        }
        if seconds(self.last.1, now) < 2.0 * duration {
            return self.left;
        }
        self.last.1 = now;
        whole((self.pace.hits(now, duration) * self.reach(terms, now)).ceil())
    }

    /// The time without a request after which the requests have stopped, in seconds.
    fn idle_after(&self, terms: &Terms) -> f64 {
        let requests = self.pace.requests(self.pace.at, terms.duration()).max(f64::MIN_POSITIVE);
        (terms.duration() / 4.0).max(terms.round_trip).max(HOT / requests)
    }

    /// Takes everything out of the lease, for good. Returns the hits, and this replica's part of the counter.
    pub(super) fn end(&mut self) -> (u64, u64) {
        let (left, own) = (std::mem::take(&mut self.left), self.own);
        self.own = own.saturating_sub(left);
        (left, own)
    }

    fn is_used(&self, terms: &Terms, now: Time) -> bool {
        seconds(self.pace.at, now) < terms.remembered_for()
    }

    fn forget_at(&self, terms: &Terms) -> Time {
        after(self.pace.at, terms.remembered_for())
    }
}

#[cfg(test)]
mod tests;
