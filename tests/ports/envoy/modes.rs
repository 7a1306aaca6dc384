//! Shadow mode, quotas with dynamic metadata, and limits that Envoy sends.

use serde_json::{Value, json};

use support::{
    bootstrap::{Wanted, always, by_header, metadata},
    envoy::Envoy,
    server::{Server, Setup},
};

#[test]
fn shadow_mode_allows_everything_and_counts_what_it_would_reject() {
    let rules = "
domain: edge
descriptors:
  - key: user
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
";
    let server = Server::start(rules);
    let envoy = Envoy::start(&Wanted::of(&server, json!([by_header("user", "x-user")])));

    assert_eq!(envoy.statuses(5, &[("x-user", "ann")]), [200; 5]);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.ok"), 5);
    let metrics = server.metrics();
    let shadow = "ratelimit_service_rate_limit_shadow_mode{domain=\"edge\",key1=\"user\"}";
    assert_eq!(metrics.get(shadow), Some(&3.0));
}

#[test]
fn quotas_reject_when_all_are_spent_and_metadata_shows_the_unspent_one() {
    let rules = "
domain: edge
descriptors:
  - key: model
    value: large
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 2}
    metadata: {route: large}
  - key: model
    value: small
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 3}
    metadata: {route: small}
";
    let server = Setup::new().rules("edge.yaml", rules).env("RESPONSE_DYNAMIC_METADATA", "true").start();
    let limits = json!([always("model", "large"), always("model", "small")]);
    let envoy = Envoy::start(&Wanted::of(&server, limits));

    assert_eq!(envoy.statuses(4, &[]), [200, 200, 200, 429], "refused once both quotas are spent");
    let logged = envoy.logged_metadata(4);
    let routes: Vec<_> = logged.iter().map(|one| &one["metadata"]["route"]).collect();
    assert_eq!(routes[..3], [&json!("large"), &json!("large"), &json!("small")], "{logged:?}");
    assert_eq!(routes[3], &Value::Null, "no quota is left to report");
    assert_eq!(logged[0]["domain"], json!("edge"));
    let entries = json!([{"entries": ["model=large"]}, {"entries": ["model=small"]}]);
    assert_eq!(logged[0]["descriptors"], entries);
}

#[test]
fn a_limit_from_envoys_metadata_overrides_the_rules() {
    let rules = "
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 100}
";
    let server = Server::start(rules);
    let mut limit = by_header("user", "x-user");
    limit["limit"] =
        json!({"dynamic_metadata": {"metadata_key": {"key": "plan", "path": [{"key": "limit"}]}}});
    let plan = metadata("plan", &json!({"limit": {"requests_per_unit": 1, "unit": "HOUR"}}));
    let envoy = Envoy::start(&Wanted { filters_before: vec![plan], ..Wanted::of(&server, json!([limit])) });

    assert_eq!(envoy.statuses(3, &[("x-user", "ann")]), [200, 429, 429]);
}
