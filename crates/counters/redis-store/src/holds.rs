//! Routes holds: those of a request in one slot are one command. A settle goes to the slots that the request's identity
//! names.
//!
//! While a slot of a cluster moves, its holds fail as if its server could not be reached.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    ops::Range,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::Instant,
};

use deadpool_redis::redis::cmd;
use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::{
    RedisStore,
    backend::{Connection, PendingReply},
    name::{Names, set_of_holds},
    pipeline::{CheckResult, CloseCall, HoldCall, HoldPart, Holding, Left, RedisPipeline, ToClose},
    pool::Pool,
    topology::slots::{self, SLOTS},
};
use clock::Time;
use counters::{
    Batch, Check, Closing, Counting, Held, HoldAccount, HoldId, KeepHolds, ListingFuture, OpenHold,
    StoreError, StoreFuture, SweepFuture,
};
use faults::mutex::lock;
use limit::Algorithm;
use metrics::FailureReason;

const MAX_REDIRECTS: usize = 5;

/// A sweep of a slot ends after as many calls.
const MAX_SWEEPS: usize = 50;

/// A tag for each slot: the smallest number whose text is in it.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; SLOTS.into()];
    let mut missing = tags.len();
    for number in 0.. {
        if missing == 0 {
            break;
        }
        let slot = usize::from(slots::slot(itoa::Buffer::new().format(number).as_bytes()));
        if let Some(tag @ &mut u32::MAX) = tags.get_mut(slot) {
            (*tag, missing) = (number, missing - 1);
        }
    }
    tags.into()
});

/// The holds of a batch in one slot.
struct InSlot {
    slot: u16,
    checks: SmallVec<[usize; 4]>,
}

/// Whether a command holds, or only says what it would find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HoldMode {
    Look,
    Hold,
}

/// A call to a slot's server that was sent.
struct Submitted {
    reply: PendingReply,
    connection: Arc<Connection>,
}

/// The connection that a server names, `is_asking` for this call alone.
struct Redirection {
    to: Arc<Connection>,
    is_asking: bool,
}

/// The slots with holds, with the open requests of each by the last sweep: those in which this replica has held, and those in
/// which it has found holds of others.
#[derive(Default)]
pub(super) struct UsedSlots {
    open: Mutex<BTreeMap<u16, u64>>,
    next: AtomicU16,
    /// Those that it has not looked into yet, once its rules hold.
    unseen: Mutex<Option<VecDeque<u16>>>,
}

impl UsedSlots {
    /// As many are swept at once.
    const SWEPT: usize = 64;

    /// As many more are looked into at once: all slots of a cluster within a minute or two.
    const SEEN: usize = 256;

    /// Looks once into all of these.
    pub(super) fn look_into(&self, slots: Range<u16>) {
        lock(&self.unseen).get_or_insert_with(|| slots.collect());
    }

    fn used(&self, slot: u16) {
        lock(&self.open).entry(slot).or_default();
    }

    /// A slot was swept, and has as many open requests; `None` if its server did not answer.
    fn swept(&self, slot: u16, open: Option<u64>) {
        match (lock(&self.open).entry(slot), open) {
            (Entry::Occupied(mut known), Some(open)) => *known.get_mut() = open,
            (Entry::Vacant(unknown), Some(open @ 1..)) => {
                unknown.insert(open);
            }
            (Entry::Vacant(_), None) => lock(&self.unseen).get_or_insert_default().push_back(slot),
            _ => {}
        }
    }

    pub(super) fn open(&self) -> u64 {
        lock(&self.open).values().sum()
    }

    /// Those to sweep: unseen ones, and the used ones in turn.
    fn next(&self) -> Vec<u16> {
        let slots = lock(&self.open);
        let from = self.next.load(Relaxed);
        let used = slots.range(from..).chain(slots.range(..from)).take(Self::SWEPT);
        let used: Vec<u16> = used.map(|(slot, _)| *slot).collect();
        self.next.store(used.last().map_or(0, |last| last.wrapping_add(1)), Relaxed);
        let mut unseen = lock(&self.unseen);
        let unseen = unseen.iter_mut().flat_map(|unseen| unseen.drain(..unseen.len().min(Self::SEEN)));
        unseen.filter(|slot| !used.contains(slot)).chain(used.iter().copied()).collect()
    }
}

