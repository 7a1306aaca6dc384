//! The metrics of the service and of the stores. Those of the other parts are with the program's wiring.

use std::env::consts::{ARCH, OS};

use super::{
    HoldBound, HoldEnd, LeaseUsage, PoolUsage, QuotaRefused, ResponseCode, Stats, StoreKind, StoreUsage,
    domains::UNMATCHED_DESCRIPTORS,
    service::{
        CallerLeft, ConnectionClosed, ConnectionRefused, Method, PeerError, PointResult, Port, RejectReason,
        Unauthorized,
    },
};
use crate::{FailureReason, Samples, Value, log_lines_dropped, rows};
use faults::{OnStoreFailure, mutex::lock, panics};

// Those of the Go service do not end in `_total`; dashboards are built on them as they are.
rows! { pub RULES
    Counter "ratelimit_service_rate_limit_total_hits" ["domain", "key1", "key2"];
        "Hits on the rule, before the decision.";
    Counter "ratelimit_service_rate_limit_over_limit" ["domain", "key1", "key2"]; "Hits over the rule's limit.";
    Counter "ratelimit_service_rate_limit_near_limit" ["domain", "key1", "key2"];
        "Hits between the near threshold (NEAR_LIMIT_RATIO) and the rule's limit.";
    Counter "ratelimit_service_rate_limit_within_limit" ["domain", "key1", "key2"]; "Hits within the rule's limit.";
    Counter "ratelimit_service_rate_limit_over_limit_with_local_cache" ["domain", "key1", "key2"];
        "Hits over the rule's limit that the local cache rejected without the store.";
    Counter "ratelimit_service_rate_limit_shadow_mode" ["domain", "key1", "key2"];
        "Hits over the rule's limit that shadow mode allowed.";
    Counter "ratelimit_service_rate_limit_total_negative_hits" ["domain", "key1", "key2"];
        "Hits of refunds (is_negative_hits) on the rule; absent until the first.";
}

rows! { pub REQUESTS = requests(stats: &Stats)
    Counter DOMAIN_NOT_FOUND "ratelimit_service_rate_limit_domain_not_found"
        as "ratelimit.service.rate_limit.{}.domain_not_found" ["domain"]
        = stats.unknown_domains.totals().iter().map(|(domain, n)| ([&**domain], *n));
        "Descriptors of requests with an unknown domain.";
    Counter "ratelimit_service_should_rate_limit_error"
        as "ratelimit.service.call.should_rate_limit.{}" ["err_type"]
        = [(["redis_error"], stats.service.redis_error.get()), (["service_error"], stats.service.service_error.get())];
        "Requests that returned an error: service_error for an invalid request or missing rules, redis_error for a failed store.";
    Counter "ratelimit_service_total_requests"
        as "ratelimit_server.{}.total_requests" ["grpc_method"]
        = Method::ALL.map(|method| ([method.name()], stats.service.requests(method).get()));
        "Calls of the gRPC method, with any result.";
    Histogram RESPONSE_TIME "ratelimit_service_response_time_seconds"
        as "ratelimit_server.{}.response_time" ["grpc_method"]
        = Method::ALL.map(|method| (method.name(), stats.service.response_time(method).snapshot())).iter()
            .map(|(method, times)| ([*method], times));
        "Response times. Envoy's default timeout is 20 ms.";
    Counter "ratelimit_service_global_shadow_mode"
        as "ratelimit.service.global_shadow_mode" = stats.service.global_shadow_mode.get();
        "Requests over their limit that SHADOW_MODE allowed.";
    Counter "tollgate_store_failure_decisions_total" ["policy", "reason"]
        = pairs(OnStoreFailure::ALL, FailureReason::ALL)
            .map(|(policy, why)| ([policy.name(), why.name()], stats.service.store_failures(policy, why).get()));
        "Requests decided by the failure policy because their counters were not reached in time.";
    Counter "tollgate_requests_total" ["domain", "code"]
        = stats.domains.counts().iter()
            .flat_map(|(domain, counts)| ResponseCode::ALL.map(|code| ([&**domain, code.name()], counts[code as usize])));
        "Requests by domain and overall code: ok, over_limit or error. Domain __unknown__ stands for domains without rules, and for requests rejected before their domain was looked up.";
    Counter "tollgate_unmatched_descriptors_total" ["domain"]
        = stats.domains.counts().iter().map(|(domain, counts)| ([&**domain], counts[UNMATCHED_DESCRIPTORS]));
        "Descriptors that meet no rule, and those of domains without rules as __unknown__.";
    Gauge "tollgate_not_enforced" ["domain", "why"]
        = lock(&stats.not_enforced).iter().map(|labels| (labels.each_ref().map(|label| &**label), 1_u64));
        "1 for each reason why limits of a domain are not enforced; domain * stands for all. Somebody chose domain_allow, domain_shadow, rule_shadow and shadow_mode; nobody chose rules_missing, rules_rejected, store_failure by the policies error and allow, and unmatched.";
}

