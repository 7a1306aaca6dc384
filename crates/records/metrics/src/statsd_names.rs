//! Statsd names: parts joined by dots.
//!
//! The sinks send these names, and a mapper file matches them. Metrics that the Go service does not have, and those of
//! the process, have no such name.

use super::{
    labels::statsd_key,
    names::{Metric, RuleCounter},
};

const RULES: &str = "ratelimit.service.rate_limit.";

/// The name of a counter of the rule with this full key.
pub fn of_rule(full_key: &str, counter: RuleCounter) -> String {
    [RULES, &statsd_key(full_key), ".", counter.name()].concat()
}

/// The name of a metric with these labels, if it has one.
pub fn of_single(metric: &Metric, labels: &[&str]) -> Option<String> {
    let label = labels.first().copied().unwrap_or_default();
    (!metric.statsd.is_empty()).then(|| metric.statsd.replace("{}", label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;

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
            name(&rows::REQUESTS[1], &["redis_error"]),
            "ratelimit.service.call.should_rate_limit.redis_error"
        );
        assert_eq!(
            name(&rows::RESPONSE_TIME, &["ShouldRateLimit"]),
            "ratelimit_server.ShouldRateLimit.response_time"
        );
        assert_eq!(name(&rows::DOMAIN_NOT_FOUND, &["d"]), "ratelimit.service.rate_limit.d.domain_not_found");
        assert_eq!(name(&rows::POOL[0], &[]), "ratelimit.redis_pool.cx_active");
        assert_eq!(name(&rows::PER_SECOND_POOL[1], &[]), "ratelimit.redis_per_second_pool.cx_total");
        assert_eq!(of_single(&rows::REDIS[0], &["main"]), None);
    }
}
