//! The limit of each rule as a metric: by the file, its schedule, and overrides of whole rules.

use super::*;

/// From 08:00 to 20:00 in Berlin, which is 07:00 to 19:00 of UTC in November.
const DESK: &str = "
domain: desk
descriptors:
- key: user
  rate_limit:
    unit: day
    requests_per_unit: 3
    schedule: [{days: mon-fri, from: 08:00, to: 20:00, time_zone: Europe/Berlin, requests_per_unit: 9}]
- key: queue
  rate_limit: {unit: minute, unit_multiplier: 15, requests_per_unit: 4}
";

/// The limit of a rule with the Go service's labels.
fn limit(replica: &Replica, labels: &str) -> Option<f64> {
    replica.server.metrics().get(&format!("ratelimit_service_rate_limit_limit{{{labels}}}")).copied()
}

/// The limits of a rule of `shop` by their units.
fn by_unit(replica: &Replica, domain: &str, rule: &str) -> Vec<(String, f64)> {
    let begin = format!("tollgate_rule_limit{{domain=\"{domain}\",rule=\"{rule}\",unit=\"");
    let metrics = replica.server.metrics();
    let of_rule = metrics.iter().filter_map(|(name, value)| {
        Some((name.strip_prefix(&begin)?.strip_suffix("\"}")?.to_owned(), *value))
    });
    let mut found: Vec<_> = of_rule.collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

fn at(limits: &[(&str, f64)]) -> Vec<(String, f64)> {
    limits.iter().map(|(unit, number)| ((*unit).to_owned(), *number)).collect()
}

#[test]
fn the_limit_of_a_rule_is_a_metric_that_follows_overrides_of_the_whole_rule() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", RULES).rules("desk.yaml", DESK));
    let of = |key: &str| limit(&replica, &format!("domain=\"shop\",key1=\"{key}\""));
    assert_eq!((of("user"), of("user_vip"), of("path_/a/*")), (Some(3.0), Some(5.0), Some(3.0)));
    assert_eq!(
        (of("two"), of("customer")),
        (Some(3.0), None),
        "the lowest, and one that only overrides have"
    );
    assert_eq!(by_unit(&replica, "shop", "two"), at(&[("day", 3.0), ("year", 5.0)]));
    assert_eq!(by_unit(&replica, "desk", "queue"), at(&[("15 minutes", 4.0)]));

    replica.tollgate(&["override", "set", "shop", "user", "--limit", "7/minute"]);
    replica.tollgate(&["override", "set", "shop", "user=bob", "--limit", "100/minute"]);
    replica.tollgate(&["override", "set", "shop", "user=vip", "--block"]);
    replica.tollgate(&["override", "set", "shop", "customer", "--limit", "10/hour"]);
    replica.tollgate(&["override", "set", "shop", "client", "--allow"]);
    replica.tollgate(&["override", "set", "shop", "two", "--shadow"]);
    assert_eq!((of("user"), of("user_vip"), of("customer")), (Some(7.0), Some(0.0), Some(10.0)));
    assert_eq!((of("client"), of("two")), (None, Some(3.0)), "no limit is in force, and one is only tried");
    assert_eq!(by_unit(&replica, "shop", "user"), at(&[("minute", 7.0)]));
    replica.tollgate(&["override", "remove", "shop", "user"]);
    assert_eq!(of("user"), Some(3.0));
}

#[test]
fn the_limit_of_a_rule_follows_its_schedule() {
    let clock = Clock::at("2026-11-23T06:55:00Z").steerable();
    let _clock = clock.enter();
    let replica = Replica::start(Setup::new().rules("desk.yaml", DESK));
    let of = || limit(&replica, "domain=\"desk\",key1=\"user\"");
    assert_eq!(of(), Some(3.0));
    clock.step(600.0);
    assert_eq!(of(), Some(9.0));
}

#[test]
fn the_limits_are_as_many_as_the_series_may_be() {
    let replica = Replica::start(Setup::new().rules("shop.yaml", RULES).env("METRICS_MAX_SERIES", "4"));
    let metrics = replica.server.metrics();
    let series = |begin: &str| metrics.keys().filter(|name| name.starts_with(begin)).count();
    assert_eq!(series("tollgate_rule_limit{"), 4);
    assert!((1..=4).contains(&series("ratelimit_service_rate_limit_limit{")));
}
