//! A replica: the project's own limiter, store, leases and overrides, on a simulated machine.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use clock::{Clock as _, Time, timer::Interval};
use counters::{
    Applied, Batch, Check, Closing, Count, HoldAccount, KeepHolds, Operate, Report, Resets, StoreError,
    StoreFuture, SweepFuture,
};
use faults::OnStoreFailure;
use fleet::members::{INTERVAL_SECONDS, Publisher, Sharers};
use leases::LeasedStore;
use limit::Share;
use limiter::{Chance, Handles, Limiter, OverLimitCache, Policy, ResponseOptions};
use metrics::{LeaseUsage, PoolUsage, Stats, StatsOptions};
use net::edges::Edges;
use overrides::{Index, Keeper, follower::Follower, progress::Progress};
use redis_store::{
    CommandPool, RedisStore,
    settings::{Redis, RedisPool, Startup},
};
use rules::{CompileOptions, SourceFile};
use rules_source::{Reading, Source};
use smallvec::SmallVec;

use crate::{
    clocks::ProcessClock,
    limits::{LimitPlan, rules_text},
    machine,
    network::Network,
    plan::{Plan, SECOND},
    quotas,
    random::Random,
    streams,
    world::{Micros, Process},
};

const MAX_LEASES: usize = 1000;
const CACHE_BYTES: usize = 1 << 20;
const MAX_QUEUED: usize = 10_000;

/// How long a replica that ends sends what it has queued.
const DRAIN: Duration = Duration::from_millis(700);

pub struct Replica {
    pub process: Process,
    pub clock: Arc<ProcessClock>,
    pub edges: Edges,
    pub limiter: Arc<Limiter>,
    pub store: Arc<Watched>,
    pub keeper: Arc<Keeper>,
    pub stats: Arc<Stats>,
    pub source: Arc<Source<Handles>>,
    /// No new requests come: it terminates.
    pub is_draining: bool,
    /// The rules of streams, and of Envoys.
    budgets: String,
    was_ready: AtomicBool,
    pub started: Micros,
    /// It gave up its queue of settles and ends before its time was over.
    pub has_dropped_queue: Arc<AtomicBool>,
    /// It has returned its leases.
    pub is_closed: Arc<AtomicBool>,
    pub quotas: Arc<rlqs::Quotas>,
}

fn chance_of_ids(plan: &Plan, process: Process) -> Chance {
    let chance = Mutex::new(Random::new(plan.seed ^ u64::from(process.0) << 32 ^ 0x1d));
    Arc::new(move || {
        let mut chance = chance.lock().expect("nothing panics with it");
        u128::from(chance.number()) << 64 | u128::from(chance.number())
    })
}

fn policy(plan: &Plan) -> Policy {
    let response = ResponseOptions { retry_after: Some("Retry-After".into()), ..ResponseOptions::default() };
    Policy { on_store_failure: plan.policy, response, ..Policy::default() }
}

fn source(store: Arc<Watched>, stats: Arc<Stats>) -> Arc<Source<Handles>> {
    let attach = move |rules: &rules::RuleSet| {
        store.rules_changed(rules.hold());
        limiter::handles(rules, &stats, Vec::new())
    };
    Arc::new(Source::new(CompileOptions::default(), attach))
}

