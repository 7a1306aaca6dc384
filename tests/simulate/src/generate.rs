//! Draws the plan of a seed.

use faults::OnStoreFailure;
use limit::{Kind as Algorithm, Unit};

use crate::{
    limits::{Also, ENTRY_DIGIT, LimitPlan, Zone},
    network::Weather,
    plan::{
        Action, ActionPlan, Arrivals, CallerPlan, HitsPlan, Plan, RECOVERY, ReplicaPlan, SECOND, Scenario,
        Spread,
    },
    quotas::{self, QuotasPlan},
    random::Random,
    streams,
    topology::Topology,
    world::Micros,
};

/// The way from each region to Redis: round trips of nearly 0, 80 and 180 ms.
const DISTANCES: [Micros; 3] = [0, 40_000, 90_000];

/// Draws an action, and how long it lasts.
type Kind = fn(&mut Random, &Plan) -> (Action, Micros);

/// Those that put most promises to the test come more often.
const SCENARIOS: [Scenario; 12] = [
    Scenario::Steady,
    Scenario::Loss,
    Scenario::Network,
    Scenario::Network,
    Scenario::Operators,
    Scenario::Operators,
    Scenario::Operators,
    Scenario::Processes,
    Scenario::Divided,
    Scenario::Failover,
    Scenario::Mixed,
    Scenario::Mixed,
];

impl Plan {
    pub fn of(seed: u64, scenario: Option<Scenario>) -> Self {
        let mut random = Random::new(seed);
        let drawn = random.choose(&SCENARIOS);
        // Seeds that stood for a scenario before there were quotas still do.
        let drawn = if Random::new(seed ^ 0x0a07a).one_in(10) { Scenario::Quota } else { drawn };
        let drawn = if Random::new(seed ^ 0x1a7e).one_in(16) { Scenario::Late } else { drawn };
        let scenario = scenario.unwrap_or(drawn);
        let traffic = random.between(8, 14) * SECOND;
        let replicas = random.between(1, 4) as usize;
        let limits: Vec<_> = (0..random.between(3, 6)).map(|_| limit(&mut random)).collect();
        let callers = limits.iter().enumerate();
        let callers = callers.map(|(at, limit)| caller(&mut random, at, *limit, replicas)).collect();
        let faults = scenario.is_faulty();
        let mut plan = Self {
            seed,
            scenario,
            topology: topology(&mut random, scenario),
            began: moment(&mut random, &limits),
            traffic: if faults { traffic + RECOVERY + 4 * SECOND } else { traffic },
            replicas: vec![ReplicaPlan::default(); replicas],
            timeout: random.choose(&[10_000, 20_000, 50_000]),
            has_cache: !random.one_in(4),
            policy: random.choose(&[
                OnStoreFailure::Error,
                OnStoreFailure::Allow,
                OnStoreFailure::Deny,
                OnStoreFailure::Local,
            ]),
            weather: weather(&mut random, faults && !(scenario == Scenario::Quota && quotas::is_calm(seed))),
            limits,
            callers,
            actions: Vec::new(),
            streams: streams::plan::draw(seed),
            quotas: QuotasPlan::draw(seed, scenario, traffic),
            most_leases: None,
            summary: 0,
        };
        // Drawn apart, so that the other plans stay those of their seeds.
        if Random::new(seed ^ 0x0005_4a5e).one_in(6) {
            plan.policy = OnStoreFailure::Share;
        }
        if scenario == Scenario::Regions {
            plan.divide_into_regions();
            return plan;
        }
        plan.add_actions(&mut random, traffic);
        streams::plan::add_actions(&mut plan, traffic);
        if plan.quotas.is_some() {
            // The others let Envoys pass what Redis has not counted.
            plan.policy = random.choose(&[OnStoreFailure::Error, OnStoreFailure::Deny]);
        }
        plan.add_leaving_caller();
        streams::plan::add_refused_callers(&mut plan);
        plan
    }

    /// Some plans have a caller who leaves a replica with hits that it has leased, while others use up the limit.
    fn add_leaving_caller(&mut self) {
        let random = &mut Random::new(self.seed ^ 0x001e_a4e5);
        if self.replicas.len() < 2 || !random.one_in(4) {
            return;
        }
        // Leases of an hour's limit last longest: the others are done before the hits return.
        let leased = LimitPlan::fixed(Unit::Hour, random.choose(&[600, 1000]), true);
        self.callers.push(CallerPlan {
            limit: self.limits.len(),
            rate: 500,
            arrivals: Arrivals::Poisson,
            spread: Spread::Leaves(random.below(self.replicas.len() as u64) as usize),
            hits: HitsPlan::Single,
            patience: 100_000,
        });
        self.limits.push(leased);
    }

