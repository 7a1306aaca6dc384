//! The checks of each second, and of the end.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed};

use crate::{
    checks::Invariant,
    ledger::Window,
    limits::Counter,
    meters::{Excess, Meter},
    operations::target,
    plan::{RECOVERY, SECOND},
    servers::Stored,
    simulation::Simulation,
    world::Micros,
};
use metrics::CallerLeft;
use overrides::Action;

/// The time after which a change of overrides is in force on all replicas: docs/reference/overrides.md.
const IN_FORCE: Micros = 3 * SECOND;

/// The part of a demanded limit that may be unused, as a divisor: 0.5 %. Or a hit for each replica: a request that finds
/// a counter at its limit is counted, and hits that return from a lease later make up for it first.
const UNUSED: u64 = 200;

/// The connections of a replica to a server: one that counts, one for messages, and two of each of its three pools.
const CONNECTIONS: usize = 8;

/// A counter that has no expiry.
#[derive(Clone, Copy)]
pub struct Endless {
    value: i64,
    /// Requests were counted in the second before.
    has_changed: bool,
}

impl Simulation {
    pub fn check_second(&mut self) {
        self.check_counters();
        self.check_overrides();
        self.check_streams();
        self.check_envoys();
    }

    /// The counters in use expire, and have every hit.
    fn check_counters(&mut self) {
        let now = self.now();
        let second = (self.plan.began + now) / SECOND;
        if !self.redis.are_up(now) {
            return;
        }
        let had_none = std::mem::take(&mut self.without_expiry);
        for Stored { name, value, expires } in self.redis.counters(now) {
            let counter = Counter::named(&name, &self.limits);
            let Some(counter) = counter.filter(|one| (one.start..one.end()).contains(&second)) else {
                continue;
            };
            // An expiry that was lost on its way follows after the next request.
            let before = had_none.get(&name).copied();
            let is_expiring = expires.is_some() || before.is_none_or(|before| !before.has_changed);
            self.hold(Invariant::Expiry, is_expiring, || format!("{name} does not expire"));
            if expires.is_none() {
                let has_changed = before.is_some_and(|before| before.value != value);
                self.without_expiry.insert(name, Endless { value, has_changed });
            }
            self.check_counted(counter, u64::try_from(value).unwrap_or(0));
        }
    }

    /// A counter has every hit that was admitted, and none that nobody asked for.
    fn check_counted(&self, counter: Counter, count: u64) {
        let (window, asked) = {
            let ledger = self.ledger();
            let Some(window) = ledger.windows.get(&counter) else { return };
            (window.clone(), ledger.asked.get(&counter).copied().unwrap_or(0))
        };
        let Window { admitted, refunded, admitted_since, reset, losses, expired, .. } = window;
        let least = match reset {
            Some(_) => Some(admitted_since),
            None => (losses.is_empty() && expired.is_empty()).then_some(admitted),
        };
        if let Some(least) = least {
            self.hold(Invariant::Counted, count + refunded >= least, || {
                format!("{counter:?}: counted {count}, but {least} were admitted and {refunded} refunded")
            });
        }
        if !self.limits[counter.limit].is_leased {
            self.hold(Invariant::Counted, count <= asked, || {
                format!("{counter:?}: counted {count}, but {asked} were asked for")
            });
        }
    }

    fn check_overrides(&self) {
        let now = self.now();
        let faulty_until = if self.plan.is_clean() { 0 } else { self.plan.last_fault() + RECOVERY };
        let loses = self.plan.actions.iter().any(|one| one.action.loses_data());
        if now < faulty_until {
            return;
        }
        let operations = self.operations.lock().expect("nothing panics with it");
        for (one, expected) in &operations.overrides {
            if expected.pending > 0 || now < expected.since + IN_FORCE {
                continue;
            }
            let in_force =
                self.replicas.iter().flatten().filter(|replica| replica.is_settled(now)).map(|replica| {
                    let found = replica.keeper.index().get(&target(*one));
                    let limit = found.map(|one| match one.action {
                        Action::Limit { requests_per_unit, .. } => requests_per_unit,
                        _ => 0,
                    });
                    (replica.process, limit)
                });
            let in_force: Vec<_> = in_force.collect();
            let are_equal = in_force.windows(2).all(|two| two[0].1 == two[1].1);
            self.hold(Invariant::Converged, are_equal, || {
                format!("overrides of {one:?} differ: {in_force:?}")
            });
            if !expected.is_unknown && !loses {
                let are_right = in_force.iter().all(|(_, found)| *found == expected.limit);
                self.hold(Invariant::Override, are_right, || {
                    format!("overrides of {one:?}: {in_force:?}, but {:?} was acknowledged", expected.limit)
                });
            }
        }
    }

    pub fn check_end(&mut self) {
        self.check_recovery();
        self.check_windows();
        self.check_meters();
        self.check_leaks();
        self.check_metrics();
        self.check_late();
        self.check_all_refused();
        self.check_unused_by_envoys();
    }

