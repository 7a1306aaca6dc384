//! Every sample, in the order of the page, and the page that Prometheus scrapes.
//!
//! Called for each scrape and each flush to statsd. It reads the counters while others add to them; a lookup of a known
//! name waits for none of its locks.

use std::{sync::Arc, time::Duration};

use super::{
    Exposition, Stats,
    gauges::{Gauges, LocalCacheGauges, OverrideGauges, RulesGauges, SpanGauges, TlsGauges, XdsGauges},
    labels::Labels,
    names::{self, Metric, MetricType, RuleCounter},
    page::{Page, Samples, Value},
    rule::RuleStats,
    service::{ConnectionClosed, ConnectionRefused, Method, PeerError, Port, RejectReason, ServiceStats},
};
use crate::logs;
use containment::panics;
use rules::OnStoreFailure;
use store::{FailureReason, LeaseUsage, PoolUsage, StoreKind, StoreUsage};

/// The `Content-Type` of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Stats {
    /// The page that Prometheus scrapes: the counters, and the state of other modules.
    ///
    /// Its cost grows with the number of series, so it is not for a thread that answers requests.
    #[must_use]
    pub fn render(&self, gauges: &Gauges) -> String {
        let in_milliseconds = match &self.exposition {
            Exposition::Mapped(mapped) => return mapped.render(self, gauges),
            Exposition::Own { in_milliseconds } => *in_milliseconds,
        };
        let mut page = Page { in_milliseconds, ..Page::default() };
        rules(&mut page, self);
        self.samples(gauges, &mut |metric, labels, value| page.sample(metric, labels, value));
        page.text
    }

    /// Every sample but those of the rules' statsd counters.
    pub fn samples(&self, gauges: &Gauges, take: &mut dyn FnMut(&Metric, &[&str], Value<'_>)) {
        let samples = &mut Samples(take);
        let service_stats = &self.service;
        domains(samples, self);
        service(samples, service_stats);
        gauges.local_cache.iter().for_each(|cache| local_cache(samples, cache));
        pools(samples, &gauges.pools);
        gauges.leases.iter().for_each(|usage| leases(samples, usage));
        store_failures(samples, service_stats);
        requests(samples, self);
        rule_hits(samples, self);
        program(samples, self.commit);
        bounds(samples, self);
        samples.values(&names::ADMIN_CHANGES, service_stats.admin_changes.totals());
        if let Some((lines, dropped)) = gauges.decision_log {
            samples.value(&names::DECISION_LOG_LINES, lines);
            samples.value(&names::DECISION_LOG_DROPPED, dropped);
        }
        let top = gauges.top_refused.iter();
        let top = top.map(|key| ([&*key.domain, &*key.rule, &*key.descriptor], key.hits));
        samples.values(&names::TOP_REFUSED, top);
        gauges.tls.iter().for_each(|gauges| tls(samples, gauges));
        gauges.spans.iter().for_each(|one| spans(samples, one));
        gauges.rules.iter().for_each(|rules| rules_state(samples, rules));
        gauges.xds.iter().for_each(|control_plane| xds(samples, control_plane));
        gauges.store.iter().for_each(|counters| store(samples, counters));
        gauges.overrides.iter().for_each(|one| overrides(samples, one));
        samples.values(&names::REPLICAS, gauges.replicas.iter().map(|(hash, n)| ([hash.as_str()], *n)));
        series(samples, self);
        #[cfg(target_os = "linux")]
        process(samples, &self.process);
    }
}

/// The metrics of the process. The collector cuts off the fraction of its CPU seconds.
#[cfg(target_os = "linux")]
fn process(samples: &mut Samples<'_>, collector: &::prometheus::process_collector::ProcessCollector) {
    use ::prometheus::core::Collector as _;
    for family in collector.collect() {
        let metric = names::PROCESS.iter().find(|metric| metric.name == family.name());
        for (metric, sample) in metric.into_iter().zip(family.get_metric()) {
            let value = match metric.kind {
                MetricType::Counter => cpu_seconds().unwrap_or_else(|| sample.get_counter().get_value()),
                _ => sample.get_gauge().get_value(),
            };
            samples.value(metric, value);
        }
    }
}

