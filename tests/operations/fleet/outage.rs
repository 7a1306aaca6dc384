//! Redis killed and back: what the status, its exit code and `/healthcheck?verbose` say, with each policy.

use std::time::{Duration, Instant};

use super::*;

fn status(admin: &Admin) -> Value {
    admin.get("/api/v1/status")
}

#[test]
fn an_outage_speaks_and_ends() {
    for (policy, effect) in [
        ("error", "failing; Envoy lets them through unless failure_mode_deny"),
        ("allow", "allowed without counting"),
        ("deny", "refused"),
        ("local", "counted by each replica alone"),
    ] {
        let mut redis = Redis::single();
        let admin = replica(&redis, &[("STORE_FAILURE_POLICY", policy)]);
        let calm = status(&admin);
        assert_eq!((&calm["policy"], &calm["store"]["since"]), (&policy.into(), &Value::Null), "{calm}");
        assert_exit(&admin.run(&["status"]), 0, &["connected"]);
        redis.kill();
        let client = admin.server.client();
        let lost = eventually("the outage is seen, with its callers", || {
            for _ in 0..20 {
                // The policy decides, also about an error.
                let _ = client.ask(request("shop", &[&[("user", "ann")]]));
            }
            let status = status(&admin);
            let callers = status["callers"][0].as_str().unwrap_or_default().to_owned();
            let is_failing = callers.starts_with(&format!("{policy}: ")) && !callers.contains(" 0/s ");
            holds(is_failing && callers.ends_with(effect), || status.to_string()).map(|()| status)
        });
        let store = &lost["store"];
        assert!(store["since"].as_str().unwrap().starts_with("20") && store["stale"] == true, "{store}");
        assert!(store["error"].as_str().unwrap().starts_with("redis 127.0.0.1:"), "{store}");
        assert_eq!((&lost["policy"], &lost["replicas"]), (&policy.into(), &"unknown".into()));
        let output = admin.run(&["status"]);
        assert_exit(&output, 1, &["not connected since 20", "redis 127.0.0.1:", effect, "replicas  unknown"]);
        assert!(widest(&run_in(&admin, "60", &["status"])) <= 60);
        let verbose = http::get(admin.server.ports.http, "/healthcheck?verbose");
        assert_eq!(verbose.status, 500, "these tests set REDIS_HEALTH_CHECK_ACTIVE_CONNECTION");
        let text = verbose.text();
        let policy_line = format!("decided by policy {policy}");
        assert!(text.contains("store: failing since 20") && text.contains(&policy_line), "{text}");
        assert!(!text.contains("127.0.0.1"), "anyone may ask: {text}");
        redis.start();
        eventually("the outage ends", || {
            let status = status(&admin);
            let is_over = status["store"]["since"].is_null() && status["callers"] == serde_json::json!([]);
            holds(is_over && status["replicas"].is_array(), || status.to_string())
        });
        // For a minute it says what the policy decided; a policy that refuses enforced the limits.
        let (code, said) =
            if policy == "deny" { (0, "connected") } else { (1, "because the store failed: ") };
        eventually("the status says what the policy decided", || {
            let output = admin.run(&["status"]);
            let has_said = printed(&output).contains("connected") && printed(&output).contains(said);
            holds(output.status.code() == Some(code) && has_said, || printed(&output))
        });
        assert!(http::get(admin.server.ports.http, "/healthcheck?verbose").text().contains("store: ok\n"));
    }
}

#[test]
fn an_outage_names_the_policy_of_each_domain() {
    let mut redis = Redis::single();
    let admin = replica(&redis, &[("STORE_FAILURE_POLICY", "error")]);
    admin.server.write("shop.yaml", &format!("on_store_failure: local\n{}", crate::admin::RULES));
    let api = "domain: api\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}\n";
    admin.server.write("api.yaml", api);
    admin.server.wait_for_rule("api.user: unit=HOUR");
    redis.kill();
    let client = admin.server.client();
    eventually("each policy is shown with its domains", || {
        for _ in 0..20 {
            let _ = client.ask(request("shop", &[&[("user", "ann")]]));
        }
        let callers = status(&admin)["callers"].clone();
        let is_line = |at: usize, begins: &str, ends: &str| {
            let line = callers[at].as_str().unwrap_or_default();
            line.starts_with(begins) && line.ends_with(ends) && line.contains(" 0/s ") == (at == 0)
        };
        let is_all =
            is_line(0, "error (api): ", " failure_mode_deny") && is_line(1, "local (shop): ", " alone");
        holds(is_all, || callers.to_string())
    });
    eventually("the change names them", || {
        let changes = admin.get("/api/v1/changes");
        let what = "decided by policy error (api), local (shop)";
        let is_named = |change: &Value| change["what"].as_str().is_some_and(|text| text.ends_with(what));
        holds(changes["changes"].as_array().unwrap().iter().any(is_named), || changes.to_string())
    });
    let verbose = http::get(admin.server.ports.http, "/healthcheck?verbose").text();
    assert!(verbose.contains("decided by policy error, local\n"), "{verbose}");
}

#[test]
fn a_redis_that_refuses_writes_is_an_outage() {
    let redis = Redis::with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    let (setup, port) = setup();
    let server = setup.redis(&redis.env()).env("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false").start();
    let admin = Admin { server, port };
    let client = admin.server.client();
    eventually("most requests fail", || {
        for _ in 0..20 {
            let _ = client.ask(request("shop", &[&[("user", "ann")]]));
        }
        let output = admin.run(&["status"]);
        let is_seen = printed(&output).contains("connected, but most requests fail since 20")
            && printed(&output).contains("OOM");
        holds(output.status.code() == Some(1) && is_seen, || printed(&output))
    });
}

#[test]
fn a_frozen_redis_is_out_of_service_for_whoever_asks() {
    for callers in [0, 1] {
        let redis = Redis::single();
        // The caller has one worker; the connections of the others are idle.
        let admin = replica(&redis, &[("GRPC_WORKERS", "4"), ("STORE_FAILURE_POLICY", "allow")]);
        let client = admin.server.client();
        let ask = || {
            for _ in 0..callers {
                let _ = client.ask(request("shop", &[&[("user", "ann")]]));
            }
        };
        ask();
        assert_eq!(status(&admin)["enforced"], "yes");
        redis.freeze();
        let lost = eventually("the outage is seen", || {
            ask();
            let asked = Instant::now();
            let status = status(&admin);
            // A command waits five seconds for Redis.
            assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
            holds(status["store"]["connected"] == false, || status.to_string()).map(|()| status)
        });
        assert_eq!((&lost["enforced"], &lost["replicas"]), (&"no".into(), &"unknown".into()), "{lost}");
        let error = lost["store"]["error"].as_str().unwrap();
        assert!(error.starts_with("redis 127.0.0.1:") && !error.contains("TLS"), "it has worked: {error}");
        let until = Instant::now() + Duration::from_secs(6);
        while Instant::now() < until {
            ask();
            let status = status(&admin);
            assert_eq!(status["store"]["connected"], false, "{status}");
            let error = status["store"]["error"].as_str().unwrap();
            assert!(!error.contains("TLS"), "it has worked: {error}");
            let changes = admin.get("/api/v1/changes").to_string();
            assert!(!changes.contains("store_back"), "{changes}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(admin.get("/api/v1/changes").to_string().contains("store_lost"));
        redis.thaw();
        eventually("it is back", || {
            let status = status(&admin);
            let changes = admin.get("/api/v1/changes").to_string();
            let is_back = status["store"]["connected"] == true && changes.contains("store_back");
            holds(is_back, || format!("{status} {changes}"))
        });
    }
}