impl Names {
    /// What the names of holds in a slot begin with.
    pub(super) fn base_of_holds(&self, slot: u16) -> String {
        let prefix = self.prefix();
        if slots::hash_tag(prefix.as_bytes()).len() < prefix.len() {
            return prefix.to_owned();
        }
        let tag = TAGS.get(usize::from(slot)).copied().unwrap_or_default();
        if prefix.contains(['{', '}']) {
            // Braces of the prefix would hide the tag.
            return format!("{{{tag}}}{prefix}");
        }
        format!("{prefix}{{{tag}}}")
    }
}

impl Pool {
    /// The slots that holds may be in.
    pub(super) fn slots_of_holds(&self) -> Range<u16> {
        0..if self.is_cluster { SLOTS } else { 1 }
    }

    /// The slot of a check's holds. A single server has one.
    fn slot_of_hold(&self, batch: &Batch, check: &Check) -> u16 {
        if self.is_cluster { slots::slot(self.names.of(batch, check).as_bytes()) } else { 0 }
    }
}

impl KeepHolds for RedisStore {
    fn slots_of_holds(&self, batch: &Batch) -> SmallVec<[u16; 2]> {
        let mut slots: SmallVec<[u16; 2]> =
            self.by_slot(batch).into_iter().map(|in_slot| in_slot.slot).collect();
        slots.sort_unstable();
        slots
    }

    /// Closes in each slot. A slot leaves once it has confirmed that: what of a closing is still to be done is known also
    /// if nobody waits any more.
    fn close_holds<'a>(&'a self, closing: &'a mut Closing, _now: Time) -> StoreFuture<'a> {
        Box::pin(async move {
            let mut result = Ok(());
            closing.slots.retain(|slot| self.main.slots_of_holds().contains(slot));
            let request = ToClose::Request {
                id: closing.id.to_string(),
                close: closing.close,
                currency: closing.currency.clone(),
            };
            // All are sent before the first reply.
            let submitted: SmallVec<[_; 2]> = closing
                .slots
                .iter()
                .map(|slot| {
                    let base = self.main.names.base_of_holds(*slot);
                    let call = CloseCall::new(base, self.most_holds, request.clone(), Some(&closing.account));
                    (*slot, self.submit_call(call.clone(), None, None), call)
                })
                .collect();
            for (slot, submitted, call) in submitted {
                match self.receive_closed(submitted, &call, None).await {
                    Ok(_) => closing.slots.retain(|left| *left != slot),
                    Err(error) => result = Err(error),
                }
            }
            result
        })
    }

    fn open_holds(&self) -> u64 {
        self.used_slots.open()
    }

    /// Charges holds that have expired, in some of the slots. A server that does not answer delays only its own.
    fn sweep_holds<'a>(&'a self, account: &'a HoldAccount, _now: Time) -> SweepFuture<'a> {
        Box::pin(async move {
            let swept = self.used_slots.next().into_iter().map(async |slot| {
                let base = self.main.names.base_of_holds(slot);
                let call = CloseCall::new(base, self.most_holds, ToClose::Expired, Some(account));
                let left = self.run_call(&call, MAX_SWEEPS, None).await;
                self.used_slots.swept(slot, left.ok().map(|left| left.open));
            });
            join_all(swept).await;
        })
    }

