//! The replies of the admin API after requests with known outcomes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    thread,
};

use serde_json::{Value, json};

use support::{
    PATIENCE, client::request, clock::Clock, eventually, holds, http, memcached::Memcached, ports::free_port,
    redis::Redis,
};

use super::{Admin, RULES, setup};

#[test]
fn the_status_shows_rules_store_requests_and_memory() {
    let admin = Admin::start();
    admin.ask("ann", 5);
    let status = admin.get("/api/v1/status");
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["requests"]["total"], json!({ "ok": 2, "over_limit": 3, "error": 0 }));
    assert_eq!(status["rules"]["rules"], 3);
    assert_eq!(
        (&status["rules"]["is_current"], &status["rules"]["last_error"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!((&status["store"]["kind"], &status["store"]["connected"]), (&json!("memory"), &json!(true)));
    assert_eq!(status["memory"]["keys"]["held"], 1);
    assert!(status["memory"]["resident_bytes"].as_u64().unwrap() > 1_000_000, "{status}");
    eventually("the latency is that of the last minute", || {
        let latency = admin.get("/api/v1/status")["latency"].clone();
        holds(latency["p99_seconds"].as_f64().is_some_and(|p99| p99 > 0.0), || latency.to_string())
    });
    admin.server.write("shop.yaml", "domain: shop\ndescriptors:\n  - kye: user\n");
    eventually("the invalid rules are reported", || {
        let rules = admin.get("/api/v1/status")["rules"].clone();
        let error = rules["last_error"]["errors"][0].as_str().unwrap_or_default();
        holds(rules["is_current"] == false && error.contains("shop.yaml:3"), || rules.to_string())
    });
}

#[test]
fn top_keys_have_the_exact_numbers_of_a_quiet_service() {
    let admin = Admin::start();
    for (user, times) in [("ann", 7), ("bob", 4), ("carl", 1)] {
        admin.ask(user, times);
    }
    let top = admin.get("/api/v1/top");
    let keys: Vec<_> = top["keys"]
        .as_array()
        .unwrap()
        .iter()
        .map(|key| {
            let user = key["descriptor"][0]["value"].as_str().unwrap();
            (
                user,
                key["allowed"].as_u64().unwrap(),
                key["refused"].as_u64().unwrap(),
                key["error"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(keys, [("ann", 2, 5, 0), ("bob", 2, 2, 0)], "carl was not refused");
    assert_eq!(top["keys"][0]["rule"], "shop.user");
    assert!(top["window_seconds"].as_u64().unwrap() <= 240, "{top}");
    let allowed = admin.get("/api/v1/top?by=allowed&n=2");
    assert_eq!(allowed["keys"].as_array().unwrap().len(), 2);
    assert_eq!(admin.get("/api/v1/top?rule=shop.path_/cart")["keys"], json!([]));
    assert_eq!(admin.get("/api/v1/top?domain=other")["keys"], json!([]));
}

#[test]
fn refusals_show_the_limit_its_line_and_the_time_to_wait() {
    let clock = Clock::at("2026-11-22T10:59:15Z");
    let _clock = clock.enter();
    let admin = Admin::start();
    assert_eq!(admin.ask("ann", 3), 1);
    let refusals = admin.get("/api/v1/refusals?after=0");
    let refusal = refusals["refusals"][0].clone();
    assert_eq!(refusals["refusals"].as_array().unwrap().len(), 1);
    for (pointer, expected) in [
        ("/id", json!(1)),
        ("/code", json!("over_limit")),
        ("/domain", json!("shop")),
        ("/descriptor", json!([{ "key": "user", "value": "ann" }])),
        ("/rule", json!("shop.user")),
        ("/file", json!(admin.server.rules_dir().join("shop.yaml"))),
        ("/line", json!(3)),
        (
            "/limit",
            json!({ "requests_per_unit": 2, "unit": "HOUR", "unit_multiplier": 1, "number": 1, "of": 1 }),
        ),
        ("/count", json!(3)),
        ("/hits", json!(1)),
        ("/decided_by", json!("counter")),
        ("/governs", json!(true)),
    ] {
        assert_eq!(refusal.pointer(pointer), Some(&expected), "{pointer} in {refusal}");
    }
    let wait = refusal["retry_after_seconds"].as_u64().unwrap();
    assert!((1..=45).contains(&wait), "{refusal}");
    assert!(refusal["time"].as_str().unwrap().starts_with("2026-11-22T10:59:"), "{refusal}");
}

#[test]
fn refusals_are_found_by_domain_entries_and_id_and_the_newest_come_first() {
    let admin = Admin::start();
    for user in ["ann", "bob", "ann"] {
        admin.ask(user, 3);
    }
    let users = |query: &str| {
        let found = admin.get(&format!("/api/v1/refusals?{query}"));
        let user = |refusal: &Value| refusal["descriptor"][0]["value"].as_str().unwrap().to_owned();
        found["refusals"].as_array().unwrap().iter().map(user).collect::<Vec<_>>()
    };
    assert_eq!(users("after=0"), ["ann", "ann", "ann", "bob", "ann"]);
    assert_eq!(users("after=0&descriptor=user%3Dbob"), ["bob"]);
    assert_eq!(users("after=0&descriptor=user%3Dcarl"), [""; 0]);
    assert_eq!(users("after=0&domain=shop&n=1"), ["ann"]);
    assert_eq!(users("after=0&domain=other"), [""; 0]);
    assert_eq!(users("after=4"), ["ann"]);
}

#[test]
fn refusals_name_the_cache_or_the_failure_policy_that_decided() {
    let (setup, port) = setup();
    let server = setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").start();
    let admin = Admin { server, port };
    admin.ask("ann", 4);
    let found = admin.get("/api/v1/refusals?after=0");
    let by: Vec<_> =
        found["refusals"].as_array().unwrap().iter().map(|one| one["decided_by"].clone()).collect();
    assert_eq!(by, ["over_limit_cache", "counter"]);
    assert_eq!(found["refusals"][0]["count"], Value::Null);

    let (setup, port) = super::setup();
    let setup =
        setup.env("BACKEND_TYPE", "redis").env("REDIS_URL", "127.0.0.1:1").env("REDIS_SOCKET_TYPE", "tcp");
    let admin = Admin { server: setup.env("STORE_FAILURE_POLICY", "deny").start(), port };
    assert_eq!(admin.ask("ann", 1), 1);
    let found = admin.get("/api/v1/refusals?after=0");
    assert_eq!(found["refusals"][0]["decided_by"], "failure_policy");
    assert_eq!(admin.get("/api/v1/status")["store"]["connected"], false);
}

#[test]
fn every_store_is_named_with_its_address_and_latency() {
    let (redis, memcached) = (Redis::single(), Memcached::single());
    let of_redis = setup();
    let (of_memcached, port) = (memcached.setup().rules("shop.yaml", RULES), free_port());
    let of_memcached = of_memcached.env("ADMIN_ADDR", &format!("127.0.0.1:{port}"));
    for ((setup, port), kind) in
        [((of_redis.0.redis(&redis.env()), of_redis.1), "redis"), ((of_memcached, port), "memcached")]
    {
        let admin = Admin { server: setup.start_healthy(), port };
        admin.ask("ann", 3);
        eventually("the store's latency is shown", || {
            let store = admin.get("/api/v1/status")["store"].clone();
            let is_shown = store["kind"] == kind
                && store["connected"] == true
                && store["address"].as_str().is_some_and(|address| address.contains("127.0.0.1"))
                && store["p99_seconds"].as_f64().is_some_and(|p99| p99 > 0.0);
            holds(is_shown, || store.to_string())
        });
    }
}

#[test]
fn rules_have_their_lines_limits_and_rates() {
    let admin = Admin::start();
    let rules = admin.get("/api/v1/rules");
    let names: Vec<_> = rules["rules"].as_array().unwrap().iter().map(|rule| rule["rule"].clone()).collect();
    assert_eq!(names, ["shop.free", "shop.path_/cart", "shop.user"]);
    assert_eq!(rules["total"], 3);
    assert_eq!(rules["rules"][1]["line"], 5);
    assert_eq!(rules["rules"][0]["unlimited"], true);
    assert_eq!(
        rules["rules"][2]["limits"],
        json!([{ "requests_per_unit": 2, "unit": "HOUR", "unit_multiplier": 1 }])
    );
    admin.ask("ann", 5);
    let user = || admin.get("/api/v1/rules?by=hits&n=1")["rules"][0].clone();
    eventually("the rates are those of the last seconds", || {
        let rule = user();
        let rates = &rule["per_second"];
        let is_seen = rule["rule"] == "shop.user"
            && rates["allowed"].as_f64() > Some(0.0)
            && rates["refused"].as_f64() > Some(0.0);
        holds(is_seen, || rule.to_string())
    });
    assert_eq!(user()["hits"], json!({ "allowed": 2, "refused": 3, "near": 1, "shadowed": 0 }));
}

#[test]
fn events_start_with_the_history_and_follow_every_second() {
    let admin = Admin::start();
    admin.ask("ann", 3);
    let mut stream = TcpStream::connect(("127.0.0.1", admin.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(
        head[0].contains("200") && head.contains(&"content-type: text/event-stream".to_owned()),
        "{head:?}"
    );
    let mut event = || loop {
        let line = lines.next().unwrap();
        if let Some(name) = line.strip_prefix("event: ") {
            let data = lines.next().unwrap();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            return (name.to_owned(), data);
        }
    };
    let (name, history) = event();
    assert!(name == "history" && history.is_array(), "{name}: {history}");
    for _ in 0..2 {
        let (name, tick) = event();
        assert_eq!(name, "tick");
        assert_eq!(tick["status"]["requests"]["total"]["over_limit"], 1);
        assert_eq!(tick["top"]["keys"][0]["descriptor"][0]["value"], "ann");
        assert_eq!(tick["refusals"]["refusals"].as_array().unwrap().len(), 1);
        assert_eq!(tick["rules"]["rules"].as_array().unwrap().len(), 3);
        assert_eq!(tick["top_allowed"]["keys"][0]["allowed"], 2);
    }
}

#[test]
fn at_most_32_clients_follow_and_a_place_becomes_free() {
    let admin = Admin::start();
    let follow = || {
        let mut stream = TcpStream::connect(("127.0.0.1", admin.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut line = String::new();
        let mut stream = BufReader::new(stream);
        stream.read_line(&mut line).unwrap();
        (line, stream)
    };
    let mut following: Vec<_> = (0..32).map(|_| follow()).collect();
    assert!(following.iter().all(|(line, _)| line.contains("200 OK")));
    assert!(follow().0.contains("503"), "the 33rd");
    following.pop();
    eventually("a place is free", || {
        let (line, stream) = follow();
        drop(stream);
        holds(line.contains("200 OK"), || line)
    });
}

#[test]
fn key_values_hashes_or_hides_values() {
    for (setting, shown) in [("hashed", "sha256:49915e0d7d4b402e"), ("hidden", "***")] {
        let (setup, port) = setup();
        let setup = setup.env("KEY_VALUES", setting).env("METRICS_TOP_KEYS", "5");
        let admin = Admin { server: setup.start(), port };
        admin.ask("ann", 3);
        assert_eq!(admin.get("/api/v1/top")["keys"][0]["descriptor"][0]["value"], shown);
        for path in ["/api/v1/refusals", "/api/v1/refusals?after=0"] {
            assert_eq!(admin.get(path)["refusals"][0]["descriptor"][0]["value"], shown, "{path}");
        }
        let metric =
            format!("tollgate_top_refused_hits{{domain=\"shop\",rule=\"user\",descriptor=\"user={shown}\"}}");
        assert_eq!(admin.server.metrics().get(&metric), Some(&1.0), "{:?}", admin.server.metrics().keys());

        let body = r#"{"domain": "shop", "descriptor": "user=ann", "action": "block"}"#;
        let headers = [("content-type", "application/json")];
        let set = http::send(port, "POST", "/api/v1/overrides", &headers, body.as_bytes()).unwrap();
        assert_eq!(set.status, 200, "{}", set.text());
        let value = |reply: &Value| reply["overrides"][0]["descriptor"][0]["value"].clone();
        assert_eq!(value(&admin.get("/api/v1/overrides")), shown);
        // A caller that names the value knows it, and `explain` needs it.
        for query in ["descriptor=user%3Dann", "request=user%3Dann"] {
            assert_eq!(value(&admin.get(&format!("/api/v1/overrides?domain=shop&{query}"))), "ann");
        }
        let rules = http::get(admin.server.ports.debug, "/rlconfig").text();
        assert!(rules.contains(&format!("# override shop user={shown}: block")), "{rules}");
        let id = set.json()["id"].as_str().unwrap().to_owned();
        let removed = http::send(port, "DELETE", &format!("/api/v1/overrides/{id}"), &[], b"").unwrap();
        assert_eq!(removed.json()["removed"]["descriptor"][0]["value"], shown, "{}", removed.text());
        assert_eq!(admin.get("/api/v1/overrides")["total"], 0);
    }
}

#[test]
fn no_call_brings_a_value_into_the_log_unless_values_are_plain() {
    let calls = [
        ("POST", "/api/v1/counters/reset", r#"{"domain": "shop", "descriptor": "free=secret"}"#),
        ("POST", "/api/v1/counters/reset", r#"{"domain": "shop", "descriptor": "user=secret"}"#),
        ("POST", "/api/v1/counters/reset", r#"{"domain": "shop", "descriptor": "user=secret*"}"#),
        ("POST", "/api/v1/counters/reset", r#"{"domain": "shop", "descriptor": "user=secret,=secret"}"#),
        ("POST", "/api/v1/counters/reset", r#"{"domain": "shop", "descriptor": {"user": "secret"}}"#),
        (
            "POST",
            "/api/v1/counters/reset",
            r#"{"domain": "shop", "descriptor": "user=a", "reason": ["secret"]}"#,
        ),
        ("POST", "/api/v1/overrides", r#"{"domain": "shop", "descriptor": "usr=secret", "action": "block"}"#),
        (
            "POST",
            "/api/v1/overrides",
            r#"{"domain": "shop", "descriptor": "user=secret", "action": "secret"}"#,
        ),
        ("POST", "/api/v1/overrides", r#"{"domain": "shop", "entry": "user=secret*x", "action": "block"}"#),
        (
            "POST",
            "/api/v1/overrides",
            r#"{"domain": "shop", "descriptor": "user=secret", "action": "block", "for": "1s"}"#,
        ),
        ("DELETE", "/api/v1/overrides/secret", ""),
        ("DELETE", "/api/v1/domains?domain=shop&secret=secret", ""),
        ("POST", "/api/v1/holds/settle", r#"{"id": "secret", "cost": 1}"#),
        ("POST", "/api/v1/holds/end", r#"{"id": "secret"}"#),
        (
            "POST",
            "/api/v1/imports/secret",
            r#"{"domain": "shop", "descriptor": "usr=secret", "action": "block"}"#,
        ),
        ("POST", "/api/v1/imports/secret", r#"{"domain": "shop", "descriptor": [{"user": "secret"}]}"#),
    ];
    for setting in ["plain", "hashed", "hidden"] {
        let (setup, port) = setup();
        let admin = Admin { server: setup.env("KEY_VALUES", setting).env("LOG_LEVEL", "info").start(), port };
        for (method, path, body) in calls {
            let headers = [("content-type", "application/json")];
            http::send(port, method, path, &headers, body.as_bytes()).unwrap();
        }
        let json = br#"{"domain": "shop", "descriptors": "secret"}"#;
        let answer = http::send(admin.server.ports.http, "POST", "/json", &[], json).unwrap();
        assert!(answer.status == 400 && answer.text().contains("secret"), "{}", answer.text());
        eventually("the override has expired", || {
            let total = admin.get("/api/v1/overrides")["total"].clone();
            holds(total == 0, || total.to_string())
        });
        let changes = admin.get("/api/v1/changes").to_string();
        assert_eq!(changes.contains("secret"), setting == "plain", "{changes}");
        let log = admin.server.final_log();
        for (line, times) in
            [("admin change rejected", 11), ("override expired", 1), ("request rejected", 1), ("secret", 0)]
        {
            let found = log.lines().filter(|found| found.contains(line)).count();
            assert!(found == times || line == "secret" && setting == "plain", "{found} {line} in {log}");
        }
        assert!(setting != "plain" || log.contains("no rule matches usr=secret"), "{log}");
    }
}

#[test]
fn metrics_top_keys_bounds_the_series_of_top_keys() {
    let series = |n: &str| {
        let (setup, port) = setup();
        let admin = Admin { server: setup.env("METRICS_TOP_KEYS", n).start(), port };
        for user in 0..30 {
            admin.ask(&user.to_string(), 3);
        }
        admin.server.metrics().keys().filter(|name| name.starts_with("tollgate_top_refused_hits")).count()
    };
    assert_eq!((series("0"), series("10")), (0, 10));
}

#[test]
fn a_long_value_of_a_caller_is_cut_and_takes_no_more_memory() {
    let admin = Admin::start();
    let client = admin.server.client();
    let long = "x".repeat(1_000_000);
    for _ in 0..3 {
        client.ask(request("shop", &[&[("user", &long)]])).unwrap();
    }
    let key = admin.get("/api/v1/top")["keys"][0].clone();
    assert_eq!(key["descriptor_cut"], true);
    assert_eq!(key["descriptor"][0]["value"].as_str().unwrap().len(), 508);
    assert_eq!(admin.get("/api/v1/refusals?after=0")["refusals"][0]["descriptor_cut"], true);
}

#[test]
fn a_client_of_the_events_does_not_delay_the_shutdown() {
    let mut admin = Admin::start();
    let mut stream = TcpStream::connect(("127.0.0.1", admin.port)).unwrap();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let reading = thread::spawn(move || BufReader::new(stream).lines().map_while(Result::ok).count());
    admin.server.process.signal("TERM");
    eventually("the service has stopped", || {
        holds(admin.server.process.exited().is_some(), || "running".to_owned())
    });
    assert!(reading.join().unwrap() > 0);
}
