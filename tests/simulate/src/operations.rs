//! What operators do and faults do: the actions of a plan.

use std::collections::{BTreeMap, BTreeSet};

use overrides::{Override, Target};
use serde_json::json;
use simulated_redis::Refusal;

use crate::{
    ledger::{Asked, Counter, seconds_of},
    plan::{Action, ActionPlan},
    simulation::{Simulation, request},
    trace::Trace,
    world::{Event, Micros, Process},
};
use clock::{Clock as _, Time};
use overrides::target::entries_of_text;

/// The overrides that operators were told are in force, by limit.
#[derive(Default)]
pub struct Operations {
    pub overrides: BTreeMap<usize, Expected>,
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Expected {
    /// The limit of the override; `None` without one.
    pub limit: Option<u64>,
    /// When the last change was acknowledged.
    pub since: Micros,
    /// Changes without an answer.
    pub pending: u32,
    /// Two changes at once may be stored in either order.
    is_overlapping: bool,
    /// A change failed, which may have been stored.
    pub is_unknown: bool,
}

pub fn target(limit: usize) -> Target {
    let entries = entries_of_text(&format!("k{limit}=v")).expect("valid");
    Target::new("sim", entries).expect("valid")
}

impl Simulation {
    pub fn act(&mut self, index: usize) {
        let planned = self.plan.actions[index];
        let ActionPlan { lasts, action, .. } = planned;
        self.happened[action.index()] += 1;
        self.world.tell(&"plan", format_args!("{planned}"));
        self.world.trace(Trace::add);
        let until = self.now() + lasts;
        if lasts > 0 {
            self.world.at(until, Event::End(index));
        }
        match action {
            Action::Flush
            | Action::RestartEmpty
            | Action::RestartFromSnapshot(_)
            | Action::Failover(_)
            | Action::Evict(_) => self.lose(index, until),
            Action::Freeze => self.redis.frozen_until = until,
            Action::Loading => self.redis.refuse(Some(Refusal::Loading)),
            Action::OutOfMemory => self.redis.refuse(Some(Refusal::OutOfMemory)),
            Action::ReadOnly => self.redis.set_read_only(true),
            Action::Stall(_) | Action::Unreachable(_) | Action::ResetConnections(_) | Action::HalfOpen(_) => {
                self.disturb_network(action, until);
            }
            Action::Terminate(number) => {
                if let Some(replica) = &mut self.replicas[number] {
                    replica.terminate();
                }
            }
            Action::Kill(number) => self.kill(number),
            Action::Stop(number) => {
                if let Some(replica) = &self.replicas[number] {
                    self.world.stop(replica.process);
                }
            }
            Action::StepClock(number, by) => {
                if let Some(replica) = &self.replicas[number] {
                    replica.clock.step(by);
                }
            }
            Action::SetOverride { replica, limit, to } => self.change_override(replica, limit, Some(to)),
            Action::RemoveOverride { replica, limit } => self.change_override(replica, limit, None),
            Action::ResetCounter { replica, limit } => self.reset_counter(replica, limit),
            Action::Reload { limit, to } => {
                self.limits[limit].limit = to;
                for replica in self.replicas.iter().flatten() {
                    replica.load(&self.limits);
                }
            }
        }
    }

    fn disturb_network(&mut self, action: Action, until: Micros) {
        match action {
            Action::Stall(of) => {
                let of = self.process_of(of);
                self.network.weather().stalls.push((of, until));
            }
            Action::Unreachable(of) => {
                let of = self.process_of(of);
                self.network.weather().unreachable.push((of, until));
                self.reset_connections(of);
            }
            Action::ResetConnections(of) => self.reset_connections(self.process_of(of)),
            Action::HalfOpen(of) => {
                let of = self.process_of(of);
                for link in self.network.open_links() {
                    if of.is_none_or(|of| of == link.process) {
                        link.lock().is_half_open = true;
                    }
                }
            }
            _ => unreachable!("{action:?} is not of the network"),
        }
    }

    pub fn end_action(&mut self, index: usize) {
        let ActionPlan { action, .. } = self.plan.actions[index];
        self.world.tell(&"plan", format_args!("end of {action:?}"));
        match action {
            Action::Loading | Action::OutOfMemory => self.redis.refuse(None),
            Action::ReadOnly => self.redis.set_read_only(false),
            // Unless another action has replaced the process meanwhile.
            Action::Terminate(number) | Action::Kill(number)
                if self.replicas[number].as_ref().is_none_or(|replica| replica.is_draining) =>
            {
                self.kill(number);
                self.start_replica(number);
            }
            Action::Stop(number) => {
                if let Some(replica) = &self.replicas[number] {
                    self.world.resume(replica.process);
                }
            }
            _ => {}
        }
    }

