//! What operators do and faults do: the actions of a plan.

use std::collections::{BTreeMap, BTreeSet};

use overrides::{Durability, Override, Target};
use serde_json::json;
use simulated_redis::{Eviction, Refusal};

use crate::{
    ledger::Asked,
    limits::Counter,
    plan::{Action, ActionPlan, RECOVERY, SECOND},
    servers::Stored,
    simulation::{Simulation, request},
    topology::Topology,
    trace::Trace,
    world::{Event, Micros, Process},
};
use clock::{Clock as _, Time};
use overrides::target::entries_of_text;

/// The overrides that operators were told are in force.
#[derive(Default)]
pub struct Operations {
    pub overrides: BTreeMap<Overridden, Expected>,
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

impl Operations {
    fn begin(&mut self, of: Overridden) {
        let expected = self.overrides.entry(of).or_default();
        expected.is_overlapping = expected.pending > 0;
        expected.pending += 1;
    }

    fn end(&mut self, of: Overridden, to: Option<u64>, failed: bool, now: Micros) {
        let expected = self.overrides.entry(of).or_default();
        expected.pending -= 1;
        expected.is_unknown = failed || expected.is_overlapping;
        expected.since = now;
        expected.limit = to;
    }
}

/// What an override is for: the descriptor of a limit, or its entry wherever it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Overridden {
    pub limit: usize,
    pub by_entry: bool,
}

