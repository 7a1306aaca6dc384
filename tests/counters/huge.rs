//! Hits near the largest number: no counter and no metric overflows, in any store, with any algorithm.

use std::collections::BTreeMap;

use proto::envoy::service::ratelimit::v3::{
    RateLimitRequest,
    rate_limit_response::{Code, DescriptorStatus},
};

use crate::support::{
    client::request,
    memcached::Memcached,
    redis::Redis,
    server::{Server, Setup},
};

const HUGE: [u64; 5] = [1 << 32, (1 << 33) + 1, 1 << 63, u64::MAX - 1, u64::MAX];

const FIXED: &str = "  - {key: fixed, rate_limit: {unit: year, requests_per_unit: 10}}\n";
const OTHERS: &str = "
  - {key: sliding, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding_log}}
  - {key: token, rate_limit: {unit: year, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: leaky, rate_limit: {unit: year, requests_per_unit: 10, algorithm: leaky_bucket, burst: 10}}
";

fn with(setup: Setup, rules: &str) -> Setup {
    setup.rules("d.yaml", &format!("domain: d\ndescriptors:\n{rules}")).env("NEAR_LIMIT_RATIO", "0.8")
}

/// A request with this number of equal descriptors and hits for each.
fn hits(key: &str, value: &str, hits: u64, descriptors: usize) -> RateLimitRequest {
    let entry: &[(&str, &str)] = &[(key, value)];
    let mut asked = request("d", &vec![entry; descriptors]);
    for descriptor in &mut asked.descriptors {
        descriptor.hits_addend = Some(hits);
    }
    asked
}

fn statistic(metrics: &BTreeMap<String, f64>, name: &str, key: &str) -> f64 {
    let name = format!("ratelimit_service_rate_limit_{name}{{domain=\"d\",key1=\"{key}\"}}");
    metrics.get(&name).copied().unwrap_or_default()
}

/// Any number of hits is over the limit from the first request on, and its metrics only grow.
fn saturates(server: &Server, keys: &[&str]) {
    let client = server.client();
    for key in keys {
        let mut before = (0.0, 0.0);
        for (n, huge) in HUGE.into_iter().enumerate() {
            let value = format!("v{n}");
            let three = client.ask(hits(key, &value, 3, 1)).unwrap();
            assert_eq!((three.overall_code(), three.statuses[0].limit_remaining), (Code::Ok, 7), "{key}");
            // Enough requests and descriptors to overflow 64 bits.
            for _ in 0..3 {
                let answer = client.ask(hits(key, &value, huge, 2)).unwrap();
                assert_eq!(answer.overall_code(), Code::OverLimit, "{key} {huge}");
                let codes: Vec<_> = answer.statuses.iter().map(DescriptorStatus::code).collect();
                assert_eq!(codes, [Code::OverLimit; 2], "{key} {huge}");
                let metrics = server.metrics();
                let now = (statistic(&metrics, "total_hits", key), statistic(&metrics, "over_limit", key));
                assert!(now.0 >= before.0 && now.1 >= before.1, "{key} {huge}: {now:?} after {before:?}");
                before = now;
            }
            // Only a fixed window counts the hits that it rejects.
            let one = client.ask(hits(key, &value, 1, 1)).unwrap().overall_code();
            assert_eq!(one, if *key == "fixed" { Code::OverLimit } else { Code::Ok }, "{key} {huge}");
        }
        #[expect(clippy::cast_precision_loss, reason = "the page is read so")]
        let most = u64::MAX as f64;
        assert!(before.0 >= most && before.1 >= most, "{key}: {before:?}");
        // Of the first huge hits of each value two are near the limit, once three were there before.
        let near = statistic(&server.metrics(), "near_limit", key);
        let expected = if *key == "fixed" { 2.0 * 5.0 } else { 0.0 };
        assert!((near - expected).abs() < 0.5, "{key}: {near}");
    }
}

const ALL: [&str; 5] = ["fixed", "sliding", "log", "token", "leaky"];

#[test]
fn saturates_in_memory() {
    for stop in ["false", "true"] {
        let setup = with(Setup::new(), &format!("{FIXED}{OTHERS}"));
        saturates(&setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop).start(), &ALL);
    }
}

#[test]
fn saturates_in_redis() {
    for stop in ["false", "true"] {
        let redis = Redis::single();
        let setup = with(Setup::new().redis(&redis.env()), &format!("{FIXED}{OTHERS}"));
        let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop).start_healthy();
        saturates(&server, &ALL);
        // A saturated counter is over the limit, not an error.
        let key = crate::counters::redis::counter("fixed", "full");
        redis.ask(&["SET", &key, "9223372036854775800"]);
        for huge in HUGE {
            let answer = server.ask(hits("fixed", "full", huge, 2)).unwrap();
            assert_eq!(answer.overall_code(), Code::OverLimit, "{huge}");
        }
        assert!(redis.counter(&key) > 0);
    }
}

#[test]
fn saturates_in_memcached() {
    for stop in ["false", "true"] {
        let memcached = Memcached::single();
        let setup = with(memcached.setup(), FIXED);
        let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop).start_healthy();
        saturates(&server, &["fixed"]);
    }
}
