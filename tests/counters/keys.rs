//! Callers who choose their values, and limits that must not share a counter.

use proto::envoy::{
    extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
    service::ratelimit::v3::RateLimitRequest,
};

use support::{
    client::{Client, request},
    eventually,
    ports::free_port,
    redis::{Redis, tcp},
    server::{Server, Setup},
};

const RULES: &str = "
domain: d
descriptors:
  - key: path
    rate_limit: {unit: year, requests_per_unit: 3}
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 3}
  - {key: share, value: a*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3}}
";

/// An attacker's entries, and those of a victim with the same counter in the Go service.
const ATTACK: [(&str, &str); 1] = [("path", "/home_user_victim")];
const VICTIM: [(&str, &str); 2] = [("path", "/home"), ("user", "victim")];

fn left(client: &Client, asked: RateLimitRequest) -> u32 {
    client.ask(asked).unwrap().statuses[0].limit_remaining
}

/// The victim's remaining hits once the attacker has spent a limit.
fn left_to_the_victim(server: &Server) -> u32 {
    let client = server.client();
    for _ in 0..5 {
        client.ask(request("d", &[&ATTACK])).unwrap();
    }
    left(&client, request("d", &[&VICTIM]))
}

fn cached(setup: Setup) -> Setup {
    setup.rules("d.yaml", RULES).env("LOCAL_CACHE_SIZE_IN_BYTES", "100000")
}

#[test]
fn a_caller_cannot_reach_the_counter_of_another_in_memory() {
    assert_eq!(left_to_the_victim(&cached(Setup::new()).start()), 2);
}

#[test]
fn a_caller_cannot_reach_the_counter_of_another_while_redis_is_lost() {
    let unreachable = format!("127.0.0.1:{}", free_port());
    let setup = cached(Setup::new().redis(&tcp(&unreachable))).env("STORE_FAILURE_POLICY", "local");
    let server = setup.start();
    eventually("requests are decided", || {
        server.ask(request("d", &[&[("share", "a")]])).map(drop).map_err(|status| status.to_string())
    });
    assert_eq!(left_to_the_victim(&server), 2);
}

#[test]
fn keys_in_redis_are_those_of_the_go_service_unless_configured_to_be_unambiguous() {
    let redis = Redis::single();
    let server = cached(Setup::new().redis(&redis.env())).start_healthy();
    assert_eq!(left_to_the_victim(&server), 0, "as with the Go service, which shares the counter");
    assert_eq!(redis.keys().len(), 1);
    redis.ask(&["FLUSHALL"]);
    let setup = cached(Setup::new().redis(&redis.env())).env("COUNTER_KEY_FORMAT", "unambiguous");
    let server = setup.start_healthy();
    assert_eq!(left_to_the_victim(&server), 2);
    let mut keys = redis.keys();
    keys.sort_unstable_by_key(String::len);
    let ends: Vec<_> = keys.iter().map(|key| key.split('#').next_back().unwrap_or_default()).collect();
    assert_eq!(ends, ["0.1.4.17/31536000", "0.1.4.5.4.6/31536000"], "{keys:?}");
}

#[test]
fn keys_above_512_bytes_are_hashed_in_redis() {
    let redis = Redis::single();
    let server = cached(Setup::new().redis(&redis.env())).start_healthy();
    let client = server.client();
    let longest = 512 - crate::redis::counter("path", "").len();
    for length in [longest - 1, longest, longest + 1, 50_000] {
        let value = "v".repeat(length);
        assert_eq!(left(&client, request("d", &[&[("path", value.as_str())]])), 2, "{length}");
        assert_eq!(left(&client, request("d", &[&[("path", value.as_str())]])), 1, "{length}");
    }
    let mut lengths: Vec<_> = redis.keys().iter().map(String::len).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [73, 73, 511, 512]);
    let is_hashed = |key: &String| key.len() > 73 || key.starts_with("tollgate:");
    assert!(redis.keys().iter().all(is_hashed), "{:?}", redis.keys());
}

#[test]
fn values_that_share_a_counter_share_it_with_a_caller_that_sends_the_pattern() {
    let server = cached(Setup::new()).start();
    let client = server.client();
    let values = ["ab", "a*", "a", "ac"];
    let left = values.map(|value| left(&client, request("d", &[&[("share", value)]])));
    assert_eq!(left, [2, 1, 0, 0]);
}

#[test]
fn a_limit_of_a_request_is_not_rejected_by_a_cached_rejection_of_a_smaller_one() {
    let redis = Redis::single();
    for setup in [cached(Setup::new()), cached(Setup::new().redis(&redis.env()))] {
        let server = setup.start_healthy();
        let client = server.client();
        for _ in 0..5 {
            client.ask(request("d", &[&[("path", "v")]])).unwrap();
        }
        let mut brings = request("d", &[&[("path", "v")]]);
        brings.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 100, unit: 6, unit_multiplier: None });
        let left = left(&client, brings);
        assert!((92..=96).contains(&left), "the rule and the request share a counter: {left}");
    }
}
