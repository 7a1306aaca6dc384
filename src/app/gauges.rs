//! The metrics of the parts that do not count in the statistics, read when the metrics are rendered or sent. The metrics
//! of a part that is not in use are absent.

mod limits;

use std::{cmp::Reverse, sync::atomic::Ordering::Relaxed, time::Duration};

use self::limits::RuleLimit;
use super::parts::App;
use admin::{MemoryUse, Tokens};
use clock::{Clock, SystemClock, Time};
use exporters::tracing::{Dropped, SpanCounts};
use limiter::CacheUsage;
use metrics::{Metric, Samples, rows};
use overrides::{Action, Usage};
use recent::{DecisionLog, TopKey};
use rlqs::Quotas;
use rules_source::{ReloadState, xds};
use server::tls::TlsUsage;

/// Every metric, in the order of the page.
pub fn documentation() -> Vec<Metric> {
    [
        [rows::RULES, rows::REQUESTS, rows::HITS, rows::SERVICE].concat(),
        [LOCAL_CACHE, rows::POOL, rows::PER_SECOND_POOL, rows::REDIS, rows::MEMCACHED, rows::LEASES].concat(),
        [
            DECISION_LOG,
            REQUEST_LOG,
            TOP,
            QUOTAS,
            TLS,
            ADMIN,
            SPANS,
            RULES,
            LIMITS,
            XDS,
            rows::STORE,
            OVERRIDES,
            SHARE,
            MEMORY,
        ]
        .concat(),
        [rows::SERIES, rows::PROCESS].concat(),
    ]
    .concat()
}

rows! { LOCAL_CACHE = local_cache(cache: &CacheUsage)
    Gauge "ratelimit_localcache_entryCount" as "ratelimit.localcache.entryCount" = cache.keys.entries;
        "Keys in the local cache.";
    Gauge "ratelimit_localcache_hitCount" as "ratelimit.localcache.hitCount" = cache.hits;
        "Lookups that found their key in the local cache, since the start.";
    Gauge "ratelimit_localcache_missCount"
        as "ratelimit.localcache.missCount" = cache.lookups.saturating_sub(cache.hits);
        "Lookups that did not find their key in the local cache, since the start.";
    Gauge "ratelimit_localcache_lookupCount" as "ratelimit.localcache.lookupCount" = cache.lookups;
        "Lookups in the local cache, since the start.";
    Gauge "ratelimit_localcache_expiredCount"
        as "ratelimit.localcache.expiredCount" = cache.keys.expired;
        "Keys removed from the local cache at the end of their window, since the start.";
    Gauge "ratelimit_localcache_evacuateCount"
        as "ratelimit.localcache.evacuateCount" = cache.keys.evicted;
        "Keys evicted from the local cache, since the start.";
}

rows! { DECISION_LOG = decision_log(lines: u64, dropped: u64)
    Counter "tollgate_decision_log_lines_total" = lines; "Lines of the decision log; absent without DECISION_LOG.";
    Counter "tollgate_decision_log_dropped_total" = dropped;
        "Decisions that were not logged because there were too many, or because the log could not be written.";
}

rows! { REQUEST_LOG = request_log(lines: u64, dropped: u64)
    Counter "tollgate_request_log_lines_total" = lines; "Requests in the request log; absent without REQUEST_LOG.";
    Counter "tollgate_request_log_dropped_total" = dropped;
        "Requests that were not recorded because there were too many, or because the log could not be written.";
}

rows! { TOP = top(refused: &TopSeries, shadowed: &TopSeries)
    Gauge "tollgate_top_refused_hits" ["domain", "rule", "descriptor"]
        = refused.iter().map(|(labels, n)| (labels.each_ref().map(|label| &**label), *n));
        "Refused hits of the most refused keys in the last two to four minutes; absent without METRICS_TOP_KEYS.";
    Gauge "tollgate_top_shadowed_hits" ["domain", "rule", "descriptor"]
        = shadowed.iter().map(|(labels, n)| (labels.each_ref().map(|label| &**label), *n));
        "Hits over the limit that shadow mode allowed, of the keys with the most of them in the last two to four minutes; absent without METRICS_TOP_KEYS.";
}

