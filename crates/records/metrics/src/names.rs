//! Every metric with its name, type, labels and help. The table of the manual is made from here.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The name; a histogram adds `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    pub kind: MetricType,
    /// The names of the labels, in the order of the page.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

text::named! {
    /// The type of a metric. A mapper file names a histogram as `statsd_exporter` does.
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum MetricType {
        /// A sum that resets only with the process.
        Counter = "counter",
        Gauge = "gauge",
        #[serde(rename = "observer", alias = "timer")]
        Histogram = "histogram",
    }
}

text::named! {
    /// The counters of a rule, by their statsd names.
    pub enum RuleCounter {
        /// Hits, before the decision.
        TotalHits = "total_hits",
        OverLimit = "over_limit",
        /// Hits between the near threshold and the limit.
        NearLimit = "near_limit",
        WithinLimit = "within_limit",
        /// Hits over the limit that the local cache answered without the store.
        OverLimitWithLocalCache = "over_limit_with_local_cache",
        /// Hits over the limit that passed because the rule is in shadow mode.
        ShadowMode = "shadow_mode",
        /// Hits that refunds asked for, whether the counter had them or not.
        TotalNegativeHits = "total_negative_hits",
    }
}

impl RuleCounter {
    /// The series of the page that show this counter. Three counters are shown by `tollgate_rule_hits_total` too.
    pub(super) const fn series(self) -> usize {
        match self {
            Self::OverLimit | Self::WithinLimit | Self::ShadowMode => 2,
            Self::TotalHits | Self::NearLimit | Self::OverLimitWithLocalCache | Self::TotalNegativeHits => 1,
        }
    }
}

pub fn documentation() -> Vec<Metric> {
    [OURS, PROCESS].concat()
}

/// Declares metrics as constants, and a list of them in the order of the page.
macro_rules! metrics {
    ($list:ident $($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub const $constant: Metric =
            Metric { name: $name, kind: MetricType::$kind, labels: &[$($label),*], help: $help };)*
        pub(super) const $list: &[Metric] = &[$($constant),*];
    };
}