    fn list_holds<'a>(&'a self, batch: &'a Batch, most: usize, _now: Time) -> ListingFuture<'a> {
        Box::pin(async move {
            let mut all = Vec::new();
            for index in batch.holding() {
                let check = batch.check(index);
                let base = self.main.names.base_of_holds(self.main.slot_of_hold(batch, check));
                let set = set_of_holds(&base, batch.full_key(check));
                let mut range = cmd("ZRANGEBYSCORE");
                range.arg(&set).arg("-inf").arg("+inf").arg("WITHSCORES").arg("LIMIT").arg(0).arg(most);
                let members = self.main.commands.command::<Vec<(String, u64)>>(&set, &range).await;
                let members = members.map_err(unavailable)?;
                // The slot's clock may be ahead of the server's.
                let mut behind = cmd("HGET");
                behind.arg([&*base, "holds"].concat()).arg("behind");
                let ahead =
                    self.main.commands.command::<Option<u64>>(&set, &behind).await.map_err(unavailable)?;
                let open = |(member, expires): (String, u64)| {
                    let expires = expires.saturating_sub(ahead.unwrap_or(0));
                    let mut parts = member.split(':');
                    let id: HoldId = parts.next()?.parse().ok()?;
                    let held = parts.nth(1)?.parse().ok()?;
                    Some(OpenHold {
                        check: index,
                        id,
                        held,
                        expires: Time::from_micros(expires.saturating_mul(1000)),
                    })
                };
                all.extend(members.into_iter().filter_map(open));
            }
            Ok(all)
        })
    }
}

impl RedisStore {
    fn by_slot(&self, batch: &Batch) -> SmallVec<[InSlot; 1]> {
        let mut all: SmallVec<[InSlot; 1]> = SmallVec::new();
        for index in batch.holding() {
            let slot = self.main.slot_of_hold(batch, batch.check(index));
            match all.iter_mut().find(|in_slot| in_slot.slot == slot) {
                Some(in_slot) => in_slot.checks.push(index),
                None => all.push(InSlot { slot, checks: smallvec![index] }),
            }
        }
        all
    }

    /// Counts and holds. What remains after a refund is less by what is held.
    pub(super) async fn count_and_hold(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        let mut refunded: SmallVec<[(usize, u64); 1]> = SmallVec::new();
        for index in batch.refunded_budgets() {
            let call = self.counter_call(batch, batch.check(index), false);
            let left = self.run_call(&call, usize::MAX, batch.until).await?;
            refunded.push((index, left.open));
        }
        self.count_then_hold(batch, now).await?;
        batch.decide_read();
        for (index, held) in refunded {
            batch.hold_beside(index, held);
        }
        Ok(())
    }

    /// Counts the checks that do not hold, and then holds unless the request is refused: a request that another limit refuses
    /// takes nothing of a budget at any time. One that only holds, and in one slot, is one round trip.
    async fn count_then_hold(&self, batch: &mut Batch, now: Time) -> Result<(), StoreError> {
        let by_slot = self.by_slot(batch);
        let has_others = batch.checks().iter().any(|check| check.hold.is_none() && !check.is_decided());
        let is_known = batch.is_known_refused();
        // Whoever must not count if a budget refuses looks first, and whoever holds in several slots, which is not one step.
        let counts_later = batch.counting == Counting::StopWhenOver && has_others && !is_known;
        let looks = counts_later || is_known || by_slot.len() > 1;
        let mut looked = SmallVec::new();
        if looks {
            looked = self.submit_holds(batch, &by_slot, now, HoldMode::Look)?;
        }
        let counting = batch.counting_if(is_known);
        let mut counted = (has_others && !counts_later).then(|| self.send(batch, counting, now));
        self.receive_holds(batch, now, &by_slot, looked, HoldMode::Look).await?;
        if let Some(counted) = &mut counted {
            self.receive(batch, counted).await?;
        } else if has_others {
            match batch.counting_if(batch.is_refused(|_, check| check.is_over())) {
                Counting::StopWhenOver => self.count_unless_over(batch, now).await?,
                counting => self.count(batch, counting, now).await?,
            }
        }
        let is_refused = batch.is_refused(|_, check| check.is_over());
        if is_refused && !looks {
            self.look(batch, &by_slot, now).await;
        }
        if is_refused || looks && batch.hold_id.is_none() {
            return Ok(());
        }
        let step = if batch.hold_id.is_some() { HoldMode::Hold } else { HoldMode::Look };
        let submitted = self.submit_holds(batch, &by_slot, now, step)?;
        self.receive_holds(batch, now, &by_slot, submitted, step).await
    }

