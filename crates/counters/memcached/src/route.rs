//! Sends a request's checks to the connections that own their keys, and sets the outcomes.

use std::{borrow::Cow, future::ready, sync::Arc};

use smallvec::SmallVec;

use super::{
    MemcachedStore,
    backend::{Connection, PendingReply},
    servers::key_name,
};
use clock::{Time, timer::Random};
use counters::{Batch, Check, Counting, HitsToSend, Member, NextHits, StoreError, StoreFuture};
use limit::{Hits, Rate};
use metrics::FailureReason;
use wire::Patience;

/// The longest relative expiry in memcached: 30 days. A larger number is a date.
const MAX_RELATIVE: u64 = 30 * 24 * 3600;

/// The last date that memcached accepts.
const MAX_DATE: u64 = i32::MAX.unsigned_abs() as u64;

/// A request to one connection: the indexes of its checks, and the pending reply.
struct Submitted {
    checks: SmallVec<[usize; 4]>,
    reply: PendingReply,
}

/// The checks of one connection, by index and key.
struct Group<'b> {
    connection: Arc<Connection>,
    checks: SmallVec<[(usize, Cow<'b, str>); 4]>,
}

impl MemcachedStore {
    pub(super) fn count<'a>(
        &'a self,
        batch: &'a mut Batch,
        counting: Counting,
        now: Time,
    ) -> StoreFuture<'a> {
        let plan = match counting {
            Counting::ReadOnly => HitsToSend::Read,
            _ if batch.has_groups() => return Box::pin(self.count_groups(batch, now)),
            Counting::Always | Counting::StopWhenOver => HitsToSend::Own,
        };
        match self.submit(batch, now, plan) {
            Ok(submitted) => Box::pin(receive(batch, submitted, now)),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    /// Submits these hits and waits for the outcomes.
    pub(super) async fn apply_hits(
        &self,
        batch: &mut Batch,
        now: Time,
        plan: HitsToSend<'_>,
    ) -> Result<(), StoreError> {
        let submitted = self.submit(batch, now, plan)?;
        receive(batch, submitted, now).await
    }

    /// Counts single checks and reads those of groups; then counts the groups that fit.
    async fn count_groups(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        let is_read_first = |check: &Check| check.member != Member::Alone && check.takes();
        let read_first: SmallVec<[bool; 8]> = batch.checks().iter().map(is_read_first).collect();
        let reads = batch.checks().iter();
        let reads = reads.map(|check| Some(if is_read_first(check) { Hits::Take(0) } else { check.hits }));
        let reads: NextHits = reads.collect();
        self.apply_hits(batch, now, HitsToSend::Next(&reads)).await?;
        let hits = batch.hits_that_fit(|index| read_first.get(index) == Some(&true));
        self.count_and_refund(batch, now, hits).await
    }

    /// Counts every check unless the request is refused; then only those that would be over their limits.
    ///
    /// memcached cannot do both in one step, so the counters are read and then changed. A concurrent request may
    /// find the same room; then a group refunds its hits.
    pub(super) async fn count_unless_over(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        self.apply_hits(batch, now, HitsToSend::Each(Hits::Take(0))).await?;
        let hits = batch.hits_after_read();
        self.count_and_refund(batch, now, hits).await
    }

    /// Counts these hits, and refunds those of groups that concurrent requests took over a limit: a group never exceeds its
    /// limits, and its rejected hits are not counted.
    async fn count_and_refund(&self, batch: &mut Batch, now: Time, hits: NextHits) -> Result<(), StoreError> {
        self.apply_hits(batch, now, HitsToSend::Next(&hits)).await?;
        let refunds = batch.refunds(&hits);
        if refunds.iter().all(Option::is_none) {
            return Ok(());
        }
        let over: SmallVec<[bool; 8]> = batch.checks().iter().map(Check::is_over).collect();
        self.apply_hits(batch, now, HitsToSend::Back(&refunds)).await?;
        batch.reject_refunded(&refunds, &over);
        Ok(())
    }

    /// Submits to each connection the checks whose keys it owns.
    fn submit(
        &self,
        batch: &Batch,
        now: Time,
        plan: HitsToSend<'_>,
    ) -> Result<SmallVec<[Submitted; 1]>, StoreError> {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        for (index, check) in batch.checks().iter().enumerate() {
            if plan.hits(index, check).is_none() {
                continue;
            }
            check_countable(&check.limit)?;
            let name = key_name(batch.key(check));
            let connection = self.servers.connection(&name)?;
            match groups.iter_mut().find(|group| Arc::ptr_eq(&group.connection, &connection)) {
                Some(group) => group.checks.push((index, name)),
                None => groups.push(Group { connection, checks: SmallVec::from_iter([(index, name)]) }),
            }
        }
        let random = &*self.servers.pool.shared.edges.random;
        let submitted = groups.into_iter().map(|Group { connection, checks }| {
            let reply = connection.submit(
                checks.len(),
                Patience::of(batch, plan),
                batch.lowered.clone(),
                |pipeline| {
                    for (index, name) in &checks {
                        if let Some(check) = batch.checks().get(*index)
                            && let Some(hits) = plan.hits(*index, check)
                        {
                            pipeline.add(name, hits, expiry(&check.limit, self.jitter, now, random));
                        }
                    }
                },
            )?;
            Ok(Submitted { checks: checks.into_iter().map(|(index, _)| index).collect(), reply })
        });
        submitted.collect()
    }
}

async fn receive(
    batch: &mut Batch,
    submitted: SmallVec<[Submitted; 1]>,
    now: Time,
) -> Result<(), StoreError> {
    for Submitted { checks, mut reply } in submitted {
        let outcomes = reply.wait().await?;
        assert_eq!(outcomes.len(), checks.len(), "each check has an outcome");
        for (index, outcome) in checks.into_iter().zip(outcomes) {
            let after = outcome.map_err(|failure| failure.to_error(FailureReason::BadAnswer))?;
            batch.set(index, batch.check(index).counted(after, now));
        }
    }
    Ok(())
}

/// Rules with another algorithm are rejected at load. This catches rules that were loaded without
/// [`COUNTABLE`](MemcachedStore::COUNTABLE): counted as fixed windows, their counters would never expire.
fn check_countable(limit: &Rate) -> Result<(), StoreError> {
    let kind = limit.algorithm.kind();
    if MemcachedStore::COUNTABLE.has(kind) {
        return Ok(());
    }
    let message = format!("memcached supports only fixed windows, not `{}`", kind.name());
    Err(StoreError { reason: FailureReason::BadAnswer, message: message.into() })
}

/// The expiry of a counter that is created now: how long it is kept, random jitter, and one second more because
/// memcached's clock ticks once a second: an expiry of one second may pass at once.
fn expiry(limit: &Rate, jitter: u64, now: Time, random: &dyn Random) -> u64 {
    let seconds = limit.period().seconds_kept(now) + 1 + u64::from(limit.ahead);
    relative_or_date(seconds.saturating_add(random.below(jitter.max(1))), now)
}

/// An expiry in seconds as memcached expects it.
fn relative_or_date(seconds: u64, now: Time) -> u64 {
    let date = now.seconds().saturating_add(seconds);
    match seconds {
        ..=MAX_RELATIVE => seconds,
        _ if date <= MAX_DATE => date,
        _ => MAX_RELATIVE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limit::{Kind, Limit, Unit};

    #[test]
    fn long_expiries_are_sent_as_dates() {
        let now = Time::from_seconds(1_800_000_000);
        for (seconds, expected) in [
            (2, 2),
            (MAX_RELATIVE, MAX_RELATIVE),
            (MAX_RELATIVE + 1, 1_800_000_000 + MAX_RELATIVE + 1),
            (365 * 86_400, 1_800_000_000 + 365 * 86_400),
            (30 * 365 * 86_400, MAX_RELATIVE),
        ] {
            assert_eq!(relative_or_date(seconds, now), expected, "{seconds}");
        }
    }

    #[test]
    fn counters_live_longer_than_their_windows_by_less_than_the_jitter() {
        let random = net::edges::Edges::system().random;
        let limit = Limit::plain(1, Unit::Minute);
        let seen: std::collections::BTreeSet<_> =
            (0..500).map(|_| expiry(&limit, 10, Time::from_seconds(7), &*random)).collect();
        assert_eq!(seen, (61..71).collect());
        assert_eq!(expiry(&limit, 0, Time::from_seconds(7), &*random), 61);
    }

    #[test]
    fn only_fixed_windows_are_counted() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Concurrency) {
            let quarter = Limit::new(5, Unit::Minute, 15.try_into().unwrap(), kind, None).unwrap();
            let result = check_countable(&quarter).map_err(|error| error.to_string());
            let expected = format!("memcached supports only fixed windows, not `{}`", kind.name());
            assert_eq!(result, if kind == Kind::FixedWindow { Ok(()) } else { Err(expected) });
        }
    }
}
