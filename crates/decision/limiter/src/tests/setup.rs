//! A limiter with a remote store, for tests.

use std::{
    fs,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Instant,
};

use tempfile::TempDir;

use crate::{
    Answer, Bounds, Decided, DecisionTrace, Descriptor, Entry, Handles, Limiter, OverLimitCache, Policy,
    Request, RequestError, handles,
};
use clock::{Clock, ManualClock, Time};
use counters::{Applied, Batch, Check, Count, Held, KeepHolds, Operate, Report, StoreError, StoreFuture};
use faults::OnStoreFailure;
use memory::MemoryStore;
use metrics::{FailureReason, RuleCounter, Stats, StatsOptions};
use overrides::Index;
use rules::CompileOptions;
use rules_source::{RulesDir, Source};

pub(super) const RULES: &str = "\
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}, metadata: {tier: gold}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: free, rate_limit: {unlimited: true}}
";

/// Counts in memory, but answers at the second poll unless `is_near`, and fails while it is lost.
pub(super) struct RemoteStore {
    pub(super) is_near: AtomicBool,
    pub(super) counters: MemoryStore,
    pub(super) lost: Mutex<Option<FailureReason>>,
    /// When it is lost, it has held for the first check before.
    pub(super) holds_first: AtomicBool,
    pub(super) last_until: Mutex<Option<Instant>>,
    /// What leases would know of every counter.
    pub(super) known: Mutex<Option<u64>>,
}

impl RemoteStore {
    pub(super) fn set_lost(&self, lost: Option<FailureReason>) {
        *self.lost.lock().unwrap() = lost;
    }
}

impl Count for RemoteStore {
    fn try_apply(&self, batch: &mut Batch, now: Time) -> Applied {
        if !self.is_near.load(Relaxed) {
            return Applied::Wait;
        }
        self.counters.try_apply(batch, now)
    }

    fn known(&self, _: &Check, _: Time) -> Option<u64> {
        *self.known.lock().unwrap()
    }

    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        *self.last_until.lock().unwrap() = batch.until;
        Box::pin(async move {
            let mut polled = false;
            poll_fn(|_| if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending })
                .await;
            let lost = *self.lost.lock().unwrap();
            match lost {
                None => self.counters.apply(batch, now).await,
                Some(reason) => {
                    if self.holds_first.load(Relaxed) {
                        batch.decide_held(0, Held { fits: true, holds: true, ..Held::default() }, now);
                    }
                    (0..batch.checks().len()).for_each(|index| batch.lose(index));
                    Err(StoreError { reason, message: "redis 192.0.2.1:6379: no answer".into() })
                }
            }
        })
    }
}

impl KeepHolds for RemoteStore {}

impl Operate for RemoteStore {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.counters.reset(batch, now)
    }
}

impl Report for RemoteStore {}

impl Limiter {
    /// Both steps, for callers that are futures themselves.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        request: &Request<'_>,
        until: Option<Instant>,
        mut trace: Option<&mut DecisionTrace>,
    ) -> Result<Answer, RequestError> {
        match self.try_decide(request, self.now(), until, trace.as_deref_mut())? {
            Decided::Answer(answer) => Ok(answer),
            Decided::Wait(waiting) => {
                let concluded = waiting.await;
                if let (Some(trace), Some(waited)) = (trace, concluded.trace) {
                    trace.wait = waited.wait;
                    trace.failure = waited.failure;
                }
                concluded.decided
            }
        }
    }
}

/// A limiter with a remote store, and its parts.
pub(super) struct Setup {
    pub(super) limiter: Arc<Limiter>,
    pub(super) store: Arc<RemoteStore>,
    pub(super) stats: Arc<Stats>,
    pub(super) source: Arc<Source<Handles>>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) overrides: Arc<Index>,
    pub(super) root: TempDir,
}

impl Setup {
    pub(super) fn new(on_store_failure: OnStoreFailure, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy =
            Policy { bounds: Bounds { descriptors: 10, entries: 10 }, on_store_failure, ..Policy::default() };
        change(&mut policy);
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("config")).unwrap();
        let stats = Arc::new(Stats::new(StatsOptions::default()));
        let counters = stats.clone();
        let source = Arc::new(Source::new(CompileOptions::default(), move |rules| {
            handles(rules, &counters, Vec::new())
        }));
        let store = Arc::new(RemoteStore {
            is_near: AtomicBool::new(false),
            counters: MemoryStore::new(10_000),
            lost: Mutex::default(),
            holds_first: AtomicBool::new(false),
            last_until: Mutex::default(),
            known: Mutex::default(),
        });
        let clock = Arc::new(ManualClock::at(Time::from_seconds(7200)));
        let cache = Arc::new(OverLimitCache::new(100_000));
        let limiter =
            Limiter::new(policy, source.clone(), store.clone(), Some(cache), stats.clone(), clock.clone());
        let overrides = Arc::<Index>::default();
        let limiter = Arc::new(limiter.with_overrides(overrides.clone()));
        let setup = Self { limiter, store, stats, source, clock, overrides, root };
        setup.load(RULES);
        setup
    }

    /// A limiter whose store is lost from the start.
    pub(super) fn lost(on_store_failure: OnStoreFailure) -> Self {
        let setup = Self::new(on_store_failure, |_| ());
        setup.store.set_lost(Some(FailureReason::Timeout));
        setup
    }

    pub(super) fn load(&self, rules: &str) {
        fs::write(self.root.path().join("config/rules.yaml"), rules).unwrap();
        let directory = RulesDir::new(self.root.path(), "", "config", false);
        self.source.reload(&directory, self.clock.now());
    }

    pub(super) fn decide(&self, keys: &[&str]) -> Result<Answer, RequestError> {
        let request = request(keys);
        finish(pin!(self.limiter.decide(&request, None, None)))
    }

    pub(super) fn decided(&self, policy: OnStoreFailure, reason: FailureReason) -> u64 {
        self.stats.service().store_failures(policy, reason).get()
    }

    pub(super) fn counts(&self, key: &str) -> [u64; RuleCounter::ALL.len()] {
        let rule = self.stats.rule("d", &format!("d.{key}"));
        RuleCounter::ALL.map(|counter| rule.get(counter))
    }
}

pub(super) fn request<'a>(keys: &[&'a str]) -> Request<'a> {
    let descriptor = |key: &&'a str| Descriptor {
        entries: std::iter::once(Entry { key, value: "v" }).collect(),
        ..Descriptor::default()
    };
    Request { domain: "d", descriptors: keys.iter().map(descriptor).collect(), ..Request::default() }
}

pub(super) fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

pub(super) fn finish<T>(mut future: Pin<&mut impl Future<Output = T>>) -> T {
    (0..10).find_map(|_| poll(future.as_mut())).expect("the store answers at its second poll")
}
