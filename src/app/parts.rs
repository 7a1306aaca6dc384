//! The parts of the service: created from the settings, and connected.

use std::sync::Arc;

use super::{StartError, recent, rules::compile_options, sinks};
use crate::{
    clock::{Clock, SystemClock},
    limiter::{
        self, Bounds, Handles, HeaderNames, Limiter, MetadataDetail, OverLimitCache, Policy, ResponseOptions,
    },
    overrides::{Keeper, shared::State},
    recent::Recent,
    replicas::Replicas,
    rules::RuleSet,
    rules_source::{Source, xds},
    server::{
        grpc,
        health::Health,
        http::admin::{Admin, Shown},
        tls::Tls,
    },
    settings::{Answers, Backend, GrpcServer, GrpcTls, KeyFormat, Settings},
    store::{
        Store,
        lease::LeasedStore,
        memcached::{MemcachedStore, NameServers, ResetLog},
        memory::MemoryStore,
        redis::{RedisStore, Side},
    },
    telemetry::{
        metrics::{Exposition, ShardCount, Stats, StatsOptions},
        tracing::Tracer,
    },
};

/// The parts that live as long as the service.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) stats: Arc<Stats>,
    pub(super) source: Arc<Source<Handles>>,
    pub(super) xds: Option<Arc<xds::Status>>,
    pub(super) store: Arc<dyn Store>,
    pub(super) over_limit: Option<Arc<OverLimitCache>>,
    pub(super) limiter: Arc<Limiter>,
    pub(super) recent: Arc<Recent>,
    pub(super) health: Arc<Health>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) replicas: Arc<Replicas>,
    shown: Arc<Shown>,
    top_keys: usize,
}

/// What follows the store for everything but counters.
pub(super) enum Link {
    Redis { side: Side, state: Arc<State> },
    Memcached(ResetLog),
}

impl Parts {
    /// The parts, and what follows the store if anything is to be shared there.
    pub(super) fn new(settings: &Settings) -> Result<(Self, Option<Link>), StartError> {
        let Fallible { tls, exposition, store: Counters { store, others }, tracer } =
            Fallible::new(settings)?;
        let (keeper, link) = overrides(settings, others)?;
        let stats = Stats::new(StatsOptions {
            max_series: settings.metrics.max_series,
            shards: ShardCount::for_workers(settings.server.workers),
        });
        let stats = Arc::new(stats.shown(exposition));
        let counters = stats.clone();
        let counted_in = store.clone();
        let recent = recent::recent(settings);
        let noted_in = recent.clone();
        let attach = move |rules: &RuleSet| {
            counted_in.rules_changed(rules);
            limiter::handles(rules, &counters).with_recent(noted_in.rules(rules))
        };
        let source = Arc::new(Source::new(compile_options(settings), attach));
        let cache = settings.store.local_cache_bytes;
        let over_limit = (cache > 0).then(|| Arc::new(OverLimitCache::new(cache)));
        let limiter = Limiter::new(
            policy(settings),
            source.clone(),
            store.clone(),
            over_limit.clone(),
            stats.clone(),
            Arc::new(SystemClock),
        );
        let limiter = limiter.with_overrides(keeper.index().clone());
        let is_noted = recent::is_wanted(settings);
        let limiter = if is_noted { limiter.with_recent(recent.clone()) } else { limiter };
        let limiter = Arc::new(limiter);
        let xds = settings.control_plane.as_ref().map(|_| Arc::default());
        let parts = Self {
            stats,
            source,
            xds,
            store,
            over_limit,
            limiter,
            recent,
            health: Arc::default(),
            tls,
            tracer,
            keeper: Arc::new(keeper),
            replicas: Arc::default(),
            shown: Arc::default(),
            top_keys: settings.decisions.metrics_top_keys,
        };
        Ok((parts, link))
    }

    pub(super) fn grpc(&self) -> grpc::Parts {
        grpc::Parts {
            limiter: self.limiter.clone(),
            stats: self.stats.clone(),
            health: self.health.clone(),
            tls: self.tls.clone(),
            tracer: self.tracer.clone(),
        }
    }

    pub(super) fn admin(&self) -> Admin {
        Admin {
            source: self.source.clone(),
            xds: self.xds.clone(),
            stats: self.stats.clone(),
            store: self.store.clone(),
            over_limit: self.over_limit.clone(),
            limiter: self.limiter.clone(),
            recent: self.recent.clone(),
            top_keys: self.top_keys,
            tls: self.tls.clone(),
            tracer: self.tracer.clone(),
            keeper: self.keeper.clone(),
            replicas: self.replicas.clone(),
            shown: self.shown.clone(),
        }
    }
}

/// The parts that depend on files, any of which may be invalid.
struct Fallible {
    tls: Option<Arc<Tls>>,
    exposition: Exposition,
    store: Counters,
    tracer: Option<Arc<Tracer>>,
}

/// The store of counters, and what shares everything else in it.
struct Counters {
    store: Arc<dyn Store>,
    others: Option<Others>,
}

/// What shares everything but counters with other replicas.
enum Others {
    /// Connections of this thread, and those of the thread that follows Redis.
    Redis([Side; 2]),
    Memcached(ResetLog),
}

impl Fallible {
    /// Creates all of them, or returns every error.
    fn new(settings: &Settings) -> Result<Self, StartError> {
        let mut failed = StartError(Vec::new());
        let tls = failed.gather(tls(settings));
        let exposition = failed.gather(sinks::exposition(settings));
        let store = failed.gather(store(settings));
        let tracer = failed.gather(tracer(settings));
        match (tls, exposition, store, tracer) {
            (Some(tls), Some(exposition), Some(store), Some(tracer)) => {
                Ok(Self { tls, exposition, store, tracer })
            }
            _ => Err(failed),
        }
    }
}

