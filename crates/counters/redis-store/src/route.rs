//! Sends a request's checks to the connections that own their keys, follows redirections of a cluster, and sets the
//! outcomes.

use std::{future::ready, pin::Pin, sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    RedisStore,
    backend::{Connection, PendingReply},
    pipeline::{self, CheckResult, RedisPipeline, ScriptCheck},
    pool::Pool,
    topology::slots,
};
use clock::{Time, timer::after};
use counters::{
    Batch, Check, CounterId, Counting, HitsToSend, Member, NextHits, StoreError, StoreFuture, without_taking,
};
use limit::{Algorithm, Hits, Unit};
use metrics::FailureReason;
use net::ServerAddress;
use wire::Patience;

/// Redirections of a check before the servers are assumed to redirect to each other.
const MAX_REDIRECTS: usize = 5;

/// A request to one connection: the indexes of its checks, and the pending reply.
struct Submitted {
    checks: Indexes,
    reply: PendingReply,
    connection: Arc<Connection>,
}

/// The submitted checks of a request that do not hold.
pub(super) struct Counts {
    submitted: SmallVec<[Submitted; 1]>,
    mode: Mode<'static>,
}

pub struct Sent(SmallVec<[Submitted; 1]>);

struct Group<'a> {
    pool: &'a Pool,
    connection: Arc<Connection>,
    checks: Indexes,
}

#[derive(Clone, Copy)]
struct Mode<'p> {
    now: Time,
    plan: HitsToSend<'p>,
    /// The limits of a rule are counted in one step.
    is_grouped: bool,
}

type Indexes = SmallVec<[usize; 4]>;

/// A connection that can count all checks of a request in one step.
type OneStep<'a> = (&'a Pool, Arc<Connection>);

struct Redirected {
    index: usize,
    error: Arc<str>,
    from: ServerAddress,
}

