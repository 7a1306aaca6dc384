//! From a request's checks to the connections that own their keys, and back to its outcomes.

use std::{pin::Pin, sync::Arc};

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::{
    RedisStore,
    backend::{Connection, PendingReply},
    permissions::Needs,
    pipeline::{self, AtomicCheck, Guarded, Outcome, RedisPipeline, ScriptCall},
    pool::Pool,
    topology::slots,
};
use crate::store::remote::deadline::after;
use crate::{
    clock::Time,
    limiter::algorithm::Hits,
    rules::Unit,
    settings::redis::RedisAddress,
    store::{Applied, Batch, Check, Counting, FailureReason, Member, StoreError, looking},
};

/// A check is sent on so many times before the servers are found to point at each other.
const MAX_REDIRECTS: usize = 5;

/// What was asked of one connection: which checks, and where their outcomes come from.
struct Asked {
    checks: Places,
    answer: PendingReply,
    connection: Arc<Connection>,
}

/// The checks of a request that one server counts.
struct Group<'a> {
    pool: &'a Pool,
    connection: Arc<Connection>,
    checks: Places,
}

/// A server that can count all checks of a request in one step.
struct OneStep<'a> {
    pool: &'a Arc<Pool>,
    connection: Arc<Connection>,
}

/// Whether the limits of a rule are asked in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    AsGrouped,
    EachAlone,
}

/// The hits of the check at a place; none where it is not asked.
type HitsOf<'a> = dyn Fn(usize, &Check<'_>) -> Option<Hits> + Send + Sync + 'a;

/// The places of checks within their batch.
type Places = SmallVec<[usize; 4]>;

/// A check that another server is to count.
struct Moved {
    place: usize,
    words: Arc<str>,
    from: RedisAddress,
}

