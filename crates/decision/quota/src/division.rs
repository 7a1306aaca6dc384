//! Divides one limit among the Envoys of this replica that use it.
//!
//! An assignment is a number of requests that are paid for: the replica takes them from the rule's counter before an
//! Envoy may let them pass, whichever replica takes them first. So all replicas together never assign more than the limit,
//! and an Envoy that is cut off, or whose stream or replica ends, has nothing that was not paid for. What it has not used
//! returns only when it says so.
//!
//! There is no I/O here: [`Division::turn`] says what to take, [`Division::taken`] is told what there was, and
//! [`Division::assign`] returns what changes for each Envoy.

use std::time::Duration;

use clock::Time;
use limiter::QuotaLimit;

use crate::{
    demand::{Demand, max_min, part},
    grant::Grant,
};

/// Shorter fixed windows are assigned once, at their start; longer ones bit by bit, by demand.
const SHORT: u64 = 10;

/// An Envoy reports every five seconds. One that is silent for longer gets no more hits, and what it was assigned is not
/// renewed: it may have expired there, and a renewal would be a new one that is not paid for. Assignments last longer.
const SILENCE: Duration = Duration::from_secs(8);

/// An Envoy that has reported no requests for this long is told to forget the bucket.
const IDLE: Duration = Duration::from_secs(60);

/// After this time what an Envoy wanted before it forgot the bucket says nothing any more.
const MEMORY: Duration = Duration::from_secs(2);

/// A grant by demand is for the requests of this time, or for this number if that is more.
const PROMPT: Duration = Duration::from_secs(2);
const MUCH: u64 = 100;

/// An Envoy that has this many times what it needs gets less.
const HOARD: u64 = 3;

/// An empty counter is asked again after this time, or when its window ends.
const DRY: Duration = Duration::from_secs(1);

/// The interval of turns, and that of what is not soon used.
pub(crate) const TICK: Duration = Duration::from_millis(100);
pub(crate) const PACE: Duration = Duration::from_millis(300);

/// The tenths of a short window at which hits of the next one are taken. The replica that asks first cannot take all in the
/// first two steps: [`Division::level`] bounds them.
const STEPS: [u64; 3] = [7, 8, 9];

/// The time: of windows, and of what lasts whatever the clock is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Now {
    pub(crate) time: Time,
    /// Since any moment before the first.
    pub(crate) elapsed: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Takes hits, at most as many, in the window of this time.
    Take(u64, Time),
    /// Returns hits of the current window.
    GiveBack(u64),
    Nothing,
}

/// What changes for an Envoy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// A new token bucket with these requests.
    Grant(Grant),
    /// The same one, for another time to live.
    Renew(Grant),
    /// Nothing limits it.
    Allow,
    Deny,
    Abandon,
}

/// A stream of an Envoy that uses the bucket.
#[derive(Debug)]
struct Envoy {
    stream: u64,
    demand: Demand,
    grant: Option<Grant>,
    /// Hits of this window that it was assigned, and those that it reports as used.
    paid: u64,
    reported: u64,
    /// It was told to forget the bucket.
    abandoned_at: Option<Duration>,
    /// It is owed an answer to a report.
    asks: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Division {
    envoys: Vec<Envoy>,
    limit: u64,
    window_end: Option<Time>,
    /// Hits of the current window that are paid for and not assigned; of the next one, if it is short.
    pot: u64,
    next: u64,
    steps: usize,
    /// The current short window is assigned.
    is_assigned: bool,
    /// The most that an Envoy is given of a short window in the first two steps: additive increase, multiplicative decrease.
    level: u64,
    /// An Envoy wants more of the next window than that level.
    is_bound: bool,
    /// Others took hits of the next window that were within that level.
    is_contended: bool,
    /// The counter had less than was asked for, in this window and in the one before.
    is_cut: bool,
    was_cut: bool,
    dry_until: Duration,
}

impl Division {
    /// Counts what an Envoy reports. Its first report says that it exists.
    pub(crate) fn report(&mut self, stream: u64, allowed: u64, denied: u64, now: Now) {
        let Some(envoy) = self.envoys.iter_mut().find(|envoy| envoy.stream == stream) else {
            let demand = Demand::unknown(now.elapsed);
            self.envoys.push(Envoy {
                stream,
                demand,
                grant: None,
                paid: 0,
                reported: 0,
                abandoned_at: None,
                asks: true,
            });
            return;
        };
        envoy.asks = true;
        if !envoy.is_live(now) {
            envoy.grant = None;
        }
        envoy.abandoned_at = None;
        envoy.reported = envoy.reported.saturating_add(allowed);
        let last = envoy.demand.reported_at;
        let left = envoy.grant.as_mut().and_then(|grant| grant.report(allowed, last, now.elapsed));
        if let Some(left) = left {
            let unused = envoy.paid.saturating_sub(envoy.reported).saturating_sub(left);
            envoy.paid = envoy.paid.saturating_sub(unused);
            self.pot = self.pot.saturating_add(unused);
        }
        envoy.demand.report(allowed, denied, now.elapsed);
    }

