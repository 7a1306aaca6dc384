//! What a seed stands for: replicas, limits, callers and faults. The plan is made before the run, so that a failing one can
//! be shrunken.

use std::fmt;

use rules::{OnStoreFailure, Unit};

use crate::{
    network::Weather,
    random::Random,
    streams::{self, plan::StreamsPlan},
    world::Micros,
};

pub const SECOND: Micros = 1_000_000;

/// The time without traffic at the end, after which nothing may be left.
pub const QUIET: Micros = 15 * SECOND;

/// The time after the last fault until everything works as without one.
pub const RECOVERY: Micros = 9 * SECOND;

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub scenario: Scenario,
    /// The time of day at the start, in microseconds since 1970.
    pub began: u64,
    /// When traffic ends.
    pub traffic: Micros,
    pub replicas: Vec<ReplicaPlan>,
    pub timeout: Micros,
    pub has_cache: bool,
    pub policy: OnStoreFailure,
    pub weather: Weather,
    pub limits: Vec<LimitPlan>,
    pub callers: Vec<CallerPlan>,
    pub actions: Vec<ActionPlan>,
    pub streams: Option<StreamsPlan>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// No faults.
    Steady,
    /// Redis loses data.
    Loss,
    /// The network and Redis are slow, or fail.
    Network,
    /// Overrides, resets and reloads.
    Operators,
    /// Replicas stop, and their clocks differ.
    Processes,
    /// A replica is cut off while operators change overrides.
    Divided,
    /// All of it.
    Mixed,
}

