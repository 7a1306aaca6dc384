//! The hits that leases take and return in the background, over the same connections as requests.

use std::borrow::Cow;

use super::{RedisStore, backend::PendingReply, pipeline::Outcome, route::is_per_second};
use crate::{
    clock::Time,
    rules::Limit,
    store::{Batch, Check, StoreError},
};

/// The pending reply to a lease or a return of hits.
pub(crate) struct LeaseReply(PendingReply);

/// A counter from which hits are leased.
pub(crate) struct Leased<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_per_second: bool,
    pub(crate) limit: &'a Limit,
}

impl RedisStore {
    /// Adds hits to a counter if they are within its limit.
    pub(crate) fn lease(&self, counter: &Leased<'_>, hits: u64, now: Time) -> Result<LeaseReply, StoreError> {
        let pool = self.pool_of(counter.is_per_second);
        let connection = pool.connection(counter.name)?;
        let backend = pool.backend();
        let id = backend.ttl_cache.id(counter.name);
        let expiry = backend.expiry(id, counter.limit, now);
        let (limit, by) = (u64::from(counter.limit.requests_per_unit), backend.lease_by());
        connection
            .submit(1, None, |pipeline| pipeline.lease(counter.name, id, hits, limit, expiry, by))
            .map(LeaseReply)
    }

    /// Returns hits of a lease, unless the counter has fewer than the `own` that this replica has added to it.
    pub(crate) fn return_hits(
        &self,
        name: &str,
        is_per_second: bool,
        hits: u64,
        own: u64,
    ) -> Result<LeaseReply, StoreError> {
        let connection = self.pool_of(is_per_second).connection(name)?;
        connection.submit(1, None, |pipeline| pipeline.return_hits(name, hits, own)).map(LeaseReply)
    }

    /// The name of a check's counter, and whether it is in the Redis for limits per second.
    pub(crate) fn place<'b>(&self, batch: &'b Batch<'_>, check: &Check<'_>) -> (Cow<'b, str>, bool) {
        (self.pool(check).names.of(batch, check), is_per_second(check))
    }
}

impl LeaseReply {
    /// The counter, and whether the hits were added; `None` after a failure.
    pub(crate) async fn wait(mut self) -> Option<(u64, bool)> {
        match self.0.wait(None).await.ok()?.into_iter().next()? {
            Outcome::Leased(after, is_granted) => Some((after, is_granted)),
            _ => None,
        }
    }
}
