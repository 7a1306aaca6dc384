//! The gauges of the metrics: the state of all parts, read when the metrics are rendered or sent.

mod limits;

use std::{cmp::Reverse, sync::Arc, time::Duration};

use self::limits::RuleLimit;
use super::{memory, parts::App};
use admin::MemoryUse;
use clock::{Clock, SystemClock, Time};
use exporters::tracing::{Counts, Dropped};
use limiter::{CacheUsage, Served};
use metrics::{LeaseUsage, PoolUsage, Samples, StoreUsage, names};
use overrides::{Action, Usage};
use recent::{DecisionLog, TopKey};
use rules_source::{ReloadState, xds};
use server::tls::TlsUsage;

/// The labels and the hits of keys.
type TopSeries = Vec<([String; 3], u64)>;

/// The state of the parts that do not count in the statistics. Absent values are not shown.
#[derive(Default)]
pub(super) struct Gauges<'a> {
    local_cache: Option<CacheUsage>,
    /// The connections to each Redis, or to all servers of memcached.
    pools: Vec<PoolUsage>,
    leases: Option<LeaseUsage>,
    /// Lines of the decision log, and dropped decisions.
    decision_log: Option<(u64, u64)>,
    /// Recorded requests, and dropped ones.
    request_log: Option<(u64, u64)>,
    /// The domain, the rule and the descriptor of the keys with the most refused and the most shadowed hits.
    top: [TopSeries; 2],
    tls: Option<TlsUsage>,
    spans: Option<&'a Counts>,
    rules: ReloadState,
    xds: Option<xds::SubscriptionState>,
    store: Option<StoreUsage>,
    overrides: Usage,
    limits: Vec<RuleLimit>,
    /// The open holds, and the settles and ends that the store has not taken.
    holds: (u64, u64),
    /// The limit of the memory, and the use of its parts.
    memory: (usize, Vec<MemoryUse>),
}

impl App {
    pub(super) fn gauges(&self) -> Gauges<'_> {
        Gauges {
            local_cache: self.over_limit.as_ref().map(|cache| cache.usage()),
            pools: self.store.pools(),
            leases: self.store.leases(),
            decision_log: self.recent.log().map(DecisionLog::counts),
            request_log: self.request_log.as_ref().map(|log| log.counts()),
            top: self.top(),
            tls: self.tls.as_ref().map(|tls| tls.usage()),
            spans: self.tracer.as_ref().map(|tracer| tracer.counts()),
            rules: self.source.state(),
            xds: self.xds.as_ref().map(|status| status.state()),
            store: self.store.usage().or_else(|| self.limiter.local_usage()),
            overrides: self.keeper.index().usage(),
            limits: self.limits(),
            holds: (self.limiter.open_holds(), self.limiter.queued_closings() as u64),
            memory: (self.memory.limit, self.memory_use()),
        }
    }

    fn limits(&self) -> Vec<RuleLimit> {
        let served = self.source.current();
        let in_force = |served: Arc<Served>| {
            let (index, most) = (self.keeper.index(), self.stats.max_series());
            limits::in_force(&served.rules, index, SystemClock.now(), most)
        };
        served.map(in_force).unwrap_or_default()
    }

    /// The keys of all rules with the most refused and the most shadowed hits, at most `METRICS_TOP_KEYS` each.
    fn top(&self) -> [TopSeries; 2] {
        let served = if self.top_keys > 0 { self.source.current() } else { None };
        let Some(served) = served else { return Default::default() };
        let top = self.recent.top(served.attached.all_recent(), SystemClock.now());
        let mut keys: Vec<TopKey> = top.into_iter().flat_map(|top| top.keys).collect();
        let labels = |TopKey { rule, key, .. }: &TopKey| {
            [rule.domain.to_string(), rule.path().to_owned(), key.text(self.recent.values())]
        };
        let counts: [fn(&TopKey) -> u64; 2] = [|key| key.refused, |key| key.shadowed];
        counts.map(|count| {
            keys.sort_unstable_by_key(|key| Reverse(count(key)));
            let first = keys.iter().filter(|key| count(key) > 0).take(self.top_keys);
            first.map(|key| (labels(key), count(key))).collect()
        })
    }
}