#[cfg(target_os = "linux")]
fn cpu_seconds() -> Option<f64> {
    let stat = procfs::process::Process::myself().and_then(|process| process.stat()).ok()?;
    let millis = (stat.utime + stat.stime) * 1_000;
    Some(Duration::from_millis(millis.checked_div(procfs::ticks_per_second())?).as_secs_f64())
}

pub(super) const RULE_METRICS: [&Metric; RuleCounter::ALL.len()] = [
    &names::TOTAL_HITS,
    &names::OVER_LIMIT,
    &names::NEAR_LIMIT,
    &names::WITHIN_LIMIT,
    &names::OVER_LIMIT_WITH_LOCAL_CACHE,
    &names::SHADOW_MODE,
];

fn rules(page: &mut Page, stats: &Stats) {
    let totals = stats.registry.totals();
    for (counter, metric) in RuleCounter::ALL.into_iter().zip(RULE_METRICS) {
        for (labels, sums) in &totals {
            let n = shown(counter, labels, &sums.counts);
            // A series named by a caller's value appears with its first hit.
            if sums.is_of_rules || n > 0 {
                let Labels { domain, key1, key2 } = labels;
                let values = [domain, key1, key2.as_deref().unwrap_or("")];
                page.sample(metric, &values[..if key2.is_some() { 3 } else { 2 }], n.into());
            }
        }
    }
}

/// The value of a series from its rules' counts.
///
/// The Go service's mapping counts the `over_limit_with_local_cache` of a rule with a second key as `over_limit` too,
/// because its pattern does not match the end of the name. So hits rejected by the local cache count twice there, and
/// here, for those who compare replicas of both services.
fn shown(counter: RuleCounter, labels: &Labels, counts: &[u64; RuleCounter::ALL.len()]) -> u64 {
    let own = counts[counter as usize];
    if counter == RuleCounter::OverLimit && labels.key2.is_some() {
        own.saturating_add(counts[RuleCounter::OverLimitWithLocalCache as usize])
    } else {
        own
    }
}

fn domains(samples: &mut Samples<'_>, stats: &Stats) {
    let unknown = stats.unknown_domains.totals();
    samples.values(&names::DOMAIN_NOT_FOUND, unknown.iter().map(|(domain, n)| ([domain.as_str()], *n)));
}

fn requests(samples: &mut Samples<'_>, stats: &Stats) {
    let totals = stats.domains.totals();
    samples.values(&names::REQUESTS, totals.iter().map(|(domain, code, n)| ([&**domain, code.name()], *n)));
}

/// The outcomes of hits, and their numbers from the counters.
const OUTCOMES: [&str; 3] = ["allowed", "over_limit", "shadow"];

fn outcomes(counts: &[u64; RuleCounter::ALL.len()]) -> [u64; OUTCOMES.len()] {
    let [_, over, _, within, _, shadow] = *counts;
    // The Go service counts hits that shadow mode allows as over the limit too.
    [within, over.saturating_sub(shadow), shadow]
}

/// The hits of every rule by its full path. Current rules are shown from the start if all of their series are at most
/// `METRICS_MAX_SERIES`; otherwise, and for names that callers make, a series appears with its first hit.
fn rule_hits(samples: &mut Samples<'_>, stats: &Stats) {
    let idle = stats.idle_in_service();
    let mut show = |rule: &RuleStats, counts| {
        let (domain, path) = rule.path();
        for (outcome, n) in OUTCOMES.into_iter().zip(outcomes(&counts)) {
            if n > 0 || !rule.is_of_caller() {
                samples.values(&names::RULE_HITS, [([domain, path, outcome], n)]);
            }
        }
    };
    for rule in &idle {
        show(rule, rule.counts().unwrap_or_default());
    }
    stats.for_each_rule(|rule, counts| {
        // It may have counted for the first time since.
        if idle.binary_search_by_key(&std::ptr::from_ref(rule), Arc::as_ptr).is_err() {
            show(rule, counts);
        }
    });
}