    /// Forgets an Envoy whose stream has ended. What it was assigned stays paid for.
    pub(crate) fn remove(&mut self, stream: u64) {
        self.envoys.retain(|envoy| envoy.stream != stream);
    }

    /// Forgets Envoys that have forgotten the bucket.
    fn forget(&mut self, now: Now) {
        let is_recent = |at: Duration| now.elapsed.saturating_sub(at) < MEMORY;
        self.envoys.retain(|envoy| envoy.abandoned_at.is_none_or(is_recent));
    }

    /// True if no Envoy uses it, and nothing is to be returned.
    pub(crate) fn is_over(&self) -> bool {
        self.envoys.is_empty() && self.pot == 0
    }

    /// What changes for the Envoys while `answer` is that of all. Nothing is paid for any more.
    pub(crate) fn undivided(&mut self, answer: Change, now: Now) -> Vec<(u64, Change)> {
        self.forget(now);
        self.pot = 0;
        let mut changes = Vec::new();
        for envoy in self.envoys.iter_mut().filter(|envoy| envoy.abandoned_at.is_none()) {
            envoy.grant = None;
            let asks = std::mem::take(&mut envoy.asks);
            if envoy.demand.idle_for(now.elapsed) >= IDLE {
                envoy.abandoned_at = Some(now.elapsed);
                changes.push((envoy.stream, Change::Abandon));
            } else if asks {
                changes.push((envoy.stream, answer));
            }
        }
        self.envoys.retain(|envoy| envoy.abandoned_at.is_none() || !envoy.demand.is_idle());
        changes
    }

    /// Owes every Envoy an answer, because the mode of the bucket has changed.
    pub(crate) fn owe_all(&mut self) {
        for envoy in self.envoys.iter_mut().filter(|envoy| envoy.abandoned_at.is_none()) {
            envoy.asks = true;
        }
    }

    /// What to take or return now. Called about ten times a second.
    pub(crate) fn turn(&mut self, limit: QuotaLimit, now: Now) -> Turn {
        self.forget(now);
        if self.limit != limit.requests {
            // A first share of what is not known to be free.
            self.level = if self.limit == 0 { limit.requests / 4 } else { self.level };
            self.limit = limit.requests;
            // Hits that were taken under a larger limit are not assigned.
            self.pot = self.pot.min(limit.requests);
            self.next = self.next.min(limit.requests);
        }
        self.roll(limit);
        self.level = self.level.clamp(1, limit.requests.max(1));
        match limit.window_end {
            Some(end) if limit.seconds < SHORT => self.turn_of_short(limit, end, now),
            _ => self.turn_by_demand(limit, now),
        }
    }

    /// Begins a new window. What was not assigned in the last one is gone, and what Envoys have left of it is not taken
    /// from the new one.
    fn roll(&mut self, limit: QuotaLimit) {
        if self.window_end == limit.window_end {
            return;
        }
        let start = limit.window_end.map(|end| before(end, limit.seconds));
        self.pot = if self.window_end == start { self.next } else { 0 };
        if self.is_bound && !self.is_contended {
            // Whoever has less grows faster, so that levels meet.
            let step = self.limit.saturating_mul(self.level).isqrt() / 24;
            self.level = self.level.saturating_add(step.max(1));
        }
        for envoy in &mut self.envoys {
            (envoy.paid, envoy.reported) = (0, 0);
        }
        self.was_cut = std::mem::take(&mut self.is_cut);
        (self.next, self.steps) = (0, 0);
        (self.is_assigned, self.is_bound, self.is_contended) = (false, false, false);
        (self.window_end, self.dry_until) = (limit.window_end, Duration::ZERO);
    }