impl RedisStore {
    /// Counts every check; a group counts all or nothing.
    pub(super) fn count<'a>(
        &'a self,
        batch: &'a mut Batch,
        counting: Counting,
        now: Time,
    ) -> StoreFuture<'a> {
        let mode = Self::mode(counting, now);
        match self.submit(batch, mode) {
            Ok(mut submitted) => Box::pin(async move { self.receive(batch, mode, &mut submitted).await }),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    /// Submits the checks that do not hold.
    pub(super) fn submit_counts(
        &self,
        batch: &Batch,
        counting: Counting,
        now: Time,
    ) -> Result<Counts, StoreError> {
        let mode = Self::mode(counting, now);
        self.submit(batch, mode).map(|submitted| Counts { submitted, mode })
    }

    pub(super) async fn receive_counts(
        &self,
        batch: &mut Batch,
        counts: &mut Counts,
    ) -> Result<(), StoreError> {
        self.receive(batch, counts.mode, &mut counts.submitted).await
    }

    fn mode(counting: Counting, now: Time) -> Mode<'static> {
        match counting {
            Counting::ReadOnly => Mode { now, plan: HitsToSend::Read, is_grouped: false },
            Counting::Always | Counting::StopWhenOver => {
                Mode { now, plan: HitsToSend::Own, is_grouped: true }
            }
        }
    }

    /// Sends these hits of each check; the limits of a rule are counted in one step.
    pub fn send(&self, batch: &Batch, now: Time, hits: &NextHits) -> Result<Sent, StoreError> {
        self.submit(batch, Mode { now, plan: HitsToSend::Next(hits), is_grouped: true }).map(Sent)
    }

    /// Waits for the outcomes of the sent checks.
    pub async fn outcomes(
        &self,
        batch: &mut Batch,
        now: Time,
        sent: &mut Sent,
        hits: &NextHits,
    ) -> Result<(), StoreError> {
        self.receive(batch, Mode { now, plan: HitsToSend::Next(hits), is_grouped: true }, &mut sent.0).await
    }

    /// The Redis keys that a counter with this full key may have.
    pub fn names(&self, full_key: &str) -> [String; 4] {
        self.main.names.of_full_key(full_key)
    }

    /// Counts every check that does not hold unless the request is refused; then only those that would be over their limits,
    /// and no group.
    ///
    /// It is one step if one server has all keys. Keys in different slots or in two Redis are read first and then
    /// counted: a concurrent request may find the same room.
    pub(super) async fn count_unless_over(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        if let Some((pool, connection)) = self.one_step(batch)? {
            let counted = |index: &usize| batch.check(*index).hold.is_none();
            let indexes: Indexes = (0..batch.checks().len()).filter(counted).collect();
            let reply =
                connection.submit(indexes.len(), batch.until.into(), batch.lowered.clone(), |pipeline| {
                    let checks =
                        indexes.iter().map(|index| guarded_check(pool, batch, batch.check(*index), now));
                    let codes = batch.codes(&indexes);
                    pipeline.count_guarded(&checks.collect::<SmallVec<[_; 4]>>(), &codes);
                })?;
            let submitted = Submitted { checks: indexes, reply, connection };
            // A slot that is migrating is counted in two steps.
            if receive_verdicts(batch, &mut [submitted], now).await?.is_empty() {
                return Ok(());
            }
        }
        let read = HitsToSend::Each(Hits::Take(0));
        self.apply_hits(batch, Mode { now, plan: read, is_grouped: false }).await?;
        let hits = batch.hits_after_read();
        self.apply_hits(batch, Mode { now, plan: HitsToSend::Next(&hits), is_grouped: true }).await
    }

    /// Counts groups whose slot is migrating, by the indexes of their first checks: during a migration neither server
    /// updates keys of which it has only some.
    ///
    /// The counters are read and then updated one by one, and hits are refunded if concurrent requests used the room. So
    /// the limits are never exceeded, and rejected hits are not counted.
    async fn count_split(&self, batch: &mut Batch, now: Time, firsts: &[usize]) -> Result<(), StoreError> {
        let groups = || firsts.iter().filter_map(|first| batch.group_at(*first)).flatten();
        let split: SmallVec<[usize; 8]> = groups().collect();
        let reads = batch.checks().iter().enumerate();
        let reads = reads.map(|(index, check)| split.contains(&index).then(|| without_taking(check.hits)));
        let reads: NextHits = reads.collect();
        let mode = |plan| Mode { now, plan, is_grouped: false };
        self.apply_hits(batch, mode(HitsToSend::Next(&reads))).await?;
        let hits = batch.hits_that_fit(|index| split.contains(&index));
        self.apply_hits(batch, mode(HitsToSend::Next(&hits))).await?;
        let refunds = batch.refunds(&hits);
        let over: SmallVec<[bool; 8]> = batch.checks().iter().map(Check::is_over).collect();
        self.apply_hits(batch, mode(HitsToSend::Back(&refunds))).await?;
        batch.reject_refunded(&refunds, &over);
        Ok(())
    }

    async fn apply_hits(&self, batch: &mut Batch, mode: Mode<'_>) -> Result<(), StoreError> {
        let mut submitted = self.submit(batch, mode)?;
        self.receive(batch, mode, &mut submitted).await
    }

    fn one_step(&self, batch: &Batch) -> Result<Option<OneStep<'_>>, StoreError> {
        let mut counted = batch.checks().iter().filter(|check| check.hold.is_none());
        let Some(first) = counted.clone().next() else { return Ok(None) };
        let pool = self.pool(first);
        let key = pool.names.of(batch, first);
        let together = |check: &Check| {
            Arc::ptr_eq(self.pool(check), pool)
                && (!pool.is_cluster
                    || slots::slot(pool.names.of(batch, check).as_bytes()) == slots::slot(key.as_bytes()))
        };
        let is_one = counted.all(together);
        is_one.then(|| pool.connection(&key).map(|connection| (&**pool, connection))).transpose()
    }

    /// The Redis of a check's counter. A group stays together, whatever its units.
    pub(super) fn pool(&self, check: &Check) -> &Arc<Pool> {
        self.pool_of(is_per_second(check))
    }

    pub(super) fn pool_of(&self, is_per_second: bool) -> &Arc<Pool> {
        self.per_second.as_ref().filter(|_| is_per_second).unwrap_or(&self.main)
    }

    /// Submits to each connection the checks whose keys it owns.
    fn submit(&self, batch: &Batch, mode: Mode<'_>) -> Result<SmallVec<[Submitted; 1]>, StoreError> {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        let mut last = 0;
        for (index, check) in batch.checks().iter().enumerate() {
            if check.hold.is_some() || mode.plan.hits(index, check).is_none() {
                continue;
            }
            if mode.is_grouped && check.member == Member::Next {
                // Its key is on the same server as the first one's.
                if let Some(group) = groups.get_mut(last) {
                    group.checks.push(index);
                }
                continue;
            }
            let pool = self.pool(check);
            let of_pool = |group: &Group<'_>| !pool.is_cluster && std::ptr::eq(group.pool, &raw const **pool);
            if let Some(known) = groups.iter().position(of_pool) {
                // It has one server.
                last = known;
                if let Some(group) = groups.get_mut(last) {
                    group.checks.push(index);
                }
                continue;
            }
            let connection = pool.connection(&pool.names.of(batch, check))?;
            last = groups
                .iter()
                .position(|group| Arc::ptr_eq(&group.connection, &connection))
                .unwrap_or(groups.len());
            match groups.get_mut(last) {
                Some(group) => group.checks.push(index),
                None => groups.push(Group { pool, connection, checks: SmallVec::from_slice(&[index]) }),
            }
        }
        let submitted = groups.into_iter().map(|Group { pool, connection, checks }| {
            let reply = connection.submit(
                checks.len(),
                Patience::of(batch, mode.plan),
                batch.lowered.clone(),
                |pipeline| {
                    checks.iter().for_each(|index| add(pipeline, pool, batch, *index, mode));
                },
            )?;
            Ok(Submitted { checks, reply, connection })
        });
        submitted.collect()
    }

    /// Waits for the outcomes, and follows redirections.
    ///
    /// `submitted` is borrowed: by value, every future on the way would contain a copy.
    async fn receive(
        &self,
        batch: &mut Batch,
        mode: Mode<'_>,
        submitted: &mut [Submitted],
    ) -> Result<(), StoreError> {
        let redirected = receive_verdicts(batch, submitted, mode.now).await?;
        if redirected.is_empty() { Ok(()) } else { self.follow(batch, mode, redirected).await }
    }

    /// Follows redirections.
    ///
    /// Boxed, with a named type, because counting a split group calls it again.
    fn follow<'f>(
        &'f self,
        batch: &'f mut Batch,
        mode: Mode<'f>,
        mut redirected: Vec<Redirected>,
    ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'f>> {
        Box::pin(async move {
            let mut split = SmallVec::<[usize; 1]>::new();
            let deadline = self.deadline(batch.until);
            for _ in 0..MAX_REDIRECTS {
                redirected
                    .retain(|redirected| is_resubmitted(batch, redirected, mode.is_grouped, &mut split));
                if redirected.is_empty() {
                    break;
                }
                let mut again = SmallVec::<[Submitted; 1]>::new();
                for redirected in redirected.drain(..) {
                    again.push(self.resubmit(batch, mode, &redirected, deadline).await?);
                }
                redirected.append(&mut receive_verdicts(batch, &mut again, mode.now).await?);
            }
            match redirected.first() {
                None if split.is_empty() => Ok(()),
                None => self.count_split(batch, mode.now, &split).await,
                Some(Redirected { from, error, .. }) => Err(StoreError {
                    reason: FailureReason::BadAnswer,
                    message: format!(
                        "redis {from}: \"{error}\" after {MAX_REDIRECTS} redirections; the servers redirect to each other"
                    )
                    .into(),
                }),
            }
        })
    }

    /// Submits a check to the server of its redirection.
    async fn resubmit(
        &self,
        batch: &Batch,
        mode: Mode<'_>,
        redirected: &Redirected,
        deadline: Instant,
    ) -> Result<Submitted, StoreError> {
        let Some(check) = batch.checks().get(redirected.index) else {
            let message = "redis: redirected a check that is not in the batch".into();
            return Err(StoreError { reason: FailureReason::BadAnswer, message });
        };
        let pool = self.pool(check);
        let (to, ask) = slots::redirection(&redirected.error, &redirected.from).unzip();
        let known = to.as_ref().and_then(|to| pool.connection_to(to));
        let connection = if let Some(connection) = known {
            connection
        } else {
            if !pipeline::cannot_count_together(&redirected.error) {
                // The server is new: wait for an update of the topology.
                let changed = pool.backend().topology.changed();
                let next = changed.notified();
                pool.backend().topology.request_refresh();
                let _ = self.edges().timer.timeout_at(deadline, next).await;
            }
            pool.connection(&pool.names.of(batch, check))?
        };
        let patience = match Patience::of(batch, mode.plan) {
            Patience::Unlimited => Patience::Unlimited,
            Patience::Until(_) | Patience::Timeout => Patience::Until(deadline),
        };
        let asking = ask == Some(true) && to.as_ref() == Some(&connection.address);
        let checks: Indexes = match batch.group_at(redirected.index) {
            Some(group) if mode.is_grouped => group.collect(),
            _ => SmallVec::from_slice(&[redirected.index]),
        };
        let reply = connection.submit(checks.len(), patience, batch.lowered.clone(), |pipeline| {
            pipeline.add_alone(asking, |pipeline| add(pipeline, pool, batch, redirected.index, mode));
        })?;
        Ok(Submitted { checks, reply, connection })
    }

    /// All redirections together have the time of one reply.
    pub(super) fn deadline(&self, until: Option<Instant>) -> Instant {
        let own = after(self.edges().timer.now(), self.main.servers.shared.bounds.timeout);
        until.map_or(own, |until| own.min(until))
    }
}

