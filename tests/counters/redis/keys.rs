//! The keys, values and expiries in Redis, which are those of the Go service, so that replicas of both share counters.

use proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

use support::{
    client::request,
    clock::window,
    redis::Redis,
    server::{Server, Setup},
};

use super::{Code, RULES, YEAR, code, counter, decision, one};

const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", 86400),
    ("week", 604_800),
    ("month", 30 * 86400),
    ("year", YEAR),
];

/// A rule for each unit, with the unit's name as key.
fn rule_per_unit() -> String {
    let rules = UNITS.map(|(unit, _)| {
        format!("  - key: {unit}\n    rate_limit: {{unit: {unit}, requests_per_unit: 100}}\n")
    });
    format!("domain: d\ndescriptors:\n{}", rules.concat())
}

fn start(redis: &Redis, rules: &str) -> Server {
    Setup::new().redis(&redis.env()).rules("d.yaml", rules).start_healthy()
}

#[test]
fn a_counters_name_and_expiry_are_those_of_its_window() {
    let redis = Redis::single();
    // Counters of seconds outlive the test's reads.
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", &rule_per_unit());
    let server = setup.env("EXPIRATION_JITTER_MAX_SECONDS", "300").start_healthy();
    let client = server.client();
    let windows = || UNITS.map(|(_, seconds)| window(seconds));
    // If a second ends meanwhile, it is repeated with new counters.
    let (turn, starts) = (0..)
        .find_map(|turn| {
            let (before, value) = (windows(), format!("v{turn}"));
            let all = UNITS.map(|(unit, _)| [(unit, value.as_str())]);
            let mut three = request("d", &all.each_ref().map(<[_; 1]>::as_slice));
            three.hits_addend = 3;
            client.ask(three).unwrap();
            (windows() == before).then_some((turn, before))
        })
        .unwrap();
    for ((unit, seconds), start) in UNITS.iter().zip(starts) {
        let name = format!("d_{unit}_v{turn}_{start}");
        assert_eq!(redis.counter(&name), 3, "{name} among {:?}", redis.keys());
        let ttl = u64::try_from(redis.ask(&["TTL", &name]).number()).expect("it has an expiry");
        assert!((seconds.saturating_sub(5)..seconds + 300).contains(&ttl), "{name} ends in {ttl} seconds");
    }
    assert_eq!(redis.keys().len(), UNITS.len() * (turn + 1), "nothing else is kept");
}

#[test]
fn expiries_are_spread_over_the_jitter() {
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", RULES);
    let server = setup.env("EXPIRATION_JITTER_MAX_SECONDS", "1000").start_healthy();
    let client = server.client();
    for user in 0..50 {
        client.ask(one("many", &user.to_string())).unwrap();
    }
    let ttls: Vec<_> = redis.keys().iter().map(|key| redis.ask(&["TTL", key]).number()).collect();
    let year = i64::try_from(YEAR).unwrap();
    assert_eq!(ttls.len(), 50);
    assert!(ttls.iter().all(|ttl| (year - 30..year + 1000).contains(ttl)), "{ttls:?}");
    let widest = ttls.iter().max().unwrap() - ttls.iter().min().unwrap();
    // Fifty uniform draws are closer together once in 10^9 runs.
    assert!(widest > 500, "{ttls:?}");
}