    fn turn_of_short(&mut self, limit: QuotaLimit, end: Time, now: Now) -> Turn {
        if !self.is_assigned || self.is_joined() && !self.is_dry(now) {
            let is_first = !self.is_assigned;
            let all = self.wanted(limit, self.level, now, |envoy| is_first || envoy.grant.is_none());
            return take(all.saturating_sub(self.pot), now.time);
        }
        if self.pot > 0 {
            return Turn::GiveBack(std::mem::take(&mut self.pot));
        }
        let begun = now.time.micros().saturating_sub(before(end, limit.seconds).micros());
        let levels = [self.level - self.level / 4, self.level, limit.requests];
        let Some((tenths, level)) = STEPS.into_iter().zip(levels).nth(self.steps) else {
            return Turn::Nothing;
        };
        if begun < tenths * limit.seconds * 100_000 {
            return Turn::Nothing;
        }
        self.steps += 1;
        let all = self.wanted(limit, level, now, |_| true);
        self.is_bound |= all < self.wanted(limit, limit.requests, now, |_| true);
        take(all.saturating_sub(self.next), end)
    }

    /// What Envoys will use of a short window, each up to a level.
    fn wanted(&self, limit: QuotaLimit, level: u64, now: Now, of: impl Fn(&Envoy) -> bool) -> u64 {
        let (envoys, is_scarce) = (self.live(now).filter(|envoy| of(envoy)), self.is_scarce());
        let each = envoys.map(|envoy| envoy.wants(limit, is_scarce, now).min(level));
        each.fold(0, u64::saturating_add)
    }

    fn turn_by_demand(&mut self, limit: QuotaLimit, now: Now) -> Turn {
        let cap = self.cap(limit);
        let need = self.live(now).map(|envoy| envoy.needs(limit, cap, now)).fold(0, u64::saturating_add);
        if need > self.pot && !self.is_dry(now) {
            return take(need - self.pot, now.time);
        }
        if need == 0 && self.pot > 0 {
            return Turn::GiveBack(std::mem::take(&mut self.pot));
        }
        Turn::Nothing
    }

    /// The hits that were taken of those that [`turn`](Self::turn) asked for.
    pub(crate) fn taken(&mut self, asked: u64, at: Time, taken: u64, now: Now) {
        let (is_next, is_cut) = (self.window_end.is_some_and(|end| at >= end), taken < asked);
        if is_next {
            self.next = self.next.saturating_add(taken);
            if is_cut && self.steps < STEPS.len() {
                self.level = (self.level - self.level / 4).max(1);
                self.is_contended = true;
            }
        } else {
            self.pot = self.pot.saturating_add(taken);
            if is_cut {
                self.dry_until = now.elapsed.saturating_add(DRY);
            }
        }
        self.is_cut = is_cut || self.is_cut && self.window_end.is_some();
    }

    /// What changes for the Envoys, by what was taken.
    pub(crate) fn assign(&mut self, limit: QuotaLimit, now: Now) -> Vec<(u64, Change)> {
        let is_short = limit.window_end.is_some() && limit.seconds < SHORT;
        let (cap, is_first, is_scarce) = (self.cap(limit), !self.is_assigned, self.is_scarce());
        let needs: Vec<u64> = self
            .envoys
            .iter()
            .map(|envoy| match envoy {
                _ if !envoy.is_live(now) => 0,
                _ if is_short && (is_first || envoy.grant.is_none()) => envoy.wants(limit, is_scarce, now),
                _ if is_short => 0,
                _ => envoy.needs(limit, cap, now),
            })
            .collect();
        self.is_assigned = true;
        let turn = usize::try_from(now.time.seconds()).unwrap_or(0);
        let shares = max_min(self.pot, &needs, turn);
        let mut changes = Vec::new();
        for (envoy, share) in self.envoys.iter_mut().zip(shares) {
            if envoy.abandoned_at.is_some() {
                continue;
            }
            let asks = std::mem::take(&mut envoy.asks);
            let idle = envoy.demand.idle_for(now.elapsed);
            // It reports its next request at once, and has just reported all before.
            let is_gone = envoy.demand.is_idle() || is_short && envoy.demand.has_dropped;
            let change = if idle >= IDLE || asks && is_scarce && is_gone && (is_short || share == 0) {
                // It will not report what it uses until it reads this.
                envoy.reported = envoy.paid;
                (envoy.abandoned_at, envoy.grant) = (Some(now.elapsed), None);
                Change::Abandon
            } else if share > 0 {
                self.pot = self.pot.saturating_sub(share);
                envoy.paid = envoy.paid.saturating_add(share);
                let grant = Grant::new(share, now.elapsed);
                envoy.grant = Some(grant);
                Change::Grant(grant)
            } else {
                match envoy.grant {
                    Some(grant) if asks => Change::Renew(grant),
                    None if asks => Change::Deny,
                    _ => continue,
                }
            };
            changes.push((envoy.stream, change));
        }
        // An idle one begins anew when it returns.
        self.envoys.retain(|envoy| envoy.abandoned_at.is_none() || !envoy.demand.is_idle());
        changes
    }