rows! { pub HITS
    Counter RULE_HITS "tollgate_rule_hits_total" ["domain", "rule", "outcome"];
        "Hits by rule, named by its full key, and outcome: allowed; over_limit, the part over the limit; shadow, the part over the limit that shadow mode allowed.";
}

rows! { pub SERVICE = service(stats: &Stats)
    Gauge "tollgate_build_info" ["version", "commit", "os", "arch"]
        = [([env!("CARGO_PKG_VERSION"), stats.commit, OS, ARCH], 1_u64)];
        "Always 1; the labels identify the build.";
    Counter "tollgate_requests_refused_total" ["reason"]
        = RejectReason::ALL.map(|reason| ([reason.name()], stats.service.refused(reason).get()));
        "Requests rejected before a decision because they exceed a bound.";
    Counter "tollgate_panics_total" ["where"] = panics::counts().map(|(name, n)| ([name], n));
        "Panics by the interrupted work; the log has backtraces.";
    Counter "tollgate_log_lines_dropped_total" = log_lines_dropped();
        "Log lines dropped because standard error was not read in time, or its disk is full.";
    Counter "tollgate_otlp_points_total" ["result"]
        = PointResult::ALL.map(|result| ([result.name()], stats.service.otlp_points(result).get()));
        "Data points of metrics sent over OTLP, by what became of them; the next export has what was not accepted.";
    Gauge "tollgate_connections_open" = stats.service.connections_open(); "Open gRPC connections.";
    Counter "tollgate_connections_accepted_total" = stats.service.connections_accepted.get();
        "Accepted gRPC connections.";
    Counter "tollgate_connections_refused_total" ["port", "reason"] = pairs(Port::ALL, ConnectionRefused::ALL)
            .map(|(port, why)| ([port.name(), why.name()], stats.service.connections_refused(port, why).get()));
        "Connections refused because a limit was reached and none could be closed.";
    Counter "tollgate_connections_closed_total" ["port", "reason"] = pairs(Port::ALL, ConnectionClosed::ALL)
            .map(|(port, why)| ([port.name(), why.name()], stats.service.connections_closed_by_us(port, why).get()));
        "Connections closed by the service: silent and idle ones in favour of others, and those beyond a time limit.";
    Counter "tollgate_grpc_peer_errors_total" ["reason"]
        = PeerError::ALL.map(|reason| ([reason.name()], stats.service.peer_errors(reason).get()));
        "gRPC connections closed by the service because of HTTP/2 protocol errors or a flood of frames.";
    Counter "tollgate_callers_left_total" ["decision"]
        = CallerLeft::ALL.map(|left| ([left.name()], stats.service.callers_left(left).get()));
        "Requests whose caller reset the stream or left before the response arrived: sent, too late; finished without the caller after waiting for the store; dropped beyond a bound. Always 0 for sent with GRPC_SERVER=tonic.";
    Counter "tollgate_late_responses_total" = stats.service.late_responses.get();
        "Responses sent after the deadline of their caller (grpc-timeout, which Envoy sets to its timeout), counted from when the request was read. Always 0 with GRPC_SERVER=tonic.";
    Counter "tollgate_holds_settled_total" ["rule"]
        = stats.holds.by_rule().iter().map(|rule| ([&*rule.full_key], rule.settled.get()));
        "Holds settled at their cost before they ended or expired.";
    Counter "tollgate_holds_ended_total" ["rule", "how"] = stats.holds.by_rule().iter()
            .flat_map(|rule| HoldEnd::ALL.map(|how| ([&*rule.full_key, how.name()], rule.ended(how).get())));
        "Holds that ended without a cost: ended by a request; expired after their ttl; unanswered, because the caller did not get their id.";
    Counter "tollgate_holds_late_total" = stats.holds.late.get();
        "Costs that came after the hold had ended or expired, and corrected what that charged.";
    Counter "tollgate_holds_overspent_hits_total" = stats.holds.overspent_hits.get();
        "Hits by which costs and charges exceeded what was held.";
    Counter "tollgate_holds_unknown_ids_total" = stats.holds.unknown_ids.get();
        "Settles that changed nothing: of unknown, malformed, forgotten or already settled ids.";
    Counter "tollgate_holds_refused_total" ["bound"]
        = HoldBound::ALL.map(|bound| ([bound.name()], stats.holds.refused(bound).get()));
        "What a bound of holds refused: holds beyond HOLDS_MAX, HOLDS_MAX_PER_COUNTER or HOLDS_MAX_BYTES; slots of a cluster; settles and ends beyond HOLDS_MAX_QUEUED, which are lost.";
    Counter "tollgate_quota_reports_total" = stats.quotas.reports.get(); "Usage reports of Envoys.";
    Counter "tollgate_quota_reported_hits_total" ["outcome"] = [
            (["allowed"], stats.quotas.allowed_hits.get()),
            (["denied"], stats.quotas.denied_hits.get()),
        ];
        "Requests that Envoys reported, by what they did.";
    Counter "tollgate_quota_refused_total" ["reason"]
        = QuotaRefused::ALL.map(|reason| ([reason.name()], stats.quotas.refused(reason).get()));
        "Reported buckets that were assigned nothing because of their ids, a bound on buckets, or a rule that holds.";
    Counter "tollgate_admin_changes_total" ["action", "result"] = stats.service.admin_changes.totals();
        "Changes through the admin API by result: ok; rejected if invalid or not allowed; error if they could not be made.";
    Counter "tollgate_admin_unauthorized_total" ["reason"]
        = Unauthorized::ALL.map(|reason| ([reason.name()], stats.service.admin_unauthorized(reason).get()));
        "Calls of the admin API without a valid token: missing, or unknown, as of someone who guesses.";
}