rows! { QUOTAS = quotas(quotas: &Quotas)
    Gauge "tollgate_quota_streams_open" = quotas.streams(); "Open streams of Envoys, among which limits are divided (RLQS).";
    Gauge "tollgate_quota_buckets" = quotas.buckets(); "Buckets of all streams to which quotas are assigned.";
    Counter "tollgate_quota_taken_hits_total" = quotas.counts.taken.load(Relaxed);
        "Hits taken from counters ahead of time, to assign them to Envoys.";
    Counter "tollgate_quota_returned_hits_total" = quotas.counts.given_back.load(Relaxed);
        "Hits of these that were given back.";
    Counter "tollgate_quota_actions_total" ["action"] = [
            (["grant"], quotas.counts.granted.load(Relaxed)),
            (["renew"], quotas.counts.renewed.load(Relaxed)),
            (["allow"], quotas.counts.allowed.load(Relaxed)),
            (["deny"], quotas.counts.denied.load(Relaxed)),
            (["abandon"], quotas.counts.abandoned.load(Relaxed)),
        ];
        "Assignments sent to Envoys: grant, of more hits; renew, of those that are left; allow and deny, of all requests; abandon, which ends one.";
}

rows! { TLS = tls(usage: &TlsUsage)
    Gauge "tollgate_tls_certificate_expiry_timestamp_seconds" = usage.certificate_expiry.as_secs();
        "Expiry of the gRPC port's certificate; absent without TLS.";
    Counter "tollgate_tls_reload_errors_total" = usage.reload_errors;
        "Rejected changes of the TLS files; the previous ones stay in use.";
    Counter "tollgate_tls_handshake_failures_total" ["reason"]
        = usage.handshake_failures.iter().map(|(name, n)| ([*name], *n));
        "Failed TLS handshakes on the gRPC port.";
}

rows! { ADMIN = admin(tokens: &Tokens)
    Gauge "tollgate_admin_token_file_failed" = u64::from(tokens.failure().is_some());
        "1 while ADMIN_TOKEN_FILE cannot be used and the tokens that were read before stay valid; absent without tokens.";
}

rows! { SPANS = spans(spans: &SpanCounts)
    Counter "tollgate_spans_exported_total" = spans.exported();
        "Spans accepted by the collector; absent without tracing.";
    Counter "tollgate_spans_dropped_total" ["reason"]
        = Dropped::ALL.map(|reason| ([reason.name()], spans.dropped(reason)));
        "Spans that did not reach the collector.";
}

rows! { RULES = rules(state: &ReloadState, hash: Option<&str>)
    Counter "ratelimit_service_config_load_success"
        as "ratelimit.service.config_load_success" = state.loads;
        "Loaded sets of rules.";
    Counter "ratelimit_service_config_load_error"
        as "ratelimit.service.config_load_error" = state.errors;
        "Rejected sets of rules; the previous one stays in force.";
    Gauge "tollgate_rules_last_load_success_timestamp_seconds" [] = state.last_success.map(|time| ([], seconds(time)));
        "Time of the last successful load; absent if never.";
    Gauge "tollgate_rules_last_load_error_timestamp_seconds" []
        = state.last_error.as_ref().map(|(time, _)| ([], seconds(*time)));
        "Time of the last failed load; absent if never.";
    Gauge "tollgate_rules_load_failed" = u64::from(!state.is_current);
        "1 if the last set of rules was rejected and the previous one is in force.";
    Gauge "tollgate_rules_info" ["hash"] = hash.map(|hash| ([hash], 1_u64));
        "Always 1; the label is the hash of the rules in force, equal on replicas with the same rules.";
    Gauge "tollgate_rules_files" = state.files;
        "Files, or resources of a control plane, that the rules were read from.";
    Gauge "tollgate_rules_domains" = state.domains; "Domains with rules.";
    Gauge "tollgate_rules" = state.rules; "Rules with a limit.";
}

rows! { LIMITS = limits(limits: &[RuleLimit])
    Gauge "ratelimit_service_rate_limit_limit" ["domain", "key1", "key2"]
        = limits::lowest(limits).iter().map(|(labels, requests)| (labels.values(), *requests));
        "Limit of the rule in force now, by its schedule and an override of the whole rule; the lowest of several.";
    Gauge "tollgate_rule_limit" ["domain", "rule", "unit"]
        = limits.iter().map(|limit| (limit.labels(), limit.requests));
        "Limits of the rule in force now, by its schedule and an override of the whole rule.";
}

