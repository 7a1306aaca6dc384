//! Where counters live: [`Store`] is asked once a request, for all of its checks together.
//!
//! The limiter plans the checks and reads their outcomes; a store counts and nothing else. The in-memory
//! store answers at once; one across a network answers later and sees the whole request in one call, so
//! that it can send many requests' checks together.
//!
//! What the stores across a network share stands beside them: `lane` is how a server is asked, `wire` is a
//! socket, with `tls` where it is asked for, `line` what goes over it; `failure`, `meters` and `pace` are for
//! when it goes wrong.

pub mod memcached;
pub mod memory;
pub mod redis;

mod failure;
mod lane;
mod line;
mod meters;
mod pace;
mod random;
mod tls;
mod wire;

use std::{fmt, future::Future, ops::Range, pin::Pin, sync::Arc, time::Instant};

use smallvec::SmallVec;

use crate::{
    algorithm::{Hits, Verdict, fixed_window},
    clock::Time,
    rules::Limit,
    table::Usage,
};

/// Counters, shared by all cores.
pub trait Store: Send + Sync {
    /// Asks every check of a request and fills in its outcome.
    ///
    /// # Errors
    /// When the counters cannot be reached; then no outcome may be relied on.
    fn apply<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a>;

    /// Called once on each thread that asks, within its runtime: a store across a network opens its
    /// connections there.
    fn attend(&self) {}

    /// True when [`apply`](Self::apply) always answers [`Applied::Now`].
    fn answers_at_once(&self) -> bool {
        false
    }

    /// Gives back what has ended; called about once a second.
    fn maintain(&self, _now: Time) {}

    /// How full it is, where the counters are in this process.
    fn usage(&self) -> Option<StoreUsage> {
        None
    }

    /// True while it can be asked.
    fn is_reachable(&self) -> bool {
        true
    }

    /// How its connections fare, where the counters are across a network.
    fn pools(&self) -> Vec<PoolUsage> {
        Vec::new()
    }
}

/// Servers of counters that are told apart in the statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StoreKind {
    /// The Redis that holds all counters, or all but those of limits per second.
    #[default]
    Redis,
    /// The Redis that holds the counters of limits per second alone.
    RedisPerSecond,
    /// All servers of memcached together.
    Memcached,
}

/// How the connections to one Redis fare, or to the servers of memcached.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolUsage {
    /// Whose they are.
    pub kind: StoreKind,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that this side closed.
    pub closed: u64,
    /// Connections that took the place of a lost one.
    pub reconnects: u64,
    /// Connections that are given up for now: nothing is asked of them until a probe is answered in time.
    pub breakers_open: u64,
    /// Checks that wait.
    pub queued: u64,
    /// Checks that may wait.
    pub max_queued: u64,
    /// Failures by kind, every kind.
    pub errors: Vec<(&'static str, u64)>,
    /// Seconds from sending a pipeline to its last answer.
    pub operation_time: Distribution,
    /// Checks that one pipeline carried.
    pub batch_size: Distribution,
}

/// How many values were at most so large.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Distribution {
    /// A bound, and how many values lie within it.
    pub buckets: Vec<(f64, u64)>,
    /// How many values there were.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

/// How full a store in this process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreUsage {
    /// What is held, and what has gone.
    pub held: Usage,
    /// The bound on keys.
    pub max_keys: usize,
}

/// The answer of a store: at once, or when it has heard from elsewhere.
pub enum Applied<'a> {
    /// The outcomes are there.
    Now(Result<(), StoreError>),
    /// The outcomes are there when this completes.
    Later(Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>),
}

impl Applied<'_> {
    /// Waits for the outcomes.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub async fn done(self) -> Result<(), StoreError> {
        match self {
            Self::Now(result) => result,
            Self::Later(future) => future.await,
        }
    }
}

/// Why counters could not be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    /// The kind of failure, by which decisions that are made without counters are told apart.
    pub reason: FailureReason,
    /// What failed and where, in words for the operator; it holds no secret.
    pub message: Arc<str>,
}

/// The kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailureReason {
    /// No answer came in time.
    Timeout,
    /// As much as may be was waiting already.
    QueueFull,
    /// The counters were found lost before, and are not asked until they are back.
    Unavailable,
    /// The connection broke while the answer was awaited.
    ConnectionLost,
    /// The answer was an error, or made no sense.
    BadAnswer,
}