impl RedisStore {
    /// Counts every check, and of a group all or nothing.
    pub(super) fn count<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        let look = batch.counting == Counting::Look;
        let how = if look { How::EachAlone } else { How::AsGrouped };
        let hits =
            move |_: usize, check: &Check<'_>| Some(if look { looking(check.hits) } else { check.hits });
        match self.ask(batch, now, how, hits) {
            Ok(mut asked) => {
                Applied::Later(Box::pin(async move { self.hear(batch, now, &mut asked, how, hits).await }))
            }
            Err(error) => Applied::Now(Err(error)),
        }
    }

    /// Counts every check unless one would be over its limit; then only those that would be, and of a group none.
    ///
    /// Where one server can do so it is one step. Keys that are spread over slots or over two Redis are
    /// read first and counted then: a request that comes between finds the room that this one found.
    pub(super) async fn count_unless_over(&self, batch: &mut Batch<'_>, now: Time) -> Result<(), StoreError> {
        if let Some(OneStep { pool, connection }) = self.one_step(batch)? {
            pool.need_too(Needs::WHOLE_REQUESTS);
            let guarded = (0..batch.checks().len()).map(|place| guarded(pool, batch, place, now));
            let answer = connection
                .ask(batch.checks().len(), batch.until, |pipeline| pipeline.count_guarded(guarded))?;
            let asked = Asked { checks: (0..batch.checks().len()).collect(), answer, connection };
            // A slot that is on its way elsewhere is asked in two steps.
            if take(batch, &mut [asked]).await?.is_empty() {
                return Ok(());
            }
        }
        self.ask_all(batch, now, How::EachAlone, |_, _| Some(Hits::Take(0))).await?;
        let hits = batch.hits_after_look();
        self.ask_all(batch, now, How::AsGrouped, |place, _| hits.get(place).copied().flatten()).await
    }

    /// Counts groups whose slot is on its way from one server to another, by the places of their first checks:
    /// until it has arrived neither server changes keys of which it has only some.
    ///
    /// The counters are read and then changed one by one, and hits are given back where others came between. So no
    /// more is admitted than the limits say, and nothing is left of what was refused.
    async fn count_split(
        &self,
        batch: &mut Batch<'_>,
        now: Time,
        firsts: &[usize],
    ) -> Result<(), StoreError> {
        let groups = || firsts.iter().filter_map(|first| batch.group_at(*first)).flatten();
        let split: SmallVec<[usize; 8]> = groups().collect();
        let how = How::EachAlone;
        self.ask_all(batch, now, how, |place, check| split.contains(&place).then(|| looking(check.hits)))
            .await?;
        let hits = batch.hits_that_fit(|place| split.contains(&place));
        self.ask_all(batch, now, how, |place, _| hits.get(place).copied().flatten()).await?;
        let back = batch.hits_to_give_back(&hits);
        let over: SmallVec<[bool; 8]> = batch.checks().iter().map(Check::is_over).collect();
        self.ask_all(batch, now, how, |place, _| back.get(place).copied().flatten()).await?;
        batch.refuse_given_back(&back, &over);
        Ok(())
    }

    /// Asks, and waits for the outcomes.
    async fn ask_all(
        &self,
        batch: &mut Batch<'_>,
        now: Time,
        how: How,
        hits: impl Fn(usize, &Check<'_>) -> Option<Hits> + Send + Sync,
    ) -> Result<(), StoreError> {
        let mut asked = self.ask(batch, now, how, &hits)?;
        self.hear(batch, now, &mut asked, how, &hits).await
    }

    /// The connection that can count all checks in one step.
    fn one_step(&self, batch: &Batch<'_>) -> Result<Option<OneStep<'_>>, StoreError> {
        let Some(first) = batch.checks().first() else { return Ok(None) };
        let (pool, key) = (self.pool(first), self.pool(first).name(batch, first));
        let together = |check: &Check<'_>| {
            Arc::ptr_eq(self.pool(check), pool)
                && (!pool.is_cluster()
                    || slots::slot(pool.name(batch, check).as_bytes()) == slots::slot(key.as_bytes()))
        };
        if batch.checks().iter().all(together) {
            Ok(Some(OneStep { pool, connection: pool.connection(&key)? }))
        } else {
            Ok(None)
        }
    }

    /// The Redis that holds a check's counter. Those of a group stay together, whatever their units.
    fn pool(&self, check: &Check<'_>) -> &Arc<Pool> {
        let is_apart = check.member == Member::Alone && check.limit.unit == Unit::Second;
        self.per_second.as_ref().filter(|_| is_apart).unwrap_or(&self.main)
    }

    /// Asks each connection for the checks whose keys it owns, all at once.
    fn ask(
        &self,
        batch: &Batch<'_>,
        now: Time,
        how: How,
        hits: impl Fn(usize, &Check<'_>) -> Option<Hits>,
    ) -> Result<SmallVec<[Asked; 1]>, StoreError> {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        let mut last = 0;
        for (place, check) in batch.checks().iter().enumerate() {
            if hits(place, check).is_none() {
                continue;
            }
            if how == How::AsGrouped && check.member == Member::Next {
                // Its key is where the first one's is.
                if let Some(group) = groups.get_mut(last) {
                    group.checks.push(place);
                }
                continue;
            }
            let pool = self.pool(check);
            let connection = pool.connection(&pool.name(batch, check))?;
            last = groups
                .iter()
                .position(|group| Arc::ptr_eq(&group.connection, &connection))
                .unwrap_or(groups.len());
            match groups.get_mut(last) {
                Some(group) => group.checks.push(place),
                None => groups.push(Group { pool, connection, checks: SmallVec::from_slice(&[place]) }),
            }
        }
        let asked = groups.into_iter().map(|Group { pool, connection, checks }| {
            let answer = connection.ask(checks.len(), batch.until, |pipeline| {
                for place in &checks {
                    if let Some(hits) = hits(*place, check_at(batch, *place)) {
                        add(pipeline, pool, batch, *place, how, hits, now);
                    }
                }
            })?;
            Ok(Asked { checks, answer, connection })
        });
        asked.collect()
    }

    /// Waits for the outcomes, and asks again elsewhere what has moved.
    ///
    /// What was asked is lent: handed on by value, every future on the way would have its own room for it.
    async fn hear(
        &self,
        batch: &mut Batch<'_>,
        now: Time,
        asked: &mut [Asked],
        how: How,
        hits: impl Fn(usize, &Check<'_>) -> Option<Hits> + Send + Sync,
    ) -> Result<(), StoreError> {
        let moved = take(batch, asked).await?;
        if moved.is_empty() {
            return Ok(());
        }
        self.follow(batch, now, moved, how, &hits).await
    }

    /// Asks again elsewhere what has moved, as long as it moves on.
    ///
    /// On the heap, and of a type that is named: what is split is counted by the same means.
    fn follow<'f>(
        &'f self,
        batch: &'f mut Batch<'_>,
        now: Time,
        mut moved: Vec<Moved>,
        how: How,
        hits: &'f HitsOf<'_>,
    ) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'f>> {
        Box::pin(async move {
            let mut split = SmallVec::<[usize; 1]>::new();
            let deadline = self.deadline(batch);
            for _ in 0..MAX_REDIRECTS {
                moved.retain(|moved| is_asked_again(batch, moved, how, &mut split));
                if moved.is_empty() {
                    break;
                }
                let mut again = SmallVec::<[Asked; 1]>::new();
                for moved in moved.drain(..) {
                    again.push(self.ask_elsewhere(batch, now, &moved, how, hits, deadline).await?);
                }
                moved.append(&mut take(batch, &mut again).await?);
            }
            match moved.first() {
                None if split.is_empty() => Ok(()),
                None => self.count_split(batch, now, &split).await,
                Some(last) => Err(StoreError {
                    reason: FailureReason::BadAnswer,
                    message: format!(
                        "redis {}: it answered \"{}\" after {MAX_REDIRECTS} moves, so the servers point at each other",
                        last.from, last.words
                    )
                    .into(),
                }),
            }
        })
    }

    /// Asks the server that was named instead.
    async fn ask_elsewhere(
        &self,
        batch: &Batch<'_>,
        now: Time,
        moved: &Moved,
        how: How,
        hits: &HitsOf<'_>,
        deadline: Instant,
    ) -> Result<Asked, StoreError> {
        let check = check_at(batch, moved.place);
        let pool = self.pool(check);
        let redirection = slots::redirection(&moved.words, &moved.from);
        let (to, ask) = redirection.map_or((None, false), |to| (Some(RedisAddress::Tcp(to.to)), to.ask));
        let known = to.as_ref().and_then(|to| pool.lane_to(to));
        let connection = if let Some(connection) = known {
            connection
        } else {
            if !pipeline::cannot_count_together(&moved.words) {
                // The server is not known yet: the servers are being asked about each other.
                let mut changes = pool.backend().topology.changes();
                pool.backend().topology.request_refresh();
                let _ = timeout_at(deadline, changes.changed()).await;
            }
            pool.connection(&pool.name(batch, check))?
        };
        let asking = ask && to.as_ref() == Some(connection.address());
        let checks: Places = match (how, batch.group_at(moved.place)) {
            (How::AsGrouped, Some(group)) => group.collect(),
            _ => SmallVec::from_slice(&[moved.place]),
        };
        let answer = connection.ask(checks.len(), batch.until, |pipeline| {
            pipeline.ask_alone(asking, |pipeline| {
                if let Some(hits) = hits(moved.place, check) {
                    add(pipeline, pool, batch, moved.place, how, hits, now);
                }
            });
        })?;
        Ok(Asked { checks, answer, connection })
    }

    /// Until when all that has moved is asked elsewhere, however often it moves on.
    fn deadline(&self, batch: &Batch<'_>) -> Instant {
        let own = after(Instant::now(), self.main.servers.shared.bounds.timeout);
        batch.until.map_or(own, |until| own.min(until.into()))
    }
}

