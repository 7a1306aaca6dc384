//! From a request's checks to the lanes that own their keys, and back to its outcomes.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::{
    RedisStore,
    backend::{Awaited, Lane},
    bundle::{self, Bundle, Guard, Guarded, Judge, Outcome},
    name::name,
    pool::Pool,
    topology::slots,
};
use crate::{
    algorithm::Hits,
    clock::Time,
    rules::Unit,
    settings::redis::RedisAddress,
    store::{Applied, Batch, Check, Counting, FailureReason, StoreError, looking},
};

/// A check is sent on so many times before the servers are found to point at each other.
const MAX_REDIRECTS: usize = 5;

/// What was asked of one lane: which checks, and where their outcomes come from.
struct Asked {
    checks: Places,
    answer: Awaited,
    lane: Arc<Lane>,
}

/// The checks of a request that one server counts.
struct Group<'a> {
    pool: &'a Pool,
    lane: Arc<Lane>,
    checks: Places,
}

/// A server that can count all checks of a request in one step.
struct OneStep<'a> {
    pool: &'a Arc<Pool>,
    lane: Arc<Lane>,
}

/// The places of checks within their batch.
type Places = SmallVec<[usize; 4]>;

/// A check that another server is to count.
struct Moved {
    place: usize,
    words: Arc<str>,
    from: RedisAddress,
}

