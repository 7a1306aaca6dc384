//! What callers saw: every answer by counter and window, and what Redis lost of each.

use std::collections::BTreeMap;

use limiter::{Answer, Code, RequestError};
use rules::{OnStoreFailure, Unit};

use crate::{
    checks::{Checks, Invariant},
    world::{Micros, Process},
};

/// A counter: a limit of the plan, the length of its window in seconds, and the second at which the window began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    pub limit: usize,
    pub seconds: u64,
    pub start: u64,
}

impl Counter {
    /// The counter with this name. Only the length of its window is unknown.
    pub fn named(name: &str) -> Option<Self> {
        let (limit, start) = name.strip_prefix("sim_k")?.split_once("_v_")?;
        Some(Self { limit: limit.parse().ok()?, seconds: 0, start: start.parse().ok()? })
    }

    /// Its name in Redis.
    pub fn name(&self) -> String {
        format!("sim_k{}_v_{}", self.limit, self.start)
    }
}

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
    /// The time by the clock of the replica.
    pub second: u64,
    pub deadline: Micros,
}

#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The highest limit that an answer named.
    pub limit: u64,
    pub demanded: u64,
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
    /// Each lets every replica's own counter begin anew, once.
    resets: u64,
}

impl Window {
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
    pub checks: Checks,
}

/// The time after which a reset is in force everywhere.
const RESET_IN_FORCE: Micros = 1_000_000;

impl Ledger {
    pub fn new(policy: OnStoreFailure) -> Self {
        Self {
            windows: BTreeMap::new(),
            asked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            codes: BTreeMap::new(),
            answers: 0,
            last_failure: None,
            failures: 0,
            policy,
            checks: Checks::default(),
        }
    }

    /// A request is decided in this window.
    pub fn asks(&mut self, counter: Counter, asked: Asked) {
        match asked {
            Asked::Take(hits) => *self.asked.entry(counter).or_default() += hits,
            // Redis has them before the caller knows.
            Asked::Refund(hits) => self.windows.entry(counter).or_default().refunded += hits,
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
        let seconds = seconds_of(current.unit);
        let counter = Counter { limit: sent.limit, seconds, start: sent.second / seconds * seconds };
        let is_new = !self.windows.contains_key(&counter);
        let window = self.windows.entry(counter).or_default();
        let limit = current.requests_per_unit;
        window.is_plain =
            (is_new || window.is_plain && window.limit == limit) && sent.asked == Asked::Take(1);
        window.limit = window.limit.max(limit);
        match sent.asked {
            Asked::Refund(hits) => {
                if let Some(local) = window.local.get_mut(&sent.process).filter(|_| failed) {
                    *local = local.saturating_sub(hits);
                }
            }
            Asked::Take(hits) => {
                window.demanded += hits;
                window.failed += u64::from(failed);
                if window.reset.is_some_and(|reset| sent.at > reset) {
                    window.demanded_since += hits;
                }
                let demanded = window.demanded_since;
                let is_reset = window.reset.is_some_and(|reset| sent.at > reset + RESET_IN_FORCE);
                if status.code == Code::Ok {
                    self.admit(counter, sent, hits, failed, now);
                } else if is_reset && !failed {
                    self.checks.hold(Invariant::Reset, demanded >= limit / 2, now, || {
                        format!("{counter:?}: over limit after {demanded} hits since a reset, with a limit of {limit}")
                    });
                }
                if failed && hits > 0 && limit > 0 {
                    let expected = match self.policy {
                        OnStoreFailure::Allow => Code::Ok,
                        OnStoreFailure::Deny => Code::OverLimit,
                        OnStoreFailure::Local | OnStoreFailure::Error => status.code,
                    };
                    self.checks.hold(Invariant::Policy, status.code == expected, now, || {
                        format!("{counter:?}: {:?} by the failure policy {:?}", status.code, self.policy)
                    });
                }
            }
        }
    }

    fn admit(&mut self, counter: Counter, sent: &Sent, hits: u64, failed: bool, now: Micros) {
        let Self { windows, checks, policy, .. } = self;
        let window = windows.get_mut(&counter).expect("the request was counted in it");
        if failed {
            if *policy == OnStoreFailure::Local {
                let local = window.local.entry(sent.process).or_default();
                *local += hits;
                checks.hold(Invariant::Limit, *local <= window.limit * (1 + window.resets), now, || {
                    format!(
                        "{counter:?}: {local} hits admitted by {} alone, with a limit of {}",
                        sent.process, window.limit
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

    /// A process has ended; its requests get no answer.
    pub fn ended(&mut self, process: Process) {
        self.waiting.remove(&process);
    }

    /// A counter has expired. Requests that come later, by a late clock or a slow network, are counted anew.
    pub fn expired(&mut self, name: Counter, hits: u64, redis: u64, is_clean: bool, now: Micros) {
        let same = |counter: &Counter| (counter.limit, counter.start) == (name.limit, name.start);
        let Some((counter, window)) = self.windows.iter_mut().find(|(counter, _)| same(counter)) else {
            return;
        };
        window.expired.push(hits);
        let end = counter.start + counter.seconds;
        self.checks.hold(Invariant::Expiry, !is_clean || redis >= end, now, || {
            format!("{counter:?} expired at {redis}, before its window ended at {end}")
        });
    }

    /// An operator resets a counter: all hits that were counted before may be lost.
    pub fn resets(&mut self, counter: Counter) {
        self.lost(counter, u64::MAX);
        self.windows.entry(counter).or_default().resets += 1;
    }

    /// Redis has lost hits of a counter.
    pub fn lost(&mut self, counter: Counter, hits: u64) {
        self.windows.entry(counter).or_default().losses.push(hits);
    }

    /// A counter was reset, and the replicas were notified.
    pub fn reset(&mut self, counter: Counter, now: Micros) {
        let window = self.windows.entry(counter).or_default();
        window.reset = Some(now);
        window.admitted_since = 0;
        window.demanded_since = 0;
    }
}

pub fn seconds_of(unit: Unit) -> u64 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3600,
        _ => 86_400,
    }
}