impl Replica {
    pub fn start(
        network: &Arc<Network>,
        plan: &Plan,
        number: usize,
        process: Process,
        limits: &[LimitPlan],
    ) -> Self {
        let machine = plan.replicas[number];
        let clock = ProcessClock::new(&network.world, plan.began, machine.offset, machine.drift);
        let mut random = Random::new(plan.seed ^ u64::from(process.0) << 32 ^ 0x5eed);
        let index = Arc::new(Index::seeded(random.number()));
        let edges = machine::edges(network, process, clock.clone(), random);
        let redis =
            RedisStore::new(&settings(plan), "", 0, 1, &edges).expect("the settings have no TLS files");
        redis.watch();
        let progress = Arc::<Progress>::default();
        let keeper = Arc::new(Keeper::in_redis(index.clone(), redis.command_pool(), progress.clone()));
        let pool = Arc::new(redis.command_pool());
        let store = Arc::new(Watched {
            store: LeasedStore::new(redis, plan.most_leases.unwrap_or(MAX_LEASES)),
            failed: Mutex::default(),
        });
        let stats = Arc::new(Stats::new(StatsOptions::default()));
        let source = source(store.clone(), stats.clone());
        let cache = plan.has_cache.then(|| Arc::new(OverLimitCache::new(CACHE_BYTES)));
        let limiter = Limiter::new(
            policy(plan),
            source.clone(),
            store.clone(),
            cache.clone(),
            stats.clone(),
            clock.clone(),
        );
        let limiter = limiter
            .with_overrides(index.clone())
            .with_holds(chance_of_ids(plan, process), MAX_QUEUED)
            .owing(edges.spawn.clone());
        let limiter = Arc::new(limiter);
        let replica = Self {
            process,
            clock,
            edges: edges.clone(),
            limiter: limiter.clone(),
            store,
            keeper,
            stats,
            source,
            is_draining: false,
            budgets: plan.streams.as_ref().map(streams::plan::rules_text).unwrap_or_default()
                + &quotas::rules_text(plan),
            was_ready: AtomicBool::new(false),
            started: network.world.now(),
            has_dropped_queue: Arc::default(),
            is_closed: Arc::default(),
            quotas: rlqs::Quotas::new(limiter.clone(), edges.clone(), quotas::settings()),
        };
        replica.load(limits);
        limiter.start_worker();
        if plan.quotas.is_some() {
            replica.quotas.start();
        }
        if plan.policy == OnStoreFailure::Share {
            replica.publish(pool.clone(), (plan.summary > 0).then(|| "x".repeat(plan.summary)));
        }
        replica.follow(pool, index, progress);
        replica.maintain(cache);
        let timer = replica.edges.timer.clone();
        replica.edges.start(async move { limiter.run_holds(&*timer).await });
        replica
    }

    /// Follows the overrides in Redis.
    fn follow(&self, pool: Arc<CommandPool>, index: Arc<Index>, progress: Arc<Progress>) {
        let [on_reset, on_refund] = [self.limiter.clone(), self.limiter.clone()];
        let follower = Follower {
            pool,
            index,
            progress,
            on_reset: Box::new(move |resets| on_reset.forget(resets)),
            on_refund: Box::new(move |refunds| on_refund.forget_rejections(refunds)),
        };
        self.edges.start(async move { follower.follow().await });
    }

    /// Publishes the replica, and counts those that share the store, as the service does every two seconds.
    pub fn publish(&self, pool: Arc<CommandPool>, summary: Option<String>) {
        let own = api::Replica { id: self.process.to_string(), ..api::Replica::default() };
        let (edges, limiter) = (self.edges.clone(), self.limiter.clone());
        self.edges.start(async move {
            let (mut sharers, mut publisher) = (Sharers::default(), Publisher::default());
            loop {
                edges.timer.sleep(Duration::from_secs(INTERVAL_SECONDS)).await;
                let _ = publisher.publish(&pool, &own, summary.as_deref()).await;
                if let Some((rank, replicas)) = sharers.read(&pool, &own.id).await {
                    limiter.set_share(Share::new(rank, replicas).expect("it is one of them"));
                }
            }
        });
    }

    /// Loads these rules.
    pub fn load(&self, limits: &[LimitPlan]) {
        let mut text = rules_text(limits);
        text.push_str(&self.budgets);
        let text = text.into_bytes();
        let files = vec![SourceFile { name: "simulated.yaml".to_owned(), text }];
        let reading = || Reading { files, diagnostics: Vec::new() };
        self.source.reload_by(&"the plan", reading, self.clock.now());
        assert!(self.source.state().is_current, "{:?}", self.source.state());
    }

    /// What the main thread of the service does each second.
    fn maintain(&self, cache: Option<Arc<OverLimitCache>>) {
        let (store, limiter, stats) = (self.store.clone(), self.limiter.clone(), self.stats.clone());
        let edges = self.edges.clone();
        self.edges.start(async move {
            let mut second = Interval::new(&*edges.timer, Duration::from_secs(1));
            loop {
                second.tick().await;
                let now = edges.clock.now();
                store.maintain(now);
                limiter.maintain(now);
                stats.maintain(now);
                if let Some(cache) = &cache {
                    cache.maintain(now);
                }
            }
        });
    }

    /// True once it was connected to Redis: health checks send it requests from then on.
    pub fn is_ready(&self) -> bool {
        self.was_ready.load(Relaxed) || {
            let is_ready = self.store.is_reachable();
            self.was_ready.store(is_ready, Relaxed);
            is_ready
        }
    }

