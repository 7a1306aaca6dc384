//! Every feature beside holds: the table of docs/dev/holds.md.

use std::time::Duration;

use proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::json;

use super::{Holder, RULES, setup};
use crate::support::{
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
fn overrides_of_each_action_apply_to_holds() {
    let (server, admin) = with_admin(setup());
    let holder = Holder::of(&server);
    let put = |value: &str, action: &str| {
        let body = format!(r#"{{"domain":"d","descriptor":"budget={value}",{action}}}"#);
        let answer = http::post(admin, "/api/v1/overrides", &body);
        assert!(answer.status < 300, "{} {}", answer.status, answer.text());
    };
    put("limit", r#""action":"limit","requests_per_unit":50,"unit":"year""#);
    put("block", r#""action":"block""#);
    put("allow", r#""action":"allow""#);
    put("shadow", r#""action":"shadow""#);
    let body =
        r#"{"domain":"d","descriptor":"streams=more","action":"limit","requests_per_unit":3,"unit":"hour"}"#;
    assert!(http::post(admin, "/api/v1/overrides", body).status < 300);
    let held = (0..5).filter(|_| holder.hold(&[("streams", "more")]).is_some()).count();
    assert_eq!((held, holder.seen("streams", "more")), (3, (0, 3)));
    assert!(holder.hold(&[("budget", "limit")]).is_some());
    assert_eq!(holder.hold(&[("budget", "limit")]), None, "80 of 50");
    let blocked = holder.ask(request("d", &[&[("budget", "block")], &[("dollars", "x")]]));
    assert_eq!((blocked.overall_code(), super::id(&blocked)), (Code::OverLimit, None));
    assert_eq!(holder.seen("dollars", "x"), (0, 0), "a blocked request holds nothing");
    assert_eq!(holder.hold(&[("budget", "allow")]), None, "an exempt request passes and holds nothing");
    let ids: Vec<String> =
        (0..4).map(|_| holder.hold(&[("budget", "shadow")]).expect("never refused")).collect();
    assert_eq!(holder.seen("budget", "shadow"), (0, 160), "shadow holds above the limit");
    for id in &ids {
        holder.settle(id, 40);
    }
    assert_eq!(holder.seen("budget", "shadow"), (160, 0));
}

#[test]
fn a_rule_in_shadow_mode_holds_and_never_refuses() {
    let limit = "{unit: year, requests_per_unit: 100, hold: {amount: 60, ttl: 10m}}";
    let server = setup().rules("d.yaml", &one(limit, "    shadow_mode: true\n")).start();
    let holder = Holder::of(&server);
    let ids = [1, 2, 3].map(|_| holder.hold(&[("k", "a")]).expect("shadow mode"));
    assert_eq!(holder.seen("k", "a"), (0, 180));
    for id in &ids {
        holder.settle(id, 50);
    }
    assert_eq!(holder.seen("k", "a"), (150, 0));
    let over = "ratelimit_service_rate_limit_shadow_mode{domain=\"d\",key1=\"k\"}";
    assert_eq!(server.count(over), 120);
}

#[test]
fn an_exhausted_quota_holds_nothing_and_the_others_do() {
    let rules = "
domain: d
descriptors:
  - key: one
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 50, hold: {amount: 40, ttl: 10m}}
  - key: two
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 100, hold: {amount: 40, ttl: 10m}}
";
    let server = setup().rules("d.yaml", rules).start();
    let holder = Holder::of(&server);
    let both = [("one", "a"), ("two", "a")];
    assert!(holder.hold(&both).is_some());
    assert!(holder.hold(&both).is_some(), "the second quota has room");
    assert_eq!((holder.seen("one", "a"), holder.seen("two", "a")), ((0, 40), (0, 80)));
    assert_eq!(holder.hold(&both), None, "all are exhausted");
}

#[test]
fn several_limits_of_a_rule_hold_together() {
    let redis = Redis::single();
    let limits = "
      - {unit: day, requests_per_unit: 100, hold: {amount: 40, ttl: 10m}}
      - {unit: year, requests_per_unit: 1000, hold: {amount: 40, ttl: 10m}}
      - {algorithm: concurrency, requests_per_unit: 2, hold: {ttl: 10m}}";
    for setup in [setup(), setup().redis(&redis.env())] {
        let server = setup.rules("d.yaml", &one(limits, "")).start_healthy();
        let holder = Holder::of(&server);
        let ids = [1, 2].map(|_| holder.hold(&[("k", "a")]).unwrap());
        assert_eq!(holder.hold(&[("k", "a")]), None);
        holder.settle(&ids[0], 30);
        assert!(holder.hold(&[("k", "a")]).is_none(), "30 + 40 + 40 of 100");
        holder.settle(&ids[1], 30);
        assert!(holder.hold(&[("k", "a")]).is_some());
    }
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
fn a_request_that_a_hold_refuses_adds_no_hits_elsewhere_if_that_is_set() {
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let server = setup.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true").start_healthy();
        let holder = Holder::of(&server);
        let both = [("budget", "a"), ("plain", "a")];
        let held: Vec<bool> = (0..4).map(|_| holder.hold(&both).is_some()).collect();
        assert_eq!(held, [true, true, false, false]);
        let left = holder.ask(request("d", &[&[("plain", "a")]])).statuses[0].limit_remaining;
        assert_eq!(left, 0, "the refused requests added nothing");
        assert_eq!(holder.hold(&[("plain", "a"), ("zero", "a")]), None, "an ordinary limit refuses");
        eventually("nothing is held", || holds(holder.seen("zero", "a") == (0, 0), || "held"));
    }
}

#[test]
fn the_over_limit_cache_remembers_only_what_is_spent() {
    let redis = Redis::single();
    let setup =
        setup().redis(&redis.env()).env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").env("REPLICA_SYNC", "true");
    let servers = [setup.clone().start_healthy(), setup.start_healthy()];
    let [one, other] = servers.each_ref().map(Holder::of);
    let known = "ratelimit_service_rate_limit_over_limit_with_local_cache{domain=\"d\",key1=\"budget\"}";
    let ids = [1, 2].map(|_| one.hold(&[("budget", "a")]).unwrap());
    assert_eq!((one.hold(&[("budget", "a")]), one.hold(&[("budget", "a")])), (None, None));
    assert_eq!(servers[0].count(known), 0, "a refusal by holds is not remembered");
    one.end(&ids[0]);
    one.settle(&ids[1], 60);
    for (holder, server) in [(&one, &servers[0]), (&other, &servers[1])] {
        assert_eq!((holder.hold(&[("budget", "a")]), holder.hold(&[("budget", "a")])), (None, None));
        assert!(server.count(known) > 0, "100 of 100 are spent");
    }
    // A late cost lowers what is spent: both replicas ask Redis again.
    one.settle(&ids[0], 1);
    for holder in [&one, &other] {
        eventually("the correction is known", || {
            let id = holder.hold_hits("budget", "a", 5);
            id.map(|id| holder.settle(&id, 0)).ok_or_else(|| "refused".to_owned())
        });
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
fn a_refund_lowers_what_is_spent() {
    let redis = Redis::single();
    for setup in [setup(), setup().redis(&redis.env())] {
        let server = setup.start_healthy();
        let holder = Holder::of(&server);
        let id = holder.hold(&[("budget", "a")]).unwrap();
        holder.settle(&id, 40);
        let mut refund = request("d", &[&[("budget", "a")]]);
        refund.descriptors[0].hits_addend = Some(15);
        refund.descriptors[0].is_negative_hits = true;
        assert_eq!(super::id(&holder.ask(refund)), None);
        assert_eq!(holder.seen("budget", "a"), (25, 0));
    }
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
fn a_refusal_by_holds_says_when_the_first_one_expires() {
    let server = setup().env("LIMIT_RETRY_AFTER_HEADER", "retry-after").start();
    let holder = Holder::of(&server);
    let held = [1, 2].map(|_| holder.hold(&[("budget", "a")]).unwrap());
    let retry_after =
        || super::retry_after(&holder.ask(request("d", &[&[("budget", "a")]]))).expect("it is refused");
    assert!((590..=600).contains(&retry_after()), "{}", retry_after());
    for id in &held {
        holder.settle(id, 50);
    }
    assert!(retry_after() > 600, "the end of the year");
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
