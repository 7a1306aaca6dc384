//! Rules that change at run time.

use std::env;

use support::{client::request, load::Load, server::Server};

/// A limit for the key, in requests per hour.
fn rules(key: &str, limit: u32) -> String {
    format!(
        "domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
    )
}

/// The line of that limit in `/rlconfig`.
fn shown(key: &str, limit: u32) -> String {
    format!("d.{key}: unit=HOUR requests_per_unit={limit},")
}

#[test]
fn unchanged_rules_keep_their_counters() {
    let server = Server::start(&rules("a", 5));
    let remaining =
        |server: &Server| server.ask(request("d", &[&[("a", "v")]])).unwrap().statuses[0].limit_remaining;
    assert_eq!([remaining(&server), remaining(&server)], [4, 3]);

    let more =
        format!("{}  - {{key: b, rate_limit: {{unit: hour, requests_per_unit: 1}}}}\n", in_block("a", 5));
    server.write("rules.yaml", &more);
    server.wait_for_rule(&shown("b", 1));
    assert_eq!(remaining(&server), 2);
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\"}";
    assert_eq!(server.metrics().get(hits), Some(&3.0), "and their statistics");
}

/// As [`rules`], in block style, so that rules can be appended.
fn in_block(key: &str, limit: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n  - {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}\n"
    )
}

/// `TOLLGATE_TEST_RELOADS` sets the number of reloads.
#[test]
fn reloads_under_load_lose_no_request() {
    let reloads: u32 = env::var("TOLLGATE_TEST_RELOADS").map_or(50, |text| text.parse().unwrap());
    let limit = |reload: u32| 1_000_000_000 + reload;
    let server = Server::start(&rules("k", limit(0)));
    let load = Load::start(&[server.ports.grpc], 4, &request("d", &[&[("k", "v")]]));
    for reload in 1..=reloads {
        server.write("rules.yaml", &rules("k", limit(reload)));
        server.wait_for_rule(&shown("k", limit(reload)));
    }
    let mut outcome = load.stop();
    let p999 = outcome.p999();
    println!("{reloads} reloads, {} answers, 99.9 % within {p999:?}", outcome.answered);
    outcome.assert_nothing_lost();
    let loads = server.metrics().get("ratelimit_service_config_load_success").copied().unwrap_or_default();
    assert!(loads > f64::from(reloads), "{loads} loads are counted");
}
