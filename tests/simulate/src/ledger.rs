//! What callers saw: every answer by counter and window, and what Redis lost of each.

use std::collections::BTreeMap;

use faults::OnStoreFailure;
use limiter::{Answer, Code, RequestError};

use crate::{
    checks::{Checks, Invariant},
    limits::{Counter, ENTRY, ENTRY_DIGIT, LimitPlan},
    meters::{Admitted, Meter},
    plan::Plan,
    world::{Micros, Process},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Take(u64),
    Refund(u64),
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub process: Process,
    pub limit: usize,
    pub asked: Asked,
    pub at: Micros,
    /// The time by the clock of the replica, in microseconds since 1970.
    pub time: u64,
    pub deadline: Micros,
}

#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The highest limit that an answer named.
    pub limit: u64,
    pub demanded: u64,
    /// Those for which returned hits can still be admitted before traffic ends.
    pub demanded_early: u64,
    pub admitted: u64,
    pub refunded: u64,
    /// Hits that Redis lost, each time.
    pub losses: Vec<u64>,
    /// The hits of the counter when it expired, each time.
    pub expired: Vec<u64>,
    /// Requests that the failure policy decided.
    pub failed: u64,
    /// All requests had one hit, and the limit did not change.
    pub is_plain: bool,
    /// The last reset was acknowledged then, and the hits admitted of requests that were sent a second later.
    pub reset: Option<Micros>,
    pub admitted_since: u64,
    /// The hits demanded since then.
    pub demanded_since: u64,
    /// Hits admitted by a replica on its own while Redis was lost.
    pub local: BTreeMap<Process, u64>,
    /// A replica that did not know all others admitted some of these.
    is_local_alone: bool,
    /// Each lets every replica's own counter begin anew, once.
    resets: u64,
}

impl Window {
    /// The most that the replicas admit that have admitted anything on their own, of as many in all.
    fn shares(&self, replicas: u64) -> u64 {
        let cut_off = self.local.len() as u64;
        if cut_off < replicas { cut_off * (self.limit / replicas + 1) } else { self.limit.max(replicas) }
    }

    /// The hits within the limit that Redis lost.
    fn lost(&self) -> u64 {
        self.losses.iter().chain(&self.expired).map(|lost| (*lost).min(self.limit)).sum()
    }
}

pub struct Ledger {
    pub windows: BTreeMap<Counter, Window>,
    /// The hits of all requests that were sent, with an answer or without.
    pub asked: BTreeMap<Counter, u64>,
    /// The requests without an answer, by process.
    pub waiting: BTreeMap<Process, u64>,
    /// Answers by process: within the limit, over it, and errors.
    pub codes: BTreeMap<Process, [u64; 3]>,
    pub answers: u64,
    /// The last answer that the failure policy gave, and their number.
    pub last_failure: Option<Micros>,
    pub failures: u64,
    pub policy: OnStoreFailure,
    /// Nothing but replicas is ever late.
    pub is_redis_calm: bool,
    replicas: u64,
    /// Every replica has known all others since the last one started or ended.
    pub is_shared: bool,
    /// The time of day at the start, in microseconds since 1970.
    began: u64,
    pub last_early: Micros,
    /// With the highest limit that was in force.
    pub limits: Vec<LimitPlan>,
    /// The lowest limit that was in force of each.
    lowest: Vec<u64>,
    /// Those without fixed windows, by limit.
    pub meters: BTreeMap<usize, Meter>,
    /// Answers by the kind of the limit.
    pub by_kind: [u64; LimitPlan::KINDS.len()],
    pub checks: Checks,
}

/// The time after which a reset is in force everywhere.
const RESET_IN_FORCE: Micros = 1_000_000;

/// A replica that knows a counter as over its limit reads it again after five seconds, and admits what was returned to it.
const OVER_FOR: Micros = 6_000_000;

impl Ledger {
    pub fn new(plan: &Plan) -> Self {
        Self {
            windows: BTreeMap::new(),
            asked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            codes: BTreeMap::new(),
            answers: 0,
            last_failure: None,
            failures: 0,
            policy: plan.policy,
            is_redis_calm: plan.only_stops(),
            replicas: plan.replicas.len() as u64,
            is_shared: false,
            began: plan.began,
            last_early: plan.traffic.saturating_sub(OVER_FOR),
            limits: plan.limits.clone(),
            lowest: plan.limits.iter().map(|limit| limit.limit).collect(),
            meters: BTreeMap::new(),
            by_kind: Default::default(),
            checks: Checks::default(),
        }
    }

    /// A request is decided at this second.
    pub fn asks(&mut self, limit: usize, second: u64, asked: Asked) {
        if let (Asked::Refund(hits), false) = (asked, self.limits[limit].is_fixed()) {
            self.meters.entry(limit).or_default().credit += hits;
        }
        for counter in self.limits[limit].counters(limit, second) {
            match asked {
                Asked::Take(hits) => *self.asked.entry(counter).or_default() += hits,
                // Redis has them before the caller knows.
                Asked::Refund(hits) => self.windows.entry(counter).or_default().refunded += hits,
            }
        }
    }

