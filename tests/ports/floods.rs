//! Floods of invented keys that fill the table: callers over their limits stay over them, with every algorithm, in memory
//! and in place of a lost Redis.

use support::{
    client::{Client, request},
    ports::free_port,
    redis::tcp,
    server::{Server, Setup},
};

const RULES: &str = "
domain: d
descriptors:
  - {key: fixed, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: sliding, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}}
  - {key: token, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket}}
  - {key: leaky, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: leaky_bucket}}
  - key: two
    rate_limit: [{unit: hour, requests_per_unit: 5}, {unit: day, requests_per_unit: 1000}]
  - {key: day, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: day_token, rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}}
  - {key: day_log, rate_limit: {unit: day, requests_per_unit: 5, algorithm: sliding_log}}
";

const KINDS: [&str; 6] = ["fixed", "sliding", "log", "token", "leaky", "two"];

const MAX_KEYS: usize = 2000;

/// Callers over the limit of each rule.
const CALLERS: usize = 20;

/// Requests of one caller that exceed every limit per hour and day.
const EXCESS: usize = 6;

fn setup() -> Setup {
    Setup::new().rules("d.yaml", RULES).env("MEMORY_MAX_KEYS", &MAX_KEYS.to_string())
}

/// Sends a hit for each value, and returns how many were over the limit.
fn hit(client: &Client, key: &str, values: &[String]) -> usize {
    let over = |values: &[String]| {
        let descriptors: Vec<_> = values.iter().map(|value| [(key, value.as_str())]).collect();
        let descriptors: Vec<_> = descriptors.iter().map(<[_; 1]>::as_slice).collect();
        let statuses = client.ask(request("d", &descriptors)).unwrap().statuses;
        assert_eq!(statuses.len(), values.len());
        statuses.iter().filter(|status| status.code == 2).count()
    };
    values.chunks(100).map(over).sum()
}

fn named(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{name} {n}")).collect()
}

/// Brings callers over the limits of these rules.
fn exhaust(client: &Client, keys: &[&str]) {
    for key in keys {
        (0..EXCESS).for_each(|_| {
            hit(client, key, &named("caller", CALLERS));
        });
        assert_eq!(still_over(client, key), CALLERS, "{key}");
    }
}

fn still_over(client: &Client, key: &str) -> usize {
    hit(client, key, &named("caller", CALLERS))
}

/// Hits each of twice as many invented keys as the table has room for.
fn flood(client: &Client, key: &str, hits: usize) {
    for values in named("invented", 2 * MAX_KEYS).chunks(100) {
        (0..hits).for_each(|_| {
            hit(client, key, values);
        });
    }
}

fn evicted(server: &Server, counter: &str) -> usize {
    server.count(&format!("tollgate_store_evictions_total{{counter=\"{counter}\"}}"))
}

#[test]
fn a_flood_of_keys_driven_over_the_limit_of_the_same_rule_frees_few() {
    for kind in KINDS {
        let server = setup().start();
        let client = server.client();
        exhaust(&client, &[kind]);
        flood(&client, kind, EXCESS);
        let over = still_over(&client, kind);
        assert!(over >= CALLERS * 3 / 4, "{kind}: {over} of {CALLERS} are still over their limit");
    }
}

#[test]
fn a_flood_in_place_of_a_lost_redis_frees_no_caller() {
    let unreachable = format!("127.0.0.1:{}", free_port());
    let server = setup().redis(&tcp(&unreachable)).env("STORE_FAILURE_POLICY", "local").start();
    let client = server.client();
    exhaust(&client, &KINDS);
    for (key, hits) in [("day", 1), ("day_log", 1), ("day_token", EXCESS), ("fixed", 1), ("two", 1)] {
        flood(&client, key, hits);
        assert_eq!(KINDS.map(|kind| still_over(&client, kind)), [CALLERS; 6], "after {key}");
    }
    assert!(evicted(&server, "within_limit") > MAX_KEYS);
}

#[test]
fn a_caller_of_a_small_rule_is_limited_during_a_flood_of_keys_over_their_limits() {
    let server = setup().start();
    let client = server.client();
    flood(&client, "day", EXCESS);
    let callers = named("new", CALLERS);
    let mut over = 0;
    for round in 0..2 * EXCESS {
        over = hit(&client, "fixed", &callers);
        for values in named(&format!("invented {round}"), MAX_KEYS / 4).chunks(100) {
            (0..EXCESS).for_each(|_| {
                hit(&client, "day", values);
            });
        }
    }
    assert_eq!(over, CALLERS);
}
