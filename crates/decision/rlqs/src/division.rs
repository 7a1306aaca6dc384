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

/// The first level is this part of a limit, of which others may use the rest.
const FIRST_LEVEL: u64 = 4;

/// Multiplicative decrease: a level is lowered by this part when others took hits within it. In the first step a replica asks
/// for as much less than its level, so that it does not find out about others by taking what they are entitled to.
const DECREASE: u64 = 4;

/// Additive increase: a level grows by this part of the geometric mean of itself and the limit, which is relatively more for
/// a lower level: `level' = √level / 24` in parts of the limit, so that it grows from a quarter to the whole in 24 windows.
const INCREASE: u64 = 24;

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
#[derive(Debug, Default)]
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
    /// Hits of the current window that are paid for and not assigned.
    pot: u64,
    window: Window,
    /// The most that an Envoy is given of a short window in the first two steps: additive increase, multiplicative decrease.
    level: u64,
    supply: Supply,
}

/// What begins anew with each window.
#[derive(Debug, Default)]
struct Window {
    end: Option<Time>,
    stage: Stage,
    /// Hits of the next window that are paid for, if it is short.
    next: u64,
    demand_of_next: DemandOfNext,
    /// The counter is empty, and is not asked before.
    dry_until: Duration,
}

/// How far a short window is.
#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// What was taken ahead of time is to be assigned, and the rest to be taken.
    #[default]
    Begun,
    /// Envoys have what there was, and so many of [`STEPS`] have taken hits of the next window.
    Assigned { steps: usize },
}

/// What the first two steps found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum DemandOfNext {
    #[default]
    WithinLevel,
    /// An Envoy wants more than the level. The level grows with the next window.
    AboveLevel,
    /// Others took hits that were within the level, which was lowered.
    Contended,
}

/// Whether the counter has what Envoys want.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Supply {
    #[default]
    Enough,
    /// It had less in the window before.
    WasScarce,
    /// It had less than was asked for in this window.
    Scarce,
}

impl Division {
    /// Counts what an Envoy reports. Its first report says that it exists.
    pub(crate) fn report(&mut self, stream: u64, allowed: u64, denied: u64, now: Now) {
        let Some(envoy) = self.envoys.iter_mut().find(|envoy| envoy.stream == stream) else {
            let demand = Demand::unknown(now.elapsed);
            self.envoys.push(Envoy { stream, demand, asks: true, ..Envoy::default() });
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
            self.level = if self.limit == 0 { limit.requests / FIRST_LEVEL } else { self.level };
            self.limit = limit.requests;
            // Hits that were taken under a larger limit are not assigned.
            self.pot = self.pot.min(limit.requests);
            self.window.next = self.window.next.min(limit.requests);
        }
        self.roll(limit);
        self.level = self.level.clamp(1, limit.requests.max(1));
        match limit.window_end {
            Some(end) if is_short(limit) => self.turn_of_short(limit, end, now),
            _ => self.turn_by_demand(limit, now),
        }
    }

    /// Begins a new window. What was not assigned in the last one is gone, and what Envoys have left of it is not taken
    /// from the new one.
    fn roll(&mut self, limit: QuotaLimit) {
        if self.window.end == limit.window_end {
            return;
        }
        let start = limit.window_end.map(|end| before(end, limit.seconds));
        self.pot = if self.window.end == start { self.window.next } else { 0 };
        if self.window.demand_of_next == DemandOfNext::AboveLevel {
            let step = self.limit.saturating_mul(self.level).isqrt() / INCREASE;
            self.level = self.level.saturating_add(step.max(1));
        }
        for envoy in &mut self.envoys {
            envoy.paid = 0;
            envoy.reported = 0;
        }
        self.supply = match self.supply {
            Supply::Scarce => Supply::WasScarce,
            Supply::WasScarce | Supply::Enough => Supply::Enough,
        };
        self.window = Window { end: limit.window_end, ..Window::default() };
    }