    /// Replicas in three regions, of which some are cut off from Redis, or all.
    fn divide_into_regions(&mut self) {
        let random = &mut Random::new(self.seed ^ 0x4e61_0a5b);
        let replicas = random.between(3, 6) as usize;
        let machine =
            |number: usize| ReplicaPlan { distance: DISTANCES[number % 3], ..ReplicaPlan::default() };
        (self.replicas, self.topology) = ((0..replicas).map(machine).collect(), Topology::Single);
        (self.policy, self.timeout, self.streams) = (OnStoreFailure::Share, 400_000, None);
        for limit in &mut self.limits {
            // Most are for minutes, so that windows begin and end while a region is cut off.
            let unit = random.choose(&[Unit::Second, Unit::Minute, Unit::Minute]);
            let amount = random.choose(&[40, 400, 1000]);
            *limit = LimitPlan::fixed(unit, amount, !random.one_in(4));
        }
        for (at, limit) in self.limits.iter().enumerate() {
            let rate = limit.limit * random.choose(&[1, 2, 4]) / limit.unit.seconds();
            self.callers[at] = CallerPlan {
                rate: rate.clamp(4, 500),
                arrivals: Arrivals::Poisson,
                spread: random.choose(&[Spread::Any, Spread::Any, Spread::Moving]),
                patience: 1_000_000,
                ..self.callers[at]
            };
        }
        let mut at = 15 * SECOND;
        for _ in 0..random.between(1, 2) {
            let regions = random.choose(&[0b100, 0b010, 0b110, 0b111, 0b111]);
            let (lasts, stalls) = (millis(random, 60_000, 150_000), random.one_in(2));
            for replica in (0..replicas).filter(|number| regions >> (number % 3) & 1 == 1) {
                let action = if stalls { Action::Stall } else { Action::Unreachable }(Some(replica));
                self.actions.push(ActionPlan { at, lasts, action });
            }
            at += lasts + millis(random, 20_000, 70_000);
        }
        self.traffic = at + RECOVERY;
        self.weather.late = 0;
    }

    fn add_actions(&mut self, random: &mut Random, until: Micros) {
        let kinds: &[Kind] = match self.scenario {
            Scenario::Steady | Scenario::Regions => &[],
            Scenario::Late => &[stop],
            Scenario::Loss => &[lose],
            Scenario::Network => &[disturb],
            Scenario::Operators => &[operate],
            Scenario::Processes => &[end_process],
            Scenario::Divided => &[cut_off, operate, operate, operate],
            Scenario::Failover => &[change_masters],
            Scenario::Quota if quotas::is_calm(self.seed) => &[],
            Scenario::Quota => &[end_process, end_process, disturb],
            Scenario::Mixed => &[lose, disturb, operate, end_process, change_masters],
        };
        if matches!(self.scenario, Scenario::Processes | Scenario::Mixed) {
            for replica in &mut self.replicas {
                replica.offset = random.between(0, 400_000).cast_signed() - 200_000;
                replica.drift = random.between(0, 200).cast_signed() - 100;
            }
        }
        if kinds.is_empty() {
            return;
        }
        for _ in 0..random.between(4, 24) {
            let (action, lasts) = random.choose(kinds)(random, self);
            let at = random.between(SECOND, until - SECOND);
            self.actions.push(ActionPlan { at, lasts, action });
        }
        self.reset_after_faults(random);
        self.actions.sort_by_key(|one| one.at);
        self.weather.late_until = self.last_fault();
    }

    /// Resets counters once every replica must have found the new masters: the notifications must reach all of them.
    fn reset_after_faults(&mut self, random: &mut Random) {
        if self.scenario != Scenario::Failover {
            return;
        }
        let at = self.last_fault() + RECOVERY + SECOND / 10;
        for limit in 0..self.limits.len() {
            let action = Action::ResetCounter { replica: one(random, self), limit };
            self.actions.push(ActionPlan { at, lasts: 0, action });
        }
    }
}