// The names of the Go service have the Redis in them, ours in a label.
rows! { pub POOL = pool(pool: &PoolUsage)
    Gauge "ratelimit_redis_pool_cx_active" as "ratelimit.redis_pool.cx_active" = pool.connections;
        "Open connections to Redis.";
    Counter "ratelimit_redis_pool_cx_total" as "ratelimit.redis_pool.cx_total" = pool.opened;
        "Opened connections to Redis.";
    Counter "ratelimit_redis_pool_cx_local_close" as "ratelimit.redis_pool.cx_local_close" = pool.closed;
        "Connections to Redis closed by this side.";
}

rows! { pub PER_SECOND_POOL = per_second_pool(pool: &PoolUsage)
    Gauge "ratelimit_redis_per_second_pool_cx_active"
        as "ratelimit.redis_per_second_pool.cx_active" = pool.connections;
        "Open connections to the Redis for limits per second.";
    Counter "ratelimit_redis_per_second_pool_cx_total"
        as "ratelimit.redis_per_second_pool.cx_total" = pool.opened;
        "Opened connections to the Redis for limits per second.";
    Counter "ratelimit_redis_per_second_pool_cx_local_close"
        as "ratelimit.redis_per_second_pool.cx_local_close" = pool.closed;
        "Connections to the Redis for limits per second closed by this side.";
}