impl FailureReason {
    /// Every reason, each at its own number.
    pub const ALL: [Self; 5] =
        [Self::Timeout, Self::QueueFull, Self::Unavailable, Self::ConnectionLost, Self::BadAnswer];
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

/// The checks of one request.
#[derive(Debug, Default)]
pub struct Batch<'r> {
    /// The keys of all checks, one behind the other, so that a request costs one allocation.
    keys: String,
    checks: SmallVec<[Check<'r>; 4]>,
    /// What is added when a check is or would be over its limit.
    pub counting: Counting,
    /// When an answer is of no use to the caller any more, where that is known.
    pub until: Option<Instant>,
}

/// Whether a refused request counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Counting {
    /// Every hit counts, also those of a request that is refused.
    #[default]
    Always,
    /// When a check would go over its limit, only such checks count; the others look.
    StopWhenOver,
    /// Every check looks: one that is not in the batch is known to be over.
    Look,
}

/// One counter that is asked, and what it says.
#[derive(Clone, Debug)]
pub struct Check<'r> {
    key: Range<usize>,
    /// What is held against the counter.
    pub limit: &'r Limit,
    /// What is added to it.
    pub hits: Hits,
    /// What it says; set by the store.
    pub outcome: Outcome,
}

/// What a counter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A fixed window's count afterwards.
    Counted(u64),
    /// The verdict of any other algorithm.
    Judged(Verdict),
}

impl<'r> Batch<'r> {
    /// A batch that puts its keys behind what `keys` holds.
    #[must_use]
    pub fn with_space(keys: String) -> Self {
        Self { keys, ..Self::default() }
    }

    /// Space for a key, to be written behind what is there and handed to [`push`](Self::push).
    pub fn keys(&mut self) -> &mut String {
        &mut self.keys
    }

    /// Adds a check whose key was written from `start` on, and returns its place.
    pub fn push(&mut self, start: usize, limit: &'r Limit, hits: Hits) -> usize {
        self.checks.push(Check { key: start..self.keys.len(), limit, hits, outcome: Outcome::Counted(0) });
        self.checks.len() - 1
    }

    /// The counter's key of a check.
    #[must_use]
    pub fn key(&self, check: &Check<'_>) -> &str {
        self.keys.get(check.key.clone()).unwrap_or_default()
    }

    /// The checks in the order in which they were added.
    #[must_use]
    pub fn checks(&self) -> &[Check<'r>] {
        &self.checks
    }

    /// Keeps the checks for which `keep` holds; each is asked about once, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Check<'r>) -> bool) {
        let Self { keys, checks, .. } = self;
        checks.retain(|check| keep(keys.get(check.key.clone()).unwrap_or_default(), check));
    }

    /// True when there is nothing to ask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Sets the outcome of the check at this place.
    pub fn set(&mut self, place: usize, outcome: Outcome) {
        if let Some(check) = self.checks.get_mut(place) {
            check.outcome = outcome;
        }
    }

    /// Sets each outcome to what `outcome` makes of the check and its key.
    pub fn answer(&mut self, mut outcome: impl FnMut(&str, &Check<'r>) -> Outcome) {
        for check in &mut self.checks {
            let key = self.keys.get(check.key.clone()).unwrap_or_default();
            check.outcome = outcome(key, check);
        }
    }
}

/// Hits that are not to be counted; what is given back is given back all the same.
fn looking(hits: Hits) -> Hits {
    match hits {
        Hits::Take(_) => Hits::Take(0),
        Hits::GiveBack(_) => hits,
    }
}

impl Check<'_> {
    /// True when it was not within the limit.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self.outcome {
            Outcome::Counted(after) => after > u64::from(self.limit.requests_per_unit),
            Outcome::Judged(verdict) => !verdict.admitted,
        }
    }

    /// True when these hits would not be within the limit, given what was seen by a look without any.
    #[must_use]
    pub fn would_be_over(&self, seen: Outcome) -> bool {
        match seen {
            Outcome::Counted(now) => {
                fixed_window::count(now, self.hits) > u64::from(self.limit.requests_per_unit)
            }
            Outcome::Judged(seen) => self.hits.taken() > u64::from(seen.remaining),
        }
    }
}
