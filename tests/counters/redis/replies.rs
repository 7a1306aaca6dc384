//! Denied commands, errors of every kind, and unexpected replies: nothing counts as done that was not, and each is in the
//! log and the metrics.

use std::thread;

use proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

use support::{
    client::Client,
    clock::Clock,
    eventually,
    fake::Fake,
    holds, http,
    ports::free_port,
    redis::{Redis, tcp},
    server::{Server, Setup},
};

use super::{Code, RateLimitRequest, code, decision, one};

/// A limit of each kind.
const RULES: &str = "
domain: d
descriptors:
  - key: many
    rate_limit: {unit: hour, requests_per_unit: 4000000}
  - key: several
    rate_limit: [{unit: hour, requests_per_unit: 4000}, {unit: day, requests_per_unit: 4000}]
  - key: bucket
    rate_limit: {unit: hour, requests_per_unit: 4000, algorithm: token_bucket}
  - key: log
    rate_limit: {unit: hour, requests_per_unit: 4000, algorithm: sliding_log}
";
const COUNTERS: &str =
    "domain: d\ndescriptors:\n  - key: many\n    rate_limit: {unit: hour, requests_per_unit: 4000000}\n";

/// The permissions that the rules above need according to docs/reference/redis.md.
const ALL: &str = "+incrby +expire +get +evalsha +eval +set +ttl +time +mget +setex +setrange +lrange +lindex +llen \
                   +ltrim +del +rpush +ping +client|setname";

/// A server whose user `ann` has only these permissions.
fn with_user(may: &str) -> Redis {
    let mut args = vec!["--user", "ann", "on", ">hush", "~*"];
    args.extend(may.split_whitespace());
    Redis::with(&args)
}

fn as_ann(redis: &Redis, rules: &str) -> Setup {
    Setup::new().redis(&redis.env()).env("REDIS_AUTH", "ann:hush").rules("d.yaml", rules)
}

fn metric(server: &Server, name: &str) -> f64 {
    server.metrics().iter().filter(|(series, _)| series.starts_with(name)).map(|(_, value)| value).sum()
}

fn never_reconnected(server: &Server) -> bool {
    metric(server, "tollgate_redis_reconnects_total") < 0.5
}

fn denied(server: &Server, command: &str) -> f64 {
    metric(server, &format!("tollgate_redis_command_denied_total{{pool=\"main\",command=\"{command}\"}}"))
}

fn ask(client: &Client, key: &str) -> Result<(Code, u32), String> {
    client.ask(one(key, "v")).map(|answer| decision(&answer)).map_err(|status| status.message().to_owned())
}

#[test]
fn a_missing_permission_for_ping_is_counted() {
    let redis = with_user(&ALL.replace("+ping ", ""));
    let server = as_ann(&redis, COUNTERS).start();
    server.wait_for_log(&["PING failed: NOPERM"]);
    eventually("the denial is counted", || holds(denied(&server, "ping") > 0.0, || server.process.log()));
}

#[test]
fn a_missing_permission_for_expire_is_logged_with_the_first_hit() {
    let redis = with_user(&ALL.replace("+expire ", ""));
    let mut server = as_ann(&redis, COUNTERS).start_healthy();
    let client = server.client();
    assert_eq!(ask(&client, "many"), Ok((Code::Ok, 3_999_999)));
    server.wait_for_log(&[
        "error",
        "NOPERM",
        "'expire' command",
        "docs/reference/redis.md#permissions",
        &redis.address(),
    ]);
    assert!(denied(&server, "expire") >= 1.0);

    // Each hit tries again.
    assert_eq!(ask(&client, "many"), Ok((Code::Ok, 3_999_998)));
    let key = redis.keys().pop().expect("it was counted");
    assert_eq!(redis.ask(&["TTL", &key]).number(), -1);
    assert!(metric(&server, "tollgate_redis_keys_without_expiry_total{") >= 2.0, "{:?}", server.metrics());
    redis.ask(&["ACL", "SETUSER", "ann", "+expire"]);
    assert_eq!(ask(&client, "many"), Ok((Code::Ok, 3_999_997)));
    assert!(redis.ask(&["TTL", &key]).number() > 3000, "the next hit gave it one");
    assert!(server.process.exited().is_none());
    drop(client);
    let log = server.final_log();
    assert!(!log.contains("hush") && !log.contains("panicked"), "{log}");
}

