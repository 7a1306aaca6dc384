//! Every metric, declared once: its name, its kind, its labels and what it tells.
//!
//! The exposition takes its names from here, and the manual's table is made from here.

use std::fmt;

/// One metric of the Prometheus page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// As Prometheus stores it; a histogram adds `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// What may be computed from it.
    pub kind: Kind,
    /// What its series differ by, in the order in which they are written.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

/// What may be computed from a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows while the process lives: ask for its rate.
    Counter,
    /// It is what it is now.
    Gauge,
    /// How many were within each bound: ask for its quantiles.
    Histogram,
}

/// As the page's `# TYPE` lines write it.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// Every metric, in the order of the page.
#[must_use]
pub fn documentation() -> Vec<Metric> {
    [OURS, &PROCESS].concat()
}

/// One line a metric makes both the name by which the code refers to it and its place on the page.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(in crate::telemetry) const $constant: Metric =
            Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        const OURS: &[Metric] = &[$($constant),*];
    };
}

// The names of the Go service come first, then our own. Those of the Go service's counters do not end in
// `_total`; dashboards are built on them as they are.
metrics! {
    TOTAL_HITS: Counter "ratelimit_service_rate_limit_total_hits" ["domain", "key1", "key2"]
        "Hits on the rule, before the decision.";
    OVER_LIMIT: Counter "ratelimit_service_rate_limit_over_limit" ["domain", "key1", "key2"]
        "Hits beyond the rule's limit.";
    NEAR_LIMIT: Counter "ratelimit_service_rate_limit_near_limit" ["domain", "key1", "key2"]
        "Hits between the near threshold (NEAR_LIMIT_RATIO) and the rule's limit.";
    WITHIN_LIMIT: Counter "ratelimit_service_rate_limit_within_limit" ["domain", "key1", "key2"]
        "Hits within the rule's limit.";
    OVER_LIMIT_WITH_LOCAL_CACHE: Counter "ratelimit_service_rate_limit_over_limit_with_local_cache"
        ["domain", "key1", "key2"]
        "Hits beyond the rule's limit that the local cache answered without the store.";
    SHADOW_MODE: Counter "ratelimit_service_rate_limit_shadow_mode" ["domain", "key1", "key2"]
        "Hits beyond the rule's limit that passed because the rule is in shadow mode.";
    DOMAIN_NOT_FOUND: Counter "ratelimit_service_rate_limit_domain_not_found" ["domain"]
        "Descriptors of requests for a domain that has no rules.";
    SHOULD_RATE_LIMIT_ERROR: Counter "ratelimit_service_should_rate_limit_error" ["err_type"]
        "Requests answered with an error: service_error when they or the rules are at fault, redis_error when the store failed.";
    TOTAL_REQUESTS: Counter "ratelimit_service_total_requests" ["grpc_method"]
        "Calls of the gRPC method, whatever the answer.";
    RESPONSE_TIME: Histogram "ratelimit_service_response_time_seconds" ["grpc_method"]
        "How long answers took. Envoy waits 20 ms unless told otherwise.";
    GLOBAL_SHADOW_MODE: Counter "ratelimit_service_global_shadow_mode" []
        "Requests over their limit that passed because SHADOW_MODE is on.";
    LOCAL_CACHE_ENTRIES: Gauge "ratelimit_localcache_entryCount" []
        "Keys in the local cache.";
    LOCAL_CACHE_HITS: Gauge "ratelimit_localcache_hitCount" []
        "Look-ups that found their key in the local cache, since the start.";
    LOCAL_CACHE_MISSES: Gauge "ratelimit_localcache_missCount" []
        "Look-ups that did not find their key in the local cache, since the start.";
    LOCAL_CACHE_LOOKUPS: Gauge "ratelimit_localcache_lookupCount" []
        "Look-ups in the local cache, since the start.";
    LOCAL_CACHE_EXPIRED: Gauge "ratelimit_localcache_expiredCount" []
        "Keys dropped from the local cache because their window was over, since the start.";
    LOCAL_CACHE_EVACUATED: Gauge "ratelimit_localcache_evacuateCount" []
        "Keys dropped from the local cache to make room, since the start.";
    POOL_ACTIVE: Gauge "ratelimit_redis_pool_cx_active" []
        "Connections to Redis that are open.";
    POOL_TOTAL: Counter "ratelimit_redis_pool_cx_total" []
        "Connections to Redis that were opened.";
    POOL_LOCAL_CLOSE: Counter "ratelimit_redis_pool_cx_local_close" []
        "Connections to Redis that this side closed.";
    PER_SECOND_POOL_ACTIVE: Gauge "ratelimit_redis_per_second_pool_cx_active" []
        "Connections to the Redis of limits per second that are open.";
    PER_SECOND_POOL_TOTAL: Counter "ratelimit_redis_per_second_pool_cx_total" []
        "Connections to the Redis of limits per second that were opened.";
    PER_SECOND_POOL_LOCAL_CLOSE: Counter "ratelimit_redis_per_second_pool_cx_local_close" []
        "Connections to the Redis of limits per second that this side closed.";
    REDIS_RECONNECTS: Counter "tollgate_redis_reconnects_total" ["pool"]
        "Connections that took the place of a lost one.";
    REDIS_BREAKERS_OPEN: Gauge "tollgate_redis_breakers_open" ["pool"]
        "Connections whose breaker is open: nothing is sent until a probe is answered in time.";
    REDIS_QUEUED: Gauge "tollgate_redis_queued_checks" ["pool"]
        "Checks that wait to be sent.";
    REDIS_QUEUED_MAX: Gauge "tollgate_redis_queued_checks_max" ["pool"]
        "How many checks may wait; one more is decided by STORE_FAILURE_POLICY.";
    REDIS_OUTSTANDING_MAX: Gauge "tollgate_redis_outstanding_checks_max" ["pool"]
        "Checks that may be outstanding, queued and sent together: what Redis is measured to answer within REDIS_TIMEOUT.";
    REDIS_SHED: Counter "tollgate_redis_shed_checks_total" ["pool", "reason"]
        "Checks that were not sent: overloaded when more waited than Redis answers in time, late when they had waited too long.";
    REDIS_ERRORS: Counter "tollgate_redis_errors_total" ["pool", "kind"]
        "Failures by kind.";
    REDIS_COMMAND_DENIED: Counter "tollgate_redis_command_denied_total" ["pool", "command"]
        "Commands that Redis refused to run: its user lacks the permission, or the server the command.";
    REDIS_WITHOUT_EXPIRY: Counter "tollgate_redis_keys_without_expiry_total" ["pool"]
        "Counters that were written and got no expiry because Redis refused to set it.";
    REDIS_OPERATION_TIME: Histogram "tollgate_redis_operation_seconds" ["pool"]
        "How long pipelines took, from sending to the last answer.";
    REDIS_BATCH_CHECKS: Histogram "tollgate_redis_batch_checks" ["pool"]
        "How many checks one pipeline carried.";
    MEMCACHED_CONNECTIONS: Gauge "tollgate_memcached_connections_open" []
        "Connections to memcached that are open.";
    MEMCACHED_CONNECTIONS_OPENED: Counter "tollgate_memcached_connections_opened_total" []
        "Connections to memcached that were opened.";
    MEMCACHED_RECONNECTS: Counter "tollgate_memcached_reconnects_total" []
        "Connections that took the place of a lost one.";
    MEMCACHED_BREAKERS_OPEN: Gauge "tollgate_memcached_breakers_open" []
        "Connections whose breaker is open: nothing is sent until a probe is answered in time.";
    MEMCACHED_QUEUED: Gauge "tollgate_memcached_queued_checks" []
        "Checks that wait to be sent.";
    MEMCACHED_QUEUED_MAX: Gauge "tollgate_memcached_queued_checks_max" []
        "How many checks may wait; one more is decided by STORE_FAILURE_POLICY.";
    MEMCACHED_OUTSTANDING_MAX: Gauge "tollgate_memcached_outstanding_checks_max" []
        "Checks that may be outstanding, queued and sent together: what memcached is measured to answer within MEMCACHE_TIMEOUT.";
    MEMCACHED_SHED: Counter "tollgate_memcached_shed_checks_total" ["reason"]
        "Checks that were not sent: overloaded when more waited than memcached answers in time, late when they had waited too long.";
    MEMCACHED_ERRORS: Counter "tollgate_memcached_errors_total" ["kind"]
        "Failures by kind.";
    MEMCACHED_OPERATION_TIME: Histogram "tollgate_memcached_operation_seconds" []
        "How long pipelines took, from sending to the last answer.";
    MEMCACHED_BATCH_CHECKS: Histogram "tollgate_memcached_batch_checks" []
        "How many checks one pipeline carried.";
    STORE_FAILURE_DECISIONS: Counter "tollgate_store_failure_decisions_total" ["policy", "reason"]
        "Requests decided by policy because their counters could not be asked in time.";
    REQUESTS: Counter "tollgate_requests_total" ["domain", "code"]
        "Requests by domain and overall code: ok, over_limit or error. Domain __unknown__ stands for domains without rules, and for requests refused before their domain was looked up.";
    RULE_HITS: Counter "tollgate_rule_hits_total" ["domain", "rule", "outcome"]
        "Hits by rule, named by its whole path, and outcome: allowed; over_limit, the part beyond the limit; shadow, the part beyond the limit that shadow mode allowed.";
    BUILD_INFO: Gauge "tollgate_build_info" ["version", "commit", "os", "arch"]
        "Always 1; the labels identify the build.";
    REQUESTS_REFUSED: Counter "tollgate_requests_refused_total" ["reason"]
        "Requests turned away before they were decided, because they were beyond a bound.";
    PANICS: Counter "tollgate_panics_total" ["where"]
        "Panics, by the work that each interrupted; the log has their backtraces.";
    CONNECTIONS_OPEN: Gauge "tollgate_connections_open" []
        "gRPC connections open now.";
    CONNECTIONS_ACCEPTED: Counter "tollgate_connections_accepted_total" []
        "gRPC connections taken.";
    CONNECTIONS_REFUSED: Counter "tollgate_connections_refused_total" ["port", "reason"]
        "Connections refused because a limit was reached and no connection could make room.";
    CONNECTIONS_CLOSED: Counter "tollgate_connections_closed_total" ["port", "reason"]
        "Connections closed by the service: silent and idle ones to make room for others, and those beyond a time limit.";
    PEER_ERRORS: Counter "tollgate_grpc_peer_errors_total" ["reason"]
        "gRPC connections ended by the service because the peer broke the rules of HTTP/2, or sent a flood of frames.";
    TLS_CERTIFICATE_EXPIRY: Gauge "tollgate_tls_certificate_expiry_timestamp_seconds" []
        "When the certificate that the gRPC port serves expires; absent without TLS.";
    TLS_RELOAD_ERRORS: Counter "tollgate_tls_reload_errors_total" []
        "Changes of the files of TLS that were refused; the last good ones went on serving.";
    TLS_HANDSHAKE_FAILURES: Counter "tollgate_tls_handshake_failures_total" ["reason"]
        "gRPC connections that ended before TLS was agreed on.";
    SPANS_EXPORTED: Counter "tollgate_spans_exported_total" []
        "Spans that the collector has taken; absent without tracing.";
    SPANS_DROPPED: Counter "tollgate_spans_dropped_total" ["reason"]
        "Spans that never reached the collector; no request waited for them.";
    CONFIG_LOAD_SUCCESS: Counter "ratelimit_service_config_load_success" []
        "Sets of rules that were taken.";
    CONFIG_LOAD_ERROR: Counter "ratelimit_service_config_load_error" []
        "Sets of rules that were refused; the last good one went on serving.";
    RULES_LAST_SUCCESS: Gauge "tollgate_rules_last_load_success_timestamp_seconds" []
        "When rules were last taken; absent if never.";
    RULES_LAST_ERROR: Gauge "tollgate_rules_last_load_error_timestamp_seconds" []
        "When rules were last refused; absent if never.";
    RULES_LOAD_FAILED: Gauge "tollgate_rules_load_failed" []
        "1 when the last set of rules was refused, so that older ones serve.";
    RULES_INFO: Gauge "tollgate_rules_info" ["hash"]
        "Always 1; the label is the hash of the rules in service, the same on every replica with the same rules.";
    RULES_FILES: Gauge "tollgate_rules_files" []
        "Files, or resources of a control plane, that the rules were read from.";
    RULES_DOMAINS: Gauge "tollgate_rules_domains" []
        "Domains that have rules.";
    RULES: Gauge "tollgate_rules" []
        "Rules that carry a limit.";
    XDS_CONNECTED: Gauge "tollgate_xds_connected" []
        "1 while there is a connection to the control plane; without one the rules stay as they are.";
    XDS_RECONNECTS: Counter "tollgate_xds_reconnects_total" []
        "How often it was tried to connect to the control plane after the first time.";
    XDS_UPDATES: Counter "tollgate_xds_updates_total" []
        "Responses of the control plane.";
    XDS_NACKS: Counter "tollgate_xds_nacks_total" []
        "Responses of the control plane that were refused.";
    XDS_VERSION: Gauge "tollgate_xds_version" ["version"]
        "Always 1; the label is the version that was accepted last.";
    STORE_KEYS: Gauge "tollgate_store_keys" []
        "Counters in memory.";
    STORE_KEYS_MAX: Gauge "tollgate_store_keys_max" []
        "Counters that memory is bounded to.";
    STORE_BYTES: Gauge "tollgate_store_bytes" []
        "Memory that the counters take.";
    STORE_EVICTIONS: Counter "tollgate_store_evictions_total" []
        "Counters given up before their time because there were as many as may be: their callers were forgotten.";
    STORE_EXPIRED: Counter "tollgate_store_expired_total" []
        "Counters given back because their time was over.";
    SERIES: Gauge "tollgate_metrics_series" []
        "Series that callers' values have made: of their names, and of domains that no rules know.";
    SERIES_MAX: Gauge "tollgate_metrics_series_max" []
        "How many series callers' values may make (METRICS_MAX_SERIES).";
    SERIES_OVERFLOW: Counter "tollgate_metrics_series_overflow_total" ["domain"]
        "How often a name or a series found no room and was counted in its domain's series __overflow__ instead.";
}

