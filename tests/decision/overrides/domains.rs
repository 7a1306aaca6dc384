//! Switches of domains: allowed, shadowed, and with another failure policy, on all replicas or on one.

use super::*;

const OTHER: &str = "
domain: other
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]
";

fn setup() -> Setup {
    Setup::new().rules("shop.yaml", RULES).rules("other.yaml", OTHER)
}

fn on(redis: &Redis) -> Replica {
    let setup = setup().redis(&redis.env()).env("REPLICA_SYNC", "true").env("STORE_FAILURE_POLICY", "error");
    let replica = Replica::start(setup);
    replica.server.wait_until_healthy();
    replica
}

fn switch(replica: &Replica, words: &[&str]) -> String {
    replica.tollgate(&[&["domain", "set"], words, &["--reason", "test"]].concat())
}

fn codes(replica: &Replica, domain: &str, count: usize) -> Vec<Code> {
    let ask = || replica.server.ask(request(domain, &[&[("user", "ann")]])).unwrap();
    (0..count).map(|_| Code::try_from(ask().overall_code).unwrap()).collect()
}

/// The code of a request, or the message of its error.
fn outcome(replica: &Replica, domain: &str) -> Result<Code, String> {
    let answer = replica.server.ask(request(domain, &[&[("user", "ann")]]));
    answer
        .map(|answer| Code::try_from(answer.overall_code).unwrap())
        .map_err(|status| status.message().to_owned())
}

#[test]
fn a_domain_is_allowed_or_shadowed_until_it_is_cleared() {
    let replica = Replica::start(setup());
    assert_eq!(codes(&replica, "shop", 4), [OK, OK, OK, OVER]);
    let text = switch(&replica, &["shop", "--shadow", "--for", "1w"]);
    assert!(text.starts_with("domain shop: shadow until ") && text.contains("(7d left)"), "{text}");
    assert_eq!(codes(&replica, "shop", 3), [OK; 3]);
    assert_eq!(codes(&replica, "other", 4), [OK, OK, OK, OVER], "another domain");
    let text = switch(&replica, &["shop", "--allow"]);
    assert_eq!(text, "domain shop: allow\n");
    assert_eq!(replica.ask("user", "ann"), (OK, u32::MAX));
    let list = replica.tollgate(&["domain", "list"]);
    assert!(list.contains("shop") && list.contains("allow") && !list.contains("shadow"), "{list}");
    assert!(list.contains("ann") && list.contains("test"), "{list}");
    let cleared = replica.tollgate(&["domain", "clear", "shop", "--reason", "done"]);
    assert_eq!(cleared, "domain shop: cleared allow\n");
    assert_eq!(codes(&replica, "shop", 1), [OVER], "shadowed requests were counted");
    let none = replica.run(&["domain", "clear", "shop"]);
    assert_eq!((none.status.code(), printed(&none)), (Some(1), "domain shop has no switch\n".to_owned()));
    for (args, reply) in [
        (&["domain", "clear", "shop", "--json"][..], json!({"cleared": []})),
        (&["override", "remove", "shop", "user=ann", "--json"], json!({"removed": null})),
    ] {
        let none = replica.run(args);
        let printed: serde_json::Value = serde_json::from_slice(&none.stdout).expect("JSON");
        assert_eq!((none.status.code(), printed), (Some(1), reply), "{args:?}");
    }
    assert_eq!(replica.tollgate(&["domain", "list"]), "no domain is switched\n");
    assert_eq!(replica.get("/api/v1/overrides")["total"], 0);
    replica.server.wait_for_log(&[
        "domain_set",
        "shop, allow",
        "domain_clear",
        "shop, which was allow",
        "done",
    ]);
}

#[test]
fn a_switch_lifts_limits_but_no_block() {
    let replica = Replica::start(setup());
    replica.tollgate(&["override", "set", "shop", "user=bad", "--block"]);
    replica.tollgate(&["override", "set", "shop", "--entry", "client=10.0.0.0/8", "--block"]);
    replica.tollgate(&["override", "set", "shop", "user=ann", "--limit", "1/year"]);
    for action in ["--allow", "--shadow"] {
        switch(&replica, &["*", action]);
        assert_eq!(codes(&replica, "shop", 3), [OK; 3], "{action}");
        assert_eq!(
            (replica.ask("user", "bad").0, replica.ask("client", "10.1.1.1").0),
            (OVER, OVER),
            "{action}"
        );
        replica.tollgate(&["domain", "clear", "*"]);
    }
    assert_eq!(codes(&replica, "shop", 1), [OVER]);
}

#[test]
fn it_is_in_force_on_all_replicas_and_survives_them() {
    let redis = Redis::single();
    let [one, other] = [(); 2].map(|()| on(&redis));
    at_best_within("followed", Duration::from_secs(1), 5, || {
        let set = time_of(|| {
            switch(&one, &["shop", "--allow"]);
            eventually("set", || holds(other.ask("user", "x").1 == u32::MAX, String::new));
        });
        other.tollgate(&["domain", "clear", "shop"]);
        eventually("cleared", || holds(one.ask("user", "x").1 != u32::MAX, String::new));
        set
    });
    switch(&one, &["shop", "--shadow"]);
    drop((one, other));
    let third = on(&redis);
    assert!(third.tollgate(&["domain", "list"]).contains("shadow"));
    assert_eq!(codes(&third, "shop", 5), [OK; 5]);
}