    pub fn sent(&mut self, sent: &Sent) {
        *self.waiting.entry(sent.process).or_default() += 1;
    }

    /// An answer, which the failure policy gave if `failed`. `may_be_late` if the process was stopped meanwhile.
    pub fn answered(
        &mut self,
        sent: &Sent,
        answer: &Result<Answer, RequestError>,
        failed: bool,
        may_be_late: bool,
        now: Micros,
    ) {
        *self.waiting.entry(sent.process).or_default() -= 1;
        self.answers += 1;
        if failed {
            self.failures += 1;
            self.last_failure = Some(now);
        }
        if !may_be_late {
            let late = now.saturating_sub(sent.deadline);
            self.checks.hold(Invariant::Deadline, late == 0, now, || {
                format!("a request was answered {late} µs after its deadline")
            });
        }
        self.counted(sent.process, answer);
        if let Ok(answer) = answer {
            self.count(sent, answer, failed, now);
        }
    }

    /// The metrics of a process count an answer.
    pub fn counted(&mut self, process: Process, answer: &Result<Answer, RequestError>) {
        let codes = self.codes.entry(process).or_default();
        match answer {
            Ok(answer) => codes[usize::from(answer.code == Code::OverLimit)] += 1,
            Err(_) => codes[2] += 1,
        }
    }

    fn count(&mut self, sent: &Sent, answer: &Answer, failed: bool, now: Micros) {
        let status = &answer.statuses[0];
        let Some(current) = &status.current_limit else { return };
        let plan = self.limits[sent.limit];
        self.by_kind[plan.kind()] += 1;
        if let (true, Asked::Take(1..)) = (failed && current.requests_per_unit > 0, sent.asked) {
            let expected = match self.policy {
                OnStoreFailure::Allow => Code::Ok,
                OnStoreFailure::Deny => Code::OverLimit,
                OnStoreFailure::Local | OnStoreFailure::Share | OnStoreFailure::Error => status.code,
            };
            self.checks.hold(Invariant::Policy, status.code == expected, now, || {
                format!("k{}: {:?} by the failure policy {:?}", sent.limit, status.code, self.policy)
            });
        }
        let is_admitted = status.code == Code::Ok;
        if let (false, true, false, Asked::Take(hits @ 1..)) =
            (plan.is_fixed(), is_admitted, failed, sent.asked)
        {
            let admitted = Admitted { at: self.began + sent.at, took: now - sent.at, hits };
            self.meters.entry(sent.limit).or_default().admitted.push(admitted);
        }
        for counter in plan.counters(sent.limit, sent.time / 1_000_000) {
            let by_entry = current.requests_per_unit % 10 == ENTRY_DIGIT;
            if plan.is_plain() && by_entry != (counter.part == ENTRY) {
                continue;
            }
            // The status is that of one limit of the rule.
            let limit =
                if plan.also.is_some() { plan.amount(counter.part) } else { current.requests_per_unit };
            self.count_in(counter, limit, sent, is_admitted, failed, now);
        }
    }

    fn count_in(
        &mut self,
        counter: Counter,
        limit: u64,
        sent: &Sent,
        is_admitted: bool,
        failed: bool,
        now: Micros,
    ) {
        let is_alone = self.limits[counter.limit].also.is_none() && counter.part != ENTRY;
        let is_new = !self.windows.contains_key(&counter);
        let window = self.windows.entry(counter).or_default();
        window.is_plain =
            is_alone && (is_new || window.is_plain && window.limit == limit) && sent.asked == Asked::Take(1);
        window.limit = window.limit.max(limit);
        match sent.asked {
            Asked::Refund(hits) => {
                if let Some(local) = window.local.get_mut(&sent.process).filter(|_| failed) {
                    *local = local.saturating_sub(hits);
                }
            }
            Asked::Take(hits) => {
                window.demanded += hits;
                window.demanded_early += if now < self.last_early { hits } else { 0 };
                window.failed += u64::from(failed);
                if window.reset.is_some_and(|reset| sent.at > reset) {
                    window.demanded_since += hits;
                }
                let demanded = window.demanded_since;
                let is_reset = window.reset.is_some_and(|reset| sent.at > reset + RESET_IN_FORCE);
                // What was leased of a higher limit counts until it is returned.
                let is_lowered =
                    limit < window.limit || self.lowest[counter.limit] < self.limits[counter.limit].limit;
                if is_admitted {
                    self.admit(counter, sent, hits, failed, now);
                } else if is_reset && !failed && counter.part != ENTRY && !is_lowered {
                    // Any limit of the rule may refuse.
                    let plan = &self.limits[counter.limit];
                    let least = if plan.also.is_some() { plan.amount(0).min(plan.amount(1)) } else { limit };
                    self.checks.hold(Invariant::Reset, demanded >= least / 2, now, || {
                        format!("{counter:?}: over limit after {demanded} hits since a reset, with a limit of {least}")
                    });
                }
            }
        }
    }

