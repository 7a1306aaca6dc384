//! Where counters live: [`Store`] is asked once a request, for all of its checks together.
//!
//! The limiter plans the checks and reads their outcomes; a store counts and nothing else. The in-memory
//! store answers at once; one across a network answers later and sees the whole request in one call, so
//! that it can send many requests' checks together. `batch` is what it is asked, `usage` what it tells of
//! itself.
//!
//! What the stores across a network share stands beside them: `hashed` names long keys, `connection` is how a server is asked, `wire` is a
//! socket, with `tls` where it is asked for, `line` what goes over it; `failure`, `metrics` and `pace` are for
//! when it goes wrong.

pub(crate) mod remote;
pub mod table;

pub mod memcached;
pub mod memory;
pub mod redis;

mod batch;
mod usage;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use crate::{clock::Time, rules::RuleSet};

use self::batch::looking;

pub use self::{
    batch::{Batch, Check, Counting, Member, Outcome},
    usage::{Distribution, PoolUsage, StoreKind, StoreUsage},
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
    fn start_worker(&self) {}

    /// Called with the rules that are to serve next, so that what they need is checked before it is needed.
    fn rules_changed(&self, _rules: &RuleSet) {}

    /// True when [`apply`](Self::apply) always answers [`Applied::Now`].
    fn is_synchronous(&self) -> bool {
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

/// Why a store failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    /// The kind of failure.
    pub reason: FailureReason,
    /// What failed and where, for the operator; contains no secret.
    pub message: Arc<str>,
}

/// The kinds of failure: the label `reason` of metrics, and part of the answers that a failure policy decided.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FailureReason {
    /// No reply within the timeout.
    Timeout,
    /// The queue's bound on checks was reached.
    QueueFull,
    /// More checks were queued than the server answers within the timeout.
    Overloaded,
    /// The breaker is open: the server failed before and has not recovered yet.
    Unavailable,
    /// The connection broke before the reply.
    ConnectionLost,
    /// The reply was an error, or an unexpected one.
    BadAnswer,
}

impl FailureReason {
    /// Every reason, in the order of its discriminants.
    pub const ALL: [Self; 6] = [
        Self::Timeout,
        Self::QueueFull,
        Self::Overloaded,
        Self::Unavailable,
        Self::ConnectionLost,
        Self::BadAnswer,
    ];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::QueueFull => "queue_full",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::ConnectionLost => "connection_lost",
            Self::BadAnswer => "bad_answer",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
