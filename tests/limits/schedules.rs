//! Limits with a schedule, across their boundaries, on each store. When an entry holds is compared with another
//! implementation in `crates/limits/limit/src/calendar`.

use std::{
    any::Any,
    process::{Command, Output, Stdio},
};

use proto::envoy::service::ratelimit::v3::{RateLimitResponse, rate_limit_response::Code};
use serde_json::{Value, json};

use support::{
    client::{Client, request},
    clock::Clock,
    eventually, holds, http,
    memcached::{self, Memcached},
    ports::free_port,
    process::assert_exit,
    redis::Redis,
    server::{BINARY, Server, Setup},
    stores::with_redis,
};

/// From 08:00 to 20:00 in Berlin, which is 07:00 to 19:00 of UTC in November.
const OFFICE: &str =
    "{days: mon-fri, from: 08:00, to: 20:00, time_zone: Europe/Berlin, requests_per_unit: 9}";

fn rules(kinds: &[&str]) -> String {
    let rule = |kind: &&str| {
        let limit = format!("unit: day, requests_per_unit: 3, schedule: [{OFFICE}]");
        match *kind {
            "several" => format!(
                "- key: several\n  rate_limit:\n  - {{{limit}}}\n  - {{unit: year, requests_per_unit: 1000}}\n"
            ),
            kind => format!("- key: {kind}\n  rate_limit: {{{limit}, algorithm: {kind}}}\n"),
        }
    };
    format!("domain: d\ndescriptors:\n{}", kinds.iter().map(rule).collect::<String>())
}

fn ask(client: &Client, key: &str) -> RateLimitResponse {
    client.ask(request("d", &[&[(key, "v")]])).expect("the request is answered")
}

/// The admitted ones of as many requests, and the limit that all of them were told.
fn admitted(client: &Client, key: &str, times: usize) -> (usize, u32) {
    let answers: Vec<_> = (0..times).map(|_| ask(client, key)).collect();
    let limit =
        |answer: &RateLimitResponse| answer.statuses[0].current_limit.as_ref().unwrap().requests_per_unit;
    let limits: std::collections::HashSet<u32> = answers.iter().map(limit).collect();
    assert_eq!(limits.len(), 1, "{limits:?}");
    let admitted = answers.iter().filter(|answer| answer.overall_code() == Code::Ok).count();
    (admitted, limits.into_iter().next().unwrap())
}

/// A counter is exhausted, continues under a larger limit, and is over the smaller one again.
fn the_limit_changes_and_the_counter_goes_on(kinds: &[&str], setup: impl FnOnce() -> (Setup, Box<dyn Any>)) {
    let clock = Clock::at("2026-11-23T06:55:00Z").steerable();
    let _clock = clock.enter();
    let (setup, _store) = setup();
    let server = setup.rules("d.yaml", &rules(kinds)).start_healthy();
    let client = server.client();
    for kind in kinds {
        assert_eq!(admitted(&client, kind, 4), (3, 3), "{kind}");
    }
    clock.move_to("2026-11-23T07:00:00Z", 5.0);
    for kind in kinds {
        let (more, limit) = admitted(&client, kind, 9);
        // A single fixed window counts rejected hits, too.
        assert!((5..=6).contains(&more), "{kind}: {more}");
        assert_eq!(limit, 9, "{kind}");
    }
    clock.move_to("2026-11-23T19:00:00Z", 5.0);
    for kind in kinds {
        assert_eq!(admitted(&client, kind, 3), (0, 3), "{kind}");
    }
    // The next day.
    clock.move_to("2026-11-24T19:00:00Z", -30.0);
    for kind in kinds.iter().filter(|kind| !kind.starts_with("sliding")) {
        assert_eq!(admitted(&client, kind, 7), (7, 9), "{kind}");
    }
    clock.step(35.0);
    for kind in kinds {
        assert_eq!(admitted(&client, kind, 1).1, 3, "{kind}");
    }
}

const ALL: [&str; 4] = ["fixed_window", "sliding_window", "sliding_log", "several"];

#[test]
fn the_limit_changes_and_the_counter_goes_on_in_memory() {
    the_limit_changes_and_the_counter_goes_on(&ALL, || (Setup::new(), Box::new(())));
}

