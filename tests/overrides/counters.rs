//! Counters that are read and reset, with every algorithm and on every store.

use super::*;
use crate::support::memcached::Memcached;

/// Takes three of three, reads, resets, and finds all of it again.
fn reads_and_resets(replica: &Replica, keys: &[&str]) {
    for key in keys {
        for value in ["v", "*"] {
            for _ in 0..2 {
                assert_eq!(replica.ask(key, value).0, OK, "{key}");
            }
            let path = format!("/api/v1/counters?domain=shop&descriptor={key}={value}");
            let read = || {
                let counters = replica.get(&path);
                let limit = counters["limits"].as_array().unwrap().last().unwrap().clone();
                (limit["used"].as_u64(), limit["remaining"].as_u64())
            };
            assert_eq!([read(), read()], [(Some(2), Some(1)); 2], "{key}: reading does not count");
            assert_eq!([(); 2].map(|()| replica.ask(key, value).0), [OK, OVER], "{key}");
            let descriptor = format!("{key}={value}");
            let text = replica.tollgate(&["counter", "reset", "shop", &descriptor, "--reason", "sorry"]);
            assert!(
                text.starts_with("reset ") && text.ends_with(&format!("of shop {descriptor}\n")),
                "{text}"
            );
            assert_eq!(read(), (Some(0), Some(3)), "{key}");
            assert_eq!([(); 4].map(|()| replica.ask(key, value).0), [OK, OK, OK, OVER], "{key}");
            replica.tollgate(&["counter", "reset", "shop", &descriptor]);
        }
    }
    replica.server.wait_for_log(&["counter_reset", "sorry"]);
}

const ALL: [&str; 5] = ["user", "log", "bucket", "window", "two"];

#[test]
fn counters_in_memory_are_read_and_reset() {
    let setup = Setup::new().rules("shop.yaml", RULES).env("LOCAL_CACHE_SIZE_IN_BYTES", "100000");
    reads_and_resets(&Replica::start(setup), &ALL);
}

#[test]
fn counters_in_redis_are_read_and_reset_and_keep_their_expiry() {
    let redis = Redis::single();
    let replica = Replica::on(&redis);
    reads_and_resets(&replica, &ALL);
    replica.ask("user", "v");
    eventually("every counter has an expiry", || {
        replica.ask("user", "v");
        let without = |key: &String| !key.contains("{tollgate}") && redis.ask(&["TTL", key]).number() < 0;
        let missing_ttl: Vec<_> = redis.keys().into_iter().filter(without).collect();
        holds(missing_ttl.is_empty(), || format!("{missing_ttl:?}"))
    });
}

#[test]
fn counters_in_memcached_are_read_and_reset() {
    let memcached = Memcached::single();
    let lines: Vec<&str> = RULES.lines().filter(|line| !line.contains("algorithm")).collect();
    let rules = lines.join("\n");
    let replica = Replica::start(memcached.setup().rules("shop.yaml", &rules));
    replica.server.wait_until_healthy();
    reads_and_resets(&replica, &["user", "two"]);
}

#[test]
fn the_counters_of_an_override_are_read_and_reset() {
    let replica = Replica::in_memory();
    replica.tollgate(&["override", "set", "shop", "bucket=x", "--limit", "2/year"]);
    assert_eq!([(); 3].map(|()| replica.ask("bucket", "x").0), [OK, OK, OVER]);
    let text = replica.tollgate(&["counter", "get", "shop", "bucket=x"]);
    assert!(text.contains("rule shop.bucket") && text.contains("override: limit"), "{text}");
    assert!(text.contains("2 per year") && text.contains("token_bucket"), "{text}");
    replica.tollgate(&["counter", "reset", "shop", "bucket=x"]);
    assert_eq!(replica.ask("bucket", "x").0, OK);
    let none = replica.run(&["counter", "get", "shop", "unknown=1"]);
    assert_eq!(
        (none.status.code(), printed(&none).contains("no rule matches")),
        (Some(1), true),
        "{}",
        printed(&none)
    );
}

#[test]
fn a_reset_reaches_the_over_limit_cache_of_another_replica_within_a_second() {
    let redis = Redis::single();
    let start = || {
        let setup = Setup::new().rules("shop.yaml", RULES).redis(&redis.env()).env("REPLICA_SYNC", "true");
        let replica = Replica::start(setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000"));
        replica.server.wait_until_healthy();
        replica
    };
    let (one, other) = (start(), start());
    other.server.wait_for_log(&["listening"]);
    eventually("both follow redis", || {
        let channels = redis.ask(&["PUBSUB", "NUMSUB", "{tollgate}:changes"]).to_string();
        holds(channels.contains('2'), || channels.clone())
    });
    for key in ["user", "bucket", "window", "log"] {
        assert_eq!([(); 4].map(|()| other.ask(key, "v").0), [OK, OK, OK, OVER], "{key}");
        assert_eq!(other.ask(key, "v").0, OVER, "the other remembers");
        one.tollgate(&["counter", "reset", "shop", &format!("{key}=v")]);
        let admitted = within(Duration::from_secs(1), || holds(other.ask(key, "v").0 == OK, String::new));
        assert!(admitted.is_ok(), "{key}\n{}", other.server.process.log());
    }
}