#[expect(clippy::indexing_slicing, reason = "the places are those of the batch's own checks")]
fn check_at<'b, 'r>(batch: &'b Batch<'r>, place: usize) -> &'b Check<'r> {
    &batch.checks()[place]
}

/// True when a check that has moved is to be asked elsewhere. A group moves with its first check; one whose keys
/// are on two servers for now is noted in `split`.
fn is_asked_again(batch: &Batch<'_>, moved: &Moved, how: How, split: &mut SmallVec<[usize; 1]>) -> bool {
    let member = batch.checks().get(moved.place).map_or(Member::Alone, |check| check.member);
    match member {
        Member::First if how == How::AsGrouped && pipeline::cannot_count_together(&moved.words) => {
            split.push(moved.place);
            false
        }
        Member::Next => how == How::EachAlone,
        Member::First | Member::Alone => true,
    }
}

/// Waits for the connections' answers and sets the outcomes; what another server is to count is left.
async fn take(batch: &mut Batch<'_>, asked: &mut [Asked]) -> Result<Vec<Moved>, StoreError> {
    let mut moved = Vec::new();
    for asked in asked {
        let outcomes = asked.answer.within(batch.until).await?;
        for (place, outcome) in asked.checks.iter().copied().zip(outcomes) {
            match outcome {
                Outcome::Told(outcome) => batch.set(place, outcome),
                Outcome::Elsewhere(words) => {
                    moved.push(Moved { place, words, from: asked.connection.address().clone() });
                }
                Outcome::Failed(failure) => {
                    let message = failure.message.as_str().into();
                    return Err(StoreError { reason: FailureReason::BadAnswer, message });
                }
            }
        }
    }
    Ok(moved)
}

