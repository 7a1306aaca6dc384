//! Two replicas that share overrides in Redis, also while Redis is unreachable.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Instant,
};

use super::*;
use support::redis::{Cluster, Sentinels};

fn two(redis: &Redis) -> [Replica; 2] {
    let replicas = [(); 2].map(|()| Replica::on(redis));
    eventually("both follow redis", || {
        let channels = redis.ask(&["PUBSUB", "NUMSUB", "{tollgate}:changes"]).to_string();
        holds(channels.contains('2'), || channels.clone())
    });
    replicas
}

/// Waits for a change at a replica; returns how long that took.
#[track_caller]
pub(super) fn soon(what: &str, replica: &Replica, holds_now: impl Fn(&Replica) -> bool) -> Duration {
    time_of(|| eventually(what, || holds(holds_now(replica), || replica.server.process.log())))
}

#[test]
fn an_override_takes_effect_on_another_replica_within_a_second() {
    let redis = Redis::single();
    let [one, other] = two(&redis);
    let mut round = 0;
    at_best_within("set and removed", Duration::from_secs(2), 5, || {
        round += 1;
        let (name, user) = (format!("u{round}"), format!("client=u{round}"));
        one.tollgate(&["override", "set", "shop", &user, "--block"]);
        let set = soon("set", &other, |replica| replica.is_blocked(&name));
        assert!(one.is_blocked(&name), "in force at this replica when the command returns");
        other.tollgate(&["override", "remove", "shop", &user]);
        set + soon("removed", &one, |replica| !replica.is_blocked(&name))
    });
    let dir = tempfile::tempdir().unwrap();
    for count in [3, 2_000] {
        let file = dir.path().join("o.jsonl");
        let line =
            |n| format!("{{\"domain\":\"shop\",\"descriptor\":\"client=i{n}\",\"action\":\"block\"}}\n");
        std::fs::write(&file, (0..count).map(line).collect::<String>()).unwrap();
        one.tollgate(&["override", "import", file.to_str().unwrap()]);
        soon("imported", &other, |replica| replica.is_blocked(&format!("i{}", count - 1)));
    }
    assert_eq!(other.get("/api/v1/overrides")["total"], 2_000);
    assert_eq!(redis.keys().iter().filter(|key| key.contains("import") || key.contains("old")).count(), 0);
}

#[test]
fn a_limit_beyond_32_bits_reaches_another_replica_with_every_digit() {
    const MOST: u64 = 9_007_199_254_740_991;
    let redis = Redis::single();
    let [one, other] = two(&redis);
    let whale = ["override", "set", "shop", "user=whale", "--limit", "9007199254740991/year"];
    let text = one.tollgate(&whale);
    assert!(text.contains("limit 9,007,199,254,740,991 per year\n"), "{text}");
    soon("set", &other, |replica| replica.ask("user", "whale") == (OK, u32::MAX));
    let read = request("shop", &[&[("user", "whale")]]);
    let metadata = format!("{:?}", other.server.ask(read).unwrap().dynamic_metadata.unwrap());
    assert!(metadata.contains(&format!("{MOST}")), "{metadata}");
    for (key, most) in [("window", "4294967295"), ("bucket", "4294967295"), ("log", "100000")] {
        let output =
            one.run(&["override", "set", "shop", &format!("{key}=whale"), "--limit", "4294967296/year"]);
        let text = printed(&output);
        assert!(text.contains(&format!("is too large; accepted: 0 to {most};")), "{key}: {text}");
        assert_eq!(output.status.code(), Some(2), "{key}: {text}");
    }
    // The file of an export is imported again.
    let csv = other.tollgate(&["override", "list", "--csv"]);
    assert_eq!(csv.matches("9007199254740991").count(), 1, "{csv}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.csv");
    std::fs::write(&file, csv).unwrap();
    one.tollgate(&["override", "remove", "shop", "user=whale"]);
    one.tollgate(&["override", "import", file.to_str().unwrap()]);
    soon("imported", &other, |replica| replica.ask("user", "whale") == (OK, u32::MAX));
}