    /// Looks at the budgets of a request that other limits refuse. Nothing that fails now admits it.
    async fn look(&self, batch: &mut Batch, by_slot: &[InSlot], now: Time) {
        let looked = match self.submit_holds(batch, by_slot, now, HoldMode::Look) {
            Ok(submitted) => self.receive_holds(batch, now, by_slot, submitted, HoldMode::Look).await,
            Err(error) => Err(error),
        };
        if looked.is_err() {
            for index in by_slot.iter().flat_map(|in_slot| &in_slot.checks) {
                batch.read_held(*index, Held { fits: true, ..Held::default() }, now);
            }
        }
    }

    fn submit_holds(
        &self,
        batch: &mut Batch,
        by_slot: &[InSlot],
        now: Time,
        step: HoldMode,
    ) -> Result<SmallVec<[Submitted; 1]>, StoreError> {
        let mut submitted = SmallVec::new();
        for in_slot in by_slot {
            submitted.push(self.submit_hold(batch, in_slot, now, step, batch.until, None)?);
            batch.is_hold_sent |= step == HoldMode::Hold;
        }
        Ok(submitted)
    }

    fn submit_hold(
        &self,
        batch: &Batch,
        InSlot { slot, checks }: &InSlot,
        now: Time,
        step: HoldMode,
        until: Option<Instant>,
        redirection: Option<Redirection>,
    ) -> Result<Submitted, StoreError> {
        let pool = &self.main;
        let base = pool.names.base_of_holds(*slot);
        let connected = self.connection_of(&base, redirection);
        let id = batch.hold_id.as_ref().filter(|_| step == HoldMode::Hold);
        let id = id.map(ToString::to_string).unwrap_or_default();
        let sets: SmallVec<[String; 2]> =
            checks.iter().map(|index| set_of_holds(&base, batch.full_key(batch.check(*index)))).collect();
        let mut call = HoldCall::new(base, &id, self.most_holds, batch.hold_account.clone());
        let checks_here = checks.iter().map(|index| batch.check(*index));
        for ((check, set), code) in checks_here.zip(&sets).zip(batch.codes(checks)) {
            let Some(hold) = &check.hold else { continue };
            let name = pool.names.of(batch, check);
            let is_counted = !matches!(check.limit.algorithm, Algorithm::Concurrency(_));
            let seconds = pool.backend().ttl_cache.seconds(&check.limit, now);
            call.push(&HoldPart {
                counter: is_counted.then_some((&*name, seconds.into())),
                set,
                limit: check.limit.requests_per_unit,
                hold,
                code,
            });
        }
        let Redirection { to: connection, is_asking } = connected?;
        let reply = connection.submit(checks.len(), until.into(), None, |pipeline| {
            pipeline.hold(call, is_asking);
        })?;
        Ok(Submitted { reply, connection })
    }

    /// Waits for the outcomes of holds.
    async fn receive_holds(
        &self,
        batch: &mut Batch,
        now: Time,
        by_slot: &[InSlot],
        submitted: SmallVec<[Submitted; 1]>,
        step: HoldMode,
    ) -> Result<(), StoreError> {
        for (in_slot, mut submitted) in by_slot.iter().zip(submitted) {
            loop {
                let submit =
                    |until, redirection| self.submit_hold(batch, in_slot, now, step, until, redirection);
                let result = self.receive_call(submitted, batch.until, submit).await?;
                let CheckResult::Holds(Holding { held, is_swept }) = result else {
                    unreachable!("the call holds");
                };
                self.used_slots.used(in_slot.slot);
                if is_swept {
                    for (index, held) in in_slot.checks.iter().zip(held) {
                        match step {
                            HoldMode::Look => batch.read_held(*index, held, now),
                            HoldMode::Hold => batch.decide_held(*index, held, now),
                        }
                    }
                    break;
                }
                submitted = self.submit_hold(batch, in_slot, now, step, batch.until, None)?;
            }
        }
        Ok(())
    }