/// Adds a check to what a connection sends next; the first of a group adds all of it.
fn add(
    pipeline: &mut RedisPipeline,
    pool: &Pool,
    batch: &Batch<'_>,
    place: usize,
    how: How,
    hits: Hits,
    now: Time,
) {
    let check = check_at(batch, place);
    let (key, seen) = (&*pool.name(batch, check), &pool.backend().seen);
    let id = seen.id(key);
    match (how, check.member) {
        (How::EachAlone, _) | (_, Member::Alone) => {}
        (How::AsGrouped, Member::Next) => return,
        (How::AsGrouped, Member::First) => {
            let group = batch.group_at(place).unwrap_or_default();
            pipeline.count_together(id, hits, group.map(|place| guarded(pool, batch, place, now)));
            return;
        }
    }
    match (ScriptCall::new(check.limit.algorithm, || seen.slack()), hits) {
        (Some(judge), hits) => {
            // Only in a cluster are there keys that cannot be counted together.
            let slot = if pool.is_cluster() { slots::slot(key.as_bytes()) } else { 0 };
            pipeline.judge(key, id, slot, judge, hits);
        }
        (None, Hits::Take(hits)) => {
            pipeline.count(key, id, hits, pool.backend().expiry(id, check.limit, now));
        }
        (None, Hits::Refund(hits)) => pipeline.refund(key, id, hits),
    }
}

/// A check that counts together with others.
fn guarded<'b>(pool: &Pool, batch: &'b Batch<'_>, place: usize, now: Time) -> Guarded<'b> {
    let (seen, check) = (&pool.backend().seen, check_at(batch, place));
    let key = pool.name(batch, check);
    let by = match ScriptCall::new(check.limit.algorithm, || seen.slack()) {
        Some(judge) => AtomicCheck::ScriptCall(judge),
        None => AtomicCheck::Count {
            limit: check.limit.requests_per_unit,
            seconds: seen.seconds(check.limit),
            unsure: seen.unsure(&key, check.limit, now),
        },
    };
    Guarded { key, by, hits: check.hits, member: check.member }
}