#[test]
fn a_name_is_the_prefix_and_the_entries_in_order() {
    let rules = "
domain: shop
descriptors:
  - key: path
    value: api/*
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 9}
";
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).rules("shop.yaml", rules);
    let server = setup.env("CACHE_KEY_PREFIX", "pre:").start_healthy();
    server.ask(request("shop", &[&[("path", "api/ü x"), ("user", "")]])).unwrap();
    assert_eq!(redis.keys(), [format!("pre:shop_path_api/ü x_user__{}", window(YEAR))]);
}

#[test]
fn only_limits_per_second_use_the_second_redis() {
    let (main, per_second) = (Redis::single(), Redis::single());
    let setup = Setup::new().redis(&main.env()).rules("d.yaml", &rule_per_unit());
    let setup = setup.env("EXPIRATION_JITTER_MAX_SECONDS", "300").env("REDIS_PERSECOND", "true");
    let setup = setup.env("REDIS_PERSECOND_SOCKET_TYPE", "tcp").env("REDIS_PERSECOND_TYPE", "SINGLE");
    let setup = setup.env("REDIS_PERSECOND_TIMEOUT", "5s").env("REDIS_PERSECOND_URL", &per_second.address());
    let server = setup.start_healthy();
    let client = server.client();
    let both: &[&[_]] = &[&[("second", "v")], &[("minute", "v")], &[("year", "v")], &[("second", "w")]];
    let answer = client.ask(request("d", both)).unwrap();
    let left: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [99; 4], "answers are put together again in their order");

    let units = |redis: &Redis| -> Vec<String> {
        redis.keys().iter().map(|key| key.split('_').nth(1).unwrap().to_owned()).collect()
    };
    assert_eq!(units(&main), ["minute", "year"]);
    assert_eq!(units(&per_second), ["second", "second"]);
}

#[test]
fn what_the_other_redis_decides_stays() {
    for is_silent in [false, true] {
        let (main, mut per_second) = (Redis::single(), Redis::single());
        let setup = Setup::new().redis(&main.env()).rules("d.yaml", &rule_per_unit());
        let setup = setup.env("REDIS_PERSECOND", "true").env("REDIS_PERSECOND_SOCKET_TYPE", "tcp");
        let setup = setup.env("REDIS_PERSECOND_TYPE", "SINGLE").env("STORE_FAILURE_POLICY", "allow");
        let setup = setup.env("REDIS_PERSECOND_TIMEOUT", "100ms");
        let server = setup.env("REDIS_PERSECOND_URL", &per_second.address()).start_healthy();
        let client = server.client();
        main.ask(&["SET", &format!("d_year_v_{}", window(YEAR)), "100"]);
        if is_silent {
            per_second.freeze();
        } else {
            per_second.kill();
        }
        for _ in 0..10 {
            let answer = client.ask(request("d", &[&[("second", "v")], &[("year", "v")]])).unwrap();
            let codes = answer.statuses.iter().map(DescriptorStatus::code);
            assert_eq!(codes.collect::<Vec<_>>(), [Code::Ok, Code::OverLimit]);
        }
    }
}

#[test]
fn hits_of_a_go_replica_count() {
    let redis = Redis::single();
    let server = start(&redis, RULES);
    let name = counter("five", "v");
    redis.ask(&["INCRBY", &name, "3"]);
    redis.ask(&["EXPIRE", &name, "1000"]);
    let client = server.client();
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 1));
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 0));
    assert_eq!(code(&client, "five", "v"), (Code::OverLimit, 0));
    // The Go service sets the expiry with every hit; ours may keep it.
    assert!(redis.ask(&["TTL", &name]).number() > 0);
}

#[test]
fn the_answer_to_a_refund_is_the_counter() {
    let redis = Redis::single();
    let server = start(&redis, RULES);
    let client = server.client();
    let ask = |hits: u64, is_refund: bool| {
        let mut asked = one("five", "v");
        (asked.descriptors[0].hits_addend, asked.descriptors[0].is_negative_hits) = (Some(hits), is_refund);
        u64::from(decision(&client.ask(asked).unwrap()).1)
    };
    let counted = || u64::try_from(redis.counter(&counter("five", "v"))).unwrap();
    assert_eq!((ask(3, true), counted()), (5, 0), "there was nothing to refund");
    for refund in [1, 10, 1 << 40, (1 << 53) - 5, 1 << 53, (1 << 53) + 1, 1 << 60, u64::MAX] {
        for _ in 0..3 {
            ask(1 << 53, false);
        }
        assert!(counted() >= 3 << 53);
        let remaining = ask(refund, true);
        assert_eq!(remaining, 5_u64.saturating_sub(counted()), "{refund}");
        ask(u64::MAX, true);
        assert_eq!((counted(), ask(0, false)), (0, 5), "{refund}");
    }
}