fn tracer(settings: &Settings) -> Result<Option<Arc<Tracer>>, StartError> {
    settings.spans.as_ref().map(Tracer::start).transpose().map_err(StartError)
}

fn store(settings: &Settings) -> Result<Counters, StartError> {
    let jitter = settings.store.expiration_jitter_max.as_secs();
    let workers = settings.server.workers;
    let is_shared = settings.overrides.replica_sync;
    let mut others = None;
    let store: Arc<dyn Store> = match &settings.backend {
        Backend::Memory => Arc::new(MemoryStore::new(settings.store.max_keys)),
        Backend::Redis(redis) => {
            let store =
                RedisStore::new(redis, &settings.store.key_prefix, jitter, workers).map_err(StartError)?;
            store.watch();
            if is_shared {
                let side = || store.side().map_err(StartError);
                others = Some(Others::Redis([side()?, side()?]));
            }
            Arc::new(LeasedStore::new(store, settings.store.max_leases))
        }
        Backend::Memcached(memcached) => {
            let store = MemcachedStore::new(memcached, jitter, workers).map_err(StartError)?;
            store.watch(NameServers::of_system);
            others = is_shared.then(|| Others::Memcached(store.reset_log(&settings.store.key_prefix)));
            Arc::new(store)
        }
    };
    Ok(Counters { store, others })
}

/// The overrides: in Redis where they are shared, else in a file or in this process.
fn overrides(settings: &Settings, others: Option<Others>) -> Result<(Keeper, Option<Link>), StartError> {
    let index = Arc::default();
    let resets = match others {
        Some(Others::Redis([own, side])) => {
            let state = Arc::<State>::default();
            return Ok((Keeper::in_redis(index, own, state.clone()), Some(Link::Redis { side, state })));
        }
        Some(Others::Memcached(resets)) => Some(resets),
        None => None,
    };
    let keeper = match &settings.overrides.file {
        Some(path) => Keeper::in_file(index, path, SystemClock.now()).map_err(StartError)?,
        None => Keeper::in_memory(index),
    };
    Ok(match resets {
        Some(resets) => (keeper.with_resets(resets.clone()), Some(Link::Memcached(resets))),
        None => (keeper, None),
    })
}

/// TLS on the gRPC port, if it is enabled.
fn tls(settings: &Settings) -> Result<Option<Arc<Tls>>, StartError> {
    let load =
        |files: &GrpcTls| Tls::load(files.clone(), SystemClock.now()).map(Arc::new).map_err(StartError);
    settings.grpc_tls.as_ref().map(load).transpose()
}

/// The policy of the limiter by these settings.
pub(crate) fn policy(settings: &Settings) -> Policy {
    Policy {
        bounds: Bounds { descriptors: settings.server.max_descriptors, entries: settings.server.max_entries },
        near_limit_ratio: settings.store.near_limit_ratio,
        key_prefix: settings.store.key_prefix.clone(),
        full_keys: settings.store.key_format == KeyFormat::Unambiguous,
        counting: settings.store.counting,
        stop_when_over: settings.store.stop_when_over,
        shadow_mode: settings.answers.shadow_mode,
        quota_mode: settings.answers.quota_mode,
        response: response_options(&settings.answers),
        on_store_failure: settings.store.on_failure,
        max_local_keys: settings.store.max_keys,
    }
}

fn response_options(answers: &Answers) -> ResponseOptions {
    ResponseOptions {
        headers: answers.headers.then(|| HeaderNames {
            limit: answers.limit_header.as_str().into(),
            remaining: answers.remaining_header.as_str().into(),
            reset: answers.reset_header.as_str().into(),
        }),
        retry_after: answers.retry_after_header.as_deref().map(Arc::from),
        policy_headers: answers.policy_headers,
        over_limit_body: answers.over_limit_body.clone(),
        metadata: match (answers.dynamic_metadata, answers.dynamic_metadata_limits) {
            (_, true) => MetadataDetail::WithLimits,
            (true, false) => MetadataDetail::Plain,
            (false, false) => MetadataDetail::None,
        },
    }
}

pub(super) fn grpc_options(settings: &Settings) -> grpc::Options {
    let server = &settings.server;
    grpc::Options {
        tonic: server.implementation == GrpcServer::Tonic,
        workers: server.workers,
        max_connection_age: server.max_connection_age,
        max_connection_age_grace: server.max_connection_age_grace,
        keepalive_interval: server.keepalive_interval,
        keepalive_timeout: server.keepalive_timeout,
        max_connections: server.max_connections,
        max_connections_per_address: server.max_connections_per_address,
        max_concurrent_streams: server.max_concurrent_streams,
        max_request_bytes: server.max_request_bytes,
        receive_timeout: server.receive_timeout,
        max_inflight_bytes: server.max_inflight_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_in_the_metadata_include_the_plain_metadata() {
        for (plain, limits, expected) in [
            (false, false, MetadataDetail::None),
            (true, false, MetadataDetail::Plain),
            (true, true, MetadataDetail::WithLimits),
            (false, true, MetadataDetail::WithLimits),
        ] {
            let (settings, _) = Settings::read(&|_| None, &|_| false, 1).unwrap();
            let answers =
                Answers { dynamic_metadata: plain, dynamic_metadata_limits: limits, ..settings.answers };
            assert_eq!(response_options(&answers).metadata, expected, "{plain} {limits}");
        }
    }
}