    /// The most that an Envoy is given at once of a limit that is assigned by demand.
    fn cap(&self, limit: QuotaLimit) -> u64 {
        let envoys = self.envoys.iter().filter(|envoy| envoy.abandoned_at.is_none()).count();
        let envoys = u64::try_from(envoys).unwrap_or(1).max(1);
        (limit.requests / (4 * envoys)).clamp(1, u64::from(u32::MAX))
    }

    /// True while the counter has less than Envoys want.
    fn is_scarce(&self) -> bool {
        self.is_cut || self.was_cut
    }

    /// The time until the next turn.
    pub(crate) fn rest(&self, limit: QuotaLimit, now: Now) -> Duration {
        let is_short = limit.window_end.is_some() && limit.seconds < SHORT;
        let is_low = |envoy: &Envoy| envoy.left(limit, now) < envoy.demand.of(2 * PACE, true);
        if is_short || self.live(now).any(is_low) { Duration::ZERO } else { PACE }
    }

    /// True if an Envoy came after the window was assigned.
    fn is_joined(&self) -> bool {
        self.envoys.iter().any(|envoy| envoy.asks && envoy.grant.is_none())
    }

    fn live(&self, now: Now) -> impl Iterator<Item = &Envoy> {
        self.envoys.iter().filter(move |envoy| envoy.is_live(now))
    }

    fn is_dry(&self, now: Now) -> bool {
        now.elapsed < self.dry_until
    }
}

impl Envoy {
    fn is_live(&self, now: Now) -> bool {
        self.abandoned_at.is_none() && now.elapsed.saturating_sub(self.demand.reported_at) < SILENCE
    }

    /// What it will use of a window of these seconds, if it has not enough left.
    fn wants(&self, limit: QuotaLimit, is_scarce: bool, now: Now) -> u64 {
        let wanted = self.demand.of(Duration::from_secs(limit.seconds), is_scarce).min(u64::from(u32::MAX));
        if self.left(limit, now) >= wanted { 0 } else { wanted }
    }

    /// What it will use until after its next report, if what is left will soon be used, or is much more: then the rest comes
    /// back with the next report.
    fn needs(&self, limit: QuotaLimit, cap: u64, now: Now) -> u64 {
        let (left, little) = (self.left(limit, now), cap / 8 + 1);
        let (wanted, soon) = if self.demand.is_known() {
            // Until after its next report, unless that is much to lie idle.
            let much = self.demand.of(PROMPT, false).max(MUCH);
            (self.demand.of(SILENCE, false).min(much), self.demand.of(2 * TICK, true))
        } else {
            // One that has not reported what it uses may be idle, and gets its part of the limit.
            let part = |time| part(limit.requests, time, Duration::from_secs(limit.seconds));
            (part(SILENCE).max(MUCH), part(2 * TICK))
        };
        let wanted = wanted.max(little).min(cap);
        let is_much = self.asks && left / HOARD > wanted;
        if left < soon.min(little) || is_much { wanted } else { 0 }
    }

    fn left(&self, limit: QuotaLimit, now: Now) -> u64 {
        self.grant.map_or(0, |grant| grant.left(&self.demand, limit, now.elapsed))
    }
}

fn take(hits: u64, at: Time) -> Turn {
    if hits == 0 { Turn::Nothing } else { Turn::Take(hits, at) }
}

fn before(end: Time, seconds: u64) -> Time {
    Time::from_micros(end.micros().saturating_sub(seconds * 1_000_000))
}
