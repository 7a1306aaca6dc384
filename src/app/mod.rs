//! The whole service: from settings to parts, from parts to ports, until it is told to end.
//!
//! The thread that calls [`serve`] keeps house: probes, pages, metrics, accepting connections, signals.
//! Decisions are made on the workers' threads, rules are read on the watcher's.

mod ports;
mod sinks;

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    runtime,
    sync::watch,
    task::LocalSet,
    time::{MissedTickBehavior, interval},
};
use tracing::info;

use crate::{
    clock::{Clock, SystemClock},
    limiter::{self, Bounds, HeaderNames, Limiter, OverLimitCache, Policy},
    memory,
    rules::RuleSet,
    server::{
        admin::Admin,
        grpc::{self, Workers},
        health::{Health, Part},
        http, json,
    },
    settings::{Backend, Settings},
    shutdown,
    source::{self, RulesDir, Source},
    stats::{Method, RuleStats, ShardCount, Stats, StatsOptions},
    store::{Store, memory::MemoryStore},
};
use ports::Ports;

/// Serves until a signal says to end; then drains and returns.
///
/// # Errors
/// When the service cannot be started. Every port that cannot be bound is told.
pub fn serve(settings: &Settings) -> Result<(), StartError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::runtime)?;
    let result = LocalSet::new().block_on(&runtime, run(settings));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn run(settings: &Settings) -> Result<(), StartError> {
    let signals = shutdown::Signals::new().map_err(StartError::runtime)?;
    let parts = Parts::new(settings)?;
    let ports = Ports::bind(settings)?;
    parts.source.reload(SystemClock.now());
    parts.judge_rules(settings);
    let watcher = source::watch::spawn(parts.source.clone(), SystemClock, source::watch::Pace::default())
        .map_err(StartError::runtime)?;

    let (drain, draining) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let timeout = settings.server.shutdown_timeout;
    let workers = Workers::start(grpc_options(settings), &parts.grpc(), &draining, timeout)
        .map(Arc::new)
        .map_err(StartError::runtime)?;
    ports.announce(settings);
    let accepting = tokio::task::spawn_local(grpc::accept(ports.grpc, workers.clone(), draining));
    serve_pages(settings, &parts, ports.http, ports.debug, ports.metrics, &stopping);
    tokio::task::spawn_local(keep_house(parts.clone(), settings.clone(), stopping));
    let flushing = sinks::start(settings, &parts.stats, parts.admin()).map_err(StartError::runtime)?;

    let signal = signals.wait().await;
    info!(signal, delay = ?settings.server.shutdown_delay, "told to end: not healthy any more");
    parts.health.set(Part::Running, false);
    tokio::time::sleep(settings.server.shutdown_delay).await;
    let _ = drain.send(true);
    let _ = accepting.await;
    // The pages are still served while the workers finish: a probe may want to know.
    let _ = tokio::task::spawn_blocking(move || workers.join()).await;
    let _ = tokio::task::spawn_blocking(move || flushing.finish(LAST_FLUSH)).await;
    let _ = stop.send(true);
    drop(watcher);
    info!("ended");
    Ok(())
}

/// How long the end waits for sinks that are told the rest. Connecting and writing to one that does not
/// answer take no longer, so that more would be waited in vain.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// The parts that live as long as the service.
#[derive(Clone)]
struct Parts {
    stats: Arc<Stats>,
    source: Arc<Source<Vec<Arc<RuleStats>>>>,
    store: Arc<dyn Store>,
    over_limit: Option<Arc<OverLimitCache>>,
    limiter: Arc<Limiter>,
    health: Arc<Health>,
}

impl Parts {
    fn new(settings: &Settings) -> Result<Self, StartError> {
        let stats = Stats::new(StatsOptions {
            max_series: settings.stats.max_series,
            shards: ShardCount::for_workers(settings.server.workers),
        });
        let stats = Arc::new(stats.shown(sinks::exposition(settings)?));
        let rules = &settings.rules;
        let directory = RulesDir {
            root: rules.root.clone(),
            subdirectory: rules.subdirectory.clone(),
            app_directory: rules.app_directory.clone(),
            ignore_dot_files: rules.ignore_dot_files,
        };
        let counters = stats.clone();
        let attach = move |rules: &RuleSet| limiter::handles(rules, &counters);
        let source = Arc::new(Source::new(directory, rules.merge_domains, attach));
        let store: Arc<dyn Store> = match &settings.store.chosen {
            Backend::Memory => Arc::new(MemoryStore::new(settings.store.max_keys)),
            Backend::Redis(_) => Arc::new(MemoryStore::new(settings.store.max_keys)),
        };
        let cache = settings.store.local_cache_bytes;
        let over_limit = (cache > 0).then(|| Arc::new(OverLimitCache::new(cache)));
        let limiter = Arc::new(Limiter::new(
            policy(settings),
            source.clone(),
            store.clone(),
            over_limit.clone(),
            stats.clone(),
            Arc::new(SystemClock),
        ));
        Ok(Self { stats, source, store, over_limit, limiter, health: Arc::default() })
    }

