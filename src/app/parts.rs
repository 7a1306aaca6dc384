//! Creates the parts of the application from the settings.

use std::sync::Arc;

use super::{StartError, memory::Budgets, recent, sinks};
use ::memory::MemoryStore;
use ::recent::Recent;
use admin::Tokens;
use clock::{Clock as _, SystemClock};
use counters::{Outages, Store};
use exporters::tracing::Tracer;
use fleet::Fleet;
use leases::LeasedStore;
use limiter::{self, Handles, Limiter, OverLimitCache, RecentRequests, RequestLog, Untold};
use memcached::{MemcachedStore, NameServers, ResetLog};
use metrics::{ShardCount, Stats, StatsOptions, shard};
use net::edges::Edges;
use overrides::{Index, Keeper, progress::Progress};
use redis_store::{CommandPool, RedisStore};
use rlqs::Quotas;
use rules::RuleSet;
use rules_source::{Source, xds};
use server::{grpc, health::Health, tls::Tls};
use settings::{Backend, Bound, Memory, Settings};

/// Follows overrides, resets of counters and other replicas in the store.
#[expect(clippy::large_enum_variant, reason = "there is one")]
pub(super) enum Link {
    Redis { pool: CommandPool, progress: Arc<Progress> },
    Memcached(ResetLog),
}

/// The link to the replicas that share the store.
pub(super) struct Shared {
    pub(super) link: Link,
    /// What this replica gives back, for the others to hear of.
    pub(super) untold: Arc<Untold>,
}

/// The parts that live as long as the application.
pub(super) struct App {
    pub(super) source: Arc<Source<Handles>>,
    /// The state of the subscription, if rules come from a control plane.
    pub(super) xds: Option<Arc<xds::Status>>,
    pub(super) stats: Arc<Stats>,
    pub(super) store: Arc<dyn Store>,
    pub(super) outages: Arc<Outages>,
    pub(super) over_limit: Option<Arc<OverLimitCache>>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) quotas: Arc<Quotas>,
    pub(super) recent: Arc<Recent>,
    /// Records requests, if it is enabled.
    pub(super) request_log: Option<Arc<RequestLog>>,
    /// Keeps the last requests for trials of rules.
    pub(super) recent_requests: Option<Arc<RecentRequests>>,
    /// The maximum number of keys in `tollgate_top_refused_hits`, and in `tollgate_top_shadowed_hits`.
    pub(super) top_keys: usize,
    pub(super) health: Arc<Health>,
    /// TLS on the gRPC port, if it is enabled.
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) tracer: Option<Arc<Tracer>>,
    /// The tokens of the admin API, if it needs one.
    pub(super) tokens: Option<Arc<Tokens>>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) memory: Memory,
    pub(super) budgets: Budgets,
}

/// The parts, and the link to other replicas if something is shared in the store. An error has the reasons of all parts
/// that failed.
pub(super) fn create(settings: &Settings) -> Result<(Arc<App>, Option<Shared>), StartError> {
    let budgets = Budgets::new(&settings.memory);

    // What files, addresses or the system may refuse comes first, and all of it is tried.
    let mut failed = StartError(Vec::new());
    let load = |files| Tls::load(files, budgets.handshakes.clone(), SystemClock.now()).map(Arc::new);
    let tls = settings.grpc_tls.clone().map(load).transpose();
    let tls = failed.gather(tls.map_err(StartError));
    let exposition = failed.gather(sinks::exposition(settings));
    let token_file = settings.admin.as_ref().and_then(|admin| admin.token_file.as_deref());
    let tokens = token_file.map(Tokens::load).transpose();
    let tokens = failed.gather(tokens.map_err(|error| StartError(vec![error])));
    let stored = failed.gather(store(settings).map_err(StartError));
    let tracer = settings.spans.as_ref().map(Tracer::start).transpose();
    let tracer = failed.gather(tracer.map_err(StartError));
    let (Some(tls), Some(exposition), Some(tokens), Some(stored), Some(tracer)) =
        (tls, exposition, tokens, stored, tracer)
    else {
        return Err(failed);
    };
    let Stored { store, keeper, fleet, link } = stored;

    // Statistics. The number of shards is set before the first part that has them.
    shard::set_count(ShardCount::for_workers(settings.server.grpc.workers));
    let options = StatsOptions {
        max_series: settings.metrics.max_series,
        commit: crate::COMMIT,
        shadow_mode: settings.answers.shadow_mode,
    };
    let stats = Arc::new(Stats::new(options).shown(exposition));
    let recent = recent::recent(settings);

    // Rules are published with what counts and notes their hits, so after these. The store hears of them before a request
    // can meet them.
    let source = {
        let store = store.clone();
        let stats = stats.clone();
        let recent = recent.clone();
        let attach = move |rules: &RuleSet| {
            store.rules_changed(rules.hold());
            limiter::handles(rules, &stats, recent.rules(rules))
        };
        Arc::new(Source::new(settings::compile_options(settings), attach))
    };

    // The limiter reads all of the above with each request.
    let cache_bytes = settings.store.local_cache_bytes;
    let over_limit = (cache_bytes > 0).then(|| Arc::new(OverLimitCache::new(cache_bytes)));
    let mut limiter = Limiter::new(
        settings::policy(settings),
        source.clone(),
        store.clone(),
        over_limit.clone(),
        stats.clone(),
        Arc::new(SystemClock),
    )
    .with_holds(limiter::system_chance(), settings.store.max_holds_queued)
    .with_overrides(keeper.index().clone())
    .owing(Edges::system().spawn);
    let shared = link.map(|link| Shared { link, untold: Arc::default() });
    if let Some(shared) = &shared {
        limiter = limiter.telling(shared.untold.clone());
    }
    if fleet.publishes() || recent::is_wanted(settings) {
        limiter = limiter.with_recent(recent.clone());
    }
    let request_log = recent::request_log(settings);
    let recent_requests = recent::recent_requests(settings);
    if let Some(log) = request_log.clone() {
        limiter = limiter.with_observer(log);
    }
    if let Some(recent) = recent_requests.clone() {
        limiter = limiter.with_observer(recent);
    }
    let limiter = Arc::new(limiter);

    let app = App {
        stats,
        source,
        xds: settings.control_plane.as_ref().map(|_| Arc::default()),
        store,
        outages: Arc::default(),
        over_limit,
        quotas: Quotas::new(limiter.clone(), Edges::system(), settings.quota()),
        limiter,
        recent,
        request_log,
        recent_requests,
        top_keys: settings.decisions.metrics_top_keys,
        health: Arc::default(),
        tls,
        tracer,
        tokens: tokens.map(Arc::new),
        keeper: Arc::new(keeper),
        fleet: Arc::new(fleet),
        memory: settings.memory.clone(),
        budgets,
    };
    Ok((Arc::new(app), shared))
}