#[test]
fn switches_in_a_file_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("overrides.jsonl");
    let start = || Replica::start(setup().env("OVERRIDES_FILE", path.to_str().unwrap()));
    let first = start();
    switch(&first, &["shop", "--shadow"]);
    switch(&first, &["shop", "--on-store-failure", "local"]);
    drop(first);
    let second = start();
    let list = second.tollgate(&["domain", "list"]);
    assert!(list.contains("shadow") && list.contains("on store failure local"), "{list}");
    let cleared = second.tollgate(&["domain", "clear", "shop"]);
    assert_eq!(cleared, "domain shop: cleared shadow, on store failure local\n");
    drop(second);
    assert_eq!(start().tollgate(&["domain", "list"]), "no domain is switched\n");
}

#[test]
fn the_failure_policy_changes_at_run_time_and_while_redis_is_gone() {
    let mut redis = Redis::single();
    let [one, other] = [(); 2].map(|()| on(&redis));
    switch(&one, &["shop", "--on-store-failure", "deny"]);
    eventually("followed", || {
        let list = other.tollgate(&["domain", "list"]);
        holds(list.contains("deny"), || list.clone())
    });
    redis.kill();
    for replica in [&one, &other] {
        eventually("denied", || {
            holds(outcome(replica, "shop") == Ok(OVER), || format!("{:?}", outcome(replica, "shop")))
        });
        assert!(outcome(replica, "other").is_err());
    }
    let text = switch(&one, &["shop", "--on-store-failure", "allow", "--this-replica"]);
    assert_eq!(text, "domain shop: on store failure allow, on this replica alone\n");
    switch(&one, &["*", "--on-store-failure", "local", "--this-replica"]);
    assert_eq!((outcome(&one, "shop"), outcome(&one, "other")), (Ok(OK), Ok(OK)));
    assert_eq!(outcome(&other, "shop"), Ok(OVER), "the other replica is as it was");
    let list = one.tollgate(&["domain", "list"]);
    assert!(list.contains("this replica") && !list.contains("deny"), "{list}");
    let cleared = one.tollgate(&["domain", "clear", "shop", "--this-replica"]);
    assert_eq!(cleared, "domain shop: cleared on store failure allow\n");
    assert_eq!(outcome(&one, "shop"), Ok(OVER), "the stored switch is in force again");
    let text = switch(&one, &["shop", "--on-store-failure", "allow"]);
    assert!(text.contains("redis is away") && text.contains("on the others when redis is back"), "{text}");
    assert_eq!((outcome(&one, "shop"), outcome(&other, "shop")), (Ok(OK), Ok(OVER)));
    redis.start();
    eventually("redis is back", || {
        let cleared = one.run(&["domain", "clear", "shop"]);
        holds(cleared.status.success(), || printed(&cleared))
    });
    eventually("cleared everywhere", || {
        let list = other.tollgate(&["domain", "list"]);
        holds(!list.contains("deny"), || list.clone())
    });
    assert!(one.tollgate(&["domain", "list"]).contains("local"), "it has another switch of its own");
}