    fn grpc(&self) -> grpc::Parts {
        grpc::Parts { limiter: self.limiter.clone(), stats: self.stats.clone(), health: self.health.clone() }
    }

    fn admin(&self) -> Admin {
        Admin {
            source: self.source.clone(),
            stats: self.stats.clone(),
            store: self.store.clone(),
            over_limit: self.over_limit.clone(),
        }
    }

    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: without rules the service is not healthy.
    fn judge_rules(&self, settings: &Settings) {
        if settings.rules.healthy_with_at_least_one {
            let loaded = self.source.load().as_ref().is_some_and(|served| !served.rules.is_empty());
            self.health.set(Part::Rules, loaded);
        }
    }
}

fn policy(settings: &Settings) -> Policy {
    Policy {
        bounds: Bounds { descriptors: settings.server.max_descriptors, entries: settings.server.max_entries },
        near_limit_ratio: settings.store.near_limit_ratio,
        key_prefix: settings.store.key_prefix.clone(),
        stop_when_over: settings.store.stop_when_over,
        shadow_mode: settings.answers.shadow_mode,
        quota_mode: settings.answers.quota_mode,
        headers: settings.answers.headers.as_ref().map(|names| HeaderNames {
            limit: names.limit.as_str().into(),
            remaining: names.remaining.as_str().into(),
            reset: names.reset.as_str().into(),
        }),
        dynamic_metadata: settings.answers.dynamic_metadata,
    }
}

fn grpc_options(settings: &Settings) -> grpc::Options {
    let server = &settings.server;
    grpc::Options {
        workers: server.workers,
        max_connection_age: server.max_connection_age,
        max_connection_age_grace: server.max_connection_age_grace,
        keepalive_interval: server.keepalive_interval,
        keepalive_timeout: server.keepalive_timeout,
        max_connections: server.max_connections,
        max_concurrent_streams: server.max_concurrent_streams,
        max_request_bytes: server.max_request_bytes,
    }
}

fn serve_pages(
    settings: &Settings,
    parts: &Parts,
    main: TcpListener,
    debug: TcpListener,
    metrics: Option<TcpListener>,
    stop: &watch::Receiver<bool>,
) {
    let (limiter, health) = (parts.limiter.clone(), parts.health.clone());
    let most = settings.server.max_request_bytes;
    let questions = move |request| json::answer(request, limiter.clone(), health.clone(), most);
    tokio::task::spawn_local(http::serve(main, questions, stop.clone()));
    let admin = parts.admin();
    tokio::task::spawn_local(http::serve(debug, move |request| admin.clone().page(request), stop.clone()));
    if let (Some(listener), Some(prometheus)) = (metrics, &settings.stats.prometheus) {
        let (admin, path) = (parts.admin(), Arc::<str>::from(prometheus.path.as_str()));
        let page = move |request| admin.clone().metrics(request, path.clone());
        tokio::task::spawn_local(http::serve(listener, page, stop.clone()));
    }
}

/// What is to be done from time to time.
async fn keep_house(parts: Parts, settings: Settings, mut stop: watch::Receiver<bool>) {
    let mut last_answered = 0;
    let mut sweep = interval(Duration::from_secs(1));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = interval(Duration::from_millis(100));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = look.tick() => parts.judge_rules(&settings),
            _ = sweep.tick() => {
                let now = SystemClock.now();
                parts.store.maintain(now);
                if let Some(cache) = &parts.over_limit {
                    cache.maintain(now);
                }
                let answered = parts.stats.service().requests(Method::ShouldRateLimit).get();
                if std::mem::replace(&mut last_answered, answered) == answered {
                    memory::give_back();
                }
            }
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Why the service did not start, a line for each reason.
#[derive(Debug)]
pub struct StartError(Vec<String>);

impl StartError {
    #[expect(clippy::needless_pass_by_value, reason = "the form that map_err calls")]
    fn runtime(error: io::Error) -> Self {
        Self(vec![format!("the system grants too little to start: {error}")])
    }

    /// The reasons.
    #[must_use]
    pub fn reasons(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Error for StartError {}