/// What is kept in the store, or beside it.
struct Stored {
    store: Arc<dyn Store>,
    keeper: Keeper,
    fleet: Fleet,
    /// To the other replicas, if overrides and resets are shared with them.
    link: Option<Link>,
}

/// Overrides are in Redis if they are shared, else in a file or in this process.
fn store(settings: &Settings) -> Result<Stored, Vec<String>> {
    let jitter = settings.store.expiration_jitter_max.as_secs();
    let workers = settings.server.grpc.workers;
    let is_shared = settings.overrides.replica_sync;
    let index = Arc::new(Index::default().showing(settings.decisions.key_values));
    let edges = Edges::system();
    let file = settings.overrides.file.as_deref();
    let most_overrides = settings.memory.amount(Bound::Overrides);
    // The keeper of overrides that are not in Redis.
    let local_keeper = |resets| {
        Keeper::local(Arc::clone(&index), file, resets, &edges).map(|keeper| keeper.at_most(most_overrides))
    };
    match &settings.backend {
        Backend::Memory => {
            let store = MemoryStore::new(settings.store.max_keys).holding(settings.store.holds);
            let keeper = local_keeper(None)?;
            Ok(Stored { store: Arc::new(store), keeper, fleet: Fleet::alone(file), link: None })
        }
        Backend::Redis(redis) => {
            let store = RedisStore::new(redis, &settings.store.key_prefix, jitter, workers, &edges)?;
            let store = store.holding(settings.store.holds);
            store.watch();
            // Each thread that follows Redis has its own connections.
            let pool = || store.command_pool();
            let (keeper, fleet, link) = if is_shared {
                let progress = Arc::<Progress>::default();
                let keeper = Keeper::in_redis(Arc::clone(&index), pool(), progress.clone());
                let fleet = Fleet::shared(pool(), settings.overrides.replica_summaries);
                (keeper.at_most(most_overrides), fleet, Some(Link::Redis { pool: pool(), progress }))
            } else {
                (local_keeper(None)?, Fleet::alone(file), None)
            };
            let store = Arc::new(LeasedStore::new(store, settings.store.max_leases));
            Ok(Stored { store, keeper, fleet, link })
        }
        Backend::Memcached(memcached) => {
            let store = MemcachedStore::new(memcached, jitter, workers, &edges)?;
            store.watch(NameServers::of_system);
            let resets = is_shared.then(|| store.reset_log(&settings.store.key_prefix));
            let keeper = local_keeper(resets.clone())?;
            let link = resets.map(Link::Memcached);
            Ok(Stored { store: Arc::new(store), keeper, fleet: Fleet::alone(file), link })
        }
    }
}

pub(super) fn grpc(app: &App) -> grpc::Parts {
    grpc::Parts {
        limiter: app.limiter.clone(),
        quotas: app.quotas.clone(),
        stats: app.stats.clone(),
        health: app.health.clone(),
        tls: app.tls.clone(),
        tracer: app.tracer.clone(),
        inflight: app.budgets.inflight.clone(),
    }
}