#[test]
fn overrides_expire_by_the_clock_of_redis() {
    let redis = Redis::single();
    let one = Replica::on(&redis);
    let now = Clock::current().now();
    let end = |reply: &Value| reply["expires_at"].as_str().unwrap().to_owned();
    let block = |replica: &Replica, client: &str, duration: &str| {
        let descriptor = format!("client={client}");
        let body = json!({"domain": "shop", "descriptor": descriptor, "action": "block", "for": duration});
        let headers = [("content-type", "application/json")];
        let body = body.to_string();
        let reply =
            http::send(replica.admin, "POST", "/api/v1/overrides", &headers, body.as_bytes()).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        end(&reply.json())
    };
    for hours in [1.0, -1.0] {
        let clock = Clock::current().ahead_by(hours * 3600.0);
        let other = {
            let _clock = clock.enter();
            Replica::on(&redis)
        };
        // An end of the replica with the right clock, which that of the other one has passed or reaches much later.
        block(&one, "half", "30m");
        block(&one, "brief", "3s");
        soon("set", &other, |replica| replica.is_blocked("half") && replica.is_blocked("brief"));
        std::thread::sleep(Duration::from_secs(3));
        for replica in [&one, &other] {
            soon("ended", replica, |replica| !replica.is_blocked("brief"));
        }
        // The wait of a refused request is that until the end by the clock of Redis.
        let waits = [&one, &other].map(|replica| {
            let answer = replica.server.ask(request("shop", &[&[("client", "half")]])).unwrap();
            answer.statuses[0].duration_until_reset.as_ref().map(|wait| wait.seconds).unwrap()
        });
        assert!(waits.iter().all(|wait| (1_700..=1_800).contains(wait)), "{hours} h: {waits:?}");
        assert!(waits[0].abs_diff(waits[1]) <= 1, "{hours} h: {waits:?}");
        // Both remove expired overrides every second.
        std::thread::sleep(Duration::from_secs(3));
        assert!(one.is_blocked("half") && other.is_blocked("half"), "{hours} h");
        // The version and one override: the other one is removed in Redis.
        assert_eq!(redis.ask(&["HLEN", "{tollgate}:overrides"]).number(), 2, "{hours} h");
        // An end that the replica with the wrong clock computes.
        let ends = block(&other, "half", "10m");
        let expected = [0.0, 60.0].map(|later| support::clock::timestamp(now + 600.0 + later));
        assert!(
            (expected[0].clone()..=expected[1].clone()).contains(&ends),
            "{hours} h: {ends}, {expected:?}"
        );
        soon("set", &one, |replica| {
            let path = "/api/v1/overrides?domain=shop&descriptor=client%3Dhalf";
            end(&replica.get(path)["overrides"][0]) == ends
        });
    }
}

