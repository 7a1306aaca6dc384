//! Requests that bring their own limits, each with another one, as those of Envoy Gateway's `limit.fromMetadata` do: what
//! they mean, and what many of them cost.

use proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    service::ratelimit::v3::{RateLimitRequest, rate_limit_response::Code},
};
use serde_json::Value;

use support::{
    client::{Client, descriptor},
    clock::Clock,
    http, or_deep,
    ports::free_port,
    server::{Server, Setup},
    stores::Stores,
};

const RULES: &str =
    "domain: d\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 1000}}\n";

const MINUTE: i32 = 2;
const HOUR: i32 = 3;
const WEEK: i32 = 7;

fn limited(user: &str, (requests_per_unit, unit): (u32, i32)) -> RateLimitDescriptor {
    let limit = Some(RateLimitOverride { requests_per_unit, unit, unit_multiplier: None });
    RateLimitDescriptor { limit, ..descriptor(&[("user", user)]) }
}

fn asked(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

/// The code, and what is left.
fn ask(client: &Client, descriptor: RateLimitDescriptor) -> (Code, u32) {
    let answer = client.ask(asked(vec![descriptor])).unwrap();
    (answer.overall_code(), answer.statuses[0].limit_remaining)
}

#[test]
fn a_limit_of_0_refuses_and_a_week_counts_a_week() {
    let clock = Clock::at("2026-11-24T10:00:00Z").steerable();
    let _clock = clock.enter();
    for (store, setup) in Stores::start(RULES).setups() {
        let server = setup.start_healthy();
        let client = server.client();
        assert_eq!(ask(&client, limited("none", (0, HOUR))), (Code::OverLimit, 0), "{store}");
        // The same user with a limit above 0 has a counter that the refused request is in.
        assert_eq!(ask(&client, limited("none", (3, HOUR))), (Code::Ok, 1), "{store}");
        assert_eq!(ask(&client, limited("none", (0, WEEK))), (Code::OverLimit, 0), "{store}");

        let answer = client.ask(asked(vec![limited("ann", (2, WEEK))])).unwrap();
        let status = &answer.statuses[0];
        assert_eq!(status.current_limit.as_ref().unwrap().unit, WEEK, "{store}");
        // Weeks begin on Thursdays: 38 hours later.
        let until = status.duration_until_reset.unwrap().seconds;
        assert!((38 * 3600 - 120..=38 * 3600).contains(&until), "{store}: {until}");
        assert_eq!(ask(&client, limited("ann", (2, WEEK))), (Code::Ok, 0), "{store}");
        assert_eq!(ask(&client, limited("ann", (2, WEEK))), (Code::OverLimit, 0), "{store}");
        drop((client, server));
    }
}

#[test]
fn a_limit_of_several_units_has_one_window_of_them() {
    let clock = Clock::at("2026-11-24T10:00:00Z").steerable();
    let _clock = clock.enter();
    for (store, setup) in Stores::start(RULES).setups() {
        let server = setup.start_healthy();
        let client = server.client();
        let of_units = |units| {
            let mut descriptor = limited("ann", (3, MINUTE));
            descriptor.limit.as_mut().unwrap().unit_multiplier = units;
            descriptor
        };
        let answer = client.ask(asked(vec![of_units(Some(15))])).unwrap();
        let status = &answer.statuses[0];
        assert_eq!(status.current_limit.as_ref().unwrap().unit_multiplier, Some(15), "{store}");
        let until = status.duration_until_reset.unwrap().seconds;
        assert!((900 - 120..=900).contains(&until), "{store}: {until}");
        assert_eq!(ask(&client, of_units(Some(15))), (Code::Ok, 1), "{store}");
        // Another counter, and the same without a multiplier and with one.
        assert_eq!([None, Some(1)].map(|units| ask(&client, of_units(units)).1), [2, 1], "{store}");
        for units in [0, u32::MAX] {
            let refused = client.ask(asked(vec![of_units(Some(units))])).unwrap_err();
            let expected = format!("limit of descriptor 0: unit_multiplier {units}; expected 1 or more");
            assert!(refused.message().contains(&expected), "{store}: {refused:?}");
        }
        drop((client, server));
    }
}

/// A service, and its memory and series after requests of this many users.
struct Cost {
    resident: u64,
    series: usize,
    page: usize,
}

fn cost(setup: Setup, of_user: impl Fn(usize) -> RateLimitDescriptor, count: usize) -> Cost {
    let admin = free_port();
    let server =
        setup.rules("d.yaml", RULES).env("ADMIN_ADDR", &format!("127.0.0.1:{admin}")).start_healthy();
    let client = server.client();
    let users: Vec<_> = (0..count).collect();
    for users in users.chunks(100) {
        let answer = client.ask(asked(users.iter().map(|user| of_user(*user)).collect())).unwrap();
        assert_eq!(answer.statuses.len(), users.len());
    }
    let status = http::get(admin, "/api/v1/status").body;
    let status: Value = serde_json::from_slice(&status).unwrap();
    let metrics = server.metrics();
    let hits: f64 = metrics.iter().filter(|(name, _)| is_hits(name)).map(|(_, hits)| hits).sum();
    #[expect(clippy::cast_precision_loss, reason = "the page is read so")]
    let all = count as f64;
    assert!((hits - all).abs() < 0.5, "{hits} of {all} hits are shown");
    Cost {
        resident: status["memory"]["resident_bytes"].as_u64().unwrap(),
        series: series(&server),
        page: http::get(server.ports.metrics, "/metrics").body.len(),
    }
}

fn is_hits(name: &str) -> bool {
    name.starts_with("ratelimit_service_rate_limit_total_hits{")
}

fn series(server: &Server) -> usize {
    server.metrics().keys().filter(|name| name.contains("key1=\"user")).count()
}

/// Users with their own limits, each another one.
fn pairs(setup: &Setup, count: usize) -> [Cost; 3] {
    let name = |user: usize| format!("user-{user:07}");
    let with_limit = |user: usize| limited(&name(user), (u32::try_from(user).unwrap() + 1, HOUR));
    // One user in a hundred, with a hundred limits each.
    let shared = |at: usize| limited(&name(at / 100), (u32::try_from(at).unwrap() + 1, MINUTE));
    [
        cost(setup.clone(), |user| descriptor(&[("user", &name(user))]), count),
        cost(setup.clone(), with_limit, count),
        cost(setup.clone(), shared, count),
    ]
}

fn assert_cost(store: &str, setup: &Setup) {
    let count = or_deep(50_000, 1_000_000);
    let [keys, pairs, shared] = pairs(setup, count);
    for (what, cost) in [("keys", &keys), ("pairs", &pairs), ("shared keys", &shared)] {
        println!(
            "{store}: {count} {what}: {} bytes, {} series, a page of {} bytes",
            cost.resident, cost.series, cost.page
        );
    }
    for cost in [&pairs, &shared] {
        // A tenth of METRICS_MAX_SERIES, and those of the key for all others.
        assert!(cost.series <= keys.series + 1_000, "{} series", cost.series);
        assert!(cost.page <= keys.page + 1_000 * 200, "{} bytes of metrics", cost.page);
        // A series takes 1.5 KB, so one for each of 50,000 would take 75 MB. What requests under way leave with the
        // allocator differs beside a busy neighbour by up to 10 MB.
        assert!(cost.resident <= keys.resident + keys.resident / 10 + (20 << 20), "{} bytes", cost.resident);
    }
}

#[test]
fn limits_of_requests_cost_no_more_than_as_many_keys() {
    assert_cost("memory", &Setup::new());
}

#[test]
fn names_of_rules_keep_their_series_beside_limits_of_requests() {
    let rules = "domain: d\ndescriptors:\n\
                 - {key: ip, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 9}}\n\
                 - {key: user, rate_limit: {unit: year, requests_per_unit: 9}}\n";
    let server = Setup::new().rules("d.yaml", rules).env("METRICS_MAX_SERIES", "500").start();
    let client = server.client();
    let users = (0..2_000).map(|user| limited(&user.to_string(), (7, HOUR)));
    for users in users.collect::<Vec<_>>().chunks(100) {
        client.ask(asked(users.to_vec())).unwrap();
    }
    let taken = server.metric("tollgate_metrics_series");
    assert!((taken - 50.0).abs() < 0.5, "{taken} of 500 series are taken");
    client.ask(asked(vec![descriptor(&[("ip", "10.0.0.1")])])).unwrap();
    let hits = |name: &str| {
        server.metric(&format!("ratelimit_service_rate_limit_total_hits{{domain=\"d\",key1=\"{name}\"}}"))
    };
    assert!((hits("ip_10_0_0_1") - 1.0).abs() < 0.5, "a rule's names find room");
    // Every name takes three series: its hits, and twice those within the limit.
    let named = server.metrics().keys().filter(|name| is_hits(name) && name.contains("key1=\"user_")).count();
    let rest = hits("user");
    #[expect(clippy::cast_precision_loss, reason = "the page is read so")]
    let expected = (2_000 - named) as f64;
    assert!((rest - expected).abs() < 0.5, "{rest} of {expected} hits count under the rule's name");
}
