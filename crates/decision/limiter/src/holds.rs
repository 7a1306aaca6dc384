//! The life of a request's holds: their identity, the descriptors that settle and end them, and the queue of what the
//! store did not take.
//!
//! Nobody settles a hold whose identity nobody got: see [`HoldToken`].

mod queue;
pub(super) mod token;

use std::{
    mem,
    str::FromStr as _,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{join, join_all};
use smallvec::{SmallVec, smallvec};

use queue::Queue;
pub use token::HoldToken;

use super::{
    Limiter,
    answer::{Answer, Code},
    effects::Effects,
    request::{Ask, Descriptor, Request},
};
use clock::{Time, timer::Timer};
use counters::{Applied, Batch, Close, Closing, Hold, HoldAccount, HoldId, KeepHolds as _, StoreError};
use limit::{Hits, HoldRule, Kind, Limit, MAX_LIMIT, holds::Unknown};
use metrics::{FailureReason, HoldBound, Stats};
use rules::Value;

const SETTLE: &str = "hold_settle";
const END: &str = "hold_end";

/// The keys of entries that settle or end holds. They need no rule.
pub const CLOSING_KEYS: [&str; 2] = [SETTLE, END];
const CURRENCY: &str = "hold_in";

/// The field of `dynamic_metadata` with the identity.
const METADATA: &str = "hold";

/// The wait after the store did not take what was queued, and between sweeps of what has expired.
const RETRY: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const SWEEP: Duration = Duration::from_secs(1);

/// Random numbers that nobody can guess.
pub type Chance = Arc<dyn Fn() -> u128 + Send + Sync>;

pub(super) struct Holds {
    pub(super) chance: Chance,
    pub(super) queue: Arc<Queue>,
    /// Of holds that are found expired.
    pub(super) account: HoldAccount,
}

impl Holds {
    pub(super) fn new(chance: Chance, max: usize, effects: &Arc<Effects>) -> Self {
        let queue = Arc::new(Queue::new(max, effects.clone()));
        Self { chance, queue, account: HoldAccount::of_expired(effects.clone()) }
    }
}

/// 128 bits of the system.
#[expect(clippy::expect_used, reason = "a system without random numbers cannot serve TLS either")]
pub fn system_chance() -> Chance {
    let system = ring::rand::SystemRandom::new();
    Arc::new(move || {
        let mut bytes = [0; 16];
        ring::rand::SecureRandom::fill(&system, &mut bytes).expect("the system has random numbers");
        u128::from_be_bytes(bytes)
    })
}

/// What a request closes. Dropped before the store has taken it, it is queued.
pub(super) struct Closings {
    all: SmallVec<[Closing; 3]>,
    queue: Arc<Queue>,
}

impl Closings {
    /// What the descriptors of a request settle, then what they end. Malformed identities are counted.
    pub(super) fn of(request: &Request<'_>, queue: &Arc<Queue>, stats: &Stats) -> Option<Self> {
        if request.ask != Ask::Decide || !request.descriptors.iter().any(closes) {
            return None;
        }
        let mut all: SmallVec<[Closing; 3]> = SmallVec::new();
        for descriptor in request.descriptors.iter().filter(|descriptor| closes(descriptor)) {
            match closing(descriptor, queue) {
                Some(closing) => all.push(closing),
                None => stats.holds().unknown_ids.increment(),
            }
        }
        all.sort_by_key(|closing| closing.close == Close::End);
        Some(Self { all, queue: queue.clone() })
    }

    /// The hold that a report ends. Its cost is what was reported, which needs no hold.
    pub(super) fn of_report(request: &Request<'_>, queue: &Arc<Queue>, stats: &Stats) -> Option<Self> {
        if request.reservation.is_empty() {
            return None;
        }
        let Ok(id) = HoldId::from_str(request.reservation) else {
            stats.holds().unknown_ids.increment();
            return None;
        };
        let all = smallvec![queue.closing(id, Close::Settle(0), None)];
        Some(Self { all, queue: queue.clone() })
    }
}

impl Drop for Closings {
    fn drop(&mut self) {
        for closing in mem::take(&mut self.all) {
            self.queue.push(closing);
        }
    }
}

/// True for a descriptor that settles or ends holds.
pub(super) fn closes(descriptor: &Descriptor<'_>) -> bool {
    descriptor.entries.iter().any(|entry| entry.key == SETTLE || entry.key == END)
}

fn closing(descriptor: &Descriptor<'_>, queue: &Queue) -> Option<Closing> {
    let value = |key| descriptor.entries.iter().find(|entry| entry.key == key).map(|entry| entry.value);
    let id = HoldId::from_str(value(SETTLE).or_else(|| value(END))?).ok()?;
    let cost = descriptor.hits_addend.filter(|_| !descriptor.is_negative_hits);
    Some(match (value(SETTLE), cost) {
        (Some(_), cost) => {
            let close = cost.map_or(Close::End, |cost| Close::Settle(cost.min(MAX_LIMIT)));
            queue.closing(id, close, value(CURRENCY).map(Box::from))
        }
        (None, _) => queue.closing(id, Close::End, None),
    })
}

/// What a limit of this rule holds for a request. A refund holds nothing, but one at a time is held for any hits. A report
/// is an ordinary hit of a budget.
pub(super) fn hold_of(limit: &Limit, hits: Hits, rule_name: &str, ask: Ask) -> Option<Hold> {
    let rule = limit.hold.as_ref()?;
    let is_concurrency = limit.algorithm.kind() == Kind::Concurrency;
    let holds = matches!(hits, Hits::Take(_)) && ask != Ask::Report || is_concurrency;
    let is_read = matches!(ask, Ask::Look | Ask::Report);
    let estimate = Some(hits.taken()).filter(|estimate| *estimate > 0 && !is_read);
    let rule = || match ask {
        Ask::Reserve { ttl } => {
            let ttl = ttl.map_or(rule.ttl, |ttl| ttl.min(rule.ttl));
            Arc::new(HoldRule { ttl, unknown: Unknown::Hits(0), ..HoldRule::clone(rule) })
        }
        _ => rule.clone(),
    };
    let hold = || Hold { rule: rule(), rule_id: metrics::Holds::id_of(rule_name), estimate, found: None };
    holds.then(hold)
}

fn holds_anything(batch: &Batch) -> bool {
    let holds = |index| batch.check(index).hold.as_ref().is_some_and(|hold| hold.estimate.is_some());
    batch.holding().any(holds) && !batch.is_known_refused()
}

/// True if a check of the batch holds.
fn any_held(batch: &Batch) -> bool {
    batch.checks().iter().any(|check| check.held().is_some_and(|held| held.holds))
}

impl Limiter {
    /// The token of a batch that holds, and its identity in the batch; `None` if it only reads.
    pub(super) fn hold_token(&self, batch: &mut Batch) -> Result<Option<Box<HoldToken>>, StoreError> {
        if !batch.may_hold() || !holds_anything(batch) {
            return Ok(None);
        }
        let slots = self.store.slots_of_holds(batch);
        if slots.len() > HoldId::MAX_SLOTS {
            self.stats.holds().refused(HoldBound::Slots).increment();
            let message = format!("a request holds in {} slots; at most {}", slots.len(), HoldId::MAX_SLOTS);
            return Err(StoreError { reason: FailureReason::Overloaded, message: message.into() });
        }
        Ok(Some(Box::new(self.new_token(batch, slots))))
    }

    /// The token for the local fallback, after the store failed. What the store may hold is cancelled.
    pub(super) fn hold_token_here(
        &self,
        batch: &mut Batch,
        token: Option<Box<HoldToken>>,
    ) -> Option<Box<HoldToken>> {
        if let Some(token) = token.filter(|_| !batch.is_hold_sent) {
            token.delivered();
        }
        batch.is_hold_sent = false;
        batch.lose_holds();
        holds_anything(batch).then(|| Box::new(self.new_token(batch, SmallVec::new())))
    }

    fn new_token(&self, batch: &mut Batch, slots: SmallVec<[u16; 2]>) -> HoldToken {
        let id = HoldId { random: (self.holds.chance)(), slots };
        batch.hold_id = Some(id.clone());
        HoldToken::new(id, &self.holds.queue)
    }

    /// Puts the identity into the answer of a request that passes and holds. What a refused request holds is cancelled.
    pub(super) fn give_hold(&self, answer: &mut Answer, token: Option<Box<HoldToken>>, batch: &Batch) {
        self.count_refused(batch);
        let Some(token) = token else { return };
        if !any_held(batch) {
            token.delivered();
        } else if answer.code == Code::Ok {
            let metadata = answer.dynamic_metadata.get_or_insert_default();
            metadata.insert(METADATA.to_owned(), Value::Text(token.id().to_string()));
            answer.hold = Some(token);
        } else {
            self.cancel(*token);
        }
    }

    fn cancel(&self, token: HoldToken) {
        let closing = self.holds.queue.closing(token.id().clone(), Close::Cancel, None);
        if self.try_close_one(&closing, self.now()) == Applied::Done {
            token.delivered();
        }
    }

    /// Counts the checks for which the store had too many holds.
    fn count_refused(&self, batch: &Batch) {
        let stats = self.stats.holds();
        for check in batch.checks() {
            if check.held().is_some_and(|held| held.is_full) {
                stats.refused(HoldBound::Holds).increment();
            }
        }
    }

    /// Closes what a report ends. True if it was open until then.
    pub(super) async fn release(&self, ends: Box<Closings>) -> bool {
        let account = ends.all.first().map(|closing| closing.account.clone());
        self.close(ends).await;
        account.is_some_and(|account| account.was_open())
    }

    /// Closes what a request closes, and counts it.
    pub(super) async fn close(&self, mut closings: Box<Closings>) {
        // Behind what is queued of its request.
        let queue = &self.holds.queue;
        closings.all.retain(|one| {
            let waits = queue.has(&one.id);
            if waits {
                queue.push(one.clone());
            }
            !waits
        });
        self.close_in_order(&mut closings.all).await;
    }

    /// Settles, then ends: in each slot, an end waits until the settles of its request are taken, else it would charge what is
    /// unknown. Removes those that the store has taken.
    async fn close_in_order(&self, all: &mut SmallVec<[Closing; 3]>) {
        let now = self.now();
        for is_end in [false, true] {
            let settles = all.iter().filter(|one| one.close != Close::End);
            let untaken: Vec<(u128, u16)> =
                settles.flat_map(|one| one.slots.iter().map(|slot| (one.id.random, *slot))).collect();
            let results = join_all(all.iter_mut().map(async |closing| {
                if (closing.close == Close::End) != is_end {
                    return false;
                }
                let request = closing.id.random;
                let waits = |slot: &u16| is_end && untaken.contains(&(request, *slot));
                if !closing.slots.iter().any(waits) {
                    return self.close_one(closing, now).await.is_ok();
                }
                let mut ready = closing.clone();
                ready.slots.retain(|slot| !waits(slot));
                // An error stays with its slots.
                let _ = self.close_one(&mut ready, now).await;
                closing.slots.retain(|slot| waits(slot) || ready.slots.contains(slot));
                false
            }));
            let mut taken = results.await.into_iter();
            let mut ended: SmallVec<[HoldId; 2]> = SmallVec::new();
            all.retain(|closing| {
                let is_taken = taken.next().is_some_and(|taken| taken);
                if is_taken && closing.currency.is_none() {
                    ended.push(closing.id.clone());
                }
                !is_taken
            });
            // A settle in all currencies leaves nothing to end.
            all.retain(|closing| closing.close != Close::End || !ended.contains(&closing.id));
        }
    }

    /// The same at once, if the store does not have to be waited for.
    pub(super) fn try_close(&self, mut closings: Closings) -> Option<Closings> {
        let now = self.now();
        // In their order: nothing after one that waits.
        while let Some(first) = closings.all.first() {
            if self.try_close_one(first, now) == Applied::Wait {
                return Some(closings);
            }
            closings.all.remove(0);
        }
        None
    }

    fn try_close_one(&self, closing: &Closing, now: Time) -> Applied {
        if !closing.id.slots.is_empty() {
            return self.store.try_close_holds(closing, now);
        }
        // Holds of this process alone, while the store failed.
        if let Some(local) = self.local.get() {
            return local.try_close_holds(closing, now);
        }
        closing.account.answered(&[]);
        Applied::Done
    }

    async fn close_one(&self, closing: &mut Closing, now: Time) -> Result<(), StoreError> {
        if self.try_close_one(closing, now) == Applied::Done {
            return Ok(());
        }
        self.store.close_holds(closing, now).await.inspect_err(|_| closing.account.failed())
    }

    /// Repeats what the store did not take, and sweeps what has expired, for as long as the service runs.
    pub async fn run_holds(&self, timer: &dyn Timer) {
        join(self.run_queue(timer), self.run_sweeps(timer)).await;
    }

    /// What is new does not wait for what was not taken, which is sent again after a pause.
    async fn run_queue(&self, timer: &dyn Timer) {
        let queue = &self.holds.queue;
        let mut retry = timer.now();
        loop {
            let began = timer.now();
            let mut again = if began < retry { 0 } else { queue.failed() };
            loop {
                let mut batch = queue.next(&mut again);
                if batch.is_empty() {
                    break;
                }
                join_all(batch.iter_mut().map(|sent| self.close_in_order(&mut sent.left))).await;
                queue.keep(batch);
            }
            if began >= retry {
                // Many take long: a lost server does not keep this thread busy.
                let pause = 4 * timer.now().duration_since(began);
                retry = clock::timer::after(timer.now(), pause.clamp(RETRY, LONGEST_PAUSE));
            }
            if queue.failed() == 0 {
                queue.filled().await;
            } else {
                let _ = timer.timeout_at(retry, queue.filled()).await;
            }
        }
    }

    async fn run_sweeps(&self, timer: &dyn Timer) {
        loop {
            timer.sleep(SWEEP).await;
            let now = self.now();
            self.store.sweep_holds(&self.holds.account, now).await;
        }
    }

    /// Waits until what is queued is taken and what callers have left is decided, or `until`. For the shutdown.
    pub async fn drain_holds(&self, timer: &dyn Timer, until: Instant) {
        while self.queued_closings() + self.owed() > 0 && timer.now() < until {
            timer.sleep(Duration::from_millis(10)).await;
        }
    }

    /// Settles and ends that the store has not taken.
    pub fn queued_closings(&self) -> usize {
        self.holds.queue.len()
    }

    /// The open holds of the store, or of the local fallback.
    pub fn open_holds(&self) -> u64 {
        self.store.open_holds() + self.local.get().map_or(0, counters::KeepHolds::open_holds)
    }
}
