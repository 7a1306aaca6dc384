//! The hits that leases take and return in the background, over the same connections as requests.
//!
//! Redis may lose a counter (FLUSHALL), or restore it from a time before hits were leased (a restart from a snapshot, a
//! failover to a replica without the last writes). Then the hits must not be returned: other callers may have counted
//! since. So each grant has a number, which the script stores in a hash beside the counter in the same step, and hits are
//! returned only to a counter whose hash has the last number that the lease was confirmed.

use super::{
    RedisStore,
    backend::PendingReply,
    pipeline::{CheckResult, LeaseCall, Receipt},
    pool::Pool,
    route::is_per_second,
};
use clock::Time;
use counters::{Batch, Check, CounterId};
use limit::{Rate, lease::Grant};
use wire::Patience;

/// The pending reply to a lease or a return of hits.
pub struct LeaseReply(PendingReply);

/// A counter whose hits are leased.
#[derive(Clone, Debug)]
pub struct LeasedCounter {
    pub name: Box<str>,
    /// It is in the Redis for limits per second.
    pub is_per_second: bool,
    pub limit: Rate,
}

impl RedisStore {
    /// Adds hits to a counter if they are within its limit. `None` if the command cannot be sent.
    pub fn lease(
        &self,
        counter: &LeasedCounter,
        hits: u64,
        receipt: Receipt,
        now: Time,
    ) -> Option<LeaseReply> {
        let pool = self.pool_of(counter.is_per_second);
        let backend = pool.backend();
        let id = CounterId::of_name(&counter.name);
        let expiry = backend.ttl_cache.expiry(id, &counter.limit, now);
        let leases = pool.leases_of(&counter.name)?;
        let call = LeaseCall::take(leases, hits, counter.limit.requests_per_unit, id, expiry, receipt);
        pool.send_lease(&counter.name, call)
    }

    /// Returns hits of a lease, unless the counter has lost them, or has fewer than the `own` that this replica has added
    /// to it. `None` if the command cannot be sent.
    pub fn return_hits(
        &self,
        counter: &LeasedCounter,
        hits: u64,
        own: u64,
        receipt: Receipt,
    ) -> Option<LeaseReply> {
        let pool = self.pool_of(counter.is_per_second);
        let call = LeaseCall::give_back(pool.leases_of(&counter.name)?, hits, own, receipt);
        pool.send_lease(&counter.name, call)
    }

    /// The counter of a check.
    pub fn leased_counter(&self, batch: &Batch, check: &Check) -> LeasedCounter {
        let name = self.pool(check).names.of(batch, check).into();
        LeasedCounter { name, is_per_second: is_per_second(check), limit: check.limit }
    }
}

impl Pool {
    fn send_lease(&self, name: &str, call: LeaseCall) -> Option<LeaseReply> {
        let connection = self.connection(name).ok()?;
        // The counter has hits that were taken, whenever the reply arrives.
        let patience = if call.takes() { Patience::Unlimited } else { Patience::Timeout };
        connection.submit(1, patience, None, |pipeline| pipeline.lease(name, call)).ok().map(LeaseReply)
    }
}

impl LeaseReply {
    /// The counter, and whether the hits were added; `None` after a failure.
    pub async fn wait(mut self) -> Option<(u64, Grant)> {
        match self.0.wait().await.ok()?.into_iter().next()? {
            CheckResult::Leased(after, grant) => Some((after, grant)),
            _ => None,
        }
    }
}
