//! Statsd names: parts joined by dots.
//!
//! The sinks send these names, and a mapper file matches them. Metrics that the Go service does not have, and those of
//! the process, have no such name.

use super::{
    labels::statsd_key,
    names::{self, Metric, RuleCounter},
};

const RULES: &str = "ratelimit.service.rate_limit.";

/// Prefixes of metrics whose Prometheus and statsd names have the same end.
const FAMILIES: [(&str, &str); 5] = [
    ("ratelimit_service_global_", "ratelimit.service.global_"),
    ("ratelimit_service_config_", "ratelimit.service.config_"),
    ("ratelimit_localcache_", "ratelimit.localcache."),
    ("ratelimit_redis_pool_", "ratelimit.redis_pool."),
    ("ratelimit_redis_per_second_pool_", "ratelimit.redis_per_second_pool."),
];

/// The name of a counter of the rule with this full key.
pub fn of_rule(full_key: &str, counter: RuleCounter) -> String {
    [RULES, &statsd_key(full_key), ".", counter.name()].concat()
}

/// The name of a metric with these labels, if it has one.
pub fn of_single(metric: &Metric, labels: &[&str]) -> Option<String> {
    let label = labels.first().copied().unwrap_or_default();
    let name = match metric.name {
        name if name == names::DOMAIN_NOT_FOUND.name => format!("{RULES}{label}.domain_not_found"),
        name if name == names::SHOULD_RATE_LIMIT_ERROR.name => {
            format!("ratelimit.service.call.should_rate_limit.{label}")
        }
        name if name == names::TOTAL_REQUESTS.name => format!("ratelimit_server.{label}.total_requests"),
        name if name == names::RESPONSE_TIME.name => format!("ratelimit_server.{label}.response_time"),
        name => {
            FAMILIES.iter().find_map(|(page, statsd)| Some([statsd, name.strip_prefix(page)?].concat()))?
        }
    };
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_the_names_of_the_go_service() {
        let names = RuleCounter::ALL.map(|counter| of_rule("d.ip_10.0.0.1.a:b", counter));
        let expected = [
            "total_hits",
            "over_limit",
            "near_limit",
            "within_limit",
            "over_limit_with_local_cache",
            "shadow_mode",
            "total_negative_hits",
        ];
        assert_eq!(
            names,
            expected.map(|stat| format!("ratelimit.service.rate_limit.d.ip_10_0_0_1.a_b.{stat}"))
        );
    }

    #[test]
    fn other_metrics_have_the_go_services_names_and_our_own_have_none() {
        let name = |metric: &Metric, labels: &[&str]| of_single(metric, labels).unwrap();
        assert_eq!(
            name(&names::SHOULD_RATE_LIMIT_ERROR, &["redis_error"]),
            "ratelimit.service.call.should_rate_limit.redis_error"
        );
        assert_eq!(
            name(&names::RESPONSE_TIME, &["ShouldRateLimit"]),
            "ratelimit_server.ShouldRateLimit.response_time"
        );
        assert_eq!(name(&names::DOMAIN_NOT_FOUND, &["d"]), "ratelimit.service.rate_limit.d.domain_not_found");
        assert_eq!(name(&names::LOCAL_CACHE_HITS, &[]), "ratelimit.localcache.hitCount");
        assert_eq!(name(&names::POOL_ACTIVE, &[]), "ratelimit.redis_pool.cx_active");
        assert_eq!(name(&names::PER_SECOND_POOL_TOTAL, &[]), "ratelimit.redis_per_second_pool.cx_total");
        assert_eq!(of_single(&names::REDIS_RECONNECTS, &["main"]), None);
        assert_eq!(of_single(&names::BUILD_INFO, &["1", "linux", "x"]), None);
        assert_eq!(of_single(&names::STORE_KEYS, &[]), None);
    }
}
