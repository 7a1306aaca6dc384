//! Every feature beside holds: the table of docs/dev/holds.md.

use std::time::Duration;

use serde_json::json;

use super::{Holder, RULES, setup};
use support::{
    client::request,
    clock::Clock,
    eventually, holds, http,
    memcached::Memcached,
    ports::free_port,
    redis::Redis,
    server::{BINARY, Server, Setup},
};

/// Rules of one descriptor `k` with this limit, and what else is set.
fn one(limit: &str, more: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {limit}\n{more}")
}

/// A service with the admin API, in memory or in a Redis with a second replica.
fn with_admin(setup: Setup) -> (Server, u16) {
    let port = free_port();
    (setup.env("ADMIN_ADDR", &format!("127.0.0.1:{port}")).start_healthy(), port)
}

#[test]
fn a_boundary_of_a_schedule_keeps_what_is_held() {
    let clock = Clock::at("2026-11-23T19:59:00Z").steerable();
    let _clock = clock.enter();
    let hold =
        "hold: {amount: 40, ttl: 10h}, schedule: [{from: '20:00', to: '21:00', requests_per_unit: 60}]";
    let rules = one(&format!("{{unit: year, requests_per_unit: 120, {hold}}}"), "");
    let server = setup().rules("d.yaml", &rules).start();
    let holder = Holder::of(&server);
    let ids = [1, 2].map(|_| holder.hold(&[("k", "a")]).unwrap());
    clock.move_to("2026-11-23T20:00:00Z", 5.0);
    assert_eq!((holder.hold(&[("k", "a")]), holder.seen("k", "a")), (None, (0, 80)));
    clock.move_to("2026-11-23T21:00:00Z", 5.0);
    assert!(holder.hold(&[("k", "a")]).is_some());
    for id in &ids {
        holder.settle(id, 5);
    }
    assert_eq!(holder.seen("k", "a"), (10, 40));
}

#[test]
fn a_reload_that_changes_the_limit_keeps_what_is_held() {
    let rules = |limit| {
        one(&format!("{{unit: year, requests_per_unit: {limit}, hold: {{amount: 40, ttl: 10m}}}}"), "")
    };
    let server = setup().rules("d.yaml", &rules(100)).start();
    let holder = Holder::of(&server);
    let ids = [1, 2].map(|_| holder.hold(&[("k", "a")]).unwrap());
    server.write("d.yaml", &rules(60));
    server.wait_for_rule("requests_per_unit=60");
    assert_eq!((holder.hold(&[("k", "a")]), holder.seen("k", "a")), (None, (0, 80)));
    server.write("d.yaml", &rules(120));
    server.wait_for_rule("requests_per_unit=120");
    assert!(holder.hold(&[("k", "a")]).is_some());
    for id in &ids {
        holder.settle(id, 5);
    }
    assert_eq!(holder.seen("k", "a"), (10, 40));
    // Without its rule, a hold is still settled.
    let id = holder.hold(&[("k", "b")]).unwrap();
    server.write("d.yaml", "domain: d\ndescriptors:\n  - key: other\n");
    eventually("the rule has gone", || {
        holds(server.rules_shown().is_empty(), || server.rules_shown().join("\n"))
    });
    holder.settle(&id, 9);
    server.write("d.yaml", &rules(120));
    server.wait_for_rule("requests_per_unit=120");
    assert_eq!(holder.seen("k", "b"), (9, 0));
}

#[test]
fn a_reset_forgets_what_is_spent_and_keeps_what_is_held() {
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let (server, admin) = with_admin(setup);
        let holder = Holder::of(&server);
        let ids = [1, 2].map(|_| holder.hold(&[("budget", "a"), ("streams", "a")]).unwrap());
        holder.settle(&ids[0], 30);
        let streams = [holder.hold(&[("streams", "a")]).unwrap()];
        for descriptor in ["budget=a", "streams=a"] {
            let body = json!({"domain": "d", "descriptor": descriptor}).to_string();
            assert_eq!(http::post(admin, "/api/v1/counters/reset", &body).status, 200);
        }
        assert_eq!(holder.seen("budget", "a"), (0, 40), "what is under way is still charged");
        assert_eq!(holder.seen("streams", "a"), (0, 0), "all places are free");
        holder.settle(&ids[1], 20);
        holder.end(&streams[0]);
        assert_eq!((holder.seen("budget", "a"), holder.seen("streams", "a")), ((20, 0), (0, 0)));
    }
}