// The counters of the statistics come first, then the gauges of the parts. Those of the Go service do not end in `_total`;
// dashboards are built on them as they are.
metrics! { OURS
    TOTAL_HITS: Counter "ratelimit_service_rate_limit_total_hits" ["domain", "key1", "key2"]
        "Hits on the rule, before the decision.";
    OVER_LIMIT: Counter "ratelimit_service_rate_limit_over_limit" ["domain", "key1", "key2"]
        "Hits over the rule's limit.";
    NEAR_LIMIT: Counter "ratelimit_service_rate_limit_near_limit" ["domain", "key1", "key2"]
        "Hits between the near threshold (NEAR_LIMIT_RATIO) and the rule's limit.";
    WITHIN_LIMIT: Counter "ratelimit_service_rate_limit_within_limit" ["domain", "key1", "key2"]
        "Hits within the rule's limit.";
    OVER_LIMIT_WITH_LOCAL_CACHE: Counter "ratelimit_service_rate_limit_over_limit_with_local_cache"
        ["domain", "key1", "key2"]
        "Hits over the rule's limit that the local cache rejected without the store.";
    SHADOW_MODE: Counter "ratelimit_service_rate_limit_shadow_mode" ["domain", "key1", "key2"]
        "Hits over the rule's limit that shadow mode allowed.";
    TOTAL_NEGATIVE_HITS: Counter "ratelimit_service_rate_limit_total_negative_hits" ["domain", "key1", "key2"]
        "Hits of refunds (is_negative_hits) on the rule; absent until the first.";
    DOMAIN_NOT_FOUND: Counter "ratelimit_service_rate_limit_domain_not_found" ["domain"]
        "Descriptors of requests with an unknown domain.";
    SHOULD_RATE_LIMIT_ERROR: Counter "ratelimit_service_should_rate_limit_error" ["err_type"]
        "Requests that returned an error: service_error for an invalid request or missing rules, redis_error for a failed store.";
    TOTAL_REQUESTS: Counter "ratelimit_service_total_requests" ["grpc_method"]
        "Calls of the gRPC method, with any result.";
    RESPONSE_TIME: Histogram "ratelimit_service_response_time_seconds" ["grpc_method"]
        "Response times. Envoy's default timeout is 20 ms.";
    GLOBAL_SHADOW_MODE: Counter "ratelimit_service_global_shadow_mode" []
        "Requests over their limit that SHADOW_MODE allowed.";
    STORE_FAILURE_DECISIONS: Counter "tollgate_store_failure_decisions_total" ["policy", "reason"]
        "Requests decided by the failure policy because their counters were not reached in time.";
    REQUESTS: Counter "tollgate_requests_total" ["domain", "code"]
        "Requests by domain and overall code: ok, over_limit or error. Domain __unknown__ stands for domains without rules, and for requests rejected before their domain was looked up.";
    UNMATCHED: Counter "tollgate_unmatched_descriptors_total" ["domain"]
        "Descriptors that meet no rule, and those of domains without rules as __unknown__.";
    NOT_ENFORCED: Gauge "tollgate_not_enforced" ["domain", "why"]
        "1 for each reason why limits of a domain are not enforced; domain * stands for all. Somebody chose domain_allow, domain_shadow, rule_shadow and shadow_mode; nobody chose rules_missing, rules_rejected, store_failure and unmatched.";
    RULE_HITS: Counter "tollgate_rule_hits_total" ["domain", "rule", "outcome"]
        "Hits by rule, named by its full key, and outcome: allowed; over_limit, the part over the limit; shadow, the part over the limit that shadow mode allowed.";
    BUILD_INFO: Gauge "tollgate_build_info" ["version", "commit", "os", "arch"]
        "Always 1; the labels identify the build.";
    REQUESTS_REFUSED: Counter "tollgate_requests_refused_total" ["reason"]
        "Requests rejected before a decision because they exceed a bound.";
    PANICS: Counter "tollgate_panics_total" ["where"]
        "Panics by the interrupted work; the log has backtraces.";
    LOG_LINES_DROPPED: Counter "tollgate_log_lines_dropped_total" []
        "Log lines dropped because standard error was not read in time, or its disk is full.";
    CONNECTIONS_OPEN: Gauge "tollgate_connections_open" []
        "Open gRPC connections.";
    CONNECTIONS_ACCEPTED: Counter "tollgate_connections_accepted_total" []
        "Accepted gRPC connections.";
    CONNECTIONS_REFUSED: Counter "tollgate_connections_refused_total" ["port", "reason"]
        "Connections refused because a limit was reached and none could be closed.";
    CONNECTIONS_CLOSED: Counter "tollgate_connections_closed_total" ["port", "reason"]
        "Connections closed by the service: silent and idle ones in favour of others, and those beyond a time limit.";
    PEER_ERRORS: Counter "tollgate_grpc_peer_errors_total" ["reason"]
        "gRPC connections closed by the service because of HTTP/2 protocol errors or a flood of frames.";
    HOLDS_SETTLED: Counter "tollgate_holds_settled_total" ["rule"]
        "Holds settled at their cost before they ended or expired.";
    HOLDS_ENDED: Counter "tollgate_holds_ended_total" ["rule", "how"]
        "Holds that ended without a cost: ended by a request; expired after their ttl; unanswered, because the caller did not get their id.";
    HOLDS_LATE: Counter "tollgate_holds_late_total" []
        "Costs that came after the hold had ended or expired, and corrected what that charged.";
    HOLDS_OVERSPENT: Counter "tollgate_holds_overspent_hits_total" []
        "Hits by which costs and charges exceeded what was held.";
    HOLDS_UNKNOWN_IDS: Counter "tollgate_holds_unknown_ids_total" []
        "Settles that changed nothing: of unknown, malformed, forgotten or already settled ids.";
    HOLDS_REFUSED: Counter "tollgate_holds_refused_total" ["bound"]
        "What a bound of holds refused: holds beyond HOLDS_MAX, HOLDS_MAX_PER_COUNTER or HOLDS_MAX_BYTES; slots of a cluster; settles and ends beyond HOLDS_MAX_QUEUED, which are lost.";
    ADMIN_CHANGES: Counter "tollgate_admin_changes_total" ["action", "result"]
        "Changes through the admin API by result: ok; rejected if invalid or not allowed; error if they could not be made.";
    ADMIN_UNAUTHORIZED: Counter "tollgate_admin_unauthorized_total" ["reason"]
        "Calls of the admin API without a valid token: missing, or unknown, as of someone who guesses.";
    LOCAL_CACHE_ENTRIES: Gauge "ratelimit_localcache_entryCount" []
        "Keys in the local cache.";
    LOCAL_CACHE_HITS: Gauge "ratelimit_localcache_hitCount" []
        "Lookups that found their key in the local cache, since the start.";
    LOCAL_CACHE_MISSES: Gauge "ratelimit_localcache_missCount" []
        "Lookups that did not find their key in the local cache, since the start.";
    LOCAL_CACHE_LOOKUPS: Gauge "ratelimit_localcache_lookupCount" []
        "Lookups in the local cache, since the start.";
    LOCAL_CACHE_EXPIRED: Gauge "ratelimit_localcache_expiredCount" []
        "Keys removed from the local cache at the end of their window, since the start.";
    LOCAL_CACHE_EVACUATED: Gauge "ratelimit_localcache_evacuateCount" []
        "Keys evicted from the local cache, since the start.";
    POOL_ACTIVE: Gauge "ratelimit_redis_pool_cx_active" []
        "Open connections to Redis.";
    POOL_TOTAL: Counter "ratelimit_redis_pool_cx_total" []
        "Opened connections to Redis.";
    POOL_LOCAL_CLOSE: Counter "ratelimit_redis_pool_cx_local_close" []
        "Connections to Redis closed by this side.";
    PER_SECOND_POOL_ACTIVE: Gauge "ratelimit_redis_per_second_pool_cx_active" []
        "Open connections to the Redis for limits per second.";
    PER_SECOND_POOL_TOTAL: Counter "ratelimit_redis_per_second_pool_cx_total" []
        "Opened connections to the Redis for limits per second.";
    PER_SECOND_POOL_LOCAL_CLOSE: Counter "ratelimit_redis_per_second_pool_cx_local_close" []
        "Connections to the Redis for limits per second closed by this side.";
    REDIS_RECONNECTS: Counter "tollgate_redis_reconnects_total" ["pool"]
        "Connections that replaced a lost one.";
    REDIS_BREAKERS_OPEN: Gauge "tollgate_redis_breakers_open" ["pool"]
        "Connections whose breaker is open: nothing is sent until a probe is answered in time.";
    REDIS_QUEUED: Gauge "tollgate_redis_queued_checks" ["pool"]
        "Queued checks.";
    REDIS_QUEUED_MAX: Gauge "tollgate_redis_queued_checks_max" ["pool"]
        "Maximum number of queued checks; further ones are decided by STORE_FAILURE_POLICY.";
    REDIS_OUTSTANDING_MAX: Gauge "tollgate_redis_outstanding_checks_max" ["pool"]
        "Maximum number of queued and sent checks: the measured number that Redis answers within REDIS_TIMEOUT.";
    REDIS_SHED: Counter "tollgate_redis_shed_checks_total" ["pool", "reason"]
        "Checks that were not sent: overloaded if more were queued than Redis answers in time, late if they were queued too long.";
    REDIS_ERRORS: Counter "tollgate_redis_errors_total" ["pool", "kind"]
        "Failures by kind.";
    REDIS_COMMAND_DENIED: Counter "tollgate_redis_command_denied_total" ["pool", "command"]
        "Commands that Redis denied: missing permission, or unknown command.";
    REDIS_WITHOUT_EXPIRY: Counter "tollgate_redis_keys_without_expiry_total" ["pool"]
        "Counters without an expiry because Redis refused to set it.";
    REDIS_OPERATION_TIME: Histogram "tollgate_redis_operation_seconds" ["pool"]
        "Pipeline latency, from sending to the last reply.";
    REDIS_BATCH_CHECKS: Histogram "tollgate_redis_batch_checks" ["pool"]
        "Checks per pipeline.";
    MEMCACHED_CONNECTIONS: Gauge "tollgate_memcached_connections_open" []
        "Open connections to memcached.";
    MEMCACHED_CONNECTIONS_OPENED: Counter "tollgate_memcached_connections_opened_total" []
        "Opened connections to memcached.";
    MEMCACHED_RECONNECTS: Counter "tollgate_memcached_reconnects_total" []
        "Connections that replaced a lost one.";
    MEMCACHED_BREAKERS_OPEN: Gauge "tollgate_memcached_breakers_open" []
        "Connections whose breaker is open: nothing is sent until a probe is answered in time.";
    MEMCACHED_QUEUED: Gauge "tollgate_memcached_queued_checks" []
        "Queued checks.";
    MEMCACHED_QUEUED_MAX: Gauge "tollgate_memcached_queued_checks_max" []
        "Maximum number of queued checks; further ones are decided by STORE_FAILURE_POLICY.";
    MEMCACHED_OUTSTANDING_MAX: Gauge "tollgate_memcached_outstanding_checks_max" []
        "Maximum number of queued and sent checks: the measured number that memcached answers within MEMCACHE_TIMEOUT.";
    MEMCACHED_SHED: Counter "tollgate_memcached_shed_checks_total" ["reason"]
        "Checks that were not sent: overloaded if more were queued than memcached answers in time, late if they were queued too long.";
    MEMCACHED_ERRORS: Counter "tollgate_memcached_errors_total" ["kind"]
        "Failures by kind.";
    MEMCACHED_OPERATION_TIME: Histogram "tollgate_memcached_operation_seconds" []
        "Pipeline latency, from sending to the last reply.";
    MEMCACHED_BATCH_CHECKS: Histogram "tollgate_memcached_batch_checks" []
        "Checks per pipeline.";
    LEASE_KEYS: Gauge "tollgate_lease_keys" []
        "Keys with a lease; absent until a key is hot.";
    LEASE_KEYS_MAX: Gauge "tollgate_lease_keys_max" []
        "Maximum number of keys with a lease (LEASE_MAX_KEYS).";
    LEASE_HELD: Gauge "tollgate_lease_held_hits" []
        "Unspent hits in leases.";
    LEASE_HITS: Counter "tollgate_lease_hits_total" []
        "Checks that a lease decided without the store.";
    LEASE_WAITS: Counter "tollgate_lease_waits_total" []
        "Checks of hot keys that waited for the store.";
    LEASE_GRANTS: Counter "tollgate_lease_grants_total" ["result"]
        "Requests for leases by result: granted, or refused if the limit had too few hits left or the reply was lost.";
    LEASE_GRANTED: Counter "tollgate_lease_granted_total" []
        "Hits leased.";
    LEASE_RETURNED: Counter "tollgate_lease_returned_total" []
        "Leased hits returned unspent.";
    LEASE_EXPIRED: Counter "tollgate_lease_expired_total" []
        "Leased hits that were not spent before their window ended, or were lost with their counter.";
    LEASE_EVICTIONS: Counter "tollgate_lease_evictions_total" []
        "Leases that ended because LEASE_MAX_KEYS was reached.";
    DECISION_LOG_LINES: Counter "tollgate_decision_log_lines_total" []
        "Lines of the decision log; absent without DECISION_LOG.";
    DECISION_LOG_DROPPED: Counter "tollgate_decision_log_dropped_total" []
        "Decisions that were not logged because there were too many, or because the log could not be written.";
    REQUEST_LOG_LINES: Counter "tollgate_request_log_lines_total" []
        "Requests in the request log; absent without REQUEST_LOG.";
    REQUEST_LOG_DROPPED: Counter "tollgate_request_log_dropped_total" []
        "Requests that were not recorded because there were too many, or because the log could not be written.";
    TOP_REFUSED: Gauge "tollgate_top_refused_hits" ["domain", "rule", "descriptor"]
        "Refused hits of the most refused keys in the last two to four minutes; absent without METRICS_TOP_KEYS.";
    TOP_SHADOWED: Gauge "tollgate_top_shadowed_hits" ["domain", "rule", "descriptor"]
        "Hits over the limit that shadow mode allowed, of the keys with the most of them in the last two to four minutes; absent without METRICS_TOP_KEYS.";
    TLS_CERTIFICATE_EXPIRY: Gauge "tollgate_tls_certificate_expiry_timestamp_seconds" []
        "Expiry of the gRPC port's certificate; absent without TLS.";
    TLS_RELOAD_ERRORS: Counter "tollgate_tls_reload_errors_total" []
        "Rejected changes of the TLS files; the previous ones stay in use.";
    TLS_HANDSHAKE_FAILURES: Counter "tollgate_tls_handshake_failures_total" ["reason"]
        "Failed TLS handshakes on the gRPC port.";
    SPANS_EXPORTED: Counter "tollgate_spans_exported_total" []
        "Spans accepted by the collector; absent without tracing.";
    SPANS_DROPPED: Counter "tollgate_spans_dropped_total" ["reason"]
        "Spans that did not reach the collector.";
    CONFIG_LOAD_SUCCESS: Counter "ratelimit_service_config_load_success" []
        "Loaded sets of rules.";
    CONFIG_LOAD_ERROR: Counter "ratelimit_service_config_load_error" []
        "Rejected sets of rules; the previous one stays in force.";
    RULES_LAST_SUCCESS: Gauge "tollgate_rules_last_load_success_timestamp_seconds" []
        "Time of the last successful load; absent if never.";
    RULES_LAST_ERROR: Gauge "tollgate_rules_last_load_error_timestamp_seconds" []
        "Time of the last failed load; absent if never.";
    RULES_LOAD_FAILED: Gauge "tollgate_rules_load_failed" []
        "1 if the last set of rules was rejected and the previous one is in force.";
    RULES_INFO: Gauge "tollgate_rules_info" ["hash"]
        "Always 1; the label is the hash of the rules in force, equal on replicas with the same rules.";
    RULES_FILES: Gauge "tollgate_rules_files" []
        "Files, or resources of a control plane, that the rules were read from.";
    RULES_DOMAINS: Gauge "tollgate_rules_domains" []
        "Domains with rules.";
    RULES: Gauge "tollgate_rules" []
        "Rules with a limit.";
    LIMIT: Gauge "ratelimit_service_rate_limit_limit" ["domain", "key1", "key2"]
        "Limit of the rule in force now, by its schedule and an override of the whole rule; the lowest of several.";
    RULE_LIMIT: Gauge "tollgate_rule_limit" ["domain", "rule", "unit"]
        "Limits of the rule in force now, by its schedule and an override of the whole rule.";
    XDS_CONNECTED: Gauge "tollgate_xds_connected" []
        "1 while the control plane is connected; otherwise rules do not change.";
    XDS_RECONNECTS: Counter "tollgate_xds_reconnects_total" []
        "Attempts to reconnect to the control plane.";
    XDS_UPDATES: Counter "tollgate_xds_updates_total" []
        "Responses of the control plane.";
    XDS_NACKS: Counter "tollgate_xds_nacks_total" []
        "Rejected responses of the control plane.";
    XDS_VERSION: Gauge "tollgate_xds_version" ["version"]
        "Always 1; the label is the last accepted version.";
    STORE_KEYS: Gauge "tollgate_store_keys" []
        "Counters in memory.";
    STORE_KEYS_MAX: Gauge "tollgate_store_keys_max" []
        "Maximum number of counters in memory. Sliding logs are bounded separately, by 48 bytes for each.";
    STORE_BYTES: Gauge "tollgate_store_bytes" []
        "Memory of the counters.";
    STORE_EVICTIONS: Counter "tollgate_store_evictions_total" ["counter"]
        "Counters evicted because MEMORY_MAX_KEYS was reached, over_limit or within_limit; their callers start at zero.";
    STORE_EXPIRED: Counter "tollgate_store_expired_total" []
        "Expired counters.";
    OVERRIDES: Gauge "tollgate_overrides" ["action"]
        "Overrides in force: limit, block, allow or shadow.";
    HOLDS: Gauge "tollgate_holds" []
        "Open holds: in memory of all counters; in Redis, by the sweep of each second, the requests that hold, in a cluster those in the slots that this replica has used.";
    HOLDS_QUEUED: Gauge "tollgate_holds_queued" []
        "Settles and ends that the store has not taken yet; they are repeated.";
    OVERRIDES_BYTES: Gauge "tollgate_overrides_bytes" []
        "Memory of the overrides.";
    MEMORY_LIMIT: Gauge "tollgate_memory_limit_bytes" []
        "Memory that the process may use (MEMORY_LIMIT).";
    MEMORY_BOUND: Gauge "tollgate_memory_bound_bytes" ["bound"]
        "Bound on a part of the memory; together they leave a quarter of the limit free.";
    MEMORY_USED: Gauge "tollgate_memory_used_bytes" ["bound"]
        "Use of that part, where it is measured: counted things at the memory of one.";
    SERIES: Gauge "tollgate_metrics_series" []
        "Series named by requests, including unknown domains.";
    SERIES_MAX: Gauge "tollgate_metrics_series_max" []
        "Maximum number of series named by requests (METRICS_MAX_SERIES).";
    SERIES_OVERFLOW: Counter "tollgate_metrics_series_overflow_total" ["domain"]
        "Hits counted in the domain's series __overflow__ because METRICS_MAX_SERIES was reached.";
}