/// True if a check is counted in the Redis for limits per second, if there is one.
pub(super) fn is_per_second(check: &Check) -> bool {
    check.member == Member::Alone && check.limit.unit == Unit::Second && !check.limit.holds
}

/// True if a redirected check is submitted again. A group follows its first check; one whose keys are on two servers is
/// added to `split`.
fn is_resubmitted(
    batch: &Batch,
    redirected: &Redirected,
    is_grouped: bool,
    split: &mut SmallVec<[usize; 1]>,
) -> bool {
    match batch.checks().get(redirected.index).map_or(Member::Alone, |check| check.member) {
        Member::First if is_grouped && pipeline::cannot_count_together(&redirected.error) => {
            split.push(redirected.index);
            false
        }
        Member::Next => !is_grouped,
        Member::First | Member::Alone => true,
    }
}

/// Waits for the replies and sets the verdicts; returns the redirected checks.
async fn receive_verdicts(
    batch: &mut Batch,
    submitted: &mut [Submitted],
    now: Time,
) -> Result<Vec<Redirected>, StoreError> {
    let mut redirected = Vec::new();
    for Submitted { checks, reply, connection } in submitted {
        let results = reply.wait().await?;
        assert_eq!(results.len(), checks.len(), "each check has a result");
        for (index, result) in checks.iter().copied().zip(results) {
            match result {
                CheckResult::Counted(counted) => batch.set(index, counted.verdict(batch.check(index), now)),
                CheckResult::Leased(..) | CheckResult::Holds(..) | CheckResult::Closed(..) => {
                    unreachable!("a check that only counts")
                }
                CheckResult::Redirected(error) => {
                    redirected.push(Redirected { index, error, from: connection.address.clone() });
                }
                CheckResult::Failed(failure) => return Err(failure.to_error(FailureReason::BadAnswer)),
            }
        }
    }
    Ok(redirected)
}