rows! { pub REDIS = redis(pools: &[&PoolUsage])
    Counter "tollgate_redis_reconnects_total" ["pool"] = each(pools, |pool| pool.reconnects);
        "Connections that replaced a lost one.";
    Gauge "tollgate_redis_breakers_open" ["pool"] = each(pools, |pool| pool.breakers_open);
        "Connections whose breaker is open: nothing is sent until a probe is answered in time.";
    Gauge "tollgate_redis_queued_checks" ["pool"] = each(pools, |pool| pool.queued); "Queued checks.";
    Gauge "tollgate_redis_queued_checks_max" ["pool"] = each(pools, |pool| pool.max_queued);
        "Maximum number of queued checks; further ones are decided by STORE_FAILURE_POLICY.";
    Gauge "tollgate_redis_outstanding_checks_max" ["pool"] = each(pools, |pool| pool.max_outstanding);
        "Maximum number of sent and unanswered checks: 65536 a connection, fewer while Redis is slow.";
    Counter "tollgate_redis_shed_checks_total" ["pool", "reason"] = of_each(pools, |pool| &pool.shed);
        "Checks that were not sent: overloaded if Redis was too slow to answer them in time, late if no caller waited for them any more.";
    Counter "tollgate_redis_errors_total" ["pool", "kind"] = of_each(pools, |pool| &pool.errors); "Failures by kind.";
    Counter "tollgate_redis_command_denied_total" ["pool", "command"] = of_each(pools, |pool| &pool.denied);
        "Commands that Redis denied: missing permission, or unknown command.";
    Counter "tollgate_redis_keys_without_expiry_total" ["pool"] = each(pools, |pool| pool.without_expiry);
        "Counters without an expiry because Redis refused to set it.";
    Histogram "tollgate_redis_operation_seconds" ["pool"] = each(pools, |pool| &pool.operation_time);
        "Pipeline latency, from sending to the last reply.";
    Histogram "tollgate_redis_batch_checks" ["pool"] = each(pools, |pool| &pool.batch_size); "Checks per pipeline.";
    Histogram "tollgate_redis_worker_lateness_seconds" ["pool"] = each(pools, |pool| &pool.worker_lateness);
        "Delay of a worker's timers while it waited for Redis: high if this process is short of CPU.";
}

rows! { pub MEMCACHED = memcached(pool: &PoolUsage)
    Gauge "tollgate_memcached_connections_open" = pool.connections; "Open connections to memcached.";
    Counter "tollgate_memcached_connections_opened_total" = pool.opened; "Opened connections to memcached.";
    Counter "tollgate_memcached_reconnects_total" = pool.reconnects; "Connections that replaced a lost one.";
    Gauge "tollgate_memcached_breakers_open" = pool.breakers_open;
        "Connections whose breaker is open: nothing is sent until a probe is answered in time.";
    Gauge "tollgate_memcached_queued_checks" = pool.queued; "Queued checks.";
    Gauge "tollgate_memcached_queued_checks_max" = pool.max_queued;
        "Maximum number of queued checks; further ones are decided by STORE_FAILURE_POLICY.";
    Gauge "tollgate_memcached_outstanding_checks_max" = pool.max_outstanding;
        "Maximum number of sent and unanswered checks: 65536 a connection, fewer while memcached is slow.";
    Counter "tollgate_memcached_shed_checks_total" ["reason"] = pool.shed.map(|(reason, n)| ([reason], n));
        "Checks that were not sent: overloaded if memcached was too slow to answer them in time, late if no caller waited for them any more.";
    Counter "tollgate_memcached_errors_total" ["kind"] = pool.errors.iter().map(|(kind, n)| ([*kind], *n));
        "Failures by kind.";
    Histogram "tollgate_memcached_operation_seconds" = &pool.operation_time;
        "Pipeline latency, from sending to the last reply.";
    Histogram "tollgate_memcached_batch_checks" = &pool.batch_size; "Checks per pipeline.";
    Histogram "tollgate_memcached_worker_lateness_seconds" = &pool.worker_lateness;
        "Delay of a worker's timers while it waited for memcached: high if this process is short of CPU.";
}