pub fn target(Overridden { limit, by_entry }: Overridden) -> Target {
    let entries = entries_of_text(&format!("k{limit}=v")).expect("valid");
    if by_entry { Target::of_entry("sim", entries) } else { Target::new("sim", entries) }.expect("valid")
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
            | Action::Failover(..)
            | Action::Delete(_) => self.lose(index, until),
            Action::MaxMemory { .. }
            | Action::SwitchOver(_)
            | Action::MoveSlot { .. }
            | Action::Freeze(_)
            | Action::Loading(_)
            | Action::OutOfMemory(_)
            | Action::ReadOnly(_) => self.disturb_servers(planned, until),
            Action::Stall(_) | Action::Unreachable(_) | Action::ResetConnections(_) | Action::HalfOpen(_) => {
                self.disturb_network(action, until);
            }
            Action::Terminate(number) => {
                if let Some(replica) = &mut self.replicas[number] {
                    replica.terminate();
                    self.terminated.insert(index, replica.process);
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
            Action::SetServersBack(by) => self.redis.behind += by,
            Action::SetOverride { replica, limit, to, by_entry } => {
                self.change_override(replica, Overridden { limit, by_entry }, Some(to));
            }
            Action::RemoveOverride { replica, limit, by_entry } => {
                self.change_override(replica, Overridden { limit, by_entry }, None);
            }
            Action::Import { replica, percent } => self.import(replica, percent),
            Action::ResetCounter { replica, limit } => self.reset_counter(replica, limit),
            Action::Reload { limit, to } => {
                self.limits[limit].limit = to;
                self.ledger().reloaded(limit, to);
                for replica in self.replicas.iter().flatten() {
                    replica.load(&self.limits);
                }
            }
        }
    }

    fn disturb_servers(&mut self, planned: ActionPlan, until: Micros) {
        match planned.action {
            Action::MaxMemory { is_random } => {
                let eviction = if is_random { Eviction::Random } else { Eviction::FirstToExpire };
                self.redis.bound_keys(eviction);
            }
            Action::SwitchOver(shard) => {
                self.redis.switch_over(shard);
                self.world.at(self.now() + planned.lasts / 2, Event::Announce);
            }
            Action::MoveSlot { limit, to } => {
                let name = self.moved_key(limit, self.now());
                self.redis.begin_to_move(&name, to);
            }
            Action::Freeze(shard) => self.redis.freeze(shard, until),
            Action::Loading(shard) => self.redis.refuse(shard, Some(Refusal::Loading)),
            Action::OutOfMemory(shard) => self.redis.refuse(shard, Some(Refusal::OutOfMemory)),
            Action::ReadOnly(shard) => self.redis.set_read_only(shard),
            _ => unreachable!("{planned} is no action of servers"),
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
        let ActionPlan { at, action, .. } = self.plan.actions[index];
        self.world.tell(&"plan", format_args!("end of {action:?}"));
        match action {
            Action::Loading(_) | Action::OutOfMemory(_) | Action::ReadOnly(_) => self.redis.recover(),
            Action::MaxMemory { .. } => self.redis.unbound_keys(),
            Action::Failover(shard, _) => self.redis.rejoin(shard),
            Action::MoveSlot { limit, to } => {
                let name = self.moved_key(limit, at);
                self.redis.end_to_move(&name, to);
            }
            // Unless another action has replaced the process meanwhile.
            Action::Terminate(number) | Action::Kill(number)
                if self.replicas[number]
                    .as_ref()
                    .is_none_or(|replica| self.terminated.get(&index) == Some(&replica.process)) =>
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

    /// A key of the slot that moves: the counter of a limit at the time of the move, or one of the overrides.
    fn moved_key(&self, limit: Option<usize>, at: Micros) -> Vec<u8> {
        let second = (self.plan.began + at) / SECOND;
        let counter = limit.and_then(|limit| self.limits[limit].counters(limit, second).next());
        match counter {
            Some(Counter { limit, .. }) if self.limits[limit].also.is_some() => {
                format!("{{sim_k{limit}_v_}}")
            }
            Some(Counter { limit, start, .. }) => format!("sim_k{limit}_v_{start}"),
            None => "{tollgate}".to_owned(),
        }
        .into_bytes()
    }

    /// Redis loses data. Of each counter, the hits that it had and has no longer are granted on top of the limit.
    fn lose(&mut self, index: usize, until: Micros) {
        let now = self.now();
        let (before, expired) = (self.redis.counters(now), self.redis.expired(now));
        let occupied = self.occupied_accounts();
        let mut of = None;
        match self.plan.actions[index].action {
            Action::Flush => self.redis.flush(),
            Action::Delete(limit) => {
                of = Some(limit);
                let own = format!("sim_k{limit}_");
                for Stored { name, .. } in before.iter().filter(|one| one.name.contains(&own)) {
                    self.redis.delete(name);
                }
            }
            Action::Failover(shard, lag) if self.plan.topology != Topology::Single => {
                self.redis.fail_over(&self.network, shard, lag, until);
                self.world.at(now + (until - now) / 2, Event::Announce);
            }
            Action::RestartEmpty => self.redis.restart(&self.network, None, until),
            _ => {
                let snapshot = self.snapshots[index].take();
                self.redis.restart(&self.network, snapshot.as_deref(), until);
            }
        }
        self.ledger().lost_state(of);
        let after: BTreeMap<String, i64> =
            self.redis.counters(now).into_iter().map(|one| (one.name, one.value)).collect();
        for Stored { name, value, .. } in before {
            let lost = value - after.get(&name).copied().unwrap_or(0);
            if let (Some(counter), Ok(lost @ 1..)) =
                (Counter::named(&name, &self.limits), u64::try_from(lost))
            {
                self.world.tell(&"redis", format_args!("loses {lost} hits of {name}"));
                self.ledger().lost(counter, lost);
            }
        }
        // Redis would have removed them later.
        let kept: BTreeSet<String> = self.redis.expired(now).into_iter().map(|one| one.name).collect();
        for Stored { name, value, .. } in expired.into_iter().filter(|one| !kept.contains(&one.name)) {
            if let (Some(counter), Ok(hits)) = (Counter::named(&name, &self.limits), u64::try_from(value)) {
                self.ledger().expired(counter, hits, (self.plan.began + now) / SECOND, false, now);
            }
        }
        self.note_lost_accounts(occupied);
    }

    fn override_of(&self, Overridden { limit, by_entry }: Overridden, to: u64) -> Override {
        let entry = json!({"key": format!("k{limit}"), "value": "v"});
        let mut json = json!({"domain": "sim", "action": "limit", "requests_per_unit": to,
            "unit": self.limits[limit].unit.name()});
        if by_entry {
            json["entry"] = entry;
        } else {
            json["descriptor"] = json!([entry]);
        }
        Override::from_json(&json, Time::default()).expect("valid")
    }

    fn change_override(&self, number: usize, of: Overridden, to: Option<u64>) {
        let Some(replica) = &self.replicas[number] else { return };
        let (keeper, operations, world) =
            (replica.keeper.clone(), self.operations.clone(), self.world.clone());
        operations.lock().expect("nothing panics with it").begin(of);
        let process = replica.process;
        let new = to.map(|to| self.override_of(of, to));
        replica.edges.start(async move {
            let changed = match new {
                Some(new) => keeper.set(&new).await,
                None => keeper.remove(&target(of)).await,
            };
            world.tell(&process, format_args!("{of:?} {to:?}: {changed:?}"));
            // An owed change is lost if the process ends before Redis has it.
            let is_sure = matches!(changed, Ok(Durability::Stored));
            operations.lock().expect("nothing panics with it").end(of, to, !is_sure, world.now());
        });
    }

    /// Imports overrides of all limits that can have one.
    fn import(&self, number: usize, percent: u64) {
        let Some(replica) = &self.replicas[number] else { return };
        let (keeper, operations, world) =
            (replica.keeper.clone(), self.operations.clone(), self.world.clone());
        let plain = (0..self.limits.len()).filter(|limit| self.limits[*limit].is_plain());
        let all: Vec<(Overridden, u64)> = plain
            .map(|limit| {
                let to = (self.plan.limits[limit].limit * percent / 100).max(1);
                (Overridden { limit, by_entry: false }, to)
            })
            .collect();
        let new: Vec<Override> = all.iter().map(|(of, to)| self.override_of(*of, *to)).collect();
        for (of, _) in &all {
            operations.lock().expect("nothing panics with it").begin(*of);
        }
        let process = replica.process;
        replica.edges.start(async move {
            let imported = async {
                let id = keeper.begin_import()?;
                let known = keeper.add_to_import(&id, &new, None).await?;
                keeper.commit_import(&id, Some(known)).await
            };
            let imported = imported.await;
            world.tell(&process, format_args!("import of {}: {imported:?}", new.len()));
            let mut operations = operations.lock().expect("nothing panics with it");
            for (of, to) in &all {
                operations.end(*of, Some(*to), imported.is_err(), world.now());
            }
        });
    }

    fn reset_counter(&self, number: usize, limit: usize) {
        let Some(replica) = &self.replicas[number] else { return };
        let (limiter, keeper) = (replica.limiter.clone(), replica.keeper.clone());
        let (ledger, world, process) = (self.ledger.clone(), self.world.clone(), replica.process);
        let (clock, planned) = (replica.clock.clone(), self.limits[limit]);
        // An override by entry has another counter.
        let has_entry = {
            let operations = self.operations.lock().expect("nothing panics with it");
            operations.overrides.contains_key(&Overridden { limit, by_entry: true })
        };
        let has_recovered = !self.plan.has_skew() && self.now() > self.plan.last_fault() + RECOVERY;
        let is_tested = (self.plan.is_clean() || has_recovered) && !has_entry;
        replica.edges.start(async move {
            // A process that is stopped resets when it continues.
            let counters: Vec<Counter> = planned.counters(limit, clock.now().seconds()).collect();
            {
                let mut ledger = ledger.lock().expect("nothing panics with it");
                for counter in &counters {
                    ledger.resets(*counter);
                }
                ledger.lost_state(Some(limit));
            }
            let key = format!("k{limit}");
            let reset = limiter.reset_counters(&request(&key, Asked::Take(0))).await;
            let announced = match &reset {
                Ok(keys) => keeper.announce_reset(keys).await.is_ok(),
                Err(_) => false,
            };
            world.tell(&process, format_args!("reset of k{limit}: announced {announced}"));
            if announced && is_tested {
                let mut ledger = ledger.lock().expect("nothing panics with it");
                for counter in &counters {
                    ledger.reset(*counter, world.now());
                }
            }
        });
    }
}