/// Adds a check to a pipeline; the first check of a group adds the whole group.
#[expect(clippy::expect_used, reason = "asserts that the check is one of those to submit")]
fn add(pipeline: &mut RedisPipeline, pool: &Pool, batch: &Batch, index: usize, mode: Mode<'_>) {
    let check = batch.checks().get(index).expect("the index of a check of the batch");
    if mode.is_grouped && check.member == Member::Next {
        return;
    }
    let hits = mode.plan.hits(index, check).expect("a skipped check is not submitted");
    let key = pool.names.of(batch, check);
    let id = CounterId::of_name(&key);
    let script_check = |check| ScriptCheck { hits, ..script_check(pool, batch, check, mode.now) };
    let alone = || ScriptCheck { member: Member::Alone, ..script_check(check) };
    match (check.limit.algorithm, hits) {
        _ if mode.is_grouped && check.member == Member::First => {
            let group = batch.checks_at(batch.group_at(index).expect("a group begins at its first check"));
            pipeline.count_together(id, &group.iter().map(script_check).collect::<SmallVec<[_; 4]>>());
        }
        (Algorithm::FixedWindow(_), Hits::Take(hits)) => {
            pipeline.count(&key, id, hits, pool.backend().ttl_cache.expiry(id, &check.limit, mode.now));
        }
        (Algorithm::FixedWindow(_), Hits::Refund(_)) => pipeline.count_together(id, &[alone()]),
        _ => {
            // Only a cluster has keys that cannot be counted in one command.
            let slot = if pool.is_cluster { slots::slot(key.as_bytes()) } else { 0 };
            pipeline.count_alone(id, slot, &alone());
        }
    }
}

fn script_check<'b>(pool: &Pool, batch: &'b Batch, check: &Check, now: Time) -> ScriptCheck<'b> {
    let (key, algorithm) = (pool.names.of(batch, check), check.limit.algorithm);
    let ttl_cache = &pool.backend().ttl_cache;
    let seconds = match algorithm {
        Algorithm::FixedWindow(_) => ttl_cache.seconds(&check.limit, now),
        _ => ttl_cache.jitter(),
    };
    ScriptCheck { key, algorithm, seconds, uncached: None, hits: check.hits, member: check.member }
}

/// A check of a request that is counted in one step.
fn guarded_check<'b>(pool: &Pool, batch: &'b Batch, check: &Check, now: Time) -> ScriptCheck<'b> {
    let guarded = script_check(pool, batch, check, now);
    let is_counter = matches!(guarded.algorithm, Algorithm::FixedWindow(_)) && check.member == Member::Alone;
    let uncached = pool.backend().ttl_cache.uncached(&guarded.key, &check.limit, now).filter(|_| is_counter);
    ScriptCheck { uncached, ..guarded }
}