#[test]
fn other_limits_of_the_request_may_be_leased() {
    let redis = Redis::single();
    let rules = format!(
        "{RULES}  - key: leased\n    rate_limit: {{unit: year, requests_per_unit: 200, counting: leased}}\n"
    );
    let server = setup().redis(&redis.env()).rules("d.yaml", &rules).start_healthy();
    let holder = Holder::of(&server);
    for _ in 0..50 {
        holder.ask(request("d", &[&[("leased", "a")]]));
    }
    let mut admitted = 50;
    while let Some(id) = holder.hold(&[("leased", "a"), ("zero", "a")]) {
        holder.end(&id);
        admitted += 1;
    }
    // Hits that are leased and not used count in Redis.
    assert!((150..=200).contains(&admitted), "{admitted}");
    assert_eq!(holder.seen("zero", "a").0, 0);
}

#[test]
fn a_hold_belongs_to_the_calendar_window_in_which_it_began() {
    let rules = one(
        "{unit: month, requests_per_unit: 100, calendar: {time_zone: Europe/Berlin}, hold: {amount: 40, ttl: 10m}}",
        "",
    );
    // Half a minute before midnight in Berlin.
    let clock = Clock::at("2026-10-31T22:59:30Z").steerable();
    let _clock = clock.enter();
    let server = setup().rules("d.yaml", &rules).start();
    let holder = Holder::of(&server);
    let ids = [1, 2].map(|_| holder.hold(&[("k", "a")]).unwrap());
    holder.settle(&ids[0], 30);
    assert_eq!(holder.seen("k", "a"), (30, 40));
    clock.step(60.0);
    eventually("the month has ended", || {
        let seen = holder.seen("k", "a");
        holds(seen == (0, 0), || format!("{seen:?}"))
    });
    holder.settle(&ids[1], 40);
    assert_eq!(holder.seen("k", "a"), (0, 0), "never in a newer window");
}

#[test]
fn the_drain_settles_what_is_under_way() {
    let mut server = setup().env("SHUTDOWN_DELAY", "1s").start();
    let holder = Holder::of(&server);
    let id = holder.hold(&[("budget", "a")]).unwrap();
    server.process.signal("TERM");
    std::thread::sleep(Duration::from_millis(200));
    holder.settle(&id, 5);
    assert_eq!(holder.seen("budget", "a"), (5, 0));
    drop(holder);
    assert!(server.process.wait(Duration::from_secs(30)).is_some_and(|status| status.success()));
}

#[test]
fn memcached_refuses_holds_at_load() {
    let memcached = Memcached::single();
    let server = memcached.setup().rules("d.yaml", RULES).start();
    server.wait_for_log(&["d.yaml:5:", "memcached cannot hold"]);
}

#[test]
fn the_commands_list_settle_and_end_holds() {
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let (server, admin) = with_admin(setup);
        let holder = Holder::of(&server);
        let url = format!("http://127.0.0.1:{admin}");
        let run = |args: &[&str]| {
            let output =
                std::process::Command::new(BINARY).args(args).args(["--admin", &url]).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        assert_eq!(
            run(&["hold", "list", "d", "budget=a"]),
            (Some(1), "no open holds of d budget=a\n".into())
        );
        let ids = [1, 2].map(|_| holder.hold(&[("budget", "a")]).unwrap());
        let (code, list) = run(&["hold", "list", "d", "budget=a"]);
        assert!(code == Some(0) && ids.iter().all(|id| list.contains(&**id)), "{list}");
        assert_eq!(run(&["hold", "settle", &ids[0], "7"]), (Some(0), "settled 1 hold\n".into()));
        assert_eq!(run(&["hold", "end", &ids[1]]), (Some(0), "ended 1 hold\n".into()));
        assert_eq!(run(&["hold", "settle", &ids[0], "7"]).0, Some(1));
        assert_eq!(run(&["hold", "end", "nonsense"]).0, Some(2));
        let (_, usage) = run(&["counter", "get", "d", "budget=a"]);
        assert!(usage.contains("SPENT") && usage.contains("HELD"), "{usage}");
        assert_eq!(holder.seen("budget", "a"), (47, 0));
    }
}

#[test]
fn refusals_know_when_by_the_clock_of_redis() {
    let redis = {
        let _clock = Clock::at("2026-06-01T12:05:00Z").enter();
        Redis::single()
    };
    for hour in ["11", "12", "13"] {
        let _clock = Clock::at(&format!("2026-06-01T{hour}:05:00Z")).enter();
        let server =
            setup().redis(&redis.env()).env("LIMIT_RETRY_AFTER_HEADER", "retry-after").start_healthy();
        let holder = Holder::of(&server);
        let _held = [1, 2].map(|_| holder.hold(&[("streams", hour)]).expect("a place is free"));
        assert!(holder.hold_hits("budget", hour, 100).is_some());
        for key in ["streams", "budget"] {
            let wait = super::retry_after(&holder.ask(request("d", &[&[(key, hour)]])));
            assert!(wait.is_some_and(|wait| (590..=600).contains(&wait)), "{hour} {key}: {wait:?}");
        }
    }
}