    fn process_of(&self, number: Option<usize>) -> Option<Process> {
        self.replicas[number?].as_ref().map(|replica| replica.process)
    }

    fn reset_connections(&self, of: Option<Process>) {
        for link in self.network.open_links() {
            if of.is_none_or(|of| of == link.process) {
                self.network.reset(&link);
            }
        }
    }

    /// Redis loses data. Of each counter, the hits that it had and has no longer are granted on top of the limit.
    fn lose(&mut self, index: usize, until: Micros) {
        let now = self.now();
        // Also those whose first request has no answer yet.
        let counters: BTreeSet<_> = {
            let ledger = self.ledger();
            ledger.windows.keys().chain(ledger.asked.keys()).copied().collect()
        };
        let mut before = Vec::new();
        for counter in counters {
            before.push((counter, self.redis.counter(now, &counter.name()).unwrap_or(0)));
        }
        let occupied = self.occupied_accounts();
        match self.plan.actions[index].action {
            Action::Flush => self.redis.server.flush_all(),
            Action::Evict(limit) => {
                let seconds = (self.plan.began + now) / 1_000_000;
                let name = self.counter_of(limit, seconds).name();
                self.redis.ask(now, &["DEL", &name]);
            }
            Action::RestartEmpty => {
                self.redis.down_until = until;
                self.redis.restart(&self.network, None);
            }
            _ => {
                self.redis.down_until = until;
                let snapshot = self.snapshots[index].clone();
                self.redis.restart(&self.network, snapshot.as_ref());
            }
        }
        for (counter, before) in before {
            let after = self.redis.counter(now, &counter.name()).unwrap_or(0);
            let lost = u64::try_from(before - after).unwrap_or(0);
            if lost > 0 {
                self.world.tell(&"redis", format_args!("loses {lost} hits of {}", counter.name()));
                self.ledger().lost(counter, lost);
            }
        }
        self.note_lost_accounts(occupied);
    }

    fn change_override(&self, number: usize, limit: usize, to: Option<u64>) {
        let Some(replica) = &self.replicas[number] else { return };
        let (keeper, operations, world) =
            (replica.keeper.clone(), self.operations.clone(), self.world.clone());
        let unit = self.limits[limit].unit.name();
        {
            let mut operations = operations.lock().expect("nothing panics with it");
            let expected = operations.overrides.entry(limit).or_default();
            expected.is_overlapping = expected.pending > 0;
            expected.pending += 1;
        }
        let process = replica.process;
        replica.edges.start(async move {
            let changed = match to {
                Some(to) => {
                    let json = json!({"domain": "sim", "descriptor": [{"key": format!("k{limit}"), "value": "v"}],
                        "action": "limit", "requests_per_unit": to, "unit": unit});
                    let one = Override::from_json(&json, Time::default()).expect("valid");
                    keeper.set(&one).await
                }
                None => keeper.remove(&target(limit)).await,
            };
            world.tell(&process, format_args!("override of k{limit} {to:?}: {changed:?}"));
            let mut operations = operations.lock().expect("nothing panics with it");
            let expected = operations.overrides.entry(limit).or_default();
            expected.pending -= 1;
            expected.is_unknown = changed.is_err() || expected.is_overlapping;
            expected.since = world.now();
            expected.limit = to;
        });
    }

    fn reset_counter(&self, number: usize, limit: usize) {
        let Some(replica) = &self.replicas[number] else { return };
        let (limiter, keeper) = (replica.limiter.clone(), replica.keeper.clone());
        let (ledger, world, process) = (self.ledger.clone(), self.world.clone(), replica.process);
        let (clock, is_clean) = (replica.clock.clone(), self.plan.is_clean());
        let seconds = seconds_of(self.limits[limit].unit);
        replica.edges.start(async move {
            // By the clock of the moment: a process that is stopped resets when it continues.
            let counter = Counter { limit, seconds, start: clock.now().seconds() / seconds * seconds };
            ledger.lock().expect("nothing panics with it").resets(counter);
            let key = format!("k{limit}");
            let reset = limiter.reset_counters(&request(&key, Asked::Take(0))).await;
            let announced = match &reset {
                Ok(keys) => keeper.announce_reset(keys).await.is_ok(),
                Err(_) => false,
            };
            world.tell(&process, format_args!("reset of k{limit}: announced {announced}"));
            if announced && is_clean {
                ledger.lock().expect("nothing panics with it").reset(counter, world.now());
            }
        });
    }
}
