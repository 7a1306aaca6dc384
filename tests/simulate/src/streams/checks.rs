//! What holds must be true of, each second and at the end.

use std::{collections::BTreeMap, sync::MutexGuard};

use super::{
    ledger::{Account, Charged, Conditions, DELAY, Part, Phase, Stream, Streams},
    plan::{BudgetPlan, StreamsPlan},
};
use crate::{
    checks::Invariant,
    plan::{Action, QUIET, RECOVERY, SECOND},
    servers::Held,
    simulation::Simulation,
    topology::Topology,
    world::Micros,
};

/// As many refusals are checked.
const MOST_REFUSED: usize = 1000;

impl Simulation {
    pub fn stream_plan(&self) -> &StreamsPlan {
        self.plan.streams.as_ref().expect("the plan has streams")
    }

    pub fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().expect("nothing panics with it")
    }

    pub fn conditions(&self) -> Conditions {
        self.conditions_of(None)
    }

    /// What the plan does to the commands about an account, or about any: a node that is lost delays only its own.
    fn conditions_of(&self, account: Option<Account>) -> Conditions {
        let shard = account.map(|account| self.redis.shard_of(account.name().as_bytes()));
        let is_elsewhere =
            |action: Action| matches!(action, Action::Freeze(of) if shard.is_some_and(|own| own != of));
        let mut faults = self.plan.actions.iter().filter(|one| one.action.is_fault());
        let is_spared = faults.all(|one| is_elsewhere(one.action))
            && self.plan.topology == Topology::Cluster
            && self.plan.weather.late == 0
            && !self.plan.has_skew();
        let is_clean = self.plan.is_clean() || is_spared;
        let faulty_until = if is_clean { 0 } else { self.plan.last_fault() + RECOVERY };
        let lost_data = self.plan.actions.iter().any(|one| one.action.loses_data());
        let sweeping = self.replicas.iter().flatten().filter(|replica| !replica.is_draining);
        let attended = sweeping.map(|replica| replica.started).min().unwrap_or(self.now());
        Conditions { faulty_until, lost_data, may_be_unswept: self.may_be_unswept(), attended }
    }

    /// The sum of what an account may have been charged for its parts.
    fn charged(&self, account: Account) -> Sums {
        let (now, conditions, budget) =
            (self.now(), self.conditions_of(Some(account)), self.stream_plan().budgets[account.budget]);
        let mut sums = Sums::default();
        for (stream, part) in self.streams().of(account) {
            let charged = stream.charged(part, &budget, now, conditions);
            sums.least += charged.least;
            sums.most += charged.most;
            sums.excess += charged.excess;
            sums.occupied += charged.occupied;
            sums.may_hold += if charged.may_hold { part.held } else { 0 };
        }
        sums
    }

    /// Nobody is admitted beyond the limit: it has room for all that is surely held or charged.
    pub fn check_occupied(&self, account: Account) {
        let (limit, sums) = (self.stream_plan().budgets[account.budget].limit, self.charged(account));
        let lost = self.streams().lost.get(&account).copied().unwrap_or(0);
        self.hold(Invariant::Held, sums.occupied <= limit + sums.excess + lost, || {
            format!("{}: {sums:?} with a limit of {limit}, {lost} lost by redis", account.name())
        });
    }

    /// A budget refuses only while something may be in its way. A request that only budgets refuse never waits for nothing,
    /// or for longer than the holds of a concurrency limit last.
    pub fn check_refused(&self, stream: usize, wait: Option<u64>) {
        if !self.plan.is_calm() || self.streams().streams[stream].refused.is_empty() {
            return;
        }
        let (now, conditions, plan) = (self.now(), self.conditions(), self.stream_plan());
        let streams = self.streams();
        let refused = &streams.streams[stream];
        let fits = |part: &Part| {
            let budget = &plan.budgets[part.account.budget];
            let others = streams.of(part.account).filter(|(other, _)| !std::ptr::eq(*other, refused));
            let most: u64 = others.map(|other| occupies(other, refused, budget, (now, conditions))).sum();
            most + part.held <= budget.limit
        };
        let (any_fits, parts) = (refused.refused.iter().any(fits), refused.refused.clone());
        let has_others = plan.callers[refused.caller].beside.is_some();
        let budgets = || parts.iter().map(|part| plan.budgets[part.account.budget]);
        let longest = budgets().map(|budget| budget.ttl).max().unwrap_or(0) / SECOND;
        let is_in_time = wait.is_some_and(|wait| {
            wait > 0 && (wait <= longest || has_others || !budgets().all(|budget| budget.is_concurrency))
        });
        drop(streams);
        self.hold(Invariant::Refused, !any_fits, || {
            format!("{} refuses, but has room: {parts:?}", parts[0].account.name())
        });
        self.hold(Invariant::Refused, is_in_time, || {
            format!("{} may come back after {wait:?} s: {parts:?}", parts[0].account.name())
        });
    }

    /// What is spent of each account, and its holds.
    pub fn occupied_accounts(&mut self) -> Vec<(Account, u64, Held)> {
        let now = self.now();
        let mut held = self.redis.held(now);
        let accounts = self.streams().accounts();
        let occupied = accounts.into_iter().map(|account| {
            let name = account.name();
            let spent = self.redis.counter(now, &name).and_then(|spent| u64::try_from(spent).ok());
            (account, spent.unwrap_or(0), held.remove(&name).unwrap_or_default())
        });
        occupied.collect()
    }

    /// True if holds may stay until the next request of their counter: no list has them, or no replica knows their slots. A new
    /// one takes a minute to look into all slots of a cluster.
    fn may_be_unswept(&self) -> bool {
        let is_new = self.processes as usize > self.plan.replicas.len();
        self.streams().has_no_list || is_new && self.plan.topology == Topology::Cluster
    }

    /// Redis has lost data: of each account, what was spent and the holds that are gone may be admitted again.
    pub fn note_lost_accounts(&mut self, before: Vec<(Account, u64, Held)>) {
        for ((account, spent, held), (_, left, kept)) in before.into_iter().zip(self.occupied_accounts()) {
            let gone = held.members.iter().filter(|(member, _)| !kept.members.contains_key(*member));
            let lost = spent.saturating_sub(left) + gone.map(|(_, held)| held).sum::<u64>();
            *self.streams().lost.entry(account).or_default() += lost;
        }
    }

    /// Without faults, no settle is late but those that came after an expiry or an earlier end.
    pub fn check_late(&self) {
        let (Some(plan), true) = (&self.plan.streams, self.plan.is_clean()) else { return };
        let late: u64 = self.replicas.iter().flatten().map(|replica| replica.stats.holds().late.get()).sum();
        let may_be_late = self.streams().streams.iter().map(|stream| stream.late_parts(plan)).sum();
        self.hold(Invariant::Ends, late <= may_be_late, || {
            format!("{late} settles were late, but only {may_be_late} came after an expiry or an earlier end")
        });
    }

    /// A budget refuses only if it has no room, by what requests hold that were not refused, and by what they cost.
    pub fn check_all_refused(&self) {
        let conditions = self.conditions();
        let Some(plan) = self.plan.streams.as_ref().filter(|_| !conditions.lost_data) else { return };
        let streams = self.streams();
        let mut charged: BTreeMap<Account, Vec<(&Stream, &Part, u64)>> = BTreeMap::new();
        for account in streams.accounts() {
            let budget = &plan.budgets[account.budget];
            let of = streams.of(account);
            let most = |(stream, part): (_, _)| {
                let Charged { most, .. } = Stream::charged(stream, part, budget, self.now(), conditions);
                (stream, part, most)
            };
            charged.insert(account, of.map(most).collect());
        }
        let refused =
            streams.streams.iter().flat_map(|stream| stream.refused.iter().map(move |part| (stream, part)));
        for (stream, Part { account, held }) in refused.take(MOST_REFUSED) {
            let others = charged
                .get(account)
                .into_iter()
                .flatten()
                .filter(|(other, ..)| !std::ptr::eq(*other, stream));
            let taken: u64 =
                others.map(|(other, part, charged)| other.taken(part, *charged, stream, conditions)).sum();
            let limit = plan.budgets[account.budget].limit;
            self.ledger().checks.hold(Invariant::Refused, taken + held > limit, stream.answered, || {
                format!("{} refused {held}, but others took {taken} of {limit} at most", account.name())
            });
        }
    }

    pub fn check_streams(&mut self) {
        let (now, is_end) = (self.now(), self.now() >= self.plan.end() - SECOND);
        if self.plan.streams.is_none() || !self.redis.are_up(now) {
            return;
        }
        let held = self.redis.held(now);
        let accounts = self.streams().accounts();
        for account in accounts {
            let (budget, sums) = (self.stream_plan().budgets[account.budget], self.charged(account));
            let name = account.name();
            let (spent, limit) = (self.redis.counter(now, &name), budget.limit);
            if let Some(spent) = spent.map(|spent| u64::try_from(spent).unwrap_or(0)) {
                let evicted = self.streams().evicted.get(&account).copied().unwrap_or(0);
                self.hold(Invariant::Bound, spent <= limit + sums.excess + evicted, || {
                    let excess = sums.excess;
                    format!("{name} is {spent}, with a limit of {limit}, an excess of {excess}, and {evicted} evicted")
                });
                let is_whole = !self.conditions().lost_data && !self.streams().lost.contains_key(&account);
                if is_whole {
                    self.hold(Invariant::Charged, (sums.least..=sums.most).contains(&spent), || {
                        format!("{name} is {spent}, but its streams cost {} to {}", sums.least, sums.most)
                    });
                }
            }
            let own = held.get(&name);
            let (sum, held) = own.map_or((0, 0), |own| (own.sum, own.members.values().sum()));
            let is_summed = sum == held || self.streams().has_no_list;
            self.hold(Invariant::Released, is_summed, || {
                format!("{name} holds {held}, but the sum is {sum}")
            });
            self.hold(Invariant::Released, held <= sums.may_hold, || {
                format!("{name} holds {own:?}, but its streams hold {} at most", sums.may_hold)
            });
            // The longest ones outlive the simulation.
            if is_end
                && !self.may_be_unswept()
                && self.stream_plan().budgets.iter().all(|budget| budget.ttl < QUIET / 2)
            {
                self.hold(Invariant::Released, held == 0, || format!("{name} holds {held} at the end"));
            }
        }
    }
}

/// What a stream may have occupied when another one was refused. Expired holds occupy nothing but their charge.
fn occupies(
    (stream, part): (&Stream, &Part),
    refused: &Stream,
    budget: &BudgetPlan,
    (now, conditions): (Micros, Conditions),
) -> u64 {
    let charged = stream.charged(part, budget, now, conditions);
    // The servers notice a clock that was set back once a second.
    let expired = stream.answered + budget.ttl + if conditions.faulty_until > 0 { DELAY } else { 5000 };
    let has_expired = stream.phase != Phase::Asks && expired <= refused.asked;
    if has_expired || !charged.may_hold { charged.most } else { charged.most.max(part.held) }
}

#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    least: u64,
    most: u64,
    excess: u64,
    occupied: u64,
    may_hold: u64,
}