#[test]
fn overrides_stay_in_force_without_redis_and_are_written_back() {
    let mut redis = Redis::single();
    let [one, other] = two(&redis);
    one.tollgate(&["override", "set", "shop", "client=ann", "--block"]);
    one.tollgate(&["override", "set", "shop", "client=brief", "--block", "--for", "4s"]);
    one.tollgate(&["override", "set", "shop", "client=freed", "--block"]);
    soon("set", &other, |replica| replica.is_blocked("ann") && replica.is_blocked("freed"));
    redis.kill();
    for replica in [&one, &other] {
        assert!(replica.is_blocked("ann"));
        assert_eq!(replica.ask("client", "bob").0, OK, "by the failure policy");
    }
    for change in [&["set", "shop", "client=eve", "--block"][..], &["remove", "shop", "client=freed"]] {
        let text = one.tollgate(&[&["override"], change].concat());
        for expected in ["redis is away", "on this replica now", "lost if this replica ends before"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
    assert!(one.is_blocked("eve") && !one.is_blocked("freed"), "in force here at once");
    assert!(!other.is_blocked("eve") && other.is_blocked("freed"), "and elsewhere when redis is back");
    assert_eq!(one.get("/api/v1/status?replica=this")["overrides"]["owed"], 2);
    let status = one.tollgate_any(&["status"]);
    assert!(status.contains("2 changes of overrides on this replica alone until redis is back"), "{status}");
    eventually("an override expires without redis", || holds(!other.is_blocked("brief"), String::new));
    one.server.wait_for_log(&["keeping previous overrides"]);
    redis.start();
    eventually("the overrides are back in redis", || {
        let fields = redis.ask(&["HLEN", "{tollgate}:overrides"]).number();
        holds(fields == 3, || {
            format!("{fields}\n{}\n{}", one.server.process.log(), other.server.process.log())
        })
    });
    eventually("what was owed is in force at the other replica", || {
        holds(other.is_blocked("eve") && !other.is_blocked("freed") && other.is_blocked("ann"), || {
            other.server.process.log().to_string()
        })
    });
    eventually("nothing is owed any more", || {
        let owed = one.get("/api/v1/status?replica=this")["overrides"]["owed"].clone();
        holds(owed == 0, || owed.to_string())
    });
    eventually("overrides can be set again", || {
        let output = other.run(&["override", "set", "shop", "client=mallory", "--block"]);
        holds(output.status.success() && !printed(&output).contains("away"), || printed(&output))
    });
    soon("it is in force here", &one, |replica| replica.is_blocked("mallory"));
    let fresh = Replica::on(&redis);
    eventually("a new replica has all overrides", || {
        holds(fresh.is_blocked("eve") && fresh.is_blocked("ann"), || fresh.server.process.log())
    });
}

#[test]
fn changes_while_redis_is_frozen_keep_their_order() {
    let redis = Redis::single();
    let [one, other] = two(&redis);
    one.tollgate(&["override", "set", "shop", "client=ann", "--block"]);
    soon("set", &other, |replica| replica.is_blocked("ann"));
    redis.freeze();
    // The stopped server reads both when it goes on: the second one must win.
    let text = one.tollgate(&["override", "set", "shop", "client=eve", "--block"]);
    assert!(text.contains("redis is away"), "{text}");
    let text = one.tollgate(&["override", "remove", "shop", "client=eve"]);
    assert!(text.contains("redis is away"), "{text}");
    redis.thaw();
    eventually("nothing is owed any more", || {
        let owed = one.get("/api/v1/status?replica=this")["overrides"]["owed"].clone();
        holds(owed == 0, || owed.to_string())
    });
    for _ in 0..20 {
        assert!(!one.is_blocked("eve") && !other.is_blocked("eve"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(redis.ask(&["HLEN", "{tollgate}:overrides"]).number(), 2, "the version and one override");
}

#[test]
fn an_import_that_redis_loses_changes_nothing() {
    let mut redis = Redis::single();
    let [one, other] = two(&redis);
    one.tollgate(&["override", "set", "shop", "client=ann", "--block"]);
    soon("set", &other, |replica| replica.is_blocked("ann"));
    let call = |method: &str, path: &str, body: &str| {
        let headers = [("content-type", "application/x-ndjson")];
        let reply = http::send(one.admin, method, path, &headers, body.as_bytes()).unwrap();
        (reply.status, reply.json())
    };
    let line = |n| format!("{{\"domain\":\"shop\",\"descriptor\":\"client=i{n}\",\"action\":\"block\"}}\n");
    let lines: String = (0..10).map(line).collect();
    let (_, begun) = call("POST", "/api/v1/imports", "");
    let import = format!("/api/v1/imports/{}", begun["import"].as_str().unwrap());
    assert_eq!(call("POST", &import, &lines).1["overrides"], 10);
    redis.kill();
    for (method, body) in [("POST", &*lines), ("PUT", ""), ("DELETE", "")] {
        let (status, reply) = call(method, &import, body);
        assert_eq!(status, 503, "{method}: {reply}");
        assert!(reply["error"].as_str().unwrap().contains("the overrides are unchanged"), "{reply}");
    }
    for replica in [&one, &other] {
        assert!(replica.is_blocked("ann") && !replica.is_blocked("i7"));
    }
    redis.start();
    eventually("redis is reachable again", || {
        let (status, reply) = call("PUT", &import, "");
        holds(status == 404, || reply.to_string())
    });
}

/// As an import without a message.
fn everything_has_changed(redis: &Redis, version: &str) {
    const VERSIONS: &str = "{tollgate}:overrides:versions";
    redis.ask(&["DEL", VERSIONS]);
    redis.ask(&["ZADD", VERSIONS, version, "@"]);
    redis.ask(&["HSET", "{tollgate}:overrides", "@", version]);
}

#[test]
fn a_missed_change_is_detected_by_the_version() {
    let redis = Redis::single();
    let [one, other] = two(&redis);
    one.tollgate(&["override", "set", "shop", "client=ann", "--block"]);
    soon("set", &other, |replica| replica.is_blocked("ann"));
    // A change without a message.
    let value = r#"{"domain":"shop","descriptor":[{"key":"client","value":"eve"}],"action":"block"}"#;
    redis.ask(&["HSET", "{tollgate}:overrides", "eeee", "not an override"]);
    redis.ask(&["HSET", "{tollgate}:overrides", "ffffffffffffffffffff", value]);
    everything_has_changed(&redis, "4000000000000001");
    eventually("the change is detected", || {
        holds(other.is_blocked("eve") && other.is_blocked("ann"), String::new)
    });
    other.server.wait_for_log(&["ignoring an invalid override in redis", "invalid JSON"]);
}

#[test]
fn a_short_run_writes_only_counters_and_the_log_to_redis() {
    let redis = Redis::single();
    let keys = eventually("a service stops before it announces itself", || {
        redis.ask(&["FLUSHALL"]);
        let begun = Instant::now();
        let replica = Replica::on(&redis);
        replica.ask("user", "a");
        let is_log = |key: &String| key.ends_with("{tollgate}:log");
        let keys: Vec<_> = redis.keys().into_iter().filter(|key| !is_log(key)).collect();
        drop(replica);
        holds(begun.elapsed() < Duration::from_secs(2), || format!("{:?}", begun.elapsed())).map(|()| keys)
    });
    assert!(keys.len() == 1 && keys[0].starts_with("shop_user_a_"), "{keys:?}");
}

#[test]
fn a_missing_permission_is_logged_and_requests_are_counted() {
    let redis = Redis::with(&[
        "--user",
        "weak",
        "on",
        ">weak",
        "~*",
        "&*",
        "+@all",
        "-hget",
        "-subscribe",
        "-evalsha",
        "-eval",
    ]);
    let mut env = redis.env();
    env.push(("REDIS_AUTH", "weak:weak".to_owned()));
    let setup = Setup::new().rules(
        "shop.yaml",
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n",
    );
    let replica = Replica::start(setup.redis(&env).env("REPLICA_SYNC", "true"));
    replica.server.wait_until_healthy();
    replica.server.wait_for_log(&["overrides: redis 127.0.0.1", "NOPERM", "REDIS_AUTH"]);
    assert_eq!(replica.ask("user", "ann").0, OK);
    let output = replica.run(&["override", "set", "shop", "user=eve", "--block"]);
    assert!(printed(&output).contains("NOPERM"), "{}", printed(&output));
}

/// Checks overrides, an import, a reset, and the list of replicas on any Redis topology.
fn shares_everything(env: &Env) {
    let [one, other] = [(); 2].map(|()| Replica::counting_in(env));
    eventually("both are listed", || {
        let replicas = one.get("/api/v1/replicas");
        holds(replicas["replicas"].as_array().map_or(0, Vec::len) == 2, || {
            format!("{replicas}\n{}", one.server.process.log())
        })
    });
    one.tollgate(&["override", "set", "shop", "client=ann", "--block"]);
    soon("set", &other, |replica| replica.is_blocked("ann"));
    let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
    let line = |n| format!("{{\"domain\":\"shop\",\"descriptor\":\"client=i{n}\",\"action\":\"block\"}}\n");
    std::fs::write(file.path(), (0..1_200).map(line).collect::<String>()).unwrap();
    other.tollgate(&["override", "import", file.path().to_str().unwrap()]);
    soon("imported", &one, |replica| replica.is_blocked("i1199") && replica.is_blocked("ann"));
    for key in ["user", "two", "log"] {
        assert_eq!([(); 4].map(|()| one.ask(key, "v").0), [OK, OK, OK, OVER], "{key}");
        one.tollgate(&["counter", "reset", "shop", &format!("{key}=v")]);
        assert_eq!(other.ask(key, "v").0, OK, "{key}");
    }
}

#[test]
fn replicas_share_everything_over_a_unix_socket_with_a_password() {
    let redis = Redis::with(&["--requirepass", "secret"]);
    let env = vec![
        ("REDIS_SOCKET_TYPE", "unix".to_owned()),
        ("REDIS_TYPE", "SINGLE".to_owned()),
        ("REDIS_URL", redis.socket().display().to_string()),
        ("REDIS_AUTH", "secret".to_owned()),
        ("CACHE_KEY_PREFIX", "pre:".to_owned()),
    ];
    shares_everything(&env);
    assert!(redis.keys().contains(&"pre:{tollgate}:overrides".to_owned()), "{:?}", redis.keys());
}

#[test]
fn replicas_share_everything_in_a_cluster() {
    shares_everything(&Cluster::start(Duration::from_secs(15)).env());
}

#[test]
fn overrides_survive_a_failover_of_sentinels() {
    let mut sentinels = Sentinels::start();
    shares_everything(&sentinels.env());
    let one = Replica::counting_in(&sentinels.env());
    eventually("the overrides are read", || holds(one.is_blocked("ann"), || one.server.process.log()));
    sentinels.fail_over();
    assert!(one.is_blocked("ann"));
    eventually("overrides can be set at the new master", || {
        let output = one.run(&["override", "set", "shop", "client=eve", "--block"]);
        holds(output.status.success(), || printed(&output))
    });
    eventually("it is in force", || {
        holds(one.is_blocked("eve") && one.is_blocked("ann"), || one.server.process.log())
    });
}

#[test]
fn a_commit_whose_replica_is_lost_ends_within_half_a_minute() {
    const COMMIT: &str = "{tollgate}:overrides:committing";
    let redis = Redis::single();
    let [one, other] = two(&redis);
    one.tollgate(&["override", "set", "shop", "client=ann", "--block"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.csv");
    // A commit copies these, which takes a while.
    std::fs::write(&file, blocked_clients("old", 20_000)).unwrap();
    other.tollgate(&["override", "import", file.to_str().unwrap()]);
    soon("imported", &one, |replica| replica.is_blocked("old7"));
    std::fs::write(&file, blocked_clients("i", 1_000)).unwrap();
    let import = |replica: &Replica| replica.run(&["override", "import", file.to_str().unwrap()]);
    let lifetime = std::thread::scope(|scope| {
        let failing = scope.spawn(|| import(&one));
        eventually("the commit begins", || {
            holds(redis.keys().contains(&COMMIT.to_owned()), || one.server.process.log())
        });
        one.server.process.signal("KILL");
        assert_eq!(failing.join().unwrap().status.code(), Some(2));
        redis.ask(&["TTL", COMMIT]).number()
    });
    assert!((1..=30).contains(&lifetime), "{lifetime} seconds");
    let refused = printed(&import(&other));
    assert!(refused.contains("or after 30 seconds if its replica was lost"), "{refused}");
    redis.ask(&["EXPIRE", COMMIT, "0"]);
    eventually("another replica commits", || {
        let output = import(&other);
        holds(output.status.success(), || printed(&output))
    });
    assert!(other.is_blocked("i999") && other.is_blocked("ann"));
}

/// A file of overrides that block clients.
fn blocked_clients(prefix: &str, count: usize) -> String {
    let line = |n| format!("shop,client={prefix}{n},block\n");
    ["domain,descriptor,action\n".to_owned()].into_iter().chain((0..count).map(line)).collect()
}

/// Blocks a client by the admin API, and returns how long that took.
fn block(replica: &Replica, client: &str) -> Duration {
    let body = json!({"domain": "shop", "descriptor": format!("client={client}"), "action": "block"});
    let headers = [("content-type", "application/json")];
    let begun = Instant::now();
    let reply = http::send(replica.admin, "POST", "/api/v1/overrides", &headers, body.to_string().as_bytes());
    assert_eq!(reply.unwrap().status, 200);
    begun.elapsed()
}

#[test]
fn concurrent_changes_are_confirmed_as_soon_as_they_are_in_force() {
    let redis = Redis::single();
    let replicas = two(&redis);
    let slowest = std::thread::scope(|scope| {
        let callers = [0, 1, 2, 3, 4, 5, 6, 7].map(|number| {
            let replica = &replicas[number % 2];
            scope.spawn(move || (0..40).map(|n| block(replica, &format!("c{number}-{n}"))).max().unwrap())
        });
        callers.map(|caller| caller.join().unwrap()).into_iter().max().unwrap()
    });
    // A caller that misses its change waits three seconds.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    for replica in &replicas {
        (0..8).for_each(|number| assert!(replica.is_blocked(&format!("c{number}-39"))));
    }
}

#[test]
fn a_replica_that_starts_while_overrides_change_reads_them_once() {
    let redis = Redis::single();
    let one = Replica::on(&redis);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.csv");
    std::fs::write(&file, blocked_clients("i", 10_000)).unwrap();
    one.tollgate(&["override", "import", file.to_str().unwrap()]);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..20_000 {
                block(&one, &format!("w{}", n % 50));
                if is_done.load(Relaxed) {
                    break;
                }
            }
        });
        let other = Replica::on(&redis);
        let is_enforced = other.is_blocked("i7");
        std::thread::sleep(Duration::from_secs(3));
        is_done.store(true, Relaxed);
        let log = other.server.final_log();
        assert!(is_enforced, "a healthy replica enforces the overrides\n{log}");
        // A message that is late may cause another read.
        assert!((1..=3).contains(&log.matches("overrides: read from redis").count()), "{log}");
    });
}

#[test]
fn an_import_succeeds_while_overrides_change_and_loses_no_change() {
    let redis = Redis::single();
    let [one, other] = two(&redis);
    let dir = tempfile::tempdir().unwrap();
    let import = |replica: &Replica, prefix: &str, count: usize| {
        let file = dir.path().join(format!("{prefix}.csv"));
        std::fs::write(&file, blocked_clients(prefix, count)).unwrap();
        replica.tollgate(&["override", "import", file.to_str().unwrap()]);
    };
    import(&one, "old", 5000);
    let is_done = AtomicBool::new(false);
    let changes = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let ids: Vec<_> = (0..300)
                .map(|n| {
                    let path = format!("/api/v1/overrides?domain=shop&descriptor=client%3Dold{n}");
                    one.get(&path)["overrides"][0]["id"].as_str().unwrap().to_owned()
                })
                .take_while(|id| {
                    let path = format!("/api/v1/overrides/{id}");
                    assert_eq!(http::send(one.admin, "DELETE", &path, &[], b"").unwrap().status, 200);
                    !is_done.load(Relaxed)
                })
                .collect();
            ids.len()
        });
        for round in 0..3 {
            import(&other, &format!("new{round}-"), 1_000);
        }
        is_done.store(true, Relaxed);
        changing.join().unwrap()
    });
    assert!(changes > 2, "{changes}");
    for replica in [&one, &other] {
        soon("all changes are in force", replica, |replica| {
            let is_removed = (0..changes).all(|n| !replica.is_blocked(&format!("old{n}")));
            is_removed && (0..3).all(|round| replica.is_blocked(&format!("new{round}-999")))
        });
        // The last one was removed, but not counted.
        let total = replica.get("/api/v1/overrides?n=1")["total"].as_u64().unwrap();
        assert!([0, 1].contains(&(8000 - changes as u64 - total)), "{total} with {changes} changes");
    }
}