#[test]
fn the_documented_commands_are_enough() {
    let redis = with_user(ALL);
    let server = as_ann(&redis, RULES).start_healthy();
    let client = server.client();
    for key in ["many", "several", "bucket", "log"] {
        ask(&client, key).expect("what is documented is enough");
    }
    drop(client);
    let log = server.final_log();
    assert!(!log.contains("permission"), "{log}");
}

#[test]
fn only_rules_that_need_a_denied_command_fail() {
    let redis = with_user(&ALL.replace("+rpush", ""));
    let server = as_ann(&redis, RULES).start_healthy();
    ask(&server.client(), "many").expect("counters need no lists");
    ask(&server.client(), "bucket").expect("a bucket is no list");
    ask(&server.client(), "log").expect_err("a log is one");
    // Redis says "can't run this command", Valkey "has no permissions to run the 'rpush' command".
    server.wait_for_log(&["error", " run th", " command", "docs/reference/redis.md#permissions"]);
    assert!(never_reconnected(&server), "the connection is as good as it was");
}

/// For a counter that is new and one that exists.
#[test]
fn a_script_that_is_denied_any_of_its_commands_counts_nothing() {
    let redis = with_user(ALL);
    let server = as_ann(&redis, RULES).start_healthy();
    let client = server.client();
    let mut denials = 0;
    for key in ["several", "bucket", "log"] {
        for command in ALL.split_whitespace().filter_map(|command| command.strip_prefix('+')) {
            for before in [0, 1] {
                let value = format!("{command}{before}");
                let left = |hits: usize| (Code::Ok, 4000 - u32::try_from(hits).unwrap());
                let ask = || client.ask(one(key, &value)).map(|answer| decision(&answer));
                for hits in 1..=before {
                    assert_eq!(ask().unwrap(), left(hits));
                }
                redis.ask(&["ACL", "SETUSER", "ann", &format!("-{command}")]);
                let denied = ask();
                redis.ask(&["ACL", "SETUSER", "ann", &format!("+{command}")]);
                let is_own = |name: &String| name.contains(&format!("_{key}_{value}_"));
                let own: Vec<String> = redis.keys().into_iter().filter(is_own).collect();
                if denied.is_err() {
                    denials += 1;
                    let known = if key == "several" { 2 * before } else { before };
                    assert_eq!(own.len(), known, "{key} without {command}: {own:?}");
                    assert_eq!(ask().unwrap(), left(before + 1), "{key} without {command}");
                }
                for name in own {
                    assert!(redis.ask(&["TTL", &name]).number() > 0, "{name} without {command}");
                }
            }
        }
    }
    assert!(denials >= 15, "{denials}");
}