rows! { XDS = control_plane(state: &xds::SubscriptionState)
    Gauge "tollgate_xds_connected" = u64::from(state.connected);
        "1 while the control plane is connected; otherwise rules do not change.";
    Counter "tollgate_xds_reconnects_total" = state.reconnects; "Attempts to reconnect to the control plane.";
    Counter "tollgate_xds_updates_total" = state.updates; "Responses of the control plane.";
    Counter "tollgate_xds_nacks_total" = state.refused; "Rejected responses of the control plane.";
    Gauge "tollgate_xds_version" ["version"] = state.version.iter().map(|version| ([&**version], 1_u64));
        "Always 1; the label is the last accepted version.";
}

rows! { OVERRIDES = overrides(overrides: &Usage, holds: u64, queued: usize)
    Gauge "tollgate_overrides" ["action"]
        = Action::NAMES.into_iter().zip(overrides.by_action).map(|(action, n)| ([action], n));
        "Overrides in force: limit, block, allow, shadow or scale.";
    Gauge "tollgate_holds" = holds;
        "Open holds: in memory of all counters; in Redis, by the sweep of each second, the requests that hold, in a cluster those in the slots that this replica has used.";
    Gauge "tollgate_holds_queued" = queued; "Settles and ends that the store has not taken yet; they are repeated.";
    Gauge "tollgate_overrides_bytes" = overrides.bytes; "Memory of the overrides.";
}

rows! { SHARE = share(replicas: Option<u32>)
    Gauge "tollgate_share_replicas" [] = replicas.map(|replicas| ([], u64::from(replicas)));
        "Replicas by which the failure policy `share` divides limits, as they were seen last; absent until they are read, and then the policy decides as `local`.";
}

rows! { MEMORY = memory(limit: usize, bounds: &[MemoryUse])
    Gauge "tollgate_memory_limit_bytes" = limit; "Memory that the process may use (MEMORY_LIMIT).";
    Gauge "tollgate_memory_bound_bytes" ["bound"] = bounds.iter().map(|one| ([one.name], one.bytes));
        "Bound on a part of the memory; together they leave a quarter of the limit free.";
    Gauge "tollgate_memory_used_bytes" ["bound"] = bounds.iter().filter_map(|one| Some(([one.name], one.used?)));
        "Use of that part, where it is measured: counted things at the memory of one.";
}

/// The labels and the hits of keys.
type TopSeries = Vec<([String; 3], u64)>;

impl App {
    pub(super) fn sample(&self, samples: &mut Samples<'_>) {
        self.over_limit.iter().for_each(|cache| local_cache(samples, &cache.usage()));
        rows::pools(samples, &self.store.pools());
        self.store.leases().iter().for_each(|leases| rows::leases(samples, leases));
        if let Some((lines, dropped)) = self.recent.log().map(DecisionLog::counts) {
            decision_log(samples, lines, dropped);
        }
        if let Some((lines, dropped)) = self.request_log.as_ref().map(|log| log.counts()) {
            request_log(samples, lines, dropped);
        }
        let [refused, shadowed] = self.top();
        top(samples, &refused, &shadowed);
        quotas(samples, &self.quotas);
        self.tls.iter().for_each(|part| tls(samples, &part.usage()));
        self.tokens.iter().for_each(|tokens| admin(samples, tokens));
        self.tracer.iter().for_each(|tracer| spans(samples, tracer.counts()));
        let state = self.source.state();
        let index = self.keeper.index();
        let hash = state.last_success.map(|_| index.usage().with_zone_data(state.hash));
        rules(samples, &state, hash.as_deref());
        if let Some(served) = self.source.current() {
            let now = SystemClock.now();
            let most = self.stats.max_series();
            limits(samples, &limits::in_force(&served.rules, index, now, most));
        }
        self.xds.iter().for_each(|status| control_plane(samples, &status.state()));
        if let Some(held) = self.store.usage().or_else(|| self.limiter.local_usage()) {
            rows::store(samples, &held);
        }
        let open = self.limiter.open_holds();
        let queued = self.limiter.queued_closings();
        overrides(samples, &index.usage(), open, queued);
        share(samples, self.limiter.share().map(limit::Share::replicas));
        memory(samples, self.memory.limit, &self.memory_use());
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

fn seconds(time: Time) -> f64 {
    Duration::from_micros(time.micros()).as_secs_f64()
}

#[cfg(test)]
mod tests;
