//! The local over-limit cache: with it, a load that is entirely over its limits causes no commands.

use proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

use support::{
    redis::Redis,
    server::{Server, Setup},
};

use super::{
    Code, RULES, code, counter, decision, one,
    several::{self, FIXED, hits, rules},
};

fn start(redis: &Redis) -> Server {
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", RULES);
    setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").start_healthy()
}

#[test]
fn a_load_over_its_limits_sends_no_commands() {
    let redis = Redis::single();
    let server = start(&redis);
    let client = server.client();
    for _ in 0..3 {
        code(&client, "two", "v");
    }
    redis.ask(&["CONFIG", "RESETSTAT"]);
    for _ in 0..200 {
        assert_eq!(code(&client, "two", "v"), (Code::OverLimit, 0));
    }
    for command in ["incrby", "expire", "eval", "evalsha", "get", "fcall"] {
        assert_eq!(redis.calls(command), 0, "{command}");
    }
    assert_eq!(redis.counter(&counter("two", "v")), 3);

    let metrics = server.metrics();
    let sum = |part: &str| -> f64 {
        metrics.iter().filter(|(name, _)| name.contains(part)).map(|(_, value)| value).sum()
    };
    assert!((sum("rate_limit_over_limit_with_local_cache{") - 200.0).abs() < 0.5, "{metrics:?}");
    assert!((sum("rate_limit_over_limit{") - 201.0).abs() < 0.5, "{metrics:?}");
}

#[test]
fn a_rule_with_one_limit_reached_sends_no_commands() {
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", &rules(&[FIXED]));
    let server = setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").start_healthy();
    let client = server.client();
    let ask = |count| decision(&client.ask(hits("fixed", "v", count)).unwrap());
    assert_eq!(ask(35), (Code::Ok, 5));
    assert_eq!(ask(6), (Code::OverLimit, 5));
    redis.ask(&["CONFIG", "RESETSTAT"]);
    for _ in 0..50 {
        assert_eq!(ask(6), (Code::OverLimit, 5), "6 hits are known not to fit");
    }
    assert_eq!(redis.calls("evalsha"), 0);
    assert_eq!(ask(5), (Code::Ok, 0), "fewer may");
    assert_eq!([1, 2].map(|years| redis.counter(&several::counter("fixed", "v", years))), [40, 40]);
}

/// The Go service's cache has keys only: a key over one limit is refused for every limit.
#[test]
fn a_larger_limit_of_a_cached_key_is_checked_with_redis() {
    let redis = Redis::single();
    let server = start(&redis);
    let client = server.client();
    for _ in 0..3 {
        code(&client, "two", "v");
    }
    let with_limit = |requests_per_unit| {
        let mut request = one("two", "v");
        // A year.
        request.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit, unit: 6, unit_multiplier: None });
        decision(&client.ask(request).unwrap()).0
    };
    redis.ask(&["CONFIG", "RESETSTAT"]);
    assert_eq!(
        [1, 2].map(with_limit),
        [Code::OverLimit; 2],
        "smaller and equal limits are known to be exceeded"
    );
    assert_eq!(redis.calls("incrby"), 0);
    assert_eq!(with_limit(10), Code::Ok, "four of ten");
    assert_eq!(code(&client, "two", "v"), (Code::OverLimit, 0), "the rule's own limit still is");
}
