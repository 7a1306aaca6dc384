//! The log of changes: from every replica, across restarts, while Redis is lost, and without Redis.

use std::fs;

use super::*;

fn changes(admin: &Admin) -> Vec<Value> {
    admin.get("/api/v1/changes?n=100")["changes"].as_array().unwrap().clone()
}

/// Waits for a change of this action whose text contains `what`.
#[track_caller]
fn wait_for(admin: &Admin, action: &str, what: &str) -> Value {
    eventually(&format!("{action} {what} is in the log"), || {
        let all = changes(admin);
        let is_it = |change: &&Value| change["action"] == action && change.to_string().contains(what);
        all.iter().find(is_it).cloned().ok_or_else(|| format!("{all:#?}"))
    })
}

/// A command of a user on a replica.
#[track_caller]
fn as_user(admin: &Admin, user: &str, args: &[&str]) {
    let mut command = Command::new(BINARY);
    command.args(args).args(["--admin", &format!("127.0.0.1:{}", admin.port)]).env("USER", user);
    assert_exit(&command.stdin(Stdio::null()).output().unwrap(), 0, &[]);
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

#[test]
fn the_second_replica_knows_what_was_changed_on_the_first_and_by_whom() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[("KEY_VALUES", "hashed")]));
    as_user(&one, "ann", &["override", "set", "shop", "user=bob", "--block", "--reason", "scraper"]);
    as_user(&one, "eve", &["counter", "reset", "shop", "user=carl", "--reason", "ticket 7"]);
    as_user(&one, "ann", &["override", "remove", "shop", "user=bob"]);
    for admin in [&one, &other] {
        let set = wait_for(admin, "override_set", "scraper");
        assert_eq!((&set["by"], &set["reason"]), (&format!("ann@{}", host()).into(), &"scraper".into()));
        let text = set["what"].as_str().unwrap();
        assert!(
            text.starts_with("shop user=sha256:") && text.contains("block") && !text.contains("bob"),
            "{text}"
        );
        let own = one.get("/api/v1/status")["replica"].clone();
        assert_eq!(set["replicas"], Value::Array(vec![own]));
        let reset = wait_for(admin, "counter_reset", "ticket 7");
        assert_eq!(reset["by"], format!("eve@{}", host()));
        wait_for(admin, "override_remove", "sha256:");
        assert!(!serde_json::to_string(&changes(admin)).unwrap().contains("carl"));
    }
    let all = changes(&other);
    let times: Vec<_> = all.iter().map(|change| change["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|one, next| one >= next), "newest first: {times:?}");
    assert_eq!(all.iter().filter(|change| change["action"] == "started").count(), 2);
    assert_exit(
        &other.run(&["changes", "-n", "3"]),
        0,
        &["override remove: shop user=sha256:", ", which was block; by ann@", "\n"],
    );
    let json = other.run(&["changes", "--json", "-n", "1"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["changes"].as_array().unwrap().len(), 1);
    assert!(widest(&run_in(&other, "50", &["changes"])) <= 50);
}

#[test]
fn a_reload_that_two_replicas_see_is_one_line_with_the_difference_of_the_rules() {
    let redis = Redis::single();
    let admins = [(); 2].map(|()| replica(&redis, &[]));
    let rules = crate::admin::RULES.replace("requests_per_unit: 2}", "requests_per_unit: 20}");
    let rules = rules.replace("  - key: free\n", "  - key: ip\n");
    for admin in &admins {
        admin.server.write("shop.yaml", &rules);
        admin.server.wait_for_rule("shop.ip");
    }
    let reload = eventually("both have written it", || {
        let reload = wait_for(&admins[1], "rules_reloaded", "shop.user");
        holds(reload["replicas"].as_array().unwrap().len() == 2, || reload.to_string()).map(|()| reload)
    });
    let row = |rule: &Value| {
        let of = |name: &str| rule[name].as_str().map(str::to_owned);
        (of("rule").unwrap(), of("old"), of("new"), rule["line"].as_u64())
    };
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        ("shop.ip".to_owned(), None, text("unlimited"), Some(8)),
        ("shop.user".to_owned(), text("2 per hour"), text("20 per hour"), Some(3)),
        ("shop.free".to_owned(), text("unlimited"), None, Some(8)),
    ];
    let rows: Vec<_> = reload["rules"].as_array().unwrap().iter().map(row).collect();
    assert_eq!(rows, expected, "{reload}");
    let all = changes(&admins[0]);
    assert_eq!(all.iter().filter(|change| change["action"] == "rules_reloaded").count(), 1, "{all:#?}");
    admins[0].server.write("shop.yaml", "domain: [");
    wait_for(&admins[1], "rules_rejected", "shop.yaml");
    let output = admins[1].run(&["changes"]);
    assert_exit(
        &output,
        0,
        &["rules reloaded: 3 rules changed, hash ", "; on 2 replicas\n  shop.ip: new, unlimited"],
    );
    assert_exit(
        &output,
        0,
        &["  shop.user: 2 per hour to 20 per hour /", "  shop.free: removed, was unlimited"],
    );
}

#[test]
fn changes_while_redis_is_lost_are_kept_and_written_later() {
    let mut redis = Redis::single();
    let [one, other] = [(); 2].map(|()| replica(&redis, &[]));
    wait_for(&other, "started", "version");
    redis.kill();
    eventually("both see the outage", || {
        let is_out = |admin: &Admin| admin.get("/api/v1/status")["replicas"] == "unknown";
        holds(is_out(&one) && is_out(&other), String::new)
    });
    let rules = crate::admin::RULES.replace("requests_per_unit: 2}", "requests_per_unit: 3}");
    one.server.write("shop.yaml", &rules);
    one.server.wait_for_rule("requests_per_unit=3");
    let own = wait_for(&one, "rules_reloaded", "2 per hour");
    assert_eq!(own["replicas"].as_array().unwrap().len(), 1);
    let reply = one.get("/api/v1/changes");
    assert!(reply["warning"].as_str().unwrap().contains("redis is out of service"), "{reply}");
    wait_for(&other, "store_lost", "decided by policy ");
    redis.start();
    wait_for(&other, "rules_reloaded", "2 per hour");
    eventually("the outage of both is one line, and so is its end", || {
        let all = changes(&other);
        let of = |action: &str| {
            let found = all.iter().filter(|change| change["action"] == action);
            found.map(|change| change["replicas"].as_array().unwrap().len()).collect::<Vec<_>>()
        };
        holds(of("store_lost") == [2] && of("store_back") == [2], || format!("{all:#?}"))
    });
    assert_eq!(other.get("/api/v1/changes")["warning"], Value::Null);
}

#[test]
fn a_stop_is_in_the_log_and_a_start_after_it() {
    let redis = Redis::single();
    let mut one = replica(&redis, &[]);
    let id = one.get("/api/v1/status")["replica"].as_str().unwrap().to_owned();
    wait_for(&one, "started", &id);
    // A process that ends at once leaves no key.
    eventually("the log is in Redis", || {
        let keys = redis.keys();
        if keys.iter().any(|key| key == "{tollgate}:log") { Ok(()) } else { Err(format!("{keys:?}")) }
    });
    assert!(one.server.process.stop().success());
    let other = replica(&redis, &[]);
    wait_for(&other, "stopped", &id);
}

#[test]
fn without_redis_the_log_is_beside_the_file_of_overrides_or_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("overrides.jsonl");
    let start = || {
        let (setup, port) = setup();
        Admin { server: setup.env("OVERRIDES_FILE", path.to_str().unwrap()).start(), port }
    };
    let mut admin = start();
    as_user(&admin, "ann", &["override", "set", "shop", "user=bob", "--block"]);
    wait_for(&admin, "override_set", "user=bob");
    assert!(admin.server.process.stop().success());
    let admin = start();
    eventually("both starts are listed", || {
        let all = changes(&admin);
        let actions: Vec<_> = all.iter().map(|change| change["action"].as_str().unwrap()).collect();
        holds(actions == ["started", "stopped", "override_set", "started"], || format!("{actions:?}"))
    });
    assert!(dir.path().join("overrides.jsonl.changes").exists());
    let admin = Admin::start();
    as_user(&admin, "ann", &["override", "set", "shop", "user=bob", "--allow"]);
    wait_for(&admin, "override_set", "allow");
}

