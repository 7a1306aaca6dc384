//! Sends a request's checks to the connections that own their keys, follows redirections of a cluster, and sets the
//! outcomes.

use std::{mem, pin::Pin, sync::Arc, time::Instant};

use smallvec::SmallVec;

use super::{
    RedisStore,
    backend::{Connection, PendingReply},
    pipeline::{self, CheckResult, RedisPipeline, ScriptCheck},
    pool::Pool,
    topology::slots,
};
use clock::{Time, timer::after};
use counters::{Batch, Check, CounterId, Counting, Member, StoreError, StoreFuture};
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

/// What a request has asked of its servers.
pub struct Sent {
    submitted: SmallVec<[Submitted; 1]>,
    mode: Mode,
    /// Of the first server that could not be asked, or did not answer.
    error: Option<StoreError>,
}

struct Group<'a> {
    pool: &'a Pool,
    connection: Arc<Connection>,
    checks: Indexes,
}

#[derive(Clone, Copy)]
struct Mode {
    now: Time,
    /// The limits of a rule are counted in one step.
    is_grouped: bool,
}

type Indexes = SmallVec<[usize; 4]>;

impl Mode {
    /// True for a check that counts in one step with the others of its rule. A refund counts whatever the others do.
    fn groups(self, check: &Check) -> bool {
        self.is_grouped && check.member != Member::Alone && check.takes()
    }
}

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
        let mut sent = self.send(batch, counting, now);
        Box::pin(async move { self.receive(batch, &mut sent).await })
    }

    /// Sends the open checks that do not hold; the limits of a rule are counted in one step.
    pub fn send(&self, batch: &mut Batch, counting: Counting, now: Time) -> Sent {
        let is_grouped = counting != Counting::ReadOnly;
        if !is_grouped {
            batch.only_read();
        }
        self.submit(batch, Mode { now, is_grouped })
    }

    /// The Redis keys that a counter with this full key may have.
    pub fn names(&self, full_key: &str) -> Vec<String> {
        self.main.names.of_full_key(full_key)
    }

    /// Counts every check that does not hold unless the request is refused; then only those that would be over their limits,
    /// and no group.
    ///
    /// It is one step if one server has all keys. Keys in different slots or in two Redis are read first and then
    /// counted: a concurrent request may find the same room.
    pub(super) async fn count_unless_over(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        if let Some((pool, connection)) = self.one_step(batch)? {
            let is_counted =
                |index: &usize| batch.check(*index).asked().is_some() && batch.check(*index).hold.is_none();
            let checks: Indexes = (0..batch.checks().len()).filter(is_counted).collect();
            let reply =
                connection.submit(checks.len(), batch.until.into(), batch.lowered.clone(), |pipeline| {
                    let guarded =
                        checks.iter().map(|index| script_check(pool, batch, batch.check(*index), now));
                    pipeline.count_guarded(&guarded.collect::<SmallVec<[_; 4]>>(), &batch.codes(&checks));
                })?;
            let mut sent = Sent::new(Mode { now, is_grouped: true });
            sent.submitted.push(Submitted { checks, reply, connection });
            // A slot that is migrating is counted in two steps.
            if receive_verdicts(batch, &mut sent).await.is_empty() {
                return sent.error.map_or(Ok(()), Err);
            }
        }
        batch.read_first(|_| true);
        let read = self.ask(batch, Mode { now, is_grouped: false }).await;
        batch.count_after_read();
        read.and(self.ask(batch, Mode { now, is_grouped: true }).await)
    }

    /// Counts the open groups, whose slot is migrating: during a migration neither server updates keys of which it has only
    /// some.
    ///
    /// The counters are read and then updated one by one, and hits are refunded if concurrent requests used the room. So
    /// the limits are never exceeded, and rejected hits are not counted.
    async fn count_split(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        let mode = Mode { now, is_grouped: false };
        batch.read_first(|check| check.takes() && check.asked().is_some());
        self.ask(batch, mode).await?;
        let counted = batch.count_after_read();
        self.ask(batch, mode).await?;
        batch.give_back(&counted);
        self.ask(batch, mode).await
    }

    async fn ask(&self, batch: &mut Batch, mode: Mode) -> Result<(), StoreError> {
        let mut sent = self.submit(batch, mode);
        self.receive(batch, &mut sent).await
    }

    fn one_step(&self, batch: &Batch) -> Result<Option<OneStep<'_>>, StoreError> {
        let is_counted = |check: &&Check| check.hold.is_none() && !check.is_decided();
        let mut counted = batch.checks().iter().filter(is_counted);
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

    /// Submits to each connection the open checks whose keys it owns.
    fn submit(&self, batch: &mut Batch, mode: Mode) -> Sent {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        let mut sent = Sent::new(mode);
        let mut lost = Indexes::new();
        // The group of the check before; `None` if its server cannot be asked.
        let mut last = None;
        for (index, check) in batch.checks().iter().enumerate() {
            if check.hold.is_some() || check.asked().is_none() {
                continue;
            }
            // The key of a rule's next limit is on the same server as the first one's.
            if !(mode.groups(check) && check.member == Member::Next) {
                let group = self.group_of(batch, check, &mut groups);
                last = group.map_err(|error| sent.error.get_or_insert(error)).ok();
            }
            match last.and_then(|at| groups.get_mut(at)) {
                Some(group) => group.checks.push(index),
                None => lost.push(index),
            }
        }
        for Group { pool, connection, checks } in groups {
            let fill = |pipeline: &mut RedisPipeline| {
                checks.iter().for_each(|index| add(pipeline, pool, batch, *index, mode));
            };
            match connection.submit(checks.len(), Patience::of(batch), batch.lowered.clone(), fill) {
                Ok(reply) => sent.submitted.push(Submitted { checks, reply, connection }),
                Err(error) => sent.lose(batch, &checks, error),
            }
        }
        lost.into_iter().for_each(|index| batch.lose(index));
        sent
    }

    /// The index of the group with the connection that owns a check's key.
    fn group_of<'s>(
        &'s self,
        batch: &Batch,
        check: &Check,
        groups: &mut SmallVec<[Group<'s>; 1]>,
    ) -> Result<usize, StoreError> {
        let pool = self.pool(check);
        // Without a cluster, a pool has one server.
        let of_pool = |group: &Group<'_>| !pool.is_cluster && std::ptr::eq(group.pool, &raw const **pool);
        if let Some(known) = groups.iter().position(of_pool) {
            return Ok(known);
        }
        let connection = pool.connection(&pool.names.of(batch, check))?;
        let known = groups.iter().position(|group| Arc::ptr_eq(&group.connection, &connection));
        Ok(known.unwrap_or_else(|| {
            groups.push(Group { pool, connection, checks: Indexes::new() });
            groups.len() - 1
        }))
    }

    /// Waits for the outcomes, and follows redirections. One server's error does not keep those of others.
    ///
    /// `sent` is borrowed: by value, every future on the way would contain a copy.
    pub async fn receive(&self, batch: &mut Batch, sent: &mut Sent) -> Result<(), StoreError> {
        let redirected = receive_verdicts(batch, sent).await;
        if !redirected.is_empty() {
            self.follow(batch, sent, redirected).await;
        }
        sent.error.take().map_or(Ok(()), Err)
    }

    /// Follows redirections.
    ///
    /// Boxed, with a named type, because counting a split group calls it again.
    fn follow<'f>(
        &'f self,
        batch: &'f mut Batch,
        sent: &'f mut Sent,
        mut redirected: Vec<Redirected>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'f>> {
        Box::pin(async move {
            let mode = sent.mode;
            let mut is_split = false;
            let deadline = self.deadline(batch.until);
            for _ in 0..MAX_REDIRECTS {
                redirected.retain(|redirected| is_resubmitted(batch, redirected, mode, &mut is_split));
                if redirected.is_empty() {
                    break;
                }
                sent.submitted.clear();
                for redirected in redirected.drain(..) {
                    match self.resubmit(batch, mode, &redirected, deadline).await {
                        Ok(submitted) => sent.submitted.push(submitted),
                        Err(error) => sent.lose(batch, &together(batch, redirected.index, mode), error),
                    }
                }
                redirected = receive_verdicts(batch, sent).await;
            }
            for Redirected { index, error, from } in redirected {
                let message = format!(
                    "redis {from}: \"{error}\" after {MAX_REDIRECTS} redirections; the servers redirect to each other"
                );
                let error = StoreError::new(FailureReason::BadAnswer, message);
                sent.lose(batch, &[index], error);
            }
            if is_split && let Err(error) = self.count_split(batch, mode.now).await {
                sent.error.get_or_insert(error);
            }
        })
    }

    /// Submits a check to the server of its redirection.
    async fn resubmit(
        &self,
        batch: &Batch,
        mode: Mode,
        redirected: &Redirected,
        deadline: Instant,
    ) -> Result<Submitted, StoreError> {
        let check = batch.check(redirected.index);
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
        let patience = match Patience::of(batch) {
            Patience::Unlimited => Patience::Unlimited,
            Patience::Until(_) | Patience::Timeout => Patience::Until(deadline),
        };
        let asking = ask == Some(true) && to.as_ref() == Some(&connection.address);
        let checks = together(batch, redirected.index, mode);
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
/// counted in steps, `is_split`.
fn is_resubmitted(batch: &Batch, redirected: &Redirected, mode: Mode, is_split: &mut bool) -> bool {
    let check = batch.check(redirected.index);
    match check.member {
        _ if !mode.groups(check) => true,
        Member::First if pipeline::cannot_count_together(&redirected.error) => {
            *is_split = true;
            false
        }
        Member::First | Member::Alone => true,
        Member::Next => false,
    }
}

/// The indexes of the checks that are sent with the first of them.
fn together(batch: &Batch, first: usize, mode: Mode) -> Indexes {
    match batch.group_at(first) {
        Some(group) if mode.groups(batch.check(first)) => group.collect(),
        _ => SmallVec::from_slice(&[first]),
    }
}

/// Waits for the replies and sets the verdicts; returns the redirected checks.
async fn receive_verdicts(batch: &mut Batch, sent: &mut Sent) -> Vec<Redirected> {
    let mut redirected = Vec::new();
    for Submitted { checks, mut reply, connection } in mem::take(&mut sent.submitted) {
        let results = match reply.wait().await {
            Ok(results) => results,
            Err(error) => {
                sent.lose(batch, &checks, error);
                continue;
            }
        };
        assert_eq!(results.len(), checks.len(), "each check has a result");
        for (index, result) in checks.iter().copied().zip(results) {
            match result {
                CheckResult::Counted(counted) => {
                    batch.found(index, counted.verdict(batch.check(index), sent.mode.now));
                }
                CheckResult::Leased(..) | CheckResult::Holds(_) | CheckResult::Closed(_) => {
                    unreachable!("a check that only counts")
                }
                CheckResult::Redirected(error) => {
                    redirected.push(Redirected { index, error, from: connection.address.clone() });
                }
                CheckResult::Failed(failure) => {
                    sent.lose(batch, &[index], failure.to_error(FailureReason::BadAnswer));
                }
            }
        }
    }
    redirected
}

impl Sent {
    fn new(mode: Mode) -> Self {
        Self { submitted: SmallVec::new(), mode, error: None }
    }

    /// These checks have no answer. The first error is the request's.
    fn lose(&mut self, batch: &mut Batch, checks: &[usize], error: StoreError) {
        self.error.get_or_insert(error);
        for index in checks {
            batch.lose(*index);
        }
    }
}

/// Adds a check to a pipeline; the first check of a group adds the whole group.
#[expect(clippy::expect_used, reason = "asserts that the check is one of those to submit")]
fn add(pipeline: &mut RedisPipeline, pool: &Pool, batch: &Batch, index: usize, mode: Mode) {
    let check = batch.checks().get(index).expect("the index of a check of the batch");
    if mode.groups(check) && check.member == Member::Next {
        return;
    }
    let hits = check.asked().expect("a check that is not asked is not submitted");
    let key = pool.names.of(batch, check);
    let id = CounterId::of_name(&key);
    let script_check = |check| script_check(pool, batch, check, mode.now);
    let alone = || ScriptCheck { member: Member::Alone, ..script_check(check) };
    match (check.limit.algorithm, hits) {
        _ if mode.groups(check) && check.member == Member::First => {
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
    let key = pool.names.of(batch, check);
    let algorithm = check.limit.algorithm;
    let ttl_cache = &pool.backend().ttl_cache;
    let is_window = matches!(algorithm, Algorithm::FixedWindow(_));
    let seconds = if is_window { ttl_cache.seconds(&check.limit, now) } else { ttl_cache.jitter() };
    let uncached =
        (is_window && check.takes()).then(|| ttl_cache.uncached(&key, &check.limit, now)).flatten();
    ScriptCheck {
        key,
        algorithm,
        seconds,
        uncached,
        hits: check.asked().unwrap_or(check.hits),
        // A refund counts whatever the others of its list find, and not all of these may be in the call.
        member: if check.takes() { check.member } else { Member::Alone },
    }
}
