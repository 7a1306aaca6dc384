//! One set of rules with the real limiter, on the clock of the log.
//!
//! Counters are in a memory store of its own, whose bound no replay should reach: it holds the keys that are counted at
//! one time of the log, 24 bytes each.

use std::sync::{Arc, Mutex, MutexGuard};

use super::tally::Tally;
use clock::{Clock, ManualClock, Time};
use counters::{Operate, Report};
use faults::mutex::lock;
use limiter::{
    Answer, Chance, Decided, Limiter, Observed, Observer, OverLimitCache, Policy, Request, RequestError,
    ResponseOptions, handles,
};
use memory::MemoryStore;
use metrics::{Stats, StatsOptions};
use overrides::Index;
use rules::RuleSet;
use rules_source::Source;

/// 6 GB of counters. Beyond it counters would be evicted, and the replay fails.
const MAX_KEYS: usize = 1 << 28;

/// Expired counters are removed after this many decisions, a sixteenth of them at a time.
const DECISIONS_PER_SWEEP: u64 = 1 << 16;

pub struct Decider {
    limiter: Arc<Limiter>,
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    tally: Arc<Watch>,
    /// The random part of the next request's hold.
    hold: Arc<Mutex<u128>>,
    decided: u64,
    /// The second in which expired holds were last charged.
    swept: u64,
    /// The only domains whose requests are replayed; all if it is empty.
    domains: Vec<Box<str>>,
}

/// Shows the decisions to the tally, on the thread that decides.
struct Watch(Mutex<Tally>);

impl Observer for Watch {
    fn decided(&self, decision: &Observed<'_, '_>) {
        lock(&self.0).count(decision);
    }
}

impl Decider {
    /// `cache_bytes` is the size of the over-limit cache of the service, if it has one: with it, hits of refused requests
    /// are not counted.
    pub fn new(rules: RuleSet, policy: Policy, overrides: Arc<Index>, cache_bytes: usize) -> Self {
        let tally = Arc::new(Watch(Mutex::new(Tally::new(&rules))));
        // Metrics of callers' values share one series: nobody reads them.
        let stats = Arc::new(Stats::new(StatsOptions { max_series: 0, ..StatsOptions::default() }));
        let counters = stats.clone();
        let source = Source::fixed(rules, move |rules: &RuleSet| handles(rules, &counters, Vec::new()));
        let policy = Policy { response: ResponseOptions::default(), ..policy };
        let store = Arc::new(MemoryStore::new(MAX_KEYS).holding(policy.max_holds));
        let clock = Arc::new(ManualClock::default());
        let hold = Arc::new(Mutex::new(0));
        let next_hold = hold.clone();
        let chance: Chance = Arc::new(move || *lock(&next_hold));
        let cache = (cache_bytes > 0).then(|| Arc::new(OverLimitCache::new(cache_bytes)));
        let limiter = Limiter::new(
            policy,
            Arc::new(source),
            store.clone(),
            cache,
            stats,
            clock.clone() as Arc<dyn Clock>,
        );
        // In memory nothing waits to be closed.
        let limiter = limiter.with_holds(chance, 0).with_overrides(overrides).with_observer(tally.clone());
        let limiter = Arc::new(limiter);
        Self { limiter, store, clock, tally, hold, decided: 0, swept: 0, domains: Vec::new() }
    }

    /// The same rules, on requests of these domains alone.
    pub fn on_domains(self, domains: Vec<Box<str>>) -> Self {
        Self { domains, ..self }
    }

    /// False for a request that is left out.
    pub(crate) fn takes(&self, request: &Request<'_>) -> bool {
        self.domains.is_empty() || self.domains.iter().any(|name| **name == *request.domain)
    }

    /// Decides a request. `hold` is the random part of the identity of what it held in the log.
    #[expect(clippy::panic, reason = "the memory store answers at once")]
    pub(crate) fn decide(
        &mut self,
        request: &Request<'_>,
        hold: Option<u128>,
        now: Time,
    ) -> Result<Answer, RequestError> {
        self.clock.set(now);
        // A hold that the log does not have is never settled.
        *lock(&self.hold) = hold.unwrap_or_else(|| self.decided.into());
        if now.seconds() != self.swept {
            self.swept = now.seconds();
            self.store.sweep(now);
        }
        lock(&self.tally.0).begin();
        self.decided += 1;
        if self.decided.is_multiple_of(DECISIONS_PER_SWEEP) {
            self.store.maintain(now);
        }
        match self.limiter.try_decide(request, now, None, None)? {
            Decided::Answer(mut answer) => {
                if let Some(hold) = answer.hold.take() {
                    hold.delivered();
                }
                Ok(answer)
            }
            Decided::Wait(_) => panic!("the memory store made a request wait"),
        }
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        lock(&self.tally.0)
    }

    /// True if a counter was evicted, so that the decisions may be wrong.
    pub(crate) fn has_evicted(&self) -> bool {
        self.store.usage().is_some_and(|usage| usage.held.evicted > 0)
    }
}