// The process metrics of the `prometheus` crate, on systems with `/proc`.
metrics! { PROCESS
    PROCESS_CPU: Counter "process_cpu_seconds_total" [] "Total user and system CPU time spent in seconds.";
    PROCESS_OPEN_FDS: Gauge "process_open_fds" [] "Number of open file descriptors.";
    PROCESS_MAX_FDS: Gauge "process_max_fds" [] "Maximum number of open file descriptors.";
    PROCESS_VIRTUAL_MEMORY: Gauge "process_virtual_memory_bytes" [] "Virtual memory size in bytes.";
    PROCESS_RESIDENT_MEMORY: Gauge "process_resident_memory_bytes" [] "Resident memory size in bytes.";
    PROCESS_START_TIME: Gauge "process_start_time_seconds" []
        "Start time of the process since unix epoch in seconds.";
    PROCESS_THREADS: Gauge "process_threads" [] "Number of OS threads in the process.";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_is_declared_once_and_valid() {
        let mut seen = HashSet::new();
        for metric in documentation() {
            assert!(seen.insert(metric.name), "{} is declared twice", metric.name);
            let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            assert!(fits(metric.name) && metric.labels.iter().all(|label| fits(label)), "{metric:?}");
            assert!(metric.help.ends_with('.'), "{}: help is a sentence", metric.name);
        }
    }

    #[test]
    fn our_counters_end_in_total() {
        for metric in documentation().iter().filter(|metric| metric.name.starts_with("tollgate_")) {
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricType::Counter,
                "{}",
                metric.name
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_metrics_are_those_of_the_collector() {
        use ::prometheus::{core::Collector, process_collector::ProcessCollector};
        let collector = ProcessCollector::for_self();
        let theirs: Vec<_> = collector.desc().iter().map(|desc| (&*desc.fq_name, &*desc.help)).collect();
        assert_eq!(PROCESS.iter().map(|metric| (metric.name, metric.help)).collect::<Vec<_>>(), theirs);
    }
}