fn service(samples: &mut Samples<'_>, service: &ServiceStats) {
    let errors =
        [(["redis_error"], service.redis_error.get()), (["service_error"], service.service_error.get())];
    samples.values(&names::SHOULD_RATE_LIMIT_ERROR, errors);
    let requests = Method::ALL.map(|method| ([method.name()], service.requests(method).get()));
    samples.values(&names::TOTAL_REQUESTS, requests);
    let times = Method::ALL.map(|method| (method.name(), service.response_time(method).snapshot()));
    let times = times.iter().map(|(method, times)| ([*method], Value::Times(times)));
    samples.values(&names::RESPONSE_TIME, times);
    samples.value(&names::GLOBAL_SHADOW_MODE, service.global_shadow_mode.get());
}

fn local_cache(samples: &mut Samples<'_>, cache: &LocalCacheGauges) {
    samples.value(&names::LOCAL_CACHE_ENTRIES, cache.entries);
    samples.value(&names::LOCAL_CACHE_HITS, cache.hits);
    samples.value(&names::LOCAL_CACHE_MISSES, cache.misses);
    samples.value(&names::LOCAL_CACHE_LOOKUPS, cache.lookups);
    samples.value(&names::LOCAL_CACHE_EXPIRED, cache.expired);
    samples.value(&names::LOCAL_CACHE_EVACUATED, cache.evacuated);
}

fn pools(samples: &mut Samples<'_>, pools: &[PoolUsage]) {
    let (of_memcached, of_redis): (Vec<_>, Vec<_>) =
        pools.iter().partition(|pool| pool.kind == StoreKind::Memcached);
    redis(samples, &of_redis);
    for pool in of_memcached {
        memcached(samples, pool);
    }
}

/// The metrics that the Go service names after each Redis, then those with the label `pool`.
fn redis(samples: &mut Samples<'_>, pools: &[&PoolUsage]) {
    let is_per_second = |pool: &PoolUsage| pool.kind == StoreKind::RedisPerSecond;
    for pool in pools {
        let [active, total, local_close] = if is_per_second(pool) {
            [names::PER_SECOND_POOL_ACTIVE, names::PER_SECOND_POOL_TOTAL, names::PER_SECOND_POOL_LOCAL_CLOSE]
        } else {
            [names::POOL_ACTIVE, names::POOL_TOTAL, names::POOL_LOCAL_CLOSE]
        };
        samples.value(&active, pool.connections);
        samples.value(&total, pool.opened);
        samples.value(&local_close, pool.closed);
    }
    let name = |pool: &PoolUsage| if is_per_second(pool) { "per_second" } else { "main" };
    for (metric, value) in [
        (names::REDIS_RECONNECTS, (|pool| pool.reconnects) as fn(&PoolUsage) -> u64),
        (names::REDIS_BREAKERS_OPEN, |pool| pool.breakers_open),
        (names::REDIS_QUEUED, |pool| pool.queued),
        (names::REDIS_QUEUED_MAX, |pool| pool.max_queued),
        (names::REDIS_OUTSTANDING_MAX, |pool| pool.max_outstanding),
    ] {
        samples.values(&metric, pools.iter().map(|pool| ([name(pool)], value(pool))));
    }
    let shed = pools.iter().flat_map(|pool| pool.shed.iter().map(|(reason, n)| ([name(pool), *reason], *n)));
    samples.values(&names::REDIS_SHED, shed);
    let errors = pools.iter().flat_map(|pool| pool.errors.iter().map(|(kind, n)| ([name(pool), *kind], *n)));
    samples.values(&names::REDIS_ERRORS, errors);
    let denied =
        pools.iter().flat_map(|pool| pool.denied.iter().map(|(command, n)| ([name(pool), *command], *n)));
    samples.values(&names::REDIS_COMMAND_DENIED, denied);
    let lost = pools.iter().map(|pool| ([name(pool)], pool.without_expiry));
    samples.values(&names::REDIS_WITHOUT_EXPIRY, lost);
    let times = pools.iter().map(|pool| ([name(pool)], &pool.operation_time));
    samples.values(&names::REDIS_OPERATION_TIME, times);
    let sizes = pools.iter().map(|pool| ([name(pool)], &pool.batch_size));
    samples.values(&names::REDIS_BATCH_CHECKS, sizes);
}