impl RedisStore {
    /// Counts every check for itself.
    pub(super) fn count<'a>(&'a self, batch: &'a mut Batch<'_>, now: Time) -> Applied<'a> {
        let look = batch.counting == Counting::Look;
        let hits = move |_: usize, check: &Check<'_>| if look { looking(check.hits) } else { check.hits };
        match self.ask(batch, now, hits) {
            Ok(mut asked) => {
                Applied::Later(Box::pin(async move { self.hear(batch, now, &mut asked, hits).await }))
            }
            Err(error) => Applied::Now(Err(error)),
        }
    }

    /// Counts every check unless one would be over its limit; then only those that would be.
    ///
    /// Where one server can do so it is one step. Keys that are spread over slots or over two Redis are
    /// read first and counted then: a request that comes between finds the room that this one found.
    pub(super) async fn count_unless_over(&self, batch: &mut Batch<'_>, now: Time) -> Result<(), StoreError> {
        if let Some(OneStep { pool, lane }) = self.one_step(batch)? {
            let guarded = batch.checks().iter().map(|check| Guarded {
                key: name(batch, check),
                by: guard(pool, check),
                hits: check.hits,
            });
            let answer =
                lane.ask(batch.checks().len(), batch.until, |bundle| bundle.count_guarded(guarded))?;
            let asked = Asked { checks: (0..batch.checks().len()).collect(), answer, lane };
            // A slot that is on its way elsewhere is asked in two steps.
            if take(batch, &mut [asked]).await?.is_empty() {
                return Ok(());
            }
        }
        let look = |_, _: &Check<'_>| Hits::Take(0);
        let mut asked = self.ask(batch, now, look)?;
        self.hear(batch, now, &mut asked, look).await?;
        let hits = batch.hits_after_look();
        let mut asked = self.ask(batch, now, &hits)?;
        self.hear(batch, now, &mut asked, &hits).await
    }

    /// The lane that can count all checks in one step.
    fn one_step(&self, batch: &Batch<'_>) -> Result<Option<OneStep<'_>>, StoreError> {
        let Some(first) = batch.checks().first() else { return Ok(None) };
        let (pool, key) = (self.pool(first), name(batch, first));
        let together = |check: &Check<'_>| {
            Arc::ptr_eq(self.pool(check), pool)
                && (!pool.is_cluster()
                    || slots::slot(name(batch, check).as_bytes()) == slots::slot(key.as_bytes()))
        };
        if batch.checks().iter().all(together) {
            Ok(Some(OneStep { pool, lane: pool.lane(&key)? }))
        } else {
            Ok(None)
        }
    }

    /// The Redis that holds a check's counter.
    fn pool(&self, check: &Check<'_>) -> &Arc<Pool> {
        self.per_second.as_ref().filter(|_| check.limit.unit == Unit::Second).unwrap_or(&self.main)
    }

    /// Asks each lane for the checks whose keys it owns, all at once.
    fn ask(
        &self,
        batch: &Batch<'_>,
        now: Time,
        hits: impl Fn(usize, &Check<'_>) -> Hits,
    ) -> Result<SmallVec<[Asked; 1]>, StoreError> {
        let mut groups: SmallVec<[Group<'_>; 1]> = SmallVec::new();
        for (place, check) in batch.checks().iter().enumerate() {
            let pool = self.pool(check);
            let lane = pool.lane(&name(batch, check))?;
            match groups.iter_mut().find(|group| Arc::ptr_eq(&group.lane, &lane)) {
                Some(group) => group.checks.push(place),
                None => groups.push(Group { pool, lane, checks: SmallVec::from_slice(&[place]) }),
            }
        }
        let asked = groups.into_iter().map(|Group { pool, lane, checks }| {
            let answer = lane.ask(checks.len(), batch.until, |bundle| {
                for place in &checks {
                    add(bundle, pool, batch, *place, &hits, now);
                }
            })?;
            Ok(Asked { checks, answer, lane })
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
        hits: impl Fn(usize, &Check<'_>) -> Hits,
    ) -> Result<(), StoreError> {
        let moved = take(batch, asked).await?;
        if moved.is_empty() {
            return Ok(());
        }
        // On the heap: this is seldom, and every other question would carry its size about.
        Box::pin(self.follow(batch, now, moved, hits)).await
    }

    /// Asks again elsewhere what has moved, as long as it moves on.
    async fn follow(
        &self,
        batch: &mut Batch<'_>,
        now: Time,
        mut moved: Vec<Moved>,
        hits: impl Fn(usize, &Check<'_>) -> Hits,
    ) -> Result<(), StoreError> {
        for _ in 0..MAX_REDIRECTS {
            let Some(last) = moved.last() else { return Ok(()) };
            let deadline = self.deadline(batch, last.place);
            let mut again = SmallVec::<[Asked; 1]>::new();
            for moved in moved.drain(..) {
                again.push(self.ask_elsewhere(batch, now, &moved, &hits, deadline).await?);
            }
            moved.append(&mut take(batch, &mut again).await?);
        }
        match moved.first() {
            None => Ok(()),
            Some(last) => Err(StoreError {
                reason: FailureReason::BadAnswer,
                message: format!(
                    "redis {}: it answered \"{}\" after {MAX_REDIRECTS} moves, so the servers point at each other",
                    last.from, last.words
                )
                .into(),
            }),
        }
    }

    /// Asks the server that was named instead.
    async fn ask_elsewhere(
        &self,
        batch: &Batch<'_>,
        now: Time,
        moved: &Moved,
        hits: &impl Fn(usize, &Check<'_>) -> Hits,
        deadline: Instant,
    ) -> Result<Asked, StoreError> {
        let check = &batch.checks()[moved.place];
        let pool = self.pool(check);
        let redirection = slots::redirection(&moved.words, &moved.from);
        let (to, ask) = redirection.map_or((None, false), |to| (Some(RedisAddress::Tcp(to.to)), to.ask));
        let known = to.as_ref().and_then(|to| pool.lane_to(to));
        let lane = if let Some(lane) = known {
            lane
        } else {
            if !bundle::cannot_count_together(&moved.words) {
                // The server is not known yet: the servers are being asked about each other.
                let mut changes = pool.backend().topology.changes();
                pool.backend().topology.doubt();
                let _ = timeout_at(deadline, changes.changed()).await;
            }
            pool.lane(&name(batch, check))?
        };
        let asking = ask && to.as_ref() == Some(lane.address());
        let answer = lane.ask(1, batch.until, |bundle| {
            bundle.ask_alone(asking, |bundle| add(bundle, pool, batch, moved.place, hits, now));
        })?;
        Ok(Asked { checks: SmallVec::from_slice(&[moved.place]), answer, lane })
    }

    fn deadline(&self, batch: &Batch<'_>, place: usize) -> Instant {
        let own = Instant::now() + self.pool(&batch.checks()[place]).fleet.shared.bounds.timeout;
        batch.until.map_or(own, |until| own.min(until.into()))
    }
}

/// Waits for the lanes' answers and sets the outcomes; what another server is to count is left.
async fn take(batch: &mut Batch<'_>, asked: &mut [Asked]) -> Result<Vec<Moved>, StoreError> {
    let mut moved = Vec::new();
    for asked in asked {
        let outcomes = asked.answer.within(batch.until).await?;
        for (place, outcome) in asked.checks.iter().copied().zip(outcomes) {
            match outcome {
                Outcome::Told(outcome) => batch.set(place, outcome),
                Outcome::Elsewhere(words) => {
                    moved.push(Moved { place, words, from: asked.lane.address().clone() });
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

/// Adds a check to what a lane sends next.
fn add(
    bundle: &mut Bundle,
    pool: &Pool,
    batch: &Batch<'_>,
    place: usize,
    hits: impl Fn(usize, &Check<'_>) -> Hits,
    now: Time,
) {
    let check = &batch.checks()[place];
    let key = &*name(batch, check);
    let (seen, hits) = (&pool.backend().seen, hits(place, check));
    let id = seen.id(key);
    match (Judge::new(check.limit.algorithm, || seen.slack()), hits) {
        (Some(judge), hits) => {
            // Only in a cluster are there keys that cannot be counted together.
            let slot = if pool.is_cluster() { slots::slot(key.as_bytes()) } else { 0 };
            bundle.judge(key, id, slot, judge, hits);
        }
        (None, Hits::Take(hits)) => bundle.count(key, id, hits, seen.expiry(id, check.limit, now)),
        (None, Hits::GiveBack(hits)) => bundle.give_back(key, id, hits),
    }
}

/// What a check is held against that counts together with others.
fn guard(pool: &Pool, check: &Check<'_>) -> Guard {
    let seen = &pool.backend().seen;
    match Judge::new(check.limit.algorithm, || seen.slack()) {
        Some(judge) => Guard::Judge(judge),
        None => Guard::Count { limit: check.limit.requests_per_unit, seconds: seen.seconds(check.limit) },
    }
}