#[test]
fn the_name_of_a_token_wins_over_what_the_caller_says_and_texts_are_printable() {
    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("carol {TOKEN}\n")).unwrap();
    let (setup, port) = setup();
    let admin = Admin { server: setup.env("ADMIN_TOKEN_FILE", path.to_str().unwrap()).start(), port };
    let body = r#"{"domain":"shop","descriptor":"user=x","action":"block","reason":"a\u001b[2Jb"}"#;
    let authorization = format!("Bearer {TOKEN}");
    let headers = [
        ("content-type", "application/json"),
        ("authorization", &*authorization),
        ("tollgate-user", "root@evil"),
    ];
    assert_eq!(http::send(port, "POST", "/api/v1/overrides", &headers, body.as_bytes()).unwrap().status, 200);
    let reply = http::send(port, "GET", "/api/v1/changes", &headers, b"").unwrap().json();
    // That the service started may be the newest change.
    let set = reply["changes"].as_array().unwrap().iter().find(|change| change["action"] != "started");
    assert_eq!(set.unwrap_or_else(|| panic!("{reply}"))["by"], "carol");
    let output = admin.run(&["changes", "--token-file", path.to_str().unwrap()]);
    assert_exit(&output, 0, &["; by carol on ", ": a\\u{1b}[2Jb"]);
    assert!(!printed(&output).contains('\u{1b}'));
}