    fn turn_of_short(&mut self, limit: QuotaLimit, end: Time, now: Now) -> Turn {
        let Stage::Assigned { steps } = self.window.stage else {
            let wanted = self.wanted(limit, self.level, now, |_| true);
            return take(wanted.saturating_sub(self.pot), now.time);
        };
        if self.is_joined() && !self.is_dry(now) {
            let wanted = self.wanted(limit, self.level, now, |envoy| envoy.grant.is_none());
            return take(wanted.saturating_sub(self.pot), now.time);
        }
        if self.pot > 0 {
            return Turn::GiveBack(std::mem::take(&mut self.pot));
        }
        let begun = now.time.micros().saturating_sub(before(end, limit.seconds).micros());
        let levels = [self.level - self.level / DECREASE, self.level, limit.requests];
        let Some((tenths, level)) = STEPS.into_iter().zip(levels).nth(steps) else {
            return Turn::Nothing;
        };
        if begun < tenths * limit.seconds * 100_000 {
            return Turn::Nothing;
        }
        self.window.stage = Stage::Assigned { steps: steps + 1 };
        let wanted = self.wanted(limit, level, now, |_| true);
        let is_above = wanted < self.wanted(limit, limit.requests, now, |_| true);
        if is_above && self.window.demand_of_next == DemandOfNext::WithinLevel {
            self.window.demand_of_next = DemandOfNext::AboveLevel;
        }
        take(wanted.saturating_sub(self.window.next), end)
    }

    /// What Envoys will use of a short window, each up to a level.
    fn wanted(&self, limit: QuotaLimit, level: u64, now: Now, is_asked: impl Fn(&Envoy) -> bool) -> u64 {
        let envoys = self.live(now).filter(|envoy| is_asked(envoy));
        let each = envoys.map(|envoy| envoy.wants(limit, self.is_scarce(), now).min(level));
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
        let is_scarce = taken < asked;
        if is_scarce {
            self.supply = Supply::Scarce;
        } else if self.window.end.is_none() {
            self.supply = Supply::Enough;
        }
        if self.window.end.is_some_and(|end| at >= end) {
            self.window.next = self.window.next.saturating_add(taken);
            let is_bounded = matches!(self.window.stage, Stage::Assigned { steps } if steps < STEPS.len());
            if is_scarce && is_bounded {
                self.level = (self.level - self.level / DECREASE).max(1);
                self.window.demand_of_next = DemandOfNext::Contended;
            }
        } else {
            self.pot = self.pot.saturating_add(taken);
            if is_scarce {
                self.window.dry_until = now.elapsed.saturating_add(DRY);
            }
        }
    }

    /// What changes for the Envoys, by what was taken.
    pub(crate) fn assign(&mut self, limit: QuotaLimit, now: Now) -> Vec<(u64, Change)> {
        let is_short = is_short(limit);
        let is_scarce = self.is_scarce();
        let cap = self.cap(limit);
        let is_first = matches!(self.window.stage, Stage::Begun);
        let needs = self.envoys.iter().map(|envoy| match envoy {
            _ if !envoy.is_live(now) => 0,
            _ if is_short && (is_first || envoy.grant.is_none()) => envoy.wants(limit, is_scarce, now),
            _ if is_short => 0,
            _ => envoy.needs(limit, cap, now),
        });
        let needs: Vec<u64> = needs.collect();
        if is_first {
            self.window.stage = Stage::Assigned { steps: 0 };
        }
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
                envoy.abandoned_at = Some(now.elapsed);
                envoy.grant = None;
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
        self.supply != Supply::Enough
    }

    /// The time until the next turn.
    pub(crate) fn rest(&self, limit: QuotaLimit, now: Now) -> Duration {
        let is_low = |envoy: &Envoy| envoy.left(limit, now) < envoy.demand.of(2 * PACE, true);
        if is_short(limit) || self.live(now).any(is_low) { Duration::ZERO } else { PACE }
    }

    /// True if an Envoy came after the window was assigned.
    fn is_joined(&self) -> bool {
        self.envoys.iter().any(|envoy| envoy.asks && envoy.grant.is_none())
    }

    fn live(&self, now: Now) -> impl Iterator<Item = &Envoy> {
        self.envoys.iter().filter(move |envoy| envoy.is_live(now))
    }

    fn is_dry(&self, now: Now) -> bool {
        now.elapsed < self.window.dry_until
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
        let left = self.left(limit, now);
        let little = cap / 8 + 1;
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

/// True for a window that is assigned once.
fn is_short(limit: QuotaLimit) -> bool {
    limit.window_end.is_some() && limit.seconds < SHORT
}

fn take(hits: u64, at: Time) -> Turn {
    if hits == 0 { Turn::Nothing } else { Turn::Take(hits, at) }
}

fn before(end: Time, seconds: u64) -> Time {
    Time::from_micros(end.micros().saturating_sub(seconds * 1_000_000))
}