    fn admit(&mut self, counter: Counter, sent: &Sent, hits: u64, failed: bool, now: Micros) {
        let Self { windows, checks, policy, replicas, is_shared, .. } = self;
        let window = windows.get_mut(&counter).expect("the request was counted in it");
        if failed {
            if matches!(*policy, OnStoreFailure::Local | OnStoreFailure::Share) {
                let local = window.local.entry(sent.process).or_default();
                *local += hits;
                checks.hold(Invariant::Limit, *local <= window.limit * (1 + window.resets), now, || {
                    format!(
                        "{counter:?}: {local} hits admitted by {} alone, with a limit of {}",
                        sent.process, window.limit
                    )
                });
                window.is_local_alone |= !*is_shared;
            }
            if *policy == OnStoreFailure::Share && !window.is_local_alone {
                let (all, bound) = (window.local.values().sum::<u64>(), window.shares(*replicas));
                checks.hold(Invariant::Limit, all <= bound * (1 + window.resets), now, || {
                    format!(
                        "{counter:?}: {all} hits admitted by {} of {replicas} replicas without redis, with a limit of {}",
                        window.local.len(),
                        window.limit
                    )
                });
            }
            return;
        }
        window.admitted += hits;
        if window.reset.is_some_and(|reset| sent.at > reset + RESET_IN_FORCE) {
            window.admitted_since += hits;
            let bound = window.limit + window.refunded;
            checks.hold(Invariant::Reset, window.admitted_since <= bound, now, || {
                format!(
                    "{counter:?}: {} hits admitted since a reset, with a limit of {}",
                    window.admitted_since, window.limit
                )
            });
        }
        let lost = window.lost();
        let bound = window.limit + lost + window.refunded;
        checks.hold(Invariant::Limit, window.admitted <= bound, now, || {
            let Window { admitted, limit, refunded, .. } = window;
            format!("{counter:?}: {admitted} hits admitted, with a limit of {limit}, {lost} lost by redis, {refunded} refunded")
        });
    }

    /// The limits whose demand was at least as large, in windows that ended before a time of day, and what of them nobody
    /// admitted.
    pub fn unused(&self, until: Micros) -> (u64, u64) {
        let is_demanded = |(counter, window): &(&Counter, &Window)| {
            window.is_plain && window.demanded >= window.limit && counter.end() * 1_000_000 <= until
        };
        self.windows.iter().filter(is_demanded).fold((0, 0), |(limits, unused), (_, window)| {
            let admitted = window.admitted + window.local.values().sum::<u64>();
            (limits + window.limit, unused + window.limit.saturating_sub(admitted))
        })
    }

    /// A process has ended; its requests get no answer.
    pub fn ended(&mut self, process: Process) {
        self.waiting.remove(&process);
    }

    /// A counter has expired. Requests that come later, by a late clock or a slow network, are counted anew.
    pub fn expired(&mut self, counter: Counter, hits: u64, redis: u64, is_clean: bool, now: Micros) {
        let Some(window) = self.windows.get_mut(&counter) else { return };
        window.expired.push(hits);
        let end = counter.end();
        self.checks.hold(Invariant::Expiry, !is_clean || redis >= end, now, || {
            format!("{counter:?} expired at {redis}, before its window ended at {end}")
        });
    }

    /// Redis has lost hits of a counter.
    pub fn lost(&mut self, counter: Counter, hits: u64) {
        self.windows.entry(counter).or_default().losses.push(hits);
    }

    /// Redis may have lost the state of a limit without fixed windows; of all such limits without one.
    pub fn lost_state(&mut self, of: Option<usize>) {
        for (limit, plan) in self.limits.iter().enumerate() {
            if !plan.is_fixed() && of.is_none_or(|of| of == limit) {
                self.meters.entry(limit).or_default().credit += Meter::capacity(plan);
            }
        }
    }

    /// The rules have another limit.
    pub fn reloaded(&mut self, limit: usize, to: u64) {
        self.limits[limit].limit = self.limits[limit].limit.max(to);
        self.lowest[limit] = self.lowest[limit].min(to);
        self.lost_state(Some(limit));
    }

    /// A counter is being reset: it may lose all hits that were counted before.
    pub fn resets(&mut self, counter: Counter) {
        let window = self.windows.entry(counter).or_default();
        window.losses.push(u64::MAX);
        window.reset = None;
        window.resets += 1;
    }

    /// A counter was reset, and the replicas were notified.
    pub fn reset(&mut self, counter: Counter, now: Micros) {
        let window = self.windows.entry(counter).or_default();
        window.reset = Some(now);
        window.admitted_since = 0;
        window.demanded_since = 0;
    }
}