impl Scenario {
    fn is_faulty(self) -> bool {
        !matches!(self, Self::Steady | Self::Operators | Self::Late)
    }
}

fn topology(random: &mut Random, scenario: Scenario) -> Topology {
    let drawn = random.choose(&[Topology::Single, Topology::Single, Topology::Sentinel, Topology::Cluster]);
    match (scenario, drawn) {
        (Scenario::Failover, Topology::Single) => Topology::Sentinel,
        _ => drawn,
    }
}

fn limit(random: &mut Random) -> LimitPlan {
    let unit = random.choose(&[Unit::Second, Unit::Second, Unit::Minute, Unit::Minute, Unit::Hour]);
    let limit = match unit {
        Unit::Second => random.choose(&[5, 40, 100, 400]),
        _ => random.choose(&[20, 200, 1000, 4000]),
    };
    let fixed = LimitPlan::fixed(unit, limit, !random.one_in(3));
    let with = |algorithm| LimitPlan { algorithm, is_leased: false, ..fixed };
    match random.below(14) {
        0 => with(Algorithm::SlidingWindow),
        // Its state has every request.
        1 => LimitPlan { limit: limit.min(200), ..with(Algorithm::SlidingLog) },
        2 => with(Algorithm::TokenBucket),
        3 => with(Algorithm::LeakyBucket),
        4 => {
            let zone = Some(random.choose(&[Zone::Kolkata, Zone::Phoenix]));
            LimitPlan { unit: Unit::Day, limit: random.choose(&[200, 1000, 4000]), zone, ..fixed }
        }
        5 | 6 => {
            let unit = if fixed.unit == Unit::Second { Unit::Minute } else { Unit::Day };
            LimitPlan { also: Some(Also { unit, limit: random.choose(&[50, 500, 2000]) }), ..fixed }
        }
        _ => fixed,
    }
}

/// A caller who demands about as much as the limit.
fn caller(random: &mut Random, limit: usize, of: LimitPlan, replicas: usize) -> CallerPlan {
    let window = if of.unit == Unit::Second { 1.0 } else { 6.0 };
    let demand = random.choose(&[0.5, 0.9, 1.2, 2.0, 3.0]);
    let rate = (of.limit as f64 / window * demand).clamp(2.0, 500.0) as u64;
    CallerPlan {
        limit,
        rate,
        arrivals: random.choose(&[Arrivals::Poisson, Arrivals::Poisson, Arrivals::Bursts]),
        spread: match random.below(4) {
            0 => Spread::One(random.below(replicas as u64) as usize),
            1 => Spread::Moving,
            _ => Spread::Any,
        },
        hits: random.choose(&[HitsPlan::Single, HitsPlan::Single, HitsPlan::Several, HitsPlan::Mixed]),
        patience: random.choose(&[30_000, 100_000, 500_000]),
    }
}

/// A time of day: often shortly before a minute, an hour or a day begins.
fn moment(random: &mut Random, limits: &[LimitPlan]) -> u64 {
    let day = 1_800_000_000 / 86_400 * 86_400 + 86_400 * random.below(20);
    let midnights = limits.iter().filter_map(|limit| limit.zone).map(Zone::midnight);
    let moments: Vec<u64> = [60, 3600, 7200, 86_400].into_iter().chain(midnights).collect();
    let next = day + random.choose(&moments);
    (next - random.between(1, 40)) * SECOND + random.below(SECOND)
}

fn weather(random: &mut Random, is_faulty: bool) -> Weather {
    Weather {
        delay: random.choose(&[100, 200, 500]),
        jitter: random.choose(&[50, 200, 500]),
        late: if is_faulty { random.choose(&[0, 0, 200]) } else { 0 },
        partial: random.choose(&[0, 20, 200]),
        late_until: 0,
        stalls: Vec::new(),
        distances: Vec::new(),
        unreachable: Vec::new(),
    }
}

fn some(random: &mut Random, plan: &Plan) -> Option<usize> {
    (!random.one_in(3)).then(|| one(random, plan))
}

fn one(random: &mut Random, plan: &Plan) -> usize {
    random.below(plan.replicas.len() as u64) as usize
}

fn any_limit(random: &mut Random, plan: &Plan) -> usize {
    random.below(plan.limits.len() as u64) as usize
}

