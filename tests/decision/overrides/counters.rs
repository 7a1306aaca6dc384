//! Reading and resetting counters, with every algorithm and on every store.

use super::*;
use support::memcached::Memcached;

/// Uses three of three requests, reads, resets, and checks that all three are available again.
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

/// Two services with over-limit caches and fixed windows that count in this memcached.
fn two_on(memcached: &Memcached) -> [Replica; 2] {
    let lines: Vec<&str> = RULES.lines().filter(|line| !line.contains("algorithm")).collect();
    [(); 2].map(|()| {
        let setup = memcached.setup().rules("shop.yaml", &lines.join("\n")).env("REPLICA_SYNC", "true");
        let replica = Replica::start(setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000"));
        replica.server.wait_until_healthy();
        replica
    })
}

/// Resets a key at one replica that is in the over-limit cache of the other. On a busy machine, several keys.
#[track_caller]
fn reset_reaches(one: &Replica, other: &Replica, key: &str, value: &str) {
    let mut values = (0..).map(|number| format!("{value}{number}"));
    at_best_within("the reset arrives", Duration::from_secs(1), 5, || {
        let value = values.next().expect("it never ends");
        assert_eq!([(); 4].map(|()| other.ask(key, &value).0), [OK, OK, OK, OVER], "{key}={value}");
        assert_eq!(other.ask(key, &value).0, OVER, "the over-limit cache has the key");
        one.tollgate(&["counter", "reset", "shop", &format!("{key}={value}")]);
        let is_reset = || holds(other.ask(key, &value).0 == OK, || other.server.process.log());
        time_of(|| eventually("the reset arrives", is_reset))
    });
}

#[test]
fn a_reset_in_memcached_reaches_the_over_limit_cache_of_another_replica_within_a_second() {
    let mut memcached = Memcached::single();
    let [one, other] = two_on(&memcached);
    for (key, value) in [("user", "v"), ("two", "v"), ("user", "\u{fc} \"x\"")] {
        reset_reaches(&one, &other, key, value);
        reset_reaches(&other, &one, key, &format!("{value}2"));
    }
    let lives = memcached.expires_in("tollgate:resets");
    assert!(lives.is_some_and(|seconds| (1..=60).contains(&seconds)), "{lives:?}");
    let reads = |memcached: &Memcached| memcached.stat("cmd_get");
    let before = reads(&memcached);
    let slept = time_of(|| std::thread::sleep(Duration::from_secs(2)));
    let each_second = f64::from(u32::try_from(reads(&memcached) - before).unwrap()) / slept.as_secs_f64();
    assert!((2.0..=6.5).contains(&each_second), "{each_second} reads a second of two replicas");
    // The log of resets is full, foreign, or missing.
    memcached.ask("set tollgate:resets 0 0 3\r\nfoo");
    reset_reaches(&one, &other, "user", "foreign");
    memcached.ask("delete tollgate:resets");
    reset_reaches(&one, &other, "user", "gone");
    memcached.kill();
    memcached.start();
    eventually("both count again", || {
        let answer = [&one, &other].map(|replica| replica.server.ask(request("shop", &[&[("user", "u")]])));
        holds(answer.iter().all(Result::is_ok), String::new)
    });
    other.server.wait_for_log(&["resets of counters: recovered"]);
    one.server.wait_for_log(&["resets of counters: recovered"]);
    reset_reaches(&one, &other, "user", "again");
}

#[test]
fn concurrent_resets_in_memcached_reach_both_replicas() {
    let memcached = Memcached::single();
    let replicas = two_on(&memcached);
    let value = |index: usize, n: usize| format!("{index}-{n}-{}", "x".repeat(600));
    for n in 0..20 {
        for (index, replica) in replicas.iter().enumerate() {
            let other = &replicas[1 - index];
            let asked = [(); 4].map(|()| other.ask("user", &value(index, n)).0);
            assert_eq!(asked, [OK, OK, OK, OVER]);
            assert_eq!(replica.ask("user", &value(index, n)).0, OVER);
        }
    }
    let reset = |index: usize, n: usize| {
        let body = json!({"domain": "shop", "descriptor": [{"key": "user", "value": value(index, n)}]});
        let headers = [("content-type", "application/json")];
        let path = "/api/v1/counters/reset";
        let reply = http::send(replicas[index].admin, "POST", path, &headers, body.to_string().as_bytes());
        let reply = reply.unwrap().json();
        assert_eq!((&reply["reset"], &reply["warning"]), (&json!(1), &Value::Null));
    };
    std::thread::scope(|scope| {
        for index in 0..2 {
            scope.spawn(move || (0..20).for_each(|n| reset(index, n)));
        }
    });
    let mut left: Vec<_> = (0..2).flat_map(|index| (0..20).map(move |n| (index, n))).collect();
    eventually("every reset has reached the other", || {
        left.retain(|(index, n)| replicas[1 - index].ask("user", &value(*index, *n)).0 == OVER);
        holds(left.is_empty(), || format!("{left:?} are still over limit"))
    });
}

#[test]
fn a_reset_that_cannot_be_announced_in_memcached_is_done_with_a_warning() {
    let [counters, mut log] = [(); 2].map(|()| Memcached::single());
    // One of the two servers owns the key of the resets.
    let servers = |first: &Memcached, second: &Memcached| format!("{},{}", first.address(), second.address());
    let owner = crc32fast::hash(b"tollgate:resets") % 2;
    let list = if owner == 0 { servers(&log, &counters) } else { servers(&counters, &log) };
    let setup = support::memcached::setup(&list).rules("shop.yaml", COUNTED);
    let replica = Replica::start(setup.env("REPLICA_SYNC", "true"));
    replica.server.wait_until_healthy();
    let value = (0..100).map(|n| format!("v{n}")).find(|value| {
        replica.ask("user", value);
        counters.ask("stats items").contains("items")
    });
    let value = value.unwrap();
    assert_eq!([(); 3].map(|()| replica.ask("user", &value).0), [OK, OK, OVER]);
    log.kill();
    let text = replica.tollgate(&["counter", "reset", "shop", &format!("user={value}")]);
    assert!(text.contains("other replicas were not notified: memcached 127.0.0.1"), "{text}");
    assert_eq!(replica.ask("user", &value).0, OK);
}

const COUNTED: &str = "
domain: shop
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]
";
