//! All statistics in Prometheus's text format.
//!
//! Called for each scrape, on whatever thread answers it. It reads the counters while others add to
//! them; of the locks it takes, none is waited for by a look-up of a known name.

use std::sync::Arc;

use ::prometheus::proto::Metric as Sample;

use super::{
    Exposition, Stats,
    gauges::{
        Gauges, LocalCacheGauges, OverrideGauges, RulesGauges, SpanGauges, StoreGauges, TlsGauges, XdsGauges,
    },
    labels::Labels,
    names::{self, Kind, Metric},
    one_of,
    page::{Number as _, Page, count, describe, family, labelled, set},
    rule::{RuleCounter, RuleStats},
    service::{ConnectionClosed, ConnectionRefused, Method, PeerError, Port, RejectReason, ServiceStats},
};
use crate::{
    panics,
    rules::OnStoreFailure,
    store::{FailureReason, LeaseUsage, PoolUsage, StoreKind},
};

/// The commit that the program was built from, `unknown` where the build was given none.
pub const COMMIT: &str = env!("TOLLGATE_COMMIT");

/// What the page is called in HTTP's `Content-Type`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Stats {
    /// The page that Prometheus scrapes: what was counted here, and the present state of other rooms.
    ///
    /// The work grows with the series, so it is not for a thread that answers requests as well.
    #[must_use]
    pub fn render(&self, gauges: &Gauges) -> String {
        let mut page = match &self.exposition {
            Exposition::Mapped(mapped) => return mapped.render(self, gauges),
            Exposition::Own { in_milliseconds } => Page::in_milliseconds(*in_milliseconds),
        };
        rules(&mut page, self);
        others(&mut page, self, gauges);
        page.finish().0
    }

    #[cfg(target_os = "linux")]
    fn process(&self, page: &mut Page) {
        use ::prometheus::core::Collector;
        if page.is_silent() {
            return;
        }
        for mut family in self.process.collect() {
            // The collector cuts off the fraction of a second.
            if let (names::PROCESS_CPU, Some(seconds)) = (family.name(), cpu_seconds()) {
                family.mut_metric().iter_mut().for_each(|sample| set(sample, Kind::Counter, seconds));
            }
            page.family(&family);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn process(&self, _: &mut Page) {}
}

/// The CPU time of this process, user and system.
#[cfg(target_os = "linux")]
fn cpu_seconds() -> Option<f64> {
    let stat = procfs::process::Process::myself().and_then(|process| process.stat()).ok()?;
    Some(stat.utime.saturating_add(stat.stime).float() / procfs::ticks_per_second().float())
}

/// Everything that is not of a rule.
pub(super) fn others(page: &mut Page, stats: &Stats, gauges: &Gauges) {
    domains(page, stats);
    service(page, &stats.service);
    gauges.local_cache.iter().for_each(|cache| local_cache(page, cache));
    pools(page, &gauges.pools);
    gauges.leases.iter().for_each(|usage| leases(page, usage));
    store_failures(page, &stats.service);
    requests(page, stats);
    rule_hits(page, stats);
    program(page);
    bounds(page, stats);
    page.values(&names::ADMIN_CHANGES, stats.admin_changes.totals());
    if let Some((lines, dropped)) = gauges.decision_log {
        page.value(&names::DECISION_LOG_LINES, lines);
        page.value(&names::DECISION_LOG_DROPPED, dropped);
    }
    let top = gauges.top_refused.iter();
    page.values(&names::TOP_REFUSED, top.map(|key| ([&*key.domain, &*key.rule, &*key.descriptor], key.hits)));
    gauges.tls.iter().for_each(|gauges| tls(page, gauges));
    gauges.spans.iter().for_each(|one| spans(page, one));
    gauges.rules.iter().for_each(|rules| rules_state(page, rules));
    gauges.xds.iter().for_each(|control_plane| xds(page, control_plane));
    gauges.store.iter().for_each(|counters| store(page, counters));
    gauges.overrides.iter().for_each(|one| overrides(page, one));
    page.values(&names::REPLICAS, gauges.replicas.iter().map(|(hash, n)| ([hash.as_str()], *n)));
    series(page, stats);
    stats.process(page);
}

/// The metric of each counter of a rule.
pub(super) const fn metric(counter: RuleCounter) -> Metric {
    match counter {
        RuleCounter::TotalHits => names::TOTAL_HITS,
        RuleCounter::OverLimit => names::OVER_LIMIT,
        RuleCounter::NearLimit => names::NEAR_LIMIT,
        RuleCounter::WithinLimit => names::WITHIN_LIMIT,
        RuleCounter::OverLimitWithLocalCache => names::OVER_LIMIT_WITH_LOCAL_CACHE,
        RuleCounter::ShadowMode => names::SHADOW_MODE,
    }
}

/// The six metrics of the rules.
fn rules(page: &mut Page, stats: &Stats) {
    let totals = stats.registry.totals();
    let mut family = family(&names::TOTAL_HITS);
    for counter in RuleCounter::ALL {
        describe(&mut family, &metric(counter));
        let values = totals.iter().map(|(labels, sums)| (labels, sums, shown(counter, labels, &sums.counts)));
        // A series of a caller's value comes with the first thing that it has to show.
        let values = values.filter(|(_, sums, value)| sums.is_of_rules || *value > 0);
        let sample = |(labels, _, value)| {
            let mut sample = rule_sample(labels);
            count(&mut sample, value);
            sample
        };
        family.set_metric(values.map(sample).collect());
        page.family(&family);
    }
}

fn rule_sample(labels: &Labels) -> Sample {
    let Labels { domain, key1, key2 } = labels;
    match key2 {
        Some(key2) => labelled(&names::TOTAL_HITS, &[domain, key1, key2]),
        None => labelled(&names::TOTAL_HITS, &[domain, key1]),
    }
}

/// What a series shows of its rules' counts.
///
/// The Go service's mapping takes the `over_limit_with_local_cache` of a rule with a second key for an
/// `over_limit` too, because its pattern does not end where the name does. So the hits that the local
/// cache refused stand there twice, and whoever compares replicas of the two services sees that sum.
fn shown(counter: RuleCounter, labels: &Labels, counts: &[u64; RuleCounter::ALL.len()]) -> u64 {
    let own = *one_of(counts, counter as usize);
    if counter == RuleCounter::OverLimit && labels.key2.is_some() {
        own.saturating_add(*one_of(counts, RuleCounter::OverLimitWithLocalCache as usize))
    } else {
        own
    }
}

fn domains(page: &mut Page, stats: &Stats) {
    let unknown = stats.unknown_domains.totals();
    page.values(&names::DOMAIN_NOT_FOUND, unknown.iter().map(|(domain, n)| ([domain.as_str()], *n)));
}

fn requests(page: &mut Page, stats: &Stats) {
    let totals = stats.domains.totals();
    page.values(&names::REQUESTS, totals.iter().map(|(domain, code, n)| ([&**domain, code.name()], *n)));
}

/// What a hit came to, and the counters that say how many did.
const OUTCOMES: [&str; 3] = ["allowed", "over_limit", "shadow"];

fn outcomes(counts: &[u64; RuleCounter::ALL.len()]) -> [u64; OUTCOMES.len()] {
    let [_, over, _, within, _, shadow] = *counts;
    // The Go service counts what shadow mode allows as over the limit too.
    [within, over.saturating_sub(shadow), shadow]
}

/// The hits of every rule by its whole path. Rules in service are there from the start, as long as all of their
/// series together are no more than `METRICS_MAX_SERIES`; beyond that, and for names that callers make, a series
/// comes with its first hit.
fn rule_hits(page: &mut Page, stats: &Stats) {
    let idle = stats.idle_in_service();
    page.stream(&names::RULE_HITS, |write| {
        let mut show = |rule: &RuleStats, counts| {
            let (domain, path) = rule.path();
            for (outcome, n) in OUTCOMES.into_iter().zip(outcomes(&counts)) {
                if n > 0 || !rule.is_of_caller() {
                    write([domain, path, outcome], n);
                }
            }
        };
        for rule in &idle {
            show(rule, rule.counts().unwrap_or_default());
        }
        stats.for_each_rule(|rule, counts| {
            // One may count for the first time meanwhile.
            if idle.binary_search_by_key(&std::ptr::from_ref(rule), Arc::as_ptr).is_err() {
                show(rule, counts);
            }
        });
    });
}

fn service(page: &mut Page, service: &ServiceStats) {
    let errors =
        [(["redis_error"], service.redis_error.get()), (["service_error"], service.service_error.get())];
    page.values(&names::SHOULD_RATE_LIMIT_ERROR, errors);
    let requests = Method::ALL.map(|method| ([method.name()], service.requests(method).get()));
    page.values(&names::TOTAL_REQUESTS, requests);
    let times = Method::ALL.map(|method| ([method.name()], service.response_time(method).snapshot()));
    page.times(&names::RESPONSE_TIME, times);
    page.value(&names::GLOBAL_SHADOW_MODE, service.global_shadow_mode.get());
}

fn local_cache(page: &mut Page, cache: &LocalCacheGauges) {
    page.value(&names::LOCAL_CACHE_ENTRIES, cache.entries);
    page.value(&names::LOCAL_CACHE_HITS, cache.hits);
    page.value(&names::LOCAL_CACHE_MISSES, cache.misses);
    page.value(&names::LOCAL_CACHE_LOOKUPS, cache.lookups);
    page.value(&names::LOCAL_CACHE_EXPIRED, cache.expired);
    page.value(&names::LOCAL_CACHE_EVACUATED, cache.evacuated);
}

fn pools(page: &mut Page, pools: &[PoolUsage]) {
    let (of_memcached, of_redis): (Vec<_>, Vec<_>) =
        pools.iter().partition(|pool| pool.kind == StoreKind::Memcached);
    redis(page, &of_redis);
    for pool in of_memcached {
        memcached(page, pool);
    }
}

/// The metrics that the Go service names by Redis, then those with the label `pool`.
fn redis(page: &mut Page, pools: &[&PoolUsage]) {
    let is_per_second = |pool: &PoolUsage| pool.kind == StoreKind::RedisPerSecond;
    for pool in pools {
        let [active, total, local_close] = if is_per_second(pool) {
            [names::PER_SECOND_POOL_ACTIVE, names::PER_SECOND_POOL_TOTAL, names::PER_SECOND_POOL_LOCAL_CLOSE]
        } else {
            [names::POOL_ACTIVE, names::POOL_TOTAL, names::POOL_LOCAL_CLOSE]
        };
        page.value(&active, pool.connections);
        page.value(&total, pool.opened);
        page.value(&local_close, pool.closed);
    }
    let name = |pool: &PoolUsage| if is_per_second(pool) { "per_second" } else { "main" };
    for (metric, value) in [
        (names::REDIS_RECONNECTS, (|pool| pool.reconnects) as fn(&PoolUsage) -> u64),
        (names::REDIS_BREAKERS_OPEN, |pool| pool.breakers_open),
        (names::REDIS_QUEUED, |pool| pool.queued),
        (names::REDIS_QUEUED_MAX, |pool| pool.max_queued),
        (names::REDIS_OUTSTANDING_MAX, |pool| pool.max_outstanding),
    ] {
        page.values(&metric, pools.iter().map(|pool| ([name(pool)], value(pool))));
    }
    let shed = pools.iter().flat_map(|pool| pool.shed.iter().map(|(reason, n)| ([name(pool), *reason], *n)));
    page.values(&names::REDIS_SHED, shed);
    let errors = pools.iter().flat_map(|pool| pool.errors.iter().map(|(kind, n)| ([name(pool), *kind], *n)));
    page.values(&names::REDIS_ERRORS, errors);
    let denied =
        pools.iter().flat_map(|pool| pool.denied.iter().map(|(command, n)| ([name(pool), *command], *n)));
    page.values(&names::REDIS_COMMAND_DENIED, denied);
    let lost = pools.iter().map(|pool| ([name(pool)], pool.without_expiry));
    page.values(&names::REDIS_WITHOUT_EXPIRY, lost);
    let times = pools.iter().map(|pool| ([name(pool)], pool.operation_time.clone()));
    page.histograms(&names::REDIS_OPERATION_TIME, times);
    let sizes = pools.iter().map(|pool| ([name(pool)], pool.batch_size.clone()));
    page.histograms(&names::REDIS_BATCH_CHECKS, sizes);
}

fn memcached(page: &mut Page, pool: &PoolUsage) {
    page.value(&names::MEMCACHED_CONNECTIONS, pool.connections);
    page.value(&names::MEMCACHED_CONNECTIONS_OPENED, pool.opened);
    page.value(&names::MEMCACHED_RECONNECTS, pool.reconnects);
    page.value(&names::MEMCACHED_BREAKERS_OPEN, pool.breakers_open);
    page.value(&names::MEMCACHED_QUEUED, pool.queued);
    page.value(&names::MEMCACHED_QUEUED_MAX, pool.max_queued);
    page.value(&names::MEMCACHED_OUTSTANDING_MAX, pool.max_outstanding);
    page.values(&names::MEMCACHED_SHED, pool.shed.iter().map(|(reason, n)| ([*reason], *n)));
    page.values(&names::MEMCACHED_ERRORS, pool.errors.iter().map(|(kind, n)| ([*kind], *n)));
    page.histograms(&names::MEMCACHED_OPERATION_TIME, [([], pool.operation_time.clone())]);
    page.histograms(&names::MEMCACHED_BATCH_CHECKS, [([], pool.batch_size.clone())]);
}

fn leases(page: &mut Page, leases: &LeaseUsage) {
    page.value(&names::LEASE_KEYS, leases.keys);
    page.value(&names::LEASE_KEYS_MAX, leases.max_keys);
    page.value(&names::LEASE_HELD, leases.held);
    page.value(&names::LEASE_HITS, leases.hits);
    page.value(&names::LEASE_WAITS, leases.waits);
    let grants = [(["granted"], leases.grants), (["refused"], leases.ungranted)];
    page.values(&names::LEASE_GRANTS, grants);
    page.value(&names::LEASE_GRANTED, leases.granted);
    page.value(&names::LEASE_RETURNED, leases.returned);
    page.value(&names::LEASE_EXPIRED, leases.expired);
    page.value(&names::LEASE_EVICTIONS, leases.evicted);
}

fn store_failures(page: &mut Page, service: &ServiceStats) {
    let decided = OnStoreFailure::ALL.into_iter().flat_map(|policy| {
        FailureReason::ALL
            .map(|reason| ([policy.name(), reason.name()], service.store_failures(policy, reason).get()))
    });
    page.values(&names::STORE_FAILURE_DECISIONS, decided);
}

fn program(page: &mut Page) {
    let labels = [env!("CARGO_PKG_VERSION"), COMMIT, std::env::consts::OS, std::env::consts::ARCH];
    page.values(&names::BUILD_INFO, [(labels, 1.0)]);
}

fn bounds(page: &mut Page, stats: &Stats) {
    let service = &stats.service;
    let refused = RejectReason::ALL.map(|reason| ([reason.name()], service.refused(reason).get()));
    page.values(&names::REQUESTS_REFUSED, refused);
    page.values(&names::PANICS, panics::counts().map(|(name, n)| ([name], n)));
    page.value(&names::CONNECTIONS_OPEN, service.connections_open());
    page.value(&names::CONNECTIONS_ACCEPTED, service.connections_accepted.get());
    let refused = Port::ALL.into_iter().flat_map(|port| {
        ConnectionRefused::ALL
            .map(|reason| ([port.name(), reason.name()], service.connections_refused(port, reason).get()))
    });
    page.values(&names::CONNECTIONS_REFUSED, refused);
    let closed = Port::ALL.into_iter().flat_map(|port| {
        ConnectionClosed::ALL.map(|reason| {
            ([port.name(), reason.name()], service.connections_closed_by_us(port, reason).get())
        })
    });
    page.values(&names::CONNECTIONS_CLOSED, closed);
    let peer_errors = PeerError::ALL.map(|reason| ([reason.name()], service.peer_errors(reason).get()));
    page.values(&names::PEER_ERRORS, peer_errors);
}

fn tls(page: &mut Page, tls: &TlsGauges) {
    page.value(&names::TLS_CERTIFICATE_EXPIRY, tls.certificate_expiry.as_secs());
    page.value(&names::TLS_RELOAD_ERRORS, tls.reload_errors);
    page.values(&names::TLS_HANDSHAKE_FAILURES, tls.handshake_failures.iter().map(|(name, n)| ([*name], *n)));
}

fn spans(page: &mut Page, spans: &SpanGauges) {
    page.value(&names::SPANS_EXPORTED, spans.exported);
    page.values(&names::SPANS_DROPPED, spans.dropped.iter().map(|(reason, n)| ([*reason], *n)));
}

fn rules_state(page: &mut Page, rules: &RulesGauges) {
    page.value(&names::CONFIG_LOAD_SUCCESS, rules.loads);
    page.value(&names::CONFIG_LOAD_ERROR, rules.errors);
    if let Some(time) = rules.last_success {
        page.value(&names::RULES_LAST_SUCCESS, time.as_secs_f64());
    }
    if let Some(time) = rules.last_error {
        page.value(&names::RULES_LAST_ERROR, time.as_secs_f64());
    }
    page.value(&names::RULES_LOAD_FAILED, u64::from(rules.load_failed));
    page.values(&names::RULES_INFO, rules.hash.iter().map(|hash| ([hash.as_str()], 1.0)));
    page.value(&names::RULES_FILES, rules.files);
    page.value(&names::RULES_DOMAINS, rules.domains);
    page.value(&names::RULES, rules.rules);
}

fn xds(page: &mut Page, xds: &XdsGauges) {
    page.value(&names::XDS_CONNECTED, u64::from(xds.connected));
    page.value(&names::XDS_RECONNECTS, xds.reconnects);
    page.value(&names::XDS_UPDATES, xds.updates);
    page.value(&names::XDS_NACKS, xds.refused);
    page.values(&names::XDS_VERSION, xds.version.iter().map(|version| ([version.as_str()], 1.0)));
}

fn store(page: &mut Page, store: &StoreGauges) {
    page.value(&names::STORE_KEYS, store.keys);
    page.value(&names::STORE_KEYS_MAX, store.keys_max);
    page.value(&names::STORE_BYTES, store.bytes);
    page.value(&names::STORE_EVICTIONS, store.evictions);
    page.value(&names::STORE_EXPIRED, store.expired);
}

fn overrides(page: &mut Page, overrides: &OverrideGauges) {
    let actions = ["limit", "block", "allow", "shadow"];
    let values = actions.into_iter().zip(overrides.by_action);
    page.values(&names::OVERRIDES, values.map(|(action, n)| ([action], n)));
    page.value(&names::OVERRIDES_BYTES, overrides.bytes);
}

fn series(page: &mut Page, stats: &Stats) {
    page.value(&names::SERIES, stats.room.taken() as u64);
    page.value(&names::SERIES_MAX, stats.room.max() as u64);
    let refused = stats.registry.refused();
    page.values(&names::SERIES_OVERFLOW, refused.iter().map(|(domain, n)| ([domain.as_str()], *n)));
}
