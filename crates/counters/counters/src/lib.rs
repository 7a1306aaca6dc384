//! Counter stores: a [`Store`] counts all checks of a request in one call.
//!
//! The limiter plans the checks and reads their verdicts. The memory store answers at once. A networked store answers
//! later, and sends the checks of many requests together. `batch` has the checks, `holds` what is held by requests under
//! way, and [`table`] the bounded table of counters in memory, of caches and of leases.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on this machine"))]

pub mod table;

mod batch;
mod finding;
mod holds;
mod id;
mod lowered;
mod outage;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use clock::Time;
use metrics::{FailureReason, LeaseState, LeaseUsage, PoolUsage, StoreUsage};
use smallvec::{SmallVec, smallvec};

pub use self::{
    batch::{Batch, Check, Counting, Member, without_taking},
    finding::{Decider, Finding},
    holds::{Close, Closed, Closing, Held, Hold, HoldAccount, HoldId, HoldObserver, MostHolds, OpenHold},
    id::{CounterId, Parts},
    lowered::{Caches, Lowered},
    outage::{Outage, Outages},
};

/// Counters, shared by all cores.
pub trait Store: Count + KeepHolds + Operate + Report {}

impl<S: Count + KeepHolds + Operate + Report> Store for S {}

/// Counts the checks of requests.
pub trait Count: Send + Sync {
    /// Whether batches must have the keys of their counters.
    fn needs_names(&self) -> bool {
        true
    }

    /// Counts every check of a request and sets its verdict, if no check has to wait. Otherwise counts nothing.
    fn try_apply(&self, _batch: &mut Batch, _now: Time) -> Applied {
        Applied::Wait
    }

    /// The hits in the counter of a check, as far as this process knows without asking. May be out of date.
    fn known(&self, _check: &Check, _now: Time) -> Option<u64> {
        None
    }

    /// Counts every check of a request and sets its verdict.
    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a>;
}

/// Holds for requests under way. A store that cannot hold leaves all of it out; rules with holds are then rejected.
pub trait KeepHolds: Send + Sync {
    /// The slots of the batch's holds, which their id contains, so that any replica finds them.
    fn slots_of_holds(&self, _batch: &Batch) -> SmallVec<[u16; 2]> {
        smallvec![0]
    }

    /// Settles, ends or cancels the holds of a request, and removes the slots in which it is done. Repeating it changes nothing.
    /// Its account hears what it has closed, also after the future has failed.
    fn close_holds<'a>(&'a self, _closing: &'a mut Closing, _now: Time) -> StoreFuture<'a> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The requests, or in memory the holds, that are open where this replica has held; in Redis by the last sweep.
    fn open_holds(&self) -> u64 {
        0
    }

    /// Closes at once, if the store does not have to be waited for.
    fn try_close_holds(&self, _closing: &Closing, _now: Time) -> Applied {
        Applied::Wait
    }

    /// Charges some of the holds that have expired. Called about once a second.
    fn sweep_holds<'a>(&'a self, _account: &'a HoldAccount, _now: Time) -> SweepFuture<'a> {
        Box::pin(std::future::ready(()))
    }

    /// The open holds of a batch's checks, at most `most` of each: those that expire first.
    fn list_holds<'a>(&'a self, _batch: &'a Batch, _most: usize, _now: Time) -> ListingFuture<'a> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// What operators and the service's own life ask of a store.
pub trait Operate: Send + Sync {
    /// Resets the counters of a batch to unused ones. Rare, so it need not be fast. Called by the thread of the pages.
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a>;

    /// Forgets the state in this process of counters that were reset, here or by another replica.
    fn forget(&self, _resets: &Resets) {}

    /// Reads counters again that were known to be over their limits, after refunds by other replicas.
    fn read_again(&self, _refunds: &Resets) {}

    /// Called once on each worker thread, within its runtime: a networked store opens its connections there.
    fn start_worker(&self) {}

    /// Called before new rules are published, with whether one of their limits holds.
    fn rules_changed(&self, _hold: bool) {}

    /// Frees expired state; called about once a second.
    fn maintain(&self, _now: Time) {}

    /// Prepares for shutdown: returns leased hits. Called by a worker or the main thread.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::ready(()))
    }
}

/// What pages and health checks show of a store.
pub trait Report: Send + Sync {
    fn leases(&self) -> Option<LeaseUsage<'_>> {
        None
    }

    /// At most this many leases: first those with most hits left, then those with most requests.
    fn top_leases(&self, _count: usize, _now: Time) -> Vec<LeaseState> {
        Vec::new()
    }

    fn usage(&self) -> Option<StoreUsage> {
        None
    }

    fn is_reachable(&self) -> bool {
        true
    }

    /// True while the store can count, as far as health checks need to know.
    fn is_usable(&self) -> bool {
        self.is_reachable()
    }

    /// The connection metrics of a networked store.
    fn pools(&self) -> Vec<PoolUsage> {
        Vec::new()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resets {
    Of(Vec<String>),
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Applied {
    /// The verdicts are set.
    Done,
    /// Nothing was counted: the batch goes to [`Count::apply`].
    Wait,
}

/// Completes when the verdicts of a batch are set.
pub type StoreFuture<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

pub type SweepFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

pub type ListingFuture<'a> = Pin<Box<dyn Future<Output = Result<Vec<OpenHold>, StoreError>> + Send + 'a>>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    pub reason: FailureReason,
    /// The failure and its place, for the operator; contains no secret.
    pub message: Arc<str>,
}

impl StoreError {
    pub fn new(reason: FailureReason, message: impl Into<Arc<str>>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
