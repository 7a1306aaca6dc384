//! What a seed stands for: replicas, limits, callers and faults. The plan is made before the run, so that a failing one can
//! be shrunken, printed, and run again.

use std::fmt;

use faults::OnStoreFailure;
use serde::{Deserialize, Serialize};

use crate::{
    limits::LimitPlan, named, network::Weather, quotas::QuotasPlan, streams::plan::StreamsPlan,
    topology::Topology, world::Micros,
};

pub const SECOND: Micros = 1_000_000;

/// The time without traffic at the end, after which nothing may be left.
pub const QUIET: Micros = 15 * SECOND;

/// The time after the last fault until everything works as without one.
pub const RECOVERY: Micros = 9 * SECOND;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    #[serde(with = "named::scenario")]
    pub scenario: Scenario,
    #[serde(default = "single")]
    pub topology: Topology,
    /// The time of day at the start, in microseconds since 1970.
    pub began: u64,
    /// When traffic ends.
    pub traffic: Micros,
    pub replicas: Vec<ReplicaPlan>,
    pub timeout: Micros,
    pub has_cache: bool,
    #[serde(with = "named::policy")]
    pub policy: OnStoreFailure,
    pub weather: Weather,
    pub limits: Vec<LimitPlan>,
    pub callers: Vec<CallerPlan>,
    pub actions: Vec<ActionPlan>,
    #[serde(default)]
    pub streams: Option<StreamsPlan>,
    #[serde(default)]
    pub quotas: Option<QuotasPlan>,
    /// The most leases of a replica, if not the usual number, and the bytes of the summaries that it publishes.
    #[serde(skip)]
    pub most_leases: Option<usize>,
    #[serde(skip)]
    pub summary: usize,
}