rows! { pub LEASES = leases(leases: &LeaseUsage<'_>)
    Gauge "tollgate_lease_keys" = leases.keys; "Keys with a lease; absent until a key is hot.";
    Gauge "tollgate_lease_keys_max" = leases.max_keys; "Maximum number of keys with a lease (LEASE_MAX_KEYS).";
    Gauge "tollgate_lease_held_hits" = leases.held; "Unspent hits in leases.";
    Counter "tollgate_lease_hits_total" = leases.hits; "Checks that a lease decided without the store.";
    Counter "tollgate_lease_waits_total" = &leases.counts.waits; "Checks of hot keys that waited for the store.";
    Counter "tollgate_lease_grants_total" ["result"]
        = [(["granted"], &leases.counts.grants), (["refused"], &leases.counts.ungranted)];
        "Requests for leases by result: granted, or refused if the limit had too few hits left or the reply was lost.";
    Counter "tollgate_lease_granted_total" = &leases.counts.granted; "Hits leased.";
    Counter "tollgate_lease_returned_total" = &leases.counts.returned; "Leased hits returned unspent.";
    Counter "tollgate_lease_expired_total" = &leases.counts.expired;
        "Leased hits that were not spent before their window ended, or were lost with their counter.";
    Counter "tollgate_lease_evictions_total" = &leases.counts.evicted;
        "Leases that ended because LEASE_MAX_KEYS was reached.";
}

rows! { pub STORE = store(store: &StoreUsage)
    Gauge "tollgate_store_keys" = store.held.entries; "Counters in memory.";
    Gauge "tollgate_store_keys_max" = store.max_keys;
        "Maximum number of counters in memory. Sliding logs are bounded separately, by 48 bytes for each.";
    Gauge "tollgate_store_bytes" = store.held.bytes; "Memory of the counters.";
    Counter "tollgate_store_evictions_total" ["counter"]
        = [(["within_limit"], store.held.evicted - store.held.evicted_over), (["over_limit"], store.held.evicted_over)];
        "Counters evicted because MEMORY_MAX_KEYS was reached, over_limit or within_limit; their callers start at zero.";
    Counter "tollgate_store_expired_total" = store.held.expired; "Expired counters.";
}

rows! { pub SERIES = series(stats: &Stats)
    Gauge "tollgate_metrics_series" = stats.room.taken(); "Series named by requests, including unknown domains.";
    Gauge "tollgate_metrics_series_max" = stats.room.max;
        "Maximum number of series named by requests (METRICS_MAX_SERIES).";
    Counter "tollgate_metrics_series_overflow_total" ["domain"]
        = stats.registry.refused().iter().map(|(domain, n)| ([&**domain], *n));
        "Hits counted in the domain's series __overflow__ because METRICS_MAX_SERIES was reached.";
}

// Of the `prometheus` crate, on systems with `/proc`.
rows! { pub PROCESS
    Counter "process_cpu_seconds_total"; "Total user and system CPU time spent in seconds.";
    Gauge "process_open_fds"; "Number of open file descriptors.";
    Gauge "process_max_fds"; "Maximum number of open file descriptors.";
    Gauge "process_virtual_memory_bytes"; "Virtual memory size in bytes.";
    Gauge "process_resident_memory_bytes"; "Resident memory size in bytes.";
    Gauge "process_start_time_seconds"; "Start time of the process since unix epoch in seconds.";
    Gauge "process_threads"; "Number of OS threads in the process.";
}

/// The connections to each Redis, or to all servers of memcached.
pub fn pools(samples: &mut Samples<'_>, pools: &[PoolUsage]) {
    let (of_memcached, of_redis): (Vec<_>, Vec<_>) =
        pools.iter().partition(|pool| pool.kind == StoreKind::Memcached);
    for pool in &of_redis {
        if pool.kind == StoreKind::Redis { self::pool(samples, pool) } else { per_second_pool(samples, pool) }
    }
    redis(samples, &of_redis);
    for pool in of_memcached {
        memcached(samples, pool);
    }
}

fn name_of(pool: &PoolUsage) -> &'static str {
    if pool.kind == StoreKind::RedisPerSecond { "per_second" } else { "main" }
}

/// A value of each Redis.
fn each<'p, V: Into<Value<'p>>>(
    pools: &[&'p PoolUsage],
    value: fn(&'p PoolUsage) -> V,
) -> impl Iterator<Item = ([&'static str; 1], V)> {
    pools.iter().map(move |pool| ([name_of(pool)], value(pool)))
}

/// Several values of each Redis, by a second label.
fn of_each<'p>(
    pools: &[&'p PoolUsage],
    values: fn(&'p PoolUsage) -> &'p [(&'static str, u64)],
) -> impl Iterator<Item = ([&'static str; 2], u64)> {
    pools.iter().flat_map(move |pool| values(pool).iter().map(|(label, n)| ([name_of(pool), *label], *n)))
}

fn pairs<A: Copy, B: Copy, const M: usize, const N: usize>(
    all: [A; M],
    others: [B; N],
) -> impl Iterator<Item = (A, B)> {
    all.into_iter().flat_map(move |one| others.map(|other| (one, other)))
}
