//! The checks of each second, and of the end.

use crate::{
    checks::Invariant,
    ledger::{Counter, Window},
    operations::target,
    plan::{RECOVERY, SECOND},
    simulation::Simulation,
    world::Micros,
};
use overrides::Action;

/// The time after which a change of overrides is in force on all replicas: docs/overrides.md.
const IN_FORCE: Micros = 3 * SECOND;

/// The part of a demanded limit that may be unused, as a divisor: 0.5 %.
const UNUSED: u64 = 200;

/// The connections of a replica: one that counts, one for messages, and two of each of its two pools.
const CONNECTIONS: usize = 6;

impl Simulation {
    pub fn check_second(&mut self) {
        self.check_counters();
        self.check_overrides();
        self.check_streams();
    }

    /// The counters in use expire, and have every hit.
    fn check_counters(&mut self) {
        let now = self.now();
        let second = (self.plan.began + now) / SECOND;
        for limit in 0..self.limits.len() {
            let name = self.counter_of(limit, second).name();
            if self.redis.down_until > now {
                continue;
            }
            let Some(value) = self.redis.counter(now, &name) else { continue };
            let expiry = self.redis.expiry(now, &name);
            // A counter that Redis lost is created without an expiry, which follows in the next command.
            let had_none = std::mem::take(&mut self.without_expiry[limit]) == Some(name.clone());
            self.without_expiry[limit] = (expiry == -1).then(|| name.clone());
            self.hold(Invariant::Expiry, expiry != -1 || !had_none, || format!("{name} does not expire"));
            self.check_counted(self.counter_of(limit, second), u64::try_from(value).unwrap_or(0));
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
        for (limit, expected) in &operations.overrides {
            if expected.pending > 0 || now < expected.since + IN_FORCE {
                continue;
            }
            let in_force =
                self.replicas.iter().flatten().filter(|replica| replica.is_settled(now)).map(|replica| {
                    let found = replica.keeper.index().get(&target(*limit));
                    let limit = found.map(|one| match one.action {
                        Action::Limit { requests_per_unit, .. } => requests_per_unit,
                        _ => 0,
                    });
                    (replica.process, limit)
                });
            let in_force: Vec<_> = in_force.collect();
            let are_equal = in_force.windows(2).all(|two| two[0].1 == two[1].1);
            self.hold(Invariant::Converged, are_equal, || {
                format!("overrides of k{limit} differ: {in_force:?}")
            });
            if !expected.is_unknown && !loses {
                let are_right = in_force.iter().all(|(_, found)| *found == expected.limit);
                self.hold(Invariant::Override, are_right, || {
                    format!("overrides of k{limit}: {in_force:?}, but {:?} was acknowledged", expected.limit)
                });
            }
        }
    }

    pub fn check_end(&mut self) {
        self.check_recovery();
        self.check_windows();
        self.check_leaks();
        self.check_metrics();
        self.check_late();
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
        let end = self.plan.last_fault() + RECOVERY;
        self.hold(Invariant::Recovery, last.is_none_or(|last| last <= end), || {
            format!(
                "a request was answered by the failure policy at {} µs, after the recovery at {end} µs",
                last.unwrap_or(0)
            )
        });
    }

    fn check_windows(&mut self) {
        if !self.plan.is_clean() {
            return;
        }
        let windows: Vec<(Counter, Window)> =
            self.ledger().windows.iter().map(|(counter, window)| (*counter, window.clone())).collect();
        for (counter, window) in windows {
            let Window { limit, demanded, admitted, refunded, failed, .. } = window;
            if failed > 0 || !window.losses.is_empty() {
                continue;
            }
            if window.is_plain && demanded >= limit {
                let unused = limit.saturating_sub(admitted);
                self.hold_of(counter, Invariant::Unused, unused <= limit.div_ceil(UNUSED), || {
                    format!("{counter:?}: {unused} of {limit} hits are unused, of {demanded} demanded")
                });
            }
            let now = self.now();
            if let Some(count) = self.redis.counter(now, &counter.name()) {
                let count = u64::try_from(count).unwrap_or(0);
                // Unspent hits at the end of a window are lost with it.
                let has_ended = (counter.start + counter.seconds) * SECOND <= self.plan.began + now;
                let is_demanded = count <= demanded || has_ended;
                self.hold_of(counter, Invariant::Counted, is_demanded && count + refunded >= admitted, || {
                    format!("{counter:?}: counted {count}, but {demanded} were demanded, {admitted} admitted and {refunded} refunded")
                });
            }
        }
    }

    fn check_leaks(&self) {
        let waiting: u64 = self.ledger().waiting.values().sum();
        self.hold(Invariant::Leak, waiting == 0, || format!("{waiting} requests have no answer"));
        let replicas = self.replicas.iter().flatten().count();
        let connections = self.redis.connections();
        let most = replicas * CONNECTIONS;
        self.hold(Invariant::Leak, connections <= most, || {
            format!("{connections} connections to redis of {replicas} replicas")
        });
        for replica in self.replicas.iter().flatten() {
            let process = replica.process;
            if let Some(leases) = store::Store::leases(&*replica.store) {
                self.hold(Invariant::Leak, leases.held == 0 && leases.keys == 0, || {
                    format!("{process} has leases: {leases:?}")
                });
            }
            let queued: u64 = store::Store::pools(&*replica.store).iter().map(|pool| pool.queued).sum();
            self.hold(Invariant::Leak, queued == 0, || format!("{process} has {queued} queued checks"));
            let closings = replica.limiter.queued_closings();
            self.hold(Invariant::Leak, closings == 0, || format!("{process} has {closings} queued closings"));
            let tasks = self.world.tasks(process);
            self.hold(Invariant::Leak, tasks <= MAX_TASKS, || format!("{process} has {tasks} tasks"));
        }
    }

    fn check_metrics(&self) {
        for replica in self.replicas.iter().flatten() {
            let seen = self.ledger().codes.get(&replica.process).copied().unwrap_or_default();
            let counted = replica.stats.requests_by_code();
            self.hold(Invariant::Metrics, seen == counted, || {
                format!(
                    "{}: callers saw {seen:?} answers (ok, over limit, error), the metrics {counted:?}",
                    replica.process
                )
            });
        }
    }
}

/// Connection, leases, holds, follower, maintenance, topology, and a driver for each pooled connection.
const MAX_TASKS: usize = 13;