text::named! {
    pub enum Scenario {
        /// No faults.
        Steady = "steady",
        /// Redis loses data.
        Loss = "loss",
        /// The network and Redis are slow, or fail.
        Network = "network",
        /// Overrides, resets and reloads.
        Operators = "operators",
        /// Replicas stop, and their clocks differ.
        Processes = "processes",
        /// A replica is cut off while operators change overrides.
        Divided = "divided",
        /// Masters of a cluster or of sentinels fail, and slots move.
        Failover = "failover",
        /// Envoys are assigned quotas.
        Quota = "quota",
        /// Replicas get no CPU for a while, again and again. Nothing else is late.
        Late = "late",
        /// All of it.
        Mixed = "mixed",
        /// Three regions share one Redis, and are cut off from it for a minute or more.
        Regions = "regions",
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaPlan {
    /// The error of its clock in microseconds, and its drift in microseconds per second.
    pub offset: i64,
    pub drift: i64,
    /// How much longer a packet takes between it and Redis.
    #[serde(default)]
    pub distance: Micros,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Arrivals {
    Poisson,
    /// All requests of a second in its first fifth.
    Bursts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Spread {
    Any,
    One(usize),
    /// To another replica every half second.
    Moving,
    /// To one until half of the limit is demanded, then to the others: it returns what it has leased.
    Leaves(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HitsPlan {
    Single,
    /// One to ten.
    Several,
    /// Mostly one; some are refunded, and some requests only read.
    Mixed,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ActionPlan {
    pub at: Micros,
    /// How long the condition lasts.
    pub lasts: Micros,
    pub action: Action,
}

fn single() -> Topology {
    Topology::Single
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    Flush,
    RestartEmpty,
    /// Restarts with the data of this long before.
    RestartFromSnapshot(Micros),
    /// A replica without the writes of this long becomes the master.
    Failover(usize, Micros),
    /// An operator deletes the key of a counter.
    Delete(usize),
    /// `maxmemory` is reached: half of the keys are evicted, random ones or those that expire first.
    MaxMemory {
        is_random: bool,
    },
    /// A master and its replica change places.
    SwitchOver(usize),
    /// The slot of a counter, or that of the overrides, moves to another node.
    MoveSlot {
        limit: Option<usize>,
        to: usize,
    },
    Freeze(usize),
    Loading(usize),
    OutOfMemory(usize),
    ReadOnly(usize),
    Stall(Option<usize>),
    Unreachable(Option<usize>),
    ResetConnections(Option<usize>),
    HalfOpen(Option<usize>),
    Kill(usize),
    Stop(usize),
    StepClock(usize, i64),
    /// The clocks of all servers are set back.
    SetServersBack(Micros),
    Terminate(usize),
    SetOverride {
        replica: usize,
        limit: usize,
        to: u64,
        by_entry: bool,
    },
    RemoveOverride {
        replica: usize,
        limit: usize,
        by_entry: bool,
    },
    /// Sets overrides of all limits, to this percentage of them.
    Import {
        replica: usize,
        percent: u64,
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
    pub const NAMES: [&'static str; 28] = [
        "flush",
        "restart empty",
        "restart from a snapshot",
        "failover",
        "delete counter",
        "maxmemory",
        "switch over",
        "move slot",
        "freeze",
        "loading",
        "out of memory",
        "read only",
        "stall",
        "unreachable",
        "reset connections",
        "half-open",
        "kill",
        "stop",
        "step clock",
        "set servers back",
        "terminate",
        "set override",
        "set override by entry",
        "remove override",
        "remove override by entry",
        "import",
        "reset counter",
        "reload",
    ];

    pub fn index(self) -> usize {
        match self {
            Self::Flush => 0,
            Self::RestartEmpty => 1,
            Self::RestartFromSnapshot(_) => 2,
            Self::Failover(..) => 3,
            Self::Delete(_) => 4,
            Self::MaxMemory { .. } => 5,
            Self::SwitchOver(_) => 6,
            Self::MoveSlot { .. } => 7,
            Self::Freeze(_) => 8,
            Self::Loading(_) => 9,
            Self::OutOfMemory(_) => 10,
            Self::ReadOnly(_) => 11,
            Self::Stall(_) => 12,
            Self::Unreachable(_) => 13,
            Self::ResetConnections(_) => 14,
            Self::HalfOpen(_) => 15,
            Self::Kill(_) => 16,
            Self::Stop(_) => 17,
            Self::StepClock(..) => 18,
            Self::SetServersBack(_) => 19,
            Self::Terminate(_) => 20,
            Self::SetOverride { by_entry, .. } => 21 + usize::from(by_entry),
            Self::RemoveOverride { by_entry, .. } => 23 + usize::from(by_entry),
            Self::Import { .. } => 25,
            Self::ResetCounter { .. } => 26,
            Self::Reload { .. } => 27,
        }
    }

    /// False for what an operator does to a service that works.
    pub fn is_fault(self) -> bool {
        self.index() < 20
    }

    /// True if Redis may lose hits.
    pub fn loses_data(self) -> bool {
        self.index() < 6
    }
}

impl fmt::Display for ActionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.action)?;
        if self.lasts > 0 { write!(f, " for {} ms", self.lasts / 1000) } else { Ok(()) }
    }
}

impl Plan {
    /// True if nothing is lost, slow or wrong.
    pub fn is_clean(&self) -> bool {
        !self.actions.iter().any(|one| one.action.is_fault()) && self.weather.late == 0 && !self.has_skew()
    }

    /// True if nothing is lost or slow. Clocks may be wrong.
    pub fn is_calm(&self) -> bool {
        let is_of_clocks =
            |action: Action| matches!(action, Action::StepClock(..) | Action::SetServersBack(_));
        let mut faults = self.actions.iter().filter(|one| one.action.is_fault());
        faults.all(|one| is_of_clocks(one.action)) && self.weather.late == 0
    }

    /// True if replicas get no CPU for a while, and nothing else is wrong.
    pub fn only_stops(&self) -> bool {
        let mut faults = self.actions.iter().filter(|one| one.action.is_fault()).peekable();
        faults.peek().is_some()
            && faults.all(|one| matches!(one.action, Action::Stop(_)))
            && self.weather.late == 0
            && !self.has_skew()
    }

    /// True if the clocks of replicas differ.
    pub fn has_skew(&self) -> bool {
        let steps = |one: &ActionPlan| matches!(one.action, Action::StepClock(..));
        self.replicas.iter().any(|replica| replica.offset != 0 || replica.drift != 0)
            || self.actions.iter().any(steps)
    }

    /// The end of the last fault.
    pub fn last_fault(&self) -> Micros {
        let faults = self.actions.iter().filter(|one| one.action.is_fault());
        faults.map(|one| one.at + one.lasts).max().unwrap_or(0)
    }

    pub fn end(&self) -> Micros {
        self.traffic + QUIET
    }
}