fn memcached(samples: &mut Samples<'_>, pool: &PoolUsage) {
    samples.value(&names::MEMCACHED_CONNECTIONS, pool.connections);
    samples.value(&names::MEMCACHED_CONNECTIONS_OPENED, pool.opened);
    samples.value(&names::MEMCACHED_RECONNECTS, pool.reconnects);
    samples.value(&names::MEMCACHED_BREAKERS_OPEN, pool.breakers_open);
    samples.value(&names::MEMCACHED_QUEUED, pool.queued);
    samples.value(&names::MEMCACHED_QUEUED_MAX, pool.max_queued);
    samples.value(&names::MEMCACHED_OUTSTANDING_MAX, pool.max_outstanding);
    samples.values(&names::MEMCACHED_SHED, pool.shed.iter().map(|(reason, n)| ([*reason], *n)));
    samples.values(&names::MEMCACHED_ERRORS, pool.errors.iter().map(|(kind, n)| ([*kind], *n)));
    samples.values(&names::MEMCACHED_OPERATION_TIME, [([], &pool.operation_time)]);
    samples.values(&names::MEMCACHED_BATCH_CHECKS, [([], &pool.batch_size)]);
}

fn leases(samples: &mut Samples<'_>, leases: &LeaseUsage) {
    samples.value(&names::LEASE_KEYS, leases.keys);
    samples.value(&names::LEASE_KEYS_MAX, leases.max_keys);
    samples.value(&names::LEASE_HELD, leases.held);
    samples.value(&names::LEASE_HITS, leases.hits);
    samples.value(&names::LEASE_WAITS, leases.waits);
    let grants = [(["granted"], leases.grants), (["refused"], leases.ungranted)];
    samples.values(&names::LEASE_GRANTS, grants);
    samples.value(&names::LEASE_GRANTED, leases.granted);
    samples.value(&names::LEASE_RETURNED, leases.returned);
    samples.value(&names::LEASE_EXPIRED, leases.expired);
    samples.value(&names::LEASE_EVICTIONS, leases.evicted);
}

fn store_failures(samples: &mut Samples<'_>, service: &ServiceStats) {
    let decided = OnStoreFailure::ALL.into_iter().flat_map(|policy| {
        FailureReason::ALL
            .map(|reason| ([policy.name(), reason.name()], service.store_failures(policy, reason).get()))
    });
    samples.values(&names::STORE_FAILURE_DECISIONS, decided);
}

fn program(samples: &mut Samples<'_>, commit: &str) {
    let labels = [env!("CARGO_PKG_VERSION"), commit, std::env::consts::OS, std::env::consts::ARCH];
    samples.values(&names::BUILD_INFO, [(labels, 1.0)]);
}

fn bounds(samples: &mut Samples<'_>, stats: &Stats) {
    let service = &stats.service;
    let refused = RejectReason::ALL.map(|reason| ([reason.name()], service.refused(reason).get()));
    samples.values(&names::REQUESTS_REFUSED, refused);
    samples.values(&names::PANICS, panics::counts().map(|(name, n)| ([name], n)));
    samples.value(&names::LOG_LINES_DROPPED, logs::dropped());
    samples.value(&names::CONNECTIONS_OPEN, service.connections_open());
    samples.value(&names::CONNECTIONS_ACCEPTED, service.connections_accepted.get());
    let refused = Port::ALL.into_iter().flat_map(|port| {
        ConnectionRefused::ALL
            .map(|reason| ([port.name(), reason.name()], service.connections_refused(port, reason).get()))
    });
    samples.values(&names::CONNECTIONS_REFUSED, refused);
    let closed = Port::ALL.into_iter().flat_map(|port| {
        ConnectionClosed::ALL.map(|reason| {
            ([port.name(), reason.name()], service.connections_closed_by_us(port, reason).get())
        })
    });
    samples.values(&names::CONNECTIONS_CLOSED, closed);
    let peer_errors = PeerError::ALL.map(|reason| ([reason.name()], service.peer_errors(reason).get()));
    samples.values(&names::PEER_ERRORS, peer_errors);
}