impl Gauges<'_> {
    pub(super) fn sample(&self, samples: &mut Samples<'_>) {
        self.local_cache.iter().for_each(|usage| local_cache(samples, usage));
        samples.pools(&self.pools);
        self.leases.iter().for_each(|usage| samples.leases(usage));
        if let Some((lines, dropped)) = self.decision_log {
            samples.value(&names::DECISION_LOG_LINES, lines);
            samples.value(&names::DECISION_LOG_DROPPED, dropped);
        }
        if let Some((lines, dropped)) = self.request_log {
            samples.value(&names::REQUEST_LOG_LINES, lines);
            samples.value(&names::REQUEST_LOG_DROPPED, dropped);
        }
        for (metric, series) in [&names::TOP_REFUSED, &names::TOP_SHADOWED].into_iter().zip(&self.top) {
            let top = series.iter().map(|(labels, n)| (labels.each_ref().map(|label| &**label), *n));
            samples.values(metric, top);
        }
        if let Some(TlsUsage { certificate_expiry, reload_errors, handshake_failures }) = &self.tls {
            samples.value(&names::TLS_CERTIFICATE_EXPIRY, certificate_expiry.as_secs());
            samples.value(&names::TLS_RELOAD_ERRORS, *reload_errors);
            let failures = handshake_failures.iter().map(|(name, n)| ([*name], *n));
            samples.values(&names::TLS_HANDSHAKE_FAILURES, failures);
        }
        if let Some(counts) = self.spans {
            samples.value(&names::SPANS_EXPORTED, counts.exported());
            let dropped = Dropped::ALL.map(|reason| ([reason.name()], counts.dropped(reason)));
            samples.values(&names::SPANS_DROPPED, dropped);
        }
        rules(samples, &self.rules, &self.overrides);
        limits::sample(samples, &self.limits);
        self.xds.iter().for_each(|state| control_plane(samples, state));
        self.store.iter().for_each(|usage| samples.store(usage));
        let by_action = Action::NAMES.into_iter().zip(self.overrides.by_action);
        samples.values(&names::OVERRIDES, by_action.map(|(action, n)| ([action], n)));
        samples.value(&names::HOLDS, self.holds.0);
        samples.value(&names::HOLDS_QUEUED, self.holds.1);
        samples.value(&names::OVERRIDES_BYTES, self.overrides.bytes as u64);
        memory::sample(samples, self.memory.0, &self.memory.1);
    }
}

fn local_cache(samples: &mut Samples<'_>, CacheUsage { keys, lookups, hits }: &CacheUsage) {
    samples.value(&names::LOCAL_CACHE_ENTRIES, keys.entries as u64);
    samples.value(&names::LOCAL_CACHE_HITS, *hits);
    // Both are counted while they are read.
    samples.value(&names::LOCAL_CACHE_MISSES, lookups.saturating_sub(*hits));
    samples.value(&names::LOCAL_CACHE_LOOKUPS, *lookups);
    samples.value(&names::LOCAL_CACHE_EXPIRED, keys.expired);
    samples.value(&names::LOCAL_CACHE_EVACUATED, keys.evicted);
}

fn rules(samples: &mut Samples<'_>, state: &ReloadState, overrides: &Usage) {
    let seconds = |time: Time| Duration::from_micros(time.micros()).as_secs_f64();
    samples.value(&names::CONFIG_LOAD_SUCCESS, state.loads);
    samples.value(&names::CONFIG_LOAD_ERROR, state.errors);
    if let Some(time) = state.last_success {
        samples.value(&names::RULES_LAST_SUCCESS, seconds(time));
    }
    if let Some((time, _)) = &state.last_error {
        samples.value(&names::RULES_LAST_ERROR, seconds(*time));
    }
    samples.value(&names::RULES_LOAD_FAILED, u64::from(!state.is_current));
    if state.last_success.is_some() {
        samples.values(&names::RULES_INFO, [([&*overrides.with_zone_data(state.hash)], 1.0)]);
    }
    samples.value(&names::RULES_FILES, state.files as u64);
    samples.value(&names::RULES_DOMAINS, state.domains as u64);
    samples.value(&names::RULES, state.rules as u64);
}

fn control_plane(samples: &mut Samples<'_>, state: &xds::SubscriptionState) {
    samples.value(&names::XDS_CONNECTED, u64::from(state.connected));
    samples.value(&names::XDS_RECONNECTS, state.reconnects);
    samples.value(&names::XDS_UPDATES, state.updates);
    samples.value(&names::XDS_NACKS, state.refused);
    samples.values(&names::XDS_VERSION, state.version.iter().map(|version| ([&**version], 1.0)));
}

#[cfg(test)]
mod tests;
