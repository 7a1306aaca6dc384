//! The keys, values and expiries in Redis, which are those of the Go service, so that replicas of both share counters.

use proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;

use crate::support::{
    client::{descriptor, request},
    clock::window,
    eventually, holds,
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
fn replicas_count_together() {
    let redis = Redis::single();
    let servers: Vec<_> = (0..3).map(|_| start(&redis, RULES)).collect();
    let clients: Vec<_> = servers.iter().map(Server::client).collect();
    let decisions: Vec<_> = (0..7).map(|turn| code(&clients[turn % 3], "five", "v")).collect();
    let left = |left| (Code::Ok, left);
    let over = (Code::OverLimit, 0);
    assert_eq!(decisions, [left(4), left(3), left(2), left(1), left(0), over, over]);
    assert_eq!(redis.counter(&counter("five", "v")), 7, "refused hits count too");
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
fn refunds_stop_at_zero() {
    let redis = Redis::single();
    let server = start(&redis, RULES);
    let client = server.client();
    let back = |hits: u64| {
        let mut request = one("five", "v");
        request.descriptors[0].hits_addend = Some(hits);
        request.descriptors[0].is_negative_hits = true;
        decision(&client.ask(request).unwrap())
    };
    assert_eq!(back(3), (Code::Ok, 5), "there was nothing to refund");
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 4));
    assert_eq!(code(&client, "five", "v"), (Code::Ok, 3));
    assert_eq!(back(1), (Code::Ok, 4));
    assert_eq!(redis.counter(&counter("five", "v")), 1);
    assert_eq!(back(u64::MAX), (Code::Ok, 5));
    assert_eq!(redis.counter(&counter("five", "v")), 0);
    every_key_ends(&redis);
}

#[test]
fn a_read_counts_nothing() {
    let redis = Redis::single();
    let server = start(&redis, RULES);
    let client = server.client();
    code(&client, "five", "v");
    let mut look = request("d", &[]);
    look.descriptors = vec![descriptor(&[("five", "v")]), descriptor(&[("five", "w")])];
    for descriptor in &mut look.descriptors {
        descriptor.hits_addend = Some(0);
    }
    let answer = client.ask(look).unwrap();
    let left: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [4, 5]);
    assert_eq!(redis.counter(&counter("five", "v")), 1);
    assert_eq!(redis.counter(&counter("five", "w")), 0);
    every_key_ends(&redis);
}

#[test]
fn a_rejected_request_counts_only_over_limits_if_configured() {
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", RULES);
    let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true").start_healthy();
    let client = server.client();
    let codes: Vec<_> = (0..4)
        .map(|_| client.ask(request("d", &[&[("two", "v")], &[("five", "v")]])).unwrap())
        .map(|answer| answer.statuses.iter().map(|status| status.limit_remaining).collect::<Vec<_>>())
        .collect();
    assert_eq!(codes, [[1, 4], [0, 3], [0, 3], [0, 3]]);
    assert_eq!(redis.counter(&counter("two", "v")), 4);
    assert_eq!(redis.counter(&counter("five", "v")), 2);
    every_key_ends(&redis);
}

#[test]
fn every_counter_expires() {
    let mut redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", &rule_per_unit());
    let server = setup.env("EXPIRATION_JITTER_MAX_SECONDS", "300").start_healthy();
    let client = server.client();
    let all = UNITS.map(|(unit, _)| [(unit, "v")]);
    let all = request("d", &all.each_ref().map(<[_; 1]>::as_slice));
    let ask = || {
        eventually("it is answered", || {
            client.ask(all.clone()).map(drop).map_err(|status| status.message().to_owned())
        });
    };
    ask();
    every_key_ends(&redis);

    // The service has cached the keys, but they are gone.
    redis.ask(&["FLUSHALL"]);
    ask();
    every_key_ends(&redis);
    redis.ask(&["DEL", &counter("year", "v")]);
    ask();
    every_key_ends(&redis);

    redis.kill();
    redis.start();
    server.wait_until_healthy();
    ask();
    every_key_ends(&redis);

    // Counters of past seconds exist for their jitter, which may be short.
    eventually("some seconds have ended meanwhile", || {
        ask();
        holds(redis.keys().len() > UNITS.len() + 2, || format!("{:?}", redis.keys()))
    });
    every_key_ends(&redis);
}

/// Fails if a key has no expiry, except one whose expiry is about to be set.
fn every_key_ends(redis: &Redis) {
    let keys = redis.keys();
    assert!(!keys.is_empty(), "nothing was counted");
    for key in keys {
        eventually("the key has an expiry", || {
            let ttl = redis.ask(&["TTL", &key]).number();
            // -2: the key expired meanwhile.
            holds(ttl >= 0 || ttl == -2, || format!("{key}: {ttl}"))
        });
    }
}
