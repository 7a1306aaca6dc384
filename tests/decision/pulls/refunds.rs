//! "A negative hit that brings a counter back under its limit removes the key from the local cache of every replica", while
//! the counter stays in Redis or memcached.

use std::time::{Duration, Instant};

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::hits;
use support::{
    client::Client,
    eventually, holds,
    memcached::Memcached,
    redis::Redis,
    server::{Server, Setup},
};

const RULES: &str = "
domain: d
descriptors:
  - key: year
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: other
    rate_limit: {unit: year, requests_per_unit: 1}
";

fn code(client: &Client, key: &str, number: i64) -> Code {
    client.ask(hits(key, "v", number)).unwrap().overall_code()
}

fn sharing(setup: Setup) -> Setup {
    setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").env("REPLICA_SYNC", "true")
}

/// Refunds at a replica with a local cache, and at one without.
fn check(setup: &Setup, rules: &str, keys: &[&str]) {
    for bytes in ["100000", "0"] {
        check_from(sharing(setup.clone().rules("d.yaml", rules)), bytes, keys);
    }
}

/// Two replicas, of which both know that the limits are exceeded. The one that refunds has a cache of this size.
fn check_from(setup: Setup, bytes: &str, keys: &[&str]) {
    // Each pair has its own counters.
    let setup = setup.env("CACHE_KEY_PREFIX", bytes);
    let first = setup.clone().env("LOCAL_CACHE_SIZE_IN_BYTES", bytes);
    let servers = [first.start_healthy(), setup.start_healthy()];
    let clients = servers.each_ref().map(Server::client);
    let known = |key: &str| {
        let name = "ratelimit_service_rate_limit_over_limit_with_local_cache";
        servers[1].count(&format!("{name}{{domain=\"d\",key1=\"{key}\"}}"))
    };
    code(&clients[0], "other", 2);
    for key in keys {
        code(&clients[0], key, 10);
        code(&clients[0], key, 2);
        let is_known =
            || holds(code(&clients[1], key, 1) == Code::OverLimit && known(key) > 0, || known(key));
        eventually("the other replica knows", is_known);
        assert_eq!(code(&clients[0], key, -9), Code::Ok);
        eventually("the refund is known", || {
            let code = code(&clients[1], key, 1);
            holds(code == Code::Ok, || format!("{key}: {code:?}\n{}", servers[1].process.log()))
        });
    }
    // What was not refunded is still known.
    let before = known("other");
    assert_eq!([1, 1].map(|hits| code(&clients[1], "other", hits)), [Code::OverLimit; 2]);
    assert!(known("other") > before);
}

#[test]
fn a_refund_reaches_the_caches_of_all_replicas_on_memcached() {
    let memcached = Memcached::single();
    check(&memcached.setup(), RULES, &["year"]);
}

#[test]
fn a_refund_reaches_the_leases_of_all_replicas() {
    let redis = Redis::single();
    let rules = "domain: d
descriptors:
  - {key: hot, rate_limit: {unit: year, requests_per_unit: 500, counting: leased}}
";
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", rules).env("REPLICA_SYNC", "true");
    let servers = [setup.clone().start_healthy(), setup.start_healthy()];
    let clients = servers.each_ref().map(Server::client);
    // Both are hot, so that each knows the counter as over its limit without asking.
    while clients.iter().any(|client| code(client, "hot", 1) == Code::Ok) {}
    assert_eq!(code(&clients[0], "hot", -1_000_000_000), Code::Ok);
    let began = Instant::now();
    // Without the message it takes 5 seconds from the last time that the replica asked.
    while code(&clients[1], "hot", 1) == Code::OverLimit {
        assert!(began.elapsed() < Duration::from_millis(1500), "the refund is not known");
    }
}

#[test]
fn refunds_are_announced_once_a_moment() {
    let redis = Redis::single();
    let server = sharing(Setup::new().redis(&redis.env()).rules("d.yaml", RULES)).start_healthy();
    let client = server.client();
    let published = || {
        let stats = redis.ask(&["INFO", "commandstats"]).to_string();
        let calls = stats.split("cmdstat_publish:calls=").nth(1).and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().unwrap())
    };
    code(&client, "year", 10);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(published(), 0, "nothing came back");
    // Another limit of the counter, as that of a request, may refuse: no refund is too small.
    let began = Instant::now();
    for _ in 0..200 {
        code(&client, "year", 1);
        code(&client, "year", -1);
    }
    let most = u32::try_from(began.elapsed().as_millis() / 50).expect("it is short") + 2;
    eventually("they are announced", || holds(published() > 0, published));
    std::thread::sleep(Duration::from_millis(300));
    assert!(published() <= most, "{} of {most}", published());
}