/// The process's CPU time, which is shown to a hundredth of a second.
pub(super) const PROCESS_CPU: &str = "process_cpu_seconds_total";

/// What the `prometheus` crate's collector tells of the process, where there is a `/proc` to read.
const PROCESS: [Metric; 7] = [
    Metric::of_process(PROCESS_CPU, Kind::Counter, "Total user and system CPU time spent in seconds."),
    Metric::of_process("process_open_fds", Kind::Gauge, "Number of open file descriptors."),
    Metric::of_process("process_max_fds", Kind::Gauge, "Maximum number of open file descriptors."),
    Metric::of_process("process_virtual_memory_bytes", Kind::Gauge, "Virtual memory size in bytes."),
    Metric::of_process("process_resident_memory_bytes", Kind::Gauge, "Resident memory size in bytes."),
    Metric::of_process(
        "process_start_time_seconds",
        Kind::Gauge,
        "Start time of the process since unix epoch in seconds.",
    ),
    Metric::of_process("process_threads", Kind::Gauge, "Number of OS threads in the process."),
];

impl Metric {
    const fn of_process(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, labels: &[], help }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_name_is_declared_once_and_fit_for_prometheus() {
        let mut seen = HashSet::new();
        for metric in documentation() {
            assert!(seen.insert(metric.name), "{} is declared twice", metric.name);
            let fits = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            assert!(fits(metric.name) && metric.labels.iter().all(|label| fits(label)), "{metric:?}");
            assert!(metric.help.ends_with('.'), "{}: help is a sentence", metric.name);
        }
    }

    #[test]
    fn our_own_counters_end_in_total_as_prometheus_advises() {
        for metric in documentation().iter().filter(|metric| metric.name.starts_with("tollgate_")) {
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Counter, "{}", metric.name);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_metrics_are_those_of_the_collector() {
        use ::prometheus::{core::Collector, process_collector::ProcessCollector};
        let collector = ProcessCollector::for_self();
        let theirs: Vec<_> = collector.desc().iter().map(|desc| (&*desc.fq_name, &*desc.help)).collect();
        assert_eq!(PROCESS.map(|metric| (metric.name, metric.help)).to_vec(), theirs);
    }
}