impl Scenario {
    pub const ALL: [Self; 7] = [
        Self::Steady,
        Self::Loss,
        Self::Network,
        Self::Operators,
        Self::Processes,
        Self::Divided,
        Self::Mixed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Loss => "loss",
            Self::Network => "network",
            Self::Operators => "operators",
            Self::Processes => "processes",
            Self::Divided => "divided",
            Self::Mixed => "mixed",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ReplicaPlan {
    /// The error of its clock in microseconds, and its drift in microseconds per second.
    pub offset: i64,
    pub drift: i64,
}

#[derive(Clone, Copy, Debug)]
pub struct LimitPlan {
    pub unit: Unit,
    pub limit: u64,
    pub is_leased: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct CallerPlan {
    pub limit: usize,
    /// Requests per second.
    pub rate: u64,
    pub arrivals: Arrivals,
    pub spread: Spread,
    pub hits: HitsPlan,
    /// How long the caller waits.
    pub patience: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrivals {
    Poisson,
    /// All requests of a second in its first fifth.
    Bursts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    Any,
    One(usize),
    /// To another replica every half second.
    Moving,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HitsPlan {
    Single,
    /// One to ten.
    Several,
    /// Mostly one; some are refunded, and some requests only read.
    Mixed,
}

#[derive(Clone, Copy, Debug)]
pub struct ActionPlan {
    pub at: Micros,
    /// How long the condition lasts.
    pub lasts: Micros,
    pub action: Action,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Flush,
    RestartEmpty,
    /// Restarts with the data of this long before.
    RestartFromSnapshot(Micros),
    /// A replica without the last writes becomes the master.
    Failover(Micros),
    Evict(usize),
    Freeze,
    Loading,
    OutOfMemory,
    ReadOnly,
    Stall(Option<usize>),
    Unreachable(Option<usize>),
    ResetConnections(Option<usize>),
    HalfOpen(Option<usize>),
    Terminate(usize),
    Kill(usize),
    Stop(usize),
    StepClock(usize, i64),
    SetOverride {
        replica: usize,
        limit: usize,
        to: u64,
    },
    RemoveOverride {
        replica: usize,
        limit: usize,
    },
    ResetCounter {
        replica: usize,
        limit: usize,
    },
    Reload {
        limit: usize,
        to: u64,
    },
}

impl Action {
    pub const NAMES: [&'static str; 21] = [
        "flush",
        "restart empty",
        "restart from a snapshot",
        "failover",
        "evict",
        "freeze",
        "loading",
        "out of memory",
        "read only",
        "stall",
        "unreachable",
        "reset connections",
        "half-open",
        "terminate",
        "kill",
        "stop",
        "step clock",
        "set override",
        "remove override",
        "reset counter",
        "reload",
    ];

    pub fn index(self) -> usize {
        match self {
            Self::Flush => 0,
            Self::RestartEmpty => 1,
            Self::RestartFromSnapshot(_) => 2,
            Self::Failover(_) => 3,
            Self::Evict(_) => 4,
            Self::Freeze => 5,
            Self::Loading => 6,
            Self::OutOfMemory => 7,
            Self::ReadOnly => 8,
            Self::Stall(_) => 9,
            Self::Unreachable(_) => 10,
            Self::ResetConnections(_) => 11,
            Self::HalfOpen(_) => 12,
            Self::Terminate(_) => 13,
            Self::Kill(_) => 14,
            Self::Stop(_) => 15,
            Self::StepClock(..) => 16,
            Self::SetOverride { .. } => 17,
            Self::RemoveOverride { .. } => 18,
            Self::ResetCounter { .. } => 19,
            Self::Reload { .. } => 20,
        }
    }

    /// False for what an operator does to a service that works.
    pub fn is_fault(self) -> bool {
        self.index() < 17 && !matches!(self, Self::Terminate(_))
    }

    /// True if Redis may lose hits.
    pub fn loses_data(self) -> bool {
        self.index() < 5
    }
}

impl fmt::Display for ActionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.action)?;
        if self.lasts > 0 { write!(f, " for {} ms", self.lasts / 1000) } else { Ok(()) }
    }
}

/// Draws an action, and how long it lasts.
type Kind = fn(&mut Random, &Plan) -> (Action, Micros);

impl Plan {
    pub fn of(seed: u64, scenario: Option<Scenario>) -> Self {
        let mut random = Random::new(seed);
        let drawn = random.choose(&Scenario::ALL);
        let scenario = scenario.unwrap_or(drawn);
        let traffic = random.between(8, 14) * SECOND;
        let replicas = random.between(1, 4) as usize;
        let limits: Vec<_> = (0..random.between(1, 5)).map(|_| limit(&mut random)).collect();
        let callers = limits.iter().enumerate();
        let callers = callers.map(|(at, limit)| caller(&mut random, at, *limit, replicas)).collect();
        let faults = scenario.is_faulty();
        let mut plan = Self {
            seed,
            scenario,
            began: moment(&mut random),
            traffic: if faults { traffic + RECOVERY + 4 * SECOND } else { traffic },
            replicas: vec![ReplicaPlan::default(); replicas],
            timeout: random.choose(&[10_000, 20_000, 50_000]),
            has_cache: random.one_in(2),
            policy: random.choose(&[
                OnStoreFailure::Error,
                OnStoreFailure::Allow,
                OnStoreFailure::Deny,
                OnStoreFailure::Local,
            ]),
            weather: weather(&mut random, faults),
            limits,
            callers,
            actions: Vec::new(),
            streams: streams::plan::draw(seed),
        };
        plan.add_actions(&mut random, traffic);
        streams::plan::add_actions(&mut plan, traffic);
        plan
    }

    /// True if nothing is lost, slow or wrong.
    pub fn is_clean(&self) -> bool {
        !self.actions.iter().any(|one| one.action.is_fault()) && self.weather.late == 0 && !self.has_skew()
    }

    pub fn has_skew(&self) -> bool {
        self.replicas.iter().any(|replica| replica.offset != 0 || replica.drift != 0)
    }

    /// The end of the last fault.
    pub fn last_fault(&self) -> Micros {
        let faults = self.actions.iter().filter(|one| one.action.is_fault());
        faults.map(|one| one.at + one.lasts).max().unwrap_or(0)
    }

    pub fn end(&self) -> Micros {
        self.traffic + QUIET
    }

    fn add_actions(&mut self, random: &mut Random, until: Micros) {
        let kinds: &[Kind] = match self.scenario {
            Scenario::Steady => &[],
            Scenario::Loss => &[lose],
            Scenario::Network => &[disturb],
            Scenario::Operators => &[operate],
            Scenario::Processes => &[end_process],
            Scenario::Divided => &[cut_off, operate, operate, operate],
            Scenario::Mixed => &[lose, disturb, operate, end_process],
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
        for _ in 0..random.between(1, 12) {
            let (action, lasts) = random.choose(kinds)(random, self);
            let at = random.between(SECOND, until - SECOND);
            self.actions.push(ActionPlan { at, lasts, action });
        }
        self.actions.sort_by_key(|one| one.at);
        self.weather.late_until = self.last_fault();
    }
}

impl Scenario {
    fn is_faulty(self) -> bool {
        !matches!(self, Self::Steady | Self::Operators)
    }
}

fn limit(random: &mut Random) -> LimitPlan {
    let unit = random.choose(&[Unit::Second, Unit::Second, Unit::Minute, Unit::Minute, Unit::Hour]);
    let limit = match unit {
        Unit::Second => random.choose(&[5, 40, 100, 400]),
        _ => random.choose(&[20, 200, 1000, 4000]),
    };
    LimitPlan { unit, limit, is_leased: !random.one_in(3) }
}

/// A caller who demands about as much as the limit.
fn caller(random: &mut Random, limit: usize, of: LimitPlan, replicas: usize) -> CallerPlan {
    let window = if of.unit == Unit::Second { 1.0 } else { 6.0 };
    let demand = random.choose(&[0.5, 0.9, 1.2, 2.0, 3.0]);
    let rate = (of.limit as f64 / window * demand).clamp(2.0, 800.0) as u64;
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
fn moment(random: &mut Random) -> u64 {
    let day = 1_800_000_000 / 86_400 * 86_400 + 86_400 * random.below(20);
    let next = day + random.choose(&[60, 3600, 7200, 86_400]);
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

fn millis(random: &mut Random, first: u64, last: u64) -> Micros {
    random.between(first, last) * 1000
}

fn lose(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    match random.below(5) {
        0 => (Action::Flush, 0),
        1 => (Action::RestartEmpty, millis(random, 1, 800)),
        2 => (Action::RestartFromSnapshot(millis(random, 100, 3000)), millis(random, 1, 800)),
        3 => (Action::Failover(millis(random, 1, 300)), millis(random, 1, 300)),
        _ => (Action::Evict(any_limit(random, plan)), 0),
    }
}

fn disturb(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    match random.below(8) {
        0 => (Action::Freeze, millis(random, 5, 1500)),
        1 => (Action::Loading, millis(random, 5, 800)),
        2 => (Action::OutOfMemory, millis(random, 50, 1000)),
        3 => (Action::ReadOnly, millis(random, 50, 1000)),
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

fn operate(random: &mut Random, plan: &Plan) -> (Action, Micros) {
    let (replica, limit) = (one(random, plan), any_limit(random, plan));
    let to = (plan.limits[limit].limit * random.choose(&[1, 2, 4, 6]) / 2).max(1);
    match random.below(7) {
        6 => (Action::Terminate(replica), millis(random, 900, 2000)),
        0 | 1 => (Action::SetOverride { replica, limit, to }, 0),
        2 => (Action::RemoveOverride { replica, limit }, 0),
        3 | 4 => (Action::ResetCounter { replica, limit }, 0),
        _ => (Action::Reload { limit, to }, 0),
    }
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