#[test]
fn the_limit_changes_and_the_counter_goes_on_in_memory_with_a_local_cache() {
    the_limit_changes_and_the_counter_goes_on(&ALL, || {
        (Setup::new().env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000"), Box::new(()))
    });
}

#[test]
fn the_limit_changes_and_the_counter_goes_on_in_redis() {
    the_limit_changes_and_the_counter_goes_on(&ALL, || with_redis(&[]));
}

#[test]
fn the_limit_changes_and_the_counter_goes_on_in_redis_with_a_local_cache() {
    the_limit_changes_and_the_counter_goes_on(&ALL, || {
        with_redis(&[("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")])
    });
}

#[test]
fn the_limit_changes_and_the_counter_goes_on_in_redis_with_leases() {
    the_limit_changes_and_the_counter_goes_on(&ALL, || with_redis(&[("COUNTING", "leased")]));
}

#[test]
fn the_limit_changes_and_the_counter_goes_on_in_memcached() {
    the_limit_changes_and_the_counter_goes_on(&["fixed_window", "several"], || {
        let memcached = Memcached::single();
        (memcached::setup(&memcached.address()), Box::new(memcached))
    });
}

#[test]
fn a_lease_of_the_larger_limit_is_not_spent_after_the_boundary() {
    let rules = rules(&["fixed_window"]).replace("requests_per_unit: 9", "requests_per_unit: 9000");
    let rules = rules.replace("requests_per_unit: 3", "requests_per_unit: 2500, counting: leased");
    let clock = Clock::at("2026-11-23T18:55:00Z").steerable();
    let _clock = clock.enter();
    let redis = Redis::single();
    let server = Setup::new().redis(&redis.env()).rules("d.yaml", &rules).start_healthy();
    let client = server.client();
    assert_eq!(admitted(&client, "fixed_window", 2600), (2600, 9000));
    assert!(server.metric("tollgate_lease_hits_total") > 1000.0, "leases decided most of them");
    clock.move_to("2026-11-23T19:00:00Z", 1.0);
    assert_eq!(admitted(&client, "fixed_window", 200), (0, 2500));
    // What was left in the lease is returned.
    eventually("the counter has what was admitted", || {
        let count = redis.ask(&["GET", "d_fixed_window_v_1795392000"]).number();
        holds((2600..=2800).contains(&count), || count.to_string())
    });
}

fn with_admin(setup: Setup, rules: &str) -> (Server, String) {
    let admin = free_port();
    let setup = setup.env("ADMIN_ADDR", &format!("127.0.0.1:{admin}"));
    let server = setup.rules("d.yaml", rules).start_healthy();
    eventually("the admin port is open", || {
        http::send(admin, "GET", "/api/v1/status", &[], b"").map(drop).map_err(|error| error.to_string())
    });
    (server, format!("127.0.0.1:{admin}"))
}

/// A command on the clock of this thread.
fn tollgate(args: &[&str]) -> Output {
    let mut command = Command::new(BINARY);
    Clock::current().apply(&mut command);
    command.args(args).env_remove("ADMIN_TOKEN_FILE").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn commands_show_the_limit_in_force_and_what_is_next() {
    let _clock = Clock::at("2026-11-23T12:00:00Z").enter();
    let setup =
        Setup::new().env("LIMIT_POLICY_HEADERS", "true").env("LIMIT_RESPONSE_HEADERS_ENABLED", "true");
    let (server, admin) = with_admin(setup, &rules(&["fixed_window"]));
    let shown = "9 per day (mon-fri 08:00-20:00 Europe/Berlin, then 3 at 20:00)";
    let grpc = format!("127.0.0.1:{}", server.ports.grpc);
    let output = tollgate(&["request", "--addr", &grpc, "d", "fixed_window=a"]);
    let first = format!("OK, 8 remaining of {shown}, resets in ");
    assert_exit(&output, 0, &[&first, ";q=9;w=86400", "RateLimit-Limit: 9", "RateLimit-Remaining: 8"]);
    let counter = tollgate(&["counter", "get", "d", "fixed_window=a", "--admin", &admin]);
    assert_exit(&counter, 0, &[shown, "fixed_window"]);
    let rules = server.rules_dir().join("d.yaml");
    let rules = rules.to_str().unwrap();
    assert_exit(&tollgate(&["check", rules]), 0, &[&format!("d.fixed_window: {shown}\n1 rule, ")]);
    let check: Value = serde_json::from_slice(&tollgate(&["check", "--json", rules]).stdout).unwrap();
    assert_eq!(check["schedules"][0]["until"], "2026-11-23T19:00:00Z", "{check}");
    let portable = tollgate(&["check", "--portable", rules]);
    assert_exit(&portable, 0, &["the Go service", "`schedule`"]);
    let explain =
        |more: &[&str]| tollgate(&[&["explain", "--rules", rules, "d", "fixed_window=a"], more].concat());
    assert_exit(&explain(&[]), 0, &[&format!("limit: {shown}, fixed_window, ")]);
    let night = "limit: 3 per day (then 9 at 08:00 Europe/Berlin), fixed_window, ";
    assert_exit(&explain(&["--at", "2026-11-23T19:00:00Z"]), 0, &[night]);
    assert_exit(&explain(&["--at", "2026-11-23T20:00:00+01:00"]), 0, &[night]);
    assert_exit(&explain(&["--at", "2026-11-23T18:59:59Z"]), 0, &[shown]);
    assert_exit(&explain(&["--at", "yesterday"]), 2, &["--at", "expected a time"]);
    assert_exit(&explain(&["--at", "9999-12-31T23:59:59Z"]), 2, &["expected a time before the year 9000"]);
    assert_exit(&explain(&["--at", "1970-01-01T00:00:00Z"]), 0, &["limit: 3 per day"]);
    let explained: Value = serde_json::from_slice(&explain(&["--json"]).stdout).unwrap();
    let limit = &explained["descriptors"][0]["limits"][0];
    let until = "2026-11-23T19:00:00Z";
    let text = "mon-fri 08:00-20:00 Europe/Berlin, then 3 at 20:00";
    assert_eq!(limit["schedule"], json!({"text": text, "entry": 0, "until": until}));
    assert_eq!((&limit["requests_per_unit"], &limit["capacity"]), (&json!(9), &json!(9)));
    let admin_port = admin.rsplit_once(':').unwrap().1.parse().unwrap();
    let listed = http::send(admin_port, "GET", "/api/v1/rules", &[], b"").unwrap().text();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["rules"][0]["limits"][0]["schedule"], text, "{listed}");
    assert_eq!(listed["rules"][0]["limits"][0]["requests_per_unit"], 9);
    // An override replaces the schedule as a whole.
    let set = ["override", "set", "d", "fixed_window=a", "--limit", "7/day", "--admin", &admin];
    assert_exit(&tollgate(&set), 0, &["limit 7 per day"]);
    let client = server.client();
    eventually("the override is in force", || {
        let answer = client.ask(request("d", &[&[("fixed_window", "a")]])).unwrap();
        let limit = answer.statuses[0].current_limit.clone().unwrap();
        holds(limit.requests_per_unit == 7 && limit.schedule.is_empty(), || format!("{limit:?}"))
    });
}

#[test]
fn a_reload_changes_the_schedule_and_its_hash() {
    let _clock = Clock::at("2026-11-23T12:00:00Z").enter();
    let server = Setup::new().rules("d.yaml", &rules(&["fixed_window"])).start_healthy();
    let client = server.client();
    assert_eq!(admitted(&client, "fixed_window", 10), (9, 9));
    let hash = |server: &Server| {
        let path = server.rules_dir().join("d.yaml");
        let check: Value =
            serde_json::from_slice(&tollgate(&["check", "--json", path.to_str().unwrap()]).stdout).unwrap();
        check["hash"].as_str().unwrap().to_owned()
    };
    let before = hash(&server);
    server
        .write("d.yaml", &rules(&["fixed_window"]).replace("requests_per_unit: 9", "requests_per_unit: 12"));
    server.wait_for_rule("schedule: 12 mon-fri");
    assert_ne!(hash(&server), before);
    let (more, limit) = admitted(&client, "fixed_window", 3);
    assert!(more > 0, "the counter goes on under the larger limit");
    assert_eq!(limit, 12);
    server.write("d.yaml", &rules(&["fixed_window"]).replace("mon-fri", "mon-fry"));
    server.wait_for_log(&["unknown weekday"]);
    assert_eq!(admitted(&client, "fixed_window", 1).1, 12, "invalid rules replace nothing");
}