#[test]
fn a_terminal_is_asked_for_a_reason() {
    let replica = Replica::start(setup());
    let set = format!("{BINARY} domain set shop --allow --admin 127.0.0.1:{}", replica.admin);
    for (typed, reason) in [("too many calls\n", "too many calls"), ("\n", "")] {
        // `script` runs it on a terminal of its own.
        let mut script = Command::new("script")
            .args(["-qec", &set, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        script.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        let output = script.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("reason: "), "{said}");
        let domains = replica.get("/api/v1/domains");
        assert_eq!(domains["domains"][0]["reason"].as_str().unwrap_or_default(), reason);
    }
    let quiet = Command::new("sh").args(["-c", &set]).stdin(Stdio::null()).output().unwrap();
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{quiet:?}");
}

#[test]
fn an_invalid_switch_is_explained() {
    let replica = Replica::start(setup());
    for (words, code, expected) in [
        (&["set", "shpo", "--allow", "--reason", "x"][..], 1, "no domain \"shpo\"; did you mean \"shop\"?"),
        (&["set", "shop", "--reason", "x"], 2, "<--allow|--shadow|--on-store-failure <POLICY>>"),
        (&["set", "shop", "--allow", "--shadow", "--reason", "x"], 2, "cannot be used with"),
        (
            &["set", "shop", "--on-store-failure", "block", "--reason", "x"],
            2,
            "[possible values: error, allow, deny, local, share]",
        ),
        (
            &["set", "shop", "--allow", "--for", "2 days", "--reason", "x"],
            2,
            "'--for <DURATION>': expected a duration",
        ),
    ] {
        let output = replica.run(&[&["domain"], words].concat());
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", printed(&output));
        assert!(printed(&output).contains(expected), "{words:?}: {}", printed(&output));
    }
    for (body, expected) in [
        (r#"{"domain":"shop","action":"block"}"#, "can be switched to allow or shadow only"),
        (r#"{"domain":"shop","action":"limit"}"#, "can be switched to allow or shadow only"),
        (
            r#"{"domain":"shop","on_store_failure":"x"}"#,
            "expected error, allow, deny, local, share, got \"x\"",
        ),
        (
            r#"{"domain":"shop","on_store_failure":"deny","action":"allow"}"#,
            "either action or on_store_failure",
        ),
        (r#"{"domain":"shop"}"#, "either action or on_store_failure"),
        (r#"{"domain":"","action":"allow"}"#, "domain is empty"),
        (r#"{"domain":"shop","action":"allow","this_replica":1}"#, "this_replica: expected true or false"),
        (r#"{"domain":"shop","action":"allow","force":"yes"}"#, "force: expected true or false"),
    ] {
        let answer = http::post(replica.admin, "/api/v1/domains", body);
        assert_eq!(answer.status, 400, "{body}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(expected), "{body}: {error}");
    }
    let stored = r#"{"domain":"*domain@shop","descriptor":"*","action":"block"}"#;
    assert_eq!(
        http::post(replica.admin, "/api/v1/overrides", stored).status,
        400,
        "not by the stored form either"
    );
    assert_eq!(replica.tollgate(&["domain", "list"]), "no domain is switched\n");
    let forced = switch(&replica, &["shpo", "--allow", "--force"]);
    assert!(forced.contains("warning: the rules have no domain"), "{forced}");
}

/// The reasons in the status and on the metrics page.
fn reasons(replica: &Replica) -> (Vec<Value>, Vec<String>) {
    let status = replica.get("/api/v1/status");
    let series =
        replica.server.metrics().into_keys().filter(|series| series.starts_with("tollgate_not_enforced{"));
    (status["not_enforced"].as_array().unwrap().clone(), series.collect())
}

#[test]
fn the_status_says_which_limits_are_not_enforced_and_who_chose_so() {
    let redis = Redis::single();
    let replica = on(&redis);
    assert_eq!(reasons(&replica), (Vec::new(), Vec::new()));
    switch(&replica, &["shop", "--allow", "--for", "1w"]);
    switch(&replica, &["other", "--shadow", "--this-replica"]);
    let all = eventually("both switches are shown", || {
        let (all, series) = reasons(&replica);
        let expected = ["{domain=\"other\",why=\"domain_shadow\"}", "{domain=\"shop\",why=\"domain_allow\"}"];
        let has = |end: &&str| series.iter().any(|one| one.ends_with(*end));
        holds(all.len() == 2 && expected.iter().all(has), || format!("{all:?} {series:?}")).map(|()| all)
    });
    let of = |domain: &str| all.iter().find(|one| one["domain"] == domain).unwrap();
    let text = of("shop")["text"].as_str().unwrap();
    for part in ["shop: no limit is in force, switched at 20", " by ", " until 20", ": test"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        of("other")["text"].as_str().unwrap().contains("limits refuse nothing on one replica, "),
        "{all:?}"
    );
    let output = replica.run(&["status"]);
    assert_eq!(output.status.code(), Some(0), "somebody chose it: {}", printed(&output));
    assert!(printed(&output).starts_with("enforced  partly: "), "{}", printed(&output));
    // Another replica knows by the log of changes since when.
    let second = on(&redis);
    let (found, _) = eventually("the other replica shows both", || {
        let (all, series) = reasons(&second);
        holds(all.len() == 2, || format!("{all:?}")).map(|()| (all, series))
    });
    let shop = found.iter().find(|one| one["domain"] == "shop").unwrap();
    assert_eq!(shop["since"], of("shop")["since"]);
    replica.tollgate(&["domain", "clear", "shop"]);
    eventually("the switch is gone", || {
        let (all, _) = reasons(&second);
        holds(all.iter().all(|one| one["domain"] != "shop"), || format!("{all:?}"))
    });
}

/// With the policy `local` each replica enforces limits; with `error` nobody does.
#[test]
fn limits_that_each_replica_counts_are_enforced_by_the_metrics() {
    let mut redis = Redis::single();
    let replica = on(&redis);
    switch(&replica, &["shop", "--on-store-failure", "local"]);
    redis.kill();
    let series = eventually("both domains are decided without Redis", || {
        for domain in ["shop", "other"] {
            let _ = outcome(&replica, domain);
        }
        let (all, series) = reasons(&replica);
        let fails = |domain| {
            let failed = all.iter().filter(|one| one["why"] == "store_failure");
            failed.into_iter().any(|one| one["domain"] == domain)
        };
        holds(fails("shop") && fails("other"), || format!("{all:?}")).map(|()| series)
    });
    assert_eq!(series, ["tollgate_not_enforced{domain=\"other\",why=\"store_failure\"}"]);
}