/// A limit that overrides may replace, if there is one.
fn plain_limit(random: &mut Random, plan: &Plan) -> Option<usize> {
    let plain: Vec<usize> = (0..plan.limits.len()).filter(|limit| plan.limits[*limit].is_plain()).collect();
    (!plain.is_empty()).then(|| random.choose(&plain))
}

fn shard(random: &mut Random, plan: &Plan) -> usize {
    random.below(plan.topology.shards() as u64) as usize
}

fn millis(random: &mut Random, first: u64, last: u64) -> Micros {
    random.between(first, last) * 1000
}

fn lose(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    match random.below(6) {
        0 => (Action::Flush, 0),
        1 => (Action::RestartEmpty, millis(random, 1, 800)),
        2 => (Action::RestartFromSnapshot(millis(random, 100, 3000)), millis(random, 1, 800)),
        3 => (Action::Failover(shard(random, plan), millis(random, 1, 300)), millis(random, 1, 300)),
        4 => (Action::MaxMemory { is_random: random.one_in(2) }, millis(random, 1, 1000)),
        _ => (Action::Delete(any_limit(random, plan)), 0),
    }
}

fn disturb(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    match random.below(8) {
        0 => (Action::Freeze(shard(random, plan)), millis(random, 5, 1500)),
        1 => (Action::Loading(shard(random, plan)), millis(random, 5, 800)),
        2 => (Action::OutOfMemory(shard(random, plan)), millis(random, 50, 1000)),
        3 => (Action::ReadOnly(shard(random, plan)), millis(random, 50, 1000)),
        4 => (Action::Stall(some(random, plan)), millis(random, 5, 1500)),
        5 => (Action::Unreachable(some(random, plan)), millis(random, 100, 1500)),
        6 => (Action::ResetConnections(some(random, plan)), 0),
        _ => (Action::HalfOpen(some(random, plan)), 0),
    }
}

fn cut_off(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    let replica = Some(one(random, plan));
    match random.below(3) {
        0 => (Action::Stall(replica), millis(random, 500, 3000)),
        1 => (Action::Unreachable(replica), millis(random, 500, 3000)),
        _ => (Action::HalfOpen(replica), 0),
    }
}

/// Of a single server, its connections are reset.
fn change_masters(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    let shard = shard(random, plan);
    match (plan.topology, random.below(3)) {
        (Topology::Single, _) => (Action::ResetConnections(None), 0),
        (_, 0) => (Action::Failover(shard, millis(random, 1, 300)), millis(random, 50, 2000)),
        (Topology::Cluster, 1) => {
            let limit = (!random.one_in(4)).then(|| any_limit(random, plan));
            (Action::MoveSlot { limit, to: shard }, millis(random, 1, 1000))
        }
        _ => (Action::SwitchOver(shard), millis(random, 1, 500)),
    }
}

fn operate(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    let (replica, any) = (one(random, plan), any_limit(random, plan));
    let factor = random.choose(&[1, 2, 4, 6]);
    let to = |limit: usize| (plan.limits[limit].limit * factor / 2).max(1);
    let by_entry = random.one_in(3);
    let plain = plain_limit(random, plan);
    let action = match (random.below(9), plain) {
        (0, _) => return (Action::Terminate(replica), millis(random, 900, 2000)),
        (1..=3, Some(limit)) => {
            let to = if by_entry { to(limit) / 10 * 10 + ENTRY_DIGIT } else { to(limit) };
            Action::SetOverride { replica, limit, to, by_entry }
        }
        (4, Some(limit)) => Action::RemoveOverride { replica, limit, by_entry },
        (5, Some(_)) => Action::Import { replica, percent: random.choose(&[50, 100, 200]) },
        (6 | 7, _) => Action::ResetCounter { replica, limit: any },
        _ => Action::Reload { limit: any, to: to(any) },
    };
    (action, 0)
}

fn stop(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    (Action::Stop(one(random, plan)), millis(random, 1, 200))
}

fn end_process(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    let replica = one(random, plan);
    match random.below(4) {
        0 => (Action::Terminate(replica), millis(random, 900, 2000)),
        1 => (Action::Kill(replica), millis(random, 50, 2000)),
        2 => (Action::Stop(replica), millis(random, 5, 1500)),
        _ => (Action::StepClock(replica, random.between(0, 600_000).cast_signed() - 300_000), 0),
    }
}