    /// True if Envoys may open streams.
    pub fn accepts_streams(&self) -> bool {
        self.is_ready() && !self.is_draining
    }

    /// True if it has run for long enough to have read the overrides.
    pub fn is_settled(&self, now: Micros) -> bool {
        now > self.started + 3 * SECOND && !self.is_draining
    }

    /// Ends as by SIGTERM: returns the leases.
    pub fn terminate(&mut self) {
        self.is_draining = true;
        let (store, is_closed, edges) = (self.store.clone(), self.is_closed.clone(), self.edges.clone());
        let (limiter, has_dropped) = (self.limiter.clone(), self.has_dropped_queue.clone());
        self.edges.start(async move {
            edges.timer.sleep(Duration::from_millis(100)).await;
            let until = edges.timer.now() + DRAIN;
            limiter.drain_holds(&*edges.timer, until).await;
            let has_time = edges.timer.now() < until;
            has_dropped.store(has_time && limiter.queued_closings() > 0, Relaxed);
            store.close().await;
            is_closed.store(true, Relaxed);
        });
    }
}

fn settings(plan: &Plan) -> Redis {
    let main = RedisPool {
        servers: plan.topology.settings(),
        credentials: None,
        database: 0,
        tls: None,
        connections: 1,
        timeout: Duration::from_micros(plan.timeout),
        connect_timeout: Duration::from_secs(1),
        pipeline_window: Duration::ZERO,
        max_queued: 10_000,
    };
    let startup = Startup {
        initial_interval: Duration::from_millis(100),
        max_interval: Duration::from_secs(1),
        give_up_after: None,
    };
    Redis { main, per_second: None, unhealthy_without: false, startup }
}

/// The store of a replica. Remembers whether it has failed, by which answers of the failure policy are known.
pub struct Watched {
    store: LeasedStore,
    failed: Mutex<Option<StoreError>>,
}

impl Watched {
    /// Why the store has failed since the last call.
    pub fn take_failed(&self) -> Option<StoreError> {
        self.failed.lock().expect("nothing panics with it").take()
    }
}

impl Count for Watched {
    fn try_apply(&self, batch: &mut Batch, now: Time) -> Applied {
        self.store.try_apply(batch, now)
    }

    fn known(&self, check: &Check, now: Time) -> Option<u64> {
        self.store.known(check, now)
    }

    fn apply<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        let applied = self.store.apply(batch, now);
        Box::pin(async move {
            let applied = applied.await;
            // The answer is made before another request is polled.
            *self.failed.lock().expect("nothing panics with it") = applied.as_ref().err().cloned();
            applied
        })
    }
}

impl KeepHolds for Watched {
    fn slots_of_holds(&self, batch: &Batch) -> SmallVec<[u16; 2]> {
        self.store.slots_of_holds(batch)
    }

    fn close_holds<'a>(&'a self, closing: &'a mut Closing, now: Time) -> StoreFuture<'a> {
        self.store.close_holds(closing, now)
    }

    fn try_close_holds(&self, closing: &Closing, now: Time) -> Applied {
        self.store.try_close_holds(closing, now)
    }

    fn open_holds(&self) -> u64 {
        self.store.open_holds()
    }

    fn sweep_holds<'a>(&'a self, account: &'a HoldAccount, now: Time) -> SweepFuture<'a> {
        self.store.sweep_holds(account, now)
    }
}

impl Operate for Watched {
    fn reset<'a>(&'a self, batch: &'a mut Batch, now: Time) -> StoreFuture<'a> {
        self.store.reset(batch, now)
    }

    fn forget(&self, resets: &Resets) {
        self.store.forget(resets);
    }

    fn start_worker(&self) {
        self.store.start_worker();
    }

    fn rules_changed(&self, hold: bool) {
        self.store.rules_changed(hold);
    }

    fn maintain(&self, now: Time) {
        self.store.maintain(now);
    }

    fn close(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.store.close()
    }
}

impl Report for Watched {
    fn leases(&self) -> Option<LeaseUsage<'_>> {
        self.store.leases()
    }

    fn is_reachable(&self) -> bool {
        self.store.is_reachable()
    }

    fn pools(&self) -> Vec<PoolUsage> {
        self.store.pools()
    }
}