    fn check_recovery(&self) {
        let (last, failures) = {
            let ledger = self.ledger();
            (ledger.last_failure, ledger.failures)
        };
        if self.plan.is_clean() {
            self.hold(Invariant::Recovery, failures == 0, || {
                format!("{failures} requests were answered by the failure policy, without any fault")
            });
            return;
        }
        let end = self.plan.last_fault().max(self.network.found.load(Relaxed)) + RECOVERY;
        self.hold(Invariant::Recovery, last.is_none_or(|last| last <= end), || {
            format!(
                "a request was answered by the failure policy at {} µs, after the recovery at {end} µs",
                last.unwrap_or(0)
            )
        });
    }

    fn check_windows(&self) {
        if !self.plan.is_clean() {
            return;
        }
        let now = self.now();
        let named = |one: Stored| Some((Counter::named(&one.name, &self.limits)?, one.value));
        let stored: BTreeMap<Counter, i64> = self.redis.counters(now).into_iter().filter_map(named).collect();
        let windows: Vec<(Counter, Window)> =
            self.ledger().windows.iter().map(|(counter, window)| (*counter, window.clone())).collect();
        for (counter, window) in windows {
            let Window { limit, demanded, admitted, refunded, failed, .. } = window;
            if failed > 0 || !window.losses.is_empty() {
                continue;
            }
            let has_ended = counter.end() * SECOND <= self.plan.began + now;
            let demanded_in_time = if has_ended { demanded } else { window.demanded_early };
            if window.is_plain && demanded_in_time >= limit {
                let unused = limit.saturating_sub(admitted);
                let most = limit.div_ceil(UNUSED).max(self.plan.replicas.len() as u64);
                self.hold_of(counter, Invariant::Unused, unused <= most, || {
                    format!("{counter:?}: {unused} of {limit} hits are unused, of {demanded} demanded")
                });
            }
            if let Some(value) = stored.get(&counter) {
                let count = u64::try_from(*value).unwrap_or(0);
                // Unspent hits at the end of a window are lost with it.
                let is_demanded = count <= demanded || has_ended;
                self.hold_of(counter, Invariant::Counted, is_demanded && count + refunded >= admitted, || {
                    format!("{counter:?}: counted {count}, but {demanded} were demanded, {admitted} admitted and {refunded} refunded")
                });
            }
        }
    }

    /// Limits without fixed windows have admitted no more than their algorithms do.
    fn check_meters(&self) {
        let ledger = self.ledger();
        let excess = |(limit, meter): (&usize, &Meter)| (*limit, meter.excess(&ledger.limits[*limit]));
        let found: Vec<(usize, Option<Excess>)> = ledger.meters.iter().map(excess).collect();
        drop(ledger);
        for (limit, excess) in found {
            let holds = excess.is_none();
            let (at, what) = excess.unwrap_or_default();
            let at = at.saturating_sub(self.plan.began);
            let what = || format!("{:?} limit: {limit}, {what}", self.limits[limit].algorithm);
            self.ledger().checks.hold(Invariant::Limit, holds, at, what);
        }
    }

    fn check_leaks(&self) {
        let waiting: u64 = self.ledger().waiting.values().sum();
        self.hold(Invariant::Leak, waiting == 0, || format!("{waiting} requests have no answer"));
        let replicas = self.replicas.iter().flatten().count();
        let connections = self.redis.connections();
        let most = replicas * CONNECTIONS * self.redis.data.len();
        self.hold(Invariant::Leak, connections <= most, || {
            format!("{connections} connections to redis of {replicas} replicas")
        });
        for replica in self.replicas.iter().flatten() {
            let process = replica.process;
            if let Some(leases) = counters::Report::leases(&*replica.store) {
                self.hold(Invariant::Leak, leases.held == 0 && leases.keys == 0, || {
                    format!("{process} has leases: {leases:?}")
                });
            }
            let queued: u64 = counters::Report::pools(&*replica.store).iter().map(|pool| pool.queued).sum();
            self.hold(Invariant::Leak, queued == 0, || format!("{process} has {queued} queued checks"));
            let closings = replica.limiter.queued_closings();
            self.hold(Invariant::Leak, closings == 0, || format!("{process} has {closings} queued closings"));
            let owed = replica.limiter.owed();
            self.hold(Invariant::Leak, owed == 0, || {
                format!("{process} has {owed} decisions without callers")
            });
            let tasks = self.world.tasks(process);
            self.hold(Invariant::Leak, tasks <= MAX_TASKS * self.redis.data.len(), || {
                format!("{process} has {tasks} tasks")
            });
        }
    }

    fn check_metrics(&self) {
        for replica in self.replicas.iter().flatten() {
            let seen = self.ledger().codes.get(&replica.process).copied().unwrap_or_default();
            let counted = replica.stats.requests_by_code();
            let left = replica.stats.service().callers_left(CallerLeft::Finished).get();
            // Nobody saw the answers to those who left.
            let all_seen = seen.iter().zip(counted).all(|(seen, counted)| *seen <= counted);
            let unseen = counted.iter().sum::<u64>().saturating_sub(seen.iter().sum());
            self.hold(Invariant::Metrics, all_seen && unseen <= left, || {
                format!(
                    "{}: callers saw {seen:?} answers (ok, over limit, error), and {left} had left; the metrics {counted:?}",
                    replica.process
                )
            });
        }
    }
}

/// For each server: connection, leases, holds, follower, maintenance, topology, the list of replicas, and a driver for each pooled connection.
const MAX_TASKS: usize = 14;