/// The patterns of docs/reference/redis.md, without and with a prefix.
#[test]
fn the_documented_key_patterns_are_enough_for_rules_of_every_kind() {
    let docs = include_str!("../../../docs/reference/redis.md");
    let rules = super::OF_EACH_KIND.to_owned()
        + "  - {key: several, rate_limit: [{unit: year, requests_per_unit: 9}, {unit: day, requests_per_unit: 9}]}\n\
           \x20 - {key: budget, rate_limit: {unit: year, requests_per_unit: 9, hold: {amount: 1, ttl: 10m}}}\n\
           \x20 - {key: streams, rate_limit: {algorithm: concurrency, requests_per_unit: 9, hold: {ttl: 10m}}}\n";
    let prefixed = "~p:* ~tollgate:* &p:{tollgate}:changes";
    let plain = "~d_* ~{d_* ~{*}holds* ~{*}due ~{*}ended ~tollgate:* ~{tollgate* &{tollgate}:changes";
    for (prefix, patterns) in [("p:", prefixed), ("", plain)] {
        assert!(docs.contains(&format!("`{patterns}`")), "{patterns} are not in docs/reference/redis.md");
        let mut args = vec!["--user", "ann", "on", ">hush", "+@all", "resetchannels"];
        args.extend(patterns.split_whitespace());
        let redis = Redis::with(&args);
        let setup = as_ann(&redis, &rules).env("CACHE_KEY_PREFIX", prefix).env("REPLICA_SYNC", "true");
        let mut servers = vec![];
        for stop in ["false", "true"] {
            let admin = free_port();
            let setup = setup.clone().env("ADMIN_ADDR", &format!("127.0.0.1:{admin}"));
            let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", stop).start_healthy();
            let client = server.client();
            let long = "x".repeat(600);
            for key in ["fixed", "leased", "sliding", "log", "token", "leaky", "several", "budget", "streams"]
            {
                for value in ["v", &*long] {
                    let answer = client.ask(one(key, value));
                    let answer =
                        answer.unwrap_or_else(|error| panic!("{key}: {error}\n{}", server.process.log()));
                    assert_eq!(answer.overall_code(), Code::Ok, "{key}");
                }
            }
            for (path, body) in [
                ("overrides", r#"{"domain":"d","descriptor":"fixed=blocked","action":"block"}"#),
                ("counters/reset", r#"{"domain":"d","descriptor":"log=v"}"#),
                ("counters/reset", r#"{"domain":"d","descriptor":"budget=v"}"#),
            ] {
                let headers = [("content-type", "application/json")];
                let path = format!("/api/v1/{path}");
                let reply = http::send(admin, "POST", &path, &headers, body.as_bytes()).unwrap();
                assert_eq!(reply.status, 200, "{}", reply.text());
            }
            servers.push(server);
        }
        for server in servers {
            let log = server.final_log();
            assert!(!log.contains("NOPERM") && !log.contains("denied"), "{log}");
        }
    }
}

#[test]
fn a_command_that_the_server_renamed_is_logged_once_with_its_cause() {
    let redis = Redis::with(&["--rename-command", "EXPIRE", ""]);
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy();
    ask(&server.client(), "many").expect("it counts");
    server.wait_for_log(&["unknown command 'EXPIRE'", "docs/reference/redis.md#permissions"]);
    let log = server.final_log();
    assert_eq!(log.matches("unknown command").count(), 1, "{log}");
}

#[test]
fn keys_without_permission_fail_alone() {
    let redis = Redis::with(&["--user", "ann", "on", ">hush", "~d_many_*", "+@all"]);
    let server = as_ann(&redis, RULES).start_healthy();
    let client = server.client();
    for _ in 0..3 {
        ask(&client, "bucket").expect_err("it is not one of the user's keys");
        ask(&client, "many").expect("this one is");
    }
    server.wait_for_log(&["NOPERM", "EVALSHA needs the key pattern ~d_*"]);
    assert!(never_reconnected(&server));
}

/// Errors of the whole server: each request is decided by policy, the connection stays, and counting continues at once.
fn refuses_and_recovers(redis: &Redis, word: &str, kind: &str, begin: impl FnOnce(), end: impl FnOnce()) {
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy();
    let client = server.client();
    for key in ["many", "several", "bucket", "log"] {
        ask(&client, key).expect("it counts");
    }
    begin();
    for key in ["many", "several", "bucket", "log"] {
        eventually("it is refused", || {
            holds(ask(&client, key).is_err(), || format!("{key}: {}", server.process.log()))
        });
    }
    server.wait_for_log(&[word, &redis.address()]);
    assert!(metric(&server, &format!("tollgate_redis_errors_total{{pool=\"main\",kind=\"{kind}\"}}")) >= 1.0);
    end();
    for key in ["many", "several", "bucket", "log"] {
        eventually("it counts again", || ask(&client, key).map(drop));
    }
    drop(client);
    let log = server.final_log();
    assert!(!log.contains("panicked") && log.lines().count() < 100, "{log}");
}

#[test]
fn a_server_without_its_replicas_rejects_writes() {
    let redis = Redis::single();
    let set = |replicas| drop(redis.ask(&["CONFIG", "SET", "min-replicas-to-write", replicas]));
    refuses_and_recovers(&redis, "NOREPLICAS", "writes_disabled", || set("1"), || set("0"));
}

#[test]
fn a_server_out_of_memory_counts_nothing_of_a_failed_rule() {
    let redis = Redis::single();
    redis.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", RULES).start_healthy();
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let client = server.client();
    for key in ["many", "several", "bucket", "log"] {
        let refused = ask(&client, key).expect_err("there is no room");
        assert_eq!(refused, "counter store: unexpected reply");
    }
    server.wait_for_log(&["OOM"]);
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(redis.keys().len(), 0);
    assert_eq!(ask(&client, "several"), Ok((Code::Ok, 3999)));
    assert!(never_reconnected(&server));
}

#[test]
fn a_server_that_is_busy_with_a_script() {
    let redis = Redis::with(&["--busy-reply-threshold", "10"]);
    thread::scope(|scope| {
        let begin = || {
            let mut other = redis.connect();
            scope.spawn(move || other.ask(&["EVAL", "while true do end", "0"]));
            eventually("it is busy", || {
                let answer = redis.try_ask(&["PING"]).map_or_else(|error| error, |answer| answer.to_string());
                holds(answer.contains("BUSY"), || answer)
            });
        };
        let end = || {
            eventually("the script ends", || {
                redis.try_ask(&["SCRIPT", "KILL"])?;
                let answer = redis.try_ask(&["PING"])?.to_string();
                holds(answer == "PONG", || answer)
            });
        };
        refuses_and_recovers(&redis, "BUSY", "busy", begin, end);
    });
}

#[test]
fn an_unexpected_reply_closes_the_connection() {
    for answer in ["+OK\r\n", "$-1\r\n", "*0\r\n", "$1\r\n7\r\n"] {
        let fake = Fake::answering(move |words, _| match words[0].to_ascii_uppercase().as_str() {
            "PING" => "+PONG\r\n".to_owned(),
            "INCRBY" if words.get(2).is_some_and(|by| by != "x") => answer.to_owned(),
            "CLIENT" => "+OK\r\n".to_owned(),
            _ => ":1\r\n".to_owned(),
        });
        let setup = Setup::new().redis(&tcp(&fake.address())).rules("d.yaml", COUNTERS);
        let server = setup.start();
        server.process.wait_until_log("it is refused", |log| {
            let refused = server.ask(one("many", "v")).is_err();
            holds(refused && log.contains("unexpected-reply"), || log)
        });
        eventually("it reconnects", || {
            holds(metric(&server, "tollgate_redis_reconnects_total") >= 1.0, || server.process.log())
        });
    }
}

/// A request with its own limit per minute, beside a rule's limit per hour with the same key.
fn per_minute(value: &str) -> RateLimitRequest {
    let mut request = one("many", value);
    request.descriptors[0].limit =
        Some(RateLimitOverride { requests_per_unit: 4_000_000, unit: 2, unit_multiplier: None });
    request
}

#[test]
fn the_longer_of_two_windows_sets_the_expiry_of_their_key() {
    let clock = Clock::at("2026-11-23T10:00:01Z");
    let _entered = clock.enter();
    let redis = Redis::single();
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", COUNTERS);
    let server = setup.env("EXPIRATION_JITTER_MAX_SECONDS", "10").start_healthy();
    let client = server.client();
    let lives = |value: &str| {
        let keys: Vec<_> = redis.keys().into_iter().filter(|key| key.contains(value)).collect();
        assert_eq!(keys.len(), 1, "both count under one name: {keys:?}");
        redis.ask(&["TTL", &keys[0]]).number()
    };
    let minute = |value: &str| drop(client.ask(per_minute(value)).expect("it is answered"));
    let hour = |value: &str| drop(client.ask(one("many", value)).expect("it is answered"));
    minute("minute-first");
    assert!((30..=70).contains(&lives("minute-first")), "{}", lives("minute-first"));
    hour("minute-first");
    hour("hour-first");
    minute("hour-first");
    minute("hour-first");
    for value in ["minute-first", "hour-first"] {
        let lives = lives(value);
        assert!(lives > 3400, "an hour's count lives for an hour, and not {lives} s: {value}");
    }
    // Also with all counters of a request in one step.
    let setup = Setup::new().redis(&redis.env()).rules("d.yaml", COUNTERS);
    let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true").start_healthy();
    for value in ["minute-stop", "hour-stop"] {
        let mut requests = [per_minute(value), one("many", value)];
        if value.starts_with("hour") {
            requests.reverse();
        }
        for request in requests {
            server.ask(request).expect("it is answered");
        }
        assert!(lives(value) > 3400, "{value}: {}", lives(value));
    }
}

#[test]
fn a_user_without_scripts_still_gives_every_counter_an_expiry() {
    let clock = Clock::at("2026-11-23T10:00:01Z");
    let _entered = clock.enter();
    let redis = with_user("+incrby +expire +get +ping");
    let server = as_ann(&redis, COUNTERS).start_healthy();
    let client = server.client();
    for user in ["a", "b", "c"] {
        for request in [per_minute(user), one("many", user)] {
            client.ask(request).expect("it counts");
        }
    }
    for key in redis.keys() {
        eventually("it has an expiry", || {
            let ttl = redis.ask(&["TTL", &key]).number();
            holds(ttl > 0, || format!("{key}: {ttl}"))
        });
    }
    assert_eq!(code(&client, "many", "d").0, Code::Ok);
}