fn tls(samples: &mut Samples<'_>, tls: &TlsGauges) {
    samples.value(&names::TLS_CERTIFICATE_EXPIRY, tls.certificate_expiry.as_secs());
    samples.value(&names::TLS_RELOAD_ERRORS, tls.reload_errors);
    samples
        .values(&names::TLS_HANDSHAKE_FAILURES, tls.handshake_failures.iter().map(|(name, n)| ([*name], *n)));
}

fn spans(samples: &mut Samples<'_>, spans: &SpanGauges) {
    samples.value(&names::SPANS_EXPORTED, spans.exported);
    samples.values(&names::SPANS_DROPPED, spans.dropped.iter().map(|(reason, n)| ([*reason], *n)));
}

fn rules_state(samples: &mut Samples<'_>, rules: &RulesGauges) {
    samples.value(&names::CONFIG_LOAD_SUCCESS, rules.loads);
    samples.value(&names::CONFIG_LOAD_ERROR, rules.errors);
    if let Some(time) = rules.last_success {
        samples.value(&names::RULES_LAST_SUCCESS, time.as_secs_f64());
    }
    if let Some(time) = rules.last_error {
        samples.value(&names::RULES_LAST_ERROR, time.as_secs_f64());
    }
    samples.value(&names::RULES_LOAD_FAILED, u64::from(rules.load_failed));
    samples.values(&names::RULES_INFO, rules.hash.iter().map(|hash| ([hash.as_str()], 1.0)));
    samples.value(&names::RULES_FILES, rules.files);
    samples.value(&names::RULES_DOMAINS, rules.domains);
    samples.value(&names::RULES, rules.rules);
}

fn xds(samples: &mut Samples<'_>, xds: &XdsGauges) {
    samples.value(&names::XDS_CONNECTED, u64::from(xds.connected));
    samples.value(&names::XDS_RECONNECTS, xds.reconnects);
    samples.value(&names::XDS_UPDATES, xds.updates);
    samples.value(&names::XDS_NACKS, xds.refused);
    samples.values(&names::XDS_VERSION, xds.version.iter().map(|version| ([version.as_str()], 1.0)));
}

fn store(samples: &mut Samples<'_>, StoreUsage { held, max_keys }: &StoreUsage) {
    samples.value(&names::STORE_KEYS, held.entries as u64);
    samples.value(&names::STORE_KEYS_MAX, *max_keys as u64);
    samples.value(&names::STORE_BYTES, held.bytes as u64);
    let within = held.evicted - held.evicted_over;
    let evicted = [("within_limit", within), ("over_limit", held.evicted_over)];
    samples.values(&names::STORE_EVICTIONS, evicted.map(|(counter, n)| ([counter], n)));
    samples.value(&names::STORE_EXPIRED, held.expired);
}

fn overrides(samples: &mut Samples<'_>, overrides: &OverrideGauges) {
    let actions = ["limit", "block", "allow", "shadow"];
    let values = actions.into_iter().zip(overrides.by_action);
    samples.values(&names::OVERRIDES, values.map(|(action, n)| ([action], n)));
    samples.value(&names::OVERRIDES_BYTES, overrides.bytes);
}

fn series(samples: &mut Samples<'_>, stats: &Stats) {
    samples.value(&names::SERIES, stats.room.taken() as u64);
    samples.value(&names::SERIES_MAX, stats.room.max as u64);
    let refused = stats.registry.refused();
    samples.values(&names::SERIES_OVERFLOW, refused.iter().map(|(domain, n)| ([domain.as_str()], *n)));
}