    /// Waits for the result of a call, and follows redirections: `submit` sends the call again.
    async fn receive_call(
        &self,
        mut submitted: Submitted,
        mut until: Option<Instant>,
        submit: impl Fn(Option<Instant>, Option<Redirection>) -> Result<Submitted, StoreError>,
    ) -> Result<CheckResult, StoreError> {
        for _ in 0..MAX_REDIRECTS {
            match submitted.reply.wait().await?.into_iter().next() {
                Some(CheckResult::Redirected(error)) => {
                    until = Some(self.deadline(until));
                    submitted = submit(until, self.redirection(&error, &submitted.connection))?;
                }
                Some(CheckResult::Failed(failure)) => {
                    return Err(failure.to_error(FailureReason::BadAnswer));
                }
                Some(result) => return Ok(result),
                None => unreachable!("a call has a check"),
            }
        }
        Err(StoreError::new(FailureReason::BadAnswer, "redis: the servers redirect a hold to each other"))
    }

    /// The connection that a redirection names, else that of the server that owns a key.
    fn connection_of(&self, key: &str, redirection: Option<Redirection>) -> Result<Redirection, StoreError> {
        let owner = || self.main.connection(key).map(|to| Redirection { to, is_asking: false });
        redirection.map_or_else(owner, Ok)
    }

    /// The connection that an error names; `None` asks for the current servers.
    fn redirection(&self, error: &str, from: &Connection) -> Option<Redirection> {
        let (to, is_asking) = slots::redirection(error, &from.address)?;
        self.main.backend().topology.request_refresh();
        self.main.connection_to(&to).map(|to| Redirection { to, is_asking })
    }

    fn submit_call(
        &self,
        call: CloseCall,
        until: Option<Instant>,
        redirection: Option<Redirection>,
    ) -> Result<Submitted, StoreError> {
        let Redirection { to: connection, is_asking } = self.connection_of(call.key(), redirection)?;
        let close = |pipeline: &mut RedisPipeline| pipeline.close(call, is_asking);
        let reply = connection.submit(1, until.into(), None, close)?;
        Ok(Submitted { reply, connection })
    }

    /// Waits for what was closed.
    async fn receive_closed(
        &self,
        submitted: Result<Submitted, StoreError>,
        call: &CloseCall,
        until: Option<Instant>,
    ) -> Result<Left, StoreError> {
        let submit = |until, redirection| self.submit_call(call.clone(), until, redirection);
        match self.receive_call(submitted?, until, submit).await? {
            CheckResult::Closed(left) => Ok(left),
            _ => unreachable!("the call closes"),
        }
    }

    /// Runs a call until it leaves nothing to sweep, at most so often.
    async fn run_call(
        &self,
        call: &CloseCall,
        most: usize,
        until: Option<Instant>,
    ) -> Result<Left, StoreError> {
        let mut left = Left::default();
        for _ in 0..most {
            let submitted = self.submit_call(call.clone(), until, None);
            left = self.receive_closed(submitted, call, until).await?;
            if left.due == 0 {
                break;
            }
        }
        Ok(left)
    }

    /// Resets what is spent, and keeps what is held: it is charged when it ends. Frees the places of requests under way.
    pub(super) async fn reset_holding(&self, batch: &Batch, check: &Check) -> Result<(), StoreError> {
        let call = self.counter_call(batch, check, true);
        self.run_call(&call, usize::MAX, None).await.map(drop)
    }

    /// Charges what has expired of a check's counter, and resets it then if that is meant.
    fn counter_call(&self, batch: &Batch, check: &Check, resets: bool) -> CloseCall {
        let base = self.main.names.base_of_holds(self.main.slot_of_hold(batch, check));
        let set = set_of_holds(&base, batch.full_key(check));
        let is_counted = !matches!(check.limit.algorithm, Algorithm::Concurrency(_));
        let counter = is_counted.then(|| self.main.names.of(batch, check).into_owned());
        let counter = counter.filter(|_| resets);
        let to_close = ToClose::Counter { set, counter, resets };
        CloseCall::new(base, self.most_holds, to_close, batch.hold_account.as_ref())
    }
}

fn unavailable(message: String) -> StoreError {
    StoreError::new(FailureReason::Unavailable, message)
}
