//! Pays for what is assigned: ten times a second, and after each report, it takes hits of the counters of buckets through
//! the limiter, and puts what changes into the outboxes of the streams.

use std::{collections::BTreeSet, convert::Infallible, mem, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::select;

use crate::{
    Action, Bucket, Mode, Quotas, State, Strategy,
    division::{Change, Division, Now, PACE, TICK, Turn},
    grant::Grant,
};
use clock::timer::after;
use faults::{
    mutex::lock,
    panics::{self, Boundary, Panicked, caught},
};
use limiter::{QuotaBucket, QuotaLimit, QuotaRule, StoreLost};
use std::sync::atomic::Ordering::Relaxed;

/// The longest delay of a tick.
const JITTER: Duration = Duration::from_millis(15);

/// The turns that wait for the store at a time. With a Redis 100 ms away 1,000 new buckets are assigned in 0.5 s; 128 at a
/// time took 2 s.
const AT_A_TIME: usize = 1024;

impl Quotas {
    pub(crate) async fn keep_running(self: Arc<Self>) {
        loop {
            let Err(Panicked) = caught(Boundary::Quotas, self.keep()).await;
            net::restart::pause().await;
        }
    }

    /// Turns begin at multiples of a tick, so that windows begin with one.
    async fn keep(&self) -> Infallible {
        loop {
            let now = self.now();
            let tick = u64::try_from(TICK.as_micros()).unwrap_or(u64::MAX);
            // Of replicas that compete, each is the first at times.
            let late = JITTER.mul_f64(self.edges.random.fraction());
            let until = Duration::from_micros(tick - now.time.micros() % tick).saturating_add(late);
            let sleep = self.edges.timer.sleep_until(after(self.edges.timer.now(), until));
            select! {
                biased;
                () = sleep => self.turn_all(self.due()).await,
                () = self.reported.notified() => self.turn_all(self.asked()).await,
            }
        }
    }

    /// The buckets whose turn it is.
    fn due(&self) -> Vec<Arc<QuotaBucket>> {
        let mut state = lock(&self.state);
        let now = self.now();
        state.asked.clear();
        // What is paid for and belongs to nobody is returned by a last turn.
        state.remove_unused();
        let due = state.buckets.iter().filter(|(_, bucket)| bucket.due <= now.elapsed);
        due.map(|(bucket, _)| bucket.clone()).collect()
    }

    fn asked(&self) -> Vec<Arc<QuotaBucket>> {
        mem::take::<BTreeSet<_>>(&mut lock(&self.state).asked).into_iter().collect()
    }

    async fn turn_all(&self, buckets: Vec<Arc<QuotaBucket>>) {
        panics::point("quotas");
        for some in buckets.chunks(AT_A_TIME) {
            join_all(some.iter().map(|bucket| self.turn(bucket))).await;
        }
    }

    /// Takes or returns hits of a bucket's counter, and assigns what there is.
    async fn turn(&self, bucket: &Arc<QuotaBucket>) {
        let now = self.now();
        let rule = self.limiter.quota_rule(bucket, now.time);
        let limit = match rule {
            QuotaRule::Limited(limit) if limit.requests > 0 => limit,
            QuotaRule::Allowed => return self.set(bucket, Mode::Allowed),
            QuotaRule::Limited(_) | QuotaRule::Refused => return self.set(bucket, Mode::Denied),
        };
        let Some(turn) = self.with(bucket, |bucket| bucket.division.turn(limit, now)) else { return };
        match turn {
            Turn::Take(hits, at) => match self.limiter.reserve(bucket, hits, at).await {
                Ok(taken) => {
                    self.counts.taken.fetch_add(taken, Relaxed);
                    self.with(bucket, |bucket| bucket.division.taken(hits, at, taken, self.now()));
                }
                Err(StoreLost::Allow) => return self.set(bucket, Mode::Allowed),
                Err(StoreLost::Deny) => return self.set(bucket, Mode::Denied),
                // What is assigned may be used; no more follows.
                Err(StoreLost::Unknown) => return,
            },
            Turn::GiveBack(hits) => {
                self.counts.given_back.fetch_add(hits, Relaxed);
                self.limiter.give_back(bucket, hits, now.time).await;
            }
            Turn::Nothing => {}
        }
        self.assign(bucket, limit);
    }

    fn assign(&self, key: &Arc<QuotaBucket>, limit: QuotaLimit) {
        self.decide(key, Mode::Divided, |division, now| {
            (division.assign(limit, now), division.rest(limit, now))
        });
    }

    /// Allows or denies a bucket's requests.
    fn set(&self, key: &Arc<QuotaBucket>, mode: Mode) {
        let answer = if mode == Mode::Allowed { Change::Allow } else { Change::Deny };
        self.decide(key, mode, |division, now| (division.undivided(answer, now), PACE));
    }

    /// Tells the Envoys what changes for them, and waits for some time until the next turn.
    fn decide(
        &self,
        key: &Arc<QuotaBucket>,
        mode: Mode,
        changes: impl FnOnce(&mut Division, Now) -> (Vec<(u64, Change)>, Duration),
    ) {
        let mut state = lock(&self.state);
        let now = self.now();
        let State { buckets, streams, .. } = &mut *state;
        let Some(bucket) = buckets.get_mut(key) else { return };
        if mem::replace(&mut bucket.mode, mode) != mode {
            bucket.division.owe_all();
        }
        let (changes, rest) = changes(&mut bucket.division, now);
        bucket.due = now.elapsed.saturating_add(rest);
        for (stream, change) in changes {
            let (action, count) = match change {
                Change::Grant(grant) => (self.assigned(tokens(grant, true)), &self.counts.granted),
                Change::Renew(grant) => (self.assigned(tokens(grant, false)), &self.counts.renewed),
                Change::Allow => (self.assigned(Strategy::AllowAll), &self.counts.allowed),
                Change::Deny => (self.assigned(Strategy::DenyAll), &self.counts.denied),
                Change::Abandon => (Action::Abandon, &self.counts.abandoned),
            };
            count.fetch_add(1, Relaxed);
            if let Some(outbox) = streams.get_mut(&stream) {
                outbox.put(key, action);
            }
        }
    }

    fn assigned(&self, strategy: Strategy) -> Action {
        Action::Assign { strategy, ttl_seconds: self.settings.ttl_seconds }
    }

    fn with<T>(&self, key: &Arc<QuotaBucket>, use_bucket: impl FnOnce(&mut Bucket) -> T) -> Option<T> {
        lock(&self.state).buckets.get_mut(key).map(use_bucket)
    }
}

fn tokens(grant: Grant, is_new: bool) -> Strategy {
    Strategy::Tokens { max: u32::try_from(grant.requests).unwrap_or(u32::MAX), is_new }
}
